"""The producer over a real log: its records, raised errors, failed futures, and changes of topics
meanwhile.
"""

from __future__ import annotations

import asyncio
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog import RecordMetadata, partitioners, serializers
from embedlog.errors import (
    ConfigError,
    InvalidRecordError,
    InvalidTimestampError,
    InvalidTopicError,
    LockTimeoutError,
    ReadOnlyError,
    RecordTooLargeError,
    SerializationError,
    UnknownTopicOrPartitionError,
)
from tests.support import producer_helpers
from tests.support.producer_helpers import LONG_MS, records, values

log = producer_helpers.log
producer = producer_helpers.producer
stuck = producer_helpers.stuck


# ---- one record ---------------------------------------------------------------------------------


def test_a_record_comes_back_as_it_was_sent(log: embedlog.Log, producer: embedlog.Producer) -> None:
    future = producer.send(
        "t", b"value", b"key", partition=2, timestamp_ms=1234, headers=[("a", b"1"), ("ü", None)]
    )
    assert future.result(10) == RecordMetadata("t", 2, 0, 1234)
    (record,) = records(log, "t")
    assert (
        record.topic,
        record.partition,
        record.offset,
        record.timestamp_ms,
        record.timestamp_type,
    ) == ("t", 2, 0, 1234, 0)
    assert (record.key, record.value, record.headers) == (
        b"key",
        b"value",
        (("a", b"1"), ("ü", None)),
    )


def test_nulls_and_empties_stay_what_they_are(
    log: embedlog.Log, producer: embedlog.Producer
) -> None:
    for value, key in [(None, None), (b"", b""), (None, b""), (b"", None)]:
        producer.send("one", value, key)
    producer.flush()
    assert [(record.value, record.key) for record in records(log)] == [
        (None, None),
        (b"", b""),
        (None, b""),
        (b"", None),
    ]


def test_a_call_with_neither_value_nor_key_raises(
    log: embedlog.Log, producer: embedlog.Producer
) -> None:
    """A copy of a record may have neither: it gives both arguments."""
    for more in (
        {},
        {"partition": 0},
        {"headers": [("h", b"x")]},
        {"partition": 0, "expected_offset": 0},
    ):
        with pytest.raises(TypeError, match="neither a value nor a key"):
            producer.send("one", **more)  # type: ignore[arg-type]
    producer.send("one", key=b"k")
    producer.send("one", None, None)
    producer.flush()
    assert [(record.value, record.key) for record in records(log)] == [(None, b"k"), (None, None)]


def test_records_without_a_time_get_the_present_one(producer: embedlog.Producer) -> None:
    before = int(time.time() * 1000)
    assert (
        before <= producer.send("one", b"v").result(10).timestamp_ms <= int(time.time() * 1000) + 1
    )


def test_everything_like_bytes_is_taken(log: embedlog.Log, producer: embedlog.Producer) -> None:
    for value in (bytearray(b"a"), memoryview(b"b"), type("Sub", (bytes,), {})(b"c")):
        producer.send("one", value, value)  # type: ignore[arg-type]
    producer.flush()
    assert [(record.value, record.key) for record in records(log)] == [
        (b"a", b"a"),
        (b"b", b"b"),
        (b"c", b"c"),
    ]


