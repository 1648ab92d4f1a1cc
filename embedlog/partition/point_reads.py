"""Reads single batches at an offset or a time, each with what must be compared with it in one
call: `ShortReads` for a fetch of one batch, `PointReads` for readers that take few records at
random places.

- Only the usual case is served: an index entry with a known chain digest, and whole batches of
  magic 2 up to the next entry, all as their appenders wrote them. In all other cases the answer is
  None, and the general reader finds out why.
- A short read trusts its caller: the files belong to the segment, and epochs and generation are
  compared as after every read.
- A point read returns records. It needs a mapped page or a log that no process has open, and one
  batch, for a reader of committed records one without a transaction.
- A batch that was verified and decoded is kept in the memory of this process, within
  `RECENT_BYTES_MAX` for all partitions of the directory. It is returned again without a read while
  the page and its generation are those of its read. Small ones that are not compressed are not
  kept: a read costs as much as the replacement of an older one.
- A cut, a compaction and a rebuilt page change the generation or the page. The log start, the
  visible end and a deletion are read from the page each time.
- Without a page, a read counts only if no writer was found until its end, as for every reader of a
  closed log.
- An entry of the time index selects where a search by time begins, if the batch that it names has
  its timestamp. The batches after it are verified like those at an offset.
- A new generation closes the files that were opened before it: a segment that was replaced keeps
  its name. A thread may just open one of them, so a read that misses its generation closes them
  again.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from embedlog._native import short_read
from embedlog._native._rows import RecordRun, record_run
from embedlog._native.lazy_numpy import np
from embedlog._native.short_read import ANY_TIME, FOUND, TOO_SMALL
from embedlog.errors import CorruptRecordError, StorageError
from embedlog.format import compression
from embedlog.format.buffer_pool import shared_pool
from embedlog.format.record_columns import CODEC_MASK, HEADER_SIZE, Batches, batch_dtype
from embedlog.partition.continuations import Continuation
from embedlog.storage import file_names, interval_digests
from embedlog.storage.control_page import PageFile
from embedlog.storage.descriptors import Handle, Handles
from embedlog.types import OffsetAndTimestamp

if TYPE_CHECKING:
    from collections.abc import Callable

    from embedlog.format.buffer_pool import BufferPool
    from embedlog.partition.continuations import Continuations
    from embedlog.partition.epoch_check import EpochCheck
    from embedlog.partition.log_context import RecentBatches
    from embedlog.partition.recovery.loader import Loaded
    from embedlog.partition.segment_list import SegmentList
    from embedlog.partition.state import PartitionState
    from embedlog.storage.manifest import SegmentInfo

READ_BYTES_MAX: Final = 1_100_000  # a larger read is left to the general reader
BUFFER_BYTES: Final = 64 << 10  # of the first read; later ones begin with what was needed
BATCHES_MAX: Final = 128  # of one index interval
POOLED_BYTES_MIN: Final = 128 << 10  # smaller buffers cost less from the allocator
FILES: Final = (file_names.LOG, file_names.INDEX, file_names.DIGESTS)
KEPT_BYTES_MIN: Final = 32 << 10  # of a batch that is not compressed
KNOWN_SEGMENTS_MAX: Final = 64  # segments that are remembered
TRANSACTIONAL: Final = 0x10
SINCE_READS_MAX: Final = 4  # of a search by time: its entry may be the one before
OBJECT_BYTES: Final = 1024  # of a kept batch, in addition to its records section


class ShortRead(NamedTuple):
    """The batches that were read. `batch` describes the one that holds the offset."""

    batch: short_read.Read
    rows: Batches
    data: memoryview


class ShortReads:
    """Short reads of one partition. Threads: any."""

    def __init__(self, handles: Handles, directory: str) -> None:
        self._handles = handles
        self._directory = directory
        self._opened: list[Handle] = []  # of the last read: opened again if they were closed
        self._buffer_bytes = BUFFER_BYTES

    def read(self, info: SegmentInfo, offset: int, pool: BufferPool | None) -> ShortRead | None:
        """The batch of a segment that holds `offset`; None if the general reader must read it."""
        handles = self._handles
        names = FILES if info.digested else FILES[:2]
        try:
            opened = handles.acquire_together(self._directory, info.base, names, self._opened)
        except StorageError:
            return None
        self._opened = opened
        try:
            fds = [handle.fd for handle in opened]
            digest_fd = fds[2] if info.digested else -1
            segment = short_read.Segment(
                info.base,
                info.size,
                info.index_entries,
                info.digest,
                fds[0],
                fds[1],
                digest_fd,
                info.gapless,
            )
            return self._read(segment, offset, pool)
        finally:
            handles.release_together(opened)

    def _read(
        self, segment: short_read.Segment, offset: int, pool: BufferPool | None
    ) -> ShortRead | None:
        rows = np.empty(BATCHES_MAX, batch_dtype())
        buffer = _lease(self._buffer_bytes, pool)
        batch = short_read.read(segment, offset, buffer, rows)
        if batch is not None and not batch.batch_count and batch.size <= READ_BYTES_MAX:
            self._buffer_bytes = batch.size + batch.size // 8
            buffer = _lease(self._buffer_bytes, pool)
            batch = short_read.read(segment, offset, buffer, rows)
        if batch is None or not batch.batch_count:
            return None
        return ShortRead(batch, rows[: batch.batch_count], buffer[: batch.size])


class PointRead(NamedTuple):
    """The records of one batch from an offset on, and the published offsets of that moment."""

    run: RecordRun
    size_bytes: int  # of the batch in the log
    log_start: int
    visible_end: int
    epoch: int


class _KeptBatch(NamedTuple):
    """A verified batch."""

    run: RecordRun  # from its first record on; nothing is taken from it
    size_bytes: int
    transactional: bool
    source: PageFile | Loaded
    generation: int


class _Files:
    """Open files of a segment, and the segment with their descriptors. Both are replaced
    together.
    """

    __slots__ = ("names", "opened")

    def __init__(self, names: tuple[str, ...], point: short_read.Point) -> None:
        self.names = names
        self.opened: tuple[list[Handle], short_read.Point] = ([], point)


class _KnownSegment:
    """A segment of one generation. `source`: the control page, or the files as a reader of a closed
    log loaded them.
    """

    __slots__ = ("end", "files", "generation", "info", "source", "timed")

    def __init__(
        self, info: SegmentInfo, source: PageFile | Loaded, end: int, generation: int
    ) -> None:
        self.info = info
        self.source = source
        self.end = end
        self.generation = generation
        names = FILES if info.digested else FILES[:2]
        unopened = self.point((-1, -1, -1))
        self.files = _Files(names, unopened)
        self.timed = _Files((*names, file_names.TIME_INDEX), unopened)

    def point(self, fds: tuple[int, int, int]) -> short_read.Point:
        info = self.info
        source = self.source
        segment = short_read.Segment(
            info.base, info.size, info.index_entries, info.digest, *fds, info.gapless
        )
        lateness_ms = info.lateness_ms if info.min_timestamp >= 0 else -1
        return short_read.Point(
            segment,
            source.page if isinstance(source, PageFile) else source.published,
            end=self.end,
            generation=self.generation,
            flags=info.flags,
            times=(info.time_entries, lateness_ms),
        )


class PointReads:
    """Reads of single batches of one partition. Threads: any."""

    def __init__(
        self,
        state: PartitionState,
        segments: SegmentList,
        epochs: EpochCheck,
        continuations: Continuations,
        notice: Callable[[int], None],
    ) -> None:
        """`notice` is called with a generation before files of it are opened, and with -1 if one
        may be of another.
        """
        self._state = state
        self._segments = segments
        self._epochs = epochs
        self._continuations = continuations
        self._notice = notice
        self._handles = state.context.handles
        self._directory = str(state.path)
        self._recent: RecentBatches = state.context.recent_batches
        # in the order of their base offsets, as `_bases`
        self._known_segments: tuple[_KnownSegment, ...] = ()
        self._bases: tuple[int, ...] = ()
        self._kept: dict[int, _KeptBatch] = {}  # by base offset
        # base offsets of the kept batches in order; both under the mutex of `RecentBatches`
        self._firsts: list[int] = []
        self._buffer_bytes = BUFFER_BYTES

    def forget(self) -> None:
        """Drop all kept batches and known segments: the files may have been replaced."""
        self._bases = ()
        self._known_segments = ()
        self._recent.drop(self)

    def forget_batch(self, first: int) -> None:
        """For `RecentBatches`, in its mutex: this batch is not kept any more."""
        if self._kept.pop(first, None) is not None:
            del self._firsts[bisect_left(self._firsts, first)]

    def read(self, offset: int, committed: bool) -> PointRead | None:
        """The records of the batch that holds `offset`, from there on; None if the general reader
        must read it.
        """
        out = short_read.make_placed()
        segment = self._find_known(offset)
        if segment is None or not short_read.place_begin(
            segment.files.opened[1].raw, offset, committed, out
        ):
            segment = self._find_segment(offset)
            if segment is None or not short_read.place_begin(
                segment.files.opened[1].raw, offset, committed, out
            ):
                return None
        batch = self._find_kept(offset, segment)
        if batch is None:
            batch = self._read_verified(offset, ANY_TIME, committed, segment, out)
            if batch is None:
                return None
        if committed and batch.transactional:
            return None
        run = batch.run.at(offset)
        if not run.count:
            return None  # compaction removed the last records of this batch
        self._state.traffic.bytes_out += batch.size_bytes
        return PointRead(run, batch.size_bytes, out.log_start, out.visible_end, out.epoch)

    def find_since(self, timestamp_ms: int, committed: bool) -> OffsetAndTimestamp | None:
        """The first visible record with this timestamp or a later one; None if the general reader
        must find it.
        """
        published = self._state.published()
        out = short_read.make_placed()
        info = self._search_list(
            lambda: next(self._segments.reaching(timestamp_ms, published), None)
        )
        if info is None or info.max_timestamp < timestamp_ms:
            return None
        start = max(info.base, published.log_start)
        segment = self._find_known(start)
        if (
            segment is None
            or segment.info.base != info.base
            or not self._begin_search(segment, timestamp_ms, committed, out)
        ):
            segment = self._find_segment(start)
            if segment is None or not self._begin_search(segment, timestamp_ms, committed, out):
                return None
        offset = out.next_offset
        for _ in range(SINCE_READS_MAX):
            if offset >= out.visible_end:
                return None
            batch = self._find_kept(offset, segment)
            if batch is None:
                batch = self._read_verified(offset, timestamp_ms, committed, segment, out)
            if batch is None:
                following = out.next_offset
            else:
                record = batch.run.at(offset).since(timestamp_ms)
                if record is not None:
                    return OffsetAndTimestamp(*record, batch.run.leader_epoch)
                following = batch.run.end
            if following <= offset:
                return None
            offset = following
        return None

    def _begin_search(
        self, segment: _KnownSegment, timestamp_ms: int, committed: bool, out: Any
    ) -> bool:
        """Find in the time index where a search begins (`next_offset`); False if it does not show
        that.
        """
        acquired = self._acquire(segment, segment.timed)
        if acquired is None:
            return False
        handles, point = acquired
        try:
            is_found = bool(
                short_read.place_since(point.raw, timestamp_ms, committed, handles[-1].fd, out)
            )
        finally:
            self._handles.release_together(handles)
        return is_found or self._forget_replaced(segment)

    def _find_kept(self, offset: int, segment: _KnownSegment) -> _KeptBatch | None:
        """The kept batch that holds `offset`."""
        recent = self._recent
        with recent.mutex:
            number = bisect_right(self._firsts, offset)
            if not number:
                return None
            first = self._firsts[number - 1]
            batch = self._kept[first]
            if (
                batch.run.end <= offset
                or batch.generation != segment.generation
                or batch.source is not segment.source
            ):
                return None
            recent.note_use(self, first)
            return batch

    # ---- segments --------------------------------------------------------------------------------

    def _source(self) -> PageFile | Loaded | None:
        """The source of the published offsets now. A reader of a closed log looks for a writer
        first, at intervals.
        """
        state = self._state
        if state.context.read_only:
            state.follow_writer()
        return state.page_file or state.loaded_files

    def _find_known(self, offset: int) -> _KnownSegment | None:
        bases = self._bases
        segments = self._known_segments
        number = bisect_right(bases, offset) - 1
        if number < 0 or number >= len(segments) or self._state.closed:
            return None
        segment = segments[number]
        if segment.source is not self._source():
            return None
        return segment

    def _find_segment(self, offset: int) -> _KnownSegment | None:
        """The segment that has `offset` now."""
        state = self._state
        if state.closed or state.context.locked:
            return None
        published = state.published()
        source = self._source()
        if source is None:
            return None
        if not isinstance(source, PageFile):
            published = source.published
        if published.generation % 2 or not published.log_start <= offset < published.log_end:
            return None
        self._notice(published.generation)
        info = self._search_list(lambda: self._segments.at(offset, published))
        if info is None:
            return None
        end = -1 if info.base == published.segment_base else info.next_offset
        segment = _KnownSegment(info, source, end, published.generation)
        by_base = {
            other.info.base: other
            for other in self._known_segments[-KNOWN_SEGMENTS_MAX:]
            if other.generation == published.generation
        }
        by_base[info.base] = segment
        segments = tuple(by_base[base] for base in sorted(by_base))
        self._known_segments = segments
        self._bases = tuple(other.info.base for other in segments)
        return segment

    def _search_list(self, search: Callable[[], SegmentInfo | None]) -> SegmentInfo | None:
        """The result of a search in the list of segments; None also if the list cannot be made, as
        after a deletion.
        """
        try:
            return search()
        except StorageError:
            return None

    # ---- reading ---------------------------------------------------------------------------------

    def _acquire(
        self, segment: _KnownSegment, files: _Files
    ) -> tuple[list[Handle], short_read.Point] | None:
        """The open files of a segment, until `release_together`, with the point that has their
        descriptors.
        """
        known_handles, point = files.opened
        try:
            handles = self._handles.acquire_together(
                self._directory, segment.info.base, files.names, known_handles
            )
        except StorageError:
            return None
        if handles is not known_handles:
            fds = [handle.fd for handle in handles]
            digest_fd = fds[2] if segment.info.digested else -1
            point = segment.point((fds[0], fds[1], digest_fd))
            files.opened = (handles, point)
        return handles, point

    def _read_verified(
        self, offset: int, timestamp_ms: int, committed: bool, segment: _KnownSegment, out: Any
    ) -> _KeptBatch | None:
        """The batch that holds `offset`, or the first one after it as new as `timestamp_ms`, read
        and verified.
        """
        acquired = self._acquire(segment, segment.files)
        if acquired is None:
            return None
        try:
            data = self._read_data(offset, timestamp_ms, committed, acquired[1], out)
        finally:
            self._handles.release_together(acquired[0])
        if data is None:
            self._forget_replaced(segment)
            return None
        if not (isinstance(segment.source, PageFile) or segment.source is self._source()):
            return None
        return self._decode(data, segment, out)

    def _forget_replaced(self, segment: _KnownSegment) -> bool:
        """After a read without a result: forget its files if they were replaced meanwhile.
        False.
        """
        if self._state.published().generation != segment.generation:
            self._notice(-1)
        return False

    def _read_data(
        self, offset: int, timestamp_ms: int, committed: bool, point: short_read.Point, out: Any
    ) -> memoryview | None:
        buffer = _lease_shared(self._buffer_bytes)
        code = short_read.place_read(point, offset, timestamp_ms, committed, buffer, out)
        if code == TOO_SMALL and out.found.need <= READ_BYTES_MAX:
            buffer = _lease_shared(out.found.need)
            code = short_read.place_read(point, offset, timestamp_ms, committed, buffer, out)
        if code != FOUND:
            return None
        need = out.found.need
        if need > self._buffer_bytes or 2 * need < self._buffer_bytes:
            self._buffer_bytes = need + need // 16
        return buffer

    def _decode(self, data: memoryview, segment: _KnownSegment, out: Any) -> _KeptBatch | None:
        read = out.found
        batch = out.batch
        if not self._epochs.is_latest(read.epoch, out.first_offset):
            return None
        start = batch.position
        body = data[start + HEADER_SIZE : start + batch.size]
        codec = batch.attributes & CODEC_MASK
        if codec:
            try:
                body = memoryview(
                    compression.expand(codec, body, self._state.context.decompressed_max)
                ).cast("B")
            except (CorruptRecordError, compression.LimitExceeded):
                return None
        state = self._state
        run = record_run(state.topic, state.number, short_read.row_of(out), body, batch.base_offset)
        if run is None or not run.count:
            return None
        transactional = bool(batch.attributes & TRANSACTIONAL)
        decoded = _KeptBatch(run, batch.size, transactional, segment.source, segment.generation)
        end = read.position + read.need
        if end == read.size and start + batch.size == read.need:  # a tail begins there
            digest_state = None
            if segment.info.digested:
                digest_state = interval_digests.State(read.number, end, read.chain.digest, end)
            self._continuations.put(
                run.end, Continuation(segment.info.base, end, batch.leader_epoch, digest_state)
            )
        if codec or batch.size >= KEPT_BYTES_MIN:
            self._keep(batch.base_offset, decoded, len(body) if codec else len(data))
        return decoded

    def _keep(self, first: int, batch: _KeptBatch, memory_bytes: int) -> None:
        if memory_bytes >= POOLED_BYTES_MIN:
            memory_bytes = 1 << (memory_bytes - 1).bit_length()  # a block of the pool
        size_bytes = memory_bytes + batch.run.count // 2 + OBJECT_BYTES
        if not self._recent.fits(size_bytes):
            return
        with self._recent.mutex:
            if first not in self._kept:
                insort(self._firsts, first)
            self._kept[first] = batch
            self._recent.keep(self, first, size_bytes)
        if (
            self._state.closed
            or (self._state.page_file or self._state.loaded_files) is not batch.source
        ):
            self._recent.drop(self)  # it was closed meanwhile


def _lease(size: int, pool: BufferPool | None) -> memoryview:
    """A buffer of the pool; of the allocator if there is no pool, or if it is small."""
    if pool is not None and size >= POOLED_BYTES_MIN:
        return pool.lease(size).view
    return memoryview(bytearray(size))


def _lease_shared(size: int) -> memoryview:
    """As `_lease`, of the shared pool, which is made for a large buffer only."""
    if size >= POOLED_BYTES_MIN:
        return shared_pool().lease(size).view
    return memoryview(bytearray(size))
