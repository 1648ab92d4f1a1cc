"""Compares records that are read with the chain digest that their appenders wrote, up to the
published end.

- A chain digest is known at the start of a DIGESTED segment, and at an index entry with a valid
  record.
- It is compared at every record passed and at the published end; a read ends where it can be
  compared.
- Before a bad batch only batches up to a matching record count: the damage may have begun earlier.
  A batch that the read cuts off is bad, too, if it reaches over the place of a record or the end of
  the segment.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

from embedlog._native.scope import scope
from embedlog.errors import CorruptRecordError, StorageError
from embedlog.format.record_batch import Batches, Problem, Scanned
from embedlog.index import IndexEntry
from embedlog.partition.state import PartitionState
from embedlog.storage import file_names, interval_digests
from embedlog.storage.manifest import SegmentInfo


def corruption_of(path: Path, problem: Problem, start: int = 0) -> CorruptRecordError:
    """The error for a problem at or after byte `start` of a file."""
    return CorruptRecordError(
        problem.message,
        path=path,
        position=start + problem.position,
        expected=problem.expected,
        found=problem.found,
    )


class DigestCheck:
    """The digests of the segments of one partition, for its reader. Threads: any."""

    def __init__(self, state: PartitionState) -> None:
        self._state = state
        self._directory = str(state.path)

    @scope
    def _open_records(self, info: SegmentInfo, number: int) -> Iterator[interval_digests.Records]:
        """The digests of a segment from a number on; none if there are no more, or if their file is
        missing.
        """
        handles = self._state.context.handles
        handle = None
        if number < info.index_entries:
            try:
                handle = handles.acquire(self._directory, info.base, file_names.DIGESTS)
            except StorageError as problem:
                if problem.errno != errno.ENOENT:
                    raise
        if handle is None:
            yield interval_digests.Records(-1, info.base, 0)
            return
        with handle as fd:
            yield interval_digests.Records(fd, info.base, info.index_entries)

    def seed(self, info: SegmentInfo, entry: IndexEntry) -> interval_digests.State | None:
        """The chain digest at an index entry, None if it is not known."""
        if not info.digested:
            return None
        with self._open_records(info, entry.number) as records:
            return records.state_at(entry.number, entry.position)

    def reach(
        self,
        info: SegmentInfo,
        digest_state: interval_digests.State | None,
        position: int,
        want: int,
        spare: int,
    ) -> int:
        """Bytes to read so that the last of them can be compared: about `want`, at most `spare`
        more.
        """
        if digest_state is None or position + want >= info.size:
            return want
        if digest_state.number >= info.index_entries:
            end = info.size  # after the last record
        else:
            with self._open_records(info, digest_state.number) as records:
                end = records.reach(digest_state, position + want, info.size)
        return end - position if end and end - position <= want + spare else want

    def compare(
        self,
        path: Path,
        info: SegmentInfo,
        digest_state: interval_digests.State | None,
        data: memoryview,
        scanned: Scanned,
    ) -> tuple[Batches, interval_digests.State | None]:
        """The batches that are as their appenders wrote them, and the chain after them. Raises
        CorruptRecordError.
        """
        batches = scanned.batches
        if digest_state is None:
            return batches, None
        with self._open_records(info, digest_state.number) as records:
            after, problem = records.compare(digest_state, data, batches)
            bad = scanned.problem
            if bad is None and scanned.need and after.agreed < after.position:
                bad = self._find_overlong(info, records, after, scanned)
            if problem is None and bad is not None and after.agreed < after.position:
                batches = batches[batches["position"] < after.agreed - digest_state.position]
                if not len(batches):
                    raise corruption_of(path, bad, digest_state.position)
                after, problem = records.compare(digest_state, data, batches)
        if (
            problem is None
            and after.position == info.size
            and after.digest != info.digest
            and not self._has_grown(info)
        ):
            problem = Problem(
                after.position,
                interval_digests.OTHERS,
                f"digest {info.digest:016x}",
                f"{after.digest:016x}",
            )
        if problem is not None:
            raise corruption_of(path, problem)
        return batches, after

    @staticmethod
    def _find_overlong(
        info: SegmentInfo,
        records: interval_digests.Records,
        after: interval_digests.State,
        scanned: Scanned,
    ) -> Problem | None:
        """The problem of a cut-off batch after these ones whose size is wrong: another batch, or
        nothing, begins inside of it.
        """
        end = min(after.position + scanned.need - 1, info.size)
        limit = records.reach(after, after.position, end)
        if not limit and end == info.size:
            limit = end
        if not limit:
            return None
        return Problem(
            scanned.consumed,
            "a batch ends after the next one begins",
            f"{limit - after.position} bytes at most",
            f"{scanned.need} bytes",
        )

    def _has_grown(self, info: SegmentInfo) -> bool:
        """Whether the segment is active and has grown since `info` was read."""
        published = self._state.published()
        return published.segment_base == info.base and published.segment_size != info.size
