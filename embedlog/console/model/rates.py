"""Computes rates of records and bytes from two observations of partitions.

RATES-1  a rate needs two observations of the same partition; a partition of a new topic with the
    same name has none
RATES-2  deleted segments are no negative rate: the bytes of a partition have no rate if its start
    has moved
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

    records: float | None = None
    size_bytes: float | None = None


UNKNOWN = Rate()


class Rates:
    """The rates between the last two observations. For one thread."""

    def __init__(self) -> None:
        self._time_s = 0.0
        self._levels: dict[tuple[str, int], Level] = {}
        self._rates: dict[tuple[str, int], Rate] = {}

    def observe(self, time_s: float, levels: Mapping[tuple[str, int], Level]) -> None:
        """Take the present levels, observed at a time of a monotonic clock."""
        passed_s = time_s - self._time_s
        if self._levels and passed_s <= 0:
            return
        self._rates = {
            place: _rate(self._levels.get(place), level, passed_s)
            for place, level in levels.items()
        }
        self._time_s = time_s
        self._levels = dict(levels)

    def of(self, places: Iterable[tuple[str, int]]) -> Rate:
        """The sum of partitions; a part that is not known does not count."""
        found = [self._rates.get(place, UNKNOWN) for place in places]
        return Rate(_sum(each.records for each in found), _sum(each.size_bytes for each in found))


def _rate(before: Level | None, now: Level, passed_s: float) -> Rate:
    if before is None or before.identity != now.identity:
        return UNKNOWN
    records = max(now.end_offset - before.end_offset, 0) / passed_s
    grown = now.size_bytes - before.size_bytes
    if before.start_offset != now.start_offset or grown < 0:
        return Rate(records, None)
    return Rate(records, grown / passed_s)


def _sum(parts: Iterable[float | None]) -> float | None:
    known = [part for part in parts if part is not None]
    return sum(known) if known else None
