"""A group's log as the reference: its records are replayed, and every commit is compared with the
owner of its partition.

MEMBER-6: of two members with a partition at most one has commits that count. A commit of these
experiments has its member and its first offset in its metadata. So the log alone shows whether the
commits form a chain. Each begins at the end of the one before, and its member owned the partition
in the generation of that moment. No generation gives a partition to two members.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import embedlog
from embedlog import TopicPartition
from embedlog.coordination.groups.group_records import (
    GROUP_KEY,
    decode_group,
    decode_names,
    decode_offset,
    decode_offset_key,
    key_kind,
)
from embedlog.format.consumer_protocol import decode_assignment
from embedlog.group import Group, State

OFFSETS = "__consumer_offsets"


class Covered(NamedTuple):
    """The metadata of a commit: `window` is the member's own number of it."""

    pid: int
    window: int
    member_id: str
    generation: int
    start: int

    def note(self) -> str:
        return f"{self.pid} {self.window} {self.member_id} {self.generation} {self.start}"

    @classmethod
    def read(cls, note: str) -> Covered:
        pid, window, member_id, generation, start = note.split(" ")
        return cls(int(pid), int(window), member_id, int(generation), int(start))


@dataclass
class Ledger:
    """A group's history, in the order of its log."""

    group_id: str
    violations: list[str] = field(default_factory=list)
    committed: dict[TopicPartition, int] = field(default_factory=dict)
    # (pid, window, partition) -> generation
    commits: dict[tuple[int, int, TopicPartition], int] = field(default_factory=dict)
    generations: set[int] = field(default_factory=set)
    group: Group | None = None
    _owners: dict[TopicPartition, str] = field(default_factory=dict)
    _assigned: int = -1

    def replay(self, records: Iterable[tuple[int, bytes, bytes | None]]) -> Ledger:
        """Take in (place, key, value) of the group's partition."""
        for place, key, value in records:
            if key_kind(key) == GROUP_KEY:
                if decode_names(key)[0] == self.group_id:
                    self._take_group(place, None if value is None else decode_group(value))
            elif key_kind(key) < GROUP_KEY:
                group_id, tp = decode_offset_key(key)
                if group_id == self.group_id and value is not None:
                    found = decode_offset(value)
                    self._take_commit(place, tp, found.offset, found.metadata)
        return self

    def _take_group(self, place: int, group: Group | None) -> None:
        before = self.group
        self.group = group
        if group is None:
            return
        if before is not None and group.generation < before.generation:
            self.violations.append(
                f"{place}: generation {group.generation} after {before.generation}"
            )
        self.generations.add(group.generation)
        if group.state is State.STABLE:
            owners: dict[TopicPartition, str] = {}
            for member in group.members.values():
                for tp in decode_assignment(member.assignment) if member.assignment else ():
                    if tp in owners:
                        both = f"{owners[tp]} and {member.member_id}"
                        self.violations.append(
                            f"{place}: {tp} belongs to {both} in generation {group.generation}"
                        )
                    owners[tp] = member.member_id
            # until it has a new owner
            leaving = {tp: owner for tp, owner in self._owners.items() if owner in group.members}
            self._owners = leaving | owners
            self._assigned = group.generation

    def _take_commit(self, place: int, tp: TopicPartition, offset: int, note: str) -> None:
        covered = Covered.read(note)
        group = self.group
        what = (
            f"{place}: commit of {tp} from {covered.start} to {offset} by {covered.member_id} in "
            f"{covered.generation}"
        )
        bad = self.violations.append
        if group is None or covered.member_id not in group.members:
            bad(f"{what}: not a member")
        elif covered.generation != group.generation or group.state is State.COMPLETING_REBALANCE:
            bad(f"{what}: the group is {group.state.label} in {group.generation}")
        elif self._assigned == group.generation and self._owners.get(tp) != covered.member_id:
            bad(f"{what}: it belongs to {self._owners.get(tp)}")
        last = self.committed.get(tp, 0)
        if offset < last:
            bad(f"{what}: {last} was committed before")
        if covered.start != last:
            bad(
                f"{what}: {'skipped' if covered.start > last else 'counted twice'} the records "
                f"between {last} and {covered.start}"
            )
        self.committed[tp] = offset
        self.commits[covered.pid, covered.window, tp] = covered.generation


def read_ledger(log: embedlog.Log, group_id: str) -> Ledger:
    """The whole history of a group. REQUIRES a log that is not compacted."""
    ledger = Ledger(group_id)
    if OFFSETS not in log.topics(include_internal=True):
        return ledger
    number = log._engine.groups.topic.partition_of(group_id)
    records = log.scan(OFFSETS, partitions=[number]).records()
    return ledger.replay((record.offset, record.key, record.value) for record in records)


def lag(committed: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> int:
    return sum(end - committed.get(tp, 0) for tp, end in ends.items())
