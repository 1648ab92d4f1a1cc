"""persist-queue: its queue in files, and for durable appends its queue in SQLite."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from .base import Peer, Values

ROWS = 1000


class PersistQueuePeer(Peer):
    NAME = "persist-queue"
    TITLE = "persist-queue"
    MODULES = ("persistqueue",)
    DISTRIBUTION = "persist-queue"
    CHECKSUM = "none"
    SETTINGS = (
        "`Queue`, its queue in files of 10,000 records, pickled; it renames a file for each record"
    )
    DURABLE = "`SQLiteQueue(auto_commit=True)`: SQLite syncs each commit"
    LACKS: ClassVar = {
        "codec": "no compression",
        "offset": "a queue: only its first record can be read",
        "time": "a queue: only its first record can be read",
        "spin": "see before",
        "tail": "its reader does not see records of another process",
        "processes": "one process at a time",
    }

    def begin(self) -> None:
        from persistqueue import Queue, SQLiteQueue

        where = self.job.where
        if self.job.durable:
            self._queue: Any = SQLiteQueue(where, auto_commit=True, multithreading=True, timeout=60)
        else:
            Path(where).mkdir(exist_ok=True)
            self._queue = Queue(where, chunksize=10_000, tempdir=where)

    def append_each(self, values: Values) -> None:
        for value in values:
            self._queue.put(value)

    append_batch = append_each

    def append_timed(self, values: Values, first_ms: int) -> None:  # it keeps no times
        self.append_each(values)

    def acknowledged(self, value: bytes) -> None:
        self._queue.put(value)

    def stored(self) -> int:
        return int(self._queue.qsize())

    def open_reader(self) -> None:
        self.begin()

    def records(self, first: int) -> Iterator[Values]:
        """Without `task_done` nothing is removed."""
        assert first == 0
        left = self.stored()
        while left:
            values = [self._queue.get() for _ in range(min(ROWS, left))]
            left -= len(values)
            yield values

    def warm_reader(self) -> None:
        """Nothing: a record that was read is not the first any more."""

    def close(self) -> None:
        if self.job.durable:
            self._queue.close()
