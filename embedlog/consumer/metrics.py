"""Consumer metrics by Kafka's names.

CONSUMERMETRICS-1  totals count from the start; rates, means and maxima cover recent windows
    (METRICS-1); times are in ms unless the name contains a unit
CONSUMERMETRICS-2  a report reads the control page of each partition; counting adds nothing to a
    fetch but sums in attributes
CONSUMERMETRICS-3  lag is counted to the end that this isolation level reads. In a read-only log it
    is counted to the high watermark. A reader there cannot end an open transaction, so the lag must
    show the wait for one
CONSUMERMETRICS-4  a report waits for no partition. Lag and lead are None while a partition has no
    leader
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from embedlog._metrics import milliseconds
from embedlog._native import system
from embedlog.consumer.collector import Collector
from embedlog.consumer.positions import Cursor
from embedlog.errors import LeaderNotAvailableError, LockTimeoutError
from embedlog.format.visibility import end_offset
from embedlog.storage.call_deadline import bounded_waits

if TYPE_CHECKING:
    from embedlog.engine import Engine
    from embedlog.partition.log_context import Bounds


class ConsumerMetrics:
    """The metrics of one consumer, and the source of its registry. Threads: the consumer's own."""

    def __init__(self, engine: Engine, reading: Collector, isolation: str) -> None:
        self._engine = engine
        self._reading = reading
        self._isolation = isolation
        self._metrics = reading.waiting.metrics
        self._metrics.source = self

    def lag(self, cursor: Cursor) -> int | None:
        """Offsets between the position and the end; None before there is a position. Raises
        LeaderNotAvailableError.
        """
        return self._lag_to(cursor.position, cursor.partition.bounds())

    def _lag_to(self, position: int, bounds: Bounds) -> int | None:
        end = (
            bounds.high_watermark if self._engine.read_only else end_offset(bounds, self._isolation)
        )
        return None if position < 0 else max(0, end - position)

    def _present_bounds(self, cursor: Cursor) -> Bounds | None:
        """The offsets of a partition; None if it has no leader now (CONSUMERMETRICS-4)."""
        if not self._engine.replicated:
            return cursor.partition.bounds()
        try:
            with bounded_waits(system.boot_ns()):
                return cursor.partition.bounds()
        except (LeaderNotAvailableError, LockTimeoutError):
            return None

    # ---- source of the registry ------------------------------------------------------------------

    def counters(self) -> tuple[Mapping[str, float], Mapping[str, float]]:
        fetcher = self._reading.fetcher
        waiting = self._reading.waiting
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
            "gap": max(0, waiting.poll_count - 1),
            "gap_s": waiting.poll_began - waiting.first_began,
            "idle_s": waiting.idle_s,
            "record": fetcher.record_count - unread,
        }
        peaks = {}
        if fetcher.size_max_bytes:
            peaks = {"byte": float(fetcher.size_max_bytes), "fetch_s": fetcher.spent_max_s}
        if waiting.poll_gap_max_s:
            peaks["gap_s"] = waiting.poll_gap_max_s
        fetcher.size_max_bytes = 0
        fetcher.spent_max_s = 0.0
        waiting.poll_gap_max_s = 0.0
        return totals, peaks

    def rotate_window(self) -> None:
        for cursor in self._reading.rotation:
            cursor.lag.rotate_window()
            cursor.lead.rotate_window()

    # ---- report ----------------------------------------------------------------------------------

    def all(self) -> dict[str, Any]:
        self._metrics.turn()  # first: the partitions have the windows of the registry
        partitions = {cursor.tp: self._of(cursor) for cursor in self._reading.rotation}
        lags = [
            known["records-lag"]
            for known in partitions.values()
            if known["records-lag"] is not None
        ]
        leads = [
            known["records-lead"]
            for known in partitions.values()
            if known["records-lead"] is not None
        ]
        return {
            "assigned-partitions": len(partitions),
            "partitions": partitions,
            "records-lag-max": max(lags, default=None),
            "records-lead-min": min(leads, default=None),
            **self._fetches(),
            **self._polls(),
        }

    def _fetches(self) -> dict[str, Any]:
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

    def _polls(self) -> dict[str, Any]:
        metrics = self._metrics
        waiting = self._reading.waiting
        return {
            "last-poll-seconds-ago": time.monotonic() - waiting.poll_began
            if waiting.poll_count
            else None,
            "poll-idle-ratio-avg": min(1.0, metrics.rate("idle_s")),
            "time-between-poll-avg": milliseconds(metrics.mean("gap_s", "gap", None)),
            "time-between-poll-max": milliseconds(metrics.peak("gap_s", None)),
        }

    def _of(self, cursor: Cursor) -> dict[str, Any]:
        position = cursor.position
        bounds = self._present_bounds(cursor)
        lead = None if position < 0 or bounds is None else max(0, position - bounds.log_start)
        lag_mean, _, lag_max = cursor.lag.recent()
        lead_mean, lead_min, _ = cursor.lead.recent()
        return {
            "position": None if position < 0 else position,
            "records-lag": None if bounds is None else self._lag_to(position, bounds),
            "records-lag-avg": lag_mean,
            "records-lag-max": lag_max,
            "records-lead": lead,
            "records-lead-avg": lead_mean,
            "records-lead-min": lead_min,
        }
