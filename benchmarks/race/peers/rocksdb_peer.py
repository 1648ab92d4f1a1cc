"""RocksDB through rocksdict: one map from numbers to stamped values."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from .base import Peer, Values
from .stamped import NUMBER, TIME, first_since, now_ms, pause, stamped

ROWS = 1000
MEMTABLE_BYTES = 256 << 20


class RocksdbPeer(Peer):
    NAME = "rocksdb"
    TITLE = "RocksDB"
    MODULES = ("rocksdict",)
    DISTRIBUTION = "rocksdict"
    CHECKSUM = "XXH3 of each block, verified by each read; CRC-32C of its WAL"
    SETTINGS = (
        "raw mode, `WriteBatch`, memtable of 256 MB, read-ahead of 4 MB; WAL written without sync; "
        "its reader, a secondary, looks each 0.5 ms"
    )
    DURABLE = "`WriteOptions.sync`, group commit of its threads"
    LACKS: ClassVar = {"processes": "one process writes"}

    def _options(self) -> Any:
        import rocksdict

        options = rocksdict.Options(raw_mode=True)
        kind = rocksdict.DBCompressionType
        options.set_compression_type(kind.zstd() if self.job.codec == "zstd" else kind.none())
        options.set_write_buffer_size(MEMTABLE_BYTES)
        options.create_if_missing(True)
        return options

    def begin(self) -> None:
        import rocksdict

        self._batch = rocksdict.WriteBatch
        self._keeping = rocksdict.WriteOptions()
        self._keeping.sync = self.job.durable
        self._db = rocksdict.Rdict(self.job.where, self._options())
        self._numbers = itertools.count(self.stored())

    def append_each(self, values: Values) -> None:
        put = self._db.put
        keeping = self._keeping
        pack = NUMBER.pack
        numbers = self._numbers
        for value in values:
            put(pack(next(numbers)), TIME.pack(now_ms()) + value, keeping)

    def append_batch(self, values: Values) -> None:
        self._put(stamped(values, now_ms(), 0))

    def append_timed(self, values: Values, first_ms: int) -> None:
        self._put(stamped(values, first_ms, 1))

    def _put(self, values: Iterator[bytes]) -> None:
        batch = self._batch(raw_mode=True)
        for value in values:
            batch.put(NUMBER.pack(next(self._numbers)), value)
        self._db.write(batch, self._keeping)

    def acknowledged(self, value: bytes) -> None:
        self._db.put(NUMBER.pack(next(self._numbers)), TIME.pack(now_ms()) + value, self._keeping)

    def finish(self) -> None:
        """A memtable is compressed when it is flushed, so that compression belongs to the
        appends.
        """
        if self.job.codec != "none":
            self._db.flush()

    def settle(self) -> None:
        """Without a flush a reader would find the records in the log, not in blocks with
        checksums.
        """
        self._db.flush()

    def stored(self) -> int:
        at = self._db.iter()
        at.seek_to_last()
        return int(NUMBER.unpack(at.key())[0]) + 1 if at.valid() else 0

    def open_reader(self) -> None:
        import rocksdict

        # a second process needs its own directory
        own = Path(self.job.where + f"-reader-{threading.get_native_id()}")
        self._db = rocksdict.Rdict(
            self.job.where, self._options(), access_type=rocksdict.AccessType.secondary(str(own))
        )
        self._db.try_catch_up_with_primary()
        self._reading = rocksdict.ReadOptions()
        self._reading.set_readahead_size(4 << 20)

    def records(self, first: int) -> Iterator[Values]:
        found = iter(self._db.values(from_key=NUMBER.pack(first), read_opt=self._reading))
        while values := list(itertools.islice(found, ROWS)):
            yield [value[8:] for value in values]

    def value_at(self, offset: int) -> bytes:
        return bytes(self._db[NUMBER.pack(offset)][8:])

    def value_since(self, time_ms: int) -> bytes:
        found = first_since(
            lambda at: int(TIME.unpack_from(self._db[NUMBER.pack(at)])[0]), self.stored(), time_ms
        )
        return self.value_at(found)

    def follow(self) -> Iterator[Values]:
        self.open_reader()
        last = self.stored()
        yield []
        while True:
            self._db.try_catch_up_with_primary()
            found = [value[8:] for value in self._db.values(from_key=NUMBER.pack(last))]
            last += len(found)
            if not found:
                pause(self.job)
            yield found

    def close(self) -> None:
        self._db.close()
