"""Calls of `delete_records` that are refused: they have deleted nothing, or the error says so."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog import TopicPartition
from embedlog.errors import (
    LockTimeoutError,
    NotEnoughDirectoriesError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    OffsetOutOfRangeError,
)
from embedlog.partition.partition import Partition
from embedlog.replicas.partition.in_sync_replicas import InSyncReplicas
from embedlog.replicas.partition.leader import Leader
from embedlog.replicas.partition.partition_replicas import PartitionReplicas
from embedlog.replicas.partition.record_deletion import RecordDeletion
from tests.support.opened_sets import QUIET, paths, send, values

T0 = TopicPartition("t", 0)


def starts(log: embedlog.Log) -> dict[int, int]:
    """The log starts by node."""
    return {copy.node: copy.log_start for copy in log.replicas("t").partitions[0].copies}


def test_nothing_is_deleted_while_a_replica_outside_the_isr_could_lead_next(tmp_path: Path) -> None:
    """The deletion was acknowledged, and an eligible replica had the records."""
    tp = TopicPartition("t", 0)
    with embedlog.open(paths(tmp_path), config=QUIET) as log:
        log.create_topic("t", assignment={0: [1, 2]}, config={"min.insync.replicas": 2})
        send(log, *(b"%d" % number for number in range(10)))
        (tmp_path / "d2").rename(tmp_path / "lost")
        for _ in range(2):
            with pytest.raises(NotEnoughReplicasError):
                log.delete_records({tp: 5})
        assert log.replicas("t").partitions[0].elr == (2,)
        assert log.describe_topic("t").partitions[0].log_start_offset == 0
        assert len(list(log.scan("t").records())) == 10


def test_a_deletion_that_no_majority_allows_has_deleted_nothing(tmp_path: Path) -> None:
    tp = TopicPartition("t", 0)
    with embedlog.open(
        paths(tmp_path), config={"housekeeping": False, "lock.timeout.ms": 1000}
    ) as log:
        log.create_topic("t", assignment={0: [1, 2, 3]}, config={"min.insync.replicas": 1})
        send(log, *(b"%d" % number for number in range(5)))
        for node in (2, 3):
            (tmp_path / f"d{node}").rename(tmp_path / f"lost{node}")
        with pytest.raises(NotEnoughDirectoriesError):
            log.delete_records({tp: 3})
        assert len(list(log.scan("t").records())) == 5
        with pytest.raises(OffsetOutOfRangeError):
            log.delete_records({tp: 6})


@pytest.mark.parametrize("least", [2, 3])
def test_a_follower_that_fails_before_a_deletion_begins_leaves_nothing_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, least: int
) -> None:
    """One follower had deleted the records, and the leader had not: they were gone after its
    loss.
    """
    tp = TopicPartition("t", 0)
    prepare = RecordDeletion._prepare
    lost = list[Path]()

    def failing(self: RecordDeletion, leader: Leader, follower: Partition, until: int) -> None:
        if tmp_path / "d3" in follower.path.parents and not lost:
            for node in (3,) if least == 3 else (3, 4, 5):  # without a majority it cannot leave
                lost.append((tmp_path / f"d{node}").rename(tmp_path / f"lost{node}"))
        prepare(self, leader, follower, until)

    directories = [tmp_path / f"d{node}" for node in range(1, 6)]
    with embedlog.open(directories, config={"housekeeping": False, "lock.timeout.ms": 2000}) as log:
        log.create_topic("t", assignment={0: [1, 2, 3]}, config={"min.insync.replicas": least})
        send(log, *(b"%d" % number for number in range(10)))
        monkeypatch.setattr(RecordDeletion, "_prepare", failing)
        with pytest.raises((NotEnoughReplicasError, NotEnoughDirectoriesError)):
            log.delete_records({tp: 8})
        assert lost
        assert (starts(log)[1], starts(log)[2]) == (0, 0)


def test_a_replica_that_joins_after_the_preparation_takes_the_high_watermark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It knows the high watermark of its last copy. The leader had not deleted, and an offset that
    exists was out of range.
    """
    in_sync = InSyncReplicas.shrink_to_reached
    calls = list[int]()

    def before_the_join(
        self: PartitionReplicas, leader: Leader, deadline_ns: int
    ) -> list[tuple[int, Partition]]:
        calls.append(leader.node)
        return [
            each for each in in_sync(self, leader, deadline_ns) if len(calls) > 1 or each[0] != 3
        ]

    with embedlog.open(paths(tmp_path), config=QUIET) as log:
        log.create_topic("t", assignment={0: [1, 2, 3]})
        send(log, *(b"%d" % number for number in range(10)))
        monkeypatch.setattr(InSyncReplicas, "shrink_to_reached", before_the_join)
        assert log.delete_records({T0: 10}) == {T0: 10}
        monkeypatch.undo()
        assert starts(log) == {1: 10, 2: 10, 3: 10}


