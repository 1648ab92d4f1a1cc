"""Contains partitioners for the option `partitioner` of producers: callables that return the number
of a partition.

Without a partitioner, murmur2 of the key chooses the partition, as in Kafka's clients. Records
without a key go to one partition for `batch.size` bytes, which fills batches better than round
robin.

- A callable of three arguments gets (key as bytes, all partitions, available partitions), as in
  kafka-python.
- A callable of six, or of any number, gets (topic, key, key as bytes, value, value as bytes, all
  partitions), as in Kafka. Key and value are the sent objects, the bytes are those of the
  serializers. Instead of a callable, an object may have such a method `partition`.
- A partitioner with state per topic has a method `for_topic(topic)`, which returns the callable for
  that topic; a class is instantiated for each producer.
- The signature of a callable is read once for each topic.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from embedlog._native import codec
from embedlog.errors import ConfigError

if TYPE_CHECKING:
    from inspect import Signature

__all__ = ["RandomPartitioner", "RoundRobinPartitioner", "partition_of"]


class Chooser:
    """A partitioner of the user for one topic; its results are checked. Threads: as the
    partitioner.
    """

    def __init__(self, partitioner: Any, topic: str) -> None:
        self._topic = topic
        if hasattr(partitioner, "for_topic"):
            partitioner = partitioner.for_topic(topic)
        self._choose: Callable[..., Any] = partitioner
        if not callable(partitioner):
            self._choose = partitioner.partition
        self.sees_records = sees_records(self._choose)

    def of_record(
        self,
        key: Any,
        key_bytes: bytes | None,
        value: Any,
        value_bytes: bytes | None,
        partitions: Sequence[int],
        local_partitions: list[int],
    ) -> int:
        """The partition of a record; `local_partitions` are those in this directory.

        Raises ConfigError for a negative result, TypeError for one that is not an int.
        """
        if not self.sees_records:
            return self.of_key(key_bytes, partitions, local_partitions)
        return _check_partition(
            self._choose(self._topic, key, key_bytes, value, value_bytes, partitions), partitions
        )

    def of_key(
        self, key_bytes: bytes | None, partitions: Sequence[int], local_partitions: list[int]
    ) -> int:
        """The partition of a key. REQUIRES not `sees_records`."""
        return _check_partition(self._choose(key_bytes, partitions, local_partitions), partitions)


def sees_records(choose: Callable[..., Any]) -> bool:
    """Whether a callable takes the record, not only the key. Raises ConfigError if it takes
    neither.
    """
    import inspect  # late, as random below: a program without such a partitioner needs neither

    try:
        signature = inspect.signature(choose)
    except (TypeError, ValueError):  # a C function without a signature
        return False
    kinds = {parameter.kind for parameter in signature.parameters.values()}
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return _takes(signature, 6)
    if not _takes(signature, 3) and not _takes(signature, 6):
        expected = (
            "a callable of (key, all, available) or of (topic, key, key_bytes, value, "
            "value_bytes, all)"
        )
        raise ConfigError("partitioner", expected=expected, found=str(signature))
    return not _takes(signature, 3)


def _takes(signature: Signature, count: int) -> bool:
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True


def _check_partition(answer: Any, partitions: Sequence[int]) -> int:
    if not isinstance(answer, int) or isinstance(answer, bool):
        raise TypeError(f"the partitioner returned {answer!r}, which is not a partition")
    if answer < 0:
        expected = f"a callable that returns a number from 0 to {len(partitions) - 1}"
        raise ConfigError("partitioner", expected=expected, found=answer)
    return answer


def partition_of(key: bytes, partition_count: int) -> int:
    """The partition of a key in Kafka's clients, and by default in this package."""
    return (codec.murmur2(key) & 0x7FFFFFFF) % partition_count


class RoundRobinPartitioner:
    """The partitions of a topic in turn, without regard to the key.

    The first one is `start`, or random, so that many short programs with one record each do not
    fill one partition.
    """

    def __init__(self, start: int | None = None) -> None:
        self._start = start
        if start is None:
            start = int.from_bytes(os.urandom(4)) >> 1
        self._numbers = itertools.count(start)

    def for_topic(self, topic: str) -> RoundRobinPartitioner:
        return RoundRobinPartitioner(self._start)

    def __call__(
        self, key: bytes | None, partitions: Sequence[int], available: Sequence[int]
    ) -> int:
        choices = available or partitions
        return choices[next(self._numbers) % len(choices)]


class RandomPartitioner:
    """A random partition, without regard to the key; `seed` makes the choice repeatable."""

    def __init__(self, seed: int | None = None) -> None:
        import random

        self._random = random.Random(seed)

    def __call__(
        self, key: bytes | None, partitions: Sequence[int], available: Sequence[int]
    ) -> int:
        return self._random.choice(available or partitions)
