"""LMDB: one map from numbers to stamped values."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from .base import Peer, Values
from .stamped import NUMBER, TIME, first_since, now_ms, pause, stamped

MAP_BYTES = 64 << 30  # of address space; the file grows as needed
ROWS = 1000


class LmdbPeer(Peer):
    NAME = "lmdb"
    TITLE = "LMDB"
    MODULES = ("lmdb",)
    DISTRIBUTION = "lmdb"
    CHECKSUM = "none"
    SETTINGS = (
        "`sync=False`, `putmulti(append=True)`; one transaction for each batch, or for 10,000 "
        "singles; no read-ahead; "
        "its reader looks each 0.5 ms"
    )
    DURABLE = "`sync=True`, a transaction for each record"
    LACKS: ClassVar = {"codec": "no compression"}

    def _open(self) -> None:
        import lmdb

        Path(self.job.where).mkdir(exist_ok=True)
        keeping = {"sync": self.job.durable, "metasync": self.job.durable}
        self._env = lmdb.open(
            self.job.where, map_size=MAP_BYTES, max_readers=64, readahead=False, **keeping
        )

    def begin(self) -> None:
        self._open()

    @staticmethod
    def _next(transaction: Any) -> int:
        with transaction.cursor() as cursor:
            return NUMBER.unpack(cursor.key())[0] + 1 if cursor.last() else 0

    def append_each(self, values: Values) -> None:
        with self._env.begin(write=True) as transaction:
            number = self._next(transaction)
            put = transaction.put
            pack = NUMBER.pack
            for value in values:
                put(pack(number), TIME.pack(now_ms()) + value, append=True)
                number += 1

    def append_batch(self, values: Values) -> None:
        self._put(stamped(values, now_ms(), 0))

    def append_timed(self, values: Values, first_ms: int) -> None:
        self._put(stamped(values, first_ms, 1))

    def _put(self, values: Iterator[bytes]) -> None:
        with self._env.begin(write=True) as transaction:
            first = self._next(transaction)
            with transaction.cursor() as cursor:
                cursor.putmulti(
                    [(NUMBER.pack(number), value) for number, value in enumerate(values, first)],
                    append=True,
                )

    def acknowledged(self, value: bytes) -> None:
        with self._env.begin(write=True) as transaction:
            transaction.put(
                NUMBER.pack(self._next(transaction)), TIME.pack(now_ms()) + value, append=True
            )

    def stored(self) -> int:
        return int(self._env.stat()["entries"])

    def open_reader(self) -> None:
        self._open()

    def records(self, first: int) -> Iterator[Values]:
        with self._env.begin() as transaction, transaction.cursor() as cursor:
            if not cursor.set_key(NUMBER.pack(first)):
                return
            found: Values = []
            for value in cursor.iternext(keys=False):
                found.append(value[8:])
                if len(found) == ROWS:
                    yield found
                    found = []
            yield found

    @staticmethod
    def _kept(transaction: Any, number: int) -> bytes:
        """The stamped value of a number."""
        found: bytes = transaction.get(NUMBER.pack(number))
        return found

    def value_at(self, offset: int) -> bytes:
        with self._env.begin() as transaction:
            return self._kept(transaction, offset)[8:]

    def value_since(self, time_ms: int) -> bytes:
        with self._env.begin() as transaction:
            count = int(transaction.stat()["entries"])
            found = first_since(
                lambda at: int(TIME.unpack_from(self._kept(transaction, at))[0]), count, time_ms
            )
            return self._kept(transaction, found)[8:]

    def follow(self) -> Iterator[Values]:
        self.open_reader()
        last = self.stored()
        yield []
        while True:
            with self._env.begin() as transaction:
                count = int(transaction.stat()["entries"])
                found = [self._kept(transaction, number)[8:] for number in range(last, count)]
            last = count
            if not found:
                pause(self.job)
            yield found

    def close(self) -> None:
        self._env.close()
