"""Interceptors of a consumer: their input, their changes, and that they cannot break the
reading.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from embedlog.errors import ConfigError
from embedlog.types import TopicPartition
from tests.support.fake_engine import FakeEngine, fill
from tests.support.fake_engine import consumer as consumer

A0 = TopicPartition("a", 0)


class Watching:
    """Notes its input; `change` makes its output."""

    def __init__(self, change: Callable[[list[Any]], Any] = lambda records: records) -> None:
        self.shown: list[list[int]] = []
        self.closed = 0
        self._change = change

    def on_consume(self, records: list[Any]) -> Any:
        self.shown.append([record.offset for record in records])
        return self._change(records)

    def close(self) -> None:
        self.closed += 1


def broken(*_: object) -> Any:
    raise ValueError("an interceptor's own mistake")


@pytest.fixture
def engine() -> FakeEngine:
    made = FakeEngine(a=1, b=2)
    fill(made.partition("a", 0), 30)
    return made


def test_they_see_what_a_poll_is_about_to_return_in_a_row(consumer: Any) -> None:
    first = Watching(lambda records: records[1:])
    second = Watching()
    reader = consumer("a", interceptor_classes=[first, second], max_poll_records=4)
    assert [record.offset for record in reader.poll()] == [1, 2, 3]
    assert (first.shown, second.shown) == ([[0, 1, 2, 3]], [[1, 2, 3]])
    assert reader.position(A0) == 4  # the position counts records that an interceptor drops
    reader.poll()
    assert first.shown[1] == [4, 5, 6, 7]


def test_an_empty_poll_shows_nothing(engine: FakeEngine, consumer: Any) -> None:
    watching = Watching()
    assert consumer("b", interceptor_classes=[watching]).poll() == []
    assert watching.shown == []


def test_one_that_raises_is_logged_and_the_others_go_on(
    consumer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    last = Watching()
    reader = consumer(
        "a",
        interceptor_classes=[Watching(broken), Watching(lambda records: None), last],
        max_poll_records=3,
    )
    with caplog.at_level(logging.ERROR, "embedlog"):
        assert [record.offset for record in reader.poll()] == [0, 1, 2]
    assert last.shown == [[0, 1, 2]]
    assert [entry.getMessage().split()[0] for entry in caplog.records] == ["on_consume"] * 2


def test_a_loop_shows_each_record_once_also_where_it_breaks_off(consumer: Any) -> None:
    watching = Watching(lambda records: [record for record in records if record.offset % 2])
    reader = consumer("a", interceptor_classes=[watching], consumer_timeout_ms=0)
    got = []
    for record in reader:
        got.append(record.offset)
        if len(got) == 3:
            break
    assert reader.position(A0) == 7
    got += [record.offset for record in reader.poll(max_records=4)]
    got += [record.offset for record in reader]
    assert got == list(range(1, 30, 2))
    shown = [offset for offsets in watching.shown for offset in offsets]
    assert shown == list(range(30))


def test_a_loop_goes_on_where_everything_was_left_out(engine: FakeEngine, consumer: Any) -> None:
    watching = Watching(lambda records: [])
    reader = consumer(
        "a", interceptor_classes=[watching], consumer_timeout_ms=0, max_partition_fetch_bytes=200
    )
    assert list(reader) == []
    assert reader.position(A0) == 30
    assert len(watching.shown) > 1


def test_columns_pass_them_by(consumer: Any) -> None:
    watching = Watching()
    reader = consumer("a", interceptor_classes=[watching])
    assert sum(len(batch) for batch in reader.batches(timeout=0)) == 30
    assert watching.shown == []


def test_they_are_closed_with_the_consumer_once_each(
    consumer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    one = Watching()
    two = Watching()
    one.close = broken  # type: ignore[method-assign]
    reader = consumer("a", interceptor_classes=[one, two])
    with caplog.at_level(logging.ERROR, "embedlog"):
        reader.close()
        reader.close()
    assert two.closed == 1
    assert "close of the interceptor" in caplog.text


def test_a_class_is_made_and_what_is_no_interceptor_is_refused(consumer: Any) -> None:
    assert len(consumer("a", interceptor_classes=[Watching]).poll()) == 30
    with pytest.raises(ConfigError, match=r"interceptor\.classes.*on_consume"):
        consumer("a", interceptor_classes=[object()])
