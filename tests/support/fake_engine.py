"""An engine in memory, for tests of the layers above it: real batch bytes, no files, no other
process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import pytest

from embedlog.consumer.consumer import Consumer
from embedlog.errors import OffsetOutOfRangeError, UnknownTopicOrPartitionError
from embedlog.format import record_batch as record
from embedlog.partition.split_points import SplitPoint
from embedlog.storage.checkpoints import EpochCache
from embedlog.storage.identity import id_text
from embedlog.topic import Topic
from embedlog.types import OffsetAndTimestamp, TopicPartition
from tests.support.batches import ABORT, COMMIT, TRANSACTIONAL, Row, batch, marker

TOPIC_ID = b"topic of a test."  # of all topics


class Bounds(NamedTuple):
    log_start: int
    log_end: int
    high_watermark: int
    last_stable: int
    epoch: int


class Fetched(NamedTuple):
    data: memoryview
    batches: Any
    next_offset: int
    aborted: list[tuple[int, int]]
    path: str = "memory"
    position: int = 0
    decompressed_max: int = 1 << 30


class Stored(NamedTuple):
    """One batch as it is in the log, and its rows for the fake itself."""

    base: int
    last: int
    data: bytes
    rows: Sequence[Row]


class FakePartition:
    """Batches in a list. Transactions: `append(…, producer=7)` and then `end(7, ABORT)`."""

    def __init__(self, engine: FakeEngine, topic: str, number: int) -> None:
        self.topic = topic
        self.number = number
        self.topic_id_bytes = TOPIC_ID
        self.log_start = 0
        self.log_end = 0
        self.fetches = 0
        self.closed = False
        self.epochs: list[tuple[int, int]] = [(0, 0)]  # which began where
        self.stored: list[Stored] = []
        self._open: dict[int, int] = {}
        # producer, first offset, offset of the marker
        self._aborted: list[tuple[int, int, int]] = []
        self._engine = engine

    # ---- writing ----

    def append(
        self, rows: Iterable[Row | bytes], producer: int | None = None, data: bytes | None = None
    ) -> None:
        """One batch; `data` replaces its bytes, with the damage of the test."""
        made = [row if isinstance(row, Row) else Row(row) for row in rows]
        if producer is not None:
            self._open.setdefault(producer, self.log_end)
            facts = {
                "attributes": TRANSACTIONAL,
                "producer_id": producer,
                "producer_epoch": 0,
                "base_sequence": 0,
            }
        else:
            facts = dict[str, int]()
        self._store(len(made), batch(self.log_end, made, **facts) if data is None else data, made)

    def end(self, producer: int, kind: int) -> None:
        first = self._open.pop(producer)
        if kind == ABORT:
            self._aborted.append((producer, first, self.log_end))
        self._store(1, marker(self.log_end, producer, kind), [])

    def skip(self, count: int) -> None:
        """A gap, as compaction leaves it."""
        self.log_end += count

    def _store(self, count: int, data: bytes, rows: Sequence[Row]) -> None:
        with self._engine.changed:
            self.stored.append(Stored(self.log_end, self.log_end + count - 1, data, rows))
            self.log_end += count
            self._engine.changed.notify_all()

    # ---- the interface of a partition ----

    def point(self, offset: int, committed: bool) -> None:
        """No short path: `fetch` is called."""

    def tail(self, offset: int, isolation: str) -> None:
        """There is no short way here."""

    def bounds(self) -> Bounds:
        stable = min(self._open.values(), default=self.log_end)
        return Bounds(self.log_start, self.log_end, self.log_end, stable, self.epochs[-1][0])

    def awaited_bounds(self, end: int, isolation: str, since_ns: int | None = None) -> Bounds:
        return self.bounds()

    def lose(self, end: int) -> None:
        """As a repair that cuts the log: the batches from an offset on are lost."""
        self.stored = [each for each in self.stored if each.base < end]
        self.log_end = end

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        return EpochCache(self.epochs).end_offset(epoch, self.log_end)

    def unread_bytes(self, offset: int) -> int:
        return sum(len(each.data) for each in self.stored if each.last >= offset)

    def split_points(
        self, start: int, end: int, max_bytes: int, count: int | None = None
    ) -> list[SplitPoint]:
        """A point after each batch, as of a log with an index entry for each and with large
        batches.
        """
        inside = [each for each in self.stored if each.last >= start and each.base < end]
        return [SplitPoint(min(each.last + 1, end), len(each.data)) for each in inside[:count]]

    def visible_end(self, committed: bool) -> int:
        bounds = self.bounds()
        return bounds.last_stable if committed else bounds.high_watermark

    def fetch(
        self,
        offset: int,
        *,
        max_bytes: int = 1 << 20,
        isolation: str = "read_uncommitted",
        upto: int | None = None,
        pool: Any = None,
    ) -> Fetched:
        self._engine.check_open()
        self.fetches += 1
        if not self.log_start <= offset <= self.log_end:
            raise OffsetOutOfRangeError(
                "no such offset", expected=f"{self.log_start} to {self.log_end}", found=offset
            )
        limit = self.visible_end(isolation == "read_committed")
        limit = limit if upto is None else min(limit, upto)
        found = b""
        # unless there is something: all up to the limit was compacted away
        following = max(offset, limit)
        for each in self.stored:
            if each.last < offset or each.base >= limit:
                continue
            if found and len(found) + len(each.data) > max_bytes:
                break
            found += each.data
            following = each.last + 1
        scanned = record.scan(found, record.Chain(gaps_allowed=True))
        assert scanned.problem is None
        aborted = []
        if isolation == "read_committed":
            aborted = [
                (producer, first)
                for producer, first, end in self._aborted
                if end >= offset and first < following
            ]
        return Fetched(memoryview(found), scanned.batches, following, aborted)

    def end_by_time(self, first: int, last: int, end_ms: int) -> int:
        return last

    def skip_by_time(self, offset: int, start_ms: int, end_ms: int) -> int:
        return offset

    def offset_for_time(self, time_ms: int, isolation: str) -> OffsetAndTimestamp | None:
        end = self.visible_end(isolation == "read_committed")
        for each in self.stored:
            for place, row in enumerate(each.rows if each.last < end else ()):
                if row.timestamp_ms >= time_ms and each.base + place >= self.log_start:
                    return OffsetAndTimestamp(each.base + place, row.timestamp_ms, 0)
        return None


class Bystander:
    """Transactions without an end."""

    def resolve(self, partition: FakePartition) -> bool:
        return False


class FakeEngine:
    """Topics of fake partitions. `waits` counts the waits."""

    replicated = False

    def __init__(self, **partition_counts: int) -> None:
        self.changed = threading.Condition()
        self.problem: Exception | None = None  # what `check_open` raises
        self.read_only = False
        self.word = 0  # moves with the topics
        self.transactions: Any = Bystander()
        self.waits = 0
        self.sleeping = threading.Event()
        self._woken: set[int] = set()
        self._partitions: dict[str, list[FakePartition]] = {}
        for topic, count in partition_counts.items():
            self.grow(topic, count)

    def grow(self, topic: str, count: int) -> None:
        partitions = self._partitions.setdefault(topic, [])
        self.word += 2
        partitions += [
            FakePartition(self, topic, number) for number in range(len(partitions), count)
        ]

    def topic_names(self, include_internal: bool = True) -> list[str]:
        return sorted(
            name for name in self._partitions if include_internal or not name.startswith("__")
        )

    def refresh_topics(self) -> None:
        """Topics are never changed elsewhere."""
        self.check_open()

    def partition(self, topic: str, number: int) -> FakePartition:
        if number not in self.topic(topic).numbers:
            raise UnknownTopicOrPartitionError(f"{topic}-{number}")
        return self._partitions[topic][number]

    def partition_of(self, topic: Topic, number: int) -> FakePartition:
        return self.partition(topic.name, number)

    def topic(self, name: str) -> Topic:
        if name not in self._partitions:
            raise UnknownTopicOrPartitionError(name)
        return Topic(name, id_text(TOPIC_ID), len(self._partitions[name]))

    def check_open(self) -> None:
        if self.problem is not None:
            raise self.problem

    def topics_version(self) -> int:
        return self.word

    def wait(
        self,
        tails: list[tuple[FakePartition, int]],
        timeout_s: float | None,
        owner: object,
        committed: bool = False,
        topics: int = -1,
        notices: Sequence[tuple[Any, int]] = (),
        brief: bool = False,
    ) -> bool:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self.changed:
            self.waits += 1
            self.sleeping.set()
            while id(owner) not in self._woken and not any(
                each.visible_end(committed) > offset for each, offset in tails
            ):
                if topics not in (-1, self.word) or any(
                    each.notice_word(0) != word for each, word in notices
                ):
                    break
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    break
                self.changed.wait(left)
            self._woken.discard(id(owner))
            self.sleeping.clear()
            return any(each.visible_end(committed) > offset for each, offset in tails)

    def wake(self, owner: object) -> None:
        with self.changed:
            self._woken.add(id(owner))
            self.changed.notify_all()


@pytest.fixture
def consumer(engine: FakeEngine) -> Iterator[Callable[..., Consumer]]:
    """`consumer("a", max_poll_records=5)`: by default it reads from the start; closed after the
    test.
    """
    made: list[Consumer] = []

    def make(*topics: str, **config: Any) -> Consumer:
        made.append(Consumer(engine, topics, **{"auto_offset_reset": "earliest", **config}))
        return made[-1]

    yield make
    for each in made:
        each.close()


def on(*partitions: TopicPartition, using: Callable[..., Consumer], **config: Any) -> Consumer:
    """A consumer to which these partitions are assigned."""
    reader = using(**config)
    reader.assign(partitions)
    return reader


def fill(partition: FakePartition, count: int, *, per_batch: int = 10, tag: str = "") -> None:
    rows = [
        Row(b"%s%d" % (tag.encode(), n), b"k%d" % n, timestamp_ms=1000 * n) for n in range(count)
    ]
    for begin in range(0, count, per_batch):
        partition.append(rows[begin : begin + per_batch])


def places(records: list[Any]) -> list[tuple[int, int]]:
    return [(record.partition, record.offset) for record in records]


def mixed(partition: FakePartition) -> None:
    """Transactions with every outcome, and records outside of them."""
    partition.append([b"plain"])
    partition.append([b"gone", b"gone too"], producer=1)
    partition.append([b"kept"], producer=2)
    partition.end(1, ABORT)
    partition.append([b"again"], producer=1)
    partition.end(2, COMMIT)
    partition.end(1, COMMIT)
    partition.append([b"open"], producer=3)
    partition.append([b"after"])


__all__ = [
    "ABORT",
    "COMMIT",
    "FakeEngine",
    "FakePartition",
    "Row",
    "consumer",
    "fill",
    "mixed",
    "on",
    "places",
]
