"""Remembers where the next fetches of a partition continue, so that a sequential reader needs no
index.

- A continuation is taken once. It is stored again by the fetch that used it, for the offset after
  its last batch.
- Only the last `CONTINUATIONS_MAX` of them are kept: as many sequential readers of one partition
  are fast.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final, NamedTuple

from embedlog.storage import interval_digests

CONTINUATIONS_MAX: Final = 32


class Continuation(NamedTuple):
    """The position of a batch in a segment, and what a reader knows there."""

    base: int  # of the segment
    position: int
    epoch: int  # of the batch before; -1: not known
    digest_state: interval_digests.State | None  # None: the chain digest is not known here


class Continuations:
    """Continuations by offset. Threads: any."""

    def __init__(self) -> None:
        self._by_offset: OrderedDict[int, Continuation] = OrderedDict()
        self._mutex = threading.Lock()

    def take(self, offset: int) -> Continuation | None:
        """The position of the batch at `offset`, which is forgotten."""
        with self._mutex:
            return self._by_offset.pop(offset, None)

    def get(self, offset: int) -> Continuation | None:
        with self._mutex:
            return self._by_offset.get(offset)

    def put(self, offset: int, continuation: Continuation) -> None:
        with self._mutex:
            self._by_offset[offset] = continuation
            while len(self._by_offset) > CONTINUATIONS_MAX:
                self._by_offset.popitem(last=False)

    def clear(self) -> None:
        with self._mutex:
            self._by_offset.clear()
