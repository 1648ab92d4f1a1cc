"""The producer over a real log: what it writes, what fails a future, what raises, and how it ends."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedlog
from embedlog import RecordMetadata, partitioners, serializers
from embedlog.errors import (
    BufferExhaustedError,
    ClosedError,
    ConfigError,
    DeadlineError,
    EmbedlogError,
    ForkedError,
    InvalidRecordError,
    InvalidTimestampError,
    InvalidTopicError,
    LockTimeoutError,
    ReadOnlyError,
    RecordTooLargeError,
    SerializationError,
    StateError,
    UnknownTopicOrPartitionError,
)

LONG_MS = 60_000


@pytest.fixture
def log(tmp_path: Path) -> Iterator[embedlog.Log]:
    with embedlog.open(tmp_path / "log", config={"housekeeping": False}) as opened:
        opened.create_topic("t", partitions=4)
        opened.create_topic("one")
        yield opened


@pytest.fixture
def producer(log: embedlog.Log) -> Iterator[embedlog.Producer]:
    with log.producer() as made:
        yield made


def records(log: embedlog.Log, topic: str = "one") -> list[embedlog.Record]:
    return list(log.scan(topic).records())


def values(log: embedlog.Log, topic: str = "one") -> list[bytes]:
    return [record.value for record in records(log, topic)]


def wait_until(condition: Callable[[], object], timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        pause.wait(0.002)


class Stuck:
    """Holds up the producer's thread inside `append` until it is let go."""

    def __init__(self, log: embedlog.Log, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.go = threading.Event(), threading.Event()
        partition = type(log._partition("one", 0))
        real = partition.append

        def append(this: Any, *arguments: Any, **keywords: Any) -> Any:
            self.reached.set()
            assert self.go.wait(30)
            return real(this, *arguments, **keywords)

        monkeypatch.setattr(partition, "append", append)


@pytest.fixture
def stuck(log: embedlog.Log, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stuck]:
    made = Stuck(log, monkeypatch)
    yield made
    made.go.set()


# ---- one record ----------------------------------------------------------------------------------


def test_a_record_comes_back_as_it_was_sent(log: embedlog.Log, producer: embedlog.Producer) -> None:
    future = producer.send("t", b"value", b"key", partition=2, timestamp_ms=1234, headers=[("a", b"1"), ("ü", None)])
    assert future.result(10) == RecordMetadata("t", 2, 0, 1234)
    (record,) = records(log, "t")
    assert (record.topic, record.partition, record.offset, record.timestamp_ms, record.timestamp_type) == ("t", 2, 0, 1234, 0)
    assert (record.key, record.value, record.headers) == (b"key", b"value", (("a", b"1"), ("ü", None)))


def test_nulls_and_empties_stay_what_they_are(log: embedlog.Log, producer: embedlog.Producer) -> None:
    for value, key in [(None, None), (b"", b""), (None, b""), (b"", None)]:
        producer.send("one", value, key)
    producer.flush()
    assert [(record.value, record.key) for record in records(log)] == [(None, None), (b"", b""), (None, b""), (b"", None)]


def test_records_without_a_time_get_the_present_one(producer: embedlog.Producer) -> None:
    before = int(time.time() * 1000)
    assert before <= producer.send("one", b"v").result(10).timestamp_ms <= int(time.time() * 1000) + 1


def test_everything_like_bytes_is_taken(log: embedlog.Log, producer: embedlog.Producer) -> None:
    for value in (bytearray(b"a"), memoryview(b"b"), type("Sub", (bytes,), {})(b"c")):
        producer.send("one", value, value)  # type: ignore[arg-type]
    producer.flush()
    assert [(record.value, record.key) for record in records(log)] == [(b"a", b"a"), (b"b", b"b"), (b"c", b"c")]


def test_random_records_of_many_threads_keep_each_threads_order(log: embedlog.Log, rng: random.Random) -> None:
    def send(number: int, seed: int) -> None:
        own = random.Random(seed)
        for count in range(2000):
            producer.send("t", b"%d %d" % (number, count) + b"x" * own.choice([0, 10, 3000]), b"%d" % number)

    with log.producer(batch_size=4000, linger_ms=1) as producer:
        threads = [threading.Thread(target=send, args=(number, rng.getrandbits(32))) for number in range(4)]
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
    assert [future.result(10).partition for future in futures] == [partitioners.partition_of(key, 4) for key in keys]


def test_records_without_keys_spread_over_the_partitions(log: embedlog.Log) -> None:
    with log.producer(batch_size=1000) as producer:
        for _ in range(2000):
            producer.send("t", b"x" * 100)
    assert {record.partition for record in records(log, "t")} == {0, 1, 2, 3}


# ---- what raises and what fails the future -------------------------------------------------------


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
    log: embedlog.Log, producer: embedlog.Producer, arguments: Any, error: type[Exception], words: str
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
def test_what_cannot_be_written_fails_the_future_at_once(producer: embedlog.Producer, arguments: Any, error: Any) -> None:
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
        large, small = producer.send("one", b"x" * 2000), producer.send("one", b"y")
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


def test_a_compacted_topic_refuses_records_without_keys(log: embedlog.Log, producer: embedlog.Producer) -> None:
    log.create_topic("c", config={"cleanup.policy": "compact"})
    for _ in range(2):
        assert isinstance(producer.send("c", b"v").exception(10), InvalidRecordError)
        assert producer.send("c", b"v", b"k").exception(10) is None
    assert isinstance(producer.send_batch("c", [b"v"], [None]).exception(10), InvalidRecordError)


def test_times_outside_the_topics_window_are_refused(log: embedlog.Log, producer: embedlog.Producer) -> None:
    log.create_topic("w", config={"message.timestamp.before.max.ms": 10_000, "message.timestamp.after.max.ms": 10_000})
    now = int(time.time() * 1000)
    for _ in range(2):
        assert isinstance(producer.send("w", b"v", timestamp_ms=now - 60_000).exception(10), InvalidTimestampError)
        assert isinstance(producer.send("w", b"v", timestamp_ms=now + 60_000).exception(10), InvalidTimestampError)
        assert producer.send("w", b"v", timestamp_ms=now).exception(10) is None
    assert isinstance(
        producer.send_batch("w", [b"v"] * 2, timestamps_ms=[now, now - 60_000]).exception(10), InvalidTimestampError
    )
    log.create_topic("a", config={"message.timestamp.type": "LogAppendTime", "message.timestamp.before.max.ms": 10_000})
    assert abs(producer.send("a", b"v", timestamp_ms=5).result(10).timestamp_ms - now) < LONG_MS


@pytest.mark.parametrize("config", [{"transactional_id": "x"}, {"interceptor_classes": [print]}], ids=str)
def test_what_this_version_has_not_is_refused_by_name(log: embedlog.Log, config: Any) -> None:
    with pytest.raises(ConfigError, match=next(iter(config)).replace("_", ".")):
        log.producer(**config)


def test_a_read_only_log_has_no_producer(log: embedlog.Log) -> None:
    with embedlog.open(log.path, read_only=True) as reader, pytest.raises(ReadOnlyError):
        reader.producer()


# ---- serializers and partitioners ----------------------------------------------------------------


def test_serializers_make_bytes_of_keys_and_values(log: embedlog.Log) -> None:
    with log.producer(key_serializer=serializers.string, value_serializer=serializers.json) as producer:
        producer.send("one", {"ä": 1}, "schlüssel")  # type: ignore[arg-type]
        producer.send("one", None, None)
        producer.send_batch("one", [[1], None], ["k", None])
    found = [(record.key, record.value) for record in records(log)]
    assert found == [("schlüssel".encode(), '{"ä":1}'.encode()), (None, None), (b"k", b"[1]"), (None, None)]
    assert serializers.from_json(found[0][1]) == {"ä": 1}
    assert serializers.from_string(found[0][0]) == "schlüssel"
    assert serializers.from_json(None) is serializers.from_string(None) is None


@pytest.mark.parametrize(
    "broken", [lambda value: 1 / 0, lambda value: 5, serializers.string], ids=["raises", "no bytes", "wrong type"]
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
    assert asked == [(b"k", [0, 1, 2, 3], [0, 1, 2, 3]), (None, [0, 1, 2, 3], [0, 1, 2, 3]), (b"j", [0, 1, 2, 3], [0, 1, 2, 3])]


@pytest.mark.parametrize("answer", [-1, 4])
def test_a_partitioner_that_answers_nonsense_is_refused(log: embedlog.Log, answer: int) -> None:
    with log.producer(partitioner=lambda *_: answer) as producer:
        assert isinstance(producer.send("t", b"v").exception(10), UnknownTopicOrPartitionError)
        assert isinstance(producer.send_batch("t", [b"v"]).exception(10), UnknownTopicOrPartitionError)
    with log.producer(partitioner=lambda *_: "1") as producer, pytest.raises(TypeError, match="partitioner"):
        producer.send("t", b"v")


def test_the_partitioners_that_come_along(log: embedlog.Log) -> None:
    with log.producer(partitioner=partitioners.RoundRobinPartitioner()) as producer:
        assert [producer.send("t", b"v", b"k").result(10).partition for _ in range(5)] == [0, 1, 2, 3, 0]
    with log.producer(partitioner=partitioners.RandomPartitioner(seed=3)) as producer:
        assert {producer.send("t", b"v").result(10).partition for _ in range(100)} == {0, 1, 2, 3}


# ---- batching, linger, memory --------------------------------------------------------------------


def test_records_wait_for_their_linger_and_go_together(log: embedlog.Log) -> None:
    with log.producer(linger_ms=LONG_MS, delivery_timeout_ms=10 * LONG_MS) as producer:
        futures = [producer.send("one", b"%d" % number) for number in range(10)]
        assert not futures[0].done()
        assert values(log) == []
        start = time.monotonic()
        assert futures[3].result(10).offset == 3
        assert time.monotonic() - start < 10
        assert all(future.done() for future in futures)
        assert producer.metrics()["batch-total"] == 1


def test_a_linger_ends_by_itself(log: embedlog.Log) -> None:
    with log.producer(linger_ms=20) as producer:
        future = producer.send("one", b"v")
        wait_until(future.done)
        later = producer.send("one", b"v")  # after the thread has slept
        wait_until(later.done)


@pytest.mark.parametrize(("size", "batches"), [(0, 50), (1000, 7), (1 << 20, 1)])
def test_batch_size_cuts_the_batches(log: embedlog.Log, size: int, batches: int) -> None:
    with log.producer(batch_size=size, linger_ms=LONG_MS, delivery_timeout_ms=10 * LONG_MS) as producer:
        for _ in range(50):
            producer.send("one", b"x" * 100)
        producer.flush()
        assert producer.metrics()["batch-total"] == batches


def test_full_memory_makes_send_wait_and_then_fail(log: embedlog.Log, stuck: Stuck) -> None:
    with log.producer(buffer_memory=3000, max_block_ms=50, linger_ms=0, batch_size=1000) as producer:
        first = producer.send("one", b"x" * 900)
        assert stuck.reached.wait(10)
        others = [producer.send("one", b"x" * 900) for _ in range(3)]
        assert isinstance(others[-1].exception(0), BufferExhaustedError)
        assert producer.metrics()["buffer-exhausted-waits-total"] > 0
        stuck.go.set()
        assert first.result(10).offset == 0
        assert others[0].result(10).offset == 1
    assert len(values(log)) == 3


def test_who_waits_for_memory_is_served_in_order(log: embedlog.Log, stuck: Stuck) -> None:
    with log.producer(buffer_memory=2000, linger_ms=0, batch_size=1000) as producer:
        producer.send("one", b"0" * 900)
        assert stuck.reached.wait(10)
        producer.send("one", b"1" * 900)
        threads = []
        for number in range(2, 6):
            thread = threading.Thread(target=producer.send, args=("one", b"%d" % number * 900))
            thread.start()
            threads.append(thread)
            wait_until(lambda: producer.metrics()["waiting-threads"] == len(threads))
        stuck.go.set()
        for thread in threads:
            thread.join(10)
    assert [value[:1] for value in values(log)] == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_a_callback_that_finds_the_memory_full_does_not_wait_for_itself(log: embedlog.Log) -> None:
    found: list[BaseException | None] = []
    with log.producer(buffer_memory=1000, linger_ms=0) as producer:

        def overfill(_: object) -> None:
            producer.send("one", b"y" * 600)
            found.append(producer.send("one", b"z" * 600).exception(0))

        producer.send("one", b"x" * 600).add_done_callback(overfill)
        wait_until(lambda: found)
    assert isinstance(found[0], BufferExhaustedError)


def test_memory_comes_back(log: embedlog.Log, producer: embedlog.Producer) -> None:
    for _ in range(1000):
        producer.send("t", b"x" * 100)
    producer.send_batch("t", [b"x" * 100] * 1000)
    producer.flush()
    figures = producer.metrics()
    assert figures["buffer-available-bytes"] == figures["buffer-total-bytes"]
    assert figures["record-send-total"] == 2000


# ---- futures and callbacks -----------------------------------------------------------------------


def test_callbacks_run_in_order_on_the_producers_thread(log: embedlog.Log, producer: embedlog.Producer) -> None:
    seen: list[tuple[int, bool, str]] = []

    def note(future: embedlog.Future) -> None:
        seen.append((future.result(0).offset, future.done(), threading.current_thread().name))

    futures = [producer.send("one", b"v") for _ in range(100)]
    for future in reversed(futures):
        future.add_done_callback(note)
    producer.flush()
    late = [offset for offset, _, _ in seen]
    assert sorted(late) == list(range(100))
    futures[0].add_done_callback(note)
    wait_until(lambda: len(seen) == 101)
    assert {(done, name.startswith("embedlog-producer-")) for _, done, name in seen} == {(True, True)}


def test_callbacks_added_before_the_fate_run_in_append_order(log: embedlog.Log, stuck: Stuck) -> None:
    with log.producer(linger_ms=0) as producer:
        futures = [producer.send("one", b"%d" % number) for number in range(20)]
        seen: list[int] = []
        for future in reversed(futures):
            future.add_done_callback(lambda each: seen.append(each.result(0).offset))
        stuck.go.set()
        producer.flush()
    assert seen == list(range(20))


def test_a_raising_callback_is_logged_and_harms_nobody(
    log: embedlog.Log, producer: embedlog.Producer, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[object] = []
    future = producer.send("one", b"v")
    future.add_done_callback(lambda _: 1 / 0)
    future.add_done_callback(seen.append)
    producer.flush()
    assert seen == [future]
    assert "ZeroDivisionError" in caplog.text
    assert producer.send("one", b"v").result(10).offset == 1


def test_flush_waits_for_callbacks_too(log: embedlog.Log, producer: embedlog.Producer) -> None:
    for number in range(50):
        seen: list[object] = []
        producer.send("one", b"v").add_done_callback(seen.append)
        producer.flush()
        assert len(seen) == 1, number


def test_flush_and_close_inside_a_callback_do_not_wait_for_themselves(log: embedlog.Log) -> None:
    found: list[object] = []
    with log.producer() as producer:

        def misuse(_: object) -> None:
            try:
                producer.flush()
            except StateError as error:
                found.append(error)
            producer.close()
            found.append("closed")

        producer.send("one", b"v").add_done_callback(misuse)
        wait_until(lambda: len(found) == 2)
    assert isinstance(found[0], StateError)


def test_acks_0_does_not_wait(log: embedlog.Log, stuck: Stuck) -> None:
    with log.producer(acks=0) as producer:
        future = producer.send("one", b"v", timestamp_ms=5)
        assert future.done()
        assert future.result() == RecordMetadata("one", 0, -1, 5)
        stuck.go.set()
    assert values(log) == [b"v"]


@pytest.mark.parametrize("acks", [1, "all", -1])
def test_other_acks_wait_for_the_append(log: embedlog.Log, stuck: Stuck, acks: Any) -> None:
    with log.producer(acks=acks, linger_ms=0) as producer:
        future = producer.send("one", b"v")
        assert stuck.reached.wait(10)
        assert not future.done()
        with pytest.raises(DeadlineError):
            future.result(0.01)
        stuck.go.set()
        assert future.result(10).offset == 0


def test_futures_can_be_awaited(log: embedlog.Log, producer: embedlog.Producer) -> None:
    async def main() -> list[Any]:
        many = [producer.send("one", b"%d" % number) for number in range(100)]
        batch = producer.send_batch("one", [b"x"] * 5)
        return [*[(await future).offset for future in many], await batch, await many[0]]

    found = asyncio.run(main())
    assert found[:100] == list(range(100))
    assert found[100] == [("one", 0, 100, 5)]
    assert found[101].offset == 0


def test_a_cancelled_await_loses_nothing(log: embedlog.Log, stuck: Stuck) -> None:
    async def main(producer: embedlog.Producer) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(_awaited(producer.send("one", b"v")), 0.05)

    async def _awaited(future: embedlog.Future) -> Any:
        return await future

    with log.producer() as producer:
        asyncio.run(main(producer))
        stuck.go.set()
    assert values(log) == [b"v"]


def test_an_awaited_failure_raises(log: embedlog.Log, producer: embedlog.Producer) -> None:
    async def main() -> None:
        await producer.send("unknown", b"v")

    with pytest.raises(UnknownTopicOrPartitionError):
        asyncio.run(main())


# ---- columns -------------------------------------------------------------------------------------


def test_a_batch_lands_in_one_place_and_says_where(log: embedlog.Log, producer: embedlog.Producer) -> None:
    producer.send("one", b"before")
    assert producer.send_batch("one", [b"%d" % number for number in range(5000)]).result(10) == [("one", 0, 1, 5000)]
    producer.send("one", b"after")
    producer.flush()
    assert values(log) == [b"before", *[b"%d" % number for number in range(5000)], b"after"]


def test_send_and_send_batch_share_one_order(log: embedlog.Log, rng: random.Random) -> None:
    sent = []
    with log.producer(linger_ms=3, batch_size=500) as producer:
        for number in range(500):
            some = [b"%d.%d" % (number, place) for place in range(rng.choice([1, 1, 7, 60]))]
            sent += some
            if len(some) == 1:
                producer.send("one", some[0])
            else:
                producer.send_batch("one", some)
    assert values(log) == sent


def test_many_batches_of_one_call(log: embedlog.Log, producer: embedlog.Producer, rng: random.Random) -> None:
    items = [rng.randbytes(rng.choice([0, 10, 5000])) for _ in range(3000)]
    keys = [rng.choice([None, b"%d" % number]) for number in range(3000)]
    places = producer.send_batch(
        "t", items, keys, timestamps_ms=list(range(3000)), headers=[[("n", b"%d" % number)] for number in range(3000)]
    )
    assert sum(count for _, _, _, count in places.result(30)) == 3000
    by_time = sorted(records(log, "t"), key=lambda record: record.timestamp_ms)
    assert [(record.value, record.key, record.headers) for record in by_time] == [
        (item, key, (("n", b"%d" % number),)) for number, (item, key) in enumerate(zip(items, keys, strict=True))
    ]
    for record in by_time:
        if record.key is not None:
            assert record.partition == partitioners.partition_of(record.key, 4)
    for number in range(4):
        times = [record.timestamp_ms for record in records(log, "t") if record.partition == number]
        assert times == sorted(times)


def test_the_partition_of_a_batch_can_be_given(log: embedlog.Log, producer: embedlog.Producer) -> None:
    assert producer.send_batch("t", [b"v"] * 3, [b"a", b"b", b"c"], partition=2).result(10) == [("t", 2, 0, 3)]


def test_batches_without_keys_stick_and_then_move_on(log: embedlog.Log) -> None:
    with log.producer(batch_size=10_000) as producer:
        small = [producer.send_batch("t", [b"x" * 100]).result(10)[0][1] for _ in range(50)]
        assert len(set(small)) == 1
        large = {producer.send_batch("t", [b"x" * 100] * 200).result(10)[0][1] for _ in range(60)}
        assert large == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"topic": "unknown"}, UnknownTopicOrPartitionError),
        ({"partition": 9}, UnknownTopicOrPartitionError),
        ({"values": [b"x", b"y" * (1 << 20)]}, RecordTooLargeError),
        ({"values": [b"x", b"y" * (1 << 19)], "keys": [b"", b"k" * (1 << 19)]}, RecordTooLargeError),
        ({"values": [b"x", b"y"], "headers": [[], [("h", b"x" * (1 << 20))]]}, RecordTooLargeError),
        ({"timestamps_ms": 2**62}, InvalidTimestampError),
        ({"timestamps_ms": [5, -1]}, InvalidTimestampError),
        ({"keys": [b"k"]}, InvalidRecordError),
    ],
    ids=lambda each: repr(each)[:40],
)
def test_a_batch_that_cannot_be_written_fails_its_future_and_writes_nothing(
    log: embedlog.Log, producer: embedlog.Producer, arguments: Any, error: type[Exception]
) -> None:
    future = producer.send_batch(**({"topic": "one", "values": [b"x", b"y"]} | arguments))
    assert isinstance(future.exception(10), error)
    assert values(log) == []


