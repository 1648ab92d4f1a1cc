"""Processes that are killed at a call while they work on a log or on a set."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable
from typing import Final

import embedlog
from embedlog._native import system

# Calls that change files, or order changes on the disk, and the named places in between.
CHANGES: Final = (
    "pwrite",
    "ftruncate",
    "fallocate",
    "fsync",
    "fdatasync",
    "rename",
    "unlink",
    "link",
    "mkdir",
    "rmdir",
    "point",
)

# Gets two functions: changes count from the call of the first one to that of the second one.
CountedWork = Callable[[Callable[[], None], Callable[[], None]], object]


def killed_during(
    work: Callable[[embedlog.Log], object], open_set: Callable[[], embedlog.Log], *fault: str
) -> None:
    """Another process is killed at a call while it works on the set. `fault`: kind of the call,
    action, part of its path.
    """
    kind, action, name = fault
    child = os.fork()
    if child == 0:
        try:
            with open_set() as other:
                system.fault_arm([kind], 1, action, name=name)
                work(other)
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL, "it was killed"


def is_killed_before(number: int, work: CountedWork) -> bool:
    """Another process works, and is killed before its change of this number; False if it makes
    fewer.
    """

    def begin() -> None:
        system.fault_arm(CHANGES, number, "kill_before")

    return _status_of(lambda: work(begin, system.fault_off)) == signal.SIGKILL


def count_changes(work: CountedWork) -> int:
    """The changes that another process makes by the same work without a fault."""
    reader, writer = os.pipe()

    def begin() -> None:
        system.fault_counters(reset=True)

    def end() -> None:
        counts, _ = system.fault_counters()
        os.write(writer, b"%d" % sum(counts[kind] for kind in CHANGES))

    try:
        assert _status_of(lambda: work(begin, end)) == 0
        return int(os.read(reader, 20))
    finally:
        os.close(reader)
        os.close(writer)


def _status_of(work: Callable[[], object]) -> int:
    """The status of another process that works and ends without closing anything."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            if status:
                traceback.print_exc()
            os._exit(status)
    status = os.waitpid(child, 0)[1]
    assert status in (0, signal.SIGKILL), "the work failed"
    return status
