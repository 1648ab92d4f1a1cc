"""SQLite in WAL mode: a table of number, time and value."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from .base import Peer, Values
from .stamped import first_since, now_ms, pause

ROWS = 1000  # of one fetch
INSERT = "INSERT INTO log (time, value) VALUES (?, ?)"


class SqlitePeer(Peer):
    NAME = "sqlite"
    TITLE = "SQLite (WAL)"
    CHECKSUM = "of WAL frames, none of the database"
    SETTINGS = (
        "WAL, `synchronous=OFF`, pages of 8 kB, cache and map of 256 MB; one transaction for each "
        "batch, or for 10,000 singles; "
        "its reader looks each 0.5 ms"
    )
    DURABLE = "`synchronous=FULL`, a connection for each thread"
    LACKS: ClassVar = {"codec": "no compression"}

    @classmethod
    def version(cls) -> str:
        return sqlite3.sqlite_version

    def _connect(self) -> sqlite3.Connection:
        Path(self.job.where).mkdir(exist_ok=True)
        found = sqlite3.connect(Path(self.job.where) / "log.db", isolation_level=None, timeout=60)
        found.execute("PRAGMA page_size=8192")
        found.execute("PRAGMA journal_mode=WAL")
        found.execute(f"PRAGMA synchronous={'FULL' if self.job.durable else 'OFF'}")
        found.execute("PRAGMA cache_size=-262144")
        found.execute("PRAGMA mmap_size=268435456")
        return found

    def begin(self) -> None:
        self._db = self._connect()
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS log (number INTEGER PRIMARY KEY, time INTEGER, value BLOB)"
        )

    def append_each(self, values: Values) -> None:
        run = self._db.execute
        run("BEGIN IMMEDIATE")
        for value in values:
            run(INSERT, (now_ms(), value))
        run("COMMIT")

    def append_batch(self, values: Values) -> None:
        self._insert(zip(itertools.repeat(now_ms()), values))

    def append_timed(self, values: Values, first_ms: int) -> None:
        self._insert(zip(itertools.count(first_ms), values))

    def _insert(self, rows: Iterator[tuple[int, bytes]]) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        self._db.executemany(INSERT, rows)
        self._db.execute("COMMIT")

    def acknowledged(self, value: bytes) -> None:
        self._db.execute(INSERT, (now_ms(), value))

    def for_thread(self) -> SqlitePeer:
        own = SqlitePeer(self.job)
        own._db = own._connect()
        return own

    def stored(self) -> int:
        return int(self._db.execute("SELECT coalesce(max(number), 0) FROM log").fetchone()[0])

    def open_reader(self) -> None:
        self._db = self._connect()

    def records(self, first: int) -> Iterator[Values]:
        rows = self._db.execute("SELECT value FROM log WHERE number > ? ORDER BY number", (first,))
        while found := rows.fetchmany(ROWS):
            yield [value for (value,) in found]

    def _row(self, column: str, offset: int) -> sqlite3.Row | tuple[int | bytes]:
        found: tuple[int | bytes] = self._db.execute(
            f"SELECT {column} FROM log WHERE number = ?", (offset + 1,)
        ).fetchone()
        return found

    def value_at(self, offset: int) -> bytes:
        return bytes(self._row("value", offset)[0])

    def value_since(self, time_ms: int) -> bytes:
        return self.value_at(
            first_since(lambda offset: int(self._row("time", offset)[0]), self.stored(), time_ms)
        )

    def follow(self) -> Iterator[Values]:
        self.open_reader()
        last = self.stored()
        yield []
        while True:
            found = self._db.execute(
                "SELECT value FROM log WHERE number > ? ORDER BY number", (last,)
            ).fetchall()
            last += len(found)
            if not found:
                pause(self.job)
            yield [value for (value,) in found]

    def close(self) -> None:
        self._db.close()
