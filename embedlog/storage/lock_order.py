"""Checks the order of locks while debugging: with EMBEDLOG_DEBUG_LOCKS=1 every thread records the
locks that it holds.

- The order is: open lock, directory, housekeeper, partitions (those of `__transaction_state`, then of
  `__consumer_offsets`, then of data, in the order of their paths), sync. A thread that takes a lock
  out of order can deadlock with another process, and OFD locks report no deadlock.
- While disabled, the check costs one comparison per lock.
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


def _locks_of_thread() -> list[tuple[int, str]]:
    """Rank and path of each lock that this thread holds, in the order in which it took them."""
    locks: list[tuple[int, str]] | None = getattr(_thread, "locks", None)
    if locks is None:
        locks = _thread.locks = []
    return locks


def _rank_of(path: str) -> int | None:
    rank = RANKS.get(os.path.basename(path))
    if rank != RANKS["embedlog.lock"]:
        return rank
    topic = os.path.basename(os.path.dirname(path)).rpartition("-")[0]
    return rank + INTERNAL.get(topic, 0)


def record_lock(path: str) -> None:
    """Record that this thread takes the lock of this file.

    Raises RuntimeError if it holds a lock that comes later in the order.
    """
    if not enabled:
        return
    rank = _rank_of(path)
    if rank is None:
        return
    locks = _locks_of_thread()
    last = max(locks, default=(-1, ""))
    if (rank, path) <= last:
        raise RuntimeError(f"locks out of order: {path} after {last[1]}")
    locks.append((rank, path))


def record_unlock(path: str) -> None:
    """Record that this thread has released the lock; no effect if it did not hold it."""
    if enabled:
        _thread.locks = [lock for lock in _locks_of_thread() if lock[1] != path]
