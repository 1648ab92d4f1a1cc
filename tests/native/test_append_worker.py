"""Threads of the C core that append for callers: they end, they are not those of a parent, and what
one uses that was left behind stays.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from embedlog._native import replication, system
from embedlog.errors import LockTimeoutError, StorageError
from embedlog.storage import file_names, locks
from tests.support.appended_sets import Set, a_set
from tests.support.producer_helpers import wait_until
from tests.support.stamped_batches import run_of


def threads() -> int:
    """The number of threads that append for others in this process."""
    names = []
    for number in os.listdir("/proc/self/task"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            names.append(Path(f"/proc/self/task/{number}/comm").read_text().strip())
    return names.count("embedlog-append")


def hang_at(found: Set, at: int) -> None:
    """Writes in the directory of a replica hang: 0 the leader."""
    replica = (found.leader, *found.others)[at]
    system.fault_arm(["pwrite"], 1, "hang", name=f"/{replica.path.parent.name}/t-0/")


@pytest.fixture(autouse=True)
def no_threads() -> None:
    replication.rest()
    wait_until(lambda: threads() == 0, 30)  # of earlier tests


def test_the_thread_ends_when_its_owner_rests_and_returns_with_an_append(tmp_path: Path) -> None:
    with a_set(tmp_path) as found:
        found.prepare()
        for number in range(10):
            assert found.append(run_of(b"%d" % number)).committed
            wait_until(lambda: threads() == 1)
            replication.rest()
            wait_until(lambda: threads() == 0)
    replication.rest()  # also without a thread


def test_a_thread_without_a_caller_ends_after_a_while(tmp_path: Path) -> None:
    with a_set(tmp_path) as found:
        found.prepare()
        found.append(run_of(b"second"))
        wait_until(lambda: threads() == 0, 30)
        assert found.append(run_of(b"third")).committed == 3


def test_a_thread_that_was_left_behind_ends_when_the_disk_continues(tmp_path: Path) -> None:
    with a_set(tmp_path) as found:
        found.prepare()
        hang_at(found, 1)
        try:
            found.append(run_of(b"second"))
            wait_until(lambda: threads() == 1)
        finally:
            system.fault_off()
        wait_until(lambda: threads() == 0)
        assert found.others[0].published().log_end == 2, "it has ended its write"


def test_a_forked_child_has_threads_of_its_own(tmp_path: Path) -> None:
    with a_set(tmp_path / "parent") as found:
        found.prepare()
        found.append(run_of(b"second"))
        child = os.fork()
        if child == 0:
            status = 1
            try:
                with a_set(tmp_path / "child") as own:
                    own.prepare()
                    status = 0 if own.append(run_of(b"second")).committed == 2 else 2
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        assert found.append(run_of(b"third")).committed == 3


def test_signals_end_no_append(tmp_path: Path) -> None:
    """The thread takes no signals: the program's handler runs in its own thread."""
    seen: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, _: seen.append(number))
    try:
        with a_set(tmp_path) as found:
            found.prepare()
            signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
            end = 1
            while len(seen) < 20:
                end += 1
                found.append(run_of(b"next"))
                found.level()  # a new segment is left to the copy
            assert found.leader.published().high_watermark == end
            signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_leader_that_hangs_fails_after_its_lock_timeout_and_stays_locked(tmp_path: Path) -> None:
    with a_set(tmp_path) as found:
        found.prepare()
        found.leader._state.context.lock_timeout_ms = 500
        found.append(run_of(b"second"))
        hang_at(found, 0)
        try:
            with pytest.raises(StorageError, match="does not answer"):
                found.append(run_of(b"third"))
            with contextlib.closing(locks.LockFile(found.leader.path / file_names.LOCK)) as lock:
                assert not lock.try_lock(), "the thread has it"
                with (
                    pytest.raises(LockTimeoutError),
                    found.leader.exclusive(system.boot_ns() + 50_000_000),
                ):
                    pytest.fail("two threads are inside the lock")
                assert not lock.try_lock(), "the thread still has it"
        finally:
            system.fault_off()
        with found.leader.exclusive() as held:
            assert held.state.read_page().log_end == 3, "the late write is in the log"


def test_a_close_beside_a_thread_that_was_left_behind_closes_its_files_later(
    tmp_path: Path,
) -> None:
    with a_set(tmp_path) as found:
        found.prepare()
        found.append(run_of(b"second"))
        writer = found.others[0]._state.writer
        assert writer is not None
        fds = found.others[0]._writer.fds
        hang_at(found, 1)
        try:
            found.append(run_of(b"third"))
            assert writer.is_left
            found.others[0]._writer.drop()
            assert all(os.path.exists(f"/proc/self/fd/{fd}") for fd in fds)
        finally:
            system.fault_off()
        wait_until(lambda: not writer.is_left)
        found.level()
        found.others[0]._writer.drop()
        assert found.leader.published().high_watermark == 3


def test_many_callers_append_while_their_owner_rests(tmp_path: Path) -> None:
    """No append is lost between a thread that ends and the next one."""
    with a_set(tmp_path / "a") as one, a_set(tmp_path / "b") as other:
        found = (one, other)
        for each in found:
            each.prepare()

        def append(each: Set) -> None:
            for _ in range(200):
                each.append(run_of(b"next"))
                replication.rest()

        callers = [threading.Thread(target=append, args=(each,)) for each in found]
        began = time.monotonic()
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        assert time.monotonic() - began < 60
        for each in found:
            each.level()
            assert each.leader.published().high_watermark == 201
    wait_until(lambda: threads() == 0)


def test_signals_at_a_short_interval_do_not_keep_a_caller_at_a_disk_that_hangs(
    tmp_path: Path,
) -> None:
    """As those of a profiler: each ends the sleep of the caller before its time."""
    before = signal.signal(signal.SIGALRM, lambda number, frame: None)
    try:
        with a_set(tmp_path) as found:
            found.prepare()
            found.append(run_of(b"second"))
            hang_at(found, 1)
            late = threading.Timer(20, system.fault_off)
            late.start()
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
                began = time.monotonic()
                assert not found.append(run_of(b"third")).committed
                assert time.monotonic() - began < 10
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
                late.cancel()
                system.fault_off()
            found.level()
            assert found.leader.published().high_watermark == 3
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_thread_that_leaves_during_an_append_apart_has_left(tmp_path: Path) -> None:
    """The append apart from the follower does not write the follower's writer back."""
    with a_set(tmp_path) as found:
        found.prepare()
        found.append(run_of(b"second"))
        writer = found.others[0]._state.writer
        assert writer is not None
        hang_at(found, 1)
        try:
            found.append(run_of(b"third"))
            assert writer.is_left
            with contextlib.closing(locks.LockFile(found.leader.path / file_names.LOCK)) as lock:
                assert lock.try_lock()
                caller = threading.Thread(target=found.append, args=(run_of(b"fourth"),))
                caller.start()
                wait_until(lambda: threads() == 2)  # the second one waits for the leader's lock
                system.fault_off()
                wait_until(lambda: not writer.is_left)
            caller.join()
        finally:
            system.fault_off()
        assert not writer.is_left
        found.level()
        assert found.leader.published().high_watermark == 4
