"""Pages of leaders that lose their role while a process uses them: they may have been cut, or made
again from other files.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import embedlog
from embedlog._native.replication import ROLE_NONE
from embedlog.errors import OffsetOutOfRangeError, StorageError
from embedlog.partition.partition import Partition
from embedlog.partition.replication.replica_log import NotLeader
from embedlog.replicas.partition.copying import copy
from embedlog.replicas.partition.leader import Leader, LeaderChanged
from embedlog.replicas.partition.partition_replicas import PartitionReplicas
from tests.support.damaged_sets import send
from tests.support.renewed_replicas import until_in_sync
from tests.support.verified_sets import COUNT, WANTED, assert_equal_copies, filled, isr, values


def used(log: embedlog.Log) -> tuple[PartitionReplicas, Leader, Partition]:
    """The replicas of the partition, its leader, and a follower."""
    assert values(log) == WANTED
    replicas = next(each for each in log._engine.set.used_replicas() if each.topic == "t")  # type: ignore[attr-defined]
    leader = replicas.leaders.find_leader(log._engine.set.deadline())  # type: ignore[attr-defined]
    follower = replicas.members.find_replica(2)
    assert leader.node == 1
    assert follower is not None
    return replicas, leader, follower


def lose_role(partition: Partition, **changed: int) -> None:
    with partition.replica.exclusive() as held:
        held.publish(held.published._replace(**changed), held.replica._replace(role=ROLE_NONE))


def test_a_log_start_of_a_page_without_a_role_deletes_nothing(tmp_path: Path) -> None:
    """A page that was made from the files of an incomplete copy begins at the first of them
    (REPLICA-20).
    """
    with filled(tmp_path) as log:
        _, leader, follower = used(log)
        lose_role(leader.partition, log_start=COUNT // 2)
        with pytest.raises(NotLeader):
            copy(leader, follower, 0, log._engine.set.deadline())  # type: ignore[attr-defined]
        assert follower.published().log_start == 0
        lose_role(leader.partition, log_start=0)


def test_a_high_watermark_of_a_page_without_a_role_is_not_learnt(tmp_path: Path) -> None:
    """Such a page shows the end of its files, also of records that are not committed."""
    with filled(tmp_path) as log:
        replicas, leader, follower = used(log)
        before = follower.published().high_watermark
        with follower.replica.exclusive() as held:
            held.publish(held.published._replace(high_watermark=before - 1), held.replica)
        lose_role(leader.partition)
        with pytest.raises(LeaderChanged):
            replicas.in_sync.spread_high_watermark(leader, log._engine.set.deadline())  # type: ignore[attr-defined]
        assert follower.published().high_watermark == before - 1


@pytest.mark.parametrize("fails", [False, True])
def test_what_a_page_shows_after_its_role_is_lost_is_dropped(tmp_path: Path, fails: bool) -> None:
    """The page changes between the look for the leader and the read."""
    with filled(tmp_path) as log:
        _, leader, _ = used(log)
        calls = []

        def call(partition: Partition) -> int:
            calls.append(partition)
            if len(calls) == 1:
                lose_role(leader.partition)
                if fails:
                    raise OffsetOutOfRangeError("t-0 has no such offset", path=partition.path)
            return len(calls)

        assert log._engine.partition("t", 0)._calls.read(call) == 2  # type: ignore[attr-defined]


def test_an_incomplete_copy_in_the_place_of_a_leader_deletes_nothing(tmp_path: Path) -> None:
    """Its first segment is not there yet. A process that waits maps no page of these
    files.
    """
    with filled(tmp_path, segment_bytes="16384") as log:
        _, leader, follower = used(log)
        (tmp_path / "d1").rename(tmp_path / "aside")
        shutil.copytree(tmp_path / "d3", tmp_path / "d1")
        for path in (tmp_path / "d1" / "t-0").iterdir():
            if path.name.startswith(
                ("0" * 20, "embedlog.", "leader-epoch")
            ) and not path.name.endswith("lock"):
                path.unlink()
        deadline_ns = log._engine.set.deadline()  # type: ignore[attr-defined]
        for call in (leader.partition.check_page, lambda: copy(leader, follower, 0, deadline_ns)):
            with pytest.raises(StorageError, match="the lock file of this directory was replaced"):
                call()
        send(log, "t", b"more")
        log.housekeep()
        assert 1 not in isr(log)
        shutil.rmtree(tmp_path / "d1")
        (tmp_path / "aside").rename(tmp_path / "d1")
        until_in_sync(log)
        assert values(log) == [*WANTED, b"more"]
    assert_equal_copies(tmp_path)
