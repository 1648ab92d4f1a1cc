"""Contains `OffsetMap`: which target offset a source offset has, for one partition, in a bounded
number of ranges.

- A range is a number of records with consecutive offsets at both sides; each range has a number,
  from 0 on.
- A range is stored in the slot that its number gives, and replaces the range there.
- The first range and the last `2 * SLOTS` are kept; of those that are n ranges old, about every (n
  / SLOTS)-th.
- A translated offset is never after the exact one: a reader at the target repeats records and omits
  none.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from embedlog.mirror.sides import TargetSpan

SLOTS = 512
LEVEL_MAX = 40


class OffsetRange(NamedTuple):
    """`length` records from source offset `source` on have the target offsets from `target` on."""

    number: int
    source: int
    target: int
    length: int


def slot_of(number: int) -> tuple[int, int]:
    """The level and the slot of a range."""
    if number == 0:
        return LEVEL_MAX, 0
    level = min((number & -number).bit_length() - 1, LEVEL_MAX - 1)
    return level, (number >> (level + 1)) % SLOTS


def ranges_between(
    first_number: int, offsets: Sequence[int], spans: Sequence[TargetSpan]
) -> Iterator[OffsetRange]:
    """The ranges of one piece: its source offsets, and what the target assigned."""
    number = first_number
    row = 0
    for base, count in spans:
        end = row + count
        while row < end:
            last = _end_of_consecutive(offsets, row, end)
            yield OffsetRange(number, offsets[row], base + count - (end - row), last - row)
            number = number + 1
            row = last


def _end_of_consecutive(offsets: Sequence[int], start: int, end: int) -> int:
    """The end of the rows from `start` on that have consecutive offsets."""
    if offsets[end - 1] - offsets[start] == end - 1 - start:
        return end
    # the rows up to `low` are consecutive, those up to `high` are not
    low = start
    high = end - 1
    while high - low > 1:
        middle = (low + high) // 2
        if offsets[middle] - offsets[start] == middle - start:
            low = middle
        else:
            high = middle
    return high


class OffsetMap:
    """The ranges of one partition."""

    def __init__(self) -> None:
        self._slots: dict[tuple[int, int], OffsetRange] = {}
        self._sorted: list[OffsetRange] | None = []
        self.next_number = 0

    def add(self, offset_range: OffsetRange) -> None:
        self._slots[slot_of(offset_range.number)] = offset_range
        self.next_number = max(self.next_number, offset_range.number + 1)
        self._sorted = None

    def discard(self, level: int, slot: int) -> None:
        """Forget the range of a slot."""
        self._slots.pop((level, slot), None)
        self._sorted = None

    @property
    def ranges(self) -> list[OffsetRange]:
        """The stored ranges in order."""
        if self._sorted is None:
            self._sorted = sorted(self._slots.values())
        return self._sorted

    def translate(self, offset: int) -> int | None:
        """The target offset for a reader that is at a source offset; None if no record was copied."""
        ranges = self.ranges
        if not ranges:
            return None
        number = bisect_right(ranges, offset, key=lambda offset_range: offset_range.source) - 1
        if number < 0:
            return ranges[0].target  # before the first copied record
        offset_range = ranges[number]
        if offset < offset_range.source + offset_range.length:
            return offset_range.target + offset - offset_range.source
        if number + 1 < len(ranges) and ranges[number + 1].number == offset_range.number + 1:
            return ranges[number + 1].target  # between two ranges there is no record
        return offset_range.target + offset_range.length
