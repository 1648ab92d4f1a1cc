"""Computes rates of records and bytes from two observations of partitions.

A rate needs two observations of the same partition; a partition of a new topic with the same name
has none. Deleted segments are no negative rate: the bytes of a partition have no rate if its start
has moved.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple


class Level(NamedTuple):
    """What was observed of a partition."""

    identity: str  # of the topic
    start_offset: int
    end_offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Rate:
    """Records and bytes per second; None if it is not known."""

    records_per_s: float | None = None
    bytes_per_s: float | None = None


UNKNOWN = Rate()


class Rates:
    """The rates between the last two observations. For one thread."""

    def __init__(self) -> None:
        self._time_s = 0.0
        self._levels: dict[tuple[str, int], Level] = {}
        self._rates: dict[tuple[str, int], Rate] = {}

    def observe(self, time_s: float, levels: Mapping[tuple[str, int], Level]) -> None:
        """Take the current levels, observed at a time of a monotonic clock."""
        passed_s = time_s - self._time_s
        if self._levels and passed_s <= 0:
            return
        self._rates = {
            partition: _rate_between(self._levels.get(partition), level, passed_s)
            for partition, level in levels.items()
        }
        self._time_s = time_s
        self._levels = dict(levels)

    def of(self, partitions: Iterable[tuple[str, int]]) -> Rate:
        """The sum of partitions; a part that is not known does not count."""
        rates = [self._rates.get(partition, UNKNOWN) for partition in partitions]
        return Rate(
            _sum_known(rate.records_per_s for rate in rates),
            _sum_known(rate.bytes_per_s for rate in rates),
        )


def _rate_between(earlier: Level | None, level: Level, passed_s: float) -> Rate:
    if earlier is None or earlier.identity != level.identity:
        return UNKNOWN
    records = max(level.end_offset - earlier.end_offset, 0) / passed_s
    growth = level.size_bytes - earlier.size_bytes
    if earlier.start_offset != level.start_offset or growth < 0:
        return Rate(records, None)
    return Rate(records, growth / passed_s)


def _sum_known(parts: Iterable[float | None]) -> float | None:
    values = [part for part in parts if part is not None]
    return sum(values) if values else None
