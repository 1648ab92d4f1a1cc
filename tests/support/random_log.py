"""A log directory with all that makes reading hard: codecs, gaps of compaction, aborted
transactions, epochs, headers, nulls.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import embedlog

CODECS = ("none", "gzip", "lz4", "zstd", "snappy")
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.bytes": "2000",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "0",
}
NOW_MS = 1_700_000_000_000


def write(path: Path, rng: random.Random, rows: int = 150) -> list[str]:
    """Makes the directory; gives the names of its topics."""
    with embedlog.open(path, config={"housekeeping": False}) as log:
        for codec in CODECS:
            log.create_topic(
                codec, partitions=2, config={"segment.bytes": str(rng.choice([3000, 1 << 20]))}
            )
            with log.producer(
                compression_type=codec, batch_size=rng.choice([200, 4000])
            ) as producer:
                _send(producer, codec, rng, rows, partitions=2)
        log.create_topic("compacted", config=COMPACTED)
        with log.producer(batch_size=400) as producer:
            for number in range(rows):
                producer.send(
                    "compacted", rng.choice([None, b"v%d" % number]), key=b"k%d" % rng.randrange(12)
                )
                if not number % 10:
                    producer.flush()
        log.housekeep()
        log.create_topic("decided", partitions=2)
        _transactions(log, rng, rows)
        log.create_topic("deleted")
        with log.producer() as producer:
            _send(producer, "deleted", rng, rows)
        log.delete_records({embedlog.TopicPartition("deleted", 0): rng.randrange(1, rows)})
        log.create_topic("empty", partitions=3)
        log.create_topic("epochs", partitions=2)
    for number in range(3):
        if number:
            _power_loss(path, rng)
        with (
            embedlog.open(path, config={"housekeeping": False}) as log,
            log.producer(batch_size=400) as producer,
        ):
            _send(producer, "epochs", rng, rows // 3, partitions=2)
    with embedlog.open(path, read_only=True) as log:
        return log.topics()


def _send(
    producer: embedlog.Producer, topic: str, rng: random.Random, rows: int, partitions: int = 1
) -> None:
    for number in range(rows):
        producer.send(
            topic,
            rng.choice([None, b"", rng.randbytes(rng.randrange(60)), b"value %d" % number]),
            key=rng.choice([None, b"", b"k%d" % rng.randrange(5)]),
            partition=rng.randrange(partitions),
            timestamp_ms=NOW_MS + 1000 * number + rng.randrange(-3000, 3000),
            headers=[
                (f"h{each}", rng.choice([None, b"x"])) for each in range(rng.choice([0, 0, 0, 2]))
            ],
        )
        if rng.random() < 0.05:
            producer.flush()


def _power_loss(path: Path, rng: random.Random) -> None:
    """The directory after a recovery of torn batches at its ends: later appends have a new leader
    epoch.
    """
    (path / ".kafka_cleanshutdown").unlink(missing_ok=True)
    for page in [*path.rglob("embedlog.page"), path / "embedlog.control"]:
        page.write_bytes(bytes(page.stat().st_size))
    for number in (0, 1):
        last = max((path / f"epochs-{number}").glob("*.log"))
        whole = last.read_bytes()
        last.write_bytes(whole + whole[: rng.randrange(1, 60)])


def _transactions(log: embedlog.Log, rng: random.Random, rows: int) -> None:
    with log.producer(transactional_id="one") as producer:
        producer.init_transactions()
        for number in range(8):
            producer.begin_transaction()
            _send(producer, "decided", rng, rows // 10, partitions=2)
            producer.flush()
            producer.abort_transaction() if rng.random() < 0.5 or number == 3 else producer.commit_transaction()


def consumed(log: embedlog.Log, topic: str, isolation: str) -> list[tuple[Any, ...]]:
    """The records of a consumer, as rows in the order of partitions."""
    numbers = [each.partition for each in log.describe_topic(topic).partitions]
    with log.consumer(
        isolation_level=isolation, auto_offset_reset="earliest", consumer_timeout_ms=0
    ) as consumer:
        consumer.assign([embedlog.TopicPartition(topic, number) for number in numbers])
        rows = [row_of(record) for record in consumer]
    return sorted(rows, key=lambda row: row[:2])


def row_of(record: embedlog.Record) -> tuple[Any, ...]:
    """Partition, offset, milliseconds, type of timestamp, key, value, headers: the result of each
    engine for a record.
    """
    headers = tuple((name, value) for name, value in record.headers)
    key = record.key
    value = record.value
    return (
        record.partition,
        record.offset,
        record.timestamp_ms,
        record.timestamp_type,
        key,
        value,
        headers,
    )
