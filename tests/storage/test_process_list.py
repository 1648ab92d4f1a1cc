"""The list of processes: those of a real directory, and a made list of the kernel with hidden
processes and hostile texts.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import embedlog
from embedlog import LockDescription, ProcessDescription
from embedlog._native import waits
from embedlog.storage import process_list
from embedlog.storage.locks import LockFile

OPENED = """
import sys, threading, embedlog
with embedlog.open(sys.argv[1], read_only=sys.argv[2] == "read") as log:
    records = list(log.scan("events").records())
    print("opened", flush=True)
    if sys.argv[2] == "append":
        with log.producer() as producer:
            producer.send("events", b"x").result()
        sys.stdin.read()
    else:
        with log.consumer("events", auto_offset_reset="latest") as consumer:
            wait = threading.Thread(target=lambda: (sys.stdin.read(), consumer.wakeup()))
            wait.start()
            try:
                consumer.poll(timeout=100)
            except embedlog.WakeupError:
                pass
            wait.join()
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    with embedlog.open(tmp_path / "data") as log, log.producer() as producer:
        log.create_topic("events")
        producer.send("events", b"first").result()
    return tmp_path / "data"


@contextmanager
def child(directory: Path, mode: str) -> Iterator[int]:
    """The id of a process that has the directory open until the end of the block."""
    command = [sys.executable, "-c", OPENED, str(directory), mode]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"opened\n"
        yield process.pid
        process.communicate(timeout=100)
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()


def seen(directory: Path, pid: int) -> ProcessDescription | None:
    return next((each for each in embedlog.processes(directory) if each.pid == pid), None)


def until(found: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 100
    while not found():
        assert time.monotonic() < deadline


def test_a_closed_directory_has_no_processes(directory: Path) -> None:
    assert embedlog.processes(directory) == []


def test_this_process_is_listed_while_it_writes(directory: Path) -> None:
    with embedlog.open(directory):
        (found,) = embedlog.processes(directory)
        assert (found.pid, found.mode) == (os.getpid(), "write")
        assert (
            LockDescription(str(directory / ".lock"), "directory in use", "shared") in found.locks
        )
        assert found.open_files > 1
        link = directory.parent / "link"
        link.symlink_to(directory)
        assert [each.pid for each in embedlog.processes(str(link))] == [os.getpid()]
    assert embedlog.processes(directory) == []


@pytest.mark.slow
def test_a_reader_takes_no_lock_and_waits_for_records(directory: Path) -> None:
    wait = embedlog.WaitDescription(str(directory / "events-0" / "embedlog.page"), "records")
    with embedlog.open(directory) as log:
        # a page exists while a process has the partition open for writing
        assert len(log.scan("events").head()) == 1
        with child(directory, "read") as pid:
            until(
                lambda: (
                    (found := seen(directory, pid)) is not None
                    and (found.waits is None or wait in found.waits)
                )
            )
            found = seen(directory, pid)
    assert found is not None
    assert (found.mode, found.locks) == ("read", ())
    assert found.command.endswith(f"{directory} read")
    assert found.user


def test_a_wait_for_the_append_lock_is_shown(directory: Path) -> None:
    wait = embedlog.WaitDescription(str(directory / "events-0" / "embedlog.page"), "append")
    with embedlog.open(directory) as log:
        # the partition is loaded, which needs the lock, too
        assert len(log.scan("events").head()) == 1
        held = LockFile(directory / "events-0" / "embedlog.lock")
        try:
            assert held.try_lock()
            with child(directory, "append") as pid:
                until(
                    lambda: (
                        (found := seen(directory, pid)) is not None
                        and (found.waits is None or wait in found.waits)
                    )
                )
                mine = seen(directory, os.getpid())
                held.unlock()
        finally:
            held.close()
    assert mine is not None
    assert [lock.kind for lock in mine.locks if lock.purpose == "append"] == ["exclusive"]


def test_a_directory_that_is_absent_or_foreign_is_refused(tmp_path: Path, directory: Path) -> None:
    with pytest.raises(embedlog.StorageError):
        embedlog.processes(tmp_path / "absent")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "file").touch()
    with pytest.raises(embedlog.ForeignDirectoryError):
        embedlog.processes(tmp_path / "foreign")
    with embedlog.open(directory):
        assert [each.pid for each in embedlog.processes([tmp_path / "absent", directory])] == [
            os.getpid()
        ]


# ---- a made list of the kernel -------------------------------------------------------------------


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "proc"
    made.mkdir()
    monkeypatch.setattr(process_list, "PROC", str(made))
    return made


