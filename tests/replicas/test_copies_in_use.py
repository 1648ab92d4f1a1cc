"""Copies that were made while processes used a directory, and took its place meanwhile."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

import embedlog
from embedlog.errors import ReplicaSetError, StorageError
from embedlog.storage import file_names, files
from embedlog.storage.locks import LockFile
from tests.faults.harness.processes import until
from tests.support.opened_sets import QUIET, isr, made, send, values
from tests.support.returning_directories import data, moved_away, moved_back, opened, replica


@pytest.mark.parametrize("reopened", [False, True], ids=["the same process", "a new process"])
def test_a_copy_that_was_made_and_put_back_while_it_alone_was_in_sync_does_not_lead(
    tmp_path: Path, reopened: bool
) -> None:
    """Registration id and broker epoch of the copy are the registered ones."""
    made(tmp_path)
    with opened(tmp_path, lock_timeout_ms=600) as log, opened(tmp_path) as other:
        send(log, b"second")
        shutil.copytree(tmp_path / "d1", tmp_path / "copy")
        later = files.deadline_after(60)
        with replica(other, 2).exclusive(later), replica(other, 3).exclusive(later):
            send(log, b"third")
            assert isr(log) == [1]
        moved_away(tmp_path / "d1")
        (tmp_path / "copy").rename(tmp_path / "d1")
        for each in () if reopened else (log, other):
            each.housekeep()
            each.housekeep()
            refuses(each)
    with opened(tmp_path) as log:
        refuses(log)
        with pytest.raises(
            ReplicaSetError, match=r"only the directory of node 1 .*t-0.*force=True"
        ):
            log.replace_directory(1, tmp_path / "d1")
        (tmp_path / "d1").rename(tmp_path / "copy")
        moved_back(tmp_path / "d1")
        log.housekeep()
        log.housekeep()
        assert isr(log) == [1, 2, 3]
        assert values(log) == [b"first", b"second", b"third"]
        assert data(tmp_path, 1) == data(tmp_path, 2) == data(tmp_path, 3)


def refuses(log: embedlog.Log) -> None:
    """No replica leads."""
    assert log.replicas("t").partitions[0].state == "OfflinePartition"
    with (
        log.producer(delivery_timeout_ms=300, request_timeout_ms=200) as producer,
        pytest.raises(embedlog.EmbedlogError),
    ):
        producer.send("t", b"refused", partition=0).result(60)


def test_a_directory_that_is_replaced_while_its_open_lock_is_waited_for_is_refused(
    tmp_path: Path,
) -> None:
    """Else two processes would use one directory without a common lock."""
    path = tmp_path / "d1"
    copy = tmp_path / "copy"
    with embedlog.open(path, config=QUIET) as log:
        log.create_topic("t")
    shutil.copytree(path, copy)
    before = sorted(each.name for each in copy.rglob("*"))
    held = LockFile(path / file_names.OPEN_LOCK)
    problems = list[Exception]()

    def enter() -> None:
        try:
            embedlog.open(path, config=QUIET).close()
        except StorageError as problem:
            problems.append(problem)

    with held.hold(files.deadline_after(60)):
        thread = threading.Thread(target=enter)
        thread.start()
        until(
            lambda: len(descriptors_of(path / file_names.OPEN_LOCK)) == 2,
            "the other thread has opened the lock",
        )
        moved_away(path)
        copy.rename(path)
    thread.join(60)
    held.close()
    assert [problem.message for problem in problems] == [
        "the directory was replaced while it was being opened"
    ]
    assert sorted(each.name for each in path.rglob("*")) == before
    with embedlog.open(path, config=QUIET) as log:
        assert "t" in log.topics()


def descriptors_of(path: Path) -> list[Path]:
    """The open descriptors of this process of one file."""
    found = path.stat()
    return [
        each
        for each in Path("/proc/self/fd").iterdir()
        if each.exists() and each.stat().st_ino == found.st_ino
    ]
