"""Describes decisions in words, and reads the recent ones from a copy of the decision log.

- A change is described by old and new values. A value before the first record that was read is not
  known, and only the new one is named.
- A new topic is one change, whatever its number of partitions.
- Recent decisions are read without a lock, from one copy, below its high watermark (QUORUM-7).
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
    DecidedConfig,
    DecidedPartition,
    DecidedTopic,
    NoOp,
    Record,
    RegisterBroker,
    RemoveTopic,
    Tombstone,
    UnregisterBroker,
)
from embedlog.replicas.rules.state import State, apply_all

RECENT: Final = 20  # decisions
WINDOW: Final = 2000  # offsets before the log end that are read for them


class DecisionCopy(Protocol):
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


def recent(copy: DecisionCopy, cluster_id: str, count_max: int = RECENT) -> list[RecentDecision]:
    """The last decisions that a copy shows, without those that change nothing. Raises
    CorruptRecordError, StorageError.
    """
    now, _ = copy.published()
    batches = list[_Batch]()
    position = max(now.log_start, now.high_watermark - WINDOW)
    while position < now.high_watermark:
        chunk = copy.read(position, CHUNK_BYTES, now.high_watermark)
        if chunk.next_offset <= position:
            raise CorruptRecordError(
                "the decision log ends too early",
                path=chunk.path,
                expected=now.high_watermark,
                found=position,
            )
        with in_file(chunk.path, chunk.position):
            batches += _batches_of(chunk, position)
        position = chunk.next_offset
    shown = [batch for batch in batches if _has_change(batch)][-count_max:]
    first_shown = shown[0].offset if shown else 0
    earlier_records = [
        record for batch in batches if batch.offset < first_shown for record in batch.records
    ]
    state = apply_all(State(cluster_id), earlier_records)
    decisions = []
    for batch in shown:
        texts = changes(state, batch.records)
        if texts:
            decisions.append(RecentDecision(batch.offset, batch.term, batch.timestamp_ms, texts))
        state = apply_all(state, batch.records)
    return decisions


class _Batch(NamedTuple):
    offset: int
    term: int
    timestamp_ms: int
    records: tuple[Record, ...]


def _has_change(batch: _Batch) -> bool:
    return not all(isinstance(record, (NoOp, Tombstone)) for record in batch.records)


def _batches_of(chunk: FetchedBatches, position: int) -> Iterator[_Batch]:
    """The batches from a position on."""
    records = list(numbered_records_from(chunk, position))
    offsets = [offset for offset, _ in records]
    for row in chunk.batches:
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
    new_topics = {
        record.topic_uuid: record
        for record in every
        if isinstance(record, DecidedTopic) and record.topic_uuid not in before.topics
    }
    after = apply_all(before, every)
    texts = list[str]()
    for record in every:
        if _is_of_new_topic(record, new_topics):
            continue
        text = _describe(before, after, record)
        if text is not None:
            texts.append(text)
    return tuple(texts)


def _is_of_new_topic(record: Record, new_topics: dict[UUID, DecidedTopic]) -> bool:
    """Whether the record belongs to the creation of a topic."""
    if isinstance(record, DecidedPartition):
        return record.topic_uuid in new_topics
    return (
        isinstance(record, DecidedConfig)
        and record.kind == TOPIC
        and record.resource in {topic.name for topic in new_topics.values()}
    )


def _describe(before: State, after: State, record: Record) -> str | None:
    match record:
        case DecidedTopic():
            count = len(after.partitions_of(record.topic_uuid))
            return f"topic {record.name} created, {count} partition{'s' * (count != 1)}"
        case RemoveTopic():
            topic = before.topics.get(record.topic_uuid)
            return f"topic {topic.name if topic else record.topic_uuid} deleted"
        case DecidedPartition():
            return partition_change(before, record, name_of(after, record))
        case DecidedConfig():
            return _describe_setting(before, record)
        case RegisterBroker():
            return _describe_registration(before, record)
        case UnregisterBroker():
            return f"node {record.node} left the set"
        case NoOp() | Tombstone():
            return None


def name_of(state: State, record: DecidedPartition) -> str:
    """The partition as `topic-number`."""
    topic = state.topics.get(record.topic_uuid)
    return f"{topic.name if topic else record.topic_uuid}-{record.number}"


def partition_change(before: State, new: DecidedPartition, name: str) -> str | None:
    """The change of one partition; None if it has none."""
    old = before.partitions.get((new.topic_uuid, new.number))
    if old is None:
        leader = "no leader" if new.leader == NO_LEADER else f"leader {new.leader}"
        return (
            f"{name}: {leader} in epoch {new.leader_epoch}, ISR {list(new.isr)}, replicas "
            f"{list(new.replicas)}"
        )
    parts = [main_change(old, new)]
    lists = (
        ("ELR", old.elr, new.elr),
        ("foreign", old.strangers, new.strangers),
        ("adding", old.adding, new.adding),
        ("removing", old.removing, new.removing),
    )
    for name_of_list, old_nodes, new_nodes in lists:
        if old_nodes != new_nodes:
            parts.append(f"{name_of_list} {list(old_nodes)} -> {list(new_nodes)}")
    text = ", ".join(part for part in parts if part)
    return f"{name}: {text}" if text else None


def main_change(old: DecidedPartition, new: DecidedPartition) -> str:
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


def _describe_setting(before: State, record: DecidedConfig) -> str:
    if record.kind == TOPIC:
        subject = f"topic {record.resource}"
    elif record.resource:
        subject = f"node {record.resource}"
    else:
        subject = "all nodes"
    old = before.settings.get((record.kind, record.resource, record.name))
    new = "its default" if record.value is None else record.value
    if old is None:
        return f"{subject}: {record.name} = {new}"
    return f"{subject}: {record.name} {old} -> {new}"


def _describe_registration(before: State, record: RegisterBroker) -> str | None:
    old = before.nodes.get(record.node)
    if old is None:
        kind = "" if record.replicas else " as a witness"
        return f"node {record.node} registered{kind}: {record.path}"
    parts = []
    if old.registration_id != record.registration_id:
        parts.append("a new registration id")
    if old.path != record.path:
        parts.append(f"path {old.path} -> {record.path}")
    for name in ("voter", "leaving", "generation", "rack"):
        old_value = getattr(old, name)
        new_value = getattr(record, name)
        if old_value != new_value:
            parts.append(f"{name} {old_value} -> {new_value}")
    if not parts:
        return None
    return f"node {record.node}: {', '.join(parts)}"
