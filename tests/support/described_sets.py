"""Sets of directories for tests of their description: calls that open, fill and describe them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import embedlog
from embedlog.descriptions.directories import (
    ReplicaDescription,
    ReplicasDescription,
    ReplicatedPartitionDescription,
)

QUIET = {"housekeeping": False}
PATIENT_S = 20.0  # for results that come at once on an idle machine


def opened(root: Path, count: int = 3, **options: Any) -> embedlog.Log:
    return embedlog.open(
        [root / f"d{node}" for node in range(1, count + 1)], config={**QUIET}, **options
    )


def created(log: embedlog.Log, partitions: int = 2, name: str = "t") -> None:
    """Replicas on the nodes 1, 2 and 3; partition p has its leader on node p % 3 + 1."""
    nodes = [1, 2, 3]
    log.create_topic(
        name,
        assignment={
            number: nodes[number % 3 :] + nodes[: number % 3] for number in range(partitions)
        },
    )


def sent(log: embedlog.Log, count: int, partition: int = 0) -> None:
    with log.producer(linger_ms=0) as producer:
        for number in range(count):
            producer.send("t", b"%03d" % number, partition=partition).result(PATIENT_S)


def states(found: ReplicasDescription) -> dict[int, str]:
    return {each.node: each.state for each in found.directories}


def replica(found: ReplicatedPartitionDescription, node: int) -> ReplicaDescription:
    return next(each for each in found.copies if each.node == node)


def used(log: embedlog.Log) -> set[str]:
    """The topics of the partitions that this process has opened."""
    return {name for directory in log._engine.directories for name, _ in directory.partitions}


def changed(found: ReplicasDescription) -> list[str]:
    return [text for each in found.decisions for text in each.changes]
