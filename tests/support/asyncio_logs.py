"""The log of the tests of asyncio clients, and what its consumers return."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog import TopicPartition
from embedlog.aio.consumer import AsyncConsumer
from tests.support.event_loops import turns_until


@pytest.fixture
def log(tmp_path: Path) -> Iterator[embedlog.Log]:
    with embedlog.open(tmp_path / "log", config={"housekeeping": False}) as opened:
        opened.create_topic("one")
        opened.create_topic("t", partitions=3)
        yield opened


TP = TopicPartition("one", 0)
FROM_START = {"auto_offset_reset": "earliest"}


def fill(log: embedlog.Log, count: int, topic: str = "one", start: int = 0, **config: Any) -> None:
    with log.producer(**config) as producer:
        for number in range(start, start + count):
            producer.send(topic, b"%d" % number, key=b"%d" % number)


def numbers(records: list[embedlog.Record]) -> list[int]:
    return [int(record.value) for record in records]


async def waiting(consumer: AsyncConsumer) -> None:
    """Until its thread sleeps in the log."""
    await turns_until(lambda: consumer._sync is not None and consumer._sync._waiter.poll_count > 0)


async def first_of_iteration(consumer: AsyncConsumer) -> None:
    async for _ in consumer:
        return
