"""Points at which a range of offsets is divided into pieces of about equal size, for workers that
read at the same time.

- The pieces follow on each other without a gap and cover the range, even if an index is wrong.
- A point is between two batches, so that no batch is decoded twice; a piece is larger where no
  index has an entry.
- Only index entries are read: a point costs about twenty reads of eight bytes.
"""

from __future__ import annotations

from typing import NamedTuple

from embedlog._native.system import Published
from embedlog.partition.reader import Reader
from embedlog.partition.segment_list import SegmentList


class SplitPoint(NamedTuple):
    """The end of a piece, which begins at the end of the piece before."""

    offset: int
    size_bytes: int  # of the piece, about


def split_points(
    segments: SegmentList,
    reader: Reader,
    start: int,
    end: int,
    *,
    max_bytes: int,
    count: int | None = None,
) -> list[SplitPoint]:
    """The ends of the first `count` pieces between two offsets, of all without it; none if the
    range is empty.

    Raises UnknownTopicOrPartitionError.
    """
    if end <= start:
        return []
    return reader.read_consistently(
        lambda published: _find_points(segments, reader, published, start, end, max_bytes, count)
    )


def _find_points(
    segments: SegmentList,
    reader: Reader,
    published: Published,
    start: int,
    end: int,
    max_bytes: int,
    count: int | None,
) -> list[SplitPoint]:
    pieces = _Pieces(start, end)
    for info in segments.since(start, published):
        if info.base >= end:
            continue
        position = 0
        if start > info.base:
            position = reader.find_entry(info, start).position
        last = info.size
        if end < info.next_offset:
            last = reader.find_entry(info, end).position
        last = max(position, last)
        while pieces.size + last - position > max_bytes:
            if count is not None and len(pieces.points) >= count:
                return pieces.points
            cut = reader.find_cut(info, position + max_bytes - pieces.size, position)
            if (
                cut is not None
                and cut.position_bound < last
                and pieces.cut(cut.offset, cut.position_bound - position)
            ):
                position = cut.position_bound
            elif pieces.size == 0 or not pieces.cut(info.base, 0):
                break  # no entry in it: the rest of this segment stays together
        pieces.size += last - position
    pieces.cut(end, 0)
    return pieces.points


class _Pieces:
    """The points so far, and the beginning of the next piece."""

    def __init__(self, start: int, end: int) -> None:
        self.points: list[SplitPoint] = []
        self.size = 0  # of the piece that is being made
        self._start = start
        self._end = end

    def cut(self, offset: int, size: int) -> bool:
        """End a piece at this offset, `size` bytes after those counted; False if nothing would be
        left in it.
        """
        if not self._start < offset <= self._end:
            return False
        self.points.append(SplitPoint(offset, self.size + size))
        self._start = offset
        self.size = 0
        return True
