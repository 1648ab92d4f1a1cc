"""Small operations: one record at a random offset, one acknowledged record, one topic, one
commit.
"""

from __future__ import annotations

import bisect
import contextlib
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import zstandard

import embedlog
from embedlog import TopicPartition
from embedlog._native import codec
from embedlog.format.record_batch import HEADER_SIZE, Chain, scan

from .context import QUIET, Context, log_files, remove
from .measure import Outcome, percentile
from .references import heads, median_us, pwrite_us, send_us

RECORDS = 1_000_000
SAMPLES = 1_000
WARM = 20
PART = 10_000
BASE_MS = 1_700_000_000_000  # of the first record; one more for each record


def _filled(directory: Path, kind: str) -> None:
    """A million records of 100 bytes: in batches of 16 KiB or 1 MiB, or compressed in batches of
    about 10,000.
    """
    options: dict[str, Any] = {"compression_type": "zstd"} if kind == "zstd" else {}
    with embedlog.open(directory) as log, log.producer(**options) as producer:
        log.create_topic("bench", 1, config=QUIET | {"max.message.bytes": 2 << 20})
        for first in range(0, RECORDS, PART):
            values = [b"%0100d" % number for number in range(first, first + PART)]
            if kind == "16KiB":
                for number, value in enumerate(values, first):
                    producer.send("bench", value, timestamp_ms=BASE_MS + number)
            else:
                times = list(range(BASE_MS + first, BASE_MS + first + PART))
                producer.send_batch("bench", values, timestamps_ms=times).result()


class _Batches:
    """The upper bound: `pread` and CRC-32C of the batch that holds an offset, and its
    decompression; no search, no record.
    """

    def __init__(self, path: Path) -> None:
        rows = scan(path.read_bytes(), Chain()).batches
        self._rows: list[tuple[int, int]] = list(
            zip(rows["position"].tolist(), rows["size"].tolist(), strict=True)
        )
        self._bases: list[int] = rows["base_offset"].tolist()
        self._zstd = bool(rows["attributes"][0] & 7)
        self._unpacker = zstandard.ZstdDecompressor()
        self._fd = os.open(path, os.O_RDONLY)
        self.records = int(rows["records"][0])

    def read(self, row: int) -> None:
        position, size = self._rows[row]
        data = os.pread(self._fd, size, position)
        codec.crc32c(memoryview(data)[21:])
        if self._zstd:
            self._unpacker.decompress(memoryview(data)[HEADER_SIZE:])

    def row_of(self, offset: int) -> int:
        return bisect.bisect_right(self._bases, offset) - 1

    def row_base(self, row: int) -> int:
        return self._bases[row]

    def close(self) -> None:
        os.close(self._fd)


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1e6


def point(context: Context) -> Iterator[Outcome]:
    """`seek` and `poll(max_records=1)`, the next record, another one of its batch, a scan of one
    record, and a read by time.

    Batches of 1 MiB and compressed ones must be read, verified and decompressed as a whole: they
    are compared with that.
    """
    for kind, target, next_target in (("16KiB", 30.0, 3.0), ("1MiB", 1.3, 3.0), ("zstd", 1.3, 3.0)):
        directory = context.fresh("point")
        try:
            _filled(directory, kind)
            yield from _points(directory, kind, target, next_target)
        finally:
            remove(directory)


def _points(directory: Path, kind: str, target: float, next_target: float) -> Iterator[Outcome]:
    rng = random.Random(20261125)
    bare = _Batches(log_files(directory)[0])
    spent: dict[str, list[float]] = {
        "bare": [],
        "poll": [],
        "next": [],
        "again": [],
        "scan": [],
        "time": [],
    }
    with embedlog.open(directory) as log, log.consumer() as consumer:
        one = TopicPartition("bench", 0)
        consumer.assign([one])

        def poll() -> object:
            return consumer.poll(timeout=1, max_records=1)

        for _ in range(WARM + SAMPLES):
            offset = rng.randrange(RECORDS)

            def seek_and_poll(offset: int = offset) -> object:
                consumer.seek(one, offset)
                return poll()

            def scan_one(offset: int = offset) -> object:
                return log.scan("bench", start_offset=offset, end_offset=offset + 1).to_arrow()

            def read_by_time(time_ms: int = BASE_MS + rng.randrange(RECORDS)) -> object:
                found = consumer.offsets_for_times({one: time_ms})[one]
                assert found is not None
                return seek_and_poll(found.offset)

            spent["bare"].append(_timed(lambda offset=offset: bare.read(bare.row_of(offset))))
            spent["poll"].append(_timed(seek_and_poll))
            spent["next"].append(_timed(poll))
            near = bare.row_base(bare.row_of(offset)) + rng.randrange(100)
            spent["again"].append(_timed(lambda near=near: seek_and_poll(near)))
            spent["scan"].append(_timed(scan_one))
            spent["time"].append(_timed(read_by_time))
    bare.close()
    found = {name: values[WARM:] for name, values in spent.items()}
    median = {name: statistics.median(values) for name, values in found.items()}
    detail = {"bare": median["bare"], "p99": percentile(found["poll"], 0.99), "batch": bare.records}
    if kind == "16KiB":
        yield Outcome(f"point/seek+poll/{kind}", median["poll"], "us", target, False, detail)
    else:
        detail |= {"us": median["poll"]}
        yield Outcome(
            f"point/seek+poll/{kind}",
            median["poll"] / median["bare"],
            "of bare",
            target,
            False,
            detail,
        )
    by_time = {
        "us": median["time"],
        "by offset": median["poll"],
        "p99": percentile(found["time"], 0.99),
    }
    yield Outcome(
        f"point/time/{kind}", median["time"] / median["poll"], "of an offset", 3.0, False, by_time
    )
    again = detail | {"p99": percentile(found["again"], 0.99)}
    yield Outcome(f"point/same-batch/{kind}", median["again"], "us", 30.0, False, again)
    yield Outcome(
        f"point/next/{kind}",
        median["next"],
        "us",
        next_target,
        False,
        detail | {"p99": percentile(found["next"], 0.99)},
    )
    yield Outcome(
        f"point/scan/{kind}",
        median["scan"],
        "us",
        100.0,
        False,
        {"bare": median["bare"], "p99": percentile(found["scan"], 0.99)},
    )


