"""Copies the committed offsets of groups, translated to offsets of the target.

MIRRORGROUP-1  a translated offset is never after the exact one (OFFSETMAP-4); one that is not
    copied yet is the end of the copy
MIRRORGROUP-2  a group with members at the target is left alone
MIRRORGROUP-3  an offset at the target moves back only if the mirror committed the present one
MIRRORGROUP-4  the state has the next offset before its commit, beside the present one if the mirror
    committed it. So the next mirror knows the commit of one that was killed between the two
MIRRORGROUP-5  the state forgets an offset that was not committed, and one that is no longer the
    present one. Members can commit the same offset later. Nothing is noted while the group has
    members: the mirror looks for them first
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from embedlog import TopicPartition
from embedlog.mirror.mirror_state import MirrorState
from embedlog.mirror.sides import Source, Target

# Groups of programs that store their own progress; the first three as in MirrorMaker 2.
NOT_COPIED = re.compile(r"console-consumer-.*|connect-.*|__.*|import-[0-9a-f]{24}")


@dataclass
class GroupCopies:
    """The groups of a mirror. `groups`: their ids, or None for all."""

    source: Source
    target: Target
    state: MirrorState
    groups: Sequence[str] | None
    notice: Callable[[str], object]
    # committed in this run, by target partitions
    offsets: dict[tuple[str, TopicPartition], int] = field(default_factory=dict)
    _busy: set[str] = field(default_factory=set)
    # source offsets that need no further look
    _complete: dict[str, dict[TopicPartition, int]] = field(default_factory=dict)

    def copy(self) -> None:
        """Commit the offsets that have changed."""
        if self.groups is None:
            names = [name for name in self.source.group_ids() if not NOT_COPIED.fullmatch(name)]
        else:
            names = list(self.groups)
        for group in names:
            self._copy(group)

    def _copy(self, group: str) -> None:
        found = {
            place: offset
            for place, offset in self.source.group_offsets(group).items()
            if place in self.state.positions
        }
        if not found or self._complete.get(group) == found:
            return
        targets = {
            place: TopicPartition(self.state.topic_pairs[place.topic].target, place.partition)
            for place in found
        }
        present = self.target.group_offsets(group)
        bounds = self.target.bounds(targets.values())
        changed: dict[TopicPartition, int] = {}
        # of the present offsets, those that the mirror committed
        known: dict[TopicPartition, tuple[int, ...]] = {}
        for place, offset in found.items():
            tp = targets[place]
            start, end = bounds[tp]
            translated = self.state.map(place).translate(offset)
            wanted = max(start, end if translated is None else translated)
            old = present.get(tp)
            known[place] = (
                (old,)
                if old is not None and old in self.state.groups.get((group, place), ())
                else ()
            )
            if old is None or wanted > old or (known[place] and wanted != old):
                changed[place] = wanted
        if changed and not self._commit(group, targets, changed, known):
            if group not in self._busy:
                self.notice(f"group {group} has members at the target: its offsets are not copied")
            self._busy.add(group)
            self._note(group, known)
            return
        if all(offset <= self.state.positions[place].offset for place, offset in found.items()):
            self._complete[group] = found
        self._busy.discard(group)
        self.offsets |= {(group, targets[place]): offset for place, offset in changed.items()}
        self._note(group, known | {place: (offset,) for place, offset in changed.items()})

    def _commit(
        self,
        group: str,
        targets: Mapping[TopicPartition, TopicPartition],
        changed: Mapping[TopicPartition, int],
        known: Mapping[TopicPartition, tuple[int, ...]],
    ) -> bool:
        """Commit offsets, noted before as possible ones; False if the group has members."""
        offsets = {targets[place]: offset for place, offset in changed.items()}
        if not self.target.may_commit_group(group, offsets):
            return False
        self._note(group, {place: (*known[place], offset) for place, offset in changed.items()})
        return self.target.commit_group(group, offsets)

    def _note(self, group: str, offsets: Mapping[TopicPartition, tuple[int, ...]]) -> None:
        """Write the offsets of which the mirror has committed one, where the state has others."""
        state = self.state.groups
        lines = self.state.committed(
            group, [each for each in offsets.items() if each[1] != state.get((group, each[0]), ())]
        )
        if lines:
            self.target.write([], lambda _: lines)
            self.state.apply(lines)
