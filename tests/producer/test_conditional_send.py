"""Sends with an expected offset: one of all writers wins, the others learn the log end, and a
repeat is no conflict.
"""

from __future__ import annotations

import asyncio
import errno
import pickle
from typing import Any

import pytest

import embedlog
from embedlog import OffsetMismatchError
from embedlog.errors import (
    ConfigError,
    InvalidRecordError,
    InvalidTransactionStateError,
    LockTimeoutError,
    OffsetOutOfRangeError,
    RecordTooLargeError,
    StorageError,
    TransactionAbortedError,
)
from tests.support import producer_helpers
from tests.support.failing_appends import failing
from tests.support.mutants import mutated
from tests.support.producer_helpers import values

log = producer_helpers.log
producer = producer_helpers.producer

SHARED = 40  # increments of each writer


def mismatch(future: embedlog.Future[Any]) -> tuple[Any, ...]:
    with pytest.raises(OffsetMismatchError, match="nothing was written") as caught:
        future.result(10)
    error = caught.value
    return error.topic, error.partition, error.expected, error.actual


def test_a_record_is_appended_at_the_expected_offset_only(
    log: embedlog.Log, producer: embedlog.Producer
) -> None:
    place = producer.send(
        "one", b"a", b"k", [("h", b"1")], timestamp_ms=1_700_000_000_000, expected_offset=0
    ).result(10)
    assert (place.topic, place.partition, place.offset, place.timestamp_ms) == (
        "one",
        0,
        0,
        1_700_000_000_000,
    )
    assert mismatch(producer.send("one", b"b", expected_offset=0)) == ("one", 0, 0, 1)
    assert mismatch(producer.send("one", b"b", expected_offset=2)) == ("one", 0, 2, 1)
    assert producer.send("one", b"b", expected_offset=1).result(10).offset == 1
    first, _ = log.scan("one").records()
    assert (first.value, first.key, first.headers, first.timestamp_ms) == (
        b"a",
        b"k",
        (("h", b"1"),),
        1_700_000_000_000,
    )
    assert values(log) == [b"a", b"b"]


def test_records_before_and_after_it_keep_their_order(log: embedlog.Log) -> None:
    with log.producer(linger_ms=60_000) as producer:
        before = [producer.send("one", b"%d" % number) for number in range(3)]
        condition = producer.send("one", b"3", expected_offset=3)
        after = [producer.send("one", b"%d" % number) for number in range(4, 6)]
        assert condition.result(10).offset == 3
        producer.flush(10)
        assert [future.result(10).offset for future in before + after] == [0, 1, 2, 4, 5]
    assert values(log) == [b"%d" % number for number in range(6)]


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_many_records_are_one_batch_or_none(log: embedlog.Log, codec: str) -> None:
    with log.producer(compression_type=codec) as producer:
        rows = [b"%d" % number for number in range(100)]
        assert producer.send_batch("one", rows, expected_offset=0).result(10) == [
            ("one", 0, 0, 100)
        ]
        assert mismatch(producer.send_batch("one", [b"x"] * 50, expected_offset=50)) == (
            "one",
            0,
            50,
            100,
        )
        assert producer.send_batch(
            "one", [b"x"], [b"k"], headers=[[("h", None)]], expected_offset=100
        ).result(10)
    assert values(log) == [*rows, b"x"]


def test_a_batch_that_would_be_several_is_refused(
    log: embedlog.Log, producer: embedlog.Producer
) -> None:
    log.alter_topic("one", max_message_bytes=10_000)
    for rows in ([b"x" * 200] * 100, [b"x" * 9_990] * 2, [b"x" * 20_000]):
        assert isinstance(
            producer.send_batch("one", rows, expected_offset=0).exception(10), RecordTooLargeError
        )
    assert producer.send_batch("one", [b"x" * 200] * 10, expected_offset=0).result(10) == [
        ("one", 0, 0, 10)
    ]


def test_the_partition_must_be_certain(log: embedlog.Log, producer: embedlog.Producer) -> None:
    with pytest.raises(TypeError, match="partition"):
        producer.send("t", b"v", expected_offset=0)
    assert producer.send("t", b"v", partition=2, expected_offset=0).result(10).partition == 2
    place = producer.send("t", b"v", b"key", expected_offset=0).result(10)
    assert place.partition == producer.send("t", b"v", b"key").result(10).partition
    keys = [b"%d" % number for number in range(20)]
    assert isinstance(
        producer.send_batch("t", keys, keys, expected_offset=0).exception(10), InvalidRecordError
    )
    with log.producer(partitioner=lambda key, every, here: 3) as chosen:
        assert chosen.send("t", b"v", expected_offset=0).result(10).partition == 3