def test_random_records_of_many_threads_keep_each_threads_order(
    log: embedlog.Log, rng: random.Random
) -> None:
    def send(number: int, seed: int) -> None:
        own = random.Random(seed)
        for count in range(2000):
            producer.send(
                "t", b"%d %d" % (number, count) + b"x" * own.choice([0, 10, 3000]), b"%d" % number
            )

    with log.producer(batch_size=4000, linger_ms=1) as producer:
        threads = [
            threading.Thread(target=send, args=(number, rng.getrandbits(32))) for number in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    seen: dict[bytes, list[int]] = {}
    for value in values(log, "t"):
        number, count = value.rstrip(b"x").split()
        seen.setdefault(number, []).append(int(count))
    assert seen == {b"%d" % number: list(range(2000)) for number in range(4)}


def test_keys_go_where_kafka_puts_them(log: embedlog.Log, producer: embedlog.Producer) -> None:
    keys = [b"key-%d" % number for number in range(100)]
    futures = [producer.send("t", b"v", key) for key in keys]
    assert [future.result(10).partition for future in futures] == [
        partitioners.partition_of(key, 4) for key in keys
    ]


def test_records_without_keys_spread_over_the_partitions(log: embedlog.Log) -> None:
    with log.producer(batch_size=1000) as producer:
        for _ in range(2000):
            producer.send("t", b"x" * 100)
    assert {record.partition for record in records(log, "t")} == {0, 1, 2, 3}


# ---- raised errors and failed futures -----------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"topic": 5}, TypeError, "topic"),
        ({"value": "text"}, TypeError, "value_serializer"),
        ({"key": "text"}, TypeError, "key_serializer"),
        ({"value": 5}, TypeError, "value_serializer"),
        ({"partition": "1"}, TypeError, "partition"),
        ({"partition": True}, TypeError, "partition"),
        ({"partition": -1}, UnknownTopicOrPartitionError, "negative"),
        ({"timestamp_ms": 1.5}, TypeError, "timestamp_ms"),
        ({"timestamp_ms": -1}, InvalidTimestampError, "negative"),
        ({"timestamp_ms": 2**63}, InvalidTimestampError, "64 bits"),
        ({"headers": "text"}, TypeError, "headers"),
        ({"headers": {"a": b"b"}}, TypeError, "headers"),
        ({"headers": [("a", "text")]}, TypeError, "header"),
        ({"headers": [(b"a", b"b")]}, TypeError, "header"),
    ],
    ids=repr,
)
def test_wrong_calls_raise(
    log: embedlog.Log,
    producer: embedlog.Producer,
    arguments: Any,
    error: type[Exception],
    words: str,
) -> None:
    for _ in range(2):  # the careful way, and the fast one
        with pytest.raises(error, match=words):
            producer.send(**({"topic": "one", "value": b"v"} | arguments))
        producer.send("one", b"good").result(10)
    assert values(log) == [b"good"] * 2


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"topic": "unknown"}, UnknownTopicOrPartitionError),
        ({"topic": "no/name"}, (InvalidTopicError, UnknownTopicOrPartitionError)),
        ({"partition": 1}, UnknownTopicOrPartitionError),
        ({"value": b"x" * (1 << 20)}, RecordTooLargeError),
        ({"headers": [("h", b"x" * (1 << 20))]}, RecordTooLargeError),
        ({"timestamp_ms": 2**62}, InvalidTimestampError),
    ],
    ids=lambda each: repr(each)[:40],
)
def test_what_cannot_be_written_fails_the_future_at_once(
    producer: embedlog.Producer, arguments: Any, error: Any
) -> None:
    future = producer.send(**({"topic": "one", "value": b"v"} | arguments))
    assert future.done()
    with pytest.raises(error):
        future.result()
    threads: list[threading.Thread] = []
    future.add_done_callback(lambda _: threads.append(threading.current_thread()))
    assert threads == [threading.current_thread()]


def test_a_batch_over_max_message_bytes_fails_and_nothing_is_written(log: embedlog.Log) -> None:
    log.alter_topic("one", {"max.message.bytes": 1000})
    with log.producer() as producer:
        large = producer.send("one", b"x" * 2000)
        small = producer.send("one", b"y")
        with pytest.raises(RecordTooLargeError, match=r"max\.message\.bytes"):
            large.result(10)
        assert small.result(10).offset == 0
        for _ in range(100):
            producer.send("one", b"z" * 100)  # together over the limit: cut, not refused
    assert len(values(log)) == 101


def test_a_large_record_passes_with_the_limits_raised(log: embedlog.Log) -> None:
    log.create_topic("large", config={"max.message.bytes": 4 << 20})
    with log.producer(max_request_size=4 << 20) as producer:
        producer.send("large", b"x" * (2 << 20)).result(10)
        producer.send_batch("large", [b"y" * (2 << 20)] * 2).result(10)
    assert [len(value) for value in values(log, "large")] == [2 << 20] * 3


def test_a_compacted_topic_refuses_records_without_keys(
    log: embedlog.Log, producer: embedlog.Producer
) -> None:
    log.create_topic("c", config={"cleanup.policy": "compact"})
    for _ in range(2):
        assert isinstance(producer.send("c", b"v").exception(10), InvalidRecordError)
        assert producer.send("c", b"v", b"k").exception(10) is None
    assert isinstance(producer.send_batch("c", [b"v"], [None]).exception(10), InvalidRecordError)


