"""Records a `History`: the end offsets of topics and the lags of groups at several times.

- A value is measured, never guessed: what a report does not know is a gap in its line.
- Memory is bounded: the oldest observation is dropped first.
- A rate comes from the difference of end offsets, so it counts the appends of all processes.
  Deletion of records changes no end. An end that fell is that of a topic that was created again: the
  rate is not known.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, Final, NamedTuple, Protocol

OBSERVATIONS_MAX: Final = 10_000


class HasMetrics(Protocol):
    """What is needed of a log."""

    def metrics(self, *, include_internal: bool = False) -> dict[str, Any]: ...
    def topics(self, include_internal: bool = False) -> list[str]: ...


class Observation(NamedTuple):
    """The end offsets of topics, summed over their partitions, and the lags of groups, at one time;
    the internal topics.

    The lag of a group is None while that of one of its partitions is not known.
    """

    time_s: float
    ends: Mapping[str, int]
    lags: Mapping[str, int | None]
    internal: frozenset[str] = frozenset()


class History:
    """Observations of a log. Each call of `observe` adds one. Threads: one at a time.

    Examples:
        >>> history = History(log)                                              # doctest: +SKIP
        >>> for _ in range(60):                                                 # doctest: +SKIP
        ...     history.observe()
        ...     time.sleep(1)
        >>> plot.lag(history)                                                   # doctest: +SKIP
    """

    def __init__(
        self,
        log: HasMetrics,
        *,
        count_max: int = OBSERVATIONS_MAX,
        clock_s: Callable[[], float] = time.time,
    ) -> None:
        self._log = log
        self._clock_s = clock_s
        self._observations: deque[Observation] = deque(maxlen=count_max)

    def __repr__(self) -> str:
        text = f"{len(self._observations)} observations"
        if self._observations:
            seconds = self._observations[-1].time_s - self._observations[0].time_s
            text += f" in {seconds:.1f} s"
        return f"<embedlog.plot.History: {text}>"

    def observe(self) -> Observation:
        """Add the current state, and return it. Raises ClosedError."""
        metrics = self._log.metrics(include_internal=True)
        ends: dict[str, int | None] = {}
        for (topic, _), gauges in metrics["partitions"].items():
            before = ends.get(topic, 0)
            end = gauges["LogEndOffset"]
            # None as soon as the end of one partition is not known
            ends[topic] = None if before is None or end is None else before + end
        all_topics = frozenset(self._log.topics(include_internal=True))
        observation = Observation(
            time_s=self._clock_s(),
            ends={topic: end for topic, end in ends.items() if end is not None},
            lags={group: gauges["records-lag"] for group, gauges in metrics["groups"].items()},
            internal=all_topics.difference(self._log.topics()),
        )
        self._observations.append(observation)
        return observation

    @property
    def observations(self) -> list[Observation]:
        """The observations in the order of time."""
        return list(self._observations)

    def internal(self) -> frozenset[str]:
        """The names of the observed internal topics (`__consumer_offsets`, …)."""
        return frozenset().union(*(observation.internal for observation in self._observations))

    def lags(self) -> dict[str, list[tuple[float, float]]]:
        """The lag of each group in records, by time; NaN while it is not known."""
        return self._make_lines(lambda observation: observation.lags)

    def ends(self, *, include_internal: bool = False) -> dict[str, list[tuple[float, float]]]:
        """The sum of the end offsets of each topic, by time; NaN while it is not known. Internal
        topics only if requested.
        """
        hidden = frozenset() if include_internal else self.internal()
        lines = self._make_lines(lambda observation: observation.ends)
        return {topic: line for topic, line in lines.items() if topic not in hidden}

    def rates(self, *, include_internal: bool = False) -> dict[str, list[tuple[float, float]]]:
        """Offsets per second of each topic between two observations, at the time of the second one;
        NaN if one is not known.

        Internal topics only if requested.
        """
        ends = self.ends(include_internal=include_internal)
        return {topic: _rates_of(line) for topic, line in ends.items()}

    def _make_lines(
        self, values: Callable[[Observation], Mapping[str, int | None]]
    ) -> dict[str, list[tuple[float, float]]]:
        names = {name for observation in self._observations for name in values(observation)}
        lines = {}
        for name in sorted(names):
            lines[name] = [
                (observation.time_s, _or_nan(values(observation).get(name)))
                for observation in self._observations
            ]
        return lines


def _rates_of(line: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The rise per second between two points of a line, at the time of the second one; NaN if it
    fell.
    """
    rates = []
    for (before_s, start), (after_s, end) in pairwise(line):
        if after_s > before_s:
            rise = _or_nan(None) if end < start else end - start
            rates.append((after_s, rise / (after_s - before_s)))
    return rates


def _or_nan(value: int | None) -> float:
    return float("nan") if value is None else value
