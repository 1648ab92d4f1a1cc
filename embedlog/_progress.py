"""Adds up the progress of several pieces of work for one callback of the user: `progress(done, all)`, both in bytes.

WORK-1  the callback is called without a lock, in the thread that works; what it raises ends that piece of work
WORK-2  an ended piece counts as a whole, also if it read less than expected
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

Progress: TypeAlias = Callable[[int, int], object]  # bytes done so far, all bytes that are known so far
Passed: TypeAlias = Callable[[int], None]  # takes the bytes that were done since the last call


class Work:
    """The bytes of several pieces of work. Threads: any."""

    def __init__(self, progress: Progress | None = None) -> None:
        self._progress, self._mutex = progress, threading.Lock()
        self._done = self._total = 0

    def __bool__(self) -> bool:
        """Whether there is a callback: without one, the size of a piece need not be known."""
        return self._progress is not None

    def end(self) -> None:
        """Call the callback no more: a close is not ended by it."""
        self._progress = None

    @contextmanager
    def piece(self, size: int) -> Iterator[Passed]:
        """A piece of work of `size` bytes, as a function that takes the bytes done since its last call."""
        left = size
        self._add(0, size)

        def passed(count: int) -> None:
            nonlocal left
            count = min(count, left)
            left -= count
            self._add(count, 0)

        yield passed
        if left:
            passed(left)

    def _add(self, done: int, total: int) -> None:
        with self._mutex:
            self._done, self._total = self._done + done, self._total + total
            amounts = self._done, self._total
        if (progress := self._progress) is not None:
            progress(*amounts)
