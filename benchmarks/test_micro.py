"""Micro-benchmarks of single calls, by pytest-benchmark:
`pytest benchmarks -o addopts=--import-mode=importlib --benchmark-only`.

Names carry their parameters. Nothing here has a target: the figures that have one are in
`python -m benchmarks`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedlog
from embedlog._native import codec
from embedlog.coordination.transactions.transaction_records import encode_key
from embedlog.format.record_batch import Chain, decode, encode, partitions_of, scan, stamp
from embedlog.format.record_columns import BytesColumn, Columns
from embedlog.partition.log_context import AppendProgress
from embedlog.storage.files import deadline_after

Bench = Any
SIZES = [100, 1000]
TOTAL_BYTES = 1_000_000  # with its framing below the limit of one batch, 1 MiB


def values(record_bytes: int) -> BytesColumn:
    return BytesColumn.of(
        [b"%0*d" % (record_bytes, number) for number in range(TOTAL_BYTES // record_bytes)]
    )


def run_of(record_bytes: int) -> memoryview:
    column = values(record_bytes)
    (run,) = encode(
        Columns(len(column), column, None, 1_700_000_000_000, None), batch_bytes=2 * TOTAL_BYTES
    )
    return run.buffer


@pytest.mark.parametrize("size", [64, 4096, 1 << 20])
def test_crc32c(benchmark: Bench, size: int) -> None:
    data = np.zeros(size, dtype=np.uint8)
    benchmark.extra_info["bytes"] = size
    assert benchmark(codec.crc32c, data) >= 0


@pytest.mark.parametrize("record_bytes", SIZES)
def test_encode_one_megabyte(benchmark: Bench, record_bytes: int) -> None:
    columns = Columns(
        len(values(record_bytes)), values(record_bytes), None, 1_700_000_000_000, None
    )
    assert (
        sum(run.record_count for run in benchmark(lambda: list(encode(columns)))) == columns.count
    )


@pytest.mark.parametrize("record_bytes", SIZES)
def test_scan_one_megabyte(benchmark: Bench, record_bytes: int) -> None:
    data = run_of(record_bytes)
    assert benchmark(lambda: scan(data, Chain())).consumed == len(data)


@pytest.mark.parametrize("record_bytes", SIZES)
def test_decode_one_megabyte(benchmark: Bench, record_bytes: int) -> None:
    data = run_of(record_bytes)
    batches = scan(data, Chain()).batches
    assert benchmark(lambda: decode(data, batches)).count == TOTAL_BYTES // record_bytes


def test_partitions_of_ten_thousand_keys(benchmark: Bench) -> None:
    keys = BytesColumn.of([b"key-%d" % number for number in range(10_000)])
    assert len(benchmark(partitions_of, keys, 4)) == 10_000


@pytest.fixture
def log(tmp_path: Path) -> Any:
    with embedlog.open(tmp_path / "log") as opened:
        opened.create_topic("bench", 1, config={"flush.ms": 3_600_000})
        yield opened


def test_send_and_wait(benchmark: Bench, log: embedlog.Log) -> None:
    with log.producer(linger_ms=0) as producer:
        assert benchmark(lambda: producer.send("bench", b"x" * 100).result()).offset >= 0


def test_send_batch_of_one_megabyte(benchmark: Bench, log: embedlog.Log) -> None:
    column = [b"%0100d" % number for number in range(TOTAL_BYTES // 100)]
    with log.producer() as producer:
        assert benchmark(lambda: producer.send_batch("bench", column).result())


def test_poll_five_hundred(benchmark: Bench, log: embedlog.Log) -> None:
    with log.producer() as producer:
        producer.send_batch("bench", [b"%0100d" % number for number in range(500)]).result()
    with log.consumer("bench", auto_offset_reset="earliest") as consumer:
        consumer.poll(timeout=1.0)

        def again() -> int:
            consumer.seek_to_beginning()
            return len(consumer.poll(timeout=1.0))

        assert benchmark(again) == 500


@pytest.mark.parametrize("partition_count", [1, 4])
def test_transaction_of_a_thousand_records(
    benchmark: Bench, tmp_path: Path, partition_count: int
) -> None:
    """A transaction without encoding: register and append, decide, write markers, complete."""
    with embedlog.open(tmp_path / "log", config={"housekeeping": False}) as log:
        log.create_topic("t", partition_count)
        owner = log._engine.transactions.owner("id", 60_000)
        owner.init()
        count = 1000 // partition_count
        columns = Columns(
            count, BytesColumn.of([bytes(100)] * count), None, 1_700_000_000_000, None
        )
        runs = [next(iter(encode(columns))) for _ in range(partition_count)]

        def transact() -> None:
            owner.begin()
            for run in runs:
                stamp(run, owner.stamp, 0)
            begun = [
                (log._engine.partition("t", number), run, AppendProgress(run))
                for number, run in enumerate(runs)
            ]
            owner.begin_in(begun)
            for partition, run, progress in begun:
                owner.append(partition, run, progress=progress)
            owner.end(commit=True)

        benchmark(transact)


def test_deciding_over_an_internal_topic(benchmark: Bench, tmp_path: Path) -> None:
    """A decision of the group coordinator: lock, read, decide, append."""
    with embedlog.open(tmp_path / "log", config={"housekeeping": False}) as log:
        log._engine.transactions.owner("id", 60_000).init()
        topic = log._engine.transactions.topic
        number = topic.partition_of("id")

        def decide() -> None:
            with topic.lock_for_decision(number, deadline_after(10)) as decision:
                decision.append([(encode_key("x"), bytes(100))])

        benchmark(decide)
