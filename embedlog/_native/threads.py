"""Contains what threads of ours start and end with. A Ctrl-C at any instruction leaves it usable.

`threading.Thread.start`, `threading.Event` and `threading.Condition` are Python code around a lock: an interrupt inside of them
leaves that lock taken, and the thread at the other end waits for ever.
"""

from __future__ import annotations

import contextlib
import threading
from functools import partial

from embedlog._native.scope import Guard

__all__ = ["Bell", "Flag", "start"]


def start(thread: threading.Thread) -> None:
    """Start it and wait until it runs. After an interrupt it may run or not.

    The wait of `Thread.start` is one of a `threading.Condition`. An interrupt at its end makes the condition raise RuntimeError,
    because it releases a lock that it has not taken again. The interrupt is raised then.
    """
    try:
        thread.start()
    except RuntimeError as problem:
        cause: BaseException | None = problem
        while isinstance(cause, Exception):
            cause = cause.__context__
        if cause is None:
            raise  # the system refuses the thread
        raise cause from None


class Bell:
    """Wakes one sleeping thread. One that is rung while nobody sleeps ends the next sleep. **Threads:** any."""

    __slots__ = ("_sleep",)

    def __init__(self) -> None:
        self._sleep = threading.Lock()  # free: rung
        self._sleep.acquire()

    def ring(self) -> None:
        with contextlib.suppress(RuntimeError):  # it was rung before
            self._sleep.release()

    def wait(self, timeout_s: float = -1) -> bool:
        """Whether the bell was rung since the last sleep, or rings within `timeout_s` seconds; −1: without a limit."""
        return self._sleep.acquire(timeout=min(timeout_s, threading.TIMEOUT_MAX))


class Flag:
    """A `threading.Event` that is not cleared. **Threads:** any."""

    __slots__ = ("_is_set", "_sleep")

    def __init__(self) -> None:
        self._is_set = False
        self._sleep = threading.Lock()  # taken while the flag is not set: who can take it has seen that
        self._sleep.acquire()

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        """Set it. A call that was interrupted is repeated."""
        self._is_set = True
        with contextlib.suppress(RuntimeError):  # it was set before
            self._sleep.release()

    def wait(self, timeout_s: float) -> bool:
        """Whether the flag is set, now or within `timeout_s` seconds."""
        if not self._is_set:
            with Guard(self._sleep.release, partial(self._sleep.acquire, timeout=min(timeout_s, threading.TIMEOUT_MAX))):
                pass
        return self._is_set
