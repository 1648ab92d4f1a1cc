"""The jobs of one directory, done for each directory of an open log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from embedlog._native import system
from embedlog.admin.directory_jobs import NEXT_ROUND_NS, DirectoryJobs
from embedlog.config.topic import LogConfig
from embedlog.engine.engine import Engine
from embedlog.engine.log_directory import LogDirectory
from embedlog.errors import LockTimeoutError, StorageError
from embedlog.format.encoder import encode_records
from embedlog.partition.partition import Partition
from embedlog.storage import checkpoints, file_names, files
from embedlog.storage.call_deadline import bound_waits


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
