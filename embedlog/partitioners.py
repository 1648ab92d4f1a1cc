"""Partitioners for the producer's `partitioner`: callables of (key, all partitions, available partitions) -> partition.

Without one, keys are placed by murmur2 as Kafka's clients do, and records without a key stay with one partition for a while
(`batch.size` bytes), which makes fuller batches than one partition after the other. A partitioner that remembers something
about a topic has a method `for_topic(topic)`, which gives the callable for that topic.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

from embedlog._native import codec

__all__ = ["RandomPartitioner", "RoundRobinPartitioner", "partition_of"]


def for_topic(partitioner: Any, topic: str) -> Callable[..., Any]:
    """The callable that chooses for one topic."""
    made: Callable[..., Any] = partitioner.for_topic(topic) if hasattr(partitioner, "for_topic") else partitioner
    return made


def partition_of(key: bytes, partition_count: int) -> int:
    """Where Kafka's clients, and ours by default, put a key."""
    return (codec.murmur2(key) & 0x7FFFFFFF) % partition_count


class RoundRobinPartitioner:
    """One partition after the other, whatever the key; of each topic on its own."""

    def __init__(self) -> None:
        self._numbers = itertools.count()

    def for_topic(self, topic: str) -> RoundRobinPartitioner:
        return RoundRobinPartitioner()

    def __call__(self, key: bytes | None, partitions: Sequence[int], available: Sequence[int]) -> int:
        among = available or partitions
        return among[next(self._numbers) % len(among)]


class RandomPartitioner:
    """Any partition, whatever the key; `seed` makes the choice repeatable."""

    def __init__(self, seed: int | None = None) -> None:
        self._random = random.Random(seed)

    def __call__(self, key: bytes | None, partitions: Sequence[int], available: Sequence[int]) -> int:
        return self._random.choice(available or partitions)
