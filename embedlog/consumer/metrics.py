"""What a consumer tells of itself, under Kafka's names.

CONSUMERMETRICS-1  rates, averages and greatest values are over the consumer's life; times are in ms unless the name says seconds
CONSUMERMETRICS-2  asking costs a look at each partition's page; being asked costs the reading nothing
CONSUMERMETRICS-3  lag is counted to the end that this isolation level sees, but for a log opened read-only: nobody but others can
    end a transaction there, so what it keeps back counts, and a reader that is stuck shows a lag
"""

from __future__ import annotations

import time
from typing import Any

from embedlog.consumer.collector import Reading
from embedlog.consumer.positions import Cursor
from embedlog.format.visibility import end_offset


class ConsumerMetrics:
    """The figures of one consumer. Threads: the consumer's own."""

    def __init__(self, log: Any, reading: Reading, isolation: str) -> None:
        self._log = log
        self._reading = reading
        self._isolation = isolation

    def lag(self, cursor: Cursor) -> int | None:
        """Offsets between the position and the end; None before there is a position."""
        position, bounds = cursor.position, cursor.partition.bounds()
        end = bounds.high_watermark if self._log.read_only else end_offset(bounds, self._isolation)
        return None if position < 0 else max(0, end - position)

    def all(self) -> dict[str, Any]:
        partitions = {cursor.tp: self._of(cursor) for cursor in self._reading.rotation}
        lags = [known["records-lag"] for known in partitions.values() if known["records-lag"] is not None]
        leads = [known["records-lead"] for known in partitions.values() if known["records-lead"] is not None]
        return {
            "assigned-partitions": len(partitions),
            "partitions": partitions,
            "records-lag-max": max(lags, default=None),
            "records-lead-min": min(leads, default=None),
            **self._fetches(),
            **self._polls(),
        }

    def _fetches(self) -> dict[str, Any]:
        fetcher, rotation = self._reading.fetcher, self._reading.rotation
        kept = sum(cursor.ahead_count + cursor.dropped_count for cursor in rotation) + rotation.dropped_count
        records, count = fetcher.record_count - kept, fetcher.fetch_count
        life_s = max(time.monotonic() - self._reading.waiting.made, 1e-9)
        return {
            "bytes-consumed-rate": fetcher.size_bytes / life_s,
            "bytes-consumed-total": fetcher.size_bytes,
            "fetch-latency-avg": fetcher.spent_s * 1000 / count if count else None,
            "fetch-latency-max": fetcher.spent_max_s * 1000 if count else None,
            "fetch-rate": count / life_s,
            "fetch-size-avg": fetcher.size_bytes / count if count else None,
            "fetch-size-max": fetcher.size_max_bytes if count else None,
            "fetch-total": count,
            "records-consumed-rate": records / life_s,
            "records-consumed-total": records,
            "records-per-request-avg": fetcher.record_count / count if count else None,
        }

    def _polls(self) -> dict[str, Any]:
        waiting, now = self._reading.waiting, time.monotonic()
        count, life_s = waiting.poll_count, max(now - waiting.made, 1e-9)
        return {
            "last-poll-seconds-ago": now - waiting.poll_began if count else None,
            "poll-idle-ratio-avg": min(1.0, waiting.idle_s / life_s),
            "time-between-poll-avg": (waiting.poll_began - waiting.first_began) * 1000 / (count - 1) if count > 1 else None,
            "time-between-poll-max": waiting.poll_gap_max_s * 1000 if count > 1 else None,
        }

    def _of(self, cursor: Cursor) -> dict[str, Any]:
        position = cursor.position
        lead = None if position < 0 else max(0, position - int(cursor.partition.bounds().log_start))
        return {
            "position": None if position < 0 else position,
            "records-lag": self.lag(cursor),
            "records-lag-avg": cursor.lag.average,
            "records-lag-max": cursor.lag.most if cursor.lag.count else None,
            "records-lead": lead,
            "records-lead-avg": cursor.lead.average,
            "records-lead-min": cursor.lead.least if cursor.lead.count else None,
        }
