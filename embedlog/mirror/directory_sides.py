"""Contains the sides of a mirror that are log directories, or sets of them.

- A source is only read: it may be opened read-only, and other processes write it meanwhile.
- A record with a timestamp before 1970 gets the current time, because no side accepts it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from embedlog import (
    ConfigError,
    Future,
    GroupNotEmptyError,
    GroupNotFoundError,
    InvalidTransactionStateError,
    Log,
    OffsetAndMetadata,
    Producer,
    Record,
    TopicPartition,
    UnknownTopicOrPartitionError,
    WakeupError,
)
from embedlog.mirror.sides import (
    INTERNAL,
    Lines,
    MirrorPiece,
    Settings,
    SourcePosition,
    TargetSpan,
    TopicFacts,
    create_without_refused,
)

RECORDS_MAX = 20_000  # of one transaction
BYTES_MAX = 16 << 20
REQUEST_MAX = (1 << 31) - 1  # the topic limits the size of records
TRANSACTION_TIMEOUT_MS = 900_000  # Kafka's maximum: a frozen mirror keeps its transaction
# the state topic is read at each start, and only closed segments are compacted
STATE_SEGMENT_BYTES = 4 << 20


class _DirectorySide:
    """The reads that both sides need."""

    def __init__(self, log: Log, label: str) -> None:
        self.label = label
        self.identity = log.identity
        self._log = log

    def topic_names(self) -> list[str]:
        return self._log.topics()

    def describe(self, names: Iterable[str]) -> dict[str, TopicFacts]:
        topics = {}
        for name in names:
            with contextlib.suppress(UnknownTopicOrPartitionError):
                topic = self._log.describe_topic(name)
                topics[name] = TopicFacts(name, topic.topic_id, topic.partition_count, topic.config)
        return topics

    def bounds(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        by_topic: dict[str, list[TopicPartition]] = {}
        for tp in partitions:
            by_topic.setdefault(tp.topic, []).append(tp)
        bounds = {}
        for topic, partitions_of_topic in by_topic.items():
            descriptions = {
                description.partition: description
                for description in self._log.describe_topic(topic).partitions
            }
            for tp in partitions_of_topic:
                description = descriptions.get(tp.partition)
                if description is None:
                    raise UnknownTopicOrPartitionError(f"no partition {tp.partition} of {topic!r}")
                bounds[tp] = description.log_start_offset, description.last_stable_offset
        return bounds

    def lines(self, topic: str) -> Iterator[tuple[bytes, bytes | None]]:
        if topic not in self._log.topics():
            return iter(())
        records = self._log.scan(topic, isolation_level="read_committed").records()
        return ((record.key or b"", record.value) for record in records)

    def group_offsets(self, group: str) -> dict[TopicPartition, int]:
        commits = self._log.group_offsets(group)
        return {tp: commit.offset for tp, commit in commits.items()}


class DirectorySource(_DirectorySide):
    """Reads a log directory with a consumer without a group."""

    def __init__(self, log: Log, label: str, settings: Settings) -> None:
        super().__init__(log, label)
        defaults = {
            "isolation.level": "read_committed",
            "auto.offset.reset": "none",
            "max.poll.records": RECORDS_MAX,
            "fetch.max.bytes": BYTES_MAX,
        }
        self._consumer = log.consumer(config={**defaults, **settings})
        self._epochs: dict[TopicPartition, int] = {}
        # for the time without a topic, in which a consumer does not wait
        self._wake_event = threading.Event()

    def add(self, starts: Mapping[TopicPartition, SourcePosition]) -> None:
        self._consumer.assign([*self._consumer.assignment(), *starts])
        for tp, (offset, epoch) in starts.items():
            self._consumer.seek(tp, OffsetAndMetadata(offset, leader_epoch=epoch))
            self._epochs[tp] = epoch

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        removed = set(partitions)
        self._consumer.assign([tp for tp in self._consumer.assignment() if tp not in removed])
        for tp in removed:
            self._epochs.pop(tp, None)

    def take(self, timeout_s: float) -> list[MirrorPiece]:
        if not self._consumer.assignment():
            self._wake_event.wait(timeout_s)
            self._wake_event.clear()
            return []
        try:
            records = self._consumer.poll(timeout=timeout_s)
        except WakeupError:
            return []
        groups = groupby(records, key=lambda record: (record.topic, record.partition))
        return [
            self._make_piece(TopicPartition(topic, number), list(group))
            for (topic, number), group in groups
        ]

    def _make_piece(self, tp: TopicPartition, records: list[Record[bytes, bytes]]) -> MirrorPiece:
        last = records[-1]
        self._epochs[tp] = last.leader_epoch
        headers = [record.headers for record in records]
        keys = [record.key for record in records]
        values = [record.value for record in records]
        return MirrorPiece(
            tp,
            offsets=[record.offset for record in records],
            timestamps_ms=[record.timestamp_ms for record in records],
            keys=keys,
            values=values,
            headers=headers if any(headers) else None,
            following=SourcePosition(last.offset + 1, last.leader_epoch),
            size_bytes=sum(map(len, filter(None, keys))) + sum(map(len, filter(None, values))),
        )

    def position(self, tp: TopicPartition) -> SourcePosition:
        return SourcePosition(self._consumer.position(tp), self._epochs.get(tp, -1))

    def group_ids(self) -> list[str]:
        ids = []
        for group in self._log.groups():
            with contextlib.suppress(GroupNotFoundError):  # deleted meanwhile
                if self._log.describe_group(group).protocol_type in ("", "consumer"):
                    ids.append(group)
        return ids

    def wake(self) -> None:
        self._wake_event.set()
        self._consumer.wakeup()

    def close(self) -> None:
        self._consumer.close()


class DirectoryTarget(_DirectorySide):
    """Writes a log directory with a transactional producer."""

    def __init__(self, log: Log, label: str, settings: Settings) -> None:
        super().__init__(log, label)
        self._settings = settings
        self._producer: Producer[bytes, bytes] | None = None
        self._state_topic = ""

    def create(self, facts: TopicFacts, replication_factor: int | None) -> list[str]:
        def create(config: dict[str, str]) -> None:
            self._log.create_topic(
                facts.name,
                facts.partition_count,
                config,
                replication_factor=replication_factor,
                exist_ok=True,
            )

        return create_without_refused(
            facts.config, create, lambda problem: isinstance(problem, ConfigError)
        )

    def grow(self, name: str, partition_count: int) -> None:
        self._log.create_partitions(name, partition_count)

    def begin(self, transactional_id: str, state_topic: str) -> None:
        defaults = {
            "max.request.size": REQUEST_MAX,
            "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
        }
        config = {**defaults, **self._settings, "transactional.id": transactional_id}
        self._producer = self._log.producer(config)
        self._state_topic = state_topic
        self._producer.init_transactions()

    def write(
        self,
        pieces: Sequence[tuple[str, MirrorPiece]],
        lines_of: Callable[[list[list[TargetSpan]]], Lines],
    ) -> None:
        assert self._producer is not None, "begin() comes first"
        with self._producer.transaction() as producer:
            futures = self._send(producer, pieces)
            spans = [
                [TargetSpan(base, count) for _, _, base, count in future.result()]
                for future in futures
            ]
            for key, value in lines_of(spans):
                producer.send(self._state_topic, value, key, partition=0)

    def _send(
        self, producer: Producer[bytes, bytes], pieces: Sequence[tuple[str, MirrorPiece]]
    ) -> list[Future[list[tuple[str, int, int, int]]]]:
        futures: list[Future[list[tuple[str, int, int, int]]]] = []
        for topic, piece in pieces:
            try:
                futures.append(
                    producer.send_batch(
                        topic,
                        piece.values,
                        piece.keys,
                        partition=piece.tp.partition,
                        timestamps_ms=_valid_timestamps(piece.timestamps_ms),
                        headers=piece.headers,
                    )
                )
            except InvalidTransactionStateError:
                for future in futures:
                    future.result()  # the error of the record that the producer refers to
                raise
        return futures

    def may_commit_group(self, group: str, offsets: Mapping[TopicPartition, int]) -> bool:
        return self._reset(group, offsets, dry_run=True)

    def commit_group(self, group: str, offsets: Mapping[TopicPartition, int]) -> bool:
        return self._reset(group, offsets, dry_run=False)

    def _reset(self, group: str, offsets: Mapping[TopicPartition, int], *, dry_run: bool) -> bool:
        try:
            self._log.reset_group_offsets(group, to=dict(offsets), dry_run=dry_run)
        except GroupNotEmptyError:
            return False
        return True

    def close(self) -> None:
        if self._producer is not None:
            self._producer.close()


def state_topic_of(name: str) -> TopicFacts:
    """The state topic before it exists."""
    config = {"cleanup.policy": "compact", "segment.bytes": str(STATE_SEGMENT_BYTES)}
    assert name.startswith(INTERNAL), "no mirror copies it"
    return TopicFacts(name, "", 1, config)


def _valid_timestamps(timestamps_ms: Sequence[int]) -> Sequence[int]:
    """Timestamps that a log accepts: one before 1970 becomes the current time."""
    if min(timestamps_ms) >= 0:
        return timestamps_ms
    now_ms = time.time_ns() // 1_000_000
    return [now_ms if time_ms < 0 else time_ms for time_ms in timestamps_ms]
