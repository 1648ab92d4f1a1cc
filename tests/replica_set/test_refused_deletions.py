"""Calls of `delete_records` that are refused: they have deleted nothing, and a failover shows no other records."""

from __future__ import annotations

from pathlib import Path

import pytest

import embedlog
from embedlog import TopicPartition
from embedlog.errors import NotEnoughDirectoriesError, NotEnoughReplicasError, OffsetOutOfRangeError
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
