"""Collects records that are available now, as objects or in columns.

COLLECTOR-1  collecting never waits: `Waiter` waits and collects again
COLLECTOR-2  positions move last; a failure before that leaves them unchanged. The positions before
    the last collection are kept: an interrupt of the call after it restores them by `put_back`
COLLECTOR-3  an error at one position does not lose records collected before it: they are returned
    first, and the error occurs again
COLLECTOR-4  interceptors see each record once, directly before it is returned; columns bypass them,
    as they bypass deserializers
COLLECTOR-5  in a set a partition without a leader has no records now, and keeps its position
COLLECTOR-6  `taken` is true before the first position moves, and false after a call that took
    nothing. While it is true, the caller may not have processed what it got
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from time import monotonic_ns
from typing import TYPE_CHECKING, Protocol, TypeVar

from embedlog._native import system
from embedlog._native._rows import Record
from embedlog.columns.batch import Batch
from embedlog.columns.chunks import Chunk
from embedlog.config.client import ConsumerConfig
from embedlog.consumer.fetcher import Fetcher
from embedlog.consumer.interceptors import ConsumerInterceptors
from embedlog.consumer.positions import EARLIEST, Cursor, Reset, Rotation
from embedlog.consumer.subscription import Subscription
from embedlog.consumer.waiter import Duty, Waiter
from embedlog.errors import (
    EmbedlogError,
    LeaderNotAvailableError,
    LockTimeoutError,
    LogTruncationError,
    NotEnoughReplicasError,
    OffsetOutOfRangeError,
)
from embedlog.types import TopicPartition

if TYPE_CHECKING:
    from embedlog.engine import Engine
    from embedlog.partition.log_context import Bounds

logger = logging.getLogger("embedlog")

Found = TypeVar("Found")
Moved = tuple[Cursor, int, int]  # with its position and epoch before a collection

FEW_RECORDS = 16  # a poll for at most so many records after a seek reads one batch (FETCHER-4)


class Group(Duty, Protocol):
    """The operations of a group that reading needs."""

    def topics_moved(self) -> None: ...
    def find_position(self, cursor: Cursor) -> None: ...


class Collector:
    """The assigned partitions, and the operations that take records from them.

    **Threads:** one at a time.
    """

    def __init__(self, engine: Engine, config: ConsumerConfig) -> None:
        self.rotation = Rotation()
        self._window_count = config.metrics_num_samples
        self.waiting = Waiter(engine, config, self.rotation, self.follow)
        self.interceptors = ConsumerInterceptors(config.interceptor_classes)
        self._intercepts = self.interceptors.has("on_consume")
        self.fetcher = Fetcher(
            isolation=config.isolation_level,
            max_bytes=min(config.max_partition_fetch_bytes, config.fetch_max_bytes),
            counts_bytes=config.fetch_min_bytes > 1,
            key_deserializer=config.key_deserializer,
            value_deserializer=config.value_deserializer,
        )
        self._engine = engine
        self._isolation = config.isolation_level
        self._rack = config.client_rack
        self._reset = Reset(config.auto_offset_reset)
        self._max_bytes = config.fetch_max_bytes
        self._iterating = False
        self._moved: list[Moved] = []  # by the last collection of this call
        self._group: Group | None = None
        self.taken = False  # COLLECTOR-6
        self.fetches = True  # False: only records fetched before are returned, and no file is read

    # ---- assigned partitions ----

    def join_group(self, group: Group) -> None:
        """Join reading to a group: partitions start at committed offsets, and calls process the
        group's duties.
        """
        self._group = group
        self.waiting.duty = group

    def cursor(self, tp: TopicPartition, reset: Reset | None = None) -> Cursor:
        """The cursor of `tp`, or a new one. Raises UnknownTopicOrPartitionError."""
        if tp in self.rotation and not self.rotation.get(tp).partition.closed:
            return self.rotation.get(tp)
        partition = self._engine.partition(tp.topic, tp.partition)
        near = partition if self._rack is None else self._engine.near(partition, self._rack)
        made = Cursor(tp, near, reset, self._window_count)
        if self._group is not None:
            made.fresh = True
        elif reset is None and self._reset.kind == "latest":
            with contextlib.suppress(LeaderNotAvailableError):  # nothing can be appended now
                self.located(made)  # "latest" means the end now, not at the first poll
        return made

    def replace(self, cursors: Iterable[Cursor]) -> None:
        self.rotation.replace(list(cursors))
        self.waiting.forget_topics()

    def follow(self, subscription: Subscription, *, first: bool = False) -> None:
        """Assign all partitions of the subscribed topics; partitions that are added later are read
        from their start.
        """
        if subscription.kind == "assigned":
            self._engine.refresh_topics()  # closes deleted topics, so that reading them raises
            return
        if self._group is not None:
            self._group.topics_moved()
            return
        tps = subscription.partitions()
        known = {cursor.tp for cursor in self.rotation if not cursor.partition.closed}
        if known != set(tps):
            later = None if first else EARLIEST
            self.rotation.replace([self.cursor(tp, later) for tp in tps])

    # ---- records ----

    def collect(self, limit: int) -> list[Record] | None:
        """Up to `limit` records, partition after partition."""
        front = self.rotation.front
        moved = self._moved
        self.taken = True
        run = None if front is None else front.run
        if (
            front is not None
            and run is not None
            and run.count > limit
            and not (front.paused or self._intercepts)
        ):
            moved.append((front, run.offset, run.leader_epoch))
            return run.take(limit)  # the usual case of a reader of few records: its batch has more
        out: list[Record] = []
        fetcher = self.fetcher
        before = self.fetcher.size_bytes
        seen_count = 0
        try:
            for cursor in self.rotation.readable():
                if cursor.tail is None and not self._ready(cursor, limit):
                    continue
                moved.append((cursor, cursor.position, cursor.epoch))
                remaining = limit - len(out)
                found = fetcher.arrived(cursor, remaining) if cursor.tail is not None else None
                if found is None:
                    if not self._ready(cursor, limit):
                        continue
                    found = cursor.take(remaining)
                elif not found:
                    continue
                if cursor.intercepted:
                    out = found + out
                    seen_count += len(found)
                else:
                    out = out + found if out else found
                if not cursor.has_records:
                    self.rotation.drained(cursor)
                if len(out) >= limit or fetcher.size_bytes - before >= self._max_bytes:
                    break
            self.taken = bool(out)
            if not out:
                moved.clear()
            return self._intercepted(out, seen_count) if self._intercepts else out
        except BaseException as error:
            if out and isinstance(error, EmbedlogError):
                return self._intercepted(out, seen_count)  # COLLECTOR-3
            self.put_back(moved)
            raise

    def put_back(self, moved: Sequence[Moved]) -> None:
        """Restore the positions before a collection whose records were not returned."""
        if moved:
            for cursor, position, epoch in reversed(moved):
                cursor.seek(position, epoch)
            self.taken = False

    def _intercepted(self, records: list[Record], seen_count: int) -> list[Record]:
        """The first `seen_count` records already passed the interceptors, during an iteration."""
        if len(records) == seen_count:
            return records
        return records[:seen_count] + self.interceptors.on_consume(records[seen_count:])

    def open_iterator(self) -> Iterator[Record] | None:
        """An iterator over the fetched records of the next partition that has any."""
        for cursor in self.rotation.readable():
            while self._ready(cursor):
                if self._intercepts:
                    cursor.replace_ahead(self.interceptors.on_consume)
                    if not cursor.has_records:
                        continue
                self.rotation.drained(cursor)
                self._iterating = self.taken = True
                return cursor.open_iterator()
        self.taken = False
        return None

    def batch(self) -> Batch | None:
        """The next chunk of the next partition that has one."""
        self.taken = False
        found = self.chunk()
        return None if found is None else self.take_batch(*found)

    def chunk(self) -> tuple[Cursor, Chunk] | None:
        """The chunk that `batch` would return; no position moves."""
        for cursor in self.rotation.readable():
            chunk = self._in_range(cursor, self.fetcher.columns)
            if chunk is not None:
                return cursor, chunk
        return None

    def take_batch(self, cursor: Cursor, chunk: Chunk) -> Batch:
        """The batch of a chunk; the position moves after it."""
        self.taken = True
        self._moved.append((cursor, cursor.position, cursor.epoch))
        made = Batch(cursor.tp.topic, cursor.tp.partition, chunk.decoded)
        self.rotation.drained(cursor)
        cursor.fill([], chunk.next_offset, chunk.epoch)
        return made

    def ahead(self, limit: int) -> bool:
        """Fetch until `limit` or all available records can be returned; no position moves over a
        record (COLLECTOR-3).
        """
        count = 0
        for cursor in self.rotation.readable():
            try:
                if self._ready(cursor):
                    count += cursor.ahead_count
            except EmbedlogError:
                if not count:
                    raise
                break
            if count >= limit:
                break
        return count > 0

    def located(self, cursor: Cursor) -> Cursor:
        """The cursor, with a position. Raises NoOffsetForPartitionError."""
        self._place(cursor)
        return cursor

    def _place(self, cursor: Cursor) -> Bounds | None:
        """Give the cursor a position if it has none; the bounds that were read for that. Raises
        NoOffsetForPartitionError.
        """
        if cursor.fresh and self._group is not None:
            self._group.find_position(cursor)
        return self.reset_position(cursor) if cursor.position < 0 else None

    def reset_position(self, cursor: Cursor) -> Bounds | None:
        """Give the cursor the position of `auto.offset.reset`. As `_place`."""
        reset = cursor.reset or self._reset
        # of the leader
        bounds = (
            cursor.partition if self._rack is None else self._engine.partition(*cursor.tp)
        ).bounds()
        cursor.seek(*reset.place(cursor.partition, bounds, self._isolation, system.wall_ms))
        logger.debug("%s-%d: reading begins at %d (%s)", *cursor.tp, cursor.position, reset.kind)
        return bounds if self._rack is None else None

    def _ready(self, cursor: Cursor, limit: int = FEW_RECORDS + 1) -> bool:
        if cursor.has_records:
            return True
        few = cursor.sought and limit <= FEW_RECORDS
        if few and self.fetches and self.fetcher.point(cursor, limit):
            return True
        fill = partial(self.fetcher.fill_few, limit=limit) if few else self.fetcher.fill
        return self.fetches and bool(self._in_range(cursor, fill))

    def _in_range(self, cursor: Cursor, fetch: Callable[[Cursor], Found]) -> Found | None:
        """As `_fetched_in_range`; None if the partition has no leader now (COLLECTOR-5)."""
        if not self._engine.replicated:
            return self._fetched_in_range(cursor, fetch)
        try:
            return self._fetched_in_range(cursor, fetch)
        except (LeaderNotAvailableError, LockTimeoutError, NotEnoughReplicasError) as problem:
            logger.debug("%s-%d is not read now: %s", *cursor.tp, problem)
            return None

    def _fetched_in_range(self, cursor: Cursor, fetch: Callable[[Cursor], Found]) -> Found:
        """Call `fetch`; if the position is out of range, from the position of `auto.offset.reset`.

        The reset repeats while it makes progress: retention may be faster than the step from the
        lookup to the fetch.
        """
        if cursor.position < 0:
            cursor.bounds = self._place(cursor)
        while True:
            try:
                return fetch(cursor)
            except OffsetOutOfRangeError as problem:
                failed = cursor.position
                problem.topic, problem.partition, problem.offset = *cursor.tp, failed
                if self._reset.kind == "none":
                    raise
                if isinstance(problem, LogTruncationError) and problem.diverging is not None:
                    cursor.seek(problem.diverging.offset, problem.diverging.leader_epoch)
                else:
                    cursor.seek_later(None)
                if self.located(cursor).position == failed:
                    raise
                logger.warning("%s; continuing at %d", problem, cursor.position)

    def begin(self) -> list[Moved]:
        """Begin a call: unread records of an open iterator return to their cursor. The result is
        for `put_back`.
        """
        moved: list[Moved] = []
        self._moved = moved
        if self._iterating:
            for cursor in self.rotation:
                cursor.close_iterator()
            self._iterating = False
        return moved


def until(run: Iterator[Record], until_ns: int) -> Iterator[Record]:
    """The records of `run` until the group's duties are due: checked before each, since the caller
    may process any record slowly.
    """
    for record in run:
        yield record
        if monotonic_ns() >= until_ns:
            return
