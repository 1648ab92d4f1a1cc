"""Sets of three directories whose partitions move between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import embedlog
from embedlog import TopicPartition
from embedlog._native import system
from embedlog.replicas.rules.records import DecidedPartition
from tests.support.replica_directories import failing

WAIT_S = 60


def opened(root: Path, count: int = 3, **settings: Any) -> embedlog.Log:
    return embedlog.open(
        [root / f"d{node}" for node in range(1, count + 1)],
        config={"housekeeping": False, **settings},
    )


def values(log: embedlog.Log, topic: str = "t") -> list[bytes]:
    return sorted(record.value for record in log.scan(topic).records())


def partition_of(log: embedlog.Log, tp: TopicPartition) -> DecidedPartition:
    """The decided partition."""
    state = log._engine.set.decisions.counted_state()  # type: ignore[attr-defined]
    topic_id = next(topic_id for topic_id, topic in state.topics.items() if topic.name == tp.topic)
    found: DecidedPartition = state.partitions[topic_id, tp.partition]
    return found


def moved(log: embedlog.Log, targets: Mapping[TopicPartition, Sequence[int] | None]) -> None:
    """Reassign, and do rounds of housekeeping until nothing is in progress."""
    log.reassign(targets)
    until_ns = system.boot_ns() + WAIT_S * 1_000_000_000
    while log.reassignments():
        assert system.boot_ns() < until_ns, log.reassignments()
        log.housekeep()


__all__ = ["WAIT_S", "failing", "moved", "opened", "partition_of", "values"]
