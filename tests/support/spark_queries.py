"""The calls of Spark to a source that follows a log."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog.spark.read_options import parse
from embedlog.spark.stream_offsets import StreamOffsets
from tests.support.spark_rows import offsets


@pytest.fixture
def log(tmp_path: Path) -> Iterator[embedlog.Log]:
    """Topic `t`: 2 partitions of 50 records."""
    with embedlog.open(tmp_path / "log", config={"housekeeping": False}) as made:
        made.create_topic("t", partitions=2)
        append(made, 100)
        yield made


def append(log: embedlog.Log, count: int, partitions: int = 2, topic: str = "t") -> None:
    with log.producer() as producer:
        for number in range(count):
            producer.send(topic, b"v", partition=number % partitions)


class Query:
    """The calls of Spark to a source: offsets pass through JSON, ends are kept, the very first
    start is not.
    """

    def __init__(self, log: embedlog.Log, clock: Any = lambda: 0.0, **options: str) -> None:
        given = {"path": str(log.path), "subscribe": "t", "startingOffsets": "earliest"} | options
        if "subscribePattern" in options:
            del given["subscribe"]
        self.settings = parse(given, stream=True)
        self.clock = clock
        self.ends: list[str] = []
        self.rows: list[tuple[int, int]] = []
        self.follower = StreamOffsets(self.settings, clock)

    def restart(self) -> None:
        self.follower.close()
        self.follower = StreamOffsets(self.settings, self.clock)

    def start(self) -> dict[str, Any]:
        return json.loads(self.ends[-1]) if self.ends else self.follower.initial()

    def plan(self, rows: int | None = None) -> bool:
        """Keeps the end of a batch; False if there is none."""
        start = self.start()
        end = self.follower.next(start, rows)
        if end == start:
            return False
        self.ends.append(json.dumps(end))
        return True

    def run(self) -> int:
        """The tasks of the batch that was planned last."""
        before = json.loads(self.ends[-2]) if len(self.ends) > 1 else self.follower.initial()
        found = offsets(self.follower.tasks(before, json.loads(self.ends[-1])))
        self.rows += found
        return len(found)

    def batch(self, rows: int | None = None) -> int:
        return self.run() if self.plan(rows) else 0
