"""Partitioners for the producer's `partitioner`: callables that answer with a partition's number.

Without one, keys are placed by murmur2 as Kafka's clients do, and records without a key stay with one partition for a while
(`batch.size` bytes), which makes fuller batches than one partition after the other.

PARTITIONER-1  a callable of three arguments is given (key as bytes, all partitions, available partitions), as kafka-python's are
PARTITIONER-2  one of six is given what Kafka's are: (topic, key, key as bytes, value, value as bytes, all partitions); so is one
    of any number, such as `*arguments`. Key and value are what was sent, the bytes what the serializers made of them
PARTITIONER-3  one that remembers something about a topic has a method `for_topic(topic)`, which gives the callable for that
    topic; of a class an object is made for each producer
PARTITIONER-4  how a callable is asked is seen from its signature, once for each topic
"""

from __future__ import annotations

import inspect
import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

from embedlog._native import codec
from embedlog.errors import ConfigError

__all__ = ["RandomPartitioner", "RoundRobinPartitioner", "partition_of"]


class Chooser:
    """A user's partitioner for one topic; its answers are looked at before they are used. Threads: as the partitioner."""

    def __init__(self, partitioner: Any, topic: str) -> None:
        self._topic = topic
        self._choose: Callable[..., Any] = partitioner.for_topic(topic) if hasattr(partitioner, "for_topic") else partitioner
        self.sees_records = sees_records(self._choose)

    def of_record(
        self, key: Any, key_bytes: bytes | None, value: Any, value_bytes: bytes | None, every: Sequence[int], here: list[int]
    ) -> int:
        """The partition of a record, of `every` there is and those that are `here`.

        Raises ConfigError for a negative answer, TypeError for one that is no int.
        """
        if not self.sees_records:
            return self.of_key(key_bytes, every, here)
        return _checked(self._choose(self._topic, key, key_bytes, value, value_bytes, every), every)

    def of_key(self, key_bytes: bytes | None, every: Sequence[int], here: list[int]) -> int:
        """The same for one that is asked for the key alone. REQUIRES not `sees_records`."""
        return _checked(self._choose(key_bytes, every, here), every)


def sees_records(choose: Callable[..., Any]) -> bool:
    """Whether a callable takes the record, not only the key (PARTITIONER-1, PARTITIONER-2). Raises ConfigError for neither."""
    try:
        signature = inspect.signature(choose)
    except (TypeError, ValueError):  # one of C that does not tell
        return False
    if any(each.kind is inspect.Parameter.VAR_POSITIONAL for each in signature.parameters.values()):
        return _takes(signature, 6)
    if not _takes(signature, 3) and not _takes(signature, 6):
        expected = "a callable of (key, all, available) or of (topic, key, key_bytes, value, value_bytes, all)"
        raise ConfigError("partitioner", expected=expected, found=str(signature))
    return not _takes(signature, 3)


def _takes(signature: inspect.Signature, count: int) -> bool:
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True


def _checked(answer: Any, partitions: Sequence[int]) -> int:
    if not isinstance(answer, int) or isinstance(answer, bool):
        raise TypeError(f"the partitioner returned {answer!r}, which is no partition")
    if answer < 0:
        expected = f"a callable that returns a number from 0 to {len(partitions) - 1}"
        raise ConfigError("partitioner", expected=expected, found=answer)
    return answer


def partition_of(key: bytes, partition_count: int) -> int:
    """Where Kafka's clients, and ours by default, put a key."""
    return (codec.murmur2(key) & 0x7FFFFFFF) % partition_count


class RoundRobinPartitioner:
    """One partition after the other, whatever the key; of each topic on its own.

    It begins with `start`, or anywhere: many short programs that send one record each do not fill one partition.
    """

    def __init__(self, start: int | None = None) -> None:
        self._start = start
        self._numbers = itertools.count(random.randrange(2**31) if start is None else start)

    def for_topic(self, topic: str) -> RoundRobinPartitioner:
        return RoundRobinPartitioner(self._start)

    def __call__(self, key: bytes | None, partitions: Sequence[int], available: Sequence[int]) -> int:
        among = available or partitions
        return among[next(self._numbers) % len(among)]


class RandomPartitioner:
    """Any partition, whatever the key; `seed` makes the choice repeatable."""

    def __init__(self, seed: int | None = None) -> None:
        self._random = random.Random(seed)

    def __call__(self, key: bytes | None, partitions: Sequence[int], available: Sequence[int]) -> int:
        return self._random.choice(available or partitions)