def test_a_refusal_after_the_leader_has_deleted_does_not_say_that_nothing_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Partition.delete_records

    def losing(self: Partition, *arguments: Any) -> int:
        start = original(self, *arguments)
        if tmp_path / "d1" in self.path.parents:
            (tmp_path / "d2").rename(tmp_path / "lost2")
            log._engine.set.partition("t", 0)._replicas._directories.fail_replaced()
        return start

    with embedlog.open(paths(tmp_path), config=QUIET) as log:
        log.create_topic("t", assignment={0: [1, 2]}, config={"min.insync.replicas": 2})
        send(log, *(b"%d" % number for number in range(10)))
        monkeypatch.setattr(Partition, "delete_records", losing)
        with pytest.raises(
            NotEnoughReplicasAfterAppendError, match=r"below 8 has begun.*repeat it"
        ):
            log.delete_records({T0: 8})
        assert starts(log)[1] == 8


def test_a_refusal_without_a_majority_says_that_a_follower_has_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error was NotEnoughDirectoriesError, as if nothing were deleted. The records were gone
    after the leader's loss.
    """
    original = Partition.delete_records

    def losing(self: Partition, *arguments: Any) -> int:
        if tmp_path / "d3" in self.path.parents:  # node 2 has deleted
            for node in (2, 3):
                (tmp_path / f"d{node}").rename(tmp_path / f"lost{node}")
        return original(self, *arguments)

    with embedlog.open(paths(tmp_path), config=QUIET) as log:
        log.create_topic("t", assignment={0: [1, 2, 3]}, config={"min.insync.replicas": 2})
        send(log, *(b"%d" % number for number in range(10)))
        monkeypatch.setattr(Partition, "delete_records", losing)
        with pytest.raises(NotEnoughReplicasAfterAppendError, match="repeat it") as refused:
            log.delete_records({T0: 8})
        assert isinstance(refused.value.__cause__, NotEnoughDirectoriesError)
        assert starts(log)[1] == 0


@pytest.mark.parametrize("late", [False, True], ids=["first", "after the preparation"])
def test_held_locks_of_followers_take_one_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    """Each of them took a deadline of its own, and one for which no time was left lost its place in
    the ISR at once.
    """
    large = InSyncReplicas.is_large_enough
    directories = paths(tmp_path, 5)
    with contextlib.ExitStack() as stack:
        log, other = (
            stack.enter_context(embedlog.open(directories, config=QUIET)) for _ in range(2)
        )
        log.create_topic("t", assignment={0: [1, 2, 3, 4]})
        send(log, *(b"%d" % number for number in range(10)))

        def hold() -> None:
            for directory in other._engine.directories:
                if directory.path in directories[1:4]:
                    stack.enter_context(directory.partition("t", 0).replica.exclusive())

        def enough(self: PartitionReplicas, leader: Leader) -> bool:
            monkeypatch.undo()
            hold()
            return large(self, leader)

        if late:
            monkeypatch.setattr(InSyncReplicas, "is_large_enough", enough)
        else:
            hold()
        with pytest.raises(LockTimeoutError):
            log.delete_records({T0: 5})
        assert 4 in log.replicas("t").partitions[0].isr
        assert values(log) == [b"%d" % number for number in range(10)]
