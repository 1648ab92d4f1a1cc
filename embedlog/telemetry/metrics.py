"""Contains the registry of metrics that producers and consumers share: totals, and rates, means and
maxima of recent windows.

- Recent values are kept in windows, two of half a minute by default, as in Kafka's clients. The
  oldest window is dropped when the newest one is full. So every rate, mean and maximum covers the
  last 30 to 60 seconds by default.
- Counting takes one lock per call, not per record; a client that counts in attributes of its own
  gives them as a source.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

WINDOW_S = 30.0  # Kafka's metrics.sample.window.ms
WINDOW_COUNT = 2  # Kafka's metrics.num.samples

Empty = TypeVar("Empty", float, None)


class Source(Protocol):
    """Counters that a client keeps outside of the registry, because they are on a hot path."""

    def counters(self) -> tuple[Mapping[str, float], Mapping[str, float]]:
        """Totals since the start, and maxima since the last call."""

    def rotate_window(self) -> None:
        """A new window begins; the oldest one is dropped if there are too many."""


class _Window:
    """The totals at its begin, and the maxima since then."""

    def __init__(self, began: float, totals: Mapping[str, float]) -> None:
        self.began = began
        self.totals = dict(totals)
        self.peaks: dict[str, float] = {}


class Metrics:
    """Totals and maxima by name. Threads: any; with a source, those of the source."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        *,
        window_s: float = WINDOW_S,
        window_count: int = WINDOW_COUNT,
    ) -> None:
        self.source: Source | None = None
        self._clock = clock
        # a signal handler may close the client, and count, in the middle of a count
        self._lock = threading.RLock()
        self._totals: defaultdict[str, float] = defaultdict(float)
        self._window_s = window_s
        self._window_count = window_count
        self._windows = [_Window(clock(), self._totals)]  # the oldest one first
        # when the newest window is full, on the same clock
        self.due = self._windows[0].began + window_s

    def add(self, amounts: Mapping[str, float], peaks: Mapping[str, float] | None = None) -> None:
        """Add to totals, and raise maxima to at least `peaks`."""
        with self._lock:
            if self._clock() >= self.due:
                self._rotate_locked()
            for name, amount in amounts.items():
                self._totals[name] += amount
            if peaks:
                self._raise_locked(peaks)

    def turn(self) -> None:
        """Begin a new window if the newest one is full. For clients with a source, at least once
        per window while they count.
        """
        with self._lock:
            if self._clock() >= self.due:
                self._rotate_locked()

    def spent(self, name: str, seconds: float) -> None:
        """Add the duration of a call."""
        self.add({f"{name}_s": seconds})

    # ---- values ----------------------------------------------------------------------------------

    def total(self, name: str) -> float:
        """The total since the start."""
        with self._lock:
            self._update_locked()
            return self._totals[name]

    def rate(self, name: str) -> float:
        """The recent amount per second."""
        with self._lock:
            self._update_locked()
            spent = self._clock() - self._windows[0].began
            return self._recent_locked(name) / spent if spent > 0 else 0.0

    def mean(self, name: str, per: str, empty: Empty) -> float | Empty:
        """The quotient of two recent amounts; `empty` if the divisor is 0."""
        with self._lock:
            self._update_locked()
            divisor = self._recent_locked(per)
            return self._recent_locked(name) / divisor if divisor else empty

    def peak(self, name: str, empty: Empty) -> float | Empty:
        """The recent maximum; `empty` if there was no value."""
        with self._lock:
            self._update_locked()
            return max(
                (window.peaks[name] for window in self._windows if name in window.peaks),
                default=empty,
            )

    def _recent_locked(self, name: str) -> float:
        return self._totals[name] - self._windows[0].totals.get(name, 0.0)

    def _update_locked(self) -> None:
        if self._clock() >= self.due:
            self._rotate_locked()
        elif self.source is not None:
            self._pull_locked(self.source)

    def _raise_locked(self, peaks: Mapping[str, float]) -> None:
        highest = self._windows[-1].peaks
        for name, value in peaks.items():
            highest[name] = max(value, highest.get(name, value))

    def _pull_locked(self, source: Source) -> None:
        totals, peaks = source.counters()
        self._totals.update(totals)
        self._raise_locked(peaks)

    def _rotate_locked(self) -> None:
        """What the source counted until now belongs to the window that ends. An idle client has
        several empty ones since then.
        """
        now_s = self._clock()
        window_s = self._window_s
        elapsed_windows = int((now_s - self._windows[-1].began) / window_s)
        new_windows = min(self._window_count, max(elapsed_windows, 1))
        if self.source is not None:
            self._pull_locked(self.source)
            for _ in range(new_windows):
                self.source.rotate_window()
        self._windows += [
            _Window(now_s - before * window_s, self._totals)
            for before in reversed(range(new_windows))
        ]
        del self._windows[: -self._window_count]
        self.due = now_s + window_s


def milliseconds(seconds: float | None) -> float | None:
    """A time in Kafka's unit; None stays None."""
    return None if seconds is None else seconds * 1000
