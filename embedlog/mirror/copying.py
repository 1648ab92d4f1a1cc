"""Contains `Copying`, the loop of a mirror: records, positions, topics and groups.

- The position of the source is committed with the records, so a killed mirror continues without
  loss or repetition.
- The state is read after the transactional id was taken over: no earlier mirror can change it any
  more.
- Records that were deleted before they were copied end the mirror, unless the user permits it; each
  loss is reported.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from embedlog import (
    DeadlineError,
    FencedError,
    OffsetOutOfRangeError,
    StateError,
    TopicPartition,
    UnknownTopicOrPartitionError,
)
from embedlog.mirror.directory_sides import state_topic_of
from embedlog.mirror.groups import GroupCopies
from embedlog.mirror.mirror_state import MirrorState, topic_of
from embedlog.mirror.sides import (
    MirrorPiece,
    MirrorSource,
    MirrorTarget,
    SourcePosition,
    TargetSpan,
    TopicFacts,
)
from embedlog.mirror.topics import Preparation, Selection, find_copies

WAIT_S = 0.5  # of one read without records
REFRESH_S = 2.0  # between two looks at topics, partitions and groups
STALLED_S = 120.0  # without records before an end that is not reached

Advance = Callable[[int, int], object]


@dataclass(frozen=True)
class MirrorPlan:
    """What a mirror copies, and how."""

    selection: Selection
    groups: tuple[str, ...] | None = ()  # None: all
    name: str = ""
    prefix: str = ""
    append: bool = False
    skip_deleted: bool = False
    replication_factor: int | None = None


@dataclass
class Counts:
    """What a mirror has copied."""

    records: dict[str, int] = field(default_factory=dict)  # by topics of the source
    size_bytes: int = 0


class Copying:
    """One run of a mirror between two open sides."""

    def __init__(
        self,
        source: MirrorSource,
        target: MirrorTarget,
        plan: MirrorPlan,
        notice: Callable[[str], object],
    ) -> None:
        self._source = source
        self._target = target
        self._plan = plan
        self._notice = notice
        self.state = MirrorState(topic_of(source.identity, plan.name))
        self._preparation = Preparation(
            target,
            self.state,
            notice,
            prefix=plan.prefix,
            append=plan.append,
            replication_factor=plan.replication_factor,
        )
        self.groups = GroupCopies(source, target, self.state, plan.groups, notice)
        self.counts = Counts()
        self._topics: dict[str, TopicFacts] = {}  # that are copied now
        # topics of the source that mirrors from the target have written
        self._copies: set[str] = set()
        self._starts: dict[TopicPartition, int] = {}
        self._assigned: list[TopicPartition] = []
        self._ended = False

    def end(self) -> None:
        """End the run after the current transaction. From any thread, and from signal handlers."""
        self._ended = True
        self._source.wake()

    def topics(self) -> set[str]:
        """The topics that are copied, or were."""
        return {*self._topics, *self.counts.records}

    # ---- the loop --------------------------------------------------------------------------------

    def run(self, *, follow: bool, progress: Advance) -> None:
        """Copy up to the current ends, or until `end`. Raises FencedError if another mirror took
        over.
        """
        try:
            self._run(follow, progress)
        except FencedError as fenced:
            raise FencedError(
                f"another mirror from {self._source.label} to {self._target.label} has taken "
                "over: mirrors that run at the same"
                " time need different topics and names"
            ) from fenced

    def _run(self, follow: bool, progress: Advance) -> None:
        self._plan.selection.check(self._source)
        self._take_over_state()
        self._refresh()
        ends = {tp: end for tp, (_, end) in self._source.bounds(self._starts).items()}
        total = sum(max(0, end - self._starts[tp]) for tp, end in ends.items())
        self._drop_complete(follow, ends)
        due = time.monotonic() + REFRESH_S
        stalled = time.monotonic() + STALLED_S
        while not self._ended and (follow or ends):
            if self._copy_next(max(0.0, min(WAIT_S, due - time.monotonic()))) or follow:
                stalled = time.monotonic() + STALLED_S
            elif time.monotonic() > stalled:
                raise DeadlineError(
                    f"no records from {self._source.label}",
                    expected=f"{STALLED_S:g} s",
                    found=f"{len(ends)} open",
                )
            self._drop_complete(follow, ends)
            copied_offsets = sum(
                self._position(tp).offset - start for tp, start in self._starts.items()
            )
            progress(copied_offsets, max(copied_offsets, total))
            if follow and time.monotonic() >= due:
                self._refresh()
                self._commit_positions()
                self.groups.copy()
                due = time.monotonic() + REFRESH_S
        self._commit_positions()
        self.groups.copy()

    def _take_over_state(self) -> None:
        """Take over the state."""
        topic = self.state.topic
        if topic not in self._target.describe([topic]):
            self._target.create(state_topic_of(topic), self._plan.replication_factor)
        transactional_id = f"mirror-{self._source.identity}"
        if self._plan.name:
            transactional_id += f"-{self._plan.name}"
        self._target.begin(transactional_id, topic)
        self.state.apply(self._target.lines(topic))

    def _copy_next(self, timeout_s: float) -> bool:
        """Copy the next records; returns whether there were any."""
        try:
            pieces = self._source.take(timeout_s)
        except UnknownTopicOrPartitionError:  # a topic was deleted
            self._refresh()
            return False
        except OffsetOutOfRangeError as deleted:
            if deleted.topic is None or deleted.partition is None:
                raise
            tp = TopicPartition(deleted.topic, deleted.partition)
            start, end = self._source.bounds([tp])[tp]
            position = self._check_position(tp, self._source.position(tp), start, end)
            self._source.remove([tp])
            self._source.add({tp: position})
            return False
        if pieces:
            self._write(pieces)
        return bool(pieces)

    def _write(self, pieces: list[MirrorPiece]) -> None:
        lines = []

        def lines_of(written: list[list[TargetSpan]]) -> list[tuple[bytes, bytes | None]]:
            lines.extend(self.state.lines_of_pieces(pieces, written))
            return lines

        self._target.write(
            [(self._plan.prefix + piece.tp.topic, piece) for piece in pieces], lines_of
        )
        self.state.apply(lines)
        records = self.counts.records
        for piece in pieces:
            records[piece.tp.topic] = records.get(piece.tp.topic, 0) + len(piece.offsets)
            self.counts.size_bytes += piece.size_bytes

    # ---- positions -------------------------------------------------------------------------------

    def _position(self, tp: TopicPartition) -> SourcePosition:
        return self.state.positions.get(tp, SourcePosition(self._starts[tp]))

    def _drop_complete(self, follow: bool, ends: dict[TopicPartition, int]) -> None:
        """Without `follow`, read no partition after its end."""
        if follow:
            return
        complete = [tp for tp, end in ends.items() if self._source.position(tp).offset >= end]
        if complete:
            self._commit_positions(complete)
            self._source.remove(complete)
            for tp in complete:
                del ends[tp]

    def _commit_positions(self, partitions: list[TopicPartition] | None = None) -> None:
        """Commit positions after offsets without records, such as markers: their deletion is no
        loss.
        """
        committed = self.state.positions
        moved = []
        for tp in self._assigned if partitions is None else partitions:
            position = self._source.position(tp)
            if tp not in committed or position.offset > committed[tp].offset:
                moved.append((tp, position))
        lines = self.state.lines_of_positions(moved)
        if lines:
            self._target.write([], lambda _: lines)
            self.state.apply(lines)
        if partitions is not None:
            self._assigned = [tp for tp in self._assigned if tp not in set(partitions)]

    def _check_position(
        self, tp: TopicPartition, position: SourcePosition, start: int, end: int
    ) -> SourcePosition:
        """The position to continue at. Raises OffsetOutOfRangeError after a loss, StateError for a
        shorter source.
        """
        name = f"{tp.topic}-{tp.partition}"
        if position.offset > end:
            raise StateError(
                f"{name} in {self._source.label} ends before the records that were copied: it was "
                "restored, or has lost records",
                expected=f"offset {position.offset}",
                found=f"the end {end}",
            )
        if position.offset >= start:
            return position
        problem = (
            f"{name}: offsets {position.offset} to {start - 1} were deleted at the source before "
            "they were copied"
        )
        if not self._plan.skip_deleted:
            raise OffsetOutOfRangeError(
                f"{problem}; --skip-deleted continues at {start}",
                topic=tp.topic,
                partition=tp.partition,
            )
        self._notice(problem)
        return SourcePosition(start)

    # ---- topics ----------------------------------------------------------------------------------

    def _refresh(self) -> None:
        """Follow new topics, new partitions and deleted topics."""
        names = self._plan.selection.select(self._source)
        if not self._topics.keys() >= set(names) - self._copies:
            copies = find_copies(self._source, self._target.identity)
            self._plan.selection.check_copies(self._source, copies)
            for name in sorted((copies - self._copies) & set(names)):
                self._notice(f"topic {name} was copied from the target: it is not copied back")
            self._copies |= copies
        topics = self._source.describe(name for name in names if name not in self._copies)
        changed = [topic for name, topic in topics.items() if self._topics.get(name) != topic]
        self._forget([name for name in self._topics if name not in topics])
        if changed:
            self._preparation.prepare(changed)
            new = []
            for topic in changed:
                self._topics[topic.name] = topic
                for number in range(topic.partition_count):
                    tp = TopicPartition(topic.name, number)
                    if tp not in self._starts:
                        new.append(tp)
            self._add(new)

    def _forget(self, topics: list[str]) -> None:
        for name in topics:
            self._notice(f"topic {name} was deleted at the source")
            del self._topics[name]
        deleted = [tp for tp in self._starts if tp.topic in topics]
        self._source.remove(deleted)
        for tp in deleted:
            del self._starts[tp]
        self._assigned = [tp for tp in self._assigned if tp.topic not in topics]

    def _add(self, partitions: list[TopicPartition]) -> None:
        starts = {}
        for tp, (start, end) in self._source.bounds(partitions).items():
            position = self.state.positions.get(tp)
            if position is None:
                position = SourcePosition(start)
            else:
                position = self._check_position(tp, position, start, end)
            starts[tp] = position
            self._starts[tp] = position.offset
        self._source.add(starts)
        self._assigned += partitions
