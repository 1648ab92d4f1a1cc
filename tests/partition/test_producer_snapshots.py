"""Snapshots of producers whose records are all deleted: they are kept, and an absent one is no
damage.
"""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import embedlog
from embedlog import TopicPartition
from embedlog._native import system
from embedlog.format.record_batch import Stamp
from embedlog.partition.partition import Partition
from embedlog.partition.recovery import producer_history
from tests.support.stamped_batches import run_of, send

A = 2**62 + 1
B = 2**62 + 2
QUIET = {"housekeeping": False}


def opened(path: Path) -> tuple[embedlog.Log, Partition]:
    log = embedlog.open(path, config=QUIET)
    return log, log._engine.partition("events", 0)


@pytest.fixture
def emptied(tmp_path: Path) -> Path:
    """A closed log whose records are deleted, while their segment and its producers are present."""
    with embedlog.open(tmp_path, config=QUIET) as log:
        log.create_topic("events")
        partition = log._engine.partition("events", 0)
        assert send(partition, Stamp(A, 3), 0, b"a", b"b") == (0, 1)
        assert send(partition, Stamp(B, 4, True, True), 0, b"c") == (2, 2)
        assert partition.append_marker(B, 5, commit=True) == 3
        log.delete_records({TopicPartition("events", 0): -1})
    return tmp_path


def test_a_snapshot_that_is_removed_is_not_reported_as_damaged(
    emptied: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="embedlog"):
        for number in range(3):
            log, partition = opened(emptied)
            with log:
                assert send(partition, Stamp(A, 3), 2 + number) == (4 + number, 4 + number)
                log.delete_records({TopicPartition("events", 0): -1})
    assert caplog.messages == []


@pytest.mark.parametrize("writes", [False, True], ids=["only read", "written"])
def test_producers_are_known_after_any_number_of_openings(emptied: Path, writes: bool) -> None:
    """SEQ-7: an orderly close without a snapshot would mean that there were no producers."""
    for _ in range(4):
        log, partition = opened(emptied)
        with log:
            assert (partition.stored_epoch(A), partition.stored_epoch(B)) == (3, 5)
            if writes:
                assert send(partition, Stamp(A, 3), 0, b"a", b"b") == (0, 1), (
                    "a repetition is in the log once"
                )
            assert partition.published().log_end == 4
        assert producer_history.snapshot_offsets(emptied / "events-0") == [4]


def test_the_snapshot_that_the_page_names_is_there(emptied: Path) -> None:
    log, partition = opened(emptied)
    with log:
        assert partition.published().log_start == 4
        named = partition._state.page.word(system.WORD_SNAPSHOT) - 1
        assert producer_history.snapshot_offsets(emptied / "events-0") == [named] == [4]


def test_without_producers_no_snapshot_is_kept(tmp_path: Path) -> None:
    with embedlog.open(tmp_path, config=QUIET) as log:
        log.create_topic("events")
        log._engine.partition("events", 0).append(run_of(b"a"))
        log.delete_records({TopicPartition("events", 0): -1})
    log, partition = opened(tmp_path)
    with log:
        assert partition.stored_epoch(A) == -1
        assert producer_history.snapshot_offsets(tmp_path / "events-0") == []


def test_a_snapshot_that_is_absent_is_no_damage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    producer_history.write_snapshot(tmp_path, b"damaged", 3, 0o600)
    with caplog.at_level(logging.WARNING, logger="embedlog"):
        assert producer_history.read_newest(tmp_path, [1, 5]) is None
        assert caplog.messages == []
        assert producer_history.read_newest(tmp_path, [1, 3, 5]) is None
    assert [message.partition(":")[0] for message in caplog.messages] == [
        "ignored a damaged snapshot of producers"
    ]