def test_a_batch_of_the_wrong_type_raises_and_writes_nothing(log: embedlog.Log, producer: embedlog.Producer) -> None:
    for wrong in ("text", [b"x"] * 100_000 + ["text"], 5, np.arange(3)):
        with pytest.raises(TypeError):
            producer.send_batch("one", wrong)
    with pytest.raises(UnknownTopicOrPartitionError):
        producer.send_batch("one", [b"x"], partition=-1)
    assert values(log) == []


def test_an_empty_batch_is_done_and_empty(producer: embedlog.Producer) -> None:
    assert producer.send_batch("one", []).result(0) == []


def test_arrow_tables_are_written_as_they_are(log: embedlog.Log, producer: embedlog.Producer) -> None:
    pa = pytest.importorskip("pyarrow", reason="needs pyarrow")
    table = pa.table({"value": [b"a", None, b"c"], "key": ["x", None, "z"], "partition": pa.array([3, 0, None], pa.int32())})
    producer.send_batch("t", table).result(10)
    found = sorted((record.value or b"", record.key, record.partition) for record in records(log, "t"))
    assert found == [(b"", None, 0), (b"a", b"x", 3), (b"c", b"z", partitioners.partition_of(b"z", 4))]
    wrong = table.set_column(2, "partition", pa.array([3, 0, 9], pa.int32()))
    assert isinstance(producer.send_batch("t", wrong).exception(10), UnknownTopicOrPartitionError)


