"""The position of a reader in each of its partitions, and the policy for a missing position.

- A position is the offset of the next record to return; it moves only when a record is returned, or
  by a seek.
- Records fetched ahead are a cache of the bytes after the position: dropping it loses nothing.
- An error at an offset is raised after all records before it were returned, and again until a seek.
  Causes are a damaged batch and a record that cannot be deserialized.
- Partitions alternate: when the fetched records of one are used up, it moves to the end of the
  queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from embedlog.config.times import duration_ms
from embedlog.errors import NoOffsetForPartitionError, StateError
from embedlog.format.visibility import end_offset
from embedlog.telemetry.metrics import WINDOW_COUNT
from embedlog.types import TopicPartition

if TYPE_CHECKING:
    from embedlog._native._rows import Record, RecordRun
    from embedlog.partition.interfaces import ReadableLog, TailedLog
    from embedlog.partition.log_context import Bounds


class Reset:
    """The policy of `auto.offset.reset`.

    Examples:
        >>> Reset("by_duration:PT1H").kind
        'by_duration'
    """

    def __init__(self, text: str) -> None:
        self.kind, _, duration = text.partition(":")
        self._duration_ms = (
            duration_ms(duration, "auto.offset.reset") if self.kind == "by_duration" else 0
        )

    def find_position(
        self, partition: ReadableLog, bounds: Bounds, isolation: str, now_ms: Callable[[], int]
    ) -> tuple[int, int]:
        """The position of this policy in `partition`, and the epoch of the record before it (-1:
        unknown).

        Raises NoOffsetForPartitionError if the policy is `none`.
        """
        if self.kind == "earliest":
            return int(bounds.log_start), -1
        if self.kind == "by_duration":
            record = partition.offset_for_time(now_ms() - self._duration_ms, isolation)
            if record is not None:
                return min(int(record.offset), end_offset(bounds, isolation)), -1
        if self.kind == "none":
            topic = partition.topic
            number = partition.number
            problem = f"no position in {topic}-{number}, and auto.offset.reset is none"
            raise NoOffsetForPartitionError(problem, topic=topic, partition=number)
        end = end_offset(bounds, isolation)
        return end, int(bounds.epoch) if end == bounds.log_end else -1


EARLIEST = Reset("earliest")
LATEST = Reset("latest")


class Spread:
    """The values of a metric at the fetches of one partition, in the windows of the
    registry.
    """

    __slots__ = ("_full_count_max", "count", "full", "largest", "smallest", "total")

    def __init__(self, window_count: int) -> None:
        self.count = self.total = self.smallest = self.largest = 0
        # count, total, minimum, maximum; the newest one first
        self.full: tuple[tuple[int, int, int, int], ...] = ()
        self._full_count_max = window_count - 1

    def include(self, value: int) -> None:
        if value < self.smallest or not self.count:
            self.smallest = value
        if value > self.largest:
            self.largest = value
        self.count += 1
        self.total += value

    def rotate_window(self) -> None:
        """The values of the oldest window are dropped."""
        window = (self.count, self.total, self.smallest, self.largest)
        self.full = (window, *self.full)[: self._full_count_max]
        self.count = self.total = self.smallest = self.largest = 0

    def summarize(self) -> tuple[float | None, int | None, int | None]:
        """Mean, minimum and maximum of all windows; None if there was no fetch."""
        current = (self.count, self.total, self.smallest, self.largest)
        windows = [window for window in (current, *self.full) if window[0]]
        if not windows:
            return None, None, None
        counts, totals, smallest, largest = zip(*windows, strict=True)
        return sum(totals) / sum(counts), min(smallest), max(largest)


class Cursor:
    """One assigned partition: the position, the records fetched after it, and the flags that a
    caller can set.

    **Threads:** one at a time; the consumer ensures that.
    """

    __slots__ = (
        "_ahead",
        "_epoch",
        "_iterator",
        "_next",
        "_returned_count",
        "bounds",
        "checked_epoch",
        "dropped_count",
        "intercepted",
        "lag",
        "lead",
        "needs_committed_offset",
        "partition",
        "paused",
        "reset",
        "run",
        "seen_end",
        "tail",
        "tp",
        "was_sought",
    )

    def __init__(
        self,
        tp: TopicPartition,
        partition: ReadableLog,
        reset: Reset | None,
        window_count: int = WINDOW_COUNT,
    ) -> None:
        self.tp = tp
        self.partition = partition
        self.paused = False
        # whether the committed offset is still unknown: the partition is not read before
        self.needs_committed_offset = False
        # the start policy, or None for the consumer's own; used only without a position
        self.reset = reset
        # of this moment, for the fetch that follows; None: the fetch reads them
        self.bounds: Bounds | None = None
        self.seen_end = -1  # end of the partition at the last read: a wait compares with it
        # the fast path to the next published records, once the end was reached
        self.tail: TailedLog | None = None
        # the partition's epoch at the last comparison of the position with its epoch history
        self.checked_epoch = -1
        self.intercepted = False  # whether the records fetched ahead have passed the interceptors
        self.dropped_count = 0  # records that were fetched and then dropped
        self.was_sought = False  # whether no fetch has followed the last seek
        self.lag = Spread(window_count)
        self.lead = Spread(window_count)
        self._next = -1  # position after all fetched records; -1: none yet
        self._epoch = -1  # leader epoch of the record before `_next`; -1: unknown
        # fetched records in order; those from `_returned_count` on were not returned
        self._ahead: list[Record] = []
        self._returned_count = 0
        # fetched records that are not made yet; then `_ahead` is empty
        self.run: RecordRun | None = None
        self._iterator: Any = None  # an open list iterator over the rest of `_ahead`

    # ---- position ----

    @property
    def position(self) -> int:
        """Offset of the next record to return, or -1 before it is known."""
        if self._iterator is not None:
            self._update_position()
        # a signal handler may end the reading
        ahead = self._ahead
        begin = self._returned_count
        run = self.run
        if begin < len(ahead):
            return ahead[begin].offset
        return self._next if run is None else run.offset

    @property
    def seeks_epoch(self) -> bool:
        """Whether the position must be compared with the epoch history: it has an epoch, or is not
        known.
        """
        return self._epoch >= 0 or self._next < 0

    @property
    def epoch(self) -> int:
        """Leader epoch of the record before the position; -1 if unknown."""
        self._update_position()
        ahead = self._ahead
        begin = self._returned_count
        run = self.run
        if begin < len(ahead):
            return ahead[begin].leader_epoch
        return self._epoch if run is None else run.leader_epoch

    def seek(self, offset: int, epoch: int = -1) -> None:
        """Set the position to `offset`, after a record of that epoch; fetched records are
        dropped.
        """
        self._drop()
        self._next = offset
        self._epoch = epoch
        self.checked_epoch = -1
        self.was_sought = True
        self.needs_committed_offset = self.needs_committed_offset and offset < 0

    def seek_later(self, reset: Reset | None) -> None:
        """Discard the position; the next read finds one by `reset`."""
        self.seek(-1)
        self.reset = reset
        self.needs_committed_offset = self.needs_committed_offset and reset is None

    # ---- records fetched ahead ----

    @property
    def has_records(self) -> bool:
        if self._iterator is not None:
            self._update_position()
        return self.run is not None or self._returned_count < len(self._ahead)

    @property
    def ahead_count(self) -> int:
        """Records fetched and not returned yet."""
        self._update_position()
        made_count = len(self._ahead) - self._returned_count
        return made_count if self.run is None else made_count + self.run.count

    def fill(self, records: list[Record], next_offset: int, epoch: int = -1) -> None:
        """Take the records of a fetch; `next_offset` is the position after them, `epoch` the leader
        epoch before it.
        """
        self._ahead = records
        self._returned_count = 0
        self._next = next_offset
        self._iterator = None
        self._epoch = epoch
        self.intercepted = False
        self.was_sought = False
        self.run = None

    def fill_run(self, run: RecordRun, next_offset: int, epoch: int) -> None:
        """As `fill`, with records that are made when they are taken. REQUIRES: the run has a
        record.
        """
        self._ahead = []
        self._returned_count = 0
        self._next = next_offset
        self._iterator = None
        self._epoch = epoch
        self.intercepted = False
        self.was_sought = False
        self.run = run

    def stands_at(self, offset: int) -> bool:
        """Whether the position is `offset`, and no records are fetched ahead."""
        return (
            self._next == offset and not self._ahead and self._iterator is None and self.run is None
        )

    def move(self, offset: int, epoch: int) -> None:
        """Set the position after records that were returned from another source. REQUIRES: no
        records fetched ahead.
        """
        self._next = offset
        self._epoch = epoch

    def replace_ahead(self, change: Callable[[list[Record]], list[Record]]) -> None:
        """Replace the records fetched ahead by the result of `change`, once."""
        if not self.intercepted:
            self._make_all()
            self._update_position()
            self._ahead = change(self._ahead[self._returned_count :])
            self._returned_count = 0
            self.intercepted = True

    def take(self, count: int) -> list[Record]:
        """Return at most `count` records; the position moves."""
        run = self.run
        if run is not None:
            records = run.take(count)
            if not run.count:
                self.run = None
            return records
        self._update_position()
        ahead = self._ahead
        begin = self._returned_count
        if len(ahead) - begin <= count:
            self._ahead = []
            self._returned_count = 0
            return ahead if begin == 0 else ahead[begin:]
        self._returned_count = begin + count
        return ahead[begin : self._returned_count]

    def open_iterator(self) -> Iterator[Record]:
        """An iterator over the remaining records.

        The position follows it without a call per record: it is read from the iterator.
        """
        self._make_all()
        self._update_position()
        self._iterator = iter(self._ahead)
        self._iterator.__setstate__(self._returned_count)
        return self._iterator  # type: ignore[no-any-return]

    def _make_all(self) -> None:
        """Make the rest of the run, for callers that need all records as a list."""
        if self.run is not None:
            self._ahead = self.run.take(self.run.count)
            self._returned_count = 0
            self.run = None

    def _update_position(self) -> None:
        """Update the position from an open iterator."""
        iterator = self._iterator
        if iterator is not None:
            self._returned_count = len(self._ahead) - iterator.__length_hint__()

    def close_iterator(self) -> None:
        """End an open iterator; the next call returns its unread records."""
        iterator = self._iterator
        if iterator is not None:
            self._update_position()
            # first: after an interrupt the ended iterator does not tell the position
            self._iterator = None
            iterator.__setstate__(len(self._ahead))
            for _ in iterator:  # ends at once; only an exhausted list iterator releases its list
                pass

    def _drop(self) -> None:
        if self._iterator is not None:
            self.close_iterator()
        run = self.run
        if run is not None:
            self.dropped_count += run.count
            self.run = None
        if self._ahead:
            self.dropped_count += len(self._ahead) - self._returned_count
            self._ahead = []
            self._returned_count = 0

    def drop_ahead(self) -> None:
        """Drop records fetched ahead; the position stays."""
        position = self.position
        epoch = self.epoch
        self._drop()
        self._next = position
        self._epoch = epoch


class Rotation:
    """The assigned partitions, in the order in which they are read."""

    def __init__(self) -> None:
        self.dropped_count = 0  # records fetched ahead of partitions that were unassigned since
        self._cursors: dict[TopicPartition, Cursor] = {}
        self._queue: deque[Cursor] = deque()

    def __len__(self) -> int:
        return len(self._cursors)

    def __iter__(self) -> Iterator[Cursor]:
        return iter(self._cursors.values())

    def __contains__(self, tp: object) -> bool:
        return tp in self._cursors

    def get(self, tp: TopicPartition) -> Cursor:
        """The cursor of an assigned partition. Raises StateError if it is not assigned."""
        try:
            return self._cursors[tp]
        except KeyError:
            raise StateError(f"{tp[0]}-{tp[1]} is not assigned to this consumer") from None

    @property
    def front(self) -> Cursor | None:
        """The cursor whose turn it is."""
        return self._queue[0] if self._queue else None

    def pick(self, tps: Sequence[TopicPartition]) -> list[Cursor]:
        """The cursors of `tps`, or all if `tps` is empty."""
        return [self.get(tp) for tp in tps] if tps else list(self)

    def replace(self, cursors: Iterable[Cursor]) -> None:
        """Replace the assignment; cursors that stay keep their place in the queue."""
        assigned = {cursor.tp: cursor for cursor in cursors}
        for tp, cursor in self._cursors.items():
            if assigned.get(tp) is cursor:
                continue
            cursor.drop_ahead()
            # gives its descriptor back, though a traceback may still refer to the cursor
            cursor.tail = None
            self.dropped_count += cursor.dropped_count
        staying = [cursor for cursor in self._queue if assigned.get(cursor.tp) is cursor]
        staying_ids = set(map(id, staying))
        added = [cursor for cursor in assigned.values() if id(cursor) not in staying_ids]
        self._queue = deque(staying + added)
        self._cursors = assigned

    def readable_cursors(self) -> Iterator[Cursor]:
        """Each cursor that may be read, once, from the front of the queue. `end_turn` ends its
        turn.
        """
        return iter(
            [
                cursor
                for cursor in self._queue
                if not cursor.paused and not cursor.needs_committed_offset
            ]
        )

    def end_turn(self, cursor: Cursor) -> None:
        """Move the cursor to the end of the queue."""
        queue = self._queue
        if len(queue) == 1:
            return
        if queue and queue[0] is cursor:
            queue.rotate(-1)
        elif cursor in queue:  # a deserializer or an interceptor may have ended the reading
            queue.remove(cursor)
            queue.append(cursor)
