"""A compacted topic: keys and values, and what a compaction leaves of them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import embedlog

COMPACT = {
    "cleanup.policy": "compact",
    "segment.bytes": 2000,
    "min.cleanable.dirty.ratio": 0.0,
    "delete.retention.ms": 0,
}


def opened(path: Path, **config: Any) -> embedlog.Log:
    return embedlog.open(path, config={"housekeeping": False, **config})


def put(log: embedlog.Log, pairs: list[tuple[bytes, bytes | None]], **config: Any) -> None:
    with log.producer(linger_ms=0, batch_size=200, **config) as producer:
        futures = [producer.send("t", key=key, value=value) for key, value in pairs]
        producer.flush()
        assert all(future.exception() is None for future in futures)


def rows(log: embedlog.Log, **config: Any) -> list[tuple[int, bytes | None, bytes | None]]:
    with log.consumer(
        "t", auto_offset_reset="earliest", consumer_timeout_ms=0, **config
    ) as consumer:
        return [(record.offset, record.key, record.value) for record in consumer]


def random_pairs(rng: random.Random, count: int) -> list[tuple[bytes, bytes | None]]:
    return [
        (
            b"k%d" % rng.randrange(40),
            None if rng.random() < 0.15 else b"v%d" % number * rng.randrange(1, 9),
        )
        for number in range(count)
    ]


def last_values(pairs: list[tuple[bytes, bytes | None]]) -> dict[bytes, bytes]:
    latest = dict(pairs)
    return {key: value for key, value in latest.items() if value is not None}


def table(found: list[tuple[int, bytes | None, bytes | None]]) -> dict[bytes, bytes]:
    return last_values([(key, value) for _, key, value in found if key is not None])


QUIET = {"config": {"housekeeping": False}}
Pairs = list[tuple[bytes, bytes | None]]


def made(path: Path, seed: int) -> Pairs:
    """A log that was compacted once and has got more since."""
    rng = random.Random(seed)
    pairs = random_pairs(rng, 150)
    with opened(path) as log:
        log.create_topic("t", config={**COMPACT, "segment.bytes": 1500, "file.delete.delay.ms": 0})
        put(log, pairs)
        log.housekeep()
        more = random_pairs(rng, 150)
        put(log, more)
    return pairs + more


def check(
    log: embedlog.Log, pairs: Pairs, before: dict[int, tuple[bytes | None, bytes | None]]
) -> None:
    found = rows(log)
    assert all(before[offset] == (key, value) for offset, key, value in found)
    assert table(found) == last_values(pairs)