def test_more_than_the_memory_flows_through_it(log: embedlog.Log) -> None:
    with log.producer(buffer_memory=2 << 20) as producer:
        places = producer.send_batch("one", [b"x" * 1000] * 20_000).result(60)
    assert places == [("one", 0, 0, 20_000)]


# ---- compression ---------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("by_topic", [False, True], ids=["by the producer", "by the topic"])
def test_every_codec_comes_back(log: embedlog.Log, codec: str, by_topic: bool) -> None:
    if codec == "snappy":
        pytest.importorskip("cramjam", reason="needs cramjam: pip install 'embedlog[snappy]'")
    log.create_topic("z", config={"compression.type": codec} if by_topic else {})
    lines = [b"line %d of a text that repeats itself, itself, itself" % number for number in range(3000)]
    with log.producer(compression_type="none" if by_topic else codec) as producer:
        for line in lines:
            producer.send("z", line)
        producer.send_batch("z", lines)
        producer.flush()
        assert producer.metrics()["compression-rate-avg"] < 0.5
    assert values(log, "z") == lines * 2


def test_what_does_not_shrink_is_stored_plain(log: embedlog.Log, rng: random.Random) -> None:
    noise = rng.randbytes(10_000)
    with log.producer(compression_type="lz4") as producer:
        producer.send("one", noise).result(10)
    assert values(log) == [noise]


