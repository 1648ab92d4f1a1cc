"""A model of Kafka's semantics: what a log contains after each call, and which outcomes of a call
are allowed.

It is pure Python, imports nothing of the package, and has no files, no batches and no segments.
Where an outcome is not determined (which partition a record without a key gets, what retention and
compaction have removed, what a killed process had written), the model has a rule that judges the
outcome, and then takes the outcome over.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

HOUR_MS = 3_600_000
NEVER = -1
# the settings that topics of the machine may have: the default, and other values. A value that is
# there twice is drawn more often
SETTINGS: Mapping[str, tuple[str, ...]] = {
    "cleanup.policy": ("delete", "compact", "compact,delete"),
    "max.message.bytes": ("1048588", "400"),
    "message.timestamp.type": ("CreateTime", "LogAppendTime"),
    "message.timestamp.before.max.ms": (str(2**63 - 1), str(HOUR_MS), str(24 * HOUR_MS)),
    "message.timestamp.after.max.ms": (str(HOUR_MS), "60000", str(24 * HOUR_MS)),
    "compression.type": ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
    "retention.ms": (str(NEVER), str(HOUR_MS)),
    "retention.bytes": (str(NEVER), "500"),
    "segment.bytes": ("1048576", "700", "1500"),
    "index.interval.bytes": ("4096", "0"),
    "min.insync.replicas": ("1", "1", "2"),
    "min.compaction.lag.ms": ("0", str(HOUR_MS)),
    "delete.retention.ms": (str(24 * HOUR_MS), "0"),
    "min.cleanable.dirty.ratio": ("0.5", "0.0"),
    "file.delete.delay.ms": ("60000", "0"),
    "flush.messages": (str(2**63 - 1), "1"),
    "preallocate": ("false", "true"),
}
BATCH_OVERHEAD_BYTES = 61


class Violation(AssertionError):
    """The log has done what Kafka's semantics do not allow."""


def demand(condition: bool, message: str) -> None:
    if not condition:
        raise Violation(message)


# ---- what is in a log ------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Transaction:
    """One transaction of a producer: open, orphaned (its process is dead), committed or aborted."""

    transactional_id: str
    state: str = "open"
    # (topic uid, partition) with a record
    partitions: set[tuple[int, int]] = field(default_factory=set)
    # those that any record may have registered, by name as in Kafka
    touched: set[tuple[str, int]] = field(default_factory=set)
    # group: partition: offset
    offsets: dict[str, dict[tuple[str, int], int]] = field(default_factory=dict)

    @property
    def is_open(self) -> bool:
        return self.state in ("open", "orphaned")


@dataclass(eq=False)
class Row:
    """One record. `oldest_ms` and `newest_ms` bound a timestamp that the model does not know
    yet.
    """

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int | None = None  # None until it was seen
    oldest_ms: int = 0
    newest_ms: int = 2**62
    timestamp_type: int = 0
    transaction: Transaction | None = None
    offset: int = -1

    def is_same(self, other: Seen) -> bool:
        return (self.key, self.value, self.headers) == (other.key, other.value, other.headers)

    @property
    def plain_bytes(self) -> int:
        """About as large as the record is without compression, and never smaller."""
        headers = sum(len(name) + len(content or b"") + 6 for name, content in self.headers)
        return len(self.key or b"") + len(self.value or b"") + headers + 24