def test_a_wrong_call_raises_and_writes_nothing(
    log: embedlog.Log, producer: embedlog.Producer
) -> None:
    with pytest.raises(TypeError, match="expected_offset"):
        producer.send("one", b"v", expected_offset="0")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected_offset"):
        producer.send("one", b"v", expected_offset=True)
    with pytest.raises(OffsetOutOfRangeError):
        producer.send("one", b"v", expected_offset=-1)
    with pytest.raises(TypeError, match="one record"):
        producer.send_batch("one", [], expected_offset=0)
    with pytest.raises(TypeError, match="value_serializer"):
        producer.send("one", "text", expected_offset=0)  # type: ignore[arg-type]
    with log.producer(acks=1) as other, pytest.raises(ConfigError, match=r"enable\.idempotence"):
        other.send("one", b"v", expected_offset=0)
    assert producer.send("none", b"v", expected_offset=0).exception(10) is not None
    assert values(log) == []


def test_an_error_can_be_pickled_and_is_reported_by_flush(log: embedlog.Log) -> None:
    with log.producer() as producer:
        producer.send_batch("one", [b"a", b"b"], expected_offset=7)
        with pytest.raises(embedlog.DeliveryError, match="2 records not written") as caught:
            producer.flush(10)
    error = pickle.loads(pickle.dumps(caught.value.errors[0][2]))
    assert (type(error), error.expected, error.actual) == (OffsetMismatchError, 7, 0)


class Uppercase:
    """A serializer that adds a header."""

    def serialize(self, topic: str, headers: list[Any], data: str) -> bytes:
        headers.append(("from", b"serializer"))
        return data.upper().encode()


def test_serializers_and_interceptors_see_each_record(log: embedlog.Log) -> None:
    class Noting:
        def on_send(self, record: embedlog.ProducerRecord) -> embedlog.ProducerRecord:
            return record._replace(value=f"{record.value}!")

        def on_acknowledgement(
            self, metadata: embedlog.RecordMetadata, error: BaseException | None
        ) -> None:
            story.append((metadata.offset, type(error)))

    story: list[Any] = []
    with log.producer(value_serializer=Uppercase(), interceptor_classes=[Noting()]) as producer:
        assert producer.send_batch("one", ["a", "b"], expected_offset=0).result(10) == [
            ("one", 0, 0, 2)
        ]
        mismatch(producer.send("one", "c", expected_offset=0))
        producer.flush(10)
    assert story == [(0, type(None)), (1, type(None)), (-1, OffsetMismatchError)]
    assert [(record.value, record.headers) for record in log.scan("one").records()] == [
        (b"A!", (("from", b"serializer"),)),
        (b"B!", (("from", b"serializer"),)),
    ]


def test_a_mismatch_leaves_the_sequences_and_the_epoch_as_they_were(
    log: embedlog.Log, producer: embedlog.Producer
) -> None:
    for number in range(3):
        producer.send("one", b"v", expected_offset=number).result(10)
        mismatch(producer.send("one", b"v", expected_offset=0))
    (queue,) = producer._delivery.topic_targets["one"].route.queues  # type: ignore[union-attr]
    assert (queue.producer_epoch, queue.next_sequence) == (0, 3)


@pytest.mark.parametrize("mutants", [(), ("no_duplicate_check",)])
def test_an_acknowledgement_that_was_lost_is_no_conflict(
    log: embedlog.Log, monkeypatch: pytest.MonkeyPatch, mutants: tuple[str, ...]
) -> None:
    """The record is in the log, so its own repeat finds the log end moved."""
    lost = [LockTimeoutError("the answer is lost"), StorageError("again", errno=errno.EIO)]
    failing_conditionally(monkeypatch, log, lost)
    with log.producer(retry_backoff_ms=1, retries=3) as producer:
        with mutated(*mutants):
            error = producer.send("one", b"a", expected_offset=0).exception(10)
        assert (error is not None) == bool(mutants), f"{mutants} survived"
        if not mutants:
            assert producer.send("one", b"b", expected_offset=1).result(10).offset == 1
            assert values(log) == [b"a", b"b"]


def failing_conditionally(
    monkeypatch: pytest.MonkeyPatch, log: embedlog.Log, problems: list[Exception]
) -> None:
    """As `failing` after the write, with the expected offset."""
    kind = type(log._engine.partition("one", 0))
    real: Any = kind.append

    def append(self: Any, run: Any, **facts: Any) -> Any:
        answer = real(self, run, **facts)
        if problems:
            # as if the answer had never come
            facts["progress"].__init__(run, facts["progress"].expected_offset)
            raise problems.pop(0)
        return answer

    monkeypatch.setattr(kind, "append", append)


