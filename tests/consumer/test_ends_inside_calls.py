"""A consumer that a deserializer or an interceptor ends inside of its own call: no error of the
consumer itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog import ClosedError, Consumer, Log, StateError, TopicPartition

ENDS: dict[str, Callable[[Consumer], None]] = {
    "unsubscribe": Consumer.unsubscribe,
    "close": Consumer.close,
    "assign": lambda consumer: consumer.assign([]),
}


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with embedlog.open(tmp_path / "log", config={"housekeeping": False}) as opened:
        opened.create_topic("t", partitions=2)
        with opened.producer() as producer:
            for number in (0, 1):
                producer.send_batch("t", [b"a", b"stop", b"b"], partition=number)
        yield opened


@pytest.mark.parametrize("limit", [1, 2, 10])
@pytest.mark.parametrize("group", [None, "g"])
@pytest.mark.parametrize("end", ENDS)
def test_a_deserializer_that_ends_the_reading(
    log: Log, end: str, group: str | None, limit: int
) -> None:
    seen: list[bytes] = []

    def value(data: bytes) -> bytes:
        seen.append(data)
        if data == b"stop" and len(seen) < 5:
            ENDS[end](consumer)
        return data

    consumer = log.consumer(
        "t", auto_offset_reset="earliest", value_deserializer=value, group_id=group
    )
    found = consumer.poll(timeout=None, max_records=limit)
    assert [record.value for record in found][:2] == [b"a", b"stop"][:limit]
    with pytest.raises((ClosedError, StateError)):
        consumer.poll()
    if end != "close":
        assert not consumer.assignment()
        consumer.assign([TopicPartition("t", 0)])
        assert consumer.assignment() == {TopicPartition("t", 0)}
        consumer.seek_to_beginning()
        assert [record.value for record in consumer.poll(timeout=None)] == [b"a", b"stop", b"b"]
    consumer.close()


class Ending:
    """An interceptor that ends the reading with the first records."""

    def __init__(self, end: Callable[[Consumer], None]) -> None:
        self._end = end
        self.consumers: list[Consumer] = []

    def on_consume(self, records: list[Any]) -> list[Any]:
        if self.consumers:
            self._end(self.consumers.pop())
        return records


@pytest.mark.parametrize("iterates", [False, True])
@pytest.mark.parametrize("end", ENDS)
def test_an_interceptor_that_ends_the_reading(log: Log, end: str, iterates: bool) -> None:
    ending = Ending(ENDS[end])
    consumer = log.consumer("t", auto_offset_reset="earliest", interceptor_classes=[ending])
    ending.consumers.append(consumer)
    if iterates:
        next(consumer)
    else:
        assert consumer.poll(timeout=None)
    with pytest.raises((ClosedError, StateError, StopIteration)):
        next(consumer)
