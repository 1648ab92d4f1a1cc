"""Defines the two sides of a mirror, and the values that pass between them.

- A source returns committed records only, partition by partition in the order of offsets.
- A target writes records and lines in one transaction: both are visible, or neither.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias

from embedlog import EmbedlogError, TopicPartition

INTERNAL = "__"  # names of internal topics begin so

Lines: TypeAlias = list[tuple[bytes, bytes | None]]  # keys and values of the state topic


class SourcePosition(NamedTuple):
    """The next offset to be copied, and the leader epoch of the record before it; -1 if that is not
    known.
    """

    offset: int
    leader_epoch: int = -1


class TopicFacts(NamedTuple):
    """A topic of either side: its id, and the settings that differ from the defaults."""

    name: str
    topic_id: str
    partition_count: int
    config: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class MirrorPiece:
    """Records of one partition as columns, in the order of offsets; `following` is the position
    after them.
    """

    tp: TopicPartition
    offsets: Sequence[int]
    timestamps_ms: Sequence[int]
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    headers: Sequence[Sequence[tuple[str, bytes | None]]] | None  # None: no record has any
    following: SourcePosition
    size_bytes: int = field(default=0, compare=False)


class TargetSpan(NamedTuple):
    """Consecutive offsets that the target assigned to records of a piece."""

    base_offset: int
    length: int


class MirrorSource(Protocol):
    """The side that is read. **Threads**: `wake` from any thread and from signal handlers; all else
    from one.
    """

    label: str
    identity: str

    def topic_names(self) -> list[str]:
        """All topics, also those of mirrors."""
        ...

    def describe(self, names: Iterable[str]) -> dict[str, TopicFacts]:
        """The topics that exist."""
        ...

    def bounds(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        """The first offset, and the end of the committed records."""
        ...

    def add(self, starts: Mapping[TopicPartition, SourcePosition]) -> None:
        """Read these partitions, too."""
        ...

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        """Do not read these partitions any more."""
        ...

    def take(self, timeout_s: float) -> list[MirrorPiece]:
        """The next records, or none after the timeout. Raises OffsetOutOfRangeError, with its
        place, for deleted ones.
        """
        ...

    def position(self, tp: TopicPartition) -> SourcePosition:
        """The next offset: after offsets without records, too."""
        ...

    def lines(self, topic: str) -> Iterator[tuple[bytes, bytes | None]]:
        """The committed records of a state topic with one partition; none if it does not exist."""
        ...

    def group_ids(self) -> list[str]:
        """The groups of consumers."""
        ...

    def group_offsets(self, group: str) -> dict[TopicPartition, int]: ...

    def wake(self) -> None:
        """Ends a waiting `take` soon."""
        ...

    def close(self) -> None: ...


class MirrorTarget(Protocol):
    """The side that is written, by one thread."""

    label: str
    identity: str

    def describe(self, names: Iterable[str]) -> dict[str, TopicFacts]: ...

    def bounds(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, tuple[int, int]]: ...

    def create(self, facts: TopicFacts, replication_factor: int | None) -> list[str]:
        """Create a topic; returns the settings that this side does not have."""
        ...

    def grow(self, name: str, partition_count: int) -> None: ...

    def begin(self, transactional_id: str, state_topic: str) -> None:
        """Take over the transactional id: an earlier mirror is fenced, and its open transaction
        aborted.
        """
        ...

    def lines(self, topic: str) -> Iterator[tuple[bytes, bytes | None]]: ...

    def write(
        self,
        pieces: Sequence[tuple[str, MirrorPiece]],
        lines_of: Callable[[list[list[TargetSpan]]], Lines],
    ) -> None:
        """Write pieces into topics, and the lines about their offsets, in one transaction. Raises
        FencedError.
        """
        ...

    def group_offsets(self, group: str) -> dict[TopicPartition, int]: ...

    def may_commit_group(self, group: str, offsets: Mapping[TopicPartition, int]) -> bool:
        """Whether `commit_group` would be refused now: False if the group has members."""
        ...

    def commit_group(self, group: str, offsets: Mapping[TopicPartition, int]) -> bool:
        """Commit offsets for a group; False if it has members."""
        ...

    def close(self) -> None: ...


Settings: TypeAlias = Mapping[str, Any]


def create_without_refused(
    config: Mapping[str, str],
    create: Callable[[dict[str, str]], object],
    refused: Callable[[EmbedlogError], bool],
) -> list[str]:
    """Create a topic, without the settings that the errors name; returns their names."""
    accepted = dict(config)
    refused_names: list[str] = []
    while True:
        try:
            create(accepted)
            return sorted(refused_names)
        except EmbedlogError as problem:
            # the longest name first: others may be a part of it
            named = [
                name for name in sorted(accepted, key=len, reverse=True) if name in str(problem)
            ]
            if not named or not refused(problem):
                raise
            refused_names.append(named[0])
            del accepted[named[0]]
