"""`send_batch` over a real log: places, order, spreading, refusals, compression."""

from __future__ import annotations

import random
import threading
from typing import Any

import numpy as np
import pytest

import embedlog
from embedlog import partitioners
from embedlog.errors import (
    InvalidRecordError,
    InvalidTimestampError,
    RecordTooLargeError,
    UnknownTopicOrPartitionError,
)
from embedlog.producer import pipeline
from tests.support import producer_helpers
from tests.support.producer_helpers import records, values

log = producer_helpers.log
producer = producer_helpers.producer
stuck = producer_helpers.stuck


# ---- columns ------------------------------------------------------------------------------------


def test_a_batch_lands_in_one_place_and_says_where(
    log: embedlog.Log, producer: embedlog.Producer
) -> None:
    producer.send("one", b"before")
    assert producer.send_batch("one", [b"%d" % number for number in range(5000)]).result(10) == [
        ("one", 0, 1, 5000)
    ]
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


def test_many_batches_of_one_call(
    log: embedlog.Log, producer: embedlog.Producer, rng: random.Random
) -> None:
    items = [rng.randbytes(rng.choice([0, 10, 5000])) for _ in range(3000)]
    keys = [rng.choice([None, b"%d" % number]) for number in range(3000)]
    places = producer.send_batch(
        "t",
        items,
        keys,
        timestamps_ms=list(range(3000)),
        headers=[[("n", b"%d" % number)] for number in range(3000)],
    )
    assert sum(count for _, _, _, count in places.result(30)) == 3000
    by_time = sorted(records(log, "t"), key=lambda record: record.timestamp_ms)
    assert [(record.value, record.key, record.headers) for record in by_time] == [
        (item, key, (("n", b"%d" % number),))
        for number, (item, key) in enumerate(zip(items, keys, strict=True))
    ]
    for record in by_time:
        if record.key is not None:
            assert record.partition == partitioners.partition_of(record.key, 4)
    for number in range(4):
        times = [record.timestamp_ms for record in records(log, "t") if record.partition == number]
        assert times == sorted(times)


def test_the_partition_of_a_batch_can_be_given(
    log: embedlog.Log, producer: embedlog.Producer
) -> None:
    assert producer.send_batch("t", [b"v"] * 3, [b"a", b"b", b"c"], partition=2).result(10) == [
        ("t", 2, 0, 3)
    ]


@pytest.mark.parametrize(
    "columns", [{"keys": [None] * 3}, {"keys": np.array([None] * 3, dtype=object)}]
)
def test_keys_that_are_all_null_are_no_keys(
    log: embedlog.Log, producer: embedlog.Producer, columns: dict[str, Any]
) -> None:
    ((topic, _, _, count),) = producer.send_batch("t", [b"1", b"2", b"3"], **columns).result(10)
    assert (topic, count) == ("t", 3)


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
        (
            {"values": [b"x", b"y" * (1 << 19)], "keys": [b"", b"k" * (1 << 19)]},
            RecordTooLargeError,
        ),
        ({"values": [b"x", b"y"], "headers": [[], [("h", b"x" * (1 << 20))]]}, RecordTooLargeError),
        ({"timestamps_ms": 2**62}, InvalidTimestampError),
        ({"timestamps_ms": [5, -1]}, InvalidTimestampError),
    ],
    ids=lambda each: repr(each).partition(" at ")[0][:40],
)
def test_a_batch_that_cannot_be_written_fails_its_future_and_writes_nothing(
    log: embedlog.Log, producer: embedlog.Producer, arguments: Any, error: type[Exception]
) -> None:
    future = producer.send_batch(**({"topic": "one", "values": [b"x", b"y"]} | arguments))
    assert isinstance(future.exception(10), error)
    assert values(log) == []


@pytest.mark.parametrize(
    "columns", [{"keys": [b"k"]}, {"timestamps_ms": [1, 2, 3]}, {"headers": [[]]}], ids=repr
)
@pytest.mark.parametrize("more", [{}, {"expected_offset": 0, "partition": 0}], ids=repr)
def test_columns_of_different_lengths_raise_in_the_call(
    log: embedlog.Log, producer: embedlog.Producer, columns: Any, more: Any
) -> None:
    with pytest.raises(InvalidRecordError, match="as values: expected 2, found"):
        producer.send_batch("one", [b"x", b"y"], **columns, **more)
    producer.flush()
    assert values(log) == []


def test_a_batch_of_the_wrong_type_raises_and_writes_nothing(
    log: embedlog.Log, producer: embedlog.Producer
) -> None:
    for wrong in ("text", [b"x"] * 100_000 + ["text"], 5, np.arange(3)):
        with pytest.raises(TypeError):
            producer.send_batch("one", wrong)
    with pytest.raises(UnknownTopicOrPartitionError):
        producer.send_batch("one", [b"x"], partition=-1)
    assert values(log) == []


def test_an_empty_batch_is_done_and_empty(producer: embedlog.Producer) -> None:
    assert producer.send_batch("one", []).result(0) == []


def test_arrow_tables_are_written_as_they_are(
    log: embedlog.Log, producer: embedlog.Producer
) -> None:
    pa = pytest.importorskip("pyarrow", reason="needs pyarrow")
    table = pa.table(
        {
            "value": [b"a", None, b"c"],
            "key": ["x", None, "z"],
            "partition": pa.array([3, 0, None], pa.int32()),
        }
    )
    producer.send_batch("t", table).result(10)
    found = sorted(
        (record.value or b"", record.key, record.partition) for record in records(log, "t")
    )
    assert found == [
        (b"", None, 0),
        (b"a", b"x", 3),
        (b"c", b"z", partitioners.partition_of(b"z", 4)),
    ]
    wrong = table.set_column(2, "partition", pa.array([3, 0, 9], pa.int32()))
    assert isinstance(producer.send_batch("t", wrong).exception(10), UnknownTopicOrPartitionError)


def test_more_than_the_memory_flows_through_it(log: embedlog.Log) -> None:
    with log.producer(buffer_memory=2 << 20) as producer:
        places = producer.send_batch("one", [b"x" * 1000] * 20_000).result(60)
    assert places == [("one", 0, 0, 20_000)]


def test_a_batch_that_is_stuck_takes_little_memory_and_keeps_nobody_else_waiting(
    producer: embedlog.Producer, stuck: producer_helpers.Stuck
) -> None:
    rows = producer._accumulator.rows
    futures = []
    thread = threading.Thread(
        target=lambda: futures.append(producer.send_batch("one", [b"x" * 1000] * 20_000))
    )
    thread.start()
    producer_helpers.wait_until(lambda: rows.memory_used >= pipeline.AHEAD_BYTES)
    other = producer.send("t", b"other")
    assert not futures
    assert not rows.waiting
    assert rows.memory_used <= pipeline.AHEAD_BYTES + pipeline.RUN_BYTES
    stuck.go.set()
    thread.join(10)
    assert futures[0].result(10) == [("one", 0, 0, 20_000)]
    assert other.result(10).offset == 0


# ---- compression --------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("by_topic", [False, True], ids=["by the producer", "by the topic"])
def test_every_codec_comes_back(log: embedlog.Log, codec: str, by_topic: bool) -> None:
    if codec == "snappy":
        pytest.importorskip("cramjam", reason="needs cramjam: pip install 'embedlog[snappy]'")
    log.create_topic("z", config={"compression.type": codec} if by_topic else {})
    lines = [
        b"line %d of a text that repeats itself, itself, itself" % number for number in range(3000)
    ]
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
