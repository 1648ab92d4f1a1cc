"""The jobs of one directory, done for each directory of an open log."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog._native import system
from embedlog.admin.directory_jobs import NEXT_ROUND_NS, DirectoryJobs
from embedlog.config.topic import LogConfig
from embedlog.engine.engine import Engine
from embedlog.engine.log_directory import LogDirectory
from embedlog.errors import LockTimeoutError, StorageError
from embedlog.format.encoder import encode_records
from embedlog.partition.partition import Partition
from embedlog.storage import checkpoints, file_names, files, locks
from embedlog.storage.call_deadline import bound_waits
from tests.support.interrupts import OF_THIS_INTERPRETER, Interrupt, within
from tests.support.producer_helpers import LONG_MS


@pytest.fixture
def directories(tmp_path: Path) -> Iterator[list[LogDirectory]]:
    config = LogConfig(housekeeping=False)
    engines = [
        Engine([tmp_path / name], read_only=False, create=True, config=config) for name in "abc"
    ]
    try:
        yield [engine.home for engine in engines]
    finally:
        for engine in engines:
            engine.close()


def written(directory: LogDirectory) -> Partition:
    directory.topic_changes.make_internal("t", 1, {"flush.ms": "0"})
    partition = directory.partition("t", 0)
    partition.open()
    with partition.exclusive(files.deadline_after(60)):
        partition.append_held(encode_records([(b"k", b"v")], system.wall_ms()))
    return partition


def jobs_of(directory: LogDirectory) -> DirectoryJobs:
    return DirectoryJobs(directory, closed=lambda: False, ending=lambda: False)


def test_each_directory_has_its_flushes_checkpoints_and_times(
    directories: list[LogDirectory],
) -> None:
    partitions = [written(directory) for directory in directories]
    for directory, partition in zip(directories, partitions, strict=True):
        later = partitions[partitions.index(partition) + 1 :]
        assert [each.durable_offset for each in (partition, *later)] == [0] * (1 + len(later))
        jobs = jobs_of(directory)
        try:
            assert not jobs.claim_turn(NEXT_ROUND_NS, 0, 3_600_000), "the first call sets the time"
            assert jobs.claim_turn(NEXT_ROUND_NS, 0, 3_600_000)
            assert not jobs.claim_turn(NEXT_ROUND_NS, 0, 3_600_000)
            jobs.flush_due()
            assert partition.durable_offset == 1
            jobs.write_points()
        finally:
            jobs.close()
        assert checkpoints.read_offsets(directory.path / file_names.RECOVERY_POINTS) == {
            ("t", 0): 1
        }
        assert not files.exists(directories[-1].path / file_names.RECOVERY_POINTS) or not later


def test_a_directory_that_fails_does_not_stop_the_jobs_of_another(
    directories: list[LogDirectory], monkeypatch: pytest.MonkeyPatch
) -> None:
    partitions = [written(directory) for directory in directories]

    def failing() -> int:
        raise StorageError("a defect of the disk", path=partitions[0].path)

    monkeypatch.setattr(partitions[0], "sync", failing)
    for directory in directories:
        jobs = jobs_of(directory)
        try:
            jobs.flush_due()
        finally:
            jobs.close()
    assert [partition.durable_offset for partition in partitions] == [0, 1, 1]


@pytest.mark.parametrize("is_over", [True, False])
def test_a_lock_that_a_round_had_no_time_for_is_no_warning(
    directories: list[LogDirectory], caplog: pytest.LogCaptureFixture, is_over: bool
) -> None:
    jobs = jobs_of(directories[0])
    seconds = -1.0 if is_over else 60.0
    with bound_waits(files.deadline_after(seconds)), jobs.log_errors("groups"):
        raise LockTimeoutError("lock held by another thread of this process until the deadline")
    jobs.close()
    assert ("groups" in caplog.text) is not is_over


def test_due_jobs_inside_of_a_round_of_the_same_thread_leave_its_lock(tmp_path: Path) -> None:
    """A signal handler may call `housekeep(due_only=True)`: it gave the lock of the round back."""
    with embedlog.open(tmp_path / "log") as log:
        keeper = log._housekeeper
        assert keeper is not None
        with keeper.jobs.hold(files.deadline_after(60)):
            log.housekeep(due_only=True)
            other = locks.LockFile(log._engine.home.path / file_names.HOUSEKEEPER)
            try:
                assert not other.try_lock()
            finally:
                other.close()


@OF_THIS_INTERPRETER
@pytest.mark.may_leak("an interrupt between a system call and the assignment of its result")
def test_an_interrupt_at_any_point_of_due_jobs_leaves_their_lock_free(tmp_path: Path) -> None:
    with embedlog.open(
        tmp_path / "log", config={"log.flush.scheduler.interval.ms": LONG_MS}
    ) as log:
        keeper = log._housekeeper
        assert keeper is not None
        keeper.tick()  # sets the times of the first turns
        other = locks.LockFile(log._engine.home.path / file_names.HOUSEKEEPER)
        nth = 0
        while True:
            nth += 1
            interrupt = Interrupt(nth, {"housekeeper.py", "directory_jobs.py", "locks.py"})
            interrupt.run(keeper.tick)
            if interrupt.struck is None:
                break
            assert other.try_lock(), interrupt.struck
            other.unlock()
            within(20, lambda: acquire_and_release(keeper.jobs.lock.mutex))
        other.close()
    assert nth > 10


def acquire_and_release(mutex: threading.RLock) -> None:
    assert mutex.acquire(timeout=1)
    mutex.release()


def test_a_compaction_beside_the_checkpoints_of_a_round_by_hand_is_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end was forgotten: the next process compacted the partition again."""
    with embedlog.open(
        tmp_path / "log", config={"log.flush.scheduler.interval.ms": LONG_MS}
    ) as log:
        keeper = log._housekeeper
        assert keeper is not None
        jobs = keeper.jobs
        jobs._cleaned = {("a", 0): 5}
        update = checkpoints.update

        def compact_meanwhile(*arguments: Any) -> None:
            update(*arguments)
            ticking = threading.Thread(target=keeper.tick)
            ticking.start()
            ticking.join(20)

        def compact() -> None:
            jobs._cleaned["b", 0] = 7

        monkeypatch.setattr(checkpoints, "update", compact_meanwhile)
        monkeypatch.setattr(jobs, "clean_if_due", compact)
        log.housekeep()
        monkeypatch.setattr(checkpoints, "update", update)
        keeper.tick()
        written_ends = checkpoints.read_offsets(log._engine.home.path / file_names.CLEANER)
    assert written_ends == {("a", 0): 5, ("b", 0): 7}
