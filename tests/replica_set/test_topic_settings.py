"""Changed settings of a topic apply in each directory and each process of a set."""

from __future__ import annotations

from pathlib import Path

import pytest

import embedlog
from embedlog.errors import DeadlineError, RecordTooLargeError
from tests.replica_set.test_opening import QUIET, made, paths, send
from tests.replica_set.test_returning import moved_away, moved_back, replica

SETTINGS = {"max.message.bytes": 200, "retention.ms": 5}


def retention(log: embedlog.Log) -> list[int]:
    return [replica(log, node).config.retention_ms for node in (1, 2, 3)]


def test_each_process_applies_them_in_each_directory(tmp_path: Path) -> None:
    made(tmp_path)
    with embedlog.open(paths(tmp_path), config=QUIET) as log, embedlog.open(paths(tmp_path), config=QUIET) as other:
        send(log, b"second")
        send(other, b"third")
        log.alter_topic("t", SETTINGS)
        assert retention(log) == [5, 5, 5]
        with pytest.raises(RecordTooLargeError):
            send(log, b"x" * 1000)
        other.housekeep()
        assert retention(other) == [5, 5, 5]
        with pytest.raises(RecordTooLargeError):
            send(other, b"x" * 1000)
        log.alter_topic("t", {"retention.ms": None})
        other.describe_topic("t")
        assert retention(other) == [-1, -1, -1]


def test_a_required_size_applies_to_an_isr_that_is_too_small(tmp_path: Path) -> None:
    """Before, the leader accepted `acks=all` with one replica until the next change of the ISR."""
    made(tmp_path)
    with embedlog.open(paths(tmp_path), config=QUIET) as log, embedlog.open(paths(tmp_path), config=QUIET) as other:
        send(other, b"second")
        log.reassign({embedlog.TopicPartition("t", 0): [1, 2]})
        log.housekeep()
        moved_away(tmp_path / "d2")
        send(log, b"alone")
        send(other, b"alone, too")
        log.alter_topic("t", {"min.insync.replicas": 2})
        for each in (log, other):
            with pytest.raises(DeadlineError, match="too few replicas"):
                send(each, b"refused", delivery_timeout_ms=300, request_timeout_ms=200)
        log.alter_topic("t", {"min.insync.replicas": None})
        send(other, b"accepted")
        moved_back(tmp_path / "d2")


def test_a_directory_notes_them_for_a_use_without_the_set(tmp_path: Path) -> None:
    made(tmp_path)
    with embedlog.open(paths(tmp_path), config=QUIET) as log:
        moved_away(tmp_path / "d3")
        send(log, b"second")
        log.alter_topic("t", SETTINGS)
        moved_back(tmp_path / "d3")
        log.housekeep()
        log.housekeep()
    for path in paths(tmp_path):
        with embedlog.open(path, read_only=True) as alone:
            assert alone.describe_topic("t").config["max.message.bytes"] == "200", path
