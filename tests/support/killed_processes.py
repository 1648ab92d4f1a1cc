"""Processes that are killed at a call while they work on a set."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import embedlog
from embedlog._native import system


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