def acknowledged(context: Context) -> Iterator[Outcome]:
    """`send().result()` of one record of 100 bytes with each codec; without one it is the
    reference.
    """
    directory = context.fresh("acknowledged")
    try:
        with embedlog.open(directory) as log:
            log.create_topic("bench", 1, config=QUIET)
            with contextlib.ExitStack() as stack:
                names = ("none", "lz4", "zstd", "gzip")
                producers = {
                    name: stack.enter_context(log.producer(compression_type=name)) for name in names
                }
                spent: dict[str, list[float]] = {name: [] for name in names}
                for number in range(WARM * 10 + context.samples):
                    for name, producer in producers.items():
                        spent[name].append(
                            _timed(
                                lambda p=producer, n=number: p.send("bench", b"%0100d" % n).result()
                            )
                        )
        bare_us = pwrite_us(directory, HEADER_SIZE + 110)
    finally:
        remove(directory)
    found = {name: values[WARM * 10 :] for name, values in spent.items()}
    for name, values in found.items():
        uncompressed = statistics.median(found["none"])
        detail = {
            "uncompressed": uncompressed,
            "bare write us": bare_us,
            "p99": percentile(values, 0.99),
        }
        yield Outcome(
            f"acknowledged/codec={name}", statistics.median(values), "us", 25.0, False, detail
        )


def many_topics(context: Context) -> Iterator[Outcome]:
    """Topics created in one call and one by one, and the first record into each; durable, so the
    disk counts.
    """
    directory = context.fresh("topics")
    count = context.partitions
    try:
        with embedlog.open(directory) as log:
            whole = (
                _timed(lambda: log.create_topics([f"t{number}" for number in range(count)])) / 1e6
            )
            single = [
                _timed(lambda n=number: log.create_topic(f"one{n}")) / 1e3 for number in range(20)
            ]
            sync_ms = statistics.median(
                _timed(lambda: _synced(directory / "sync")) / 1e3 for _ in range(20)
            )
            with log.producer() as producer:
                first = [
                    _timed(lambda n=n: producer.send(f"t{n}", b"%0100d" % n).result()) / 1e3
                    for n in range(count)
                ]
                descriptors = len(os.listdir("/proc/self/fd"))
    finally:
        remove(directory)
    yield Outcome(
        f"topics/create_topics={count}", whole, "s", count / 1000, False, {"sync_ms": sync_ms}
    )
    yield Outcome(
        f"topics/create_topic/after={count}",
        statistics.median(single),
        "ms",
        3.0,
        False,
        {"sync_ms": sync_ms},
    )
    detail = {"p99": percentile(first, 0.99), "descriptors": descriptors, "sync_ms": sync_ms}
    yield Outcome(
        f"topics/first-record/of={count}", statistics.median(first), "ms", 0.5, False, detail
    )


def _synced(path: Path) -> None:
    """The unit of durable changes: one small new file, synced."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        os.write(fd, b"x")
        os.fsync(fd)
    finally:
        os.close(fd)
        path.unlink()


def few(context: Context) -> Iterator[Outcome]:
    """The first poll of a consumer over four partitions, and the commit of one offset."""
    directory = context.fresh("few")
    polls: list[float] = []
    try:
        with embedlog.open(directory) as log:
            log.create_topic("bench", 4, config=QUIET)
            with log.producer() as producer:
                for number in range(200):
                    producer.send("bench", b"%0100d" % number, partition=number % 4)
            for _ in range(100):
                with log.consumer("bench", auto_offset_reset="earliest") as consumer:
                    polls.append(_timed(lambda c=consumer: c.poll(timeout=1)))
            with log.consumer("bench", group_id="bench", enable_auto_commit=False) as member:
                member.poll(timeout=1)
                one = TopicPartition("bench", 0)
                with log.producer() as producer:
                    bare_us = send_us(producer, "bench")
                heads_us = median_us(lambda: heads(log_files(directory)))
                commits = [
                    _timed(lambda n=n: member.commit({one: n % 50})) for n in range(WARM + SAMPLES)
                ][WARM:]
    finally:
        remove(directory)
    detail = {"p99": percentile(polls, 0.99), "bare open and read of its files us": heads_us}
    yield Outcome("first-poll/partitions=4", statistics.median(polls), "us", 300.0, False, detail)
    detail = {"p99": percentile(commits, 0.99), "a send us": bare_us}
    yield Outcome("commit/offsets=1", statistics.median(commits), "us", 60.0, False, detail)
