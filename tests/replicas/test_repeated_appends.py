"""An append that is repeated: it is acknowledged only by all that `acks=all` needs, and it is not
made twice.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog._native import system
from embedlog.errors import EmbedlogError, NotEnoughReplicasAfterAppendError
from embedlog.partition.log_context import AppendProgress
from embedlog.partition.replication.followers import Followers
from embedlog.replicas.partition import replicated_partition
from embedlog.replicas.partition.in_sync_replicas import InSyncReplicas
from embedlog.replicas.partition.leader import Leader, LeaderChanged
from embedlog.replicas.partition.partition_replicas import PartitionReplicas
from tests.support.deleted_records import COMPACT, MEMORY, keyed, partition, put, records, values
from tests.support.replica_moves import opened, partition_of
from tests.support.replica_partitions import a_set
from tests.support.stamped_batches import run_of

T0 = embedlog.TopicPartition("t", 0)
TOO_FEW = "too few replicas are in sync"


def far() -> int:
    return system.boot_ns() + 20_000_000_000


# ---- the size of the ISR -------------------------------------------------------------------------


def test_each_attempt_asks_for_the_size_of_the_isr(tmp_path: Path) -> None:
    """The process needs two members, and the decision one. The first attempt committed; the next
    one was acknowledged by that.
    """
    with a_set(tmp_path, (1, 2)) as (decisions, [process]):
        process.partition.append(run_of(b"first"))
        process.disks[2].broken = True
        process.partition.append(run_of(b"second"))
        process.disks[2].broken = False
        process.forgive()
        assert process.replicas.in_sync.add_to_isr(
            process.replicas.leaders.find_leader(far()), 2, far()
        )
        process.replicas.in_sync.least_default = 2
        process.disks[2].broken = True
        progress = AppendProgress(run_of(b"value"))
        for _ in range(3):
            with pytest.raises(NotEnoughReplicasAfterAppendError, match=TOO_FEW):
                process.partition.append(progress.run, progress=progress)
            assert (progress.complete, progress.committed) == (True, 0)
        assert decisions.partition.isr == (1,)
        process.disks[2].broken = False
        process.forgive()
        assert process.replicas.in_sync.add_to_isr(
            process.replicas.leaders.find_leader(far()), 2, far()
        )
        assert process.partition.append(progress.run, progress=progress).base_offset == 2
        assert (progress.committed, process.published(1).log_end) == (3, 3)


def test_the_next_leader_is_asked_for_the_size_of_its_isr(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader was lost between the commit and the comparison."""
    with a_set(tmp_path) as (decisions, [process]):
        process.partition.append(run_of(b"first"))
        process.replicas.in_sync.least_default = 3
        check = process.replicas.in_sync.check_size_for_acks_all
        lost = list[int]()

        def losing(leader: Leader, end: int, deadline_ns: int) -> None:
            if not lost:
                lost.append(leader.node)
                process.disks[1].broken = True
                raise LeaderChanged
            check(leader, end, deadline_ns)

        monkeypatch.setattr(process.replicas.in_sync, "check_size_for_acks_all", losing)
        # another thread copies to them
        monkeypatch.setattr(Followers, "_enter", lambda followers: [])
        progress = AppendProgress(run_of(b"value"))
        with pytest.raises(NotEnoughReplicasAfterAppendError, match=TOO_FEW):
            process.partition.append(progress.run, progress=progress)
        assert (lost, decisions.partition.isr) == ([1], (2, 3))
        assert progress.committed == 0
        process.replicas.in_sync.least_default = 2
        assert process.partition.append(progress.run, progress=progress).base_offset == 1


@pytest.mark.parametrize("retries", [0, 3])
@pytest.mark.parametrize("idempotent", [False, True])
def test_a_record_that_too_few_replicas_have_is_not_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, retries: int, idempotent: bool
) -> None:
    with opened(tmp_path) as log:
        log.create_topic("t", assignment={0: [1, 2]})
    commit = InSyncReplicas.commit
    lost = list[int]()

    def losing(self: PartitionReplicas, *arguments: Any, **rest: Any) -> int:
        if not lost:
            lost.append(2)
            (tmp_path / "d2").rename(tmp_path / "gone2")
            self._directories.fail_replaced()
        return commit(self, *arguments, **rest)

    options: dict[str, Any] = (
        {"enable_idempotence": False, "retries": retries}
        if not idempotent
        else {"retries": retries + 1}
    )
    with opened(tmp_path, **{"min.insync.replicas": 2}) as log:
        with log.producer(acks="all", linger_ms=0, retry_backoff_ms=1, **options) as producer:
            producer.send("t", b"a").result(30)
            monkeypatch.setattr(Followers, "_enter", lambda followers: [])
            monkeypatch.setattr(Followers, "direct", None)
            monkeypatch.setattr(InSyncReplicas, "commit", losing)
            assert isinstance(
                producer.send("t", b"b").exception(30), NotEnoughReplicasAfterAppendError
            )
        assert lost == [2]
        assert partition_of(log, T0).isr == (1,)


# ---- the sync ------------------------------------------------------------------------------------


def test_a_record_is_not_acknowledged_if_its_sync_was_not_possible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was committed; the error is that of no sync. The record could be lost with the power of
    two machines.
    """

    def impossible(*arguments: Any) -> None:
        raise embedlog.errors.NotEnoughDirectoriesError(
            "no majority: a member that fails cannot leave"
        )

    with opened(tmp_path) as log:
        log.create_topic("t", assignment={0: [1, 2, 3]}, config={"flush.messages": "1"})
        with log.producer(acks="all", linger_ms=0, retries=2, retry_backoff_ms=1) as producer:
            producer.send("t", b"a").result(30)
            with monkeypatch.context() as patched:
                patched.setattr(replicated_partition, "sync_if_due", impossible)
                assert isinstance(producer.send("t", b"b").exception(30), EmbedlogError)
            assert producer.send("t", b"c").result(30).offset == 2


# ---- compaction ----------------------------------------------------------------------------------


def test_a_record_that_a_compaction_removed_is_not_appended_again(tmp_path: Path) -> None:
    """A replica that copied after the pass has no batch of its epoch. It replaced a newer value,
    which had been acknowledged.
    """
    with a_set(tmp_path, min_insync_replicas="1") as (decisions, [process]):
        for disk in process.disks.values():
            disk.log.alter_topic("t", COMPACT)
        process.disks[3].broken = True
        put(process, b"b", b"older")
        progress = AppendProgress(keyed(b"a", b"mine"))
        process.partition.append(progress.run, progress=progress)
        # the process is slow before it sees the commit
        progress.committed = progress.seen_committed = 0
        process.disks[1].broken = True
        put(process, b"a", b"newer")
        for number in range(30):
            put(process, b"b", b"%0400d" % number)
        partition(process, 2).compact(-1, MEMORY, system.wall_ms() + 1000)
        assert [value for key, value in records(partition(process, 2)) if key == b"a"] == [b"newer"]
        process.disks[3].broken = False
        process.forgive()
        process.disks[1].broken = True
        assert process.replicas.in_sync.add_to_isr(
            process.replicas.leaders.find_leader(far()), 3, far()
        )
        process.disks[2].broken = True
        put(process, b"c", b"later")
        assert (decisions.partition.leader, decisions.partition.isr) == (3, (3,))
        with pytest.raises(NotEnoughReplicasAfterAppendError, match="may have been committed"):
            process.partition.append(progress.run, progress=progress)
        assert values(partition(process, 3)) == {
            b"a": b"newer",
            b"b": b"%0400d" % 29,
            b"c": b"later",
        }
