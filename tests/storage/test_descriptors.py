"""Descriptors that are kept: a part of the limit, closed in time, and unused once their files were replaced."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import embedlog
from embedlog.storage import file_names
from embedlog.storage.descriptors import KEPT_DIVISOR, Handles


def directory(tmp_path: Path, count: int) -> str:
    for base in range(count):
        (tmp_path / f"{base:020d}.log").write_bytes(b"")
    return str(tmp_path)


def test_only_a_part_of_the_room_can_be_kept(tmp_path: Path) -> None:
    handles, place = Handles(8), directory(tmp_path, 9)
    kept = [handles.acquire_kept(place, base, ".log") for base in range(8)]
    assert [handle is not None for handle in kept] == [True] * (8 // KEPT_DIVISOR) + [False] * (8 - 8 // KEPT_DIVISOR)
    assert kept[0] is not None
    handles.release_kept(kept[0])
    last = handles.acquire_kept(place, 8, ".log")
    assert last is not None
    for handle in (*kept[1:], last):
        if handle is not None:
            handles.release_kept(handle)
    handles.forget()


def test_what_is_kept_stays_open_and_is_closed_behind_the_last_user(tmp_path: Path) -> None:
    handles, place = Handles(8), directory(tmp_path, 1)
    kept = handles.acquire_kept(place, 0, ".log")
    assert kept is not None
    handles.forget(place)
    assert kept.forgotten
    assert Path(f"/proc/self/fd/{kept.fd}").exists()
    handles.release_kept(kept)
    assert not Path(f"/proc/self/fd/{kept.fd}").exists()


def test_a_consumer_of_many_partitions_leaves_room_to_others(tmp_path: Path) -> None:
    with embedlog.open(tmp_path / "log", config={"max.open.files": 64, "housekeeping": False}) as log:
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
                opened = [path for path in Path("/proc/self/fd").iterdir() if str(tmp_path) in str(path.resolve())]
                assert len(opened) <= 64


def test_after_the_close_a_file_is_closed_when_its_reader_releases_it(tmp_path: Path) -> None:
    (tmp_path / file_names.file_name(0, file_names.LOG)).write_bytes(b"x")
    handles = Handles(8)
    handles.close()
    with handles.acquire(str(tmp_path), 0, file_names.LOG) as fd:
        assert os.pread(fd, 1, 0) == b"x"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
