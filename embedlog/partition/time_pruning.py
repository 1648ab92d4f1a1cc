"""What a reader with bounds in time need not read: whole segments, and the end of a partition.

N1  what is left out is proved to hold nothing within the bounds; where nothing is known, everything is read
N2  a segment knows a time below which none of its records lies, and its lateness: how much older at most a record is than one in
    a batch before its own. So nothing behind a batch of time `end + lateness` or later is older than `end`, and the time index
    leads to such a batch
N3  an index entry proves nothing: the batch that it leads to does
N4  both hold for offsets, and compaction only takes records away: what was proved once stays true
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from embedlog import index
from embedlog.errors import CorruptRecordError, OffsetOutOfRangeError, StorageError
from embedlog.format.record_columns import OFFSET_MAX
from embedlog.storage import file_names

if TYPE_CHECKING:
    from embedlog.partition.reader import Reader
    from embedlog.partition.segment_list import SegmentList
    from embedlog.partition.state import PartitionState
    from embedlog.storage.manifest import SegmentInfo


class TimePruning:
    """Of one partition. Threads: any."""

    def __init__(self, state: PartitionState, segments: SegmentList, reader: Reader) -> None:
        self._state, self._segments, self._reader = state, segments, reader

    def end(self, first: int, last: int, end_ms: int) -> int:
        """An offset from `first` to `last`: no record from there up to `last` is older than `end_ms`.

        REQUIRES: both were in the log before.
        """
        now = self._state.published()
        self._state.check_deleted()
        for info in reversed(self._segments.since(first, now)):
            if info.base < last and info.min_timestamp < end_ms:
                return min(last, max(first, self._end_in(info, max(first, now.log_start), last, end_ms)))
            last = min(last, info.base)
        return max(first, last)

    def _end_in(self, info: SegmentInfo, first: int, last: int, end_ms: int) -> int:
        """The same within a segment; its end where nothing is proved."""
        bound_ms = end_ms + info.lateness_ms
        if info.min_timestamp < 0 or info.max_timestamp < bound_ms:
            return info.next_offset
        found = self._reaching(info, bound_ms)
        if not first <= found < min(last, info.next_offset):
            return info.next_offset
        with contextlib.suppress(CorruptRecordError, OffsetOutOfRangeError):  # who reads meets it
            batches = self._reader.fetch(found, max_bytes=1, committed=False, upto=None, pool=None).batches
            if len(batches) and batches["base_offset"][0] <= found and batches["max_timestamp"][0] >= bound_ms:
                return int(batches["base_offset"][0]) + int(batches["last_offset_delta"][0]) + 1
        return info.next_offset

    def _reaching(self, info: SegmentInfo, time_ms: int) -> int:
        """The last offset of the first batch of this time or later, as far as the index knows. REQUIRES: there is one."""
        try:
            with self._reader.handles.borrow(str(self._state.path), info.base, file_names.TIME_INDEX) as fd:
                found = index.time_ceiling(fd, info.time_entries, info.base, time_ms)
        except (StorageError, CorruptRecordError) as problem:
            if isinstance(problem, StorageError) and problem.errno != 2:
                raise
            found = None  # no index: time is lost, not data
        return info.max_timestamp_offset if found is None else found

    def skip(self, offset: int, start_ms: int, end_ms: int) -> int:
        """Where a reader at `offset` goes on: behind its segment, if that holds nothing between the times."""
        if start_ms <= 0 and end_ms == OFFSET_MAX:
            return offset
        now = self._state.published()
        if not now.log_start <= offset < now.log_end:
            return offset  # reading there says what is wrong
        info = self._segments.at(offset, now)
        outside = 0 <= info.max_timestamp < start_ms or end_ms <= info.min_timestamp
        return max(offset, info.next_offset) if outside else offset
