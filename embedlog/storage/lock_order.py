"""Checks the order of locks while debugging: with EMBEDLOG_DEBUG_LOCKS=1 every thread records the
locks that it holds.

LOCKORDER-1  the order is: open lock, directory, housekeeper, partitions (those of
    `__transaction_state`, then of `__consumer_offsets`, then of data, in the order of their paths),
    sync. A thread that takes a lock out of order can deadlock with another process, and OFD locks
    report no deadlock
LOCKORDER-2  while disabled, the check costs one comparison per lock
"""

from __future__ import annotations

import os
import threading
from typing import Final

RANKS: Final = {
    "embedlog.door": 0,
    "embedlog.directory": 1,
    "embedlog.housekeeper": 2,
    "embedlog.lock": 5,
    "embedlog.sync": 6,
}
# these come before other partitions
INTERNAL: Final = {"__transaction_state": -2, "__consumer_offsets": -1}

enabled: bool = os.environ.get("EMBEDLOG_DEBUG_LOCKS") == "1"
_thread = threading.local()


def _held() -> list[tuple[int, str]]:
    held: list[tuple[int, str]] | None = getattr(_thread, "held", None)
    if held is None:
        held = _thread.held = []
    return held


def _rank(path: str) -> int | None:
    rank = RANKS.get(os.path.basename(path))
    if rank != RANKS["embedlog.lock"]:
        return rank
    return rank + INTERNAL.get(os.path.basename(os.path.dirname(path)).rpartition("-")[0], 0)


def taken(path: str) -> None:
    """Record that this thread takes the lock of this file.

    Raises RuntimeError if it holds a lock that comes later in the order.
    """
    if not enabled or (rank := _rank(path)) is None:
        return
    last = max(_held(), default=(-1, ""))
    if (rank, path) <= last:
        raise RuntimeError(f"locks out of order: {path} after {last[1]}")
    _held().append((rank, path))


def left(path: str) -> None:
    """Record that this thread has released the lock; no effect if it did not hold it."""
    if enabled:
        _thread.held = [each for each in _held() if each[1] != path]
