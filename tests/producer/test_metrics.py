"""The metrics of a producer: sums without end, rates and means of the last minute."""

from __future__ import annotations

from typing import Any

import pytest

import embedlog
from embedlog.producer.sender import Sender
from tests.support.producer_helpers import Stuck, wait_until
from tests.support.producer_helpers import log as log
from tests.support.producer_helpers import stuck as stuck


def test_a_producer_tells_kafkas_key_figures(log: embedlog.Log) -> None:
    with log.producer(
        batch_size=1000, linger_ms=1000, compression_type="zstd", max_request_size=2000
    ) as producer:
        for _ in range(100):
            producer.send("one", b"x" * 200)
        assert producer.send("one", b"x" * 3000).exception(10) is not None
        producer.flush(10)
        found = producer.metrics()
    assert (
        found["record-send-total"],
        found["record-error-total"],
        found["record-retry-total"],
    ) == (100, 1, 0)
    assert found["record-send-rate"] > 0
    assert 0 < found["batch-size-avg"] <= found["batch-size-max"] < 1000
    assert found["records-per-request-avg"] > 4
    assert 200 < found["record-size-avg"] <= found["record-size-max"] < 220
    assert 0 < found["compression-rate-avg"] < 0.5
    assert 0 < found["record-queue-time-avg"] <= found["record-queue-time-max"] < 10_000
    assert 0 < found["request-latency-avg"] <= found["request-latency-max"]
    assert found["flush-time-ns-total"] > 0
    assert found["buffer-available-bytes"] == found["buffer-total-bytes"] == 32 << 20
    assert (
        found["requests-in-flight"]
        == found["waiting-threads"]
        == found["bufferpool-wait-ratio"]
        == 0
    )


@pytest.mark.parametrize("linger_ms", [0, 5])
def test_the_largest_record_is_seen_and_the_mean_is_that_of_records(
    log: embedlog.Log, linger_ms: int
) -> None:
    sizes = [10, 400, 20]
    with log.producer(linger_ms=linger_ms) as producer:
        empty = producer.metrics()
        for size in sizes:
            producer.send("one", b"x" * size).result(10)
        found = producer.metrics()
        assert producer.send_batch("one", [b"x" * 900]).result(10)
        # sizes in columns are not measured
        assert producer.metrics()["record-size-max"] == found["record-size-max"]
    assert (empty["record-size-avg"], empty["record-size-max"]) == (0, 0)
    assert 400 < found["record-size-max"] < 420
    assert sum(sizes) / 3 < found["record-size-avg"] < sum(sizes) / 3 + 15


def test_no_batch_is_in_flight_when_its_futures_are_settled(
    log: embedlog.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program whose `flush` has returned reads the metrics while the thread of the producer may
    still be here.
    """
    found: list[int] = []
    settle = Sender._settle

    def settled(self: Sender, *arguments: Any) -> None:
        found.append(self.in_flight)
        settle(self, *arguments)

    monkeypatch.setattr(Sender, "_settle", settled)
    with log.producer(linger_ms=1000, batch_size=1000) as producer:
        for _ in range(100):
            producer.send("one", b"x" * 200)
        producer.flush(10)
    assert set(found) == {0}


def test_batches_of_columns_are_counted_one_by_one(log: embedlog.Log) -> None:
    with log.producer() as producer:
        producer.send_batch("one", [b"x" * 1000] * 3000).result(10)
        found = producer.metrics()
    assert found["batch-total"] == 3
    assert found["record-send-total"] == 3000
    assert found["batch-size-max"] <= 1 << 20


def test_waiting_for_memory_is_seen(log: embedlog.Log, stuck: Stuck) -> None:
    with log.producer(buffer_memory=400, linger_ms=0, max_block_ms=50) as producer:
        producer.send("one", b"x" * 200)
        assert stuck.reached.wait(10)
        assert producer.metrics()["requests-in-flight"] == 1
        assert producer.send("one", b"x" * 200).exception(10) is not None
        found = producer.metrics()
        stuck.go.set()
        wait_until(lambda: producer.metrics()["requests-in-flight"] == 0)
    assert found["buffer-exhausted-waits-total"] == 1
    assert found["bufferpool-wait-ratio"] > 0
    assert found["bufferpool-wait-time-ns-total"] >= 50e6
