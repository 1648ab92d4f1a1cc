"""A scan is of one topic: after a deletion and a creation under the same name it reads nothing, and
raises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog import Log, Scan, UnknownTopicOrPartitionError
from embedlog.engine.engine import Engine
from embedlog.topic import Topic


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with embedlog.open(tmp_path / "log", config={"housekeeping": False}) as opened:
        opened.create_topic("t", partitions=2)
        send(opened, 5)
        yield opened


def send(log: Log, count: int) -> None:
    with log.producer() as producer:
        for number in (0, 1):
            producer.send_batch("t", [b"%d" % n for n in range(count)], partition=number)


def recreate(log: Log, partitions: int = 2) -> None:
    log.delete_topic("t")
    log.create_topic("t", partitions=partitions)


READINGS: dict[str, Callable[[Scan], object]] = {
    "records": lambda scan: list(scan.records()),
    "batches": lambda scan: list(scan.batches()),
    "head": lambda scan: scan.head(1),
    "num_rows": lambda scan: scan.num_rows,
    "to_arrow": lambda scan: scan.to_arrow(),
    "splits": lambda scan: scan.splits(),
    "search": lambda scan: list(scan.search(b"1")),
    "count": lambda scan: scan.search(b"1").count(),
    "narrowed by time": lambda scan: scan.narrowed(start_time=1),
    "part": lambda scan: list(scan.narrowed(partitions=1, start_offset=2).records()),
}


@pytest.mark.parametrize("records", [0, 50])
@pytest.mark.parametrize("reading", READINGS)
def test_a_reading_of_a_recreated_topic_raises(log: Log, reading: str, records: int) -> None:
    scan = log.scan("t")
    READINGS[reading](scan)
    recreate(log)
    if records:
        send(log, records)
    with pytest.raises(
        UnknownTopicOrPartitionError, match="topic t was deleted, and created again with another id"
    ) as raised:
        READINGS[reading](scan)
    assert raised.value.expected == scan.topic_id
    assert raised.value.found == log.scan("t").topic_id


def test_a_new_topic_with_fewer_partitions_is_reported_as_a_new_topic(log: Log) -> None:
    scan = log.scan("t")
    recreate(log, 1)
    with pytest.raises(UnknownTopicOrPartitionError, match="created again"):
        scan.head()


def test_a_deleted_topic_raises_as_before(log: Log) -> None:
    scan = log.scan("t")
    log.delete_topic("t")
    with pytest.raises(UnknownTopicOrPartitionError):
        scan.head()


def test_a_topic_that_is_created_again_between_two_lookups(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread may replace the open partitions after the lookup of the topic."""
    scan = log.scan("t")
    lookup = Engine.topic

    def stale(engine: Engine, name: str) -> Topic:
        found = lookup(engine, name)
        monkeypatch.setattr(Engine, "topic", lookup)
        recreate(log)
        send(log, 1)
        log.scan("t")  # opens the partitions of the new topic
        return found

    monkeypatch.setattr(Engine, "topic", stale)
    with pytest.raises(UnknownTopicOrPartitionError, match="created again"):
        scan.head()


def test_polars(log: Log) -> None:
    polars = pytest.importorskip("polars")
    import embedlog.polars

    frame = embedlog.polars.scan(log, "t")
    assert frame.collect().height == 10
    recreate(log)
    send(log, 50)
    with pytest.raises(
        (UnknownTopicOrPartitionError, polars.exceptions.ComputeError), match="created again"
    ):
        frame.collect()


def test_duckdb(log: Log) -> None:
    pytest.importorskip("duckdb")
    import embedlog.duckdb

    connection: Any = embedlog.duckdb.register(log)
    assert connection.sql("select count(*) from t").fetchall() == [(10,)]
    recreate(log)
    send(log, 50)
    with pytest.raises(Exception, match="created again"):
        connection.sql("select count(*) from t").fetchall()
