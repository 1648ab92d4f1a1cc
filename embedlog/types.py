"""Defines the values that public calls take and return.

TYPES-1  a value is immutable, compares by content and can be pickled: it contains no handle
TYPES-2  a position and a committed offset are the offset of the *next* record
TYPES-3  times are integers, milliseconds since 1970 UTC; -1 means "none", as in Kafka's files
"""

from __future__ import annotations

import contextlib
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn, Self, TypeAlias, TypeVar

from embedlog.display import tables
from embedlog.errors import ConfigError

__all__ = [
    "GroupDescription",
    "GroupMetadata",
    "GroupPartition",
    "MemberDescription",
    "NewTopic",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "PartitionDescription",
    "ProducerRecord",
    "Reassignment",
    "RecordMetadata",
    "TopicDescription",
    "TopicPartition",
    "by_partition",
    "duration_ms",
    "milliseconds",
    "topic_partition",
    "topic_partitions",
]

Headers: TypeAlias = Iterable[tuple[str, bytes | None]]  # of one record, as it is sent
Value = TypeVar("Value")

BRIEF_MAX = 400  # characters of partitions in one line of the log

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DURATION = r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?"
_UNITS_MS = (86_400_000, 3_600_000, 60_000, 1_000)


def milliseconds(time: int | datetime) -> int:
    """Milliseconds since 1970 UTC, from an int of the same meaning or an aware datetime (rounded down).

    Raises TypeError for a datetime without a zone, because its time depends on the machine.
    """
    if isinstance(time, datetime):
        if time.tzinfo is None:
            raise TypeError(f"{time!r} has no time zone: datetime(…, tzinfo=timezone.utc), or .astimezone() for local time")
        return (time - _EPOCH) // timedelta(milliseconds=1)
    if type(time) is not int:
        raise TypeError(f"a time is an int in milliseconds or an aware datetime, not {time!r}")
    return time


def duration_ms(text: str, option: str) -> int:
    """Milliseconds of an ISO 8601 duration of days, hours, minutes and seconds, such as "P3D" or "PT1H30M".

    Raises ConfigError with the name of the option for any other text, for example "P" or a negative duration.
    """
    found = re.fullmatch(_DURATION, text, re.ASCII)
    parts = found.groups() if found and not text.endswith("T") else (None,) * 4
    if not any(part is not None for part in parts):
        raise ConfigError(f"{option}: not a duration", expected="by_duration:PnDTnHnMnS", found=repr(text))
    return sum(round(float(part) * unit) for part, unit in zip(parts, _UNITS_MS, strict=True) if part is not None)


class _TopicPartition(NamedTuple):
    topic: str
    partition: int


class TopicPartition(_TopicPartition):
    """One partition of one topic; the key of every mapping in the API. Raises TypeError for a topic that is not a str, and for a
    number that is not an int: it would be a different key."""

    __slots__ = ()

    def __new__(cls, topic: str, partition: int) -> Self:
        if not isinstance(topic, str):
            raise TypeError(f"the topic of a TopicPartition is a str, not {type(topic).__name__}: found {topic!r:.100}")
        if type(partition) is not int:
            partition = _whole(partition, topic)
        return tuple.__new__(cls, (topic, partition))


def brief(places: Iterable[tuple[str, int]]) -> str:
    """Partitions in the form of log messages: orders[0-2,5] users[0]; shortened if there are many."""
    by_topic: dict[str, list[int]] = {}
    for topic, number in sorted(places):
        by_topic.setdefault(topic, []).append(number)
    text = " ".join(f"{topic}[{_runs(numbers)}]" for topic, numbers in by_topic.items()) or "nothing"
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


def _whole(number: object, topic: object) -> int:
    """An int from another integer type, such as numpy's."""
    if not isinstance(number, bool):
        with contextlib.suppress(TypeError):
            return operator.index(number)  # type: ignore[arg-type]
    found = f"{number!r:.50} of {topic!r:.300}"
    raise TypeError(f"the partition of a TopicPartition is an int, not {type(number).__name__}: found {found}")


def topic_partition(given: object) -> TopicPartition:
    """A TopicPartition from one, or from a plain pair. Raises TypeError for any other value."""
    if isinstance(given, TopicPartition):
        return given
    if isinstance(given, tuple) and len(given) == 2:
        return TopicPartition(*given)
    raise TypeError(f"a partition is given as TopicPartition(topic, partition), not {given!r:.100}")


