"""The replicas of one partition: copies, commits, changes of the ISR, failovers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from embedlog._native import system
from embedlog.errors import (
    LeaderNotAvailableError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    OutOfOrderSequenceError,
)
from embedlog.format.record_batch import Stamp
from embedlog.partition.log_context import AppendProgress
from embedlog.replicas.decisions.proposals import MakeEvent, Steps
from embedlog.replicas.partition.in_sync_replicas import InSyncReplicas
from embedlog.replicas.partition.leader import Leader
from embedlog.replicas.partition.partition_replicas import PartitionReplicas
from embedlog.replicas.rules.events import Condition, Refusal
from tests.support.batches import Row, batch
from tests.support.replica_partitions import Process, a_set
from tests.support.stamped_batches import run_of, stamped


def far() -> int:
    return system.boot_ns() + 20_000_000_000


def values(process: Process) -> list[bytes]:
    """All records that readers see."""
    partition = process.partition
    found = []
    offset = 0
    while len((fetched := partition.fetch(offset)).batches):
        found.append(bytes(fetched.data))
        offset = fetched.next_offset
    return found


def test_an_append_is_acknowledged_when_all_replicas_have_it(tmp_path: Path) -> None:
    with a_set(tmp_path) as (decisions, [process]):
        for number in range(40):
            appended = process.partition.append(run_of(b"value %d" % number))
            assert (appended.base_offset, process.partition.bounds().high_watermark) == (
                number,
                number + 1,
            )
        assert {process.data(node) for node in (1, 2, 3)} == {process.data(1)}
        assert len(process.data(1)) > 40 * 60
        assert decisions.partition.isr == (1, 2, 3)
        assert [process.published(node).epoch for node in (1, 2, 3)] == [0, 0, 0]


def test_without_acks_all_only_the_leader_has_it_until_the_commit(tmp_path: Path) -> None:
    with a_set(tmp_path) as (_, [process]):
        process.partition.append(run_of(b"first"))
        process.partition.append(run_of(b"second"), all_in_sync=False)
        bounds = process.partition.bounds()
        assert (bounds.log_end, bounds.high_watermark) == (2, 1)
        assert process.published(2).log_end == 1
        leader = process.replicas.leaders.find_leader(far())
        assert process.replicas.in_sync.commit(leader, 2, far()) == 2
        assert process.published(3).log_end == 2


def test_a_follower_that_fails_leaves_the_isr_and_joins_again(tmp_path: Path) -> None:
    with a_set(tmp_path) as (decisions, [process]):
        process.partition.append(run_of(b"first"))
        process.disks[2].broken = True
        process.partition.append(run_of(b"second"))
        assert (decisions.partition.isr, decisions.partition.leader) == ((1, 3), 1)
        assert process.partition.bounds().high_watermark == 2
        process.disks[2].broken = False
        process.forgive()
        assert process.replicas.in_sync.add_to_isr(
            process.replicas.leaders.find_leader(far()), 2, far()
        )
        assert decisions.partition.isr == (1, 2, 3)
        process.partition.append(run_of(b"third"))
        assert process.data(2) == process.data(1)


def test_a_leader_that_fails_is_replaced_and_returns_without_its_own_records(
    tmp_path: Path,
) -> None:
    with a_set(tmp_path) as (decisions, [process]):
        process.partition.append(run_of(b"first"))
        process.partition.append(run_of(b"never copied"), all_in_sync=False)
        process.disks[1].broken = True
        appended = process.partition.append(run_of(b"second"))
        assert appended.base_offset == 1, "the record that was not committed is gone, as in Kafka"
        now = decisions.partition
        assert (now.leader_epoch, now.leader in (2, 3), now.isr) == (1, True, (2, 3))
        process.disks[1].broken = False
        process.forgive()
        assert process.replicas.in_sync.add_to_isr(
            process.replicas.leaders.find_leader(far()), 1, far()
        )
        process.partition.append(run_of(b"third"))
        assert {process.data(node) for node in (1, 2, 3)} == {process.data(2)}
        assert b"never copied" not in process.data(1)


def test_the_first_append_to_a_new_leader_commits_the_records_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its followers do not know that the second record is committed: one commit shows that, and the
    new record.
    """
    commits: list[int] = []
    commit = InSyncReplicas.commit

    def counted(
        replicas: PartitionReplicas,
        leader: Leader,
        end: int,
        deadline_ns: int,
        *,
        wait: bool = True,
    ) -> int:
        commits.append(end)
        return commit(replicas, leader, end, deadline_ns, wait=wait)

    with a_set(tmp_path) as (decisions, [process]):
        for value in (b"first", b"second"):
            process.partition.append(run_of(value))
        assert [process.published(node).high_watermark for node in (2, 3)] == [1, 1]
        process.disks[1].broken = True
        monkeypatch.setattr(InSyncReplicas, "commit", counted)
        assert process.partition.append(run_of(b"third")).base_offset == 2
        assert commits == [3]
        assert decisions.partition.leader_epoch == 1
        assert process.partition.bounds().high_watermark == 3


