"""Contains `OffsetMap`: which target offset a source offset has, for one partition, in a bounded
number of runs.

- A run is a number of records with consecutive offsets at both sides; each run has a number, from 0
  on.
- A run is stored in the slot that its number gives, and replaces the run there.
- The first run and the last `2 * SLOTS` are kept; of those that are n runs old, about every (n /
  SLOTS)-th.
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


class OffsetRun(NamedTuple):
    """`length` records from source offset `source` on have the target offsets from `target` on."""

    number: int
    source: int
    target: int
    length: int


def slot_of(number: int) -> tuple[int, int]:
    """The level and the slot of a run."""
    if number == 0:
        return LEVEL_MAX, 0
    level = min((number & -number).bit_length() - 1, LEVEL_MAX - 1)
    return level, (number >> (level + 1)) % SLOTS


def runs_between(
    first_number: int, offsets: Sequence[int], spans: Sequence[TargetSpan]
) -> Iterator[OffsetRun]:
    """The runs of one piece: its source offsets, and what the target assigned."""
    number = first_number
    row = 0
    for base, count in spans:
        end = row + count
        while row < end:
            last = _end_of_consecutive(offsets, row, end)
            yield OffsetRun(number, offsets[row], base + count - (end - row), last - row)
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
    """The runs of one partition."""

    def __init__(self) -> None:
        self._slots: dict[tuple[int, int], OffsetRun] = {}
        self._sorted: list[OffsetRun] | None = []
        self.next_number = 0

    def add(self, run: OffsetRun) -> None:
        self._slots[slot_of(run.number)] = run
        self.next_number = max(self.next_number, run.number + 1)
        self._sorted = None

    def discard(self, level: int, slot: int) -> None:
        """Forget the run of a slot."""
        self._slots.pop((level, slot), None)
        self._sorted = None

    @property
    def runs(self) -> list[OffsetRun]:
        """The stored runs in order."""
        if self._sorted is None:
            self._sorted = sorted(self._slots.values())
        return self._sorted

    def translate(self, offset: int) -> int | None:
        """The target offset for a reader that is at a source offset; None if no record was copied."""
        runs = self.runs
        if not runs:
            return None
        number = bisect_right(runs, offset, key=lambda run: run.source) - 1
        if number < 0:
            return runs[0].target  # before the first copied record
        run = runs[number]
        if offset < run.source + run.length:
            return run.target + offset - run.source
        if number + 1 < len(runs) and runs[number + 1].number == run.number + 1:
            return runs[number + 1].target  # between two runs there is no record
        return run.target + run.length
