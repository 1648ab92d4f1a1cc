"""The holder of a lock in messages: also in the moment before the holder has written its name."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import embedlog
from embedlog._native import system
from embedlog.coordination import closed_directory
from embedlog.errors import DirectoryInUseError, EmbedlogError, LockTimeoutError, StorageError
from embedlog.partition.append_lock import UNDONE
from embedlog.storage import lock_holders, locks
from tests.faults.harness.processes import Nursery
from tests.faults.harness.stage import Play
from tests.support.idle_logs import QUIET, closed

__all__ = ["closed"]
SOON = QUIET | {"lock.timeout.ms": 50}


def test_a_lock_is_held_by_whom_the_kernel_says(nursery: Nursery, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"pid 999999999 on elsewhere")
    assert lock_holders.name_holders(path) == ""
    assert lock_holders.name_holders(tmp_path / "absent") == ""
    lock = locks.LockFile(path)
    try:
        assert lock_holders.name_holders(path) == ""  # open is not locked
        assert lock.owner().startswith("pid 999999999")
        assert lock.try_lock()
        assert f"pid {os.getpid()} (this process)" in lock_holders.name_holders(path)
        lock.unlock()
        assert lock.try_lock(exclusive=False)
        assert f"pid {os.getpid()}" in lock.owner()
    finally:
        lock.close()
    assert lock_holders.name_holders(path) == ""


def test_another_opening_in_this_process_is_named_as_such(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with embedlog.open(path, config=QUIET) as log, embedlog.open(path, config=QUIET) as second:
        with pytest.raises(
            DirectoryInUseError,
            match=rf"pid {os.getpid()} \(this process has it open a second time\)",
        ):
            log.add_directory(tmp_path / "d2")
        second.close()
        assert lock_holders.name_holders(path / ".lock", own=1) == ""
        assert f"pid {os.getpid()} (this process)" in lock_holders.name_holders(path / ".lock")


def test_the_holder_of_a_closed_directory_is_named_if_it_is_this_process(closed: Path) -> None:
    with (
        embedlog.open(closed, config=QUIET),
        pytest.raises(DirectoryInUseError, match=rf"pid {os.getpid()} \(this process\)"),
        closed_directory.hold(closed),
    ):
        raise AssertionError("the directory is open")


def test_a_writer_frozen_between_the_lock_and_the_owner_word_is_named(
    nursery: Nursery, tmp_path: Path
) -> None:
    play = Play(nursery, tmp_path / "log")
    frozen = play.enter()
    play.append(frozen)
    frozen.arm(["lock"], "stop_after", name="/embedlog.lock")
    frozen.start("append", [b"never"])
    frozen.wait_stopped()
    with embedlog.open(tmp_path / "log", config=SOON) as log:
        partition = log._engine.partition("t", 0)
        partition.open()
        assert partition._state.page.word(system.WORD_OWNER) == 0
        with (
            pytest.raises(LockTimeoutError, match=rf"held by pid {frozen.pid} on ") as problem,
            partition.exclusive(),
        ):
            raise AssertionError("no other process has the lock")
        assert problem.value.path == str(tmp_path / "log" / "t-0" / "embedlog.lock")
        frozen.resume()
        frozen.result()


def test_who_holds_the_door_is_named_and_not_who_signed_it_last(
    nursery: Nursery, tmp_path: Path
) -> None:
    play = Play(nursery, tmp_path / "log")
    frozen = nursery.spawn()
    frozen.arm(["lock"], "stop_after", name="/embedlog.door")
    frozen.start("open", str(tmp_path / "log"), config=QUIET)
    frozen.wait_stopped()
    assert play.directory == tmp_path / "log"
    with pytest.raises(LockTimeoutError, match=rf"held by pid {frozen.pid} on "):
        embedlog.open(tmp_path / "log", config=SOON)
    frozen.resume()
    frozen.result()


def test_what_stands_in_the_way_of_an_append_is_said_in_words(closed: Path) -> None:
    with embedlog.open(closed, config=QUIET) as log:
        partition = log._engine.partition("t", 0)
        for code, words in UNDONE.items():
            with pytest.raises((LockTimeoutError, EmbedlogError)) as problem:
                partition._lock.resolve_code(code, 0)
            assert words in str(problem.value)
            assert "code" not in str(problem.value)


def test_a_directory_that_was_removed_is_not_called_a_brokers(closed: Path) -> None:
    with embedlog.open(closed, config=QUIET) as log:
        shutil.rmtree(closed)
        with pytest.raises(StorageError, match="the log directory does not exist") as problem:
            log.create_topic("other")
        assert problem.value.path == str(closed)
    assert not closed.exists()


def test_a_lock_file_that_went_is_said_to_be_gone(closed: Path) -> None:
    with embedlog.open(closed, config=QUIET) as log:
        (closed / ".lock").rename(closed / "lock")
        with pytest.raises(StorageError, match="was removed; a broker may be using it"):
            log.create_topic("other")
        (closed / ".lock").touch()
        with pytest.raises(StorageError, match="was replaced"):
            log.create_topic("other")
        (closed / "lock").rename(closed / ".lock")
        log.create_topic("other")