def test_a_topic_without_compression_undoes_the_producers(log: embedlog.Log) -> None:
    log.create_topic("plain", config={"compression.type": "uncompressed"})
    with log.producer(compression_type="zstd") as producer:
        producer.send_batch("plain", [b"a" * 1000] * 10).result(10)
        assert producer.metrics()["compression-rate-avg"] == 1.0


# ---- topics that change --------------------------------------------------------------------------


def test_new_partitions_are_noticed(log: embedlog.Log, producer: embedlog.Producer) -> None:
    producer.send("one", b"v").result(10)
    log.create_partitions("one", 8)
    assert producer.send("one", b"v", partition=7).result(10).partition == 7
    keys = [b"key-%d" % number for number in range(50)]
    assert [producer.send("one", b"v", key).result(10).partition for key in keys] == [
        partitioners.partition_of(key, 8) for key in keys
    ]
    assert producer.partitions_for("one") == set(range(8))


def test_a_topic_that_is_gone_fails_its_records_and_comes_back(log: embedlog.Log, producer: embedlog.Producer) -> None:
    producer.send("one", b"v").result(10)
    log.delete_topic("one")
    assert isinstance(producer.send("one", b"v").exception(10), UnknownTopicOrPartitionError)
    log.create_topic("one")
    assert producer.send("one", b"w").result(10).offset == 0
    log.delete_topic("one")
    log.create_topic("one", partitions=2)
    assert producer.send("one", b"x", partition=1).result(10).offset == 0


