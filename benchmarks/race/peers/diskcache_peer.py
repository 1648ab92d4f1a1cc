"""The deque of diskcache, over SQLite."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import ClassVar

from .base import Peer, Values
from .stamped import pause

ROWS = 1000


class DiskcachePeer(Peer):
    NAME = "diskcache"
    TITLE = "diskcache Deque"
    MODULES = ("diskcache",)
    DISTRIBUTION = "diskcache"
    CHECKSUM = "of WAL frames, none of the database"
    SETTINGS = (
        "`sqlite_synchronous=0`, no eviction, one `transact()` for each batch; its reader looks "
        "each 0.5 ms"
    )
    DURABLE = "`sqlite_synchronous=2`; large values in files that are not synced"
    LACKS: ClassVar = {
        "codec": "no compression",
        "offset": "an index walks over all records before it",
        "time": "it keeps no times",
    }

    def begin(self) -> None:
        from diskcache import Cache, Deque

        cache = Cache(
            self.job.where,
            eviction_policy="none",
            size_limit=1 << 40,
            cull_limit=0,
            timeout=60,
            sqlite_synchronous=2 if self.job.durable else 0,
        )
        self._deque = Deque.fromcache(cache)

    def append_each(self, values: Values) -> None:
        for value in values:
            self._deque.append(value)

    def append_batch(self, values: Values) -> None:
        with self._deque.transact():
            for value in values:
                self._deque.append(value)

    def append_timed(self, values: Values, first_ms: int) -> None:
        self.append_batch(values)

    def acknowledged(self, value: bytes) -> None:
        self._deque.append(value)

    def stored(self) -> int:
        return len(self._deque)

    def open_reader(self) -> None:
        self.begin()

    def records(self, first: int) -> Iterator[Values]:
        found = itertools.islice(iter(self._deque), first, None)
        while values := list(itertools.islice(found, ROWS)):
            yield values

    def value_at(self, offset: int) -> bytes:
        found: bytes = self._deque[offset]
        return found

    def follow(self) -> Iterator[Values]:
        """A reader of a deque takes the records away."""
        self.open_reader()
        while self._deque:
            self._deque.popleft()
        yield []
        while True:
            values = []
            while self._deque:
                values.append(self._deque.popleft())
            if not values:
                pause(self.job)
            yield values

    def close(self) -> None:
        self._deque.cache.close()
