"""Logs whose offsets have gaps: after a compaction, and with markers and aborted transactions."""

from __future__ import annotations

import random
from typing import Any

import embedlog

COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.0}


def compact(log: embedlog.Log, **last: Any) -> None:
    """Compact partition t-0 up to a large last record, which begins a segment. `last` are arguments
    of its `send`.
    """
    with log.producer() as producer:
        producer.send("t", b"x" * 19_000, key=b"last", **last)
    log._engine.partition("t", 0).compact(-1, 1 << 20, 0)


def transact(producer: embedlog.Producer, rng: random.Random, count: int) -> None:
    """So many transactions of topic t with 1 to 19 records, about half of them aborted."""
    for _ in range(count):
        producer.begin_transaction()
        for number in range(rng.randrange(1, 20)):
            producer.send("t", b"%d" % number * rng.randrange(1, 60))
        producer.commit_transaction() if rng.random() < 0.5 else producer.abort_transaction()