def test_altered_limits_hold_for_what_is_sent_next(log: embedlog.Log, producer: embedlog.Producer) -> None:
    producer.send("one", b"v").result(10)
    log.alter_topic("one", {"max.message.bytes": 500})
    producer.send("one", b"v").result(10)
    assert isinstance(producer.send("one", b"x" * 600).exception(10), RecordTooLargeError)
    futures = [producer.send("one", b"x" * 200) for _ in range(10)]
    assert [future.exception(10) for future in futures] == [None] * 10


def test_a_lock_that_is_held_fails_the_batch_in_time(log: embedlog.Log, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []

    def append(self: Any, run: Any, *, deadline_ns: int) -> Any:
        given.append(deadline_ns - time.clock_gettime_ns(time.CLOCK_BOOTTIME))
        raise LockTimeoutError("process 1 on host h holds the lock")

    monkeypatch.setattr(type(log._partition("one", 0)), "append", append)
    with log.producer(request_timeout_ms=500) as producer:
        with pytest.raises(LockTimeoutError, match="process 1"):
            producer.send("one", b"v").result(10)
        assert 0 < given[0] <= 500 * 1_000_000


def test_an_unforeseen_error_reaches_the_futures_and_the_log(
    log: embedlog.Log, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def append(self: Any, run: Any, *, deadline_ns: int) -> Any:
        raise ZeroDivisionError("a mistake of ours")

    monkeypatch.setattr(type(log._partition("one", 0)), "append", append)
    with log.producer() as producer:
        assert isinstance(producer.send("one", b"v").exception(10), ZeroDivisionError)
        assert isinstance(producer.send_batch("one", [b"v"]).exception(10), ZeroDivisionError)
    assert "not foreseen" in caplog.text


# ---- the end -------------------------------------------------------------------------------------


def test_close_sends_what_is_buffered_and_may_be_called_again(log: embedlog.Log) -> None:
    producer = log.producer(linger_ms=LONG_MS, delivery_timeout_ms=10 * LONG_MS)
    future = producer.send("one", b"v")
    producer.close()
    producer.close()
    assert future.done()
    assert values(log) == [b"v"]
    for call in (
        lambda: producer.send("one", b"v"),
        lambda: producer.send_batch("one", [b"v"]),
        producer.flush,
        producer.__enter__,
    ):
        with pytest.raises(ClosedError):
            call()
    assert "closed" in repr(producer)


def test_a_close_that_runs_out_of_time_fails_the_rest(log: embedlog.Log, stuck: Stuck, caplog: pytest.LogCaptureFixture) -> None:
    producer = log.producer(linger_ms=0)
    written = producer.send("one", b"on its way")
    assert stuck.reached.wait(10)
    dropped, batch = producer.send("one", b"late"), producer.send_batch("one", [b"late"] * 5)
    producer.close(timeout=0.05)
    for future in (dropped, batch):
        with pytest.raises(ClosedError, match="before the record was written"):
            future.result(0)
    assert "6 records" in caplog.text
    stuck.go.set()
    assert written.result(10).offset == 0
    assert values(log) == [b"on its way"]


def test_closing_the_log_sends_what_its_producers_hold(tmp_path: Path) -> None:
    log = embedlog.open(tmp_path / "log")
    log.create_topic("one")
    producer = log.producer(linger_ms=LONG_MS, delivery_timeout_ms=10 * LONG_MS)
    future = producer.send("one", b"v")
    log.close()
    assert future.result(0).offset == 0


def test_a_flush_that_takes_too_long_says_so(log: embedlog.Log, stuck: Stuck) -> None:
    with log.producer() as producer:
        producer.send("one", b"v")
        with pytest.raises(DeadlineError):
            producer.flush(0.05)
        stuck.go.set()
        producer.flush(10)


def test_a_dropped_producer_sends_what_it_holds_and_warns(log: embedlog.Log) -> None:
    producer = log.producer(linger_ms=LONG_MS, delivery_timeout_ms=10 * LONG_MS)
    future = producer.send("one", b"v")
    with pytest.warns(ResourceWarning, match="dropped without close"):
        del producer
    assert future.result(10).offset == 0


def test_an_idle_producer_costs_no_time(log: embedlog.Log, producer: embedlog.Producer) -> None:
    producer.send("one", b"v").result(10)
    before = time.process_time()
    threading.Event().wait(0.5)
    assert time.process_time() - before < 0.05


def test_pickling_is_refused_with_the_way_to_do_it(producer: embedlog.Producer) -> None:
    with pytest.raises(TypeError, match="open the log in the process"):
        pickle.dumps(producer)


def test_a_forked_child_is_refused_and_the_parent_goes_on(log: embedlog.Log) -> None:
    with log.producer(linger_ms=LONG_MS, delivery_timeout_ms=10 * LONG_MS) as producer:
        pending = producer.send("one", b"of the parent")
        child = os.fork()
        if child == 0:
            calls = (
                lambda: producer.send("one", b"v"),
                lambda: producer.send_batch("one", [b"v"]),
                producer.flush,
                pending.result,
            )
            outcomes = []
            for call in calls:
                try:
                    call()
                    outcomes.append("accepted")
                except ForkedError:
                    outcomes.append("refused")
                except Exception as error:
                    outcomes.append(repr(error))
            producer.close()
            os._exit(0 if outcomes == ["refused"] * 4 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert pending.result(10).offset == 0
    assert values(log) == [b"of the parent"]


def run_program(text: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(text))
    return subprocess.run([sys.executable, program, tmp_path / "log"], capture_output=True, text=True, timeout=60, check=False)


def test_what_is_buffered_at_the_interpreters_exit_is_written(tmp_path: Path) -> None:
    done = run_program(
        """
        import sys, embedlog
        log = embedlog.open(sys.argv[1])
        log.create_topic("one")
        producer = log.producer(linger_ms=60_000, delivery_timeout_ms=600_000, compression_type="zstd")
        for number in range(1000):
            producer.send("one", b"%d" % number)
        """,
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    with embedlog.open(tmp_path / "log") as log:
        assert values(log) == [b"%d" % number for number in range(1000)]


def test_what_cannot_be_written_at_exit_is_counted(tmp_path: Path) -> None:
    done = run_program(
        """
        import sys, threading, embedlog, embedlog.accumulator
        embedlog.accumulator.EXIT_TIMEOUT_S = 0.1
        log = embedlog.open(sys.argv[1])
        log.create_topic("one")
        partition = type(log._partition("one", 0))
        partition.append = lambda *_, **__: threading.Event().wait()
        producer = log.producer(linger_ms=0)
        producer.send("one", b"stuck")
        while producer.metrics()["buffer-available-bytes"] == 32 << 20: pass
        import time; threading.Event().wait(0.2)
        for number in range(7):
            producer.send("one", b"v")
        """,
        tmp_path,
    )
    assert "7 records" in done.stderr


@pytest.mark.parametrize("call", ["future.result()", "producer.flush()", "producer.close()", "future.exception(30)"])
def test_ctrl_c_ends_a_wait_at_once(tmp_path: Path, call: str) -> None:
    done = run_program(
        f"""
        import os, signal, sys, threading, time, embedlog, embedlog.accumulator
        embedlog.accumulator.EXIT_TIMEOUT_S = 0.1
        log = embedlog.open(sys.argv[1], config={{"housekeeping": False}})
        log.create_topic("one")
        real = type(log._partition("one", 0)).append
        go = threading.Event()
        def append(self, *arguments, **keywords):
            go.wait()
            return real(self, *arguments, **keywords)
        type(log._partition("one", 0)).append = append
        producer = log.producer(linger_ms=0)
        future = producer.send("one", b"v")
        struck = []
        def strike():
            threading.Event().wait(0.3)
            struck.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)
        threading.Thread(target=strike).start()
        try:
            {call}
        except KeyboardInterrupt:
            print("late" if time.monotonic() - struck[0] > 0.1 else "interrupted")
        go.set()
        print(future.result(10).offset)
        """,
        tmp_path,
    )
    assert done.stdout.split() == ["interrupted", "0"], done.stderr


def test_names_and_numbers_are_told(log: embedlog.Log) -> None:
    with log.producer(client_id="mine") as producer:
        assert repr(producer) == "<embedlog.Producer mine>"
        producer.send("one", b"v").result(10)
        assert {name for name in producer.metrics() if name.startswith("record")} == {
            "record-send-total", "record-error-total", "records-per-request-avg",
        }  # fmt: skip
        with pytest.raises(UnknownTopicOrPartitionError):
            producer.partitions_for("unknown")
    assert issubclass(ClosedError, EmbedlogError)
    assert logging.getLogger("embedlog.producer").name.startswith("embedlog")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
