"""Compares writes with Kafka's clients: record by record and in columns, into a log and to a local
broker.

    python -m benchmarks.rivals_producer [--count N] [--rounds N] [--json FILE]

R1  the same records: 100 bytes, with a key of 8 where stated, uncompressed, four partitions, no
sync R2  each round is a process of its own; both alternate in one run, and the figure is the ratio
of the medians R3  a round ends when everything is acknowledged; the records in the log are counted
afterwards R4  columns are sent repeatedly until a round is about as long as those of rows. In the
40 ms of one pass the first use
    of memory pages would dominate
R5  the other clients use acks=1, embedlog its default acks=all

Needs Java, Kafka's jars (tests/kafka/oracle.py), confluent-kafka, and for its figure kafka-python.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import embedlog
from embedlog import TopicPartition
from tests.kafka.oracle import Broker

from .context import QUIET, keys_of, remove, values_of
from .measure import Outcome, report, workspace

TOPIC = "bench"
PARTITIONS = 4
VALUE_BYTES = 100
REPEATS = 8  # of columns in one round
SLOW_SHARE = 20  # kafka-python sends one of this many records: it is too slow for all
# method of embedlog → (other client, minimum ratio)
TARGETS = {
    "send": [("confluent", 2.0), ("kafka_python", 20.0)],
    "send_batch/list": [("confluent", 5.0)],
    "send_batch/arrow": [("confluent", 12.0)],
    "send_batch/arrow/keyed": [("confluent", 8.0)],
}


# ---- rounds of the other clients -----------------------------------------------------------------


def confluent(bootstrap: str, count: int) -> float:
    """Records per second of `produce()` one by one."""
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": 1,
            "linger.ms": 5,
            "batch.size": 1 << 20,
            "batch.num.messages": 100_000,
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    values = rows(count)
    producer.produce(TOPIC, values[0])
    producer.flush()
    began = time.perf_counter()
    for value in values:
        try:
            producer.produce(TOPIC, value)
        except BufferError:
            producer.poll(0.05)
            producer.produce(TOPIC, value)
    assert producer.flush(120) == 0
    return count / (time.perf_counter() - began)


def kafka_python(bootstrap: str, count: int) -> float:
    """Records per second of `send()` one by one."""
    from kafka import KafkaProducer

    producer = KafkaProducer(
        bootstrap_servers=bootstrap,
        acks=1,
        enable_idempotence=False,
        linger_ms=5,
        batch_size=1 << 17,
    )
    values = rows(count)
    producer.send(TOPIC, values[0]).get(30)
    began = time.perf_counter()
    for value in values:
        producer.send(TOPIC, value)
    producer.flush()
    took = time.perf_counter() - began
    producer.close()
    return count / took


# ---- rounds of embedlog --------------------------------------------------------------------------


def rows(count: int) -> list[bytes]:
    return [b"%0100d" % number for number in range(count)]


def send(producer: embedlog.Producer, values: list[bytes]) -> None:
    for value in values:
        producer.send(TOPIC, value)


def send_batch(producer: embedlog.Producer, values: Any, keys: Any = None) -> None:
    producer.send_batch(TOPIC, values, keys)


def ours(directory: str, way: str, count: int) -> float:
    """Records per second of one method of the producer, into a new log."""
    columns = values_of(VALUE_BYTES, count * VALUE_BYTES) if "arrow" in way else rows(count)
    repeats = REPEATS if "arrow" in way else 1
    count = len(columns)
    keys = keys_of(count) if way.endswith("keyed") else None
    where = Path(tempfile.mkdtemp(dir=directory))
    try:
        with embedlog.open(where) as log, log.producer() as producer:
            log.create_topic(TOPIC, PARTITIONS, config=QUIET)
            producer.send(TOPIC, b"warm").result()
            began = time.perf_counter()
            for _ in range(repeats):
                send(producer, columns) if way == "send" else send_batch(producer, columns, keys)
            producer.flush()
            took = time.perf_counter() - began
            ends = log.consumer().end_offsets(
                [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
            )
            assert sum(ends.values()) == repeats * count + 1
        return repeats * count / took
    finally:
        remove(where)


RIVALS: dict[str, Callable[[str, int], float]] = {
    "confluent": confluent,
    "kafka_python": kafka_python,
}


def in_its_own_process(name: str, where: object, count: int) -> float:
    command = [
        sys.executable,
        "-m",
        "benchmarks.rivals_producer",
        "--turn",
        name,
        str(where),
        str(count),
    ]
    done = subprocess.run(
        command,
        check=True,
        capture_output=True,
        text=True,
        cwd=Path(__file__).resolve().parent.parent,
    )
    return float(done.stdout)


# ---- the figures ---------------------------------------------------------------------------------


def figures(directory: Path, count: int, rounds: int) -> Iterator[Outcome]:
    names = [*TARGETS, "confluent"] + ["kafka_python"] * (
        importlib.util.find_spec("kafka") is not None
    )
    turns: dict[str, list[float]] = {name: [] for name in names}
    with Broker(directory / "broker") as broker:
        broker.create_topic(TOPIC, PARTITIONS, {"segment.bytes": 1 << 30})
        for turn in range(rounds):
            for name in sorted(turns, reverse=bool(turn % 2)):
                where = broker.bootstrap if name in RIVALS else directory
                turns[name].append(
                    in_its_own_process(
                        name, where, count // SLOW_SHARE if name == "kafka_python" else count
                    )
                )
    for way, targets in TARGETS.items():
        for rival, target in targets:
            if rival in turns:
                median = statistics.median(turns[way])
                theirs = statistics.median(turns[rival])
                detail = {
                    "ours": median,
                    rival: theirs,
                    "per": "records/s",
                    "rounds": rounds,
                    "records": count,
                }
                yield Outcome(
                    f"rival/{rival}/{way}/record=100B", median / theirs, "x", target, True, detail
                )


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.rivals_producer", description=__doc__
    )
    parser.add_argument("--count", type=int, default=600_000, help="records of each turn")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--turn", nargs=3, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.turn:
        name, where, count = chosen.turn
        print(RIVALS[name](where, int(count)) if name in RIVALS else ours(where, name, int(count)))
        return 0
    with workspace(None) as directory:
        return report(figures(directory, chosen.count, chosen.rounds), chosen.json)


if __name__ == "__main__":
    sys.exit(main())
