"""The consumer's inner loop: look, hand out, or sleep until there is something.

R1  a look never waits; only `wait_for` does, in the log's wait, and it looks again after each wake-up
R2  what a look hands out moves positions last; what fails before that leaves them where they were
R3  an error at one position does not swallow records collected before it: they go out first, and the error is met again
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from embedlog._native._rows import Record
from embedlog.batch import Batch
from embedlog.client_options import ConsumerConfig
from embedlog.errors import ClosedError, EmbedlogError, OffsetOutOfRangeError, StateError, WakeupError
from embedlog.fetcher import Fetcher
from embedlog.isolation import READ_COMMITTED, end_offset
from embedlog.positions import EARLIEST, Cursor, Reset, Rotation
from embedlog.subscription import Subscription
from embedlog.values import TopicPartition

Found = TypeVar("Found")

TOPICS_LOOK_S = 0.5  # how often a waiting consumer looks for new partitions: nothing in its partitions' pages tells of them


class Reading:
    """The assigned partitions, and the ways to take records out of them.

    **Threads:** one at a time, except `wakeup` and `stop`.
    """

    def __init__(self, log: Any, config: ConsumerConfig) -> None:
        self.rotation = Rotation()
        self._log = log
        self._isolation = config.isolation_level
        self._reset = Reset(config.auto_offset_reset)
        self._fetcher = Fetcher(
            isolation=config.isolation_level,
            max_bytes=config.max_partition_fetch_bytes,
            key_deserializer=config.key_deserializer,
            value_deserializer=config.value_deserializer,
        )
        self._woken = self._stopped = False
        self._poll_began = time.monotonic()
        self._poll_gap_max_s = 0.0

    # ---- which partitions ----

    def cursor(self, tp: TopicPartition, reset: Reset | None = None) -> Cursor:
        """The cursor of `tp`, or a new one. Raises UnknownTopicOrPartitionError."""
        if tp in self.rotation:
            return self.rotation.get(tp)
        made = Cursor(tp, self._log._partition(tp.topic, tp.partition), reset)
        if reset is None and self._reset.kind == "latest":
            self.located(made)  # "latest" means from now on, not from whenever the first poll happens to come
        return made

    def replace(self, cursors: Iterable[Cursor]) -> None:
        self.rotation.replace(list(cursors))

    def follow(self, subscription: Subscription, *, first: bool = False) -> None:
        """Takes in all partitions of the subscribed topics; those that come later are read from their start."""
        tps = subscription.partitions()
        if len(tps) != len(self.rotation) or any(tp not in self.rotation for tp in tps):
            later = None if first else EARLIEST
            self.replace([self.cursor(tp, later) for tp in tps])

    # ---- waiting ----

    def wait_for(self, look: Callable[[], Found | None], timeout_s: float | None, subscription: Subscription) -> Found | None:
        """What `look` finds, at once or within `timeout_s` (None: for ever); None if it found nothing."""
        if not subscription.kind:
            raise StateError("nothing is subscribed or assigned: subscribe() or assign() first")
        if timeout_s is not None and not isinstance(timeout_s, (int, float)):
            raise TypeError(f"timeout: seconds or None, not {type(timeout_s).__name__}")
        now = time.monotonic()
        deadline = None if timeout_s is None else now + timeout_s
        self._poll_gap_max_s = max(self._poll_gap_max_s, now - self._poll_began)
        self._poll_began = now
        self._recall()
        woken_by_data = False
        while True:
            if self._stopped:
                raise ClosedError("this consumer was closed")
            if self._woken:
                self._woken = False
                raise WakeupError("wakeup() was called")
            if subscription.kind != "assigned" and not woken_by_data:
                self.follow(subscription)
            found = look()
            if found:
                return found
            if not woken_by_data and not self._sleep(deadline, TOPICS_LOOK_S if subscription.kind != "assigned" else None):
                return found
            woken_by_data = not woken_by_data  # look first, for whoever waits for records; then for new partitions

    def _sleep(self, deadline: float | None, longest_s: float | None) -> bool:
        """Sleeps until a partition grows, somebody wakes this consumer, or the deadline: False if that has passed."""
        left_s = None if deadline is None else deadline - time.monotonic()
        if left_s is not None and left_s <= 0:
            return False
        if longest_s is not None:
            left_s = longest_s if left_s is None else min(left_s, longest_s)
        tails = [(cursor.partition, cursor.seen_end) for cursor in self.rotation.turns()]
        self._log._wait(tails, left_s, self, self._isolation == READ_COMMITTED)
        self._log._check_open()
        return True

    def stop(self) -> None:
        """Ends a wait, and all later ones, with ClosedError."""
        self._stopped = True
        self._log._wake(self)

    def wakeup(self) -> None:
        self._woken = True
        self._log._wake(self)

    # ---- looks ----

    def collect(self, limit: int) -> list[Record] | None:
        """Up to `limit` records, partition after partition."""
        out: list[Record] = []
        taken: list[tuple[Cursor, int]] = []
        try:
            for cursor in self.rotation.turns():
                if not self._ready(cursor):
                    continue
                taken.append((cursor, cursor.position))
                out += cursor.take(limit - len(out))
                if not cursor.has_records:
                    self.rotation.drained(cursor)
                if len(out) >= limit:
                    break
        except BaseException as error:
            if out and isinstance(error, EmbedlogError):
                return out  # R3
            for cursor, position in taken:
                cursor.seek(position)
            raise
        return out

    def lend(self) -> Iterator[Record] | None:
        """An iterator over all that is fetched of the next partition that has something."""
        for cursor in self.rotation.turns():
            if self._ready(cursor):
                self.rotation.drained(cursor)
                return cursor.lend()
        return None

    def batch(self) -> Batch | None:
        """The next chunk of the next partition that has something."""
        for cursor in self.rotation.turns():
            chunk = self._in_range(cursor, self._fetcher.columns)
            if chunk is not None:
                made = Batch(cursor.tp.topic, cursor.tp.partition, chunk.decoded)
                self.rotation.drained(cursor)
                cursor.fill([], chunk.next_offset)
                return made
        return None

    def located(self, cursor: Cursor) -> Cursor:
        """The cursor, with a position. Raises NoOffsetForPartitionError."""
        if cursor.position < 0:
            reset = cursor.reset or self._reset
            cursor.seek(reset.offset(cursor.partition, self._isolation, lambda: time.time_ns() // 1_000_000))
        return cursor

    def _ready(self, cursor: Cursor) -> bool:
        return cursor.has_records or bool(self._in_range(cursor, self._fetcher.fill))

    def _in_range(self, cursor: Cursor, fetch: Callable[[Cursor], Found]) -> Found:
        """`fetch`, from where `auto.offset.reset` leads if the position is not in the log (any more).

        As often as that leads on: retention may be faster than the way from the look at the start to the fetch from there.
        """
        self.located(cursor)
        while True:
            try:
                return fetch(cursor)
            except OffsetOutOfRangeError:
                failed = cursor.position
                if self._reset.kind == "none":
                    raise
                cursor.seek_later(None)
                if self.located(cursor).position == failed:
                    raise

    def _recall(self) -> None:
        for cursor in self.rotation:
            cursor.recall()

    # ---- figures ----

    def lag(self, cursor: Cursor) -> int | None:
        position = cursor.position
        return None if position < 0 else max(0, end_offset(cursor.partition.bounds(), self._isolation) - position)

    def metrics(self) -> dict[str, Any]:
        partitions = {cursor.tp: self._partition_metrics(cursor) for cursor in self.rotation}
        lags = [known["records-lag"] for known in partitions.values() if known["records-lag"] is not None]
        leads = [known["records-lead"] for known in partitions.values() if known["records-lead"] is not None]
        return {
            "assigned-partitions": len(self.rotation),
            "bytes-consumed-total": self._fetcher.size_bytes,
            "fetch-total": self._fetcher.fetch_count,
            "last-poll-seconds-ago": time.monotonic() - self._poll_began,
            "partitions": partitions,
            "records-consumed-total": self._fetcher.record_count - sum(cursor.ahead_count for cursor in self.rotation),
            "records-lag-max": max(lags, default=None),
            "records-lead-min": min(leads, default=None),
            "time-between-poll-max": self._poll_gap_max_s,
        }

    def _partition_metrics(self, cursor: Cursor) -> dict[str, int | None]:
        position = cursor.position
        lead = None if position < 0 else max(0, position - int(cursor.partition.bounds().log_start))
        return {"position": None if position < 0 else position, "records-lag": self.lag(cursor), "records-lead": lead}
