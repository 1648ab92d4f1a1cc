"""Collects records that are available now, as objects or in columns.

- Collecting never waits: `Waiter` waits and collects again.
- Positions move last; a failure before that leaves them unchanged. The positions before the last
  collection are kept: an interrupt of the call after it restores them by `put_back`.
- An error at one position does not lose records collected before it: they are returned first, and
  the error occurs again.
- Interceptors see each record once, directly before it is returned; columns bypass them, as they
  bypass deserializers.
- In a set a partition without a leader has no records now, and keeps its position.
- `has_unprocessed` is true before the first position moves, and false after a call that took
  nothing. While it is true, the caller may not have processed what it got.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from embedlog._native import system
from embedlog._native._rows import Record
from embedlog.columns.batch import Batch
from embedlog.columns.chunks import Chunk
from embedlog.config.client import ConsumerConfig
from embedlog.consumer.fetcher import Fetcher
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
from embedlog.hooks.interceptors import InterceptorChain
from embedlog.types import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from embedlog.engine.engine import Engine
    from embedlog.partition.log_context import Bounds

logger = logging.getLogger("embedlog")
consumer_logger = logging.getLogger("embedlog.consumer")

Result = TypeVar("Result")
Moved = tuple[Cursor, int, int]  # with its position and epoch before a collection

FEW_RECORDS = 16  # a poll for at most so many records after a seek reads one batch (`Fetcher`)


class ReaderGroup(Duty, Protocol):
    """The operations of a group that reading needs."""

    def note_topics_changed(self) -> None: ...
    def find_position(self, cursor: Cursor) -> None: ...


class Collector:
    """The assigned partitions, and the operations that take records from them.

    **Threads:** one at a time.
    """

    def __init__(self, engine: Engine, config: ConsumerConfig) -> None:
        self.rotation = Rotation()
        self._window_count = config.metrics_num_samples
        self.waiter = Waiter(engine, config, self.rotation, self.follow)
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
        self._group: ReaderGroup | None = None
        # whether the caller may not have processed what it got (see the top of the module)
        self.has_unprocessed = False
        self.may_fetch = (
            True  # False: only records fetched before are returned, and no file is read
        )

    # ---- assigned partitions ----

    def join_group(self, group: ReaderGroup) -> None:
        """Join reading to a group: partitions start at committed offsets, and calls process the
        group's duties.
        """
        self._group = group
        self.waiter.duty = group

    def open_cursor(self, tp: TopicPartition, reset: Reset | None = None) -> Cursor:
        """The cursor of `tp`, or a new one. Raises UnknownTopicOrPartitionError."""
        if tp in self.rotation and not self.rotation.get(tp).partition.closed:
            return self.rotation.get(tp)
        partition = self._engine.partition(tp.topic, tp.partition)
        replica = partition if self._rack is None else self._engine.near(partition, self._rack)
        cursor = Cursor(tp, replica, reset, self._window_count)
        if self._group is not None:
            cursor.needs_committed_offset = True
        elif reset is None and self._reset.kind == "latest":
            # "latest" means the end now, not at the first poll. Without a leader nothing can be
            # appended now
            with contextlib.suppress(LeaderNotAvailableError):
                self.locate(cursor)
        return cursor

    def replace(self, cursors: Iterable[Cursor]) -> None:
        self.rotation.replace(list(cursors))
        self.waiter.forget_topics()

    def follow(self, subscription: Subscription, *, first: bool = False) -> None:
        """Assign all partitions of the subscribed topics; partitions that are added later are read
        from their start.
        """
        if subscription.kind == "assigned":
            self._engine.refresh_topics()  # closes deleted topics, so that reading them raises
            return
        if self._group is not None:
            self._group.note_topics_changed()
            return
        tps = subscription.partitions()
        assigned = {cursor.tp for cursor in self.rotation if not cursor.partition.closed}
        if assigned != set(tps):
            reset = None if first else EARLIEST
            self.rotation.replace([self.open_cursor(tp, reset) for tp in tps])

    # ---- records ----

    def collect(self, limit: int) -> list[Record] | None:
        """Up to `limit` records, partition after partition."""
        front = self.rotation.front
        moved = self._moved
        self.has_unprocessed = True
        run = None if front is None else front.run
        if (
            front is not None
            and run is not None
            and run.count > limit
            and not (front.paused or self._intercepts)
        ):
            moved.append((front, run.offset, run.leader_epoch))
            return run.take(limit)  # the usual case of a reader of few records: its batch has more
        collected: list[Record] = []
        fetcher = self.fetcher
        size_bytes_before = self.fetcher.size_bytes
        seen_count = 0
        try:
            for cursor in self.rotation.readable_cursors():
                if cursor.tail is None and not self._fetch_if_empty(cursor, limit):
                    continue
                moved.append((cursor, cursor.position, cursor.epoch))
                remaining = limit - len(collected)
                records = None
                if cursor.tail is not None:
                    records = fetcher.take_arrivals(cursor, remaining)
                if records is None:
                    if not self._fetch_if_empty(cursor, limit):
                        continue
                    records = cursor.take(remaining)
                elif not records:
                    continue
                if cursor.intercepted:
                    collected = records + collected
                    seen_count += len(records)
                else:
                    collected = collected + records if collected else records
                if not cursor.has_records:
                    self.rotation.end_turn(cursor)
                fetched_bytes = fetcher.size_bytes - size_bytes_before
                if len(collected) >= limit or fetched_bytes >= self._max_bytes:
                    break
            self.has_unprocessed = bool(collected)
            if not collected:
                moved.clear()
            return self._intercept(collected, seen_count) if self._intercepts else collected
        except BaseException as error:
            if collected and isinstance(error, EmbedlogError):
                # the error occurs again at its position, after these records
                return self._intercept(collected, seen_count)
            self.put_back(moved)
            raise

    def put_back(self, moved: Sequence[Moved]) -> None:
        """Restore the positions before a collection whose records were not returned."""
        if moved:
            for cursor, position, epoch in reversed(moved):
                cursor.seek(position, epoch)
            self.has_unprocessed = False

    def _intercept(self, records: list[Record], seen_count: int) -> list[Record]:
        """The first `seen_count` records already passed the interceptors, during an iteration."""
        if len(records) == seen_count:
            return records
        return records[:seen_count] + self.interceptors.on_consume(records[seen_count:])

    def open_iterator(self) -> Iterator[Record] | None:
        """An iterator over the fetched records of the next partition that has any."""
        for cursor in self.rotation.readable_cursors():
            while self._fetch_if_empty(cursor):
                if self._intercepts:
                    cursor.replace_ahead(self.interceptors.on_consume)
                    if not cursor.has_records:
                        continue
                self.rotation.end_turn(cursor)
                self._iterating = self.has_unprocessed = True
                return cursor.open_iterator()
        self.has_unprocessed = False
        return None

    def take_next_batch(self) -> Batch | None:
        """The next chunk of the next partition that has one."""
        self.has_unprocessed = False
        cursor_and_chunk = self.fetch_chunk()
        if cursor_and_chunk is None:
            return None
        cursor, chunk = cursor_and_chunk
        return self.take_batch(cursor, chunk)

    def fetch_chunk(self) -> tuple[Cursor, Chunk] | None:
        """The chunk that `take_next_batch` would return; no position moves."""
        for cursor in self.rotation.readable_cursors():
            chunk = self._fetch_if_led(cursor, self.fetcher.fetch_columns)
            if chunk is not None:
                return cursor, chunk
        return None

    def take_batch(self, cursor: Cursor, chunk: Chunk) -> Batch:
        """The batch of a chunk; the position moves after it."""
        self.has_unprocessed = True
        self._moved.append((cursor, cursor.position, cursor.epoch))
        batch = Batch(cursor.tp.topic, cursor.tp.partition, chunk.decoded)
        self.rotation.end_turn(cursor)
        cursor.fill([], chunk.next_offset, chunk.epoch)
        return batch

    def fetch_ahead(self, limit: int) -> bool:
        """Fetch until `limit` or all available records can be returned; no position moves over a
        record. An error after the first of them is left to the next fetch.
        """
        count = 0
        for cursor in self.rotation.readable_cursors():
            try:
                if self._fetch_if_empty(cursor):
                    count += cursor.ahead_count
            except EmbedlogError:
                if not count:
                    raise
                break
            if count >= limit:
                break
        return count > 0

    def locate(self, cursor: Cursor) -> Cursor:
        """The cursor, with a position. Raises NoOffsetForPartitionError."""
        self._find_start(cursor)
        return cursor

    def _find_start(self, cursor: Cursor) -> Bounds | None:
        """Give the cursor a position if it has none; the bounds that were read for that. Raises
        NoOffsetForPartitionError.
        """
        if cursor.needs_committed_offset and self._group is not None:
            self._group.find_position(cursor)
        return self.reset_position(cursor) if cursor.position < 0 else None

    def reset_position(self, cursor: Cursor) -> Bounds | None:
        """Give the cursor the position of `auto.offset.reset`. As `_find_start`."""
        reset = cursor.reset or self._reset
        leader = cursor.partition if self._rack is None else self._engine.partition(*cursor.tp)
        bounds = leader.bounds()
        cursor.seek(*reset.find_position(cursor.partition, bounds, self._isolation, system.wall_ms))
        logger.debug("%s-%d: reading begins at %d (%s)", *cursor.tp, cursor.position, reset.kind)
        return bounds if self._rack is None else None

    def _fetch_if_empty(self, cursor: Cursor, limit: int = FEW_RECORDS + 1) -> bool:
        """Fetch unless the cursor has records, or no fetch is allowed now; whether it has records
        then.
        """
        if cursor.has_records:
            return True
        if not self.may_fetch:
            return False
        fill: Callable[[Cursor], bool] = self.fetcher.fill
        if cursor.was_sought and limit <= FEW_RECORDS:
            if self.fetcher.fill_point(cursor, limit):
                return True
            fill = partial(self.fetcher.fill_few, limit=limit)
        return bool(self._fetch_if_led(cursor, fill))

    def _fetch_if_led(self, cursor: Cursor, fetch: Callable[[Cursor], Result]) -> Result | None:
        """As `_fetch_in_range`; None if the partition has no leader now."""
        if not self._engine.replicated:
            return self._fetch_in_range(cursor, fetch)
        try:
            return self._fetch_in_range(cursor, fetch)
        except (LeaderNotAvailableError, LockTimeoutError, NotEnoughReplicasError) as problem:
            logger.debug("%s-%d is not read now: %s", *cursor.tp, problem)
            return None

    def _fetch_in_range(self, cursor: Cursor, fetch: Callable[[Cursor], Result]) -> Result:
        """Call `fetch`; if the position is out of range, from the position of `auto.offset.reset`.

        The reset repeats while it makes progress: retention may be faster than the step from the
        lookup to the fetch.
        """
        if cursor.position < 0:
            cursor.bounds = self._find_start(cursor)
        while True:
            try:
                return fetch(cursor)
            except OffsetOutOfRangeError as problem:
                failed = cursor.position
                problem.topic = cursor.tp.topic
                problem.partition = cursor.tp.partition
                problem.offset = failed
                if self._reset.kind == "none":
                    raise
                if isinstance(problem, LogTruncationError) and problem.diverging is not None:
                    cursor.seek(problem.diverging.offset, problem.diverging.leader_epoch)
                else:
                    cursor.seek_later(None)
                if self.locate(cursor).position == failed:
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


class ConsumerInterceptors(InterceptorChain):
    """The interceptors of one consumer, which may change the records that `poll` is about to
    return, and learn of commits. Threads: the consumer's own.
    """

    def __init__(self, interceptors: Iterable[Any]) -> None:
        super().__init__(interceptors, ("on_consume", "on_commit"), consumer_logger)

    def on_consume(self, records: list[Record]) -> list[Record]:
        """The records to return in place of these; never raises."""
        return self.transform("on_consume", records, _check_records)

    def on_commit(self, offsets: dict[TopicPartition, OffsetAndMetadata]) -> None:
        """Reports a commit that succeeded to all; never raises."""
        self.notify("on_commit", offsets)


def _check_records(changed: Iterable[Any]) -> list[Record]:
    records = list(changed)
    if any(type(record) is not Record for record in records):
        raise TypeError("on_consume returns a list of Records")
    return records


def take_until_due(run: Iterator[Record], until_ns: int) -> Iterator[Record]:
    """The records of `run` until the group's duties are due: checked before each, since the caller
    may process any record slowly.
    """
    for record in run:
        yield record
        if monotonic_ns() >= until_ns:
            return
