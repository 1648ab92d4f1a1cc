"""Compares reads with Kafka: confluent-kafka's tuned `consume()` from a local broker, and a
consumer of embedlog.

    python -m benchmarks.rivals_consumer [--count N] [--rounds N] [--json FILE]

R1  both logs have the same records: 100 bytes of value, a key of 8, uncompressed, one partition, in
the page cache R2  each round is a process of its own; both alternate in one run, and the figure is
the ratio of the medians R3  a round begins with the first record: connecting and opening are not
measured R4  every record's value is touched; the number of records read is counted and printed

Needs Java, Kafka's jars (tests/kafka/oracle.py) and confluent-kafka.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import embedlog
from tests.kafka.oracle import Broker

from .context import QUIET, keys_of, pieces, values_of
from .measure import Outcome, report, workspace

TOPIC = "bench"
VALUE_BYTES = 100
TARGETS = {"iterate": 3.0, "poll": 3.0, "batches": 20.0}


# ---- the turns, each in a process of its own -----------------------------------------------------


def confluent(bootstrap: str, count: int) -> float:
    """Records per second of `consume(10000)` with its fastest settings."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    reader = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "rival",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.message.max.bytes": 8 << 20,
            "queued.min.messages": 1_000_000,
            "queued.max.messages.kbytes": 1 << 20,
            "fetch.wait.max.ms": 10,
            "enable.auto.offset.store": False,
        }
    )
    reader.assign([TopicPartition(TOPIC, 0, OFFSET_BEGINNING)])
    first = reader.consume(1, 30)
    began = time.perf_counter()
    seen = len(first)
    size = 0
    while seen < count:
        for message in reader.consume(10_000, 1):
            size += len(message.value())
            seen += 1
    took = time.perf_counter() - began
    reader.close()
    return seen / took


def ours(directory: str, count: int, way: str) -> float:
    """Records per second of a consumer in one of its three ways."""
    with (
        embedlog.open(directory, read_only=True) as log,
        log.consumer(TOPIC, auto_offset_reset="earliest", max_poll_records=10_000) as reader,
    ):
        first = reader.poll(10, max_records=1)
        began = time.perf_counter()
        seen = len(first) + WAYS[way](reader, count - len(first))
        return seen / (time.perf_counter() - began)


def iterate(reader: embedlog.Consumer, count: int) -> int:
    seen = size = 0
    for record in reader:
        size += len(record.value)
        seen += 1
        if seen == count:
            break
    return seen


def poll(reader: embedlog.Consumer, count: int) -> int:
    seen = size = 0
    while seen < count:
        for record in reader.poll(1):
            size += len(record.value)
            seen += 1
    return seen


def batches(reader: embedlog.Consumer, count: int) -> int:
    """Read batches: every value is in memory and checked, and its length is read."""
    seen = size = 0
    for batch in reader.batches(1):
        size += int(batch.values.offsets[-1])
        seen += batch.num_rows
        if seen >= count:
            break
    return seen


WAYS: dict[str, Callable[[embedlog.Consumer, int], int]] = {
    "iterate": iterate,
    "poll": poll,
    "batches": batches,
}


def in_its_own_process(*words: object) -> float:
    command = [sys.executable, "-m", "benchmarks.rivals_consumer", "--turn", *map(str, words)]
    done = subprocess.run(
        command,
        check=True,
        capture_output=True,
        text=True,
        cwd=Path(__file__).resolve().parent.parent,
    )
    return float(done.stdout)


# ---- the logs ------------------------------------------------------------------------------------


def fill_ours(directory: Path, count: int) -> None:
    values = values_of(VALUE_BYTES, count * VALUE_BYTES)
    with embedlog.open(directory) as log, log.producer() as producer:
        log.create_topic(TOPIC, 1, config=QUIET)
        for part in pieces(values, count * VALUE_BYTES):
            producer.send_batch(TOPIC, part, keys_of(len(part))).result()


def fill_broker(broker: Broker, count: int) -> None:
    from confluent_kafka import Producer

    broker.create_topic(TOPIC, 1, {"segment.bytes": 1 << 30})
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "batch.size": 1 << 20,
            "linger.ms": 20,
            "acks": 1,
            "queue.buffering.max.messages": 1_000_000,
            "batch.num.messages": 100_000,
        }
    )
    left = count
    for part in pieces(values_of(VALUE_BYTES, count * VALUE_BYTES), count * VALUE_BYTES):
        for value, key in zip(part.to_pylist(), keys_of(len(part)).to_pylist(), strict=True):
            while True:
                try:
                    producer.produce(TOPIC, value, key, 0)
                    break
                except BufferError:
                    producer.poll(0.1)
        left -= len(part)
    assert producer.flush(60) == 0


def figures(directory: Path, count: int, rounds: int) -> Iterator[Outcome]:
    fill_ours(directory / "ours", count)
    with Broker(directory / "broker") as broker:
        fill_broker(broker, count)
        count = count * 9 // 10  # no wait at the end
        turns: dict[str, list[float]] = {"confluent": [], **{way: [] for way in WAYS}}
        for turn in range(rounds):
            for name in sorted(turns, reverse=bool(turn % 2)):
                where = broker.bootstrap if name == "confluent" else directory / "ours"
                turns[name].append(in_its_own_process(name, where, count))
    theirs = statistics.median(turns["confluent"])
    for way, target in TARGETS.items():
        median = statistics.median(turns[way])
        detail = {
            "ours": median,
            "confluent": theirs,
            "per": "records/s",
            "rounds": rounds,
            "records": count,
        }
        yield Outcome(
            f"rival/confluent/{way}/record=100B/keyed", median / theirs, "x", target, True, detail
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.rivals_consumer", description=__doc__
    )
    parser.add_argument("--count", type=int, default=2_000_000, help="records in each log")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--turn", nargs=3, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.turn:
        name, where, count = chosen.turn
        print(
            confluent(where, int(count)) if name == "confluent" else ours(where, int(count), name)
        )
        return 0
    with workspace(None) as directory:
        return report(figures(directory, chosen.count, chosen.rounds), chosen.json)


if __name__ == "__main__":
    sys.exit(main())