def topic_partitions(given: Iterable[object]) -> list[TopicPartition]:
    """The TopicPartition of each, without repetition."""
    if isinstance(given, tuple) and len(given) == 1 and isinstance(given[0], (list, set, frozenset)):
        raise TypeError(
            f"partitions are separate arguments, not in a {type(given[0]).__name__}: call(a, b), or call(*partitions)"
        )
    if isinstance(given, (str, tuple)) and not all(isinstance(each, tuple) for each in given):
        raise TypeError(f"partitions are given as a list of TopicPartition, not {given!r:.100}")
    return list(dict.fromkeys(topic_partition(tp) for tp in given))


def by_partition(name: str, given: Mapping[Any, Value]) -> dict[TopicPartition, Value]:
    """A mapping of the user with checked keys. Raises TypeError."""
    if not isinstance(given, Mapping):
        raise TypeError(f"{name}: a mapping of TopicPartition, not {type(given).__name__}")
    return {topic_partition(tp): value for tp, value in given.items()}


class Reassignment(NamedTuple):
    """A reassignment of a partition that is not finished.

    `target` are the nodes that it will have; `adding` copy and join, `removing` are removed at the end. The copy that
    lacks most of the leader's log lacks `records_left` and about `bytes_left`; None while no leader answers.
    """

    target: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]
    records_left: int | None
    bytes_left: int | None


class ReplicaDifference(NamedTuple):
    """The first difference of a replica from its leader, or the first damage in its log.

    `kind` is "damaged" or "different". It is at or after `first_offset`: damage is known to about `index.interval.bytes`.
    A repair copies all records from there on.
    """

    topic: str
    partition: int
    node: int
    kind: str
    path: str
    first_offset: int
    end_offset: int
    message: str


class RepairedReplica(NamedTuple):
    """A replica whose records from `first_offset` up to `end_offset` were copied again, from the node `source`."""

    topic: str
    partition: int
    node: int
    source: int
    path: str
    first_offset: int
    end_offset: int


class RepairReport(NamedTuple):
    """What a repair did. `left` has the differences that remain, with the reason."""

    repaired: tuple[RepairedReplica, ...]
    left: Mapping[ReplicaDifference, str]


class NewTopic(NamedTuple):
    """A topic for `create_topics`; without `partitions` it gets `num.partitions` of the log.

    `replication_factor`: the directories that hold each partition, in a set of directories; 1 if not given, also as -1.
    `assignment` has the nodes of each partition instead, the preferred leader first: `{0: [1, 2], 1: [2, 3]}`.
    """

    name: str
    partitions: int | None = None
    config: Mapping[str, Any] | None = None
    replication_factor: int | None = None
    assignment: Mapping[int, Sequence[int]] | None = None