@pytest.mark.parametrize("acks_1", [False, True], ids=["no other", "acks=1"])
def test_readers_get_all_records_after_the_first_append_to_a_new_leader_was_refused(
    tmp_path: Path, acks_1: bool
) -> None:
    """REPLICA-10: the start of the epoch is committed for them."""
    with a_set(tmp_path) as (_, [process]):
        stamp = Stamp(7, 0)
        for number, value in enumerate((b"first", b"second")):
            process.partition.append(stamped(stamp, number, value), stamp=stamp)
        process.disks[1].broken = True
        for _ in range(2):
            with pytest.raises(OutOfOrderSequenceError):
                process.partition.append(stamped(stamp, 5, b"refused"), stamp=stamp)
        if acks_1:
            process.partition.append(run_of(b"third"), all_in_sync=False)
        found = process.partition.fetch(0)
        assert found.next_offset == process.partition.bounds().high_watermark >= 2
        assert b"first" in found.data.tobytes()
        assert b"second" in found.data.tobytes()


def test_all_leaders_but_one_may_fail_one_after_the_other(tmp_path: Path) -> None:
    with a_set(tmp_path) as (decisions, [process]):
        for number, node in enumerate((1, 0, 0)):
            process.partition.append(run_of(b"value %d" % number))
            process.disks[node or decisions.partition.leader].broken = number < 2
        assert len(decisions.partition.isr) == 1
        assert process.partition.bounds().high_watermark == 3


def test_without_any_replica_the_error_names_all_of_them(tmp_path: Path) -> None:
    with a_set(tmp_path) as (_, [process]):
        process.partition.append(run_of(b"first"))
        for disk in process.disks.values():
            disk.broken = True
        with pytest.raises(LeaderNotAvailableError, match=r"1: .*the disk is gone.*2: .*3: "):
            process.partition.append(run_of(b"second"), deadline_ns=system.boot_ns() + 300_000_000)


def test_too_few_replicas_refuse_an_append_or_leave_it_uncommitted(tmp_path: Path) -> None:
    with a_set(tmp_path, min_insync_replicas="2") as (decisions, [process]):
        process.partition.append(run_of(b"first"))
        process.disks[2].broken = process.disks[3].broken = True
        with pytest.raises(NotEnoughReplicasAfterAppendError):
            process.partition.append(run_of(b"second"))
        assert (decisions.partition.isr, decisions.partition.elr) == ((1,), (3,))
        bounds = process.partition.bounds()
        assert (bounds.log_end, bounds.high_watermark) == (2, 1)
        with pytest.raises(NotEnoughReplicasError) as refused:
            process.partition.append(run_of(b"third"))
        assert (refused.value.isr, refused.value.required) == ([1], 2)
        assert process.partition.bounds().log_end == 2, "nothing was written"
        process.disks[2].broken = False
        process.forgive()
        assert process.replicas.in_sync.add_to_isr(
            process.replicas.leaders.find_leader(far()), 2, far()
        )
        process.partition.append(run_of(b"third"))
        assert process.partition.bounds().high_watermark == 3


def test_a_second_process_follows_a_failover_of_the_first(tmp_path: Path) -> None:
    with a_set(tmp_path, processes=2) as (decisions, [one, two]):
        one.partition.append(run_of(b"first"))
        two.partition.append(run_of(b"second"))
        one.disks[1].broken = True
        one.partition.append(run_of(b"third"))
        assert decisions.partition.leader != 1
        appended = two.partition.append(run_of(b"fourth"))
        assert appended.base_offset == 3
        assert len(values(two)) == len(values(one)) > 0
        assert two.partition.bounds().high_watermark == 4


