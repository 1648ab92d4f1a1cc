"""Kafka's checks on append, by record and by column: each refusal has a typed error, and concerns
one record only.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog.errors import (
    DeliveryError,
    InvalidRecordError,
    InvalidTimestampError,
    InvalidTopicError,
    RecordTooLargeError,
    UnknownTopicOrPartitionError,
)
from tests.support.producer_helpers import Stuck, log, producer, stuck, values, wait_until

__all__ = ["log", "producer", "stuck"]

Send = Callable[..., Any]
HOUR_MS = 3_600_000


def one_by_one(
    made: embedlog.Producer, topic: str, value: Any, key: Any = None, time_ms: int | None = None
) -> Any:
    return made.send(topic, value, key, timestamp_ms=time_ms)


def in_columns(
    made: embedlog.Producer, topic: str, value: Any, key: Any = None, time_ms: int | None = None
) -> Any:
    return made.send_batch(
        topic,
        [value],
        None if key is None else [key],
        timestamps_ms=None if time_ms is None else [time_ms],
    )


both = pytest.mark.parametrize("send", [one_by_one, in_columns])


@pytest.fixture(params=[False, True], ids=["careful", "fast"])
def warm(
    request: pytest.FixtureRequest, log: embedlog.Log, producer: embedlog.Producer
) -> embedlog.Producer:
    """A producer that has looked the topic up (the path in C), or not yet."""
    if request.param:
        producer.send("one", b"before", b"k").result(10)
    return producer


# ---- keys ------------------------------------------------------------------------------------------------------------


@both
def test_a_compacted_topic_takes_no_null_key_but_an_empty_one(
    log: embedlog.Log, producer: embedlog.Producer, send: Send
) -> None:
    log.create_topic("kept", config={"cleanup.policy": "compact,delete"})
    for _ in range(2):
        assert isinstance(send(producer, "kept", b"v").exception(10), InvalidRecordError)
        send(producer, "kept", b"v", b"").result(10)
    mixed = producer.send_batch("kept", [b"a", b"b"], [b"k", None])
    assert isinstance(mixed.exception(10), InvalidRecordError)
    assert values(log, "kept") == [b"v", b"v"]


# ---- times -----------------------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("age_ms", [2 * HOUR_MS, -HOUR_MS], ids=["too old", "too new"])
def test_times_outside_the_window_are_refused(
    log: embedlog.Log, warm: embedlog.Producer, send: Send, age_ms: int
) -> None:
    log.create_topic(
        "near",
        config={
            "message.timestamp.before.max.ms": HOUR_MS,
            "message.timestamp.after.max.ms": HOUR_MS // 2,
        },
    )
    now_ms = int(time.time() * 1000)
    problem = send(warm, "near", b"v", time_ms=now_ms - age_ms).exception(10)
    assert isinstance(problem, InvalidTimestampError)
    assert problem.found == now_ms - age_ms
    send(warm, "near", b"v", time_ms=now_ms - HOUR_MS // 2).result(10)
    assert isinstance(
        send(warm, "near", b"v", time_ms=now_ms - age_ms).exception(10), InvalidTimestampError
    )
    assert values(log, "near") == [b"v"]


@both
def test_the_default_window_is_open_behind_and_an_hour_ahead(
    producer: embedlog.Producer, send: Send
) -> None:
    send(producer, "one", b"v", time_ms=0).result(10)
    problem = send(producer, "one", b"v", time_ms=int(time.time() * 1000) + 2 * HOUR_MS).exception(
        10
    )
    assert isinstance(problem, InvalidTimestampError)


@both
def test_append_time_takes_any_time_and_replaces_it(
    log: embedlog.Log, producer: embedlog.Producer, send: Send
) -> None:
    log.create_topic(
        "stamped",
        config={"message.timestamp.type": "LogAppendTime", "message.timestamp.before.max.ms": 1},
    )
    began_ms = int(time.time() * 1000)
    send(producer, "stamped", b"v", time_ms=0).result(10)
    send(producer, "stamped", b"v", time_ms=2**62).result(10)
    assert all(
        began_ms <= record.timestamp_ms <= time.time() * 1000
        for record in log.scan("stamped").records()
    )


@pytest.mark.parametrize("time_ms", [-1, -(2**63), 2**63, 2**70])
def test_a_negative_time_raises_from_the_call(
    log: embedlog.Log, warm: embedlog.Producer, time_ms: int
) -> None:
    before = values(log)
    with pytest.raises(InvalidTimestampError):
        warm.send("one", b"v", b"k", timestamp_ms=time_ms)
    with pytest.raises(InvalidTimestampError):
        warm.send_batch("one", [b"v"], timestamps_ms=time_ms)
    assert isinstance(
        warm.send_batch("one", [b"v", b"w"], timestamps_ms=[5, -1]).exception(10),
        InvalidTimestampError,
    )
    assert values(log) == before


# ---- topics ----------------------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize(
    "topic",
    ["__consumer_offsets", "__transaction_state", "__cluster_metadata", "a/b", "", "..", "x" * 250],
)
def test_a_clients_records_never_reach_internal_topics(
    log: embedlog.Log, producer: embedlog.Producer, send: Send, topic: str
) -> None:
    assert isinstance(send(producer, topic, b"v", b"k").exception(10), InvalidTopicError)


def test_a_brokers_internal_topic_is_not_written_to_either(
    golden_copy: Callable[[str], Path],
) -> None:
    with embedlog.open(golden_copy("clean")) as log, log.producer() as producer:
        name = "__transaction_state"
        assert name in log.topics(include_internal=True)
        before = log._engine.partition(name, 0).bounds()
        for send in (one_by_one, in_columns):
            assert isinstance(send(producer, name, b"v", b"k").exception(10), InvalidTopicError)
        assert log._engine.partition(name, 0).bounds() == before


@both
def test_an_unknown_topic_is_not_created(
    log: embedlog.Log, producer: embedlog.Producer, send: Send
) -> None:
    assert isinstance(send(producer, "nowhere", b"v").exception(10), UnknownTopicOrPartitionError)
    assert "nowhere" not in log.topics()


# ---- sizes -----------------------------------------------------------------------------------------------------------


@both
def test_a_record_over_max_message_bytes_is_refused(
    log: embedlog.Log, producer: embedlog.Producer, send: Send
) -> None:
    log.create_topic("small", config={"max.message.bytes": 1000})
    assert isinstance(send(producer, "small", b"x" * 1000).exception(10), RecordTooLargeError)
    send(producer, "small", b"x" * 900).result(10)
    assert values(log, "small") == [b"x" * 900]


def test_a_record_that_is_too_large_costs_no_other_its_place(
    log: embedlog.Log, stuck: Stuck
) -> None:
    """Parcels that wait together are written as one run: the log refuses one of them, not all."""
    log.create_topic("small", config={"max.message.bytes": 1000})
    with log.producer(linger_ms=0) as producer:
        first = producer.send("one", b"x", partition=0)
        assert stuck.reached.wait(10)
        futures = [producer.send("small", b"x" * size) for size in (500, 500, 2000, 500, 3000, 500)]
        stuck.go.set()
        first.result(10)
        problems = [type(future.exception(10)) for future in futures]
    assert problems == [
        type(None),
        type(None),
        RecordTooLargeError,
        type(None),
        RecordTooLargeError,
        type(None),
    ]
    assert [futures[n].result().offset for n in (0, 1, 3, 5)] == [0, 1, 2, 3]


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
def test_a_batch_that_is_too_large_after_all_is_split(
    log: embedlog.Log, stuck: Stuck, codec: str
) -> None:
    """The limit is lowered while records wait: together they are too large now, each alone is
    not.
    """
    times = [1_700_000_000_000 + 7 * (n % 5) for n in range(20)]
    with log.producer(linger_ms=0, compression_type=codec) as producer:
        producer.send("one", b"first")
        assert stuck.reached.wait(10)
        noise = [bytes((n * 7 + i * i) % 256 for i in range(60)) for n in range(20)]
        futures = [
            producer.send("one", v, b"k%d" % n, timestamp_ms=times[n], headers=[("h", None)])
            for n, v in enumerate(noise)
        ]
        run = producer.send_batch("one", noise, [b"c"] * 20, timestamps_ms=times)
        log.alter_topic("one", {"max.message.bytes": 300})
        stuck.go.set()
        assert [future.result(10).offset for future in futures] == list(range(1, 21))
        assert run.result(10) == [("one", 0, 21, 20)]
        assert producer.metrics()["record-error-total"] == 0
    found = list(log.scan("one").records())
    assert [record.value for record in found] == [b"first", *noise, *noise]
    assert [record.timestamp_ms for record in found[1:]] == times * 2
    assert [record.headers for record in found[1:21]] == [(("h", None),)] * 20
    sizes = log._engine.partition("one", 0).fetch(1, max_bytes=1 << 20).batches["size"]
    assert max(sizes) <= 300
    assert len(sizes) > 5


def test_a_split_that_others_get_into_gives_no_wrong_offsets(
    log: embedlog.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = log._engine.partition("one", 0)
    real = type(partition).append

    def append(this: Any, run: Any, **keywords: Any) -> Any:
        done = real(this, run, **keywords)
        if run.record_count > 1:
            done = done._replace(
                pieces=(
                    (done.base_offset, done.base_offset + 1),
                    (done.base_offset + 5, done.last_offset + 5),
                )
            )
        return done

    with log.producer(linger_ms=60_000) as producer:
        futures = [producer.send("one", b"x" * 100) for _ in range(10)]
        log.alter_topic("one", {"max.message.bytes": 400})
        wait_until(lambda: log._engine.partition("one", 0).config.max_message_bytes == 400)
        monkeypatch.setattr(type(partition), "append", append)
        producer.flush()
        assert {future.result(10).offset for future in futures} == {-1}
    monkeypatch.undo()
    assert len(values(log)) == 10


def test_a_record_too_large_by_itself_is_not_saved_by_splitting(log: embedlog.Log) -> None:
    with log.producer(linger_ms=60_000) as producer:
        futures = [producer.send("one", b"x" * size) for size in (100, 600, 100)]
        log.alter_topic("one", {"max.message.bytes": 400})
        with pytest.raises(DeliveryError, match="3 records not written"):
            producer.flush()
        assert [type(future.exception(10)) for future in futures] == [RecordTooLargeError] * 3
        producer.send("one", b"after").result(10)
    assert values(log) == [b"after"]