def test_times_outside_the_topics_window_are_refused(
    log: embedlog.Log, producer: embedlog.Producer
) -> None:
    log.create_topic(
        "w",
        config={
            "message.timestamp.before.max.ms": 10_000,
            "message.timestamp.after.max.ms": 10_000,
        },
    )
    now = int(time.time() * 1000)
    for _ in range(2):
        assert isinstance(
            producer.send("w", b"v", timestamp_ms=now - 60_000).exception(10), InvalidTimestampError
        )
        assert isinstance(
            producer.send("w", b"v", timestamp_ms=now + 60_000).exception(10), InvalidTimestampError
        )
        assert producer.send("w", b"v", timestamp_ms=now).exception(10) is None
    assert isinstance(
        producer.send_batch("w", [b"v"] * 2, timestamps_ms=[now, now - 60_000]).exception(10),
        InvalidTimestampError,
    )
    log.create_topic(
        "a",
        config={
            "message.timestamp.type": "LogAppendTime",
            "message.timestamp.before.max.ms": 10_000,
        },
    )
    assert abs(producer.send("a", b"v", timestamp_ms=5).result(10).timestamp_ms - now) < LONG_MS


@pytest.mark.parametrize("config", [{"interceptor_classes": [print]}], ids=str)
def test_what_cannot_be_used_is_refused_by_name(log: embedlog.Log, config: Any) -> None:
    with pytest.raises(ConfigError, match=next(iter(config)).replace("_", ".")):
        log.producer(**config)


def test_a_read_only_log_has_no_producer(log: embedlog.Log) -> None:
    with embedlog.open(log.path, read_only=True) as reader, pytest.raises(ReadOnlyError):
        reader.producer()


# ---- serializers and partitioners ---------------------------------------------------------------


def test_serializers_make_bytes_of_keys_and_values(log: embedlog.Log) -> None:
    with log.producer(
        key_serializer=serializers.string, value_serializer=serializers.json
    ) as producer:
        producer.send("one", {"ä": 1}, "schlüssel")  # type: ignore[arg-type]
        producer.send("one", None, None)
        producer.send_batch("one", [[1], None], ["k", None])
    found = [(record.key, record.value) for record in records(log)]
    assert found == [
        ("schlüssel".encode(), '{"ä":1}'.encode()),
        (None, None),
        (b"k", b"[1]"),
        (None, None),
    ]
    assert serializers.from_json(found[0][1]) == {"ä": 1}
    assert serializers.from_string(found[0][0]) == "schlüssel"
    assert serializers.from_json(None) is serializers.from_string(None) is None


@pytest.mark.parametrize(
    "broken",
    [lambda value: 1 / 0, lambda value: 5, serializers.string],
    ids=["raises", "no bytes", "wrong type"],
)
def test_a_failing_serializer_raises_from_send(log: embedlog.Log, broken: Any) -> None:
    with log.producer(value_serializer=broken) as producer:
        with pytest.raises(SerializationError, match="value_serializer") as caught:
            producer.send("one", 5)  # type: ignore[arg-type]
        assert caught.value.__cause__ is not None
        with pytest.raises(SerializationError):
            producer.send_batch("one", [5])
    assert values(log) == []


def test_the_users_partitioner_decides_unless_the_partition_is_given(log: embedlog.Log) -> None:
    asked: list[Any] = []

    def last(key: bytes | None, partitions: list[int], available: list[int]) -> int:
        asked.append((key, partitions, available))
        return partitions[-1]

    with log.producer(partitioner=last) as producer:
        assert producer.send("t", b"v", b"k").result(10).partition == 3
        assert producer.send("t", b"v", b"k", partition=1).result(10).partition == 1
        assert producer.send_batch("t", [b"v"] * 2, [None, b"j"]).result(10) == [("t", 3, 1, 2)]
    assert asked == [
        (b"k", [0, 1, 2, 3], [0, 1, 2, 3]),
        (None, [0, 1, 2, 3], [0, 1, 2, 3]),
        (b"j", [0, 1, 2, 3], [0, 1, 2, 3]),
    ]


def test_a_partitioner_that_answers_nonsense_is_refused(log: embedlog.Log) -> None:
    with log.producer(partitioner=lambda *_: 4) as producer:
        assert isinstance(producer.send("t", b"v").exception(10), UnknownTopicOrPartitionError)
        assert isinstance(
            producer.send_batch("t", [b"v"]).exception(10), UnknownTopicOrPartitionError
        )
    with log.producer(partitioner=lambda *_: -1) as producer:
        with pytest.raises(ConfigError, match="returns a number from 0 to 3, found -1"):
            producer.send("t", b"v")
        with pytest.raises(ConfigError, match="partitioner"):
            producer.send_batch("t", [b"v"])
    with (
        log.producer(partitioner=lambda *_: "1") as producer,
        pytest.raises(TypeError, match="partitioner"),
    ):
        producer.send("t", b"v")