@pytest.mark.parametrize(
    ("killed", "mount", "found"),
    [(False, 1, Condition.COMPLETE), (True, 1, Condition.COMPLETE), (True, 0, Condition.CRASHED)],
    ids=["closed", "killed", "killed without mount ids"],
)
def test_replica_11_a_replica_is_complete_with_its_page_or_after_an_orderly_close(
    tmp_path: Path, killed: bool, mount: int, found: Condition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a kill the page of before shows everything, if it is of this boot and mount."""
    monkeypatch.setattr(system, "mount_id", lambda path: mount)
    pid = os.fork()
    if pid == 0:
        try:
            with a_set(tmp_path) as (_, [process]):
                process.partition.append(run_of(b"first"))
                if killed:
                    os._exit(0)
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    with a_set(tmp_path) as (decisions, [process]):
        observed = process.replicas.leaders.observe_replicas(decisions.partition)
        assert {node: each.condition for node, each in observed.items()} == dict.fromkeys(
            (1, 2, 3), found
        )


def test_replica_10_a_leader_below_the_start_of_its_epoch_shows_no_lower_end(
    tmp_path: Path,
) -> None:
    """Both members but one fail at once: the high watermark cannot move, and the last leader's one
    is not known.
    """
    with a_set(tmp_path, processes=2, min_insync_replicas="2") as (decisions, [process, reader]):
        for number in range(3):
            process.partition.append(run_of(b"value %d" % number))
        assert reader.partition.bounds().high_watermark == 3
        for each in (process, reader):
            each.disks[1].broken = each.disks[3].broken = True
            each.partition._timeout_ms = 500
        with pytest.raises(NotEnoughReplicasError):
            process.partition.append(run_of(b"late"), deadline_ns=system.boot_ns() + 5_000_000_000)
        assert decisions.partition.leader == 2
        assert process.published(2).high_watermark < 3
        with pytest.raises(LeaderNotAvailableError, match="start of its epoch"):
            reader.partition.bounds()
        for each in (process, reader):
            each.disks[3].broken = False
            each.forgive()
        assert process.replicas.in_sync.add_to_isr(
            process.replicas.leaders.find_leader(far()), 3, far()
        )
        assert reader.partition.bounds().high_watermark == 3
        assert process.partition.append(run_of(b"late")).base_offset == 3


def test_too_few_replicas_are_an_error_of_a_decision_under_the_lock(tmp_path: Path) -> None:
    with a_set(tmp_path, min_insync_replicas="2") as (decisions, [process]):
        process.partition.append(run_of(b"first"))
        for node in (2, 3):
            process.disks[node].broken = True
        with pytest.raises(NotEnoughReplicasAfterAppendError):
            process.partition.append(run_of(b"second"))
        assert decisions.partition.isr == (1,)
        with pytest.raises(NotEnoughReplicasError), process.partition.exclusive():
            process.partition.append_held(batch(2, [Row(b"third")]))


def test_a_repeated_append_is_acknowledged_only_where_its_records_are(tmp_path: Path) -> None:
    """An append fails before its commit; its caller repeats it with the same progress after a
    failover.
    """
    with a_set(tmp_path, min_insync_replicas="2") as (decisions, [process]):
        process.partition.append(run_of(b"first"))
        for node in (2, 3):
            process.disks[node].broken = True
        progress = AppendProgress(run_of(b"second"))
        with pytest.raises(NotEnoughReplicasAfterAppendError):
            process.partition.append(progress.run, progress=progress)
        assert progress.complete
        assert (decisions.partition.isr, decisions.partition.elr) == ((1,), (3,))
        process.disks[1].broken = True
        for node in (2, 3):
            process.disks[node].broken = False
        process.forgive()
        assert process.replicas.in_sync.add_to_isr(
            process.replicas.leaders.find_leader(far()), 2, far()
        )
        assert process.partition.append(run_of(b"other")).base_offset == 1
        assert process.partition.append(progress.run, progress=progress).base_offset == 2
        assert b"second" in values(process)[-1]


class _Killed(BaseException):
    """The end of a process between two steps."""


def test_a_maximal_member_that_was_never_decided_is_removed_if_it_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process ended between the two steps of the join (REPLICA-6): the page has it, and no
    decision.
    """
    undecided = list[MakeEvent]()

    def killed(self: PartitionReplicas, event: MakeEvent, *rest: object) -> bool:
        undecided.append(event)
        raise _Killed

    with a_set(tmp_path, processes=2) as (decisions, [joining, process]):
        process.disks[3].broken = True
        process.partition.append(run_of(b"first"))
        assert decisions.partition.isr == (1, 2)
        process.disks[3].broken = False
        with monkeypatch.context() as patched, pytest.raises(_Killed):
            patched.setattr(InSyncReplicas, "_decide_and_install", killed)
            joining.replicas.in_sync.add_to_isr(
                joining.replicas.leaders.find_leader(far()), 3, far()
            )
        leader = process.replicas.leaders.find_leader(far())
        assert process.replicas.in_sync.is_member(leader, 3)
        process.disks[3].broken = True
        assert (
            process.partition.append(
                run_of(b"second"), deadline_ns=system.boot_ns() + 5_000_000_000
            ).base_offset
            == 1
        )
        assert not process.replicas.in_sync.is_member(leader, 3)
        assert decisions.partition.isr == (1, 2)
        assert decisions.propose(Steps(undecided)) is Refusal.INVALID_UPDATE_VERSION, (
            "the other process may go on"
        )


def test_a_member_that_left_already_is_not_removed_again(tmp_path: Path) -> None:
    with a_set(tmp_path) as (decisions, [process]):
        process.disks[3].broken = True
        process.partition.append(run_of(b"first"))
        before = decisions.partition
        process.replicas.in_sync.remove_from_isr(
            process.replicas.leaders.find_leader(far()), 3, far()
        )
        assert decisions.partition == before
