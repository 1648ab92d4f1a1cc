"""Contains the sides of a mirror that are log directories, or sets of them.

MIRRORDIRECTORY-1  a source is only read: it may be opened read-only, and other processes write it
    meanwhile
MIRRORDIRECTORY-2  a record with a timestamp before 1970 gets the present time, because no side
    accepts it
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
    Piece,
    Position,
    Settings,
    Span,
    TopicFacts,
    without_refused,
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
        found = {}
        for name in names:
            with contextlib.suppress(UnknownTopicOrPartitionError):
                topic = self._log.describe_topic(name)
                found[name] = TopicFacts(name, topic.topic_id, topic.partition_count, topic.config)
        return found

    def bounds(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        by_topic: dict[str, list[TopicPartition]] = {}
        for place in places:
            by_topic.setdefault(place.topic, []).append(place)
        found = {}
        for topic, wanted in by_topic.items():
            parts = {part.partition: part for part in self._log.describe_topic(topic).partitions}
            for place in wanted:
                part = parts.get(place.partition)
                if part is None:
                    raise UnknownTopicOrPartitionError(
                        f"no partition {place.partition} of {topic!r}"
                    )
                found[place] = part.log_start_offset, part.last_stable_offset
        return found

    def lines(self, topic: str) -> Iterator[tuple[bytes, bytes | None]]:
        if topic not in self._log.topics():
            return iter(())
        records = self._log.scan(topic, isolation_level="read_committed").records()
        return ((each.key or b"", each.value) for each in records)

    def group_offsets(self, group: str) -> dict[TopicPartition, int]:
        return {place: each.offset for place, each in self._log.group_offsets(group).items()}


class DirectorySource(_DirectorySide):
    """Reads a log directory with a consumer without a group."""

    def __init__(self, log: Log, label: str, settings: Settings) -> None:
        super().__init__(log, label)
        given = {
            "isolation.level": "read_committed",
            "auto.offset.reset": "none",
            "max.poll.records": RECORDS_MAX,
            "fetch.max.bytes": BYTES_MAX,
        }
        self._consumer = log.consumer(config={**given, **settings})
        self._epochs: dict[TopicPartition, int] = {}
        # for the time without a topic, in which a consumer does not wait
        self._woken = threading.Event()

    def add(self, starts: Mapping[TopicPartition, Position]) -> None:
        self._consumer.assign([*self._consumer.assignment(), *starts])
        for place, (offset, epoch) in starts.items():
            self._consumer.seek(place, OffsetAndMetadata(offset, leader_epoch=epoch))
            self._epochs[place] = epoch

    def remove(self, places: Iterable[TopicPartition]) -> None:
        gone = set(places)
        self._consumer.assign([place for place in self._consumer.assignment() if place not in gone])
        for place in gone:
            self._epochs.pop(place, None)

    def take(self, timeout_s: float) -> list[Piece]:
        if not self._consumer.assignment():
            self._woken.wait(timeout_s)
            self._woken.clear()
            return []
        try:
            records = self._consumer.poll(timeout=timeout_s)
        except WakeupError:
            return []
        groups = groupby(records, key=lambda record: (record.topic, record.partition))
        return [self._piece(TopicPartition(*place), list(rows)) for place, rows in groups]

    def _piece(self, place: TopicPartition, rows: list[Record[bytes, bytes]]) -> Piece:
        self._epochs[place] = rows[-1].leader_epoch
        headers = [each.headers for each in rows]
        keys = [each.key for each in rows]
        values = [each.value for each in rows]
        return Piece(
            place,
            [each.offset for each in rows],
            [each.timestamp_ms for each in rows],
            keys,
            values,
            headers if any(headers) else None,
            Position(rows[-1].offset + 1, rows[-1].leader_epoch),
            sum(map(len, filter(None, keys))) + sum(map(len, filter(None, values))),
        )

    def position(self, place: TopicPartition) -> Position:
        return Position(self._consumer.position(place), self._epochs.get(place, -1))

    def group_ids(self) -> list[str]:
        found = []
        for group in self._log.groups():
            with contextlib.suppress(GroupNotFoundError):  # deleted meanwhile
                if self._log.describe_group(group).protocol_type in ("", "consumer"):
                    found.append(group)
        return found

    def wake(self) -> None:
        self._woken.set()
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

        return without_refused(
            facts.config, create, lambda problem: isinstance(problem, ConfigError)
        )

    def grow(self, name: str, partition_count: int) -> None:
        self._log.create_partitions(name, partition_count)

    def begin(self, transactional_id: str, state_topic: str) -> None:
        given = {"max.request.size": REQUEST_MAX, "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS}
        config = {**given, **self._settings, "transactional.id": transactional_id}
        self._producer = self._log.producer(config)
        self._state_topic = state_topic
        self._producer.init_transactions()

    def write(
        self, pieces: Sequence[tuple[str, Piece]], lines_of: Callable[[list[list[Span]]], Lines]
    ) -> None:
        assert self._producer is not None, "begin() comes first"
        with self._producer.transaction() as producer:
            futures = self._sent(producer, pieces)
            written = [
                [Span(base, count) for _, _, base, count in future.result()] for future in futures
            ]
            for key, value in lines_of(written):
                producer.send(self._state_topic, value, key, partition=0)

    def _sent(
        self, producer: Producer[bytes, bytes], pieces: Sequence[tuple[str, Piece]]
    ) -> list[Future[list[tuple[str, int, int, int]]]]:
        futures: list[Future[list[tuple[str, int, int, int]]]] = []
        for topic, piece in pieces:
            try:
                futures.append(
                    producer.send_batch(
                        topic,
                        piece.values,
                        piece.keys,
                        partition=piece.place.partition,
                        timestamps_ms=_valid(piece.timestamps_ms),
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


def _valid(timestamps_ms: Sequence[int]) -> Sequence[int]:
    """Timestamps that a log accepts (MIRRORDIRECTORY-2)."""
    if min(timestamps_ms) >= 0:
        return timestamps_ms
    now_ms = time.time_ns() // 1_000_000
    return [now_ms if each < 0 else each for each in timestamps_ms]
