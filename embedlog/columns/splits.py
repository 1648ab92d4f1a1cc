"""Cuts what a scan reads into pieces of about equal size, for workers that read at the same time.

SPLIT-1  the pieces of a partition follow on each other without a gap and cover what the scan covers, whatever the indexes say
SPLIT-2  a cut lies between two batches, so that no batch is decoded twice; only where no index has an entry is a piece larger
SPLIT-3  nothing but index entries is read: a cut costs some twenty reads of eight bytes
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Split(NamedTuple):
    """One piece: offsets `start_offset` up to, not with, `end_offset` of a partition, about `size_bytes` in the log."""

    partition: int
    start_offset: int
    end_offset: int
    size_bytes: int


def splits(partition: Any, start: int, end: int, max_bytes: int) -> list[Split]:
    """The pieces of one open partition between two offsets; none if there is nothing between them.

    Raises UnknownTopicOrPartitionError.
    """
    pieces = _Pieces(partition.number, start, end)
    for info in _segments(partition, start, end):
        reader = partition.reader
        position = reader.place(info, start).position if start > info.base else 0
        last = max(position, reader.place(info, end).position if end < info.next_offset else info.size)
        while pieces.size + last - position > max_bytes:
            cut = reader.cut(info, position + max_bytes - pieces.size, position)
            if cut is not None and cut.position < last and pieces.cut(cut.offset, cut.position - position):
                position = cut.position
            elif pieces.size == 0 or not pieces.cut(info.base, 0):
                break  # no entry in it: the rest of this segment stays together
        pieces.size += last - position
    pieces.cut(end, 0)
    return pieces.made


class _Pieces:
    """Those that are made, and where the next one begins."""

    def __init__(self, number: int, start: int, end: int) -> None:
        self.made: list[Split] = []
        self.size = 0  # of the piece that is being made
        self._number, self._start, self._end = number, start, end

    def cut(self, offset: int, more: int) -> bool:
        """Ends a piece at this offset, `more` bytes behind what was counted; False if that would leave nothing in it."""
        if not self._start < offset <= self._end:
            return False
        self.made.append(Split(self._number, self._start, offset, self.size + more))
        self._start, self.size = offset, 0
        return True


def _segments(partition: Any, start: int, end: int) -> list[Any]:
    """Those that hold something between the offsets."""
    if end <= start:
        return []
    now = partition.published()
    partition.check_deleted()
    return [info for info in partition.segments.since(start, now) if info.base < end]
