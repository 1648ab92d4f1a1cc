"""Progress of loads and of compaction: rising amounts up to all, and the caller's exception ends
the work.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

import embedlog
from embedlog.hooks import callbacks

QUIET = {"housekeeping": False}


class Stopped(Exception):
    """Raised by a callback."""


def stop(done: int, total: int) -> None:
    raise Stopped


def check_rising(amounts: Sequence[tuple[int, int]]) -> None:
    assert amounts == sorted(amounts)
    assert all(done <= total for done, total in amounts)
    assert amounts[-1][0] == amounts[-1][1]


def written(path: Path, **settings: str) -> int:
    """A log with several segments; the bytes of its records."""
    with embedlog.open(path, config=QUIET) as log:
        log.create_topic("events", 2, config={"segment.bytes": "100000", **settings})
        with log.producer(batch_size=10_000) as producer:
            for number in range(2000):
                producer.send("events", bytes(200), key=b"%d" % (number % 50), partition=number % 2)
        return sum(each.size_bytes for each in log.describe_topic("events").partitions)


def unclean_copy(path: Path) -> Path:
    """A copy without the marks of an orderly close: its partitions are recovered."""
    copy = path.with_name("copy")
    shutil.copytree(path, copy)
    for mark in copy.rglob("*clean*"):
        mark.unlink()
    return copy


@pytest.mark.parametrize("read_only", [False, True])
def test_a_recovery_reports_each_byte_that_it_reads(tmp_path: Path, read_only: bool) -> None:
    size = written(tmp_path / "log")
    amounts: list[tuple[int, int]] = []
    copy = unclean_copy(tmp_path / "log")
    with embedlog.open(
        copy,
        read_only=read_only,
        progress=lambda done, total: amounts.append((done, total)),
        config=QUIET,
    ) as log:
        assert not amounts, "a partition is loaded at its first use"
        log.describe_topic("events")
    check_rising(amounts)
    assert amounts[-1] == (size, size)
    assert len(amounts) > 6, "a bar moves within a partition"


def test_an_exception_of_the_callback_ends_the_load_and_not_the_log(tmp_path: Path) -> None:
    written(tmp_path / "log")
    with (
        embedlog.open(unclean_copy(tmp_path / "log"), progress=stop, config=QUIET) as log,
        pytest.raises(Stopped),
    ):
        log.describe_topic("events")
    with embedlog.open(tmp_path / "copy", config=QUIET) as log:
        assert sum(each.log_end_offset for each in log.describe_topic("events").partitions) == 2000


def test_compaction_reports_the_bytes_that_it_reads(tmp_path: Path) -> None:
    written(tmp_path / "log", **{"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"})
    amounts: list[tuple[int, int]] = []
    with embedlog.open(tmp_path / "log", config=QUIET) as log:
        log.housekeep(progress=lambda done, total: amounts.append((done, total)))
        check_rising(amounts)
        assert len(amounts) > 6
        assert amounts[-1][1] > 400_000, (
            "the dirty part is read for its keys, and again to be written"
        )
        assert len(list(log.scan("events").records())) < 2000
        amounts.clear()
        log.housekeep(progress=lambda done, total: amounts.append((done, total)))
        assert not amounts, "nothing is left"


def test_an_exception_of_the_callback_ends_the_compaction_without_a_loss(tmp_path: Path) -> None:
    written(tmp_path / "log", **{"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"})
    with embedlog.open(tmp_path / "log", config=QUIET) as log:
        with pytest.raises(Stopped):
            log.housekeep(progress=stop)
        assert len(list(log.scan("events").records())) == 2000
        log.housekeep()
        assert {each.key for each in log.scan("events").records()} == {
            b"%d" % number for number in range(50)
        }


def test_pieces_that_end_early_count_as_wholes() -> None:
    amounts: list[tuple[int, int]] = []
    work = callbacks.Work(lambda done, total: amounts.append((done, total)))
    with work.piece(10) as passed:
        passed(4)
    with work.piece(5) as passed:
        passed(9)
    assert amounts == [(0, 10), (4, 10), (10, 10), (10, 15), (15, 15)]
    assert work
    assert not callbacks.Work()
