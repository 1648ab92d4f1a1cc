"""Reads a partition: from an offset or a time to whole, checked batches.

READER-1  nothing at or above the published end is read. The generation is read again after every
          read of batches and of the transaction index that judges them. A read during which it
          changed is repeated
READER-2  an index entry is used only if the batch there agrees; else the segment is read from its
    start
READER-3  every batch passes its CRC, follows on the one before, and carries the epoch that the
    epoch cache has for its offset
READER-4  a reader knows the chain digest at the start of a segment and at the record of an index
          entry. It compares the digest at every later record and at the published end, before it
          returns a batch. A read ends where the digest can be compared
READER-5  a missing file means that the list of segments is outdated: it is read again once before
    an error
READER-6  a fetch of 0 bytes reads one batch in one call. Unusual cases and findings are left to a
    fetch of DEFAULT_BYTES
READER-7  a read from the offset after that of an index entry begins at the next entry, if its batch
    follows and begins there
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

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
from embedlog.index import Place
from embedlog.partition.continuations import Continuation, Continuations
from embedlog.partition.digest_check import DigestCheck, corrupt
from embedlog.partition.epoch_check import EpochCheck
from embedlog.partition.point_reads import PointReads
from embedlog.partition.segment_info import active_info
from embedlog.partition.short_reads import ShortReads
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
NO_ENTRY: Final = Place(-1, -1, 0)  # no index entry


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
    decompressed_max: int = LIMIT_BYTES  # uncompressed, of one batch
    offset: int = -1  # from which it was read, for another replica


def _within(batches: Batches, offset: int, limit: int) -> Batches:
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
        settled: Callable[[], Published],
    ) -> None:
        self._state = state
        self._segments = segments
        self.aborted = aborted
        self._settled_tuple = settled
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
        `whole`: up to the log end.
        """

        def found_in(now: Published) -> Fetched:
            if offset < now.log_start or offset > now.log_end:
                problem = f"{self._state.name} has no offset {offset}"
                expected = f"{now.log_start} to {now.log_end}"
                raise OffsetOutOfRangeError(
                    problem, path=self._state.path, expected=expected, found=offset
                )
            found = self._fetch(
                offset, self._limit(now, committed, upto, whole), now, max_bytes, pool
            )
            if committed and len(found.batches):
                found.aborted = self.aborted.between(
                    int(found.batches["base_offset"][0]), found.next_offset, now
                )
            return found

        return self.consistent(found_in)

    def consistent(self, work: Callable[[Published], T]) -> T:
        """The result of `work` while no file is replaced. Results and errors of other moments are
        dropped.

        Retention and rolls replace no file, so a result beside them counts; an error beside them is
        of another moment.
        """
        until = 0
        missed = False
        while True:
            now = self._settled()
            self._state.check_deleted()
            try:
                found = work(now)
                # else the files may be those of a new topic of this name
                self._state.check_deleted()
                if self._state.published().generation == now.generation:
                    return found
            except (StorageError, CorruptRecordError) as problem:
                self._state.check_deleted()
                gone = isinstance(problem, StorageError) and problem.errno == errno.ENOENT
                if self._segments_of(self._state.published()) == self._segments_of(now) and (
                    missed or not gone
                ):
                    raise
                missed = True
            self._stale()
            until = until or self._state.deadline()
            if system.boot_ns() > until:
                raise StorageError(
                    "the files of this partition keep changing during a read", path=self._state.path
                )

    @staticmethod
    def _segments_of(now: Published) -> tuple[int, int, int]:
        """What the list of segments depends on."""
        return now.generation, now.log_start, now.segment_base

    def _limit(self, now: Published, committed: bool, upto: int | None, whole: bool = False) -> int:
        limit = now.log_end if whole else now.high_watermark
        if committed and now.first_unstable >= 0:
            limit = min(limit, now.first_unstable)
        return limit if upto is None else min(limit, upto)

    def _settled(self) -> Published:
        """The published tuple at a moment when no file is being replaced. Files opened before a
        replacement are forgotten.

        Raises LockTimeoutError.
        """
        now = self._state.published()
        if now.generation % 2:
            now = self._settled_tuple()
        self.notice(now.generation)
        return now

    def notice(self, generation: int) -> None:
        """Forget files that were opened before a replacement, unless that was done for this
        generation.
        """
        if generation != self._generation:
            self._stale()
            self._generation = generation

    def _stale(self) -> None:
        self._segments.forget()
        self.forget()

    def _fetch(
        self, offset: int, limit: int, now: Published, max_bytes: int, pool: BufferPool | None
    ) -> Fetched:
        info = self._segments.at(offset, now)
        while offset < limit:
            found = self._from_segment(info, offset, limit, max_bytes, pool)
            if found is not None:
                return found
            following = self._segments.after(info.base, now)
            if following is None:
                break
            info = following
        return Fetched(
            memoryview(b""),
            np.empty(0, batch_dtype()),
            max(offset, min(limit, now.high_watermark)),
            self._state.path,
            0,
        )

    def _from_segment(
        self, info: SegmentInfo, offset: int, limit: int, max_bytes: int, pool: BufferPool | None
    ) -> Fetched | None:
        """Batches of this segment that reach to `offset` or beyond, None if it has none."""
        if not max_bytes and (short := self._short(info, offset, limit, pool)) is not None:
            return short
        hint = self._continuations.take(offset)
        place = NO_ENTRY
        expected = offset
        first = -1
        if hint is None or hint.base != info.base:
            place, hint, first = self._enter(info, offset)
            expected = -1
        path = self._segment_path(info.base)
        while hint.position < info.size:
            chain = self._chain(info, hint, expected)
            data, scanned = self._read(path, info, hint, chain, max_bytes or DEFAULT_BYTES, pool)
            if place.number >= 0 and not place.begins(scanned.batches, first):
                # The index is wrong: read from the start. Only the next entry was not the right
                # one: read from the one before.
                place, hint = (
                    (NO_ENTRY, self._start(info))
                    if first < 0
                    else self._enter_at(info, self.place(info, offset))
                )
                first = -1
                continue
            self._check(path, info, hint, scanned, chain)
            batches, state = self._digests.compare(path, info, hint.chain, data, scanned)
            self.epochs.check(path, batches, hint.position)
            end = state.position if state is not None else hint.position + scanned.consumed
            after = Continuation(info.base, end, int(batches["leader_epoch"][-1]), state)
            useful = _within(batches, offset, limit)
            if len(useful):
                return self._fetched(useful, batches, data, path, hint, after)
            hint = after
            place = NO_ENTRY
            expected = -1
            if int(batches["base_offset"][-1]) >= limit:
                break
        return None

    def _segment_path(self, base: int) -> Path:
        """The name of a segment, which messages use; made once for the segment that is read."""
        known, path = self._path
        if known != base:
            path = file_names.segment_path(self._state.path, base)
            self._path = base, path
        return path

    def _short(
        self, info: SegmentInfo, offset: int, limit: int, pool: BufferPool | None
    ) -> Fetched | None:
        """The batch that holds `offset`; None if the general way must read it (READER-6)."""
        short = self._short_reads.read(info, offset, pool) if info.index_entries else None
        if short is None or short.found.first_offset >= limit:
            return None
        found = short.found
        rows = short.rows
        path = self._segment_path(info.base)
        end = found.position + found.size
        if not self.epochs.is_latest(found.epoch, int(rows["base_offset"][0])):
            self.epochs.check(path, rows, found.position)
        if found.row == found.batch_count - 1:
            chain = (
                interval_digests.State(found.number, end, found.digest, end)
                if info.digested
                else None
            )
            self._continuations.put(
                found.last_offset + 1,
                Continuation(info.base, end, int(rows["leader_epoch"][-1]), chain),
            )
        useful = rows[found.row : found.row + 1]
        most = self._state.context.decompressed_max
        return Fetched(
            short.data, useful, found.last_offset + 1, path, found.position, decompressed_max=most
        )

    @staticmethod
    def _start(info: SegmentInfo) -> Continuation:
        return Continuation(info.base, 0, -1, interval_digests.State() if info.digested else None)

    def _enter(self, info: SegmentInfo, offset: int) -> tuple[Place, Continuation, int]:
        """The start of a read, and the first offset there if it must be `offset`, else -1
        (READER-7).
        """
        place = self.place(info, offset)
        following = (
            self._adjacent(info, place)
            if place.number >= 0 and place.last_offset == offset - 1
            else None
        )
        if following is None:
            return *self._enter_at(info, place), -1
        return *self._enter_at(info, following), offset

    def _adjacent(self, info: SegmentInfo, place: Place) -> Place | None:
        """The next index entry, if its batch directly follows that of `place`."""
        if place.number + 1 >= info.index_entries:
            return None
        with self.handles.acquire(self._directory, info.base, file_names.LOG) as log_fd:
            found = self._indexed(
                info,
                file_names.INDEX,
                lambda fd: index.adjacent(fd, log_fd, info.base, place),
                None,
            )
        return found if found is not None and found.position < info.size else None

    def _enter_at(self, info: SegmentInfo, place: Place) -> tuple[Place, Continuation]:
        """The start of a read: an index entry, if its chain digest is known or the segment has
        none.
        """
        if place.number < 0:
            return NO_ENTRY, self._start(info)
        chain = self._digests.seed(info, place)
        if chain is None and info.digested:
            return NO_ENTRY, self._start(info)  # a digest record is missing: that costs time
        return place, Continuation(info.base, place.position, -1, chain)

    def _fetched(
        self,
        useful: Batches,
        batches: Batches,
        data: memoryview,
        path: Path,
        hint: Continuation,
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
            hint.position,
            decompressed_max=self._state.context.decompressed_max,
        )

    def tail(self, offset: int, committed: bool) -> Tail | None:
        """The state of a tail, if `offset` is the end and a fetch ended there, or if it begins a
        short active segment.
        """
        state = self._state
        hint = self._continuations.get(offset)
        if state.page_file is None or state.context.locked:
            return None
        now = state.published()
        latest = self.epochs.known(now.epoch).latest
        begins = (
            offset == now.segment_base
            and 0 < now.segment_size <= TAIL_BYTES
            and now.flags & DIGESTED
        )
        ends = hint is not None and (offset, *hint[:2]) == (
            now.log_end,
            now.segment_base,
            now.segment_size,
        )
        current = latest is None or (latest[0] == now.epoch and latest[1] <= offset)
        usual = (begins or ends) and now.flags & GAPLESS and now.generation % 2 == 0 and current
        place = (0, 0) if begins else (now.segment_size, now.digest)
        return Tail(state, now, offset, *place, committed) if usual else None

    def unread_bytes(self, offset: int) -> int | None:
        """Bytes after `offset`, if a fetch ended there and all following records are in the active
        segment.
        """
        hint = self._continuations.get(offset)
        now = self._state.published()
        return (
            now.segment_size - hint.position
            if hint is not None and hint.base == now.segment_base
            else None
        )

    def bytes_from(self, offset: int) -> int:
        """Bytes from an offset of the active segment to the log end; up to an index interval more.
        Raises StorageError.
        """
        now = self._state.published()
        hint = self._continuations.get(offset)
        if hint is not None and hint.base == now.segment_base:
            return now.segment_size - hint.position
        return now.segment_size - max(0, self.place(active_info(now), offset).position)

    def place(self, info: SegmentInfo, offset: int) -> Place:
        """The place in a segment at which a search for an offset begins."""
        nowhere = Place(-1, info.base - 1, 0)
        if info.index_entries == 0 or offset <= info.base:
            return nowhere
        place = self._indexed(
            info,
            file_names.INDEX,
            lambda fd: index.offset_floor(fd, info.index_entries, info.base, offset),
            nowhere,
        )
        return place if 0 <= place.position < info.size else nowhere

    def cut(self, info: SegmentInfo, position: int, after: int) -> index.Cut | None:
        """A cut of a segment at or below byte `position`, or else the next one, but above `after`;
        None without an entry.
        """
        return self._indexed(
            info,
            file_names.INDEX,
            lambda fd: index.cut(fd, info.index_entries, info.base, position, after),
            None,
        )

    def _indexed(
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

    def _chain(self, info: SegmentInfo, hint: Continuation, offset: int) -> Chain:
        expected = offset if info.gapless and offset >= 0 else -1
        if hint.position == 0:
            expected = info.base if info.gapless else -1
        # a broker's that is not split yet
        bound = info.base if info.next_offset - info.base <= RELATIVE_MAX + 1 else -1
        return Chain(expected, hint.epoch, gaps_allowed=not info.gapless, segment_base=bound)

    def _read(
        self,
        path: Path,
        info: SegmentInfo,
        hint: Continuation,
        chain: Chain,
        max_bytes: int,
        pool: BufferPool | None,
    ) -> tuple[memoryview, Scanned]:
        """Read and scan; more if the first batch alone is larger than `max_bytes`."""
        want = self._digests.reach(
            info, hint.chain, hint.position, max(max_bytes, HEADER_BYTES), SPARE_BYTES
        )
        while True:
            size = min(want, info.size - hint.position)
            spare = min(SPARE_BYTES, info.size - hint.position - size)
            buffer = (
                pool.lease(size + spare).view
                if pool is not None
                else memoryview(bytearray(size + spare))
            )
            with self.handles.acquire(self._directory, info.base, file_names.LOG) as fd:
                got = files.pread_into(fd, buffer[:size], hint.position, path)
                scanned = scan(buffer[:got], chain)
                if (
                    scanned.need
                    and len(scanned.batches)
                    and got - scanned.consumed >= AGAIN_BYTES_MIN
                ):
                    return self._completed(fd, path, hint.position, chain, buffer, got, scanned)
            if (
                len(scanned.batches)
                or scanned.problem is not None
                or got < size
                or hint.position + size >= info.size
            ):
                return buffer[:got], scanned
            want = max(scanned.need, 2 * want)

    @staticmethod
    def _completed(
        fd: int,
        path: Path,
        position: int,
        chain: Chain,
        buffer: memoryview,
        got: int,
        scanned: Scanned,
    ) -> tuple[memoryview, Scanned]:
        """Read the last batch to its end, if it fits: two reads of a large batch would be a large
        part of the work.
        """
        end = scanned.consumed + scanned.need
        if end > len(buffer):
            return buffer[:got], scanned
        got += files.pread_into(fd, buffer[got:end], position + got, path)
        last = scan(buffer[scanned.consumed : got], chain, position=scanned.consumed)
        batches = joined([scanned.batches, last.batches])
        return buffer[:got], Scanned(
            batches, scanned.consumed + last.consumed, last.problem, last.need
        )

    # ---- what must hold --------------------------------------------------------------------------

    def _check(
        self, path: Path, info: SegmentInfo, hint: Continuation, scanned: Scanned, chain: Chain
    ) -> None:
        """A bad first batch is an error. After good batches it is left to the next fetch."""
        if len(scanned.batches):
            return
        if scanned.problem is not None:
            raise corrupt(path, scanned.problem, hint.position)
        what = "a batch ends after the end of its segment"
        found = f"{info.size - hint.position} bytes"
        raise CorruptRecordError(
            what, path=path, position=hint.position, expected=f"{scanned.need} bytes", found=found
        )

    # ---- by time ---------------------------------------------------------------------------------

    def offset_for_time(self, timestamp_ms: int, committed: bool) -> OffsetAndTimestamp | None:
        """The first record at or after a time (format.md 2.7)."""

        def found_in(now: Published) -> OffsetAndTimestamp | None:
            for info in self._segments.reaching(timestamp_ms, now):
                found = self._time_in(info, timestamp_ms, now, committed)
                if found is not None:
                    return found
            return None

        return self.points.since(timestamp_ms, committed) or self.consistent(found_in)

    def _time_in(
        self, info: SegmentInfo, timestamp_ms: int, now: Published, committed: bool
    ) -> OffsetAndTimestamp | None:
        for found in self._searched(info, timestamp_ms, now, self._limit(now, committed, None)):
            for at in np.flatnonzero(found.batches["max_timestamp"] >= timestamp_ms):
                with in_file(found.path, found.position):
                    rows = decode_some(
                        found.data,
                        found.batches[at : at + 1],
                        window=Window(
                            start_offset=now.log_start, start_ms=timestamp_ms
                        ),  # an index entry names the last offset of a batch
                        columns=frozenset({"offset", "timestamp", "leader_epoch"}),
                        limit=found.decompressed_max,
                    ).decoded
                assert rows is not None
                if rows.count and rows.offsets is not None and rows.timestamps is not None:
                    return OffsetAndTimestamp(
                        int(rows.offsets[0]),
                        int(rows.timestamps[0]),
                        int(found.batches["leader_epoch"][at]),
                    )
        return None

    def _searched(
        self, info: SegmentInfo, timestamp_ms: int, now: Published, limit: int
    ) -> Iterator[Fetched]:
        """The batches of a segment below the limit, without those that are older than a time by the
        time index.
        """
        offset = max(info.base, now.log_start)
        end = min(info.next_offset, limit)
        entry = self._time_place(info, timestamp_ms)
        if entry is not None and offset < entry.offset < info.next_offset:
            found = self._fetched_at(entry.offset, max(end, entry.offset + 1))
            # else the index is wrong: search from the start
            if entry.row(found.batches) is not None:
                offset = found.next_offset
                if entry.offset < end:
                    yield found
        while offset < end:
            found = self._fetched_at(offset, end)
            yield found
            if found.next_offset <= offset:
                break
            offset = found.next_offset

    def _fetched_at(self, offset: int, end: int) -> Fetched:
        return self.fetch(offset, max_bytes=1 << 16, committed=False, upto=end, pool=None)

    def _time_place(self, info: SegmentInfo, timestamp_ms: int) -> index.Time | None:
        """The entry of a time index at which a search begins; None: at the start of the segment."""
        lateness_ms = info.lateness_ms if info.min_timestamp >= 0 else -1
        if info.time_entries == 0:
            return None
        return self._indexed(
            info,
            file_names.TIME_INDEX,
            lambda fd: index.time_floor(
                fd, info.time_entries, info.base, timestamp_ms, lateness_ms
            ),
            None,
        )
