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


def is_killed_before(number: int, work: Callable[[Callable[[], None]], object]) -> bool:
    """Another process works, and is killed before its change of this number; False if it makes
    fewer. `work` gets the function from whose call on the changes count.
    """
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work(lambda: system.fault_arm(CHANGES, number, "kill_before"))
            system.fault_off()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    status = os.waitpid(child, 0)[1]
    assert status in (0, signal.SIGKILL), "the work failed"
    return status == signal.SIGKILL