def test_the_partitioners_that_come_along(log: embedlog.Log) -> None:
    with log.producer(partitioner=partitioners.RoundRobinPartitioner(start=0)) as producer:
        assert [producer.send("t", b"v", b"k").result(10).partition for _ in range(5)] == [
            0,
            1,
            2,
            3,
            0,
        ]
    with log.producer(partitioner=partitioners.RandomPartitioner(seed=3)) as producer:
        assert {producer.send("t", b"v").result(10).partition for _ in range(100)} == {0, 1, 2, 3}


# ---- topics that change -------------------------------------------------------------------------


def test_new_partitions_are_noticed(log: embedlog.Log, producer: embedlog.Producer) -> None:
    producer.send("one", b"v").result(10)
    log.create_partitions("one", 8)
    assert producer.send("one", b"v", partition=7).result(10).partition == 7
    keys = [b"key-%d" % number for number in range(50)]
    assert [producer.send("one", b"v", key).result(10).partition for key in keys] == [
        partitioners.partition_of(key, 8) for key in keys
    ]
    assert producer.partitions_for("one") == set(range(8))


def test_a_topic_that_is_gone_fails_its_records_and_comes_back(
    log: embedlog.Log, producer: embedlog.Producer
) -> None:
    producer.send("one", b"v").result(10)
    log.delete_topic("one")
    assert isinstance(producer.send("one", b"v").exception(10), UnknownTopicOrPartitionError)
    log.create_topic("one")
    assert producer.send("one", b"w").result(10).offset == 0
    log.delete_topic("one")
    log.create_topic("one", partitions=2)
    assert producer.send("one", b"x", partition=1).result(10).offset == 0


def test_altered_limits_hold_for_what_is_sent_next(
    log: embedlog.Log, producer: embedlog.Producer
) -> None:
    producer.send("one", b"v").result(10)
    log.alter_topic("one", {"max.message.bytes": 500})
    producer.send("one", b"v").result(10)
    assert isinstance(producer.send("one", b"x" * 600).exception(10), RecordTooLargeError)
    futures = [producer.send("one", b"x" * 200) for _ in range(10)]
    assert [future.exception(10) for future in futures] == [None] * 10


def test_a_lock_that_is_held_fails_the_batch_in_time(
    log: embedlog.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[int] = []

    def append(self: Any, run: Any, *, deadline_ns: int, **_: Any) -> Any:
        given.append(deadline_ns - time.clock_gettime_ns(time.CLOCK_BOOTTIME))
        raise LockTimeoutError("process 1 on host h holds the lock")

    monkeypatch.setattr(type(log._engine.partition("one", 0)), "append", append)
    with log.producer(request_timeout_ms=500, retries=2, retry_backoff_ms=1) as producer:
        with pytest.raises(LockTimeoutError, match="process 1"):
            producer.send("one", b"v").result(10)
        assert 0 < given[0] <= 500 * 1_000_000
        assert len(given) == 3


def test_an_unforeseen_error_reaches_the_futures_and_the_log(
    log: embedlog.Log, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def append(self: Any, run: Any, **_: Any) -> Any:
        raise ZeroDivisionError("a mistake of ours")

    monkeypatch.setattr(type(log._engine.partition("one", 0)), "append", append)
    with log.producer() as producer:
        assert isinstance(producer.send("one", b"v").exception(10), ZeroDivisionError)
        assert isinstance(producer.send_batch("one", [b"v"]).exception(10), ZeroDivisionError)
    assert "unexpected failure of a write" in caplog.text


async def made_for_asyncio(log: embedlog.Log) -> object:
    return log.async_producer(compression_type="snappy")


def test_a_producer_that_needs_an_absent_package_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cramjam", None)
    with embedlog.open(tmp_path / "snappy", config={"housekeeping": False}) as log:
        for make in (
            lambda: log.producer(compression_type="snappy"),
            lambda: log.producer({"compression.type": "snappy"}),
            lambda: asyncio.run(made_for_asyncio(log)),
        ):
            with pytest.raises(
                embedlog.MissingExtraError,
                match=r'snappy needs cramjam: pip install "embedlog\[snappy\]"',
            ):
                make()
        for codec in ("none", "gzip", "lz4", "zstd"):
            log.producer(compression_type=codec).close()
