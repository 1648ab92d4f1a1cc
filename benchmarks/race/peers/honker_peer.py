"""honker's streams inside SQLite."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from .base import Peer, Values

ROWS = 1000


class HonkerPeer(Peer):
    NAME = "honker"
    TITLE = "honker stream"
    MODULES = ("honker",)
    DISTRIBUTION = "honker"
    CHECKSUM = "of WAL frames, none of the database"
    SETTINGS = (
        "its defaults (WAL, `synchronous=NORMAL`), one transaction for each batch; values in "
        "base64, since payloads are JSON"
    )
    DURABLE = "–"
    LACKS: ClassVar = {
        "codec": "no compression",
        "time": "it keeps times of one second, without an index",
        "spin": "its watcher looks once in a millisecond",
        "durable": "its connections have `synchronous=NORMAL`, which syncs no commit",
    }

    def begin(self) -> None:
        import honker

        Path(self.job.where).mkdir(exist_ok=True)
        self._db = honker.open(str(Path(self.job.where) / "honker.db"))
        self._stream = self._db.stream(self.job.topic)

    def append_each(self, values: Values) -> None:
        with self._db.transaction() as transaction:
            for value in values:
                self._stream.publish(base64.b64encode(value).decode(), tx=transaction)

    append_batch = append_each

    def append_timed(self, values: Values, first_ms: int) -> None:
        self.append_each(values)

    def acknowledged(self, value: bytes) -> None:
        self._stream.publish(base64.b64encode(value).decode())

    def stored(self) -> int:
        return int(
            self._db.query("SELECT coalesce(max(offset), 0) AS last FROM _honker_stream")[0]["last"]
        )

    def open_reader(self) -> None:
        self.begin()

    def _since(self, offset: int, count: int) -> Values:
        """Values after an offset, through the function that all its languages call."""
        asked = [self.job.topic, offset, count]
        with self._db.transaction() as transaction:  # other connections do not have the function
            (row,) = transaction.query("SELECT honker_stream_read_since(?, ?, ?) AS found", asked)
        return [base64.b64decode(json.loads(each["payload"])) for each in json.loads(row["found"])]

    def records(self, first: int) -> Iterator[Values]:
        while values := self._since(first, ROWS):
            yield values
            first += len(values)

    def value_at(self, offset: int) -> bytes:
        return self._since(offset, 1)[0]

    def follow(self) -> Iterator[Values]:
        self.open_reader()
        with asyncio.Runner() as runner:
            events = self._stream.subscribe(from_offset=self.stored())
            yield []
            while True:
                yield [base64.b64decode(runner.run(self._next(events)).payload)]

    @staticmethod
    async def _next(events: Any) -> Any:
        return await events.__anext__()

    def close(self) -> None:
        self._db.close()
