"""The consumer's looks: what there is to hand out now, as objects or in columns.

COLLECTOR-1  a look never waits: `Waiting` does, and looks again
COLLECTOR-2  what a look hands out moves positions last; what fails before that leaves them where they were
COLLECTOR-3  an error at one position does not swallow records collected before it: they go out first, and the error is met again
COLLECTOR-4  interceptors see each record once, right before it is handed out; columns pass them by, as they do deserializers
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeVar

from embedlog._native._rows import Record
from embedlog.columns.batch import Batch
from embedlog.columns.chunks import Chunk
from embedlog.config.client import ConsumerConfig
from embedlog.consumer.fetcher import Fetcher
from embedlog.consumer.interceptors import ConsumerInterceptors
from embedlog.consumer.positions import EARLIEST, Cursor, Reset, Rotation
from embedlog.consumer.subscription import Subscription
from embedlog.consumer.waiter import Duty, Waiting
from embedlog.errors import EmbedlogError, LogTruncationError, OffsetOutOfRangeError
from embedlog.types import TopicPartition

Found = TypeVar("Found")

logger = logging.getLogger("embedlog")


class Group(Duty, Protocol):
    """What reading asks of the group that it is part of."""

    def topics_moved(self) -> None: ...
    def place(self, cursor: Cursor) -> None: ...


class Reading:
    """The assigned partitions, and the ways to take records out of them.

    **Threads:** one at a time.
    """

    def __init__(self, log: Any, config: ConsumerConfig) -> None:
        self.rotation = Rotation()
        self.waiting = Waiting(log, config, self.rotation, self.follow)
        self.interceptors = ConsumerInterceptors(config.interceptor_classes)
        self.fetcher = Fetcher(
            isolation=config.isolation_level,
            max_bytes=min(config.max_partition_fetch_bytes, config.fetch_max_bytes),
            key_deserializer=config.key_deserializer,
            value_deserializer=config.value_deserializer,
        )
        self._log = log
        self._isolation = config.isolation_level
        self._reset = Reset(config.auto_offset_reset)
        self._max_bytes = config.fetch_max_bytes
        self._lent = False
        self._group: Group | None = None
        self.fetches = True  # False: a look hands out what was fetched before, and touches no file

    # ---- which partitions ----

    def attend_to(self, group: Group) -> None:
        """From now on partitions begin where the group has committed, and calls see to what the group asks for."""
        self._group = group
        self.waiting.duty = group

    def cursor(self, tp: TopicPartition, reset: Reset | None = None) -> Cursor:
        """The cursor of `tp`, or a new one. Raises UnknownTopicOrPartitionError."""
        if tp in self.rotation and not self.rotation.get(tp).partition.closed:
            return self.rotation.get(tp)
        made = Cursor(tp, self._log._partition(tp.topic, tp.partition), reset)
        if self._group is not None:
            made.fresh = True
        elif reset is None and self._reset.kind == "latest":
            self.located(made)  # "latest" means from now on, not from whenever the first poll happens to come
        return made

    def replace(self, cursors: Iterable[Cursor]) -> None:
        self.rotation.replace(list(cursors))
        self.waiting.forget_topics()

    def follow(self, subscription: Subscription, *, first: bool = False) -> None:
        """Takes in all partitions of the subscribed topics; those that come later are read from their start."""
        if subscription.kind == "assigned":
            self._log.topics()  # lets go of those that were deleted, so that reading them says so
            return
        if self._group is not None:
            self._group.topics_moved()
            return
        tps = subscription.partitions()
        known = {cursor.tp for cursor in self.rotation if not cursor.partition.closed}
        if known != set(tps):
            later = None if first else EARLIEST
            self.rotation.replace([self.cursor(tp, later) for tp in tps])

    # ---- looks ----

    def collect(self, limit: int) -> list[Record] | None:
        """Up to `limit` records, partition after partition."""
        out: list[Record] = []
        taken: list[tuple[Cursor, int, int]] = []
        fetcher, before = self.fetcher, self.fetcher.size_bytes
        seen_count = 0
        try:
            for cursor in self.rotation.turns():
                if cursor.tail is None and not self._ready(cursor):
                    continue
                taken.append((cursor, cursor.position, cursor.epoch))
                room = limit - len(out)
                found = fetcher.arrived(cursor, room) if cursor.tail is not None else None
                if found is None:
                    if not self._ready(cursor):
                        continue
                    found = cursor.take(room)
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
            return self._intercepted(out, seen_count) if self.interceptors else out
        except BaseException as error:
            if out and isinstance(error, EmbedlogError):
                return self._intercepted(out, seen_count)  # COLLECTOR-3
            for cursor, position, epoch in reversed(taken):
                cursor.seek(position, epoch)
            raise

    def _intercepted(self, records: list[Record], seen_count: int) -> list[Record]:
        """The first `seen_count` were shown to the interceptors while somebody iterated."""
        if len(records) == seen_count:
            return records
        return records[:seen_count] + self.interceptors.on_consume(records[seen_count:])

    def lend(self) -> Iterator[Record] | None:
        """An iterator over all that is fetched of the next partition that has something."""
        for cursor in self.rotation.turns():
            while self._ready(cursor):
                if self.interceptors:
                    cursor.replace_ahead(self.interceptors.on_consume)
                    if not cursor.has_records:
                        continue
                self.rotation.drained(cursor)
                self._lent = True
                return cursor.lend()
        return None

    def batch(self) -> Batch | None:
        """The next chunk of the next partition that has something."""
        found = self.chunk()
        return None if found is None else self.hand_out(*found)

    def chunk(self) -> tuple[Cursor, Chunk] | None:
        """What `batch` would hand out; no position moves."""
        for cursor in self.rotation.turns():
            chunk = self._in_range(cursor, self.fetcher.columns)
            if chunk is not None:
                return cursor, chunk
        return None

    def hand_out(self, cursor: Cursor, chunk: Chunk) -> Batch:
        """What `chunk` found; the position moves behind it."""
        made = Batch(cursor.tp.topic, cursor.tp.partition, chunk.decoded)
        self.rotation.drained(cursor)
        cursor.fill([], chunk.next_offset, chunk.epoch)
        return made

    def ahead(self, limit: int) -> bool:
        """Fetches until `limit` or all available records can be returned; no position moves over a record (COLLECTOR-3)."""
        count = 0
        for cursor in self.rotation.turns():
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
        if cursor.fresh and self._group is not None:
            self._group.place(cursor)
        if cursor.position < 0:
            reset = cursor.reset or self._reset
            cursor.seek(*reset.place(cursor.partition, self._isolation, lambda: time.time_ns() // 1_000_000))
            logger.debug("%s-%d: reading begins at %d (%s)", *cursor.tp, cursor.position, reset.kind)
        return cursor

    def _ready(self, cursor: Cursor) -> bool:
        return cursor.has_records or (self.fetches and bool(self._in_range(cursor, self.fetcher.fill)))

    def _in_range(self, cursor: Cursor, fetch: Callable[[Cursor], Found]) -> Found:
        """`fetch`, from where `auto.offset.reset` leads if the position is not in the log (any more).

        As often as that leads on: retention may be faster than the way from the look at the start to the fetch from there.
        """
        if cursor.position < 0:
            self.located(cursor)
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
                logger.warning("%s; going on at %d", problem, cursor.position)

    def recall(self) -> None:
        """What an iterator was lent and did not hand out yet is handed out by the next call."""
        if self._lent:
            for cursor in self.rotation:
                cursor.recall()
            self._lent = False
