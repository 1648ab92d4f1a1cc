"""The topics of the directories that a real Kafka wrote, and their records."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import embedlog
from tests.kafka import CLEAN, UNCLEAN
from tests.kafka.client import told

OF_CLEAN = (
    "append-time",
    "big",
    "broker-gzip",
    "broker-lz4",
    "broker-none",
    "broker-snappy",
    "broker-zstd",
    "client-gzip",
    "client-lz4",
    "client-none",
    "client-snappy",
    "client-zstd",
    "compacted",
    "corners",
    "empty",
    "idempotent",
    "records-deleted",
    "rolled-by-size",
    "rolled-by-time",
    "transaction-left-open",
    "transactions",
)
OF_UNCLEAN = ("plain", "pressed", "transactions")
DIRECTORIES = [*((name, OF_CLEAN) for name in CLEAN), *((name, OF_UNCLEAN) for name in UNCLEAN)]
TOPICS = [(name, topic) for name, topics in DIRECTORIES for topic in topics]


def wanted(expected: list[dict[str, object]], isolation: str) -> list[dict[str, object]]:
    """The expectation at one isolation level, without the column of that level."""
    rows = [row for row in expected if isolation == "read_uncommitted" or row["committed"]]
    return [{name: value for name, value in row.items() if name != "committed"} for row in rows]


def in_order(records: Iterable[Any]) -> list[dict[str, object]]:
    """Records as dicts, partition by partition; within one they must come in order by
    themselves.
    """
    rows = [told(record) for record in records]
    return sorted(rows, key=lambda row: row["partition"])  # type: ignore[arg-type,return-value]


def consumed(log: embedlog.Log, topic: str, isolation: str) -> list[dict[str, object]]:
    """Everything that an assigned consumer gets from the beginning to the end."""
    config = {"isolation_level": isolation, "auto_offset_reset": "earliest"}
    with log.consumer(topic, consumer_timeout_ms=50, max_poll_records=97, **config) as consumer:
        return in_order(consumer)
