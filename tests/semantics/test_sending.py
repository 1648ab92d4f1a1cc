"""A producer's behaviour, row by row of Kafka's documentation: the choice of the partition,
batches, flush, close, callbacks.
"""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import pytest

import embedlog
from embedlog import partitioners
from embedlog.errors import (
    ClosedError,
    DeadlineError,
    DeliveryError,
    InvalidRecordError,
    RecordTooLargeError,
    StateError,
    UnknownTopicOrPartitionError,
)
from tests.support.partition_queues import accumulator
from tests.support.producer_helpers import LONG_MS, Stuck, counts, values, wait_until
from tests.support.producer_helpers import log as log
from tests.support.producer_helpers import producer as producer
from tests.support.producer_helpers import stuck as stuck
from tests.support.routing import VECTORS, route

# ---- the choice of the partition ----------------------------------------------------------------


def test_a_given_partition_goes_before_the_partitioner_and_that_before_the_key(
    log: embedlog.Log,
) -> None:
    by_key = (VECTORS[b"abc"] & 0x7FFFFFFF) % 4
    with log.producer(partitioner=lambda key, every, available: (by_key + 1) % 4) as producer:
        assert producer.send("t", b"v", b"abc", partition=2).result(10).partition == 2
        assert producer.send("t", b"v", b"abc").result(10).partition == (by_key + 1) % 4
    with log.producer() as producer:
        assert producer.send("t", b"v", b"abc").result(10).partition == by_key
        assert producer.send_batch("t", [b"v"], [b"abc"]).result(10)[0][1] == by_key


def test_an_empty_key_is_hashed_and_a_null_key_is_not(log: embedlog.Log) -> None:
    with log.producer() as producer:
        assert {producer.send("t", b"v", b"").result(10).partition for _ in range(5)} == {
            VECTORS[b""] % 4
        }
    with log.producer(batch_size=1) as producer:
        assert len({producer.send("t", b"v").result(10).partition for _ in range(100)}) == 4


@pytest.mark.parametrize("batch", [False, True])
def test_ignored_keys_stick_as_no_keys_do(log: embedlog.Log, batch: bool) -> None:
    with log.producer(partitioner_ignore_keys=True) as producer:
        if batch:
            places = producer.send_batch("t", [b"v"] * 50, [b"%d" % n for n in range(50)]).result(
                10
            )
            assert [place[3] for place in places] == [50]
        else:
            assert (
                len({producer.send("t", b"v", b"%d" % n).result(10).partition for n in range(50)})
                == 1
            )


def test_at_a_low_rate_without_linger_it_stays_until_batch_size_bytes_have_gone_there(
    log: embedlog.Log,
) -> None:
    """Not one record a partition: Kafka's rule counts bytes, not batches."""
    with log.producer(linger_ms=0, batch_size=1000) as producer:
        used = [producer.send("t", b"x" * 100).result(10).partition for _ in range(60)]
    changes = [at for at in range(1, 60) if used[at] != used[at - 1]]
    assert changes
    # of 61 + 107 bytes each, six are the first above 1000
    assert all(at % 6 == 0 for at in changes)


def test_the_sticky_rule_as_a_slow_twin_says_it(rng: random.Random) -> None:
    """At batch.size bytes, once the newest batch has no room for the next record; at twice that in
    any case.
    """
    way = route(5, accumulator(), batch_size=1000)
    switches = 0
    for _ in range(3000):
        queue = way.queues[max(way.sticky, 0)]
        before = way.sticky
        stuck_bytes = way.stuck_bytes
        producer_batches = queue.batch_count
        sent_by_key = rng.random() < 0.3
        way.append(
            rng.randbytes(rng.choice([5, 50, 300])), b"k" if sent_by_key else None, None, None, ()
        )
        if sent_by_key:
            assert (way.sticky, way.stuck_bytes) == (before, stuck_bytes)
            continue
        switched = way.stuck_bytes < stuck_bytes or before < 0
        switches += switched
        if switched:
            assert before < 0 or stuck_bytes >= 1000
        else:
            opened = queue.batch_count > producer_batches
            assert stuck_bytes < 2000
            assert stuck_bytes < 1000 or not opened
    assert switches > 50


def test_round_robin_counts_for_each_topic_and_skips_nothing(log: embedlog.Log) -> None:
    log.create_topic("u", partitions=3)
    with log.producer(
        partitioner=partitioners.RoundRobinPartitioner(start=0), batch_size=1
    ) as producer:
        found = [(producer.send("t", b"v", b"k"), producer.send("u", b"v")) for _ in range(5)]
        assert [(one.result(10).partition, other.result(10).partition) for one, other in found] == [
            (0, 0),
            (1, 1),
            (2, 2),
            (3, 0),
            (0, 1),
        ]
        places = producer.send_batch("u", [b"v"] * 4, [b"k"] * 4).result(10)
        # the order of partitions is not promised
        assert sorted(places) == [("u", 0, 2, 1), ("u", 1, 2, 1), ("u", 2, 1, 2)]


