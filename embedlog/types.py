"""Defines the values that public calls take and return.

- A value is immutable, compares by content and can be pickled: it contains no handle.
- A position and a committed offset are the offset of the *next* record.
- Times are integers, milliseconds since 1970 UTC; -1 means "none", as in Kafka's files.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, Self, TypeAlias, TypeVar

__all__ = [
    "CODECS",
    "GroupMetadata",
    "NewTopic",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "ProducerRecord",
    "RecordMetadata",
    "TopicPartition",
    "by_partition",
    "topic_partition",
    "topic_partitions",
]

# the number of a codec in Kafka's format is its index
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

Headers: TypeAlias = Iterable[tuple[str, bytes | None]]  # of one record, as it is sent
Value = TypeVar("Value")

BRIEF_MAX = 400  # characters of partitions in one line of the log


class _TopicPartition(NamedTuple):
    topic: str
    partition: int


class TopicPartition(_TopicPartition):
    """One partition of one topic; the key of every mapping in the API. Raises TypeError for a topic
    that is not a str, and for a number that is not an int: it would be a different key.
    """

    __slots__ = ()

    def __new__(cls, topic: str, partition: int) -> Self:
        if not isinstance(topic, str):
            raise TypeError(
                f"the topic of a TopicPartition is a str, not {type(topic).__name__}: found "
                f"{topic!r:.100}"
            )
        if type(partition) is not int:
            partition = _to_int(partition, topic)
        return tuple.__new__(cls, (topic, partition))


def brief(partitions: Iterable[tuple[str, int]]) -> str:
    """Partitions in the form of log messages: orders[0-2,5] users[0]; shortened if there are
    many.
    """
    by_topic: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        by_topic.setdefault(topic, []).append(number)
    text = (
        " ".join(f"{topic}[{_runs(numbers)}]" for topic, numbers in by_topic.items()) or "nothing"
    )
    return text if len(text) <= BRIEF_MAX else text[: BRIEF_MAX - 1] + "…"


def _runs(numbers: list[int]) -> str:
    """Ascending numbers; consecutive ones as first-last."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ",".join("-".join(map(str, run)) for run in runs)


def _to_int(number: object, topic: object) -> int:
    """An int from another integer type, such as numpy's."""
    if not isinstance(number, bool):
        with contextlib.suppress(TypeError):
            return operator.index(number)  # type: ignore[arg-type]
    raise TypeError(
        f"the partition of a TopicPartition is an int, not {type(number).__name__}: found "
        f"{number!r:.50} of {topic!r:.300}"
    )


def topic_partition(value: object) -> TopicPartition:
    """A TopicPartition from one, or from a plain pair. Raises TypeError for any other value."""
    if isinstance(value, TopicPartition):
        return value
    if isinstance(value, tuple) and len(value) == 2:
        return TopicPartition(*value)
    raise TypeError(f"a partition is given as TopicPartition(topic, partition), not {value!r:.100}")


def topic_partitions(given: Iterable[object]) -> list[TopicPartition]:
    """The TopicPartition of each, without repetition."""
    if (
        isinstance(given, tuple)
        and len(given) == 1
        and isinstance(given[0], (list, set, frozenset))
    ):
        raise TypeError(
            f"partitions are separate arguments, not in a {type(given[0]).__name__}: call(a, b), "
            "or call(*partitions)"
        )
    if isinstance(given, (str, tuple)) and not all(isinstance(entry, tuple) for entry in given):
        raise TypeError(f"partitions are given as a list of TopicPartition, not {given!r:.100}")
    return list(dict.fromkeys(topic_partition(tp) for tp in given))


def by_partition(name: str, given: Mapping[Any, Value]) -> dict[TopicPartition, Value]:
    """A mapping of the user with checked keys. Raises TypeError."""
    if not isinstance(given, Mapping):
        raise TypeError(f"{name}: a mapping of TopicPartition, not {type(given).__name__}")
    return {topic_partition(tp): value for tp, value in given.items()}


class NewTopic(NamedTuple):
    """A topic for `create_topics`; without `partitions` it gets `num.partitions` of the log.

    `replication_factor`: the directories that hold each partition, in a set of directories; 1 if
    not given, also as -1. `assignment` has the nodes of each partition instead, the preferred
    leader first: `{0: [1, 2], 1: [2, 3]}`.
    """

    name: str
    partitions: int | None = None
    config: Mapping[str, Any] | None = None
    replication_factor: int | None = None
    assignment: Mapping[int, Sequence[int]] | None = None


class OffsetAndMetadata(NamedTuple):
    """A committed offset: the next record to read, a text of the application, and the epoch of the
    record before it.
    """

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


class GroupMetadata(NamedTuple):
    """The identity of a member in its group, for `send_offsets_to_transaction`; without `member_id`
    it is not a member.
    """

    group_id: str
    generation: int = -1
    member_id: str = ""
    instance_id: str | None = None


class OffsetAndTimestamp(NamedTuple):
    """The result of a lookup by time: the first record at or after that time."""

    offset: int
    timestamp_ms: int
    leader_epoch: int

    @property
    def timestamp(self) -> int:
        """`timestamp_ms`, under the name of other clients."""
        return self.timestamp_ms


class ProducerRecord(NamedTuple):
    """A record before it is sent, as `on_send` of an interceptor receives it; `record._replace(…)`
    makes a changed copy.
    """

    topic: str
    value: Any = None
    key: Any = None
    partition: int | None = None
    timestamp_ms: int | None = None
    headers: Any = ()


class RecordMetadata(NamedTuple):
    """The place of a sent record; `offset` is -1 with `acks=0`."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int

    @property
    def timestamp(self) -> int:
        """`timestamp_ms`, under the name of other clients."""
        return self.timestamp_ms

    @property
    def topic_partition(self) -> TopicPartition:
        """Topic and partition together, as in kafka-python and aiokafka."""
        return TopicPartition(self.topic, self.partition)


def _raise_absent(metadata: object, name: str) -> NoReturn:
    """The AttributeError of RecordMetadata, with a hint for names of other clients."""
    message = f"a RecordMetadata has no attribute {name}"
    if name == "checksum" or name.startswith("serialized_"):
        message += "; the sender has key, value and headers"
    raise AttributeError(message, name=name, obj=metadata)


setattr(RecordMetadata, "__getattr__", _raise_absent)  # noqa: B010  (unknown to type checkers, which refuse the names)
