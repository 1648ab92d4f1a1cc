"""Callbacks of `commit_async` that commit again: each call of the consumer ends, and close calls
them all.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog import Consumer, Log, OffsetAndMetadata, TopicPartition
from embedlog.errors import ClosedError

TP = TopicPartition("t", 0)
LIMIT = 100  # an endless loop ends here
MANUAL: Any = {"group_id": "g", "auto_offset_reset": "earliest", "enable_auto_commit": False}


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with embedlog.open(tmp_path / "log", config={"housekeeping": False}) as opened:
        opened.create_topic("t")
        with opened.producer() as producer:
            producer.send_batch("t", [b"%d" % n for n in range(10)])
        yield opened


class Again:
    """A callback that commits again, whatever the result."""

    def __init__(self, consumer: Consumer, *, waits: bool = False) -> None:
        self._consumer = consumer
        self._waits = waits
        self.errors: list[Exception | None] = []
        self.refused: list[Exception] = []

    def __call__(self, offsets: Any, error: Exception | None) -> None:
        self.errors.append(error)
        if len(self.errors) >= LIMIT:
            return
        try:
            self._consumer.commit_async(offsets, callback=self)
            if self._waits:
                self._consumer.commit({TP: 1})
        except ClosedError as problem:
            self.refused.append(problem)


@pytest.mark.parametrize("note", ["", "x" * 100_000], ids=["made", "refused"])
def test_a_poll_calls_a_callback_once(log: Log, note: str) -> None:
    """A note of that size is refused: so both results are tested."""
    with log.consumer("t", **MANUAL) as consumer:
        assert consumer.poll(timeout=None)
        again = Again(consumer)
        consumer.commit_async({TP: OffsetAndMetadata(3, note)}, callback=again)
        for count in (1, 2, 3):
            consumer.poll()
            assert len(again.errors) == count
        assert all((error is None) == (not note) for error in again.errors)


def test_a_callback_that_also_waits_for_a_commit(log: Log) -> None:
    """The inner commit calls no callbacks: these could commit again, without an end."""
    with log.consumer("t", **MANUAL) as consumer:
        assert consumer.poll(timeout=None)
        again = Again(consumer, waits=True)
        consumer.commit_async({TP: 3}, callback=again)
        consumer.commit({TP: 4})
        assert 1 <= len(again.errors) <= 2
        assert again.errors.count(None) == len(again.errors)


@pytest.mark.parametrize("assigned", [False, True])
def test_a_close_calls_all_callbacks_and_ends(log: Log, assigned: bool) -> None:
    consumer = log.consumer(**MANUAL) if assigned else log.consumer("t", **MANUAL)
    if assigned:
        consumer.assign([TP])
    assert consumer.poll(timeout=None)
    again = Again(consumer)
    last = list[Any]()
    consumer.commit_async({TP: 3}, callback=again)
    consumer.commit_async({TP: 4}, callback=lambda offsets, error: last.append(error))
    consumer.close()
    assert (again.errors, last) == ([None, None], [None])
    assert "closed" in str(again.refused[0])


def test_a_callback_that_closes_the_consumer(log: Log) -> None:
    """The close calls the other callbacks; the call that was interrupted by it has none left."""
    consumer = log.consumer("t", **MANUAL)
    heard = list[Any]()
    assert consumer.poll(timeout=None)
    consumer.commit_async({TP: 3}, callback=lambda offsets, error: consumer.close())
    consumer.commit_async({TP: 4}, callback=lambda offsets, error: heard.append(error))
    consumer.poll()
    assert heard == [None]
