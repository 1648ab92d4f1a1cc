"""Descriptors that are kept: a part of the limit, closed in time, and unused once their files were
replaced.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog.coordination import topic_directories
from embedlog.storage import file_names, files
from embedlog.storage.descriptors import KEPT_DIVISOR, Handles
from embedlog.topic import Topic
from tests.faults.harness.processes import until
from tests.support.replica_directories import failing


def directory(tmp_path: Path, count: int) -> str:
    for base in range(count):
        (tmp_path / f"{base:020d}.log").write_bytes(b"")
    return str(tmp_path)


def test_only_a_part_of_the_room_can_be_kept(tmp_path: Path) -> None:
    handles = Handles(8)
    place = directory(tmp_path, 9)
    kept = [handles.acquire_kept(place, base, ".log") for base in range(8)]
    assert [handle is not None for handle in kept] == [True] * (8 // KEPT_DIVISOR) + [False] * (
        8 - 8 // KEPT_DIVISOR
    )
    assert kept[0] is not None
    handles.release_kept(kept[0])
    last = handles.acquire_kept(place, 8, ".log")
    assert last is not None
    for handle in (*kept[1:], last):
        if handle is not None:
            handles.release_kept(handle)
    handles.forget()


def test_what_is_kept_stays_open_and_is_closed_behind_the_last_user(tmp_path: Path) -> None:
    handles = Handles(8)
    place = directory(tmp_path, 1)
    kept = handles.acquire_kept(place, 0, ".log")
    assert kept is not None
    handles.forget(place)
    assert kept.is_forgotten
    assert Path(f"/proc/self/fd/{kept.fd}").exists()
    handles.release_kept(kept)
    assert not Path(f"/proc/self/fd/{kept.fd}").exists()


def test_deleted_files_without_a_user_are_closed(tmp_path: Path) -> None:
    handles = Handles(8)
    place = directory(tmp_path, 4)
    used, *others = [handles.acquire(place, base, ".log") for base in range(4)]
    for handle in others:
        handles.release(handle)
    for base in (0, 1, 2):
        (tmp_path / f"{base:020d}.log").unlink()
    with failing(("stat",)):  # its state is not known: it stays
        handles.close_deleted(at_once=True)
    assert open_files(tmp_path) == 3
    handles.close_deleted()
    assert open_files(tmp_path) == 3, "shortly after another call"
    handles.close_deleted(at_once=True)
    assert open_files(tmp_path) == 2, "one is used, and one is not deleted"
    handles.release(used)
    handles.close_deleted(at_once=True)
    assert open_files(tmp_path) == 1
    with handles.acquire(place, 3, ".log") as fd:
        assert fd == others[-1].fd
    handles.close()
    assert open_files(tmp_path) == 0


@pytest.mark.parametrize("caller", ["housekeeper", "reader"])
def test_the_space_of_deleted_segments_is_freed_in_processes_that_have_read_them(
    tmp_path: Path, caller: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The housekeeper of another process deletes them. A process without housekeeping closes them
    when it opens another file.
    """
    path = tmp_path / "log"
    topic = {"segment.bytes": 1024, "file.delete.delay.ms": 0}
    with embedlog.open(path, config={"housekeeping": False}) as log:
        log.create_topic("t", config=topic)
        log.create_topic("other")
        with log.producer(batch_size=0) as producer:
            for _ in range(20):
                producer.send("t", bytes(400))
                producer.send("other", b"")
        settings = {"housekeeping": caller == "housekeeper", "log.flush.scheduler.interval.ms": 50}
        with embedlog.open(path, config=settings) as other:
            assert len(list(other.scan("t").records())) == 20
            before = open_files(path / "t-0")
            log.delete_records({embedlog.TopicPartition("t", 0): 18})
            log.housekeep()
            assert len(list((path / "t-0").glob("*.log"))) < 4
            for each in other._engine.directories:
                monkeypatch.setattr(each.context.handles, "_close_due_s", 0.0)
            if caller == "reader":
                assert list(other.scan("other").records())
            until(lambda: open_files(path / "t-0") < before - 15, "the deleted files are closed")
            assert [record.offset for record in other.scan("t").records()] == [18, 19]


