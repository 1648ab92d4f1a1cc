"""Reads the records of one visible batch at an offset, for readers that take few records at random offsets.

POINT-1  only the usual case is served: an open partition with a mapped page, and one batch. For a reader of committed records it
    is a batch without a transaction. In all other cases the answer is None, and the general reader finds out why
POINT-2  a batch that was verified and decoded is kept in the memory of this process, within `RECENT_BYTES_MAX` for all partitions
    of the directory. It is returned again without a read while the page and its generation are those of its read. Small ones
    that are not compressed are not kept: a read costs as much as the replacement of an older one
POINT-3  a cut, a compaction and a rebuilt page change the generation or the page. The log start, the visible end and a deletion
    are read from the page each time
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from embedlog._native import short_read
from embedlog._native._rows import RecordRun, record_run
from embedlog._native.short_read import FOUND, TOO_SMALL
from embedlog.errors import CorruptRecordError, StorageError
from embedlog.format import compression
from embedlog.format.buffer_pool import shared_pool
from embedlog.format.record_columns import CODEC_MASK, HEADER_SIZE
from embedlog.partition.usual.continuations import Continuation
from embedlog.partition.usual.short_reads import BUFFER_BYTES, FILES, POOLED_BYTES_MIN, READ_BYTES_MAX
from embedlog.storage import interval_digests

if TYPE_CHECKING:
    from embedlog.partition.checks.epoch_check import EpochCheck
    from embedlog.partition.segment_list import SegmentList
    from embedlog.partition.state import PartitionState
    from embedlog.partition.usual.continuations import Continuations
    from embedlog.partition.usual.recent_batches import RecentBatches
    from embedlog.storage.control_page import PageFile
    from embedlog.storage.descriptors import Handle
    from embedlog.storage.manifest import SegmentInfo

KEPT_BYTES_MIN: Final = 32 << 10  # of a batch that is not compressed
PLACES_MAX: Final = 64  # segments that are remembered
TRANSACTIONAL: Final = 0x10
OBJECT_BYTES: Final = 1024  # of a kept batch, in addition to its records section


class PointRead(NamedTuple):
    """The records of one batch from an offset on, and the published offsets of that moment."""

    run: RecordRun
    size_bytes: int  # of the batch in the log
    log_start: int
    visible_end: int
    epoch: int


class _Kept(NamedTuple):
    """A verified batch."""

    run: RecordRun  # from its first record on; nothing is taken from it
    size_bytes: int
    transactional: bool
    page: PageFile
    generation: int


class _Place:
    """A segment of one generation, with its open files."""

    __slots__ = ("end", "generation", "info", "names", "open", "page")

    def __init__(self, info: SegmentInfo, page: PageFile, end: int, generation: int) -> None:
        self.info, self.page, self.end, self.generation = info, page, end, generation
        self.names = FILES if info.digested else FILES[:2]
        self.open: tuple[list[Handle], short_read.Point] = ([], self.point((-1, -1, -1)))

    def point(self, fds: tuple[int, int, int]) -> short_read.Point:
        info = self.info
        segment = short_read.Segment(info.base, info.size, info.index_entries, info.digest, *fds, info.gapless)
        return short_read.Point(segment, self.page.page, self.end, self.generation, info.flags)


class PointReads:
    """Reads of single batches of one partition. Threads: any."""

    def __init__(self, state: PartitionState, segments: SegmentList, epochs: EpochCheck, continuations: Continuations) -> None:
        self._state, self._segments, self._epochs, self._continuations = state, segments, epochs, continuations
        self._handles, self._directory = state.context.handles, str(state.path)
        self._recent: RecentBatches = state.context.recent_batches
        self._places: tuple[_Place, ...] = ()  # in the order of their base offsets, as `_bases`
        self._bases: tuple[int, ...] = ()
        self._kept: dict[int, _Kept] = {}  # by base offset
        self._firsts: list[int] = []  # base offsets of the kept batches in order; both under the mutex of `RecentBatches`
        self._buffer_bytes = BUFFER_BYTES

    def forget(self) -> None:
        """Drop all kept batches and places: the files may have been replaced."""
        self._bases, self._places = (), ()
        self._recent.drop(self)

    def dropped(self, first: int) -> None:
        """For `RecentBatches`, in its mutex: this batch is not kept any more."""
        if self._kept.pop(first, None) is not None:
            del self._firsts[bisect_left(self._firsts, first)]

    def read(self, offset: int, committed: bool) -> PointRead | None:
        """The records of the batch that holds `offset`, from there on; None if the general reader must read it."""
        out = short_read.placed()
        place = self._known(offset)
        if place is None or not short_read.place_begin(place.open[1].raw, offset, committed, out):
            place = self._placed(offset)
            if place is None or not short_read.place_begin(place.open[1].raw, offset, committed, out):
                return None
        kept = self._held(offset, place)
        if kept is None:
            kept = self._verified(offset, committed, place, out)
            if kept is None:
                return None
        if committed and kept.transactional:
            return None
        run = kept.run.at(offset)
        if not run.count:
            return None  # compaction removed the last records of this batch
        self._state.traffic.bytes_out += kept.size_bytes
        return PointRead(run, kept.size_bytes, out.log_start, out.visible_end, out.epoch)

    def _held(self, offset: int, place: _Place) -> _Kept | None:
        """The kept batch that holds `offset`."""
        recent = self._recent
        with recent.mutex:
            at = bisect_right(self._firsts, offset)
            if not at:
                return None
            first = self._firsts[at - 1]
            kept = self._kept[first]
            if kept.run.end <= offset or kept.generation != place.generation or kept.page is not place.page:
                return None
            recent.used(self, first)
            return kept

    # ---- places ----------------------------------------------------------------------------------

    def _known(self, offset: int) -> _Place | None:
        bases, places = self._bases, self._places
        at = bisect_right(bases, offset) - 1
        if at < 0 or at >= len(places) or self._state.closed:
            return None
        place = places[at]
        return place if place.page is self._state.page_file else None

    def _placed(self, offset: int) -> _Place | None:
        """The segment that has `offset` now."""
        state = self._state
        if state.closed or state.page_file is None or state.context.locked or state.context.read_only:
            return None
        now, mapped = state.published(), state.page_file
        if mapped is None or now.generation % 2 or not now.log_start <= offset < now.log_end:
            return None
        info = self._segments.at(offset, now)
        place = _Place(info, mapped, -1 if info.base == now.segment_base else info.next_offset, now.generation)
        known = {each.info.base: each for each in self._places[-PLACES_MAX:] if each.generation == now.generation}
        known[info.base] = place
        places = tuple(known[base] for base in sorted(known))
        self._places, self._bases = places, tuple(each.info.base for each in places)
        return place

    # ---- reading ---------------------------------------------------------------------------------

    def _verified(self, offset: int, committed: bool, place: _Place, out: Any) -> _Kept | None:
        """The batch that holds `offset`, read and verified."""
        known, point = place.open
        try:
            opened = self._handles.acquire_together(self._directory, place.info.base, place.names, known)
        except StorageError:
            return None
        try:
            if opened is not known:
                fds = [handle.fd for handle in opened]
                point = place.point((fds[0], fds[1], fds[2] if place.info.digested else -1))
                place.open = (opened, point)
            data = self._data(offset, committed, point, out)
        finally:
            self._handles.release_together(opened)
        return None if data is None else self._decoded(data, place, out)

    def _data(self, offset: int, committed: bool, point: short_read.Point, out: Any) -> memoryview | None:
        buffer = _memory(self._buffer_bytes)
        code = short_read.place_read(point, offset, committed, buffer, out)
        if code == TOO_SMALL and out.found.need <= READ_BYTES_MAX:
            buffer = _memory(out.found.need)
            code = short_read.place_read(point, offset, committed, buffer, out)
        if code != FOUND:
            return None
        need = out.found.need
        if need > self._buffer_bytes or 2 * need < self._buffer_bytes:
            self._buffer_bytes = need + need // 16
        return buffer

    def _decoded(self, data: memoryview, place: _Place, out: Any) -> _Kept | None:
        found, batch = out.found, out.batch
        if not self._epochs.is_latest(found.epoch, out.first_offset):
            return None
        start = batch.position
        body = data[start + HEADER_SIZE : start + batch.size]
        codec = batch.attributes & CODEC_MASK
        if codec:
            try:
                body = memoryview(compression.expand(codec, body, self._state.context.decompressed_max)).cast("B")
            except (CorruptRecordError, compression.LimitExceeded):
                return None
        state = self._state
        run = record_run(state.topic, state.number, short_read.row_of(out), body, batch.base_offset)
        if run is None or not run.count:
            return None
        transactional = bool(batch.attributes & TRANSACTIONAL)
        kept = _Kept(run, batch.size, transactional, place.page, place.generation)
        end = found.position + found.need
        if end == found.size and start + batch.size == found.need:  # a tail begins there
            digested = place.info.digested
            chain = interval_digests.State(found.number, end, found.chain.digest, end) if digested else None
            self._continuations.put(run.end, Continuation(place.info.base, end, batch.leader_epoch, chain))
        if codec or batch.size >= KEPT_BYTES_MIN:
            self._keep(batch.base_offset, kept, len(body) if codec else len(data))
        return kept

    def _keep(self, first: int, kept: _Kept, memory_bytes: int) -> None:
        if memory_bytes >= POOLED_BYTES_MIN:
            memory_bytes = 1 << (memory_bytes - 1).bit_length()  # a block of the pool
        size_bytes = memory_bytes + kept.run.count // 2 + OBJECT_BYTES
        if not self._recent.fits(size_bytes):
            return
        with self._recent.mutex:
            if first not in self._kept:
                insort(self._firsts, first)
            self._kept[first] = kept
            self._recent.keep(self, first, size_bytes)
        if self._state.closed or self._state.page_file is not kept.page:
            self._recent.drop(self)  # it was closed meanwhile


def _memory(size: int) -> memoryview:
    return shared_pool().lease(size).view if size >= POOLED_BYTES_MIN else memoryview(bytearray(size))
