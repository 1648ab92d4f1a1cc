"""Producer metrics by Kafka's names: totals since the start, and rates, means and maxima of the last minute.

PRODUCERMETRICS-1  a value is kept in two windows of half a minute each, as in Kafka's clients: the older window is dropped when
    the newer one is full, so a rate covers the last 30 to 60 seconds
PRODUCERMETRICS-2  counting costs one lock per append, not per record
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping

WINDOW_S = 30.0  # Kafka's metrics.sample.window.ms, of which it keeps two


class _Window:
    """Sums and maxima since `began`."""

    def __init__(self, began: float) -> None:
        self.began = began
        self.sums: defaultdict[str, float] = defaultdict(float)
        self.peaks: dict[str, float] = {}


class Figures:
    """Records the values of the metrics. Threads: any."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._totals: defaultdict[str, float] = defaultdict(float)
        self._newer = _Window(clock())
        self._older = self._newer

    def note(self, amounts: Mapping[str, float], peaks: Mapping[str, float] | None = None) -> None:
        """Add to sums, and raise maxima to at least `peaks`."""
        with self._lock:
            window = self._window_locked()
            for name, amount in amounts.items():
                self._totals[name] += amount
                window.sums[name] += amount
            for name, value in (peaks or {}).items():
                window.peaks[name] = max(value, window.peaks.get(name, value))

    def blocked(self, seconds: float) -> None:
        """Record the duration of a wait for memory."""
        self.note({"blocked_s": seconds})

    def spent(self, what: str, seconds: float) -> None:
        """Record the duration of a call."""
        self.note({f"{what}_s": seconds})

    def total(self, name: str) -> float:
        """The sum since the start."""
        with self._lock:
            return self._totals[name]

    def rate(self, name: str) -> float:
        """The recent amount per second."""
        with self._lock:
            self._window_locked()
            spent = self._clock() - self._older.began
            return self._lately_locked(name) / spent if spent > 0 else 0.0

    def mean(self, name: str, per: str, empty: float = 0.0) -> float:
        """The quotient of two recent sums; `empty` if the divisor is 0."""
        with self._lock:
            self._window_locked()
            divisor = self._lately_locked(per)
            return self._lately_locked(name) / divisor if divisor else empty

    def peak(self, name: str) -> float:
        """The recent maximum."""
        with self._lock:
            self._window_locked()
            return max(window.peaks.get(name, 0.0) for window in (self._older, self._newer))

    def _lately_locked(self, name: str) -> float:
        older = 0.0 if self._older is self._newer else self._older.sums[name]
        return older + self._newer.sums[name]

    def _window_locked(self) -> _Window:
        """The current window. REQUIRES the lock."""
        now = self._clock()
        if now - self._newer.began >= WINDOW_S:
            self._older = self._newer if now - self._newer.began < 2 * WINDOW_S else _Window(now - WINDOW_S)
            self._newer = _Window(now)
        return self._newer


def producer_metrics(figures: Figures) -> dict[str, float]:
    """The metrics that depend on recorded values only."""
    counted = {"record-send": "record", "record-error": "error", "record-retry": "retry", "batch-split": "split",
               "byte": "byte", "batch": "batch", "request": "request"}  # fmt: skip
    calls = {"flush": "flush", "txn-init": "init", "txn-begin": "begin", "txn-send-offsets": "send_offsets",
             "txn-commit": "commit", "txn-abort": "abort", "bufferpool-wait": "blocked"}  # fmt: skip
    return {
        **{f"{name}-total": figures.total(each) for name, each in counted.items()},
        **{f"{name}-rate": figures.rate(each) for name, each in counted.items()},
        **{f"{name}-time-ns-total": figures.total(f"{each}_s") * 1e9 for name, each in calls.items()},
        "batch-size-avg": figures.mean("byte", "batch"),
        "batch-size-max": figures.peak("batch_byte"),
        "records-per-request-avg": figures.mean("record", "request"),
        "record-queue-time-avg": figures.mean("queue_s", "parcel") * 1e3,
        "record-queue-time-max": figures.peak("queue_s") * 1e3,
        "request-latency-avg": figures.mean("latency_s", "request") * 1e3,
        "request-latency-max": figures.peak("latency_s") * 1e3,
        "compression-rate-avg": figures.mean("packed_byte", "plain_byte", empty=1.0),
        "bufferpool-wait-ratio": figures.rate("blocked_s"),
    }
