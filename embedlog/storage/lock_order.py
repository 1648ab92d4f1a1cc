"""The order of locks, checked while debugging: with EMBEDLOG_DEBUG_LOCKS=1 every thread remembers what it holds.

LOCKORDER-1  door, directory, housekeeper, partitions (those of `__transaction_state`, then of `__consumer_offsets`, then of data,
    in the order of their paths), sync: who takes one that comes before another that it holds could wait for somebody who waits
    for it, and OFD locks report no deadlock
LOCKORDER-2  switched off, this costs one comparison a lock
"""

from __future__ import annotations

import os
import threading
from typing import Final

RANKS: Final = {"embedlog.door": 0, "embedlog.directory": 1, "embedlog.housekeeper": 2, "embedlog.lock": 5, "embedlog.sync": 6}
INTERNAL: Final = {"__transaction_state": -2, "__consumer_offsets": -1}  # these come before other partitions

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
    """This thread is about to take, or has taken, the lock of this file. Raises RuntimeError if it comes too late for that."""
    if not enabled or (rank := _rank(path)) is None:
        return
    last = max(_held(), default=(-1, ""))
    if (rank, path) <= last:
        raise RuntimeError(f"locks out of order: {path} behind {last[1]}")
    _held().append((rank, path))


def left(path: str) -> None:
    """It holds that one no more; nothing happens if it did not."""
    if enabled:
        _thread.held = [each for each in _held() if each[1] != path]