@pytest.mark.parametrize("batch", [False, True])
def test_new_partitions_change_where_a_key_goes(
    log: embedlog.Log, producer: embedlog.Producer, batch: bool
) -> None:
    def place() -> int:
        if batch:
            return int(producer.send_batch("one", [b"v"], [b"abc"]).result(10)[0][1])
        return producer.send("one", b"v", b"abc").result(10).partition

    assert place() == 0
    log.create_partitions("one", 10)
    wait_until(lambda: place() == 7)  # noticed when something was written


# ---- batches ------------------------------------------------------------------------------------


def test_a_first_record_is_always_taken_however_large(log: embedlog.Log) -> None:
    with log.producer(batch_size=10) as producer:
        assert producer.send("one", b"x" * 100_000).result(10).offset == 0


@pytest.mark.parametrize("ends", ["flush", "close", "result", "waiter"])
def test_what_ends_a_linger(log: embedlog.Log, ends: str) -> None:
    producer = log.producer(linger_ms=LONG_MS, delivery_timeout_ms=10 * LONG_MS, buffer_memory=700)
    future = producer.send("one", b"x" * 300)
    if ends == "flush":
        producer.flush(10)
    elif ends == "close":
        producer.close(10)
    elif ends == "result":
        future.result(10)
    else:
        producer.send("one", b"x" * 300)
    assert future.exception(10) is None
    producer.close()


def test_batches_grow_with_the_compression_that_is_seen(log: embedlog.Log) -> None:
    """Kafka's estimate: the ratio starts at 1 and improves step by step, so batches hold more and
    more records.
    """
    with log.producer(
        compression_type="zstd",
        batch_size=4000,
        linger_ms=LONG_MS,
        delivery_timeout_ms=10 * LONG_MS,
    ) as producer:
        for _ in range(200):
            for _ in range(40):
                producer.send("one", b"x" * 100)
            producer.flush(10)
    found = counts(log)
    assert found[0] <= 37
    assert found[-1] == 40


def test_a_batch_that_is_too_large_after_all_is_split(log: embedlog.Log) -> None:
    with log.producer(linger_ms=LONG_MS, delivery_timeout_ms=10 * LONG_MS) as producer:
        futures = [producer.send("one", b"x" * 100) for _ in range(50)]
        log.alter_topic("one", {"max.message.bytes": 1000})
        producer.flush(10)
        assert [future.result(0).offset for future in futures] == list(range(50))
        assert producer.metrics()["batch-split-total"] == 1
    assert max(counts(log)) < 10


def test_a_record_that_is_large_before_compression_is_refused_only_where_it_is_compressed(
    log: embedlog.Log,
) -> None:
    log.alter_topic("one", {"max.decompressed.message.bytes": 1000})
    with log.producer() as plain, log.producer(compression_type="zstd") as compressing:
        plain.send("one", bytes(2000)).result(10)
        plain.send_batch("one", [bytes(2000)]).result(10)
        compressing.send("one", bytes(900)).result(10)
        compressing.send_batch("one", [bytes(900)] * 3).result(10)
        for future in (
            compressing.send("one", bytes(2000)),
            compressing.send_batch("one", [b"", bytes(2000)]),
        ):
            error = future.exception(10)
            assert isinstance(error, InvalidRecordError)
            assert (
                "larger than max.decompressed.message.bytes: expected at most 1000 bytes, found 20"
                in str(error)
            )
    assert len(values(log)) == 6


def test_one_record_that_cannot_be_written_costs_the_others_nothing(
    log: embedlog.Log, stuck: Stuck
) -> None:
    with log.producer(batch_size=1, linger_ms=0) as producer:
        first = producer.send("one", b"a")
        assert stuck.reached.wait(10)
        rest = [producer.send("one", value) for value in (b"b", b"x" * 5000, b"c")]
        log.alter_topic("one", {"max.message.bytes": 1000})
        stuck.go.set()
        assert isinstance(rest[1].exception(10), RecordTooLargeError)
        assert [each.result(10).offset for each in (first, rest[0], rest[2])] == [0, 1, 2]


def test_records_of_one_thread_keep_their_order_in_a_partition(log: embedlog.Log) -> None:
    with log.producer(
        batch_size=200,
        linger_ms=0,
        enable_idempotence=False,
        max_in_flight_requests_per_connection=50,
    ) as producer:
        for number in range(5000):
            producer.send("one", b"%d" % number)
    assert values(log) == [b"%d" % number for number in range(5000)]