def open_files(folder: Path) -> int:
    return sum(str(folder) in str(path.resolve()) for path in Path("/proc/self/fd").iterdir())


def test_a_consumer_of_many_partitions_leaves_room_to_others(tmp_path: Path) -> None:
    with embedlog.open(
        tmp_path / "log", config={"max.open.files": 64, "housekeeping": False}
    ) as log:
        log.create_topic("t", 40)
        with log.producer() as producer, log.consumer("t", auto_offset_reset="earliest") as reader:
            for turn in range(3):
                for partition in range(40):
                    producer.send("t", b"%d" % turn, partition=partition)
                producer.flush()
                got = []
                while len(got) < 40:
                    got += reader.poll(10)
                assert sorted(record.partition for record in got) == list(range(40))
                until(
                    lambda: open_files(tmp_path) <= 64, "descriptors are closed", 20
                )  # the thread of the producer has some, too


def test_a_file_that_the_collector_releases_inside_a_section_does_not_wait_for_itself(
    tmp_path: Path,
) -> None:
    handles = Handles(8)
    kept = handles.acquire_kept(directory(tmp_path, 1), 0, ".log")
    assert kept is not None
    released = threading.Event()

    def collected() -> None:
        with handles._mutex:
            handles.release_kept(kept)
        released.set()

    thread = threading.Thread(target=collected, daemon=True)
    thread.start()
    assert released.wait(20)
    thread.join()
    handles.close()


def test_after_the_close_a_file_is_closed_when_its_reader_releases_it(tmp_path: Path) -> None:
    (tmp_path / file_names.file_name(0, file_names.LOG)).write_bytes(b"x")
    handles = Handles(8)
    handles.close()
    with handles.acquire(str(tmp_path), 0, file_names.LOG) as fd:
        assert os.pread(fd, 1, 0) == b"x"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_a_file_whose_open_began_before_a_forget_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its directory may have been replaced since: later readers would get the old file."""
    handles = Handles(8)
    place = directory(tmp_path, 1)
    real = files.open_file

    def late(path: str, flags: int) -> int:
        fd = real(path, flags)
        handles.forget(place)
        return fd

    with monkeypatch.context() as patched:
        patched.setattr(files, "open_file", late)
        with handles.acquire(place, 0, ".log") as old:
            assert Path(f"/proc/self/fd/{old}").exists()
    assert not open_files(tmp_path)
    with handles.acquire(place, 0, ".log"):
        pass
    assert open_files(tmp_path) == 1
    handles.forget()


def test_a_new_topic_is_not_read_from_a_file_of_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader in another thread may open a file between the close of a partition and the rename of
    its directory.
    """
    retire = topic_directories.retire_partition
    late = list[int]()

    def read_late(path: Path, topic: Topic, number: int, *rest: Any) -> None:
        log._engine.home.refresh_partitions()  # as another thread: the topic is being deleted
        with log._engine.home.context.handles.acquire(str(path / "t-0"), 0, file_names.LOG):
            late.append(number)
        retire(path, topic, number, *rest)

    def sent(log: embedlog.Log, count: int) -> None:
        with log.producer() as producer:
            producer.send_batch("t", [b"%d" % n for n in range(count)])
        assert [record.value for record in log.scan("t").records()] == [
            b"%d" % n for n in range(count)
        ]

    with embedlog.open(tmp_path / "log", config={"housekeeping": False}) as log:
        log.create_topic("t")
        sent(log, 30)
        with monkeypatch.context() as patched:
            patched.setattr(topic_directories, "retire_partition", read_late)
            log.delete_topic("t")
        assert late == [0]
        log.create_topic("t")
        sent(log, 50)
