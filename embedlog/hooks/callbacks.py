"""Handles exceptions of user code that runs inside the library: callbacks, interceptors, listeners,
log handlers.

- Any exception, including BaseException, is logged or passed on by the caller; it ends no thread of
  the library and prevents no other callback.
- Only exceptions of signals propagate: KeyboardInterrupt and SystemExit, in the main thread. What a log
  handler raises goes to `threading.excepthook`.
- A callback for progress is called without a lock, in the thread that works; what it raises ends
  that piece of work.
- An ended piece of work counts as a whole, also if it read less than expected.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import logging


def is_interrupt(error: BaseException) -> bool:
    """Whether an exception of user code must propagate: in the main thread a signal may have raised
    it.
    """
    return (
        isinstance(error, (KeyboardInterrupt, SystemExit))
        and threading.current_thread() is threading.main_thread()
    )


def log_exception(logger: logging.Logger, message: str, *arguments: object) -> None:
    """Log the current exception, and raise nothing: log handlers are user code, and may raise."""
    try:
        logger.exception(message, *arguments)
    except BaseException:  # noqa: BLE001  (top of the thread)
        pass_to_excepthook()


def pass_to_excepthook() -> None:
    """Pass the current exception to `threading.excepthook`, which is user code too, as the last
    possible report.
    """
    with contextlib.suppress(BaseException):
        threading.excepthook(
            threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread()))
        )


# ---- progress ------------------------------------------------------------------------------------

# bytes done so far, all bytes that are known so far
Progress: TypeAlias = Callable[[int, int], object]
AddBytes: TypeAlias = Callable[[int], None]  # takes the bytes that were done since the last call


class Work:
    """The bytes of several pieces of work. Threads: any."""

    def __init__(self, progress: Progress | None = None) -> None:
        self._progress = progress
        self._mutex = threading.Lock()
        self._done = self._total = 0

    def __bool__(self) -> bool:
        """Whether there is a callback: without one, the size of a piece need not be known."""
        return self._progress is not None

    def end(self) -> None:
        """Call the callback no more: what it raises cannot end a close."""
        self._progress = None

    @contextlib.contextmanager
    def piece(self, size: int) -> Iterator[AddBytes]:
        """A piece of work of `size` bytes, as a function that takes the bytes done since its last
        call. One thread calls it. With pieces in several threads the callback may get a smaller sum
        after a larger one.
        """
        remaining = size
        self._add(0, size)

        def pass_bytes(count: int) -> None:
            nonlocal remaining
            count = min(count, remaining)
            remaining -= count
            self._add(count, 0)

        yield pass_bytes
        if remaining:
            pass_bytes(remaining)

    def _add(self, done: int, total: int) -> None:
        with self._mutex:
            self._done = self._done + done
            self._total = self._total + total
            amounts = self._done, self._total
        progress = self._progress
        if progress is not None:
            progress(*amounts)
