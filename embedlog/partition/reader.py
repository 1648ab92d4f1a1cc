"""Reads a partition: from an offset or a time to whole, checked batches.

- Nothing at or above the published end is read. The generation is read again after every read of
  batches and of the transaction index that judges them. A read during which it changed is repeated.
- An index entry is used only if the batch there agrees; else the segment is read from its start.
- Every batch passes its CRC, follows on the one before, and carries the epoch that the epoch cache
  has for its offset.
- The chain digest is the digest of all batches of a segment up to a position; a digest record
  stores it for an index entry. A reader knows it at the start of a segment and at each digest
  record. It compares it at every later record and at the published end, before it returns a batch.
  A read ends where the digest can be compared.
- A missing file means that the list of segments is outdated: it is read again once before an error.
- A fetch of 0 bytes reads one batch in one call (`ShortReads`). Unusual cases and findings are
  left to a fetch of DEFAULT_BYTES.
- A read from the offset after that of an index entry begins at the next entry, if its batch follows
  and begins there.

A read of a segment has an `_Entrance`, the first of these that exists:

| entrance | its first batch must | if that is another one |
| --- | --- | --- |
| continuation of an earlier fetch | begin at the offset, without gaps | the segment is damaged |
| entry after that of the search | have its last offset, and begin at the offset | read from the entry of the search |
| entry of the search | have its last offset | the index is wrong: read from the segment's start |
| start of the segment | begin at the segment's base, without gaps | the segment is damaged |
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from embedlog import index
from embedlog._native import system
from embedlog._native.lazy_numpy import np
from embedlog._native.system import Published
from embedlog.errors import CorruptRecordError, OffsetOutOfRangeError, StorageError, in_file
from embedlog.format.compression import LIMIT_BYTES
from embedlog.format.record_batch import (
    Batches,
    Chain,
    Scanned,
    Window,
    batch_dtype,
    decode_some,
    joined,
    scan,
)
from embedlog.format.record_columns import RELATIVE_MAX
from embedlog.index import IndexEntry
from embedlog.partition.continuations import Continuation, Continuations
from embedlog.partition.digest_check import DigestCheck, corruption_of
from embedlog.partition.epoch_check import EpochCheck
from embedlog.partition.point_reads import PointReads, ShortReads
from embedlog.partition.segment_info import active_info
from embedlog.partition.tail import BUFFER_BYTES as TAIL_BYTES
from embedlog.partition.tail import Tail
from embedlog.storage import file_names, files, interval_digests
from embedlog.storage.descriptors import Handles
from embedlog.storage.manifest import DIGESTED, GAPLESS, SegmentInfo
from embedlog.types import OffsetAndTimestamp

if TYPE_CHECKING:
    from embedlog.format.buffer_pool import BufferPool
    from embedlog.partition.aborted_index import AbortedIndex
    from embedlog.partition.segment_list import SegmentList
    from embedlog.partition.state import PartitionState

T = TypeVar("T")

HEADER_BYTES: Final = 61
DEFAULT_BYTES: Final = 1 << 20
# for the rest of the last batch, which is at most `max.message.bytes` by default
SPARE_BYTES: Final = 1_100_000
AGAIN_BYTES_MIN: Final = 64 << 10  # a shorter rest is read again with the next fetch
NO_ENTRY: Final = IndexEntry(-1, -1, 0)  # no index entry


@dataclass(slots=True, eq=False, repr=False)
class Fetched:
    """Whole batches as on disk. `batches["position"]` counts from the start of `data`, which is
    byte `position` of `path`.
    """

    data: memoryview
    batches: Batches
    next_offset: int
    path: Path
    position: int
    # (producer id, first offset) of transactions that were aborted
    aborted: list[tuple[int, int]] = field(default_factory=list)
    decompressed_max: int = LIMIT_BYTES  # a limit for the uncompressed records of one batch
    offset: int = -1  # set by a copy to another replica: the offset from which it was read


class _Entrance(NamedTuple):
    """Where a read of a segment begins: the table of the module."""

    entry: IndexEntry  # NO_ENTRY: at a continuation, or at the start of the segment
    continuation: Continuation
    first_offset: int = -1  # that the batch of `entry` must have; -1: any


def _select_useful(batches: Batches, offset: int, limit: int) -> Batches:
    """The batches that reach to `offset` and begin below the limit: nearly always all."""
    bases = batches["base_offset"]
    deltas = batches["last_offset_delta"]
    if bases[0] + deltas[0] >= offset and bases[-1] < limit:
        return batches
    useful: Batches = batches[(bases + deltas >= offset) & (bases < limit)]
    return useful


class Reader:
    """Fetches from one partition. Threads: any number at a time."""

    def __init__(
        self,
        state: PartitionState,
        segments: SegmentList,
        aborted: AbortedIndex,
        await_replacement: Callable[[], Published],
    ) -> None:
        """`await_replacement` waits for a moment when no segment is being replaced."""
        self._state = state
        self._segments = segments
        self.aborted = aborted
        self._await_replacement = await_replacement
        self._directory = str(state.path)
        self.handles: Handles = state.context.handles
        self._continuations = Continuations()
        self.epochs = EpochCheck(state)
        self._digests = DigestCheck(state)
        self._generation = 0
        self._path = (-1, state.path)
        self._short_reads = ShortReads(self.handles, self._directory)
        self.points = PointReads(state, segments, self.epochs, self._continuations, self.notice)

    def forget(self) -> None:
        """Drop all cached content: the files may have been replaced."""
        self.handles.forget(self._directory)
        self._continuations.clear()
        self.epochs.forget()
        self.points.forget()

    # ---- by offset -------------------------------------------------------------------------------

    def fetch(
        self,
        offset: int,
        *,
        max_bytes: int,
        committed: bool,
        upto: int | None,
        pool: BufferPool | None,
        whole: bool = False,
    ) -> Fetched:
        """Batches from the one that holds `offset`, at least one if there is any below the limit.

        The limit is the high watermark, or with `whole` the log end; with `committed` no more than
        the first unstable offset; and no more than `upto`. A batch that begins below the limit is
        returned as a whole. All batches are of one segment.

        `max_bytes`: about the bytes that are read from the file; a larger first batch is read as a
        whole. 0 is for a caller that takes few records: the batch of `offset` alone, where the
        short read serves it, otherwise DEFAULT_BYTES. `pool` lends the memory of the data, for as
        long as something refers to the result.

        Raises OffsetOutOfRangeError for an offset below the log start or above the log end (at the
        end itself the result is empty), CorruptRecordError, StorageError, also if files keep being
        replaced, LockTimeoutError if the replacement of files does not end before the deadline of
        the partition, and UnknownTopicOrPartitionError after the deletion of the topic.
        """

        def fetch_in(published: Published) -> Fetched:
            if offset < published.log_start or offset > published.log_end:
                problem = f"{self._state.name} has no offset {offset}"
                expected = f"{published.log_start} to {published.log_end}"
                raise OffsetOutOfRangeError(
                    problem, path=self._state.path, expected=expected, found=offset
                )
            fetched = self._fetch(
                offset,
                self._limit_of(published, committed, upto, whole),
                published,
                max_bytes,
                pool,
            )
            if committed and len(fetched.batches):
                fetched.aborted = self.aborted.between(
                    int(fetched.batches["base_offset"][0]), fetched.next_offset, published
                )
            return fetched

        return self.read_consistently(fetch_in)

    def read_consistently(self, work: Callable[[Published], T]) -> T:
        """The result of `work` while no file is replaced. Results and errors of other moments are
        dropped.

        Retention and rolls replace no file, so a result beside them counts; an error beside them is
        of another moment.
        """
        until = 0
        has_missed = False
        while True:
            published = self._read_published()
            self._state.check_deleted()
            try:
                result = work(published)
                # else the files may be those of a new topic of this name
                self._state.check_deleted()
                if self._state.published().generation == published.generation:
                    return result
            except (StorageError, CorruptRecordError) as problem:
                self._state.check_deleted()
                current = self._state.published()
                is_missing = isinstance(problem, StorageError) and problem.errno == errno.ENOENT
                is_same_list = self._segments_key(current) == self._segments_key(published)
                # the list in memory may be outdated: a missing file is an error the second time
                if is_same_list and (has_missed or not is_missing):
                    raise
                has_missed = True
            self._forget_files()
            until = until or self._state.deadline()
            if system.boot_ns() > until:
                raise StorageError(
                    "the files of this partition keep changing during a read", path=self._state.path
                )

    @staticmethod
    def _segments_key(published: Published) -> tuple[int, int, int]:
        """What the list of segments depends on."""
        return published.generation, published.log_start, published.segment_base

    def _limit_of(
        self, published: Published, committed: bool, upto: int | None, whole: bool = False
    ) -> int:
        limit = published.log_end if whole else published.high_watermark
        if committed and published.first_unstable >= 0:
            limit = min(limit, published.first_unstable)
        if upto is not None:
            limit = min(limit, upto)
        return limit

    def _read_published(self) -> Published:
        """The published tuple at a moment when no file is being replaced. Files opened before a
        replacement are forgotten.

        Raises LockTimeoutError.
        """
        published = self._state.published()
        if published.generation % 2:
            published = self._await_replacement()
        self.notice(published.generation)
        return published

    def notice(self, generation: int) -> None:
        """Forget files that were opened before a replacement, unless that was done for this
        generation.
        """
        if generation != self._generation:
            self._forget_files()
            self._generation = generation

    def _forget_files(self) -> None:
        self._segments.forget()
        self.forget()

    def _fetch(
        self, offset: int, limit: int, published: Published, max_bytes: int, pool: BufferPool | None
    ) -> Fetched:
        info = self._segments.at(offset, published)
        while offset < limit:
            fetched = self._fetch_from_segment(info, offset, limit, max_bytes, pool)
            if fetched is not None:
                return fetched
            following = self._segments.after(info.base, published)
            if following is None:
                break
            info = following
        return Fetched(
            memoryview(b""),
            np.empty(0, batch_dtype()),
            max(offset, min(limit, published.high_watermark)),
            self._state.path,
            0,
        )

    def _fetch_from_segment(
        self, info: SegmentInfo, offset: int, limit: int, max_bytes: int, pool: BufferPool | None
    ) -> Fetched | None:
        """Batches of this segment that reach to `offset` or beyond, None if it has none."""
        if not max_bytes:
            fetched = self._read_short(info, offset, limit, pool)
            if fetched is not None:
                return fetched
        continuation = self._continuations.take(offset)
        entry = NO_ENTRY
        first_offset = -1
        next_offset = offset  # at which the next batch must begin, without gaps; -1: any
        if continuation is None or continuation.base != info.base:
            entry, continuation, first_offset = self._enter(info, offset)
            next_offset = -1
        path = self._segment_path(info.base)
        while continuation.position < info.size:
            chain = self._chain_of(info, continuation, next_offset)
            data, scanned = self._read(
                path, info, continuation, chain, max_bytes or DEFAULT_BYTES, pool
            )
            if entry.number >= 0 and not entry.begins(scanned.batches, first_offset):
                if first_offset < 0:
                    entry, continuation, first_offset = self._enter_at(info, NO_ENTRY)
                else:
                    search_entry = self.find_entry(info, offset)
                    entry, continuation, first_offset = self._enter_at(info, search_entry)
                continue
            self._check_first(path, info, continuation, scanned)
            batches, digest_state_after = self._digests.compare(
                path, info, continuation.digest_state, data, scanned
            )
            self.epochs.check(path, batches, continuation.position)
            end = continuation.position + scanned.consumed
            if digest_state_after is not None:
                end = digest_state_after.position
            after = Continuation(
                info.base, end, int(batches["leader_epoch"][-1]), digest_state_after
            )
            useful = _select_useful(batches, offset, limit)
            if len(useful):
                return self._finish_fetch(useful, batches, data, path, continuation, after)
            continuation = after
            entry = NO_ENTRY
            next_offset = -1
            if int(batches["base_offset"][-1]) >= limit:
                break
        return None

    def _segment_path(self, base: int) -> Path:
        """The name of a segment, which messages use; made once for the segment that is read."""
        cached_base, path = self._path
        if cached_base != base:
            path = file_names.segment_path(self._state.path, base)
            self._path = base, path
        return path

    def _read_short(
        self, info: SegmentInfo, offset: int, limit: int, pool: BufferPool | None
    ) -> Fetched | None:
        """The batch that holds `offset`; None if the general way must read it."""
        if not info.index_entries:
            return None
        short_read = self._short_reads.read(info, offset, pool)
        if short_read is None or short_read.batch.first_offset >= limit:
            return None
        batch = short_read.batch
        rows = short_read.rows
        path = self._segment_path(info.base)
        end = batch.position + batch.size
        if not self.epochs.is_latest(batch.epoch, int(rows["base_offset"][0])):
            self.epochs.check(path, rows, batch.position)
        if batch.row == batch.batch_count - 1:
            digest_state = None
            if info.digested:
                digest_state = interval_digests.State(batch.number, end, batch.digest, end)
            after = Continuation(info.base, end, int(rows["leader_epoch"][-1]), digest_state)
            self._continuations.put(batch.last_offset + 1, after)
        return Fetched(
            short_read.data,
            rows[batch.row : batch.row + 1],
            batch.last_offset + 1,
            path,
            batch.position,
            decompressed_max=self._state.context.decompressed_max,
        )

    @staticmethod
    def _start_of(info: SegmentInfo) -> Continuation:
        digest_state = interval_digests.State() if info.digested else None
        return Continuation(info.base, 0, -1, digest_state)

    def _enter(self, info: SegmentInfo, offset: int) -> _Entrance:
        """Where a read without a continuation begins."""
        entry = self.find_entry(info, offset)
        if entry.number >= 0 and entry.last_offset == offset - 1:
            following = self._find_adjacent(info, entry)
            if following is not None:
                return self._enter_at(info, following, offset)
        return self._enter_at(info, entry)

    def _find_adjacent(self, info: SegmentInfo, entry: IndexEntry) -> IndexEntry | None:
        """The next index entry, if its batch directly follows that of `entry`."""
        if entry.number + 1 >= info.index_entries:
            return None
        with self.handles.acquire(self._directory, info.base, file_names.LOG) as log_fd:
            following = self._search_index(
                info,
                file_names.INDEX,
                lambda fd: index.find_adjacent(fd, log_fd, info.base, entry),
                None,
            )
        if following is None or following.position >= info.size:
            return None
        return following

    def _enter_at(self, info: SegmentInfo, entry: IndexEntry, first_offset: int = -1) -> _Entrance:
        """An index entry, if its chain digest is known or the segment has none; else the start of
        the segment.
        """
        if entry.number < 0:
            return _Entrance(NO_ENTRY, self._start_of(info))
        digest_state = self._digests.seed(info, entry)
        if digest_state is None and info.digested:
            # a digest record is missing: that costs time
            return _Entrance(NO_ENTRY, self._start_of(info))
        continuation = Continuation(info.base, entry.position, -1, digest_state)
        return _Entrance(entry, continuation, first_offset)

    def _finish_fetch(
        self,
        useful: Batches,
        batches: Batches,
        data: memoryview,
        path: Path,
        continuation: Continuation,
        after: Continuation,
    ) -> Fetched:
        next_offset = int(useful["base_offset"][-1]) + int(useful["last_offset_delta"][-1]) + 1
        if len(useful) and useful["base_offset"][-1] == batches["base_offset"][-1]:
            self._continuations.put(next_offset, after)
        return Fetched(
            data,
            useful,
            next_offset,
            path,
            continuation.position,
            decompressed_max=self._state.context.decompressed_max,
        )

    def tail(self, offset: int, committed: bool) -> Tail | None:
        """The state of a tail, if `offset` is the end and a fetch ended there, or if it begins a
        short active segment.
        """
        state = self._state
        continuation = self._continuations.get(offset)
        if state.page_file is None or state.context.locked:
            return None
        published = state.published()
        latest = self.epochs.epochs_with(published.epoch).latest
        if latest is not None and (latest[0] != published.epoch or latest[1] > offset):
            return None
        if not published.flags & GAPLESS or published.generation % 2:
            return None
        is_short_segment = 0 < published.segment_size <= TAIL_BYTES and published.flags & DIGESTED
        if offset == published.segment_base and is_short_segment:
            position = 0
            digest = 0
        elif (
            continuation is not None
            and offset == published.log_end
            and continuation.base == published.segment_base
            and continuation.position == published.segment_size
        ):
            position = published.segment_size
            digest = published.digest
        else:
            return None
        return Tail(
            state,
            published,
            offset=offset,
            position=position,
            digest=digest,
            committed=committed,
        )

    def unread_bytes(self, offset: int) -> int | None:
        """Bytes after `offset`, if a fetch ended there and all following records are in the active
        segment; otherwise None, without the search of `bytes_from`.
        """
        continuation = self._continuations.get(offset)
        published = self._state.published()
        if continuation is None or continuation.base != published.segment_base:
            return None
        return published.segment_size - continuation.position

    def bytes_from(self, offset: int) -> int:
        """Bytes from an offset of the active segment to the log end; up to an index interval more.
        Raises StorageError.
        """
        published = self._state.published()
        continuation = self._continuations.get(offset)
        if continuation is not None and continuation.base == published.segment_base:
            return published.segment_size - continuation.position
        entry = self.find_entry(active_info(published), offset)
        return published.segment_size - entry.position

    def find_entry(self, info: SegmentInfo, offset: int) -> IndexEntry:
        """The index entry at which a search for an offset begins; number -1: at the start of the
        segment.
        """
        no_entry = IndexEntry(-1, info.base - 1, 0)
        if info.index_entries == 0 or offset <= info.base:
            return no_entry
        entry = self._search_index(
            info,
            file_names.INDEX,
            lambda fd: index.offset_floor(fd, info.index_entries, info.base, offset),
            no_entry,
        )
        return entry if 0 <= entry.position < info.size else no_entry

    def find_cut(self, info: SegmentInfo, position: int, after: int) -> index.Cut | None:
        """A cut of a segment at or below byte `position`, or else the next one, but above `after`;
        None without an entry.
        """
        return self._search_index(
            info,
            file_names.INDEX,
            lambda fd: index.find_cut(fd, info.index_entries, info.base, position, after),
            None,
        )

    def _search_index(
        self, info: SegmentInfo, suffix: str, search: Callable[[int], T], otherwise: T
    ) -> T:
        """The result of a search in an index; `otherwise` if the index is missing or too short:
        time is lost, not data.
        """
        try:
            with self.handles.acquire(self._directory, info.base, suffix) as fd:
                return search(fd)
        except CorruptRecordError:
            return otherwise
        except StorageError as problem:
            if problem.errno != errno.ENOENT:
                problem.path = problem.path or str(
                    file_names.segment_path(self._state.path, info.base, suffix)
                )
                raise
            return otherwise

    def _chain_of(self, info: SegmentInfo, continuation: Continuation, next_offset: int) -> Chain:
        """The state of a scan from a continuation on, which the scan advances."""
        if continuation.position == 0:
            next_offset = info.base
        if not info.gapless:
            next_offset = -1
        # a broker's that is not split yet
        bound = info.base if info.next_offset - info.base <= RELATIVE_MAX + 1 else -1
        return Chain(
            next_offset, continuation.epoch, gaps_allowed=not info.gapless, segment_base=bound
        )

    def _read(
        self,
        path: Path,
        info: SegmentInfo,
        continuation: Continuation,
        chain: Chain,
        max_bytes: int,
        pool: BufferPool | None,
    ) -> tuple[memoryview, Scanned]:
        """Read and scan; more if the first batch alone is larger than `max_bytes`."""
        wanted_bytes = self._digests.reach(
            info,
            continuation.digest_state,
            continuation.position,
            max(max_bytes, HEADER_BYTES),
            SPARE_BYTES,
        )
        while True:
            size = min(wanted_bytes, info.size - continuation.position)
            spare = min(SPARE_BYTES, info.size - continuation.position - size)
            if pool is not None:
                buffer = pool.lease(size + spare).view
            else:
                buffer = memoryview(bytearray(size + spare))
            with self.handles.acquire(self._directory, info.base, file_names.LOG) as fd:
                read_bytes = files.pread_into(fd, buffer[:size], continuation.position, path)
                scanned = scan(buffer[:read_bytes], chain)
                if (
                    scanned.need
                    and len(scanned.batches)
                    and read_bytes - scanned.consumed >= AGAIN_BYTES_MIN
                ):
                    return self._complete_batch(
                        fd, path, continuation.position, chain, buffer, read_bytes, scanned
                    )
            if (
                len(scanned.batches)
                or scanned.problem is not None
                or read_bytes < size
                or continuation.position + size >= info.size
            ):
                return buffer[:read_bytes], scanned
            wanted_bytes = max(scanned.need, 2 * wanted_bytes)

    @staticmethod
    def _complete_batch(
        fd: int,
        path: Path,
        position: int,
        chain: Chain,
        buffer: memoryview,
        read_bytes: int,
        scanned: Scanned,
    ) -> tuple[memoryview, Scanned]:
        """Read the last batch to its end, if it fits: two reads of a large batch would be a large
        part of the work.
        """
        end = scanned.consumed + scanned.need
        if end > len(buffer):
            return buffer[:read_bytes], scanned
        read_bytes += files.pread_into(fd, buffer[read_bytes:end], position + read_bytes, path)
        # the first scan has advanced `chain` to this batch
        last = scan(buffer[scanned.consumed : read_bytes], chain, position=scanned.consumed)
        batches = joined([scanned.batches, last.batches])
        consumed = scanned.consumed + last.consumed
        return buffer[:read_bytes], Scanned(batches, consumed, last.problem, last.need)

    def _check_first(
        self, path: Path, info: SegmentInfo, continuation: Continuation, scanned: Scanned
    ) -> None:
        """Raises CorruptRecordError for a bad first batch. One after good batches is left to the
        next fetch.
        """
        if len(scanned.batches):
            return
        if scanned.problem is not None:
            raise corruption_of(path, scanned.problem, continuation.position)
        raise CorruptRecordError(
            "a batch ends after the end of its segment",
            path=path,
            position=continuation.position,
            expected=f"{scanned.need} bytes",
            found=f"{info.size - continuation.position} bytes",
        )

    # ---- by time ---------------------------------------------------------------------------------

    def offset_for_time(self, timestamp_ms: int, committed: bool) -> OffsetAndTimestamp | None:
        """The first record at or after a time (format.md 2.7)."""

        def search_in(published: Published) -> OffsetAndTimestamp | None:
            for info in self._segments.reaching(timestamp_ms, published):
                record = self._search_segment(info, timestamp_ms, published, committed)
                if record is not None:
                    return record
            return None

        record = self.points.find_since(timestamp_ms, committed)
        if record is None:
            record = self.read_consistently(search_in)
        return record

    def _search_segment(
        self, info: SegmentInfo, timestamp_ms: int, published: Published, committed: bool
    ) -> OffsetAndTimestamp | None:
        limit = self._limit_of(published, committed, None)
        window = Window(start_offset=published.log_start, start_ms=timestamp_ms)
        for fetched in self._fetch_candidates(info, timestamp_ms, published, limit):
            for row in np.flatnonzero(fetched.batches["max_timestamp"] >= timestamp_ms):
                with in_file(fetched.path, fetched.position):
                    records = decode_some(
                        fetched.data,
                        fetched.batches[row : row + 1],
                        window=window,
                        columns=frozenset({"offset", "timestamp", "leader_epoch"}),
                        limit=fetched.decompressed_max,
                    ).decoded
                assert records is not None
                if records.count and records.offsets is not None and records.timestamps is not None:
                    return OffsetAndTimestamp(
                        int(records.offsets[0]),
                        int(records.timestamps[0]),
                        int(fetched.batches["leader_epoch"][row]),
                    )
        return None

    def _fetch_candidates(
        self, info: SegmentInfo, timestamp_ms: int, published: Published, limit: int
    ) -> Iterator[Fetched]:
        """The batches of a segment below the limit, without those that are older than a time by the
        time index.
        """
        offset = max(info.base, published.log_start)
        end = min(info.next_offset, limit)
        entry = self._find_time_entry(info, timestamp_ms)
        if entry is not None and offset < entry.offset < info.next_offset:
            fetched = self._fetch_at(entry.offset, max(end, entry.offset + 1))
            # else the index is wrong: search from the start
            if entry.row(fetched.batches) is not None:
                offset = fetched.next_offset
                if entry.offset < end:
                    yield fetched
        while offset < end:
            fetched = self._fetch_at(offset, end)
            yield fetched
            if fetched.next_offset <= offset:
                break
            offset = fetched.next_offset

    def _fetch_at(self, offset: int, end: int) -> Fetched:
        return self.fetch(offset, max_bytes=1 << 16, committed=False, upto=end, pool=None)

    def _find_time_entry(self, info: SegmentInfo, timestamp_ms: int) -> index.Time | None:
        """The entry of a time index at which a search begins; None: at the start of the segment."""
        lateness_ms = info.lateness_ms if info.min_timestamp >= 0 else -1
        if info.time_entries == 0:
            return None
        return self._search_index(
            info,
            file_names.TIME_INDEX,
            lambda fd: index.time_floor(
                fd, info.time_entries, info.base, timestamp_ms, lateness_ms
            ),
            None,
        )
