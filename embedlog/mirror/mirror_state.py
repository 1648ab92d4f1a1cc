"""Contains `MirrorState`: positions, offset maps and groups of a mirror, as lines of a compacted
topic at the target.

- The lines are written in the transactions of the records, so a position and its records are never
  apart.
- A key is a list in JSON, and compaction keeps its last line: the topic has a bounded size.
- Lines of a newer version are refused, unknown kinds of lines of this version too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from embedlog import ForeignDirectoryError, TopicPartition, UnsupportedFormatError
from embedlog.mirror.offset_map import OffsetMap, OffsetRange, ranges_between, slot_of
from embedlog.mirror.sides import INTERNAL, Lines, MirrorPiece, SourcePosition, TargetSpan

VERSION = 1
PREFIX = f"{INTERNAL}mirror_"


class TopicPair(NamedTuple):
    """A topic of the mirror, and its copy: the ids of both when the copy began."""

    source_id: str
    target: str
    target_id: str


def topic_of(identity: str, name: str) -> str:
    """The state topic of mirrors from a source; `name` distinguishes mirrors of the same source."""
    if name:
        return f"{PREFIX}{identity}_{name}"
    return f"{PREFIX}{identity}"


def is_about(topic: str, identity: str) -> bool:
    """Whether a topic is the state topic of any mirror from this source."""
    return topic == topic_of(identity, "") or topic.startswith(f"{PREFIX}{identity}_")


def _encode(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


class MirrorState:
    """What a mirror knows about its topics. The lines that a method returns are applied by `apply`,
    after their commit.
    """

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.topic_pairs: dict[str, TopicPair] = {}
        self.positions: dict[TopicPartition, SourcePosition] = {}
        self.maps: dict[TopicPartition, OffsetMap] = {}
        # target offsets, of which one was committed last
        self.groups: dict[tuple[str, TopicPartition], tuple[int, ...]] = {}

    # ---- lines -----------------------------------------------------------------------------------

    def lines_of_registration(self, topic: str, pair: TopicPair) -> Lines:
        """The line of a new topic, and the removal of all that is known of an earlier topic of this
        name.
        """
        lines: Lines = []
        for tp in {*self.positions, *self.maps}:
            if tp.topic != topic:
                continue
            ranges = self.maps[tp].ranges if tp in self.maps else []
            lines.append((_encode(["position", *tp]), None))
            lines += [(_range_key(tp, offset_range.number), None) for offset_range in ranges]
        for group, tp in self.groups:
            if tp.topic == topic:
                lines.append((_encode(["group", group, *tp]), None))
        lines.append((_encode(["topic", topic]), _encode([VERSION, *pair])))
        return lines

    def lines_of_positions(
        self, positions: Iterable[tuple[TopicPartition, SourcePosition]]
    ) -> Lines:
        """The lines of positions."""
        return [(_encode(["position", *tp]), _encode(position)) for tp, position in positions]

    def lines_of_pieces(
        self, pieces: Sequence[MirrorPiece], written: Sequence[Sequence[TargetSpan]]
    ) -> Lines:
        """The lines of pieces that the target wrote."""
        lines: Lines = []
        numbers: dict[TopicPartition, int] = {}
        positions: dict[TopicPartition, SourcePosition] = {}
        for piece, spans in zip(pieces, written, strict=True):
            tp = piece.tp
            number = numbers.get(tp, self.map_of(tp).next_number)
            for offset_range in ranges_between(number, piece.offsets, spans):
                lines.append((_range_key(tp, offset_range.number), _encode(offset_range)))
                number = offset_range.number + 1
            numbers[tp] = number
            positions[tp] = piece.following
        return lines + self.lines_of_positions(positions.items())

    def lines_of_commits(
        self, group: str, offsets: Iterable[tuple[TopicPartition, tuple[int, ...]]]
    ) -> Lines:
        """The lines of a group's offsets at the target, by the partitions of the source. The mirror
        committed one of each.

        Before a commit they are two: a mirror that is killed meanwhile may have committed the last.
        None removes the line.
        """
        return [
            (_encode(["group", group, *tp]), _encode(possible) if possible else None)
            for tp, possible in offsets
        ]

    def map_of(self, tp: TopicPartition) -> OffsetMap:
        """The offset map of a partition, which is made if there is none."""
        return self.maps.setdefault(tp, OffsetMap())

    # ---- from lines ------------------------------------------------------------------------------

    def apply(self, lines: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Follow lines in their order. Raises ForeignDirectoryError for records of another program,
        UnsupportedFormatError.
        """
        for key, value in lines:
            try:
                kind, *words = json.loads(key)
                self._apply(kind, words, None if value is None else json.loads(value))
            except (ValueError, TypeError, KeyError, RecursionError) as problem:
                raise ForeignDirectoryError(
                    f"a record of {self.topic} is not a line of a mirror",
                    expected="a line of a mirror",
                    found=repr(key[:100]),
                ) from problem

    def _apply(self, kind: str, words: list[Any], value: Any) -> None:
        if kind == "topic":
            self._apply_topic(words[0], value)
        elif kind == "position":
            tp = TopicPartition(*words)
            if value is None:
                self.positions.pop(tp, None)
                self.maps.pop(tp, None)
            else:
                self.positions[tp] = SourcePosition(*value)
        elif kind == "run":
            offset_map = self.map_of(TopicPartition(*words[:2]))
            if value is None:
                offset_map.discard(*words[2:])
            else:
                offset_map.add(OffsetRange(*value))
        elif kind == "group":
            key = words[0], TopicPartition(*words[1:])
            if value is None:
                self.groups.pop(key, None)
            elif isinstance(value, list):
                self.groups[key] = tuple(map(int, value))
            else:
                self.groups[key] = (int(value),)
        else:
            raise ValueError(kind)

    def _apply_topic(self, topic: str, value: Any) -> None:
        version, *facts = value
        if version > VERSION:
            raise UnsupportedFormatError(
                f"{self.topic} was written by a newer version",
                expected=f"version {VERSION}",
                found=version,
            )
        self.topic_pairs[topic] = TopicPair(*facts)


def _range_key(tp: TopicPartition, number: int) -> bytes:
    return _encode(["run", *tp, *slot_of(number)])


def read_copies(lines: Iterable[tuple[bytes, bytes | None]]) -> Iterator[str]:
    """The topics of the target that a state topic names."""
    state = MirrorState("")
    state.apply((key, value) for key, value in lines if key.startswith(b'["topic"'))
    return (pair.target for pair in state.topic_pairs.values())
