"""A log of small segments to back up, and its records."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import embedlog

KEPT = {"segment.bytes": 600, "index.interval.bytes": 100, "file.delete.delay.ms": 0}
QUIET = {"housekeeping": False}


@pytest.fixture
def log(tmp_path: Path) -> Iterator[embedlog.Log]:
    with embedlog.open(tmp_path / "log", config=QUIET) as opened:
        opened.create_topic("t", 2, config=KEPT)
        fill(opened, 300)
        yield opened


def fill(log: embedlog.Log, count: int, topic: str = "t") -> None:
    with log.producer(linger_ms=0, batch_size=300) as producer:
        for number in range(count):
            producer.send(
                topic,
                b"value %d" % number,
                b"k%d" % (number % 20),
                headers=[("h", b"x")],
                timestamp_ms=1000 + number,
            )


def rows(log: embedlog.Log, topic: str = "t") -> list[Any]:
    return [
        (r.partition, r.offset, r.key, r.value, r.headers, r.timestamp_ms)
        for r in log.scan(topic).records()
    ]


def content(directory: Path, read_only: bool = True, topic: str = "t") -> list[Any]:
    with embedlog.open(directory, read_only=read_only, create=False, config=QUIET) as log:
        return rows(log, topic)
