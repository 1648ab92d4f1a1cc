"""Calls of `delete_records` that are refused: they have deleted nothing, and a failover shows no other records."""

from __future__ import annotations

from pathlib import Path

import pytest

import embedlog
from embedlog import TopicPartition
from embedlog.errors import NotEnoughDirectoriesError, NotEnoughReplicasError, OffsetOutOfRangeError
from embedlog.partition.partition import Partition
from embedlog.replica_set.leaders import Leader
from embedlog.replica_set.partition_replicas import PartitionReplicas
from tests.replica_set.test_opening import QUIET, paths, send


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
    with embedlog.open(paths(tmp_path), config={"housekeeping": False, "lock.timeout.ms": 1000}) as log:
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
    """One follower had deleted the records, and the leader had not: they were gone after its loss."""
    tp, prepare, lost = TopicPartition("t", 0), PartitionReplicas._prepare_start, list[Path]()

    def failing(self: PartitionReplicas, leader: Leader, follower: Partition, start: int, deadline_ns: int) -> None:
        if tmp_path / "d3" in follower.path.parents and not lost:
            for node in (3,) if least == 3 else (3, 4, 5):  # without a majority it cannot leave
                lost.append((tmp_path / f"d{node}").rename(tmp_path / f"lost{node}"))
        prepare(self, leader, follower, start, deadline_ns)

    directories = [tmp_path / f"d{node}" for node in range(1, 6)]
    with embedlog.open(directories, config={"housekeeping": False, "lock.timeout.ms": 2000}) as log:
        log.create_topic("t", assignment={0: [1, 2, 3]}, config={"min.insync.replicas": least})
        send(log, *(b"%d" % number for number in range(10)))
        monkeypatch.setattr(PartitionReplicas, "_prepare_start", failing)
        with pytest.raises((NotEnoughReplicasError, NotEnoughDirectoriesError)):
            log.delete_records({tp: 8})
        assert lost
        starts = {copy.node: copy.log_start for copy in log.replicas("t").partitions[0].copies}
        assert (starts[1], starts[2]) == (0, 0)
