"""Appends of a run: `acks=all` with a `min.insync.replicas` of more than one directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog.errors import NotEnoughReplicasError
from tests.faults.harness.processes import until
from tests.support.transactional_producers import QUIET

TWO = {"min.insync.replicas": 2}


@pytest.fixture
def log(path: Path) -> Iterator[embedlog.Log]:
    """With a topic that one directory cannot satisfy, and one that it can."""
    with embedlog.open(path, config=QUIET) as opened:
        opened.create_topic("two", partitions=2, config=TWO)
        opened.create_topic("one")
        yield opened


def end(log: embedlog.Log, topic: str = "two") -> int:
    return sum(part.log_end_offset for part in log.describe_topic(topic).partitions)


@pytest.mark.parametrize(
    "options",
    [{}, {"enable_idempotence": False}, {"compression_type": "zstd"}, {"retries": 0}],
    ids=str,
)
def test_too_few_directories_in_sync_refuse_a_record(
    log: embedlog.Log, options: dict[str, Any]
) -> None:
    with log.producer(**options) as producer:
        for future in (
            producer.send("two", b"x", partition=0),
            producer.send_batch("two", [b"x"] * 3),
        ):
            error = future.exception(30)
            assert isinstance(error, NotEnoughReplicasError)
            assert "min.insync.replicas" in str(error)
            assert "alter_topic" in str(error)
            assert (error.found, error.retriable) == (1, False)
        assert producer.send("one", b"x").result(30).offset == 0
    assert end(log) == 0


@pytest.mark.parametrize("acks", [0, 1])
def test_who_asks_for_less_than_all_is_let_in(log: embedlog.Log, acks: int) -> None:
    with log.producer(acks=acks) as producer:
        producer.send("two", b"x").result(30)
    assert end(log) == 1


def test_the_setting_holds_from_one_record_to_the_next(
    log: embedlog.Log, other: embedlog.Log
) -> None:
    """Also where a sender writes past the producer's thread; a change by another process is noticed
    a little later.
    """
    with log.producer() as producer:

        def refused() -> bool:
            return isinstance(
                producer.send("two", b"x", partition=0).exception(30), NotEnoughReplicasError
            )

        for _ in range(3):
            log.alter_topic("two", {"min.insync.replicas": 1})
            assert not any(refused() for _ in range(5))
            log.alter_topic("two", TWO)
            assert refused()
        log.alter_topic("two", {"min.insync.replicas": 1})
        assert not any(refused() for _ in range(5))
        other.alter_topic("two", TWO)
        until(refused, "the change by another process")


def test_a_transaction_is_refused_in_each_partition_and_can_be_aborted(log: embedlog.Log) -> None:
    with log.producer(transactional_id="t", linger_ms=50) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        futures = [producer.send("two", b"x", partition=number) for number in range(2)]
        for future in futures:
            assert isinstance(future.exception(30), NotEnoughReplicasError)
        producer.abort_transaction()
        producer.begin_transaction()
        producer.send("one", b"x").result(30)
        producer.commit_transaction()
    assert end(log) == 0
    assert [record.value for record in log.scan("one").records()] == [b"x"]


def test_a_transaction_that_was_let_in_ends_behind_a_raise_of_the_setting(
    log: embedlog.Log,
) -> None:
    with log.producer(transactional_id="t") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("one", b"x").result(30)
        log.alter_topic("one", TWO)
        producer.commit_transaction()
    assert [
        record.value for record in log.scan("one", isolation_level="read_committed").records()
    ] == [b"x"]


def test_what_the_log_itself_writes_is_not_refused(path: Path) -> None:
    """As the default of all topics, it would else stop groups and transactions."""
    with embedlog.open(path, config=TWO | QUIET) as log:
        log.create_topic("two")
        with log.producer(acks=1) as producer:
            producer.send("two", b"x").result(30)
        with log.consumer("two", group_id="g", auto_offset_reset="earliest") as consumer:
            assert [record.value for record in consumer.poll(30)] == [b"x"]
            consumer.commit()
        with log.producer(transactional_id="t") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            assert isinstance(producer.send("two", b"y").exception(30), NotEnoughReplicasError)
            producer.abort_transaction()
