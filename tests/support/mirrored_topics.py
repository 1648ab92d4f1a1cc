"""The reference of a mirror: both sides are read record by record, and compared in the order of
each partition.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import embedlog
from embedlog import Log, TopicPartition

Row = tuple[Any, ...]  # partition, key, value, headers, timestamp


def rows(log: Log, topic: str) -> list[Row]:
    """The committed records of a topic, without their offsets."""
    return [
        (each.partition, each.key, each.value, tuple(each.headers), each.timestamp_ms)
        for each in log.scan(topic, isolation_level="read_committed").records()
    ]


def offsets(log: Log, topic: str) -> dict[int, list[int]]:
    """The offsets of the committed records, by partition."""
    found: dict[int, list[int]] = {
        part.partition: [] for part in log.describe_topic(topic).partitions
    }
    for each in log.scan(topic, isolation_level="read_committed").records():
        found[each.partition].append(each.offset)
    return found


def rows_in(path: Path, topic: str) -> list[Row]:
    with embedlog.open(path, read_only=True) as log:
        return rows(log, topic)


def exact(
    source: Mapping[int, list[int]],
    target: Mapping[int, list[int]],
    place: TopicPartition,
    offset: int,
) -> int:
    """The target offset of the first copied record at or after a source offset; the offset after
    the last one without any.
    """
    here = source[place.partition]
    there = target[place.partition]
    at = sum(1 for each in here if each < offset)
    return there[at] if at < len(there) else there[-1] + 1
