"""Consumer metrics by Kafka's names.

- Totals count from the start; rates, means and maxima cover recent windows (`_metrics`); times are
  in ms unless the name contains a unit.
- A report reads the control page of each partition; counting adds nothing to a fetch but sums in
  attributes.
- Lag is counted to the end that this isolation level reads. In a read-only log it is counted to the
  high watermark. A reader there cannot end an open transaction, so the lag must show the wait for
  one.
- A report waits for no partition. Lag and lead are None while a partition has no leader.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from embedlog._native import system
from embedlog.consumer.collector import Collector
from embedlog.consumer.positions import Cursor
from embedlog.errors import LeaderNotAvailableError, LockTimeoutError
from embedlog.format.visibility import end_offset
from embedlog.storage.call_deadline import bound_waits
from embedlog.telemetry.metrics import milliseconds

if TYPE_CHECKING:
    from embedlog.engine.engine import Engine
    from embedlog.partition.log_context import Bounds


class ConsumerMetrics:
    """The metrics of one consumer, and the source of its registry. Threads: the consumer's own."""

    def __init__(self, engine: Engine, reading: Collector, isolation: str) -> None:
        self._engine = engine
        self._reading = reading
        self._isolation = isolation
        self._metrics = reading.waiter.metrics
        self._metrics.source = self

    def lag_of(self, cursor: Cursor) -> int | None:
        """Offsets between the position and the end; None before there is a position. Raises
        LeaderNotAvailableError.
        """
        return self._lag_of_position(cursor.position, cursor.partition.bounds())

    def _lag_of_position(self, position: int, bounds: Bounds) -> int | None:
        if position < 0:
            return None
        if self._engine.read_only:
            return max(0, bounds.high_watermark - position)
        return max(0, end_offset(bounds, self._isolation) - position)

    def _current_bounds(self, cursor: Cursor) -> Bounds | None:
        """The offsets of a partition; None if it has no leader now."""
        if not self._engine.replicated:
            return cursor.partition.bounds()
        try:
            with bound_waits(system.boot_ns()):
                return cursor.partition.bounds()
        except (LeaderNotAvailableError, LockTimeoutError):
            return None

    # ---- source of the registry ------------------------------------------------------------------

    def counters(self) -> tuple[Mapping[str, float], Mapping[str, float]]:
        fetcher = self._reading.fetcher
        waiter = self._reading.waiter
        rotation = self._reading.rotation
        unread = (
            sum(cursor.ahead_count + cursor.dropped_count for cursor in rotation)
            + rotation.dropped_count
        )
        totals = {
            "byte": fetcher.size_bytes,
            "fetch": fetcher.fetch_count,
            "fetch_s": fetcher.spent_s,
            "fetched": fetcher.record_count,
            "gap": max(0, waiter.poll_count - 1),
            "gap_s": waiter.poll_began - waiter.first_began,
            "idle_s": waiter.idle_s,
            "record": fetcher.record_count - unread,
        }
        peaks = {}
        if fetcher.size_max_bytes:
            peaks = {"byte": float(fetcher.size_max_bytes), "fetch_s": fetcher.spent_max_s}
        if waiter.poll_gap_max_s:
            peaks["gap_s"] = waiter.poll_gap_max_s
        fetcher.size_max_bytes = 0
        fetcher.spent_max_s = 0.0
        waiter.poll_gap_max_s = 0.0
        return totals, peaks

    def rotate_window(self) -> None:
        for cursor in self._reading.rotation:
            cursor.lag.rotate_window()
            cursor.lead.rotate_window()

    # ---- report ----------------------------------------------------------------------------------

    def report(self) -> dict[str, Any]:
        self._metrics.turn()  # first: the partitions have the windows of the registry
        partitions = {
            cursor.tp: self._report_partition(cursor) for cursor in self._reading.rotation
        }
        lags = [
            partition["records-lag"]
            for partition in partitions.values()
            if partition["records-lag"] is not None
        ]
        leads = [
            partition["records-lead"]
            for partition in partitions.values()
            if partition["records-lead"] is not None
        ]
        return {
            "assigned-partitions": len(partitions),
            "partitions": partitions,
            "records-lag-max": max(lags, default=None),
            "records-lead-min": min(leads, default=None),
            **self._report_fetches(),
            **self._report_polls(),
        }

    def _report_fetches(self) -> dict[str, Any]:
        metrics = self._metrics
        return {
            "bytes-consumed-rate": metrics.rate("byte"),
            "bytes-consumed-total": int(metrics.total("byte")),
            "fetch-latency-avg": milliseconds(metrics.mean("fetch_s", "fetch", None)),
            "fetch-latency-max": milliseconds(metrics.peak("fetch_s", None)),
            "fetch-rate": metrics.rate("fetch"),
            "fetch-size-avg": metrics.mean("byte", "fetch", None),
            "fetch-size-max": metrics.peak("byte", None),
            "fetch-total": int(metrics.total("fetch")),
            "records-consumed-rate": metrics.rate("record"),
            "records-consumed-total": int(metrics.total("record")),
            "records-per-request-avg": metrics.mean("fetched", "fetch", None),
        }

    def _report_polls(self) -> dict[str, Any]:
        metrics = self._metrics
        waiter = self._reading.waiter
        return {
            "last-poll-seconds-ago": time.monotonic() - waiter.poll_began
            if waiter.poll_count
            else None,
            "poll-idle-ratio-avg": min(1.0, metrics.rate("idle_s")),
            "time-between-poll-avg": milliseconds(metrics.mean("gap_s", "gap", None)),
            "time-between-poll-max": milliseconds(metrics.peak("gap_s", None)),
        }

    def _report_partition(self, cursor: Cursor) -> dict[str, Any]:
        position = cursor.position
        bounds = self._current_bounds(cursor)
        lead = None if position < 0 or bounds is None else max(0, position - bounds.log_start)
        lag_mean, _, lag_max = cursor.lag.summarize()
        lead_mean, lead_min, _ = cursor.lead.summarize()
        return {
            "position": None if position < 0 else position,
            "records-lag": None if bounds is None else self._lag_of_position(position, bounds),
            "records-lag-avg": lag_mean,
            "records-lag-max": lag_max,
            "records-lead": lead,
            "records-lead-avg": lead_mean,
            "records-lead-min": lead_min,
        }
