"""Metrics of a group member, by Kafka's names: rebalances, commits and heartbeats.

- A rebalance begins when a member prepares to join and ends with its assignment; joining ends when
  all have joined.
- Times are in ms unless the name contains a unit.
"""

from __future__ import annotations

import time
from typing import Any

from embedlog._native import system
from embedlog.telemetry.metrics import Metrics, milliseconds


class Rebalances:
    """Counts the rebalances of one member and their phases. Threads: the consumer's own."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
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

    def end_join(self) -> None:
        """The join phase is over."""
        if self._joining and self._phase_began is not None:
            now = time.monotonic()
            self._add("join", now - self._phase_began)
            self._phase_began = now
            self._joining = False

    def complete(self) -> None:
        """There is an assignment."""
        self._last = time.monotonic()
        if self._phase_began is not None:
            self._add("sync", self._last - self._phase_began)
        if self._began is not None:
            self._add("rebalance", self._last - self._began)
        self._began = self._phase_began = None

    def fail(self) -> None:
        """The group removed this member."""
        self._metrics.add({"failed_rebalance": 1})
        self._joining = False
        self._began = self._phase_began = None

    def _add(self, name: str, spent_s: float) -> None:
        self._metrics.add({name: 1, f"{name}_s": spent_s}, {f"{name}_s": spent_s})

    def report(self) -> dict[str, Any]:
        """Kafka's metrics of rebalances."""
        metrics = self._metrics
        return {
            "failed-rebalance-total": int(metrics.total("failed_rebalance")),
            "join-time-avg": milliseconds(metrics.mean("join_s", "join", None)),
            "join-time-max": milliseconds(metrics.peak("join_s", None)),
            "join-total": int(metrics.total("join")),
            "last-rebalance-seconds-ago": None
            if self._last is None
            else time.monotonic() - self._last,
            "rebalance-latency-avg": milliseconds(metrics.mean("rebalance_s", "rebalance", None)),
            "rebalance-latency-max": milliseconds(metrics.peak("rebalance_s", None)),
            "rebalance-latency-total": metrics.total("rebalance_s") * 1000,
            "rebalance-rate-per-hour": metrics.rate("rebalance") * 3600,
            "rebalance-total": int(metrics.total("rebalance")),
            "sync-time-avg": milliseconds(metrics.mean("sync_s", "sync", None)),
            "sync-time-max": milliseconds(metrics.peak("sync_s", None)),
            "sync-total": int(metrics.total("sync")),
        }


def report_commits(metrics: Metrics) -> dict[str, Any]:
    """Kafka's metrics of commits."""
    return {
        "commit-latency-avg": milliseconds(metrics.mean("commit_s", "commit", None)),
        "commit-latency-max": milliseconds(metrics.peak("commit_s", None)),
        "commit-rate": metrics.rate("commit"),
        "commit-total": int(metrics.total("commit")),
        "commit-sync-time-ns-total": int(metrics.total("commit_sync_s") * 1e9),
        "committed-time-ns-total": int(metrics.total("committed_s") * 1e9),
    }


def report_heartbeats(lease: Any, session_timeout_ms: int, interval_ms: int) -> dict[str, Any]:
    """Kafka's metrics of heartbeats. A thread of the C core sends them: known are its interval and
    the age of the last one.
    """
    ago_s = None
    if lease is not None and not lease.is_expired:
        ago_s = session_timeout_ms / 1000 - (int(lease.good_until_ns) - system.boot_ns()) / 1e9
    rate = 0.0 if ago_s is None else 1000 / interval_ms
    return {
        "heartbeat-rate": rate,
        "last-heartbeat-seconds-ago": None if ago_s is None else max(0.0, ago_s),
    }


__all__ = ["Rebalances", "report_commits", "report_heartbeats"]
