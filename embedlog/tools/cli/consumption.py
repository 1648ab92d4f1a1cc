"""Contains `Consumption`: counts and times of read records, in the columns of
kafka-consumer-perf-test.

The time of rebalances is no part of the time of fetches.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from datetime import datetime
from typing import Any, TypeAlias

from embedlog import Consumer, TopicPartition

MIB = 1024 * 1024
POLL_S = 0.1
FIGURES = (
    "data.consumed.in.MB",
    "MB.sec",
    "data.consumed.in.nMsg",
    "nMsg.sec",
    "rebalance.time.ms",
    "fetch.time.ms",
    "fetch.MB.sec",
    "fetch.nMsg.sec",
)
TOTAL = ("start.time", "end.time", *FIGURES)
DETAILED = ("time", "threadId", *FIGURES)

Row: TypeAlias = dict[str, str | int | float]
Poll: TypeAlias = Callable[[int], tuple[int, int]]


def record_poll(client: Consumer[Any, Any]) -> Poll:
    """Polls at most so many records as objects; returns their number and the bytes of keys and
    values.
    """

    def poll(limit: int) -> tuple[int, int]:
        polled = client.poll(POLL_S, max_records=limit)
        sizes = [len(record.key or b"") + len(record.value or b"") for record in polled]
        return len(polled), sum(sizes)

    return poll


def batch_poll(client: Consumer[Any, Any]) -> Poll:
    """Reads the next batch of columns, of any size; returns as `records`."""

    def poll(limit: int) -> tuple[int, int]:
        batch = next(client.batches(timeout=POLL_S), None)
        if batch is None:
            return 0, 0
        columns = (batch.keys, batch.values)
        return batch.num_rows, sum(
            int(column.offsets[-1] - column.offsets[0]) for column in columns
        )

    return poll


class _Interval:
    """Counts since a time."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.wall = time.time()
        self.count = 0
        self.size = 0
        self.rebalance_s = 0.0

    def figures(self, total_count: int, total_size: int, elapsed_s: float) -> list[int | float]:
        """The values of FIGURES; the totals are those of all intervals."""
        rate_s = max(elapsed_s, 0.001)
        fetch_s = max(elapsed_s - self.rebalance_s, 0.001)
        mib = self.size / MIB
        return [
            total_size / MIB,
            mib / rate_s,
            total_count,
            self.count / rate_s,
            int(self.rebalance_s * 1000),
            int(fetch_s * 1000),
            mib / fetch_s,
            self.count / fetch_s,
        ]


class Consumption:
    """The figures of one consumer, from now on."""

    def __init__(self, *, interval_s: float | None) -> None:
        """With `interval_s` a row is made for each interval, otherwise one at the end."""
        self._interval_s = interval_s
        self.columns = TOTAL if interval_s is None else DETAILED
        self._all = _Interval()
        self._part = _Interval()
        self._joining: float | None = self._all.began
        self._partitions: set[TopicPartition] = set()

    @property
    def count(self) -> int:
        """Records that were read."""
        return self._all.count

    def note_assigned(self, partitions: Collection[TopicPartition]) -> None:
        """Partitions were assigned: a listener of the consumer."""
        if self._joining is not None:
            for interval in (self._all, self._part):
                interval.rebalance_s += time.monotonic() - max(self._joining, interval.began)
            self._joining = None
        self._partitions |= set(partitions)

    def note_revoked(self, partitions: Collection[TopicPartition]) -> None:
        """Partitions were revoked: a listener of the consumer."""
        self._partitions -= set(partitions)
        if not self._partitions:
            self._joining = time.monotonic()

    def read_rows(self, poll: Poll, expected: int, timeout_s: float) -> Iterator[Row]:
        """Read up to `expected` records, or until none arrives for `timeout_s`."""
        last = time.monotonic()
        while self.count < expected:
            count, size = poll(expected - self.count)
            now = time.monotonic()
            for interval in (self._all, self._part):
                interval.count += count
                interval.size += size
            if count:
                last = now
            elif now - last > timeout_s:
                break
            if self._interval_s is not None and now - self._part.began >= self._interval_s:
                yield self._row([_date(time.time()), 0], self._part, now)
                self._part = _Interval()
        end = _date(time.time())
        if self._interval_s is None:
            yield self._row([_date(self._all.wall), end], self._all, time.monotonic())
        elif self._part.count:
            yield self._row([end, 0], self._part, time.monotonic())

    def _row(self, first: list[str | int], counts: _Interval, now: float) -> Row:
        figures = counts.figures(self._all.count, self._all.size, now - counts.began)
        return dict(zip(self.columns, [*first, *figures], strict=True))


def line_of(row: Row) -> str:
    """A row as Kafka's tool prints it."""
    return ", ".join(
        f"{value:.4f}" if isinstance(value, float) else str(value) for value in row.values()
    )


def _date(seconds: float) -> str:
    date = datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M:%S")
    return f"{date}:{int(seconds * 1000) % 1000:03}"