def test_an_error_before_the_write_is_repeated_with_the_same_condition(
    log: embedlog.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    with log.producer() as producer, log.producer(retry_backoff_ms=1) as other:
        failing(monkeypatch, log, [LockTimeoutError("held")])
        assert producer.send("one", b"a", expected_offset=0).result(10).offset == 0
        failing(monkeypatch, log, [LockTimeoutError("held")])
        assert mismatch(other.send("one", b"b", expected_offset=0)) == ("one", 0, 0, 1)


# ---- several writers -----------------------------------------------------------------------------------


def increments(
    log: embedlog.Log, producer: embedlog.Producer, count: int, topic: str = "one"
) -> int:
    """Append the number after the last one, `count` times; returns the number of conflicts."""
    conflicts = 0
    for _ in range(count):
        while True:
            last = log.last_record(topic, 0)
            number, end = (0, 0) if last is None else (int(last.value), last.offset + 1)
            try:
                producer.send(topic, b"%d" % (number + 1), expected_offset=end).result(10)
                break
            except OffsetMismatchError:
                conflicts += 1
    return conflicts


@pytest.mark.parametrize("mutants", [(), ("ignore_expected_offset",)])
def test_two_writers_count_together(log: embedlog.Log, mutants: tuple[str, ...]) -> None:
    """Their steps alternate, so that each one meets the other's record; without the rule numbers
    repeat.
    """
    with (
        embedlog.open(log.path, config={"housekeeping": False}) as other,
        other.producer() as second,
        log.producer() as first,
        mutated(*mutants),
    ):
        for _ in range(SHARED):
            last = log.last_record("one", 0)
            number, end = (0, 0) if last is None else (int(last.value), last.offset + 1)
            futures = [
                each.send("one", b"%d" % (number + 1), expected_offset=end)
                for each in (first, second)
            ]
            refused = [future.exception(10) for future in futures]
            if not mutants:
                assert sorted(type(each).__name__ for each in refused) == [
                    "NoneType",
                    "OffsetMismatchError",
                ]
        increments(other, second, 3)
        increments(log, first, 3)
    counted = [int(value) for value in values(log)]
    assert (counted == list(range(1, SHARED + 7))) != bool(mutants)


def test_asyncio_producers_wait_for_the_same_condition(log: embedlog.Log) -> None:
    async def main() -> None:
        async with log.async_producer() as producer:
            assert (await producer.send_and_wait("one", b"a", expected_offset=0)).offset == 0
            futures = [await producer.send("one", b"b", expected_offset=1) for _ in range(3)]
            found = await asyncio.gather(*futures, return_exceptions=True)
            assert sorted(type(each).__name__ for each in found) == ["OffsetMismatchError"] * 2 + [
                "RecordMetadata"
            ]
            future = await producer.send_batch("one", [b"c", b"d"], expected_offset=2)
            assert await future == [("one", 0, 2, 2)]

    asyncio.run(main())
    assert values(log) == [b"a", b"b", b"c", b"d"]


# ---- transactions ---------------------------------------------------------------------------------------


def test_the_error_of_the_condition_leaves_the_block_also_if_a_later_send_is_refused(
    log: embedlog.Log,
) -> None:
    """Whether the thread of the producer or the next send comes first is a race."""
    with log.producer(transactional_id="x") as producer:
        producer.init_transactions()
        with pytest.raises(OffsetMismatchError) as caught, producer.transaction():
            with pytest.raises(OffsetMismatchError):
                producer.send("one", b"d", expected_offset=1).result(10)
            producer.send("t", b"c", partition=1)
        assert caught.value.actual == 0
        with pytest.raises(InvalidTransactionStateError), producer.transaction():
            producer.begin_transaction()
        with producer.transaction():
            producer.send("t", b"c", partition=1)
    assert [
        record.value for record in log.scan("t", isolation_level="read_committed").records()
    ] == [b"c"]


def test_in_a_transaction_all_conditions_hold_or_nothing_is_visible(log: embedlog.Log) -> None:
    def committed(topic: str) -> list[bytes]:
        return [
            record.value for record in log.scan(topic, isolation_level="read_committed").records()
        ]

    with log.producer(transactional_id="x") as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send("one", b"a", expected_offset=0)
            producer.send("t", b"b", partition=1, expected_offset=0)
        assert committed("one") + committed("t") == [b"a", b"b"]
        with pytest.raises(OffsetMismatchError) as caught, producer.transaction():
            producer.send("t", b"c", partition=1, expected_offset=2)  # after the marker
            producer.send("one", b"d", expected_offset=1)  # the marker has it
        assert (caught.value.topic, caught.value.actual) == ("one", 2)
        assert committed("one") + committed("t") == [b"a", b"b"]
        with producer.transaction():
            # after the marker of the abort
            producer.send("one", b"d", expected_offset=3).result(10)
            assert producer.send("one", b"e", expected_offset=4).result(10).offset == 4
        producer.begin_transaction()
        aborted = producer.send("one", b"f", expected_offset=6)
        producer.abort_transaction()
        assert aborted.exception(10) is None or isinstance(
            aborted.exception(10), TransactionAbortedError
        )
    assert committed("one") == [b"a", b"d", b"e"]