class OffsetAndMetadata(NamedTuple):
    """A committed offset: the next record to read, a text of the application, and the epoch of the record before it."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


class GroupMetadata(NamedTuple):
    """The identity of a member in its group, for `send_offsets_to_transaction`; without `member_id` it is not a member."""

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
    """A record before it is sent, as `on_send` of an interceptor receives it; `record._replace(…)` makes a changed copy."""

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


def _absent(place: object, name: str) -> NoReturn:
    """The AttributeError of RecordMetadata, with a hint for names of other clients."""
    hint = "; the sender has key, value and headers" if name == "checksum" or name.startswith("serialized_") else ""
    raise AttributeError(f"a RecordMetadata has no attribute {name}{hint}", name=name, obj=place)


setattr(RecordMetadata, "__getattr__", _absent)  # noqa: B010  (unknown to type checkers, which refuse the names)


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """One partition at the time of the call.

    `log_start_offset` is the first offset that can be read, `log_end_offset` the next one to write. Readers get
    records below `high_watermark`, those with `isolation_level="read_committed"` below `last_stable_offset`.
    """

    partition: int
    path: str
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    last_stable_offset: int
    leader_epoch: int
    size_bytes: int = 0


@dataclass(frozen=True, slots=True, repr=False)
class TopicDescription:
    """A topic: its identity, its partitions in order, and the settings that differ from the log's defaults."""

    name: str
    topic_id: str
    partitions: tuple[PartitionDescription, ...]
    config: Mapping[str, str] = field(default_factory=dict)
    internal: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "partitions", tuple(self.partitions))
        object.__setattr__(self, "config", MappingProxyType(dict(self.config)))

    @property
    def partition_count(self) -> int:
        return len(self.partitions)

    def __repr__(self) -> str:
        offsets = sum(each.high_watermark - each.log_start_offset for each in self.partitions)
        size = sum(each.size_bytes for each in self.partitions)
        count = tables.counted(self.partition_count, "partition")
        return f"<embedlog.TopicDescription {self.name!r}: {count}, {offsets} offsets, {size} bytes>"

    def _repr_html_(self) -> str:
        head = ("partition", "start", "end", "high watermark", "last stable", "epoch", "bytes", "path")
        rows = [
            (each.partition, each.log_start_offset, each.log_end_offset, each.high_watermark, each.last_stable_offset,
             each.leader_epoch, each.size_bytes, each.path)
            for each in self.partitions
        ]  # fmt: skip
        settings = "".join(f"; {name}={value}" for name, value in self.config.items())
        return tables.shortened(f"topic {self.name}{settings}", head, rows)

    def __reduce__(self) -> tuple[Any, ...]:
        # A mapping proxy cannot be pickled, so the pickle has a dict, which __post_init__ wraps again.
        return (TopicDescription, (self.name, self.topic_id, self.partitions, dict(self.config), self.internal))


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """The newest state of a transactional id, from `__transaction_state`.

    `state` has Kafka's name, for example "Ongoing". `started_ms` is None without a transaction, and `partitions` are those that
    it has written. `in_use`: whether the process that uses the id runs; None in a log opened read-only.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    started_ms: int | None
    updated_ms: int
    partitions: tuple[TopicPartition, ...]
    in_use: bool | None


class OpenTransaction(NamedTuple):
    """A transaction that is open in one partition: readers of committed records wait at `first_offset`.

    `transactional_id` is None if no id has this producer and epoch with an unfinished transaction: Kafka calls that hanging.
    """

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    first_offset: int
    transactional_id: str | None


@dataclass(frozen=True, slots=True)
class GroupPartition:
    """One partition of a group: the committed offset, the log end, the assigned member.

    `committed` is None if no offset is committed, `log_end_offset` if the partition no longer exists or is damaged, `member_id`
    if it is not assigned. `position` is the committed offset, and `lag` the number of offsets from it to the end; each is None if
    it is unknown. `dataclasses.asdict` and data frames contain both.
    """

    topic: str
    partition: int
    committed: OffsetAndMetadata | None = None
    log_end_offset: int | None = None
    member_id: str | None = None
    position: int | None = field(init=False, repr=False, compare=False)
    lag: int | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        position = None if self.committed is None else self.committed.offset
        object.__setattr__(self, "position", position)
        lag = None if position is None or self.log_end_offset is None else self.log_end_offset - position
        object.__setattr__(self, "lag", lag)


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """One member of a group: its identity, subscription and assignment; a member with `instance_id` is static."""

    member_id: str
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()
    assignment: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class GroupDescription:
    """A consumer group at the time of the call.

    `state` has Kafka's spelling: Empty, PreparingRebalance, CompletingRebalance, Stable; `type` is "classic", or "consumer" for
    a group of Kafka's newer protocol. `assignor` is None until one is chosen. A group that never had a member has no
    `protocol_type`. `partitions` are all with a committed offset or an assignment, in order.
    """

    group_id: str
    state: str
    type: str = "classic"
    protocol_type: str = ""
    assignor: str | None = None
    generation: int = 0
    leader: str | None = None
    members: tuple[MemberDescription, ...] = ()
    partitions: tuple[GroupPartition, ...] = ()

    @property
    def lag(self) -> int:
        """The sum of the lags that are known."""
        return sum(each.lag for each in self.partitions if each.lag is not None)

    def __repr__(self) -> str:
        counts = f"{tables.counted(len(self.members), 'member')}, {tables.counted(len(self.partitions), 'partition')}"
        return f"<embedlog.GroupDescription {self.group_id!r}: {self.state}, {counts}, lag {self.lag}>"

    def _repr_html_(self) -> str:
        head = ("topic", "partition", "committed", "end", "lag", "member")
        rows = [
            (each.topic, each.partition, each.position, each.log_end_offset, each.lag, each.member_id) for each in self.partitions
        ]
        facts = f"group {self.group_id}: {self.state}, {tables.counted(len(self.members), 'member')}, lag {self.lag}"
        return tables.shortened(facts, head, rows)
