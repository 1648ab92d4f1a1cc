"""Measures the cost of embedlog over the size of a log: bytes, partitions and segments.

S1  each log is built by this process and measured by a new one S2  a point read seeks to a random
offset of a random partition; an append sends to random partitions S3  a log of many partitions has
20,000 records in all, so that its costs per record are those of its partitions
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa

import embedlog
from embedlog import TopicPartition

from ..child import descriptors, resident_bytes
from ..context import QUIET, bytes_in, pieces, remove, values_of
from .processes import ROOT

TOPIC = "sizes"
MB = 1_000_000
DIMENSIONS = {
    "bytes": {
        "quick": (MB // 10, MB),
        "default": (10 * MB, 100 * MB, 500 * MB),
        "full": tuple(10**n * MB for n in (1, 2, 3, 4)),
    },
    "partitions": {
        "quick": (1, 10),
        "default": (1, 10, 100, 1000),
        "full": (1, 10, 100, 1000, 10_000),
    },
    "segments": {
        "quick": (1, 10),
        "default": (1, 10, 100, 1000, 10_000),
        "full": (1, 10, 100, 1000, 10_000, 100_000),
    },
}
UNITS = {"bytes": "bytes of values", "partitions": "partitions", "segments": "segments"}
MEASURES = {
    "append_us": "µs for each appended record",
    "scan_us": "µs for each scanned record",
    "point_us": "µs for a point read, p50",
    "open_ms": "ms until it is open",
    "memory_mib": "MiB of memory, most",
    "descriptors": "open descriptors, most",
}
RECORD_BYTES = 1000
PARTITIONED_RECORDS = 20_000  # in all partitions together
SEGMENT_BYTES = 16_384
SEGMENT_RECORDS = 4
APPENDS = 10_000
POINTS = 300
HOLD = {"housekeeping": False}


# ---- the logs ------------------------------------------------------------------------------------


def of_bytes(directory: Path, size: int) -> None:
    values = values_of(RECORD_BYTES, size)
    with embedlog.open(directory) as log, log.producer() as producer:
        log.create_topic(TOPIC, 1, config=QUIET)
        for part in pieces(values, size):
            producer.send_batch(TOPIC, part).result()


def of_partitions(directory: Path, count: int) -> None:
    with embedlog.open(directory) as log, log.producer() as producer:
        log.create_topic(TOPIC, count, config=QUIET)
        values = [bytes(100)] * max(1, PARTITIONED_RECORDS // count)
        for partition in range(count):
            producer.send_batch(TOPIC, values, partition=partition)
        producer.flush()


def of_segments(directory: Path, count: int) -> None:
    """Segments of about 16 kB: four batches of four records."""
    values = [b"%0990d" % number for number in range(SEGMENT_RECORDS)]
    with embedlog.open(directory) as log, log.producer(linger_ms=0) as producer:
        log.create_topic(
            TOPIC, 1, config=QUIET | {"segment.bytes": SEGMENT_BYTES, "index.interval.bytes": 4000}
        )
        for _ in range(count * SEGMENT_RECORDS):
            producer.send_batch(TOPIC, values).result()


BUILD: dict[str, Callable[[Path, int], None]] = {
    "bytes": of_bytes,
    "partitions": of_partitions,
    "segments": of_segments,
}


# ---- the measured process ------------------------------------------------------------------------


class Most:
    """The most memory and descriptors so far."""

    def __init__(self) -> None:
        self.memory = self.descriptors = 0

    def look(self) -> None:
        self.memory = max(self.memory, resident_bytes())
        self.descriptors = max(self.descriptors, descriptors())


def measure(directory: str) -> dict[str, float]:
    """All measures of one log; memory and descriptors are those of the whole process."""
    began = time.perf_counter()
    most = Most()
    with embedlog.open(directory, config=HOLD) as log:
        opened = time.perf_counter() - began
        with log.consumer(auto_offset_reset="earliest", max_poll_records=1) as consumer:
            count = len(log.describe_topic(TOPIC).partitions)
            ends = consumer.end_offsets([TopicPartition(TOPIC, number) for number in range(count)])
            most.look()
            point = points(consumer, ends, most)
        scanned = scan(log, most)
        appended = append(log, count, most)
    return {
        "append_us": appended * 1e6,
        "scan_us": scanned * 1e6,
        "point_us": point / 1e3,
        "open_ms": opened * 1e3,
        "memory_mib": most.memory / (1 << 20),
        "descriptors": most.descriptors,
    }


def points(consumer: embedlog.Consumer, ends: dict[TopicPartition, int], most: Most) -> float:
    """Nanoseconds of a point read, the median; each partition of some is assigned before."""
    rng = random.Random(1)
    times = []
    some = rng.sample(sorted(ends), min(len(ends), POINTS))
    consumer.assign(some)
    for turn in range(-20, POINTS):
        partition = rng.choice(some)
        consumer.pause(*some)
        consumer.resume(partition)
        offset = rng.randrange(ends[partition])
        began = time.perf_counter_ns()
        consumer.seek(partition, offset)
        (record,) = consumer.poll(max_records=1)
        spent = time.perf_counter_ns() - began
        assert (record.partition, record.offset) == (partition.partition, offset)
        if turn >= 0:
            times.append(spent)
    most.look()
    return median(times)


def scan(log: embedlog.Log, most: Most) -> float:
    """Seconds for each record of a scan of everything."""
    for _ in log.scan(TOPIC, partitions=0, end_offset=1):
        continue  # its code is loaded
    rows = 0
    began = time.perf_counter()
    for number, batch in enumerate(log.scan(TOPIC)):
        rows += batch.num_rows
        if number % 16 == 0:
            most.look()
    return (time.perf_counter() - began) / rows


def append(log: embedlog.Log, partitions: int, most: Most) -> float:
    """Seconds for each record that is sent, all flushed together."""
    rng = random.Random(2)
    value = bytes(100)
    with log.producer() as producer:
        producer.send(TOPIC, value, partition=0).result()
        began = time.perf_counter()
        for _ in range(APPENDS):
            producer.send(TOPIC, value, partition=rng.randrange(partitions))
        producer.flush()
        took = time.perf_counter() - began
        most.look()
    return took / APPENDS


# ---- all of them ---------------------------------------------------------------------------------


def run(scale: str, directory: Path, rounds: int, say: Callable[[str], None]) -> dict[str, Any]:
    """For each dimension and size the values of all rounds; the sizes of a dimension alternate."""
    found: dict[str, Any] = {}
    for dimension, scales in DIMENSIONS.items():
        paths = {size: directory / f"{dimension}-{size}" for size in scales[scale]}
        measured: dict[int, list[dict[str, float]]] = {size: [] for size in paths}
        try:
            for size, path in paths.items():
                BUILD[dimension](path, size)
            stored = {size: bytes_in(path) for size, path in paths.items()}
            for number in range(rounds):
                for size in sorted(paths, reverse=bool(number % 2)):
                    measured[size].append(in_its_own_process(paths[size]))
        finally:
            for path in paths.values():
                remove(path)
        found[dimension] = {}
        for size, rows in measured.items():
            values = {name: [each[name] for each in rows] for name in MEASURES}
            found[dimension][str(size)] = values | {"stored_bytes": stored[size]}
            say(
                f"{dimension} {size}: "
                + ", ".join(f"{name} {min(each):.4g}" for name, each in values.items())
            )
    return found


def in_its_own_process(path: Path) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.race.sizes", str(path)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=900
    )
    if done.returncode:
        raise RuntimeError(f"{path.name}: {done.stderr[-2000:]}")
    answer: dict[str, float] = json.loads(done.stdout)
    return answer


def growth(values: Iterable[list[float]]) -> float:
    """The largest over the smallest, of the least values of all rounds: other load only adds to a
    cost.
    """
    least = [min(each) for each in values]
    return max(least) / min(least)


if __name__ == "__main__":
    assert pa.__version__  # imported before anything is measured
    print(json.dumps(measure(sys.argv[1])))
