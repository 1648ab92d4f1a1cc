"""Describes decisions in words, and reads the recent ones from a copy of the decision log.

DECISIONWORDS-1  a change is described by old and new values. A value before the first record that
    was read is not known, and only the new one is named
DECISIONWORDS-2  a new topic is one change, whatever its number of partitions
DECISIONWORDS-3  recent decisions are read without a lock, from one copy, below its high watermark
    (QUORUM-7)
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from embedlog._native.system import Published
from embedlog.errors import CorruptRecordError, in_file
from embedlog.replicas.decisions.decision_view import (
    CHUNK_BYTES,
    FetchedBatches,
    numbered_records_from,
)
from embedlog.replicas.rules.records import (
    NO_LEADER,
    TOPIC,
    Config,
    NoOp,
    Partition,
    Record,
    RegisterBroker,
    RemoveTopic,
    Tombstone,
    Topic,
    UnregisterBroker,
)
from embedlog.replicas.rules.state import State, apply_all

RECENT: Final = 20  # decisions
WINDOW: Final = 2000  # offsets before the log end that are read for them


class Copy(Protocol):
    """A copy of the decision log."""

    def published(self) -> tuple[Published, object]: ...
    def read(self, offset: int, max_bytes: int, upto: int | None = None) -> FetchedBatches: ...


class RecentDecision(NamedTuple):
    """One batch of a copy: the offset of its first record, its term and time, and its changes in
    words.
    """

    offset: int
    term: int
    timestamp_ms: int
    changes: tuple[str, ...]


def recent(copy: Copy, cluster_id: str, most: int = RECENT) -> list[RecentDecision]:
    """The last decisions that a copy shows, without those that change nothing. Raises
    CorruptRecordError, StorageError.
    """
    now, _ = copy.published()
    batches = list[_Batch]()
    position = max(now.log_start, now.high_watermark - WINDOW)
    while position < now.high_watermark:
        found = copy.read(position, CHUNK_BYTES, now.high_watermark)
        if found.next_offset <= position:
            raise CorruptRecordError(
                "the decision log ends too early",
                path=found.path,
                expected=now.high_watermark,
                found=position,
            )
        with in_file(found.path, found.position):
            batches += _batches(found, position)
        position = found.next_offset
    shown = [
        each
        for each in batches
        if not all(isinstance(record, (NoOp, Tombstone)) for record in each.records)
    ][-most:]
    first = shown[0].offset if shown else 0
    state = apply_all(
        State(cluster_id),
        [record for each in batches if each.offset < first for record in each.records],
    )
    decisions = []
    for each in shown:
        decisions.append(
            RecentDecision(each.offset, each.term, each.timestamp_ms, changes(state, each.records))
        )
        state = apply_all(state, each.records)
    return [each for each in decisions if each.changes]


class _Batch(NamedTuple):
    offset: int
    term: int
    timestamp_ms: int
    records: tuple[Record, ...]


def _batches(found: FetchedBatches, position: int) -> Iterator[_Batch]:
    """The batches from a position on."""
    records = list(numbered_records_from(found, position))
    offsets = [offset for offset, _ in records]
    for row in found.batches:
        base = int(row["base_offset"])
        first = bisect_left(offsets, base)
        after = bisect_left(offsets, base + int(row["last_offset_delta"]) + 1)
        if first < after:
            own = tuple(record for _, record in records[first:after])
            yield _Batch(offsets[first], int(row["leader_epoch"]), int(row["max_timestamp"]), own)


# ---- words ---------------------------------------------------------------------------------------


def changes(before: State, records: Iterable[Record]) -> tuple[str, ...]:
    """What the records of one decision change, in words."""
    every = tuple(records)
    made = {
        record.topic_id: record
        for record in every
        if isinstance(record, Topic) and record.topic_id not in before.topics
    }
    after = apply_all(before, every)
    found = list[str]()
    for record in every:
        text = None if _topic_of(record, made) else _change(before, after, record)
        if text is not None:
            found.append(text)
    return tuple(found)


def _topic_of(record: Record, made: dict[UUID, Topic]) -> bool:
    """Whether the record belongs to the creation of a topic."""
    if isinstance(record, Partition):
        return record.topic_id in made
    return (
        isinstance(record, Config)
        and record.kind == TOPIC
        and record.resource in {each.name for each in made.values()}
    )


def _change(before: State, after: State, record: Record) -> str | None:
    match record:
        case Topic():
            count = len(after.partitions_of(record.topic_id))
            return f"topic {record.name} created, {count} partition{'s' * (count != 1)}"
        case RemoveTopic():
            known = before.topics.get(record.topic_id)
            return f"topic {known.name if known else record.topic_id} deleted"
        case Partition():
            return partition_change(before, record, name_of(after, record))
        case Config():
            return _setting(before, record)
        case RegisterBroker():
            return _registration(before, record)
        case UnregisterBroker():
            return f"node {record.node} left the set"
        case NoOp() | Tombstone():
            return None


def name_of(state: State, record: Partition) -> str:
    """The partition as `topic-number`."""
    topic = state.topics.get(record.topic_id)
    return f"{topic.name if topic else record.topic_id}-{record.number}"


def partition_change(before: State, new: Partition, name: str) -> str | None:
    """The change of one partition; None if it has none."""
    old = before.partitions.get((new.topic_id, new.number))
    if old is None:
        leader = "no leader" if new.leader == NO_LEADER else f"leader {new.leader}"
        return (
            f"{name}: {leader} in epoch {new.leader_epoch}, ISR {list(new.isr)}, replicas "
            f"{list(new.replicas)}"
        )
    parts = [main_change(old, new)]
    pairs = (
        ("ELR", old.elr, new.elr),
        ("foreign", old.foreign, new.foreign),
        ("adding", old.adding, new.adding),
        ("removing", old.removing, new.removing),
    )
    for what, was, now in pairs:
        if was != now:
            parts.append(f"{what} {list(was)} -> {list(now)}")
    text = ", ".join(part for part in parts if part)
    return f"{name}: {text}" if text else None


def main_change(old: Partition, new: Partition) -> str:
    """The change of leader, ISR and assignment of a partition; empty if all of them are
    unchanged.
    """
    parts = []
    if new.leader != old.leader or new.leader_epoch != old.leader_epoch:
        unclean = ", unclean" if new.recovering and not old.recovering else ""
        parts.append(
            f"leader {_leader(old.leader)} -> {_leader(new.leader)} in epoch "
            f"{new.leader_epoch}{unclean}"
        )
    if sorted(new.isr) != sorted(old.isr):
        parts.append(f"ISR {list(old.isr)} -> {list(new.isr)}")
    if new.replicas != old.replicas:
        parts.append(f"replicas {list(old.replicas)} -> {list(new.replicas)}")
    return ", ".join(parts)


def _leader(node: int) -> str:
    return "none" if node == NO_LEADER else str(node)


def _setting(before: State, record: Config) -> str:
    subject = (
        f"topic {record.resource}"
        if record.kind == TOPIC
        else f"node {record.resource}"
        if record.resource
        else "all nodes"
    )
    old = before.settings.get((record.kind, record.resource, record.name))
    new = "its default" if record.value is None else record.value
    return (
        f"{subject}: {record.name} = {new}"
        if old is None
        else f"{subject}: {record.name} {old} -> {new}"
    )


def _registration(before: State, record: RegisterBroker) -> str | None:
    old = before.nodes.get(record.node)
    what = f"node {record.node}"
    if old is None:
        kind = "" if record.replicas else " as a witness"
        return f"{what} registered{kind}: {record.path}"
    parts = []
    if old.incarnation != record.incarnation:
        parts.append("a new registration id")
    if old.path != record.path:
        parts.append(f"path {old.path} -> {record.path}")
    for name in ("voter", "leaving", "generation", "rack"):
        was = getattr(old, name)
        now = getattr(record, name)
        if was != now:
            parts.append(f"{name} {was} -> {now}")
    return f"{what}: {', '.join(parts)}" if parts else None
