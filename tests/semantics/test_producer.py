"""A producer's behaviour, row by row of Kafka's documentation: its options, one record's states,
the failures of a call.

Rows that need a server are listed with their reasons in docs/differences.md.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import pytest

import embedlog
from embedlog import ProducerRecord, RecordMetadata
from embedlog.errors import (
    BufferExhaustedError,
    ClosedError,
    ConfigError,
    DeadlineError,
    InvalidRecordError,
    InvalidTopicError,
    RecordTooLargeError,
    SerializationError,
    UnknownTopicOrPartitionError,
)
from tests.support.producer_helpers import LONG_MS, Stuck, batches, counts, records, values
from tests.support.producer_helpers import log as log
from tests.support.producer_helpers import producer as producer
from tests.support.producer_helpers import stuck as stuck

# ---- options ------------------------------------------------------------------------------------


def test_acks_0_is_done_in_the_call_and_knows_no_offset(log: embedlog.Log, stuck: Stuck) -> None:
    with log.producer(acks=0, linger_ms=0) as producer:
        done = producer.send("one", b"v")
        assert done.done()
        assert done.result(0).offset == -1
        stuck.go.set()


@pytest.mark.parametrize("acks", [1, "all", -1, "-1"])
def test_acks_1_and_all_are_done_when_it_is_written(
    log: embedlog.Log, stuck: Stuck, acks: Any
) -> None:
    with log.producer(acks=acks, linger_ms=0) as producer:
        future = producer.send("one", b"v")
        assert stuck.reached.wait(10)
        assert not future.done()
        stuck.go.set()
        assert future.result(10).offset == 0


@pytest.mark.parametrize(
    "conflict", [{"acks": 1}, {"retries": 0}, {"max_in_flight_requests_per_connection": 6}], ids=str
)
def test_idempotence_gives_way_with_a_line_in_the_log_or_is_an_error_if_it_was_asked_for(
    log: embedlog.Log, conflict: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.INFO, "embedlog.producer"),
        log.producer(client_id="p", **conflict),
    ):
        assert "p is not idempotent" in caplog.text
        assert ("will be an error" in caplog.text) is (
            "max_in_flight_requests_per_connection" in conflict
        )
    with pytest.raises(ConfigError, match="because of idempotence"):
        log.producer(enable_idempotence=True, **conflict)


def test_a_transactional_id_implies_idempotence_and_is_not_empty(log: embedlog.Log) -> None:
    with pytest.raises(
        ConfigError, match=r"enable\.idempotence: expected true, because transactional\.id is set"
    ):
        log.producer(transactional_id="x", enable_idempotence=False)
    with pytest.raises(ConfigError, match=r"transactional\.id: expected a text that is not empty"):
        log.producer(transactional_id="")


def test_batch_size_is_where_a_batch_ends_and_a_larger_record_goes_alone(log: embedlog.Log) -> None:
    with log.producer(
        batch_size=1000, linger_ms=LONG_MS, delivery_timeout_ms=10 * LONG_MS
    ) as producer:
        for size in [100] * 20 + [3000] + [100] * 5:
            producer.send("one", b"x" * size)
    assert all(size <= 1000 for size in batches(log)["size"] if size < 3000)
    assert counts(log) == [8, 8, 4, 1, 5]


def test_batch_size_0_gives_every_record_its_own_batch(log: embedlog.Log) -> None:
    with log.producer(
        batch_size=0, linger_ms=LONG_MS, delivery_timeout_ms=10 * LONG_MS
    ) as producer:
        for _ in range(5):
            producer.send("one", b"v")
    assert counts(log) == [1] * 5


def test_linger_ms_holds_a_batch_that_is_not_full_and_never_a_full_one(log: embedlog.Log) -> None:
    with log.producer(
        batch_size=1000, linger_ms=LONG_MS, delivery_timeout_ms=10 * LONG_MS
    ) as producer:
        futures = [producer.send("one", b"x" * 100) for _ in range(10)]
        full = threading.Event()
        futures[7].add_done_callback(lambda future: full.set())
        assert full.wait(10)
        assert [future.done() for future in futures] == [True] * 8 + [False] * 2


def test_buffer_memory_makes_send_wait_for_max_block_ms_and_fail(
    log: embedlog.Log, stuck: Stuck
) -> None:
    with log.producer(buffer_memory=1000, max_block_ms=100, linger_ms=0) as producer:
        futures = [producer.send("one", b"x" * 400) for _ in range(2)]
        began = time.monotonic()
        refused = producer.send("one", b"x" * 400)
        assert 0.1 <= time.monotonic() - began < 5
        assert isinstance(refused.exception(0), BufferExhaustedError)
        assert isinstance(refused.exception(0), TimeoutError)
        stuck.go.set()
        assert [future.result(10).offset for future in futures] == [0, 1]


@pytest.mark.parametrize("name", ["max_request_size", "buffer_memory"])
def test_the_size_check_is_of_an_upper_bound_before_compression(
    log: embedlog.Log, name: str
) -> None:
    """61 for the batch, 21 for the record, key, value, and for the headers their bytes and
    lengths.
    """
    bound = 61 + 21 + 3 + 500
    with log.producer(**{name: bound + 5}, compression_type="zstd") as producer:
        assert producer.send("one", b"x" * 500, b"key").exception(10) is None
        too_large_error = producer.send("one", b"x" * 506, b"key").exception(0)
        assert isinstance(too_large_error, RecordTooLargeError)
        assert name.replace("_", ".") in str(too_large_error)
        assert isinstance(
            producer.send("one", b"x" * 490, b"key", headers=(("h" * 20, b""),)).exception(0),
            RecordTooLargeError,
        )


def test_delivery_timeout_ms_counts_from_the_batchs_beginning(
    log: embedlog.Log, stuck: Stuck
) -> None:
    with log.producer(linger_ms=0, request_timeout_ms=500, delivery_timeout_ms=500) as producer:
        first = producer.send("one", b"v")  # a busy machine has this time until its append begins
        assert stuck.reached.wait(10)
        second = producer.send("one", b"w")
        threading.Event().wait(0.6)
        stuck.go.set()
        assert first.exception(10) is None or isinstance(first.exception(10), TimeoutError)
        assert isinstance(second.exception(10), DeadlineError)
        assert "delivery.timeout.ms" in str(second.exception(0))


def test_delivery_timeout_ms_is_at_least_linger_and_request_timeout(
    log: embedlog.Log, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(
        ConfigError,
        match=r"delivery\.timeout\.ms: expected at least linger\.ms \+ request\.timeout\.ms "
        r"\(1010\)",
    ):
        log.producer(delivery_timeout_ms=1000, linger_ms=10, request_timeout_ms=1000)
    with log.producer(linger_ms=200_000):
        assert "delivery.timeout.ms is raised" in caplog.text


@pytest.mark.parametrize(
    ("codec", "levels"), [("gzip", (1, 9)), ("zstd", (-100, 19)), ("lz4", (1, 17))]
)
def test_compression_level_is_the_codecs(
    log: embedlog.Log, codec: str, levels: tuple[int, int]
) -> None:
    lines = [
        b"%d: the quick brown fox %d jumps over the lazy dog" % (n, n * n % 977)
        for n in range(3000)
    ]
    sizes = []
    for number, level in enumerate(levels):
        with log.producer(
            compression_type=codec, **{f"compression_{codec}_level": level}
        ) as producer:
            producer.send_batch("t", lines, partition=number).result(10)
        sizes.append(int(batches(log, "t", number)["size"].sum()))
    assert sizes[1] < sizes[0] < sum(map(len, lines))


def test_client_id_is_made_up_after_the_transactional_id_or_counted(log: embedlog.Log) -> None:
    with log.producer() as first, log.producer() as second:
        numbers = [int(repr(each).rpartition("-")[2].rstrip(">")) for each in (first, second)]
        assert numbers[1] == numbers[0] + 1


@pytest.mark.parametrize(
    ("name", "bad", "good"),
    [
        ("acks", 2, 1),
        ("batch.size", -1, 0),
        ("linger.ms", -1, 0),
        ("buffer.memory", -1, 0),
        ("max.block.ms", -1, 0),
        ("max.request.size", 2**31, 0),
        ("delivery.timeout.ms", 2**31, 2**31 - 1),
        ("request.timeout.ms", -1, 0),
        ("retries", -1, 1),
        ("retry.backoff.ms", -1, 0),
        ("retry.backoff.max.ms", -1, 0),
        ("max.in.flight.requests.per.connection", 0, 1),
        ("compression.type", "brotli", "lz4"),
        ("compression.gzip.level", 10, -1),
        ("compression.lz4.level", 0, 17),
        ("compression.zstd.level", 23, -131072),
        ("transaction.timeout.ms", 0, 1),
        ("partitioner.availability.timeout.ms", -1, 0),
        ("linger.ms", "soon", "5"),
        ("partitioner.ignore.keys", "perhaps", "true"),
        ("key.serializer", 5, str),
        ("partitioner", 5, min),
    ],
)
def test_an_option_out_of_its_range_is_named_with_the_range(
    log: embedlog.Log, name: str, bad: Any, good: Any
) -> None:
    with pytest.raises(ConfigError) as caught:
        log.producer(**{name: bad})
    assert str(caught.value).startswith(f"{name}: expected ")
    assert repr(bad) in str(caught.value) or str(bad) in str(caught.value)
    log.producer(**{name: good}).close()


# ---- the life of one record ---------------------------------------------------------------------


def test_the_order_is_intercept_serialize_key_then_value_then_partition(log: embedlog.Log) -> None:
    order: list[str] = []

    def noting(what: str, answer: Any) -> Any:
        return lambda *arguments: (order.append(what), answer)[1]

    class Intercepting:
        def on_send(self, given: ProducerRecord) -> ProducerRecord:
            order.append("intercept")
            return given

    config = {
        "key_serializer": noting("key", b"k"),
        "value_serializer": noting("value", b"v"),
        "partitioner": noting("partition", 2),
    }
    with log.producer(interceptor_classes=[Intercepting()], **config) as producer:
        assert producer.send("t", 1, 2).result(10).partition == 2
    assert order == ["intercept", "key", "value", "partition"]


def test_an_unknown_topic_comes_before_the_serializers(log: embedlog.Log) -> None:
    with log.producer(value_serializer=lambda value: 1 // 0) as producer:
        assert isinstance(producer.send("unknown", b"v").exception(0), UnknownTopicOrPartitionError)
        assert isinstance(producer.send("no such name!", b"v").exception(0), InvalidTopicError)


def test_headers_are_what_they_were_in_the_call(
    log: embedlog.Log, producer: embedlog.Producer
) -> None:
    headers: list[tuple[str, bytes | None]] = [("a", b"1"), ("a", None)]
    future = producer.send("one", b"v", headers=headers)
    headers.append(("later", b""))
    future.result(10)
    assert records(log)[0].headers == (("a", b"1"), ("a", None))


def test_the_time_is_the_records_else_now(producer: embedlog.Producer) -> None:
    before = int(time.time() * 1000)
    assert before <= producer.send("one", b"v").result(10).timestamp_ms <= int(time.time() * 1000)
    assert producer.send("one", b"v", timestamp_ms=0).result(10).timestamp_ms == 0


def test_a_null_value_is_a_tombstone_and_a_null_key_is_refused_by_compacted_topics(
    log: embedlog.Log,
) -> None:
    log.create_topic("compacted", config={"cleanup.policy": "compact"})
    with log.producer() as producer:
        producer.send("compacted", None, b"k").result(10)
        assert isinstance(producer.send("compacted", b"v").exception(0), InvalidRecordError)
    assert [(each.key, each.value) for each in records(log, "compacted")] == [(b"k", None)]


# ---- failures of the call -----------------------------------------------------------------------


def test_what_is_wrong_with_the_record_fails_the_future_and_calls_back_at_once_in_the_callers_thread(
    log: embedlog.Log, producer: embedlog.Producer
) -> None:
    called: list[Any] = []
    refused = producer.send("one", b"x" * (2 << 20))
    refused.add_done_callback(
        lambda future: called.append((threading.current_thread(), future.done()))
    )
    assert called == [(threading.current_thread(), True)]
    with pytest.raises(RecordTooLargeError):
        refused.result(0)


def test_a_serializer_that_fails_raises_and_interceptors_hear_of_it(log: embedlog.Log) -> None:
    heard: list[Any] = []

    class Listening:
        def on_acknowledgement(self, metadata: RecordMetadata, error: BaseException | None) -> None:
            heard.append((metadata.topic, metadata.offset, type(error)))

    made = log.producer(
        interceptor_classes=[Listening], value_serializer=lambda value: value.missing
    )
    with made as producer, pytest.raises(SerializationError):
        producer.send("one", b"v")
    assert heard == [("one", -1, SerializationError)]


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (
            ("one", "text"),
            TypeError,
            "give the producer a value_serializer such as embedlog.serializers.string",
        ),
        (("one", {"a": 1}), TypeError, "a value_serializer such as embedlog.serializers.json"),
        (("one", b"v", 5), TypeError, "a key_serializer such as embedlog.serializers.json"),
        ((b"one", b"v"), TypeError, "a topic is a str, not bytes"),
        ((None, b"v"), TypeError, "a topic is a str"),
        (("t", b"v", None, -1), UnknownTopicOrPartitionError, "not negative"),
        (("t", b"v", None, "1"), TypeError, "partition is an int or None, not str"),
        (("t", b"v", None, None, -5), embedlog.InvalidTimestampError, "not negative"),
        (("t", b"v", None, None, None, {"h": b""}), TypeError, "pairs of"),
        (("t", b"v", None, None, None, [("h", "text")]), TypeError, "header"),
    ],
    ids=str,
)
def test_what_is_wrong_with_the_call_raises(
    log: embedlog.Log,
    producer: embedlog.Producer,
    arguments: tuple[Any, ...],
    error: type[Exception],
    text: str,
) -> None:
    names = ("topic", "value", "key", "partition", "timestamp_ms", "headers")
    with pytest.raises(error, match=text.replace(".", r"\.")):
        producer.send(**dict(zip(names, arguments, strict=False)))
    assert values(log) == values(log, "t") == []


def test_send_after_close_raises_and_interceptors_have_seen_the_record(log: embedlog.Log) -> None:
    seen: list[Any] = []

    class Seeing:
        def on_send(self, given: ProducerRecord) -> ProducerRecord:
            seen.append(given.value)
            return given

    producer = log.producer(interceptor_classes=[Seeing()])
    producer.close()
    with pytest.raises(ClosedError):
        producer.send("one", b"v")
    assert seen == [b"v"]
