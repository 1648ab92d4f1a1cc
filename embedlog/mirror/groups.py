"""Copies the committed offsets of groups, translated to offsets of the target.

- A translated offset is never after the exact one; one that is not copied yet is the
  end of the copy.
- A group with members at the target is left alone.
- An offset at the target moves back only if the mirror committed the current one.
- The state has the next offset before its commit, beside the current one if the mirror committed
  it. So the next mirror knows the commit of one that was killed between the two.
- The state forgets an offset that was not committed, and one that is no longer the current one.
  Members can commit the same offset later. Nothing is noted while the group has members: the mirror
  looks for them first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from embedlog import TopicPartition
from embedlog.mirror.mirror_state import MirrorState
from embedlog.mirror.sides import MirrorSource, MirrorTarget

# Groups of programs that store their own progress; the first three as in MirrorMaker 2.
NOT_COPIED = re.compile(r"console-consumer-.*|connect-.*|__.*|import-[0-9a-f]{24}")


@dataclass
class GroupCopies:
    """The groups of a mirror. `groups`: their ids, or None for all."""

    source: MirrorSource
    target: MirrorTarget
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
        source_offsets = {
            tp: offset
            for tp, offset in self.source.group_offsets(group).items()
            if tp in self.state.positions
        }
        if not source_offsets or self._complete.get(group) == source_offsets:
            return
        targets = {
            tp: TopicPartition(self.state.topic_pairs[tp.topic].target, tp.partition)
            for tp in source_offsets
        }
        target_offsets = self.target.group_offsets(group)
        bounds = self.target.bounds(targets.values())
        changed: dict[TopicPartition, int] = {}
        # of the current offsets at the target, those that the mirror committed
        own: dict[TopicPartition, tuple[int, ...]] = {}
        for tp, offset in source_offsets.items():
            start, end = bounds[targets[tp]]
            translated = self.state.map_of(tp).translate(offset)
            if translated is None:
                translated = end
            translated = max(start, translated)
            target_offset = target_offsets.get(targets[tp])
            own[tp] = ()
            if target_offset is None:
                changed[tp] = translated
                continue
            if target_offset in self.state.groups.get((group, tp), ()):
                own[tp] = (target_offset,)
            if translated > target_offset or (own[tp] and translated != target_offset):
                changed[tp] = translated
        if changed and not self._commit(group, targets, changed, own):
            if group not in self._busy:
                self.notice(f"group {group} has members at the target: its offsets are not copied")
            self._busy.add(group)
            self._write_possible(group, own)
            return
        positions = self.state.positions
        if all(offset <= positions[tp].offset for tp, offset in source_offsets.items()):
            self._complete[group] = source_offsets
        self._busy.discard(group)
        self.offsets |= {(group, targets[tp]): offset for tp, offset in changed.items()}
        self._write_possible(group, own | {tp: (offset,) for tp, offset in changed.items()})

    def _commit(
        self,
        group: str,
        targets: Mapping[TopicPartition, TopicPartition],
        changed: Mapping[TopicPartition, int],
        own: Mapping[TopicPartition, tuple[int, ...]],
    ) -> bool:
        """Commit offsets, noted before as possible ones; False if the group has members."""
        offsets = {targets[tp]: offset for tp, offset in changed.items()}
        if not self.target.may_commit_group(group, offsets):
            return False
        self._write_possible(group, {tp: (*own[tp], offset) for tp, offset in changed.items()})
        return self.target.commit_group(group, offsets)

    def _write_possible(
        self, group: str, offsets: Mapping[TopicPartition, tuple[int, ...]]
    ) -> None:
        """Write the offsets of which the mirror has committed one, where the state has others."""
        recorded = self.state.groups
        changed = [
            (tp, possible)
            for tp, possible in offsets.items()
            if possible != recorded.get((group, tp), ())
        ]
        lines = self.state.lines_of_commits(group, changed)
        if lines:
            self.target.write([], lambda _: lines)
            self.state.apply(lines)
