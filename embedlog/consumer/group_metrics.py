"""What a member of a group tells of its rebalances, under Kafka's names.

GROUPMETRICS-1  a rebalance begins when a member prepares to join and ends with its assignment; joining ends when everybody has
    joined
GROUPMETRICS-2  averages, rates and greatest values are over the consumer's life; times are in ms unless the name says seconds
"""

from __future__ import annotations

import time
from typing import Any

from embedlog._native import system


class _Times:
    """How often something took how long."""

    def __init__(self) -> None:
        self.count = 0
        self.total_s = self.most_s = 0.0

    def note(self, spent_s: float) -> None:
        self.count += 1
        self.total_s += spent_s
        self.most_s = max(self.most_s, spent_s)

    @property
    def average_ms(self) -> float | None:
        return self.total_s * 1000 / self.count if self.count else None

    @property
    def most_ms(self) -> float | None:
        return self.most_s * 1000 if self.count else None


class Rebalances:
    """Counts and times of one member. Threads: the consumer's own."""

    def __init__(self) -> None:
        self.failed_count = 0
        self._all, self._joins, self._syncs = _Times(), _Times(), _Times()
        self._joining = False
        self._began: float | None = None
        self._phase_began: float | None = None
        self._last: float | None = None

    def begin(self) -> None:
        """A member prepares to join."""
        self._phase_began = time.monotonic()
        self._joining = True
        if self._began is None:
            self._began = self._phase_began

    def joined(self) -> None:
        """The join phase is over."""
        if self._joining and self._phase_began is not None:
            now = time.monotonic()
            self._joins.note(now - self._phase_began)
            self._phase_began, self._joining = now, False

    def complete(self) -> None:
        """There is an assignment."""
        self._last = time.monotonic()
        if self._phase_began is not None:
            self._syncs.note(self._last - self._phase_began)
        if self._began is not None:
            self._all.note(self._last - self._began)
        self._began = self._phase_began = None

    def fail(self) -> None:
        """This member lost its place."""
        self.failed_count += 1
        self._joining = False
        self._began = self._phase_began = None

    def metrics(self, life_s: float) -> dict[str, Any]:
        """Kafka's figures on rebalances."""
        return {
            "failed-rebalance-total": self.failed_count,
            "join-time-avg": self._joins.average_ms,
            "join-time-max": self._joins.most_ms,
            "join-total": self._joins.count,
            "last-rebalance-seconds-ago": None if self._last is None else time.monotonic() - self._last,
            "rebalance-latency-avg": self._all.average_ms,
            "rebalance-latency-max": self._all.most_ms,
            "rebalance-latency-total": self._all.total_s * 1000,
            "rebalance-rate-per-hour": self._all.count * 3600 / life_s,
            "rebalance-total": self._all.count,
            "sync-time-avg": self._syncs.average_ms,
            "sync-time-max": self._syncs.most_ms,
            "sync-total": self._syncs.count,
        }


def heartbeats(lease: Any, session_timeout_ms: int, interval_ms: int) -> dict[str, Any]:
    """Kafka's metrics of heartbeats. A thread of the core writes them: known are its interval, and how old the last one is."""
    ago_s = None
    if lease is not None and not lease.lapsed:
        ago_s = session_timeout_ms / 1000 - (int(lease.good_until_ns) - system.boot_ns()) / 1e9
    rate = 0.0 if ago_s is None else 1000 / interval_ms
    return {"heartbeat-rate": rate, "last-heartbeat-seconds-ago": None if ago_s is None else max(0.0, ago_s)}


__all__ = ["Rebalances", "heartbeats"]