@dataclass(frozen=True)
class Seen:
    """One record as a reader returned it."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int
    timestamp_type: int


@dataclass(eq=False)
class Partition:
    """The records of one partition in the order of their offsets, and the offsets of markers."""

    start: int = 0
    end: int = 0
    rows: list[Row] = field(default_factory=list)
    marker_offsets: list[int] = field(default_factory=list)
    # of ended transactions that may or may not have registered this partition
    possible_markers: int = 0

    def append(self, row: Row, offset: int) -> None:
        demand(
            offset == self.end,
            f"a record was appended at offset {offset}, the log end is {self.end}",
        )
        row.offset = offset
        self.rows.append(row)
        self.end = offset + 1

    def append_marker(self) -> None:
        self.marker_offsets.append(self.end)
        self.end += 1

    @property
    def open_transactions(self) -> list[Transaction]:
        found = {
            id(row.transaction): row.transaction for row in self.rows if row.transaction is not None
        }
        return [transaction for transaction in found.values() if transaction.is_open]

    def first_offset_of(self, transaction: Transaction) -> int:
        return min(row.offset for row in self.rows if row.transaction is transaction)

    @property
    def last_stable_offset(self) -> int:
        unstable = min(
            (self.first_offset_of(transaction) for transaction in self.open_transactions),
            default=self.end,
        )
        return max(unstable, self.start)

    def visible(self, *, committed: bool, start: int = 0) -> list[Row]:
        """What a reader sees from an offset on."""
        rows = [row for row in self.rows if row.offset >= max(start, self.start)]
        if not committed:
            return rows
        stable = self.last_stable_offset
        return [row for row in rows if row.offset < stable and is_committed(row)]

    def end_for(self, *, committed: bool) -> int:
        return self.last_stable_offset if committed else self.end

    def delete_before(self, offset: int) -> None:
        self.start = max(self.start, offset)


def is_committed(row: Row) -> bool:
    return row.transaction is None or row.transaction.state == "committed"


@dataclass(eq=False)
class Topic:
    uid: int
    partitions: list[Partition]
    settings: dict[str, str]

    def setting(self, name: str) -> str:
        return self.settings.get(name, SETTINGS[name][0])

    def number(self, name: str) -> int:
        return int(self.setting(name))

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.setting("cleanup.policy").split(",")

    @property
    def is_deleted_by_age(self) -> bool:
        return "delete" in self.setting("cleanup.policy").split(",")

    @property
    def has_append_time(self) -> bool:
        return self.setting("message.timestamp.type") == "LogAppendTime"


@dataclass
class Model:
    """One log: its topics by name, its groups' committed offsets, and the transactions that are not
    decided.
    """

    replica_count: int = 1
    topics: dict[str, Topic] = field(default_factory=dict)
    groups: dict[str, dict[tuple[str, int], int]] = field(default_factory=dict)
    next_uid: int = 1

    def copy(self) -> Model:
        return copy.deepcopy(self)

    # ---- topics --------------------------------------------------------------------------------

    def create(self, name: str, count: int, settings: Mapping[str, str]) -> None:
        self.topics[name] = Topic(
            self.next_uid, [Partition() for _ in range(count)], dict(settings)
        )
        self.next_uid += 1

    def delete(self, name: str, transactions: Iterable[Transaction]) -> None:
        """Delete a topic with its committed offsets, also those of open transactions."""
        del self.topics[name]
        of_transactions = [
            offsets for transaction in transactions for offsets in transaction.offsets.values()
        ]
        for offsets in [*self.groups.values(), *of_transactions]:
            for place in [place for place in offsets if place[0] == name]:
                del offsets[place]

    def grow(self, name: str, total: int) -> None:
        topic = self.topics[name]
        topic.partitions.extend(Partition() for _ in range(total - len(topic.partitions)))

    def alter(self, name: str, changes: Mapping[str, str | None]) -> None:
        settings = self.topics[name].settings
        for key, value in changes.items():
            if value is None:
                settings.pop(key, None)
            else:
                settings[key] = value

    def partition(self, name: str, number: int) -> Partition | None:
        topic = self.topics.get(name)
        return (
            topic.partitions[number]
            if topic is not None and number < len(topic.partitions)
            else None
        )

    def places(self) -> list[tuple[str, int]]:
        return [
            (name, number)
            for name, topic in self.topics.items()
            for number in range(len(topic.partitions))
        ]

    # ---- appends -------------------------------------------------------------------------------

    def refusals(
        self, name: str, partition: int | None, row: Row, now_ms: int, acks: str
    ) -> set[str]:
        """The errors that this record alone may get; none: it must be appended."""
        topic = self.topics.get(name)
        if topic is None:
            return {"UnknownTopicOrPartitionError"}
        errors = set()
        if partition is not None and partition >= len(topic.partitions):
            errors.add("UnknownTopicOrPartitionError")
        if topic.is_compacted and row.key is None:
            errors.add("InvalidRecordError")
        if not topic.has_append_time and row.timestamp_ms is not None:
            too_old = now_ms - row.timestamp_ms > topic.number("message.timestamp.before.max.ms")
            too_new = row.timestamp_ms - now_ms > topic.number("message.timestamp.after.max.ms")
            if too_old or too_new:
                errors.add("InvalidTimestampError")
        if BATCH_OVERHEAD_BYTES + len(row.value or b"") > topic.number("max.message.bytes"):
            errors.add("RecordTooLargeError")
        if topic.number("min.insync.replicas") > self.replica_count and acks != "1":
            errors.add("NotEnoughReplicasError")
        return errors

    # ---- transactions --------------------------------------------------------------------------

    def end_transaction(self, transaction: Transaction, state: str) -> None:
        """Decide it: each partition with one of its records gets a marker, others that it touched
        may get one.

        So may those of a later topic with the name of one that was deleted: the coordinator knows
        no ids of topics.
        """
        transaction.state = state
        for name, topic in self.topics.items():
            for number, partition in enumerate(topic.partitions):
                if (topic.uid, number) in transaction.partitions:
                    partition.append_marker()
                elif (name, number) in transaction.touched:
                    partition.possible_markers += 1
        if state == "committed":
            for group, offsets in transaction.offsets.items():
                for place, offset in offsets.items():
                    if self.partition(*place) is not None:
                        self.groups.setdefault(group, {})[place] = offset

    def take_end(self, name: str, number: int, end: int) -> None:
        """The log end that a reader sees; markers that may be there are taken over."""
        partition = self.topics[name].partitions[number]
        extra = end - partition.end
        where = f"{name}-{number}"
        demand(
            extra >= 0,
            f"{where}: the log end is {end}, and {partition.end} before: records are lost",
        )
        demand(
            extra <= partition.possible_markers,
            f"{where}: the log end is {end}, expected {partition.end}",
        )
        for _ in range(extra):
            partition.append_marker()
        partition.possible_markers = 0


# ---- judgement of what readers see -----------------------------------------------------------------------------------


def compare_records(
    where: str, expected: Sequence[Row], seen: Sequence[Seen], has_append_time: bool | None = None
) -> None:
    """Readers see exactly these records. Timestamps that were not known are taken over."""
    for row, record in zip(expected, seen, strict=False):
        demand(
            row.offset == record.offset,
            f"{where}: offset {record.offset} was read, expected {row.offset}",
        )
        demand(
            row.is_same(record), f"{where}: offset {row.offset} contains {record}, expected {row}"
        )
        if row.timestamp_ms is None:
            within = row.oldest_ms <= record.timestamp_ms <= row.newest_ms
            bounds = f"{row.oldest_ms} to {row.newest_ms}"
            demand(
                within,
                f"{where}: offset {row.offset} has the time {record.timestamp_ms}, expected "
                f"{bounds}",
            )
            row.timestamp_ms = record.timestamp_ms
        same_time = (row.timestamp_ms, row.timestamp_type) == (
            record.timestamp_ms,
            record.timestamp_type,
        )
        demand(
            same_time, f"{where}: offset {row.offset} has another time: {record}, expected {row}"
        )
    if len(expected) != len(seen):
        missing = [row.offset for row in expected[len(seen) :]]
        surplus = [record.offset for record in seen[len(expected) :]]
        raise Violation(f"{where}: missing offsets {missing}, surplus offsets {surplus}")


def offset_for_time(
    partition: Partition, time_ms: int, *, committed: bool
) -> tuple[int, int] | None:
    """Offset and timestamp of the first record with this time or a later one."""
    limit = partition.end_for(committed=committed)
    for row in partition.rows:
        if (
            partition.start <= row.offset < limit
            and row.timestamp_ms is not None
            and row.timestamp_ms >= time_ms
        ):
            return (row.offset, row.timestamp_ms)
    return None


@dataclass(frozen=True)
class Housekept:
    """The state of a partition that housekeeping has left."""

    start: int
    offsets: frozenset[int]  # of the present records
    file_bytes: int  # of its segments


def judge_housekeeping(
    where: str, topic: Topic, partition: Partition, after: Housekept, now_ms: int
) -> None:
    """Retention and compaction have removed only what Kafka's rules allow; the model takes the
    result over.
    """
    demand(
        after.start >= partition.start,
        f"{where}: the log start fell from {partition.start} to {after.start}",
    )
    known = {row.offset for row in partition.rows if row.offset >= partition.start}
    demand(
        after.offsets <= known, f"{where}: housekeeping has added {sorted(after.offsets - known)}"
    )
    if after.start > partition.start:
        _judge_retention(
            where,
            topic,
            [row for row in partition.rows if partition.start <= row.offset < after.start],
            after,
            now_ms,
        )
    for row in partition.rows:
        if row.offset >= after.start and row.offset not in after.offsets:
            _judge_removal(where, topic, partition, row, now_ms)
    partition.start = after.start
    partition.rows = [row for row in partition.rows if row.offset in after.offsets]


def _judge_retention(
    where: str, topic: Topic, deleted: Iterable[Row], after: Housekept, now_ms: int
) -> None:
    demand(
        topic.is_deleted_by_age,
        f"{where}: retention has deleted records of a topic that is only compacted",
    )
    age_ms = topic.number("retention.ms")
    least_bytes = topic.number("retention.bytes")
    by_age = age_ms >= 0 and all(now_ms - (row.timestamp_ms or 0) > age_ms for row in deleted)
    by_size = least_bytes >= 0 and after.file_bytes >= least_bytes
    offsets = [row.offset for row in deleted]
    settings = (
        f"retention.ms={age_ms}, retention.bytes={least_bytes}, {after.file_bytes} bytes remain"
    )
    demand(by_age or by_size, f"{where}: retention has deleted offsets {offsets}: {settings}")


def _judge_removal(where: str, topic: Topic, partition: Partition, row: Row, now_ms: int) -> None:
    demand(
        topic.is_compacted, f"{where}: offset {row.offset} is gone, and the topic is not compacted"
    )
    lag_ms = topic.number("min.compaction.lag.ms")
    young = lag_ms > 0 and row.timestamp_ms is not None and now_ms - row.timestamp_ms < lag_ms
    demand(not young, f"{where}: offset {row.offset} was removed within min.compaction.lag.ms")
    stable = partition.last_stable_offset
    demand(
        row.offset < stable,
        f"{where}: offset {row.offset} was removed, the last stable offset is {stable}",
    )
    if row.key is None or not is_committed(row):
        return
    if row.value is None and topic.number("delete.retention.ms") == 0:
        return
    later = [
        other for other in partition.rows if other.offset > row.offset and other.key == row.key
    ]
    replaced = any(is_committed(other) and other.offset < stable for other in later)
    demand(
        replaced,
        f"{where}: offset {row.offset} was removed, and it is the newest record of the key "
        f"{row.key!r}",
    )


# ---- the partition of a key ------------------------------------------------------------------------------------------


def partition_of(key: bytes, count: int) -> int:
    """Kafka's default: the positive murmur2 of the key modulo the number of partitions."""
    return (murmur2(key) & 0x7FFFFFFF) % count


def murmur2(data: bytes) -> int:
    multiplier = 0x5BD1E995
    mask = 0xFFFFFFFF
    found = (0x9747B28C ^ len(data)) & mask
    whole = len(data) // 4 * 4
    for position in range(0, whole, 4):
        word = int.from_bytes(data[position : position + 4], "little") * multiplier & mask
        word = (word ^ word >> 24) * multiplier & mask
        found = (found * multiplier & mask) ^ word
    if whole < len(data):
        found = (found ^ int.from_bytes(data[whole:], "little")) * multiplier & mask
    found = (found ^ found >> 13) * multiplier & mask
    return found ^ found >> 15
