"""Starts and wakes threads of the library. A Ctrl-C at any instruction leaves all of it usable.

`threading.Thread.start`, `threading.Event` and `threading.Condition` are Python code around a lock:
an interrupt inside of them leaves that lock taken, and the thread at the other end waits for ever.
"""

from __future__ import annotations

import _thread
import contextlib
import threading
from collections.abc import Callable
from functools import partial

from embedlog._native.scope import Guard

__all__ = ["Bell", "Flag", "call_uninterrupted", "start"]


def call_uninterrupted(call: Callable[[], object]) -> None:
    """Make a call that an interrupt must not leave half done. Raises what it raises.

    Signals are handled in the main thread. There another thread makes the call, and an interrupt
    ends the wait, not the call.
    """
    # `current_thread` would make an object for a foreign thread
    if threading.get_ident() != threading.main_thread().ident:
        call()
        return
    ended = threading.Lock()
    ended.acquire()
    problems: list[BaseException] = []

    def work() -> None:
        try:
            call()
        except BaseException as problem:  # noqa: BLE001  (raised by the thread that waits)
            problems.append(problem)
        finally:
            ended.release()

    _thread.start_new_thread(work, ())  # one call of C, unlike the start of a threading.Thread
    ended.acquire()
    if problems:
        raise problems[0]


def start(thread: threading.Thread) -> None:
    """Start it and wait until it runs. After an interrupt it will run, unless the system refuses
    it.

    `Thread.start` waits in a `threading.Event`. An interrupt there can keep its lock, and the
    thread then never begins.
    """
    call_uninterrupted(thread.start)


class Bell:
    """Wakes one sleeping thread. One that is rung while nobody sleeps ends the next sleep.
    **Threads:** any.
    """

    __slots__ = ("_sleep",)

    def __init__(self) -> None:
        self._sleep = threading.Lock()  # free: rung
        self._sleep.acquire()

    def ring(self) -> None:
        with contextlib.suppress(RuntimeError):  # it was rung before
            self._sleep.release()

    def wait(self, timeout_s: float = -1) -> bool:
        """Whether the bell was rung since the last sleep, or rings within `timeout_s` seconds; −1:
        without a limit.
        """
        return self._sleep.acquire(timeout=min(timeout_s, threading.TIMEOUT_MAX))


class Flag:
    """A `threading.Event` that is not cleared. **Threads:** any."""

    __slots__ = ("_is_set", "_sleep")

    def __init__(self) -> None:
        self._is_set = False
        # taken while the flag is not set: who can take it has seen that
        self._sleep = threading.Lock()
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
            timeout_s = min(timeout_s, threading.TIMEOUT_MAX)
            with Guard(self._sleep.release, partial(self._sleep.acquire, timeout=timeout_s)):
                pass
        return self._is_set