def process(proc: Path, pid: int, links: dict[int, tuple[Path, str]], **texts: str) -> Path:
    """A made process: descriptors with their targets and lock lines, and other files."""
    place = proc / str(pid)
    for name in ("fd", "fdinfo", "task"):
        (place / name).mkdir(parents=True)
    for fd, (target, text) in links.items():
        (place / "fd" / str(fd)).symlink_to(target)
        (place / "fdinfo" / str(fd)).write_text(text)
    for name, text in texts.items():
        (place / name).write_text(text, "utf-8", "surrogateescape")
    return place


def lock_line(path: Path, kind: str, number: int = 1, start: int = 0) -> str:
    status = path.stat()
    place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    return f"{number}: OFDLCK ADVISORY  {kind} -1 {place} {start} EOF\n"


def test_a_lock_of_a_hidden_process_has_no_process_id(directory: Path, proc: Path) -> None:
    lock = directory / ".lock"
    line = lock_line(lock, "READ")
    process(proc, 7, {3: (lock, "flags: 02\nlock:\t" + line)}, cmdline="one\0two\0")
    (proc / "locks").write_text(
        line
        + lock_line(lock, "READ", 2)
        + lock_line(directory / "events-0/embedlog.lock", "WRITE", 3)
    )
    visible, hidden = embedlog.processes(directory)
    assert (visible.pid, visible.command, visible.mode, visible.waits) == (
        7,
        "one two",
        "write",
        None,
    )
    assert (hidden.pid, hidden.user, hidden.mode) == (None, None, "write")
    assert sorted((lock.purpose, lock.kind) for lock in hidden.locks) == [
        ("append", "exclusive"),
        ("directory in use", "shared"),
    ]


def test_a_broker_holds_the_directory_alone(directory: Path, proc: Path) -> None:
    (proc / "locks").write_text(lock_line(directory / ".lock", "WRITE").replace("OFDLCK", "POSIX "))
    assert [(each.pid, each.mode) for each in embedlog.processes(directory)] == [(None, "broker")]


def test_waits_are_those_of_all_threads(directory: Path, proc: Path) -> None:
    page = directory / "events-0" / "embedlog.page"
    control = directory / "embedlog.control"
    words = {waits.page_word_kind(at): at for at in range(4096)}
    maps = (
        f"10000-11000 rw-s 00000000 00:1b 5    {page} (deleted)\n20000-21000 r--s 00000000 00:1b "
        f"5   {control}\nnonsense\n"
    )
    made = process(proc, 8, {}, maps=maps, comm="python\n")
    array = b"".join(
        struct.pack("=QQII", 0, at, 2, 0)
        for at in (0x10000 + words[waits.DATA_WORD], 0x20000 + words[waits.LOCK_WORD])
    )
    (made / "mem").write_bytes(b"\0" * 16 + array)
    lines = [
        f"{process_list._FUTEX} {0x10000 + words[waits.LOCK_WORD]:#x} 0x80 0x1 0x0 0x0 0x0 0x0 0x0",
        "449 0x10 0x2 0x0 0x0 0x1 0x0 0x0 0x0",
        # a wake is no wait
        f"{process_list._FUTEX} {0x10000 + words[waits.NOTICE_WORD]:#x} 0x1 0x1 0x0 0x0 0x0 0x0 "
        "0x0",
        f"{process_list._FUTEX} 0x10000",
        "449 0xfffffffffffffffff 0xffffffff",
        "449",
        "running",
        "",
        "\udcff",
    ]
    for number, line in enumerate(lines):
        (made / "task" / str(number)).mkdir()
        (made / "task" / str(number) / "syscall").write_text(line, "utf-8", "surrogateescape")
    (found,) = embedlog.processes(directory)
    assert (found.pid, found.command, found.open_files) == (8, "python", 2)
    assert set(found.waits or ()) == {
        embedlog.WaitDescription(str(page), "append"),
        embedlog.WaitDescription(str(page), "records"),
        embedlog.WaitDescription(str(control), "topics"),
    }


def test_processes_that_end_and_foreign_entries_are_left_out(directory: Path, proc: Path) -> None:
    process(
        proc,
        9,
        {1: (directory.parent / "data2" / "file", ""), 2: (directory, "")},
        maps="\udcff",
        cmdline="x",
    )
    (proc / "10").write_text("no directory")
    (proc / "self").mkdir()
    (proc / "locks").write_text("1: OFDLCK ADVISORY READ -1 zz:1 nonsense\n")
    assert embedlog.processes(directory) == []
