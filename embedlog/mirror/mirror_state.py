"""Contains `MirrorState`: positions, offset maps and groups of a mirror, as lines of a compacted
topic at the target.

MIRRORSTATE-1  the lines are written in the transactions of the records, so a position and its
    records are never apart
MIRRORSTATE-2  a key is a list in JSON, and compaction keeps its last line: the topic has a bounded
    size
MIRRORSTATE-3  lines of a newer version are refused, unknown kinds of lines of this version too
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from embedlog import ForeignDirectoryError, TopicPartition, UnsupportedFormatError
from embedlog.mirror.offset_map import OffsetMap, Run, runs_between, slot_of
from embedlog.mirror.sides import INTERNAL, Lines, Piece, Position, Span

VERSION = 1
PREFIX = f"{INTERNAL}mirror_"


class TopicPair(NamedTuple):
    """A topic of the mirror, and its copy: the ids of both when the copy began."""

    source_id: str
    target: str
    target_id: str


def topic_of(identity: str, name: str) -> str:
    """The state topic of mirrors from a source; `name` distinguishes mirrors of the same source."""
    return f"{PREFIX}{identity}{f'_{name}' if name else ''}"


def is_about(topic: str, identity: str) -> bool:
    """Whether a topic is the state topic of any mirror from this source."""
    return topic == topic_of(identity, "") or topic.startswith(f"{PREFIX}{identity}_")


def _encoded(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


class MirrorState:
    """What a mirror knows about its topics. The lines that a method returns are applied by `apply`,
    after their commit.
    """

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.topic_pairs: dict[str, TopicPair] = {}
        self.positions: dict[TopicPartition, Position] = {}
        self.maps: dict[TopicPartition, OffsetMap] = {}
        # target offsets, of which one was committed last
        self.groups: dict[tuple[str, TopicPartition], tuple[int, ...]] = {}

    # ---- lines -----------------------------------------------------------------------------------

    def registration(self, topic: str, pair: TopicPair) -> Lines:
        """The line of a new topic, and the removal of all that is known of an earlier topic of this
        name.
        """
        lines: Lines = []
        for place in [place for place in {*self.positions, *self.maps} if place.topic == topic]:
            lines.append((_encoded(["position", *place]), None))
            lines += [(_run_key(place, run.number), None) for run in self.map(place).runs]
        lines += [
            (_encoded(["group", group, *tp]), None)
            for group, tp in self.groups
            if tp.topic == topic
        ]
        return [*lines, (_encoded(["topic", topic]), _encoded([VERSION, *pair]))]

    def moved(self, positions: Iterable[tuple[TopicPartition, Position]]) -> Lines:
        """The lines of positions."""
        return [
            (_encoded(["position", *place]), _encoded(position)) for place, position in positions
        ]

    def copied(self, pieces: Sequence[Piece], written: Sequence[Sequence[Span]]) -> Lines:
        """The lines of pieces that the target wrote."""
        lines: Lines = []
        numbers: dict[TopicPartition, int] = {}
        last: dict[TopicPartition, Position] = {}
        for piece, spans in zip(pieces, written, strict=True):
            place = piece.place
            number = numbers.get(piece.place, self.map(piece.place).next_number)
            for run in runs_between(number, piece.offsets, spans):
                lines.append((_run_key(place, run.number), _encoded(run)))
                number = run.number + 1
            numbers[place] = number
            last[place] = piece.following
        return lines + self.moved(last.items())

    def committed(
        self, group: str, offsets: Iterable[tuple[TopicPartition, tuple[int, ...]]]
    ) -> Lines:
        """The lines of a group's offsets at the target, by the partitions of the source. The mirror
        committed one of each.

        Before a commit they are two: a mirror that is killed meanwhile may have committed the last.
        None removes the line.
        """
        return [
            (_encoded(["group", group, *place]), _encoded(each) if each else None)
            for place, each in offsets
        ]

    def map(self, place: TopicPartition) -> OffsetMap:
        found = self.maps.get(place)
        if found is None:
            found = self.maps[place] = OffsetMap()
        return found

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
            place = TopicPartition(*words)
            if value is None:
                self.positions.pop(place, None)
                self.maps.pop(place, None)
            else:
                self.positions[place] = Position(*value)
        elif kind == "run":
            found = self.map(TopicPartition(*words[:2]))
            found.discard(*words[2:]) if value is None else found.add(Run(*value))
        elif kind == "group":
            key = words[0], TopicPartition(*words[1:])
            if value is None:
                self.groups.pop(key, None)
            else:
                self.groups[key] = (
                    tuple(map(int, value)) if isinstance(value, list) else (int(value),)
                )
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


def _run_key(place: TopicPartition, number: int) -> bytes:
    return _encoded(["run", *place, *slot_of(number)])


def copies_in(lines: Iterable[tuple[bytes, bytes | None]]) -> Iterator[str]:
    """The topics of the target that a state topic names."""
    state = MirrorState("")
    state.apply((key, value) for key, value in lines if key.startswith(b'["topic"'))
    return (each.target for each in state.topic_pairs.values())
