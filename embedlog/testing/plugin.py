"""The pytest plugin: fixtures whose names begin with `embedlog_`, and the comparison of lists of
records in `assert`.

- A run that uses no fixture of it imports only this module: neither the engine nor numpy.
- Every fixture belongs to one test; the log and all clients are closed at its end.
- The names begin with `embedlog_`, because `log`, `producer` and `consumer` occur in other plugins.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from embedlog import Consumer, Log, Producer, Record
    from embedlog.testing.log_faults import Faults
    from embedlog.testing.stopped_clock import Clock


class ConsumerFactory(Protocol):
    """The type of the fixture `embedlog_consumer`."""

    def __call__(
        self, *topics: str, group_id: str | None = None, **options: Any
    ) -> Consumer[Any, Any]: ...


class RecordsOf(Protocol):
    """The type of the fixture `embedlog_records`."""

    def __call__(
        self, topic: str, *, partition: int | None = None
    ) -> list[Record[bytes, bytes]]: ...


@pytest.fixture
def embedlog_topics() -> Mapping[str, int] | Iterable[str]:
    """Topics of `embedlog_log`, to be overridden: names, or a mapping of names to numbers of
    partitions.
    """
    return ()


@pytest.fixture
def embedlog_settings() -> Mapping[str, Any]:
    """Settings of `embedlog_log`, to be overridden: Kafka's names, as for
    `embedlog.open(config=…)`.
    """
    return {}


@pytest.fixture
def embedlog_log(
    embedlog_topics: Mapping[str, int] | Iterable[str], embedlog_settings: Mapping[str, Any]
) -> Iterator[Log]:
    """An open log in memory, with the topics of `embedlog_topics`; its directory,
    `embedlog_log.path`, is removed afterwards.
    """
    from embedlog.testing.memory import open_log

    with open_log(embedlog_topics, config=embedlog_settings) as log:
        yield log


@pytest.fixture
def embedlog_producer(embedlog_log: Log) -> Iterator[Producer[bytes, bytes]]:
    """A producer of `embedlog_log` with default settings; its buffered records are written at the
    end of the test.
    """
    with embedlog_log.producer() as producer:
        yield producer


@pytest.fixture
def embedlog_consumer(embedlog_log: Log) -> Iterator[ConsumerFactory]:
    """A function that makes consumers of `embedlog_log`:
    `embedlog_consumer("orders", group_id="billing", **options)`.

    They start at the first record unless `auto_offset_reset` is given or their group has committed
    offsets, and are closed at the end of the test.
    """
    consumers: list[Consumer[Any, Any]] = []

    def make(*topics: str, group_id: str | None = None, **options: Any) -> Consumer[Any, Any]:
        all_options = {"auto_offset_reset": "earliest", **options}
        consumer = embedlog_log.consumer(*topics, group_id=group_id, **all_options)
        consumers.append(consumer)
        return consumer

    try:
        yield make
    finally:
        for consumer in reversed(consumers):
            consumer.close()


@pytest.fixture
def embedlog_records(embedlog_log: Log) -> RecordsOf:
    """A function that returns the current records of a topic: `embedlog_records("orders")`. Open
    transactions are omitted.
    """
    from embedlog.testing.assertions import records

    def records_of(topic: str, *, partition: int | None = None) -> list[Record[bytes, bytes]]:
        return records(embedlog_log, topic, partition=partition)

    return records_of


@pytest.fixture
def embedlog_clock() -> Iterator[Clock]:
    """The clock of this process, stopped for the time of the test:
    `embedlog_clock.advance(hours=8)`.
    """
    from embedlog.testing.stopped_clock import clock

    with clock() as stopped:
        yield stopped


@pytest.fixture
def embedlog_faults(embedlog_log: Log) -> Faults:
    """The faults of `embedlog_log`: `with embedlog_faults.append_fails("orders"): …`."""
    from embedlog.testing.log_faults import faults

    return faults(embedlog_log)


def pytest_assertrepr_compare(op: str, left: object, right: object) -> list[str] | None:
    """The difference of two lists of which one begins with a record, for
    `assert embedlog_records("orders") == […]`.
    """
    rows = sys.modules.get("embedlog._native._rows")
    if rows is None or op != "==" or not (isinstance(left, list) and isinstance(right, list)):
        return None
    if not any(isinstance(item, rows.Record) for item in (*left[:1], *right[:1])):
        return None
    from embedlog.testing.comparison import compare_lists

    return compare_lists(left, right)
