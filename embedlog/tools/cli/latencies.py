"""Contains `Latencies`: counts and latencies of acknowledged records, in the lines of
kafka-producer-perf-test.

There is a line for each 5 seconds, and one at the end.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from embedlog import Future

SAMPLES_MAX = 500_000
WINDOW_S = 5.0
PERCENTILES = {"50th": 0.5, "95th": 0.95, "99th": 0.99, "99.9th": 0.999}
MIB = 1024 * 1024


class _Sums:
    """Records, bytes and latencies since `began`."""

    def __init__(self, began: float) -> None:
        self.began = began
        self.count = 0
        self.size = 0
        self.total_ms = 0.0
        self.max_ms = 0.0

    def add(self, size: int, latency_ms: float) -> None:
        """Count one record."""
        self.count += 1
        self.size += size
        self.total_ms += latency_ms
        self.max_ms = max(self.max_ms, latency_ms)

    def rates(self, now: float) -> tuple[float, float, float]:
        """Records and MiB per second, and the mean latency in ms."""
        elapsed = max(now - self.began, 0.001)
        return self.count / elapsed, self.size / elapsed / MIB, self.total_ms / max(self.count, 1)


class Latencies:
    """Latencies of `expected` records. Totals count all of them; percentiles are those of at most
    `SAMPLES_MAX`, at equal distances. Threads: any.
    """

    def __init__(self, expected: int, label: str = "") -> None:
        self._label = label
        self._lock = threading.Lock()
        self._sample_interval = max(1, expected // SAMPLES_MAX)
        self._samples: list[float] = []
        self._all = _Sums(time.monotonic())
        self._window = _Sums(self._all.began)
        self._latency_count = 0
        self.failed = 0
        self.first_failure: BaseException | None = None

    @property
    def count(self) -> int:
        """Acknowledged records."""
        return self._all.count

    def count_record(self, sent: float, size: int, future: Future[Any]) -> None:
        """Count one record of `size` bytes that was sent at the monotonic time `sent`."""
        now = time.monotonic()
        error = future.exception()
        with self._lock:
            if error is not None:
                self.failed += 1
                self.first_failure = self.first_failure or error
                return
            latency_ms = (now - sent) * 1000
            self._all.add(size, latency_ms)
            self._window.add(size, latency_ms)
            if self._latency_count % self._sample_interval == 0:
                self._samples.append(latency_ms)
            self._latency_count += 1

    def window_line(self) -> str | None:
        """The line of the current window, which then ends; None before its time."""
        now = time.monotonic()
        if now - self._window.began < WINDOW_S:
            return None
        with self._lock:
            window = self._window
            self._window = _Sums(now)
        records, mib, mean = window.rates(now)
        return (
            f"{window.count} records sent, {records:.1f} records/sec ({mib:.2f} MB/sec), "
            f"{mean:.1f} ms avg latency, {window.max_ms:.1f} ms max latency."
        )

    def percentiles(self) -> dict[str, int]:
        """Latencies in whole milliseconds, by the names of PERCENTILES."""
        with self._lock:
            ordered = sorted(self._samples) or [0.0]
        return {
            name: int(ordered[int(share * len(ordered))]) for name, share in PERCENTILES.items()
        }

    def total_line(self) -> str:
        """The line of all records."""
        records, mib, mean = self._all.rates(time.monotonic())
        shares = ", ".join(f"{value} ms {name}" for name, value in self.percentiles().items())
        return (
            f"{self.count}{self._label} records sent, {records:f} records/sec ({mib:.2f} MB/sec), "
            f"{mean:.2f} ms avg latency, {self._all.max_ms:.2f} ms max latency, {shares}."
        )

    def totals(self) -> dict[str, Any]:
        """The figures of `total_line` for JSON."""
        records, mib, mean = self._all.rates(time.monotonic())
        latency = {"avg": mean, "max": self._all.max_ms, **self.percentiles()}
        return {
            "records": self.count,
            "records_per_sec": records,
            "mb_per_sec": mib,
            "latency_ms": latency,
        }