# ---- futures and callbacks ----------------------------------------------------------------------


def test_callbacks_run_in_append_order_on_one_thread_with_the_future_done(
    log: embedlog.Log,
) -> None:
    called: list[Any] = []
    with log.producer(linger_ms=20, client_id="p") as producer:
        for number in range(300):
            future = producer.send("one", b"v")
            future.add_done_callback(
                lambda done, n=number: called.append(
                    (n, done.done(), threading.current_thread().name)
                )
            )
        producer.flush(10)
    assert called == [(number, True, "embedlog-p") for number in range(300)]


def test_metadata_of_a_log_append_time_topic_has_that_time(
    log: embedlog.Log, producer: embedlog.Producer
) -> None:
    log.create_topic("stamped", config={"message.timestamp.type": "LogAppendTime"})
    before = int(time.time() * 1000)
    done = producer.send("stamped", b"v", timestamp_ms=5).result(10)
    assert before <= done.timestamp_ms <= int(time.time() * 1000)
    assert done[:3] == ("stamped", 0, 0)


# ---- flush and close ----------------------------------------------------------------------------


def test_flush_makes_all_of_now_due_raises_unheard_failures_and_lets_others_send(
    log: embedlog.Log,
) -> None:
    with log.producer(linger_ms=LONG_MS, delivery_timeout_ms=10 * LONG_MS) as producer:
        stop = threading.Event()

        def send_on() -> None:
            while not stop.is_set():
                producer.send("t", b"v", partition=0)

        other = threading.Thread(target=send_on)
        other.start()
        futures = [producer.send("one", b"v"), producer.send("one", b"x" * (2 << 20))]
        with pytest.raises(DeliveryError, match="1 record not written"):
            producer.flush(10)
        assert [future.done() for future in futures] == [True, True]
        producer.flush(10)
        stop.set()
        other.join(10)


def test_close_drains_everything_without_a_timeout(log: embedlog.Log) -> None:
    producer = log.producer(linger_ms=LONG_MS, delivery_timeout_ms=10 * LONG_MS)
    futures = [producer.send("t", b"v", b"%d" % number) for number in range(100)]
    producer.close()
    assert all(future.exception(0) is None for future in futures)


@pytest.mark.parametrize("timeout", [0, 0.05])
def test_close_with_a_timeout_fails_the_rest_by_force(
    log: embedlog.Log, stuck: Stuck, timeout: float
) -> None:
    producer = log.producer(linger_ms=0)
    producer.send("one", b"taken")
    assert stuck.reached.wait(10)
    waiting = producer.send("one", b"waits")
    with pytest.raises(DeliveryError, match="1 record not written"):
        producer.close(timeout)
    with pytest.raises(ClosedError, match="closed before the record was written"):
        waiting.result(0)
    stuck.go.set()


@pytest.mark.parametrize(("timeout", "written"), [(0, False), (None, True)])
def test_close_inside_a_callback_writes_the_rest_there_or_is_forced(
    log: embedlog.Log, stuck: Stuck, timeout: float | None, written: bool
) -> None:
    producer = log.producer(linger_ms=0)
    closing = producer.send("one", b"v")
    closing.add_done_callback(lambda future: producer.close(timeout))
    assert stuck.reached.wait(10)
    waiting = producer.send("one", b"waits")
    stuck.go.set()
    assert isinstance(waiting.exception(10), ClosedError) is not written
    with pytest.raises(ClosedError):
        producer.send("one", b"late")


def test_flush_inside_a_callback_is_refused(log: embedlog.Log) -> None:
    raised: list[Any] = []

    def flush(future: embedlog.Future) -> None:
        try:
            producer.flush()
        except StateError as error:
            raised.append(error)

    with log.producer() as producer:
        producer.send("one", b"v").add_done_callback(flush)
        producer.flush(10)
    assert "inside a callback" in str(raised[0])


def test_flush_says_when_its_time_was_too_short(log: embedlog.Log, stuck: Stuck) -> None:
    with log.producer(linger_ms=0) as producer:
        future = producer.send("one", b"v")
        with pytest.raises(DeadlineError):
            producer.flush(0.01)
        stuck.go.set()
        assert future.result(10).offset == 0


def test_partitions_for_names_the_partitions(
    log: embedlog.Log, producer: embedlog.Producer
) -> None:
    assert producer.partitions_for("t") == {0, 1, 2, 3}
    with pytest.raises(UnknownTopicOrPartitionError):
        producer.partitions_for("unknown")
