"""Finds the segments and the end of a partition that a reader with time bounds need not read.

- An omitted range provably has no record within the bounds; without proof everything is read.
- A segment has a lower bound of its timestamps, and a lateness. The lateness is the largest time by
  which a record is older than one in an earlier batch. So no record after a batch of time `end +
  lateness` or later is older than `end`, and the time index leads to such a batch.
- An index entry proves nothing; the batch to which it points does.
- Both hold for offsets, and compaction only removes records, so a proof stays valid.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from embedlog import index
from embedlog.errors import CorruptRecordError, OffsetOutOfRangeError, StorageError
from embedlog.format.record_columns import OFFSET_MAX
from embedlog.storage import file_names

if TYPE_CHECKING:
    from embedlog._native.system import Published
    from embedlog.partition.reader import Reader
    from embedlog.partition.segment_list import SegmentList
    from embedlog.partition.state import PartitionState
    from embedlog.storage.manifest import SegmentInfo


class TimePruning:
    """The time bounds of the segments of one partition. Threads: any."""

    def __init__(self, state: PartitionState, segments: SegmentList, reader: Reader) -> None:
        self._state = state
        self._segments = segments
        self._reader = reader

    def end(self, first: int, last: int, end_ms: int) -> int:
        """An offset from `first` to `last`: no record from there up to `last` is older than
        `end_ms`.

        REQUIRES: both offsets were in the log before.
        """

        def end_in(published: Published) -> int:
            bound = last
            for info in reversed(self._segments.since(first, published)):
                if info.base < bound and info.min_timestamp < end_ms:
                    start = max(first, published.log_start)
                    end = self._find_end(info, start, bound, end_ms)
                    return min(bound, max(first, end))
                bound = min(bound, info.base)
            return max(first, bound)

        return self._reader.read_consistently(end_in)

    def _find_end(self, info: SegmentInfo, first: int, last: int, end_ms: int) -> int:
        """As `end`, within a segment; its end if nothing is proved."""
        bound_ms = end_ms + info.lateness_ms
        if info.min_timestamp < 0 or info.max_timestamp < bound_ms:
            return info.next_offset
        offset = self._find_reaching(info, bound_ms)
        if not first <= offset < min(last, info.next_offset):
            return info.next_offset
        # the reader gets the same error
        with contextlib.suppress(CorruptRecordError, OffsetOutOfRangeError):
            fetched = self._reader.fetch(offset, max_bytes=1, committed=False, upto=None, pool=None)
            if len(fetched.batches):
                batch = fetched.batches[0]
                if batch["base_offset"] <= offset and batch["max_timestamp"] >= bound_ms:
                    return int(batch["base_offset"]) + int(batch["last_offset_delta"]) + 1
        return info.next_offset

    def _find_reaching(self, info: SegmentInfo, time_ms: int) -> int:
        """The last offset of the first batch of this time or later, by the index. REQUIRES: there
        is one.
        """
        try:
            with self._reader.handles.acquire(
                str(self._state.path), info.base, file_names.TIME_INDEX
            ) as fd:
                offset = index.time_ceiling(fd, info.time_entries, info.base, time_ms)
        except (StorageError, CorruptRecordError) as problem:
            if isinstance(problem, StorageError) and problem.errno != 2:
                raise
            offset = None  # no index: time is lost, not data
        if offset is None:
            return info.max_timestamp_offset
        return offset

    def skip(self, offset: int, start_ms: int, end_ms: int) -> int:
        """The offset at which a reader continues: after its segment, if that has no record between
        the times.
        """
        if start_ms <= 0 and end_ms == OFFSET_MAX:
            return offset

        def skip_in(published: Published) -> int:
            if not published.log_start <= offset < published.log_end:
                return offset  # a read at it raises the right error
            info = self._segments.at(offset, published)
            if 0 <= info.max_timestamp < start_ms or end_ms <= info.min_timestamp:
                return max(offset, info.next_offset)
            return offset

        return self._reader.read_consistently(skip_in)
