"""Bounds the memory of verified batches that the readers of an open log keep.

- All partitions of an open directory share `RECENT_BYTES_MAX`: the batches that were used last
  stay.
- A batch counts with the memory that it occupies: pages of the buffer pool, marks, objects.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final, Protocol

# more would leave the caches of the processor: then each new batch costs more
RECENT_BYTES_MAX: Final = 3 << 20


class BatchOwner(Protocol):
    """The reads of one partition."""

    def forget_batch(self, first: int) -> None:
        """The batch with this base offset is not kept any more."""


class RecentBatches:
    """The kept batches of an open directory, in the order of their last use. Threads: any."""

    def __init__(self, bytes_max: int = RECENT_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        # Of all kept batches. The garbage collector may run a finalizer that closes a log inside a
        # section.
        self.mutex = threading.RLock()
        self._order: OrderedDict[tuple[int, int], tuple[BatchOwner, int]] = OrderedDict()
        self.size_bytes = 0

    def fits(self, size_bytes: int) -> bool:
        """Whether a batch of this size can be kept at all."""
        return size_bytes <= self._bytes_max

    def keep(self, owner: BatchOwner, first: int, size_bytes: int) -> None:
        """Count a batch that `owner` keeps now; the longest unused ones are dropped for it.
        REQUIRES: it fits, and the mutex.
        """
        key = (id(owner), first)
        if key in self._order:
            self._forget(key)
        self._order[key] = (owner, size_bytes)
        self.size_bytes += size_bytes
        while self.size_bytes > self._bytes_max:
            (_, oldest), (holder, freed) = self._order.popitem(last=False)
            self.size_bytes -= freed
            holder.forget_batch(oldest)

    def note_use(self, owner: BatchOwner, first: int) -> None:
        """A kept batch is used. REQUIRES: `owner` keeps it, and the mutex."""
        self._order.move_to_end((id(owner), first))

    def drop(self, owner: BatchOwner) -> None:
        """Drop all batches of this owner."""
        with self.mutex:
            for key in [key for key in self._order if key[0] == id(owner)]:
                self._forget(key)
                owner.forget_batch(key[1])

    def _forget(self, key: tuple[int, int]) -> None:
        self.size_bytes -= self._order.pop(key)[1]
