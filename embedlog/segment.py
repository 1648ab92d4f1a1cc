"""One segment: a `.log` file and the indexes that point into it.

- Base offsets of batches are at least the segment's base offset, and rise.
- Bytes after the requested size are ignored.
- Losing an index loses time, never data: `rebuild` makes it again.
- This module knows neither other segments nor locks.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from embedlog import index
from embedlog._native.lazy_numpy import np
from embedlog.errors import StorageError
from embedlog.format import legacy
from embedlog.format.buffer_pool import shared_pool
from embedlog.format.record_batch import (
    HEADER_SIZE,
    Batches,
    Chain,
    Head,
    Problem,
    scan,
    scan_heads,
)
from embedlog.format.record_columns import LOG_OFFSET_MAX, RELATIVE_MAX
from embedlog.storage import checkpoints, file_names, files, interval_digests

if TYPE_CHECKING:
    from numpy.typing import NDArray

CHUNK_BYTES: Final = 1 << 20
LENGTH_AT: Final = 8  # after the base offset
LENGTH_END: Final = 12  # base offset and length, which the length does not count
MAGIC_AT: Final = 16
SIZE_MIN: Final = {**legacy.SIZE_MIN, 2: HEADER_SIZE}  # by the magic
LEAPT: Final = "the base offset of a batch is beyond the range of its segment"
LOG_BYTES_MAX: Final = (1 << 31) - 1  # of a .log file (format.md 2.1)


class Paths(NamedTuple):
    """The files of one segment."""

    log: Path
    offset_index: Path
    time_index: Path
    transaction_index: Path


def paths(directory: Path, base: int) -> Paths:
    return Paths(
        *(
            file_names.segment_path(directory, base, suffix)
            for suffix in file_names.SEGMENT_SUFFIXES
        )
    )


class Walk:
    """Reads a range of a segment batch by batch, each checked; afterwards `end` and `problem`
    describe the result.

    The file's name limits the offsets in it, unless the walk is not `bounded`: then it sets the
    `segment_base` of `chain`, which goes with the walk. `end` is the first byte after the last good
    batch. `problem` is None if the file ended, even in the middle of a batch; of a chunk with good
    batches before it, `chunks` sets it after their yield, `heads` before.

    `records` of a walk from the start, and `epochs`, are compared during the walk. After a mismatch
    `agreed` is the end of the matching part. `end` is then the begin of the chunk, and `chain` has
    gone on: neither counts.
    """

    def __init__(
        self,
        fd: int,
        path: Path,
        chain: Chain,
        start: int,
        size: int,
        records: interval_digests.Records | None = None,
        epochs: checkpoints.EpochCache | None = None,
        *,
        bounded: bool = True,
    ) -> None:
        self._fd = fd
        self._path = path
        self._size = size
        self.chain = chain
        if bounded:
            parsed = file_names.parse(path.name)
            if parsed is not None:
                chain.segment_base = parsed[0]
        self.end = start
        # the chain digest before each batch of the last chunk; there from the first chunk on
        self.before: NDArray[np.uint64]
        self.problem: Problem | None = None
        self._records = records
        self._state = interval_digests.State()
        self._epochs = epochs
        self.agreed: int | None = None

    def __iter__(self) -> Iterator[Batches]:
        for _, batches in self.chunks():
            yield batches

    def chunks(self) -> Iterator[tuple[memoryview, Batches]]:
        """Batches with their bytes: `batches["position"]` counts from the start of the file, the
        view starts at the first batch.
        """
        want = CHUNK_BYTES
        while self.end < self._size:
            chunk = shared_pool().lease(min(want, self._size - self.end)).view
            got = files.pread_into(self._fd, chunk, self.end, self._path)
            view = chunk[:got]
            digest = self.chain.digest
            scanned = scan(view, self.chain, position=self.end)
            if scanned.consumed:
                self.before = interval_digests.digests_before(view, scanned.batches, digest)
                if not self._agrees(view, scanned.batches):
                    return
                self.end += scanned.consumed
                want = CHUNK_BYTES
                yield view[: scanned.consumed], scanned.batches
            if scanned.problem is not None:
                self.problem = scanned.problem
                return
            if scanned.consumed == 0:
                if got < len(chunk) or self.end + got >= self._size:
                    return  # the file ends inside this batch
                want = max(scanned.need, 2 * want)

    def heads(self) -> Iterator[list[Head]]:
        """The batches without numpy, for a walk along few of them. REQUIRES no `records` and no
        `epochs`.
        """
        want = CHUNK_BYTES
        while self.end < self._size:
            chunk = bytearray(min(want, self._size - self.end))
            got = files.pread_into(self._fd, chunk, self.end, self._path)
            heads, consumed, need, self.problem = scan_heads(
                memoryview(chunk)[:got], self.chain, self.end
            )
            self.end += consumed
            if heads:
                yield heads
            if self.problem is not None or (
                not consumed and (got < len(chunk) or self.end + got >= self._size)
            ):
                return  # in the second case the file ends inside this batch
            want = CHUNK_BYTES if consumed else max(need, 2 * want)

    def _agrees(self, view: memoryview, batches: Batches) -> bool:
        """Whether records and epochs agree with a chunk; else `problem` and `agreed` are set."""
        if self._records is not None:
            self._state, self.problem = self._records.compare(self._state, view, batches)
            self.agreed = self._state.agreed if self.problem is not None else None
        wrong = None
        if self._epochs is not None and self.problem is None:
            wrong = self._epochs.find_disagreement(batches["base_offset"], batches["leader_epoch"])
        if wrong is not None:
            self.agreed = int(batches["position"][wrong[0]])
            leader_epoch = int(batches["leader_epoch"][wrong[0]])
            self.problem = Problem(self.agreed, checkpoints.OTHER_EPOCH, wrong[1], leader_epoch)
        return self.problem is None


# ---- a search for batches ------------------------------------------------------------------------


def overflows(base: int, next_offset: int) -> bool:
    """Whether a segment that ends before `next_offset` has offsets that an index cannot hold."""
    return next_offset - base > RELATIVE_MAX + 1


def end_of_batch(fd: int, path: Path, position: int, size: int) -> int | None:
    """The end of the batch or message at a position by its header, None if a file of `size` bytes
    cannot have it there.
    """
    head = files.pread(fd, MAGIC_AT + 1, position, path)
    if len(head) <= MAGIC_AT or head[MAGIC_AT] not in SIZE_MIN:
        return None
    end = position + LENGTH_END + int.from_bytes(head[8:LENGTH_END], "big", signed=True)
    return end if position + SIZE_MIN[head[MAGIC_AT]] <= end <= size else None


def batch_at(fd: int, path: Path, position: int, size: int) -> Batches | None:
    """The batch or message at a position, as one row, if its checksum and its counts are right,
    whatever its offsets are.
    """
    end = end_of_batch(fd, path, position, size)
    if end is None:
        return None
    for batches in Walk(fd, path, Chain(gaps_allowed=True), position, end, bounded=False):
        return batches
    return None


def search_batch(
    fd: int, path: Path, start: int, size: int, low: int = 0, high: int = LOG_OFFSET_MAX
) -> Batches | None:
    """The first batch with a right checksum at or after byte `start` whose offsets are from `low`
    to below `high`.

    Holes are not read: a preallocated file can end with a gigabyte of them.
    """
    for data_start, data_end in files.data_ranges(fd, start, size, path):
        # the length of a batch is not 0, so only the bytes before it can be in the hole before
        first = max(start, data_start - LENGTH_END)
        for position in range(first, data_end, CHUNK_BYTES):
            data = files.pread(fd, CHUNK_BYTES + MAGIC_AT, position, path)
            for candidate in _candidates(np.frombuffer(data, np.uint8), position, size, low, high):
                batch = batch_at(fd, path, candidate, size)
                if (
                    batch is not None
                    and int(batch["base_offset"][0]) + int(batch["last_offset_delta"][0]) < high
                ):
                    return batch
    return None


def has_batch(path: Path, start: int, size: int) -> bool:
    """Whether a batch with a right checksum begins at or after byte `start`."""
    with files.opened(path) as fd:
        return search_batch(fd, path, start, size) is not None


def _candidates(data: NDArray[np.uint8], start: int, size: int, low: int, high: int) -> list[int]:
    """Positions whose bytes can be the header of a batch or of a message."""
    count = len(data) - MAGIC_AT
    if count <= 0:
        return []
    magic = data[MAGIC_AT : MAGIC_AT + count]
    has_length = data[LENGTH_AT : LENGTH_AT + count] != 0
    for byte in range(LENGTH_AT + 1, LENGTH_END):
        has_length |= data[byte : byte + count] != 0
    rows = np.flatnonzero(has_length & (magic <= max(SIZE_MIN)))
    fields = np.lib.stride_tricks.sliding_window_view(data, LENGTH_END)[rows]
    offsets = np.ascontiguousarray(fields[:, :8]).view(">i8")[:, 0]
    sizes = np.ascontiguousarray(fields[:, 8:]).view(">i4")[:, 0].astype(np.int64) + LENGTH_END
    smallest = np.array([SIZE_MIN[number] for number in range(max(SIZE_MIN) + 1)])[magic[rows]]
    good = (
        (offsets >= low) & (offsets < high) & (sizes >= smallest) & (rows + start + sizes <= size)
    )
    return [int(row) + start for row in rows[good]]


# ---- files ---------------------------------------------------------------------------------------


class CompactionSigns:
    """Whether the batches of a log show that a compaction has removed records.

    A batch then has fewer records than offsets, or begins after a gap and is followed by another
    one. A gap before the last batch proves nothing: one changed bit of its offset makes the same.
    """

    def __init__(self) -> None:
        self.found = False
        self._gap_before_last = False
        self._end = -1

    def begin(self, base: int) -> None:
        """Continue with the segment of this base offset."""
        self._end = base

    def add(self, batches: Batches) -> None:
        """Take the next batches of the segment."""
        ends = batches["base_offset"] + batches["last_offset_delta"] + 1
        gaps = batches["base_offset"] != np.concatenate(([self._end], ends[:-1]))
        thinned = batches["records"] < batches["last_offset_delta"].astype(np.int64) + 1
        self.found = (
            self.found or self._gap_before_last or bool(gaps[:-1].any()) or bool(thinned.any())
        )
        self._gap_before_last = bool(gaps[-1])
        self._end = int(ends[-1])


class Leap(NamedTuple):
    """The last batch of a walk: where it is, the offset after the batch before it, its base offset,
    and the offset after it.
    """

    position: int
    expected: int
    found: int
    end: int

    def is_damage(self, base: int) -> bool:
        """Whether one changed bit has made the only offset that the segment of this base cannot
        hold.

        No checksum covers a base offset. That many records can be compacted away in a segment of an
        old broker, but an offset that only one bit separates from the one that continues the log is
        not one that a cleaner has left.
        """
        is_alone = self.end - base > RELATIVE_MAX + 1 and self.expected - base <= RELATIVE_MAX + 1
        return is_alone and (self.expected ^ self.found).bit_count() == 1


def rebuild(
    directory: Path, base: int, size: int, interval_bytes: int, *, final: bool, mode: int
) -> index.Builder:
    """Rebuild both indexes and the digests of a segment from its first `size` bytes. REQUIRES the
    append lock, and that these bytes were checked: the indexes would end before a bad batch.

    `final` adds the last time-index entry, as in a closed segment.
    """
    builder = index.Builder(base, interval_bytes)
    path = file_names.segment_path(directory, base)
    with files.opened(path) as fd:
        walk = Walk(fd, path, Chain(gaps_allowed=True), 0, size)
        for batches in walk:
            builder.add(batches, walk.before)
    if final:
        builder.add_time_entry()
    builder.write(directory, mode)
    return builder


def create(directory: Path, base: int, mode: int, allocate_bytes: int = 0) -> None:
    """Create empty files, replacing leftovers with the same names; the log reserves
    `allocate_bytes`, which read as zeros.

    REQUIRES the append lock and the roll intent in the page.
    """
    for suffix in (file_names.INDEX, file_names.TIME_INDEX, file_names.DIGESTS, file_names.LOG):
        path = file_names.segment_path(directory, base, suffix)
        with files.opened(path, files.CREATE, mode) as fd:
            files.truncate(fd, 0, path)
            if allocate_bytes and suffix == file_names.LOG:
                files.allocate(fd, allocate_bytes, path)
    files.unlink(
        file_names.segment_path(directory, base, file_names.TRANSACTION_INDEX), missing_ok=True
    )


def set_aside(
    directory: Path,
    base: int,
    suffixes: tuple[str, ...] = (*file_names.SEGMENT_SUFFIXES, file_names.SNAPSHOT),
) -> None:
    """Rename the files of a segment that is no longer part of the log; they are unlinked after
    their delay.
    """
    for suffix in suffixes:
        path = file_names.segment_path(directory, base, suffix)
        _rename_if_there(path, path.with_name(path.name + file_names.DELETED))
    # readers work without them
    files.unlink(file_names.segment_path(directory, base, file_names.DIGESTS), missing_ok=True)


def _rename_if_there(source: Path, target: Path) -> None:
    if files.exists(source):
        files.rename(source, target)


def finish(
    directory: Path,
    base: int,
    size: int,
    index_entries: int,
    time_entries: int,
    final_entry: tuple[int, int] | None,
    *,
    sync: bool,
) -> int:
    """Finish a segment as Kafka closes one: final time-index entry, all files truncated to their
    size (format.md 2.5).

    Returns the number of time-index entries. REQUIRES the append lock.
    """
    files_of = paths(directory, base)
    if final_entry is not None:
        with files.opened(files_of.time_index, files.WRITE) as fd:
            files.write_all(
                fd,
                index.TIME_ENTRY.pack(*final_entry),
                time_entries * index.TIME_ENTRY.size,
                files_of.time_index,
            )
        time_entries += 1
    sizes = (
        (files_of.log, size),
        (files_of.offset_index, index_entries * index.OFFSET_ENTRY.size),
        (files_of.time_index, time_entries * index.TIME_ENTRY.size),
        (
            file_names.segment_path(directory, base, file_names.DIGESTS),
            index_entries * interval_digests.RECORD_BYTES,
        ),
    )
    for path, expected_size in sizes:
        if path.name.startswith(file_names.DIGESTS) and not files.exists(path):
            continue  # a broker's segment has none
        with files.opened(path, files.WRITE) as fd:
            if files.facts(fd, path).size != expected_size:
                files.truncate(fd, expected_size, path)
            if sync:
                files.sync(fd, path)
    if sync and files.exists(files_of.transaction_index):
        with files.opened(files_of.transaction_index) as fd:
            files.sync(fd, files_of.transaction_index)
    return time_entries


def size_of(directory: Path, base: int) -> int:
    """Bytes in the `.log` file now. Raises StorageError if it is absent."""
    path = file_names.segment_path(directory, base)
    facts = files.facts_of(path)
    if facts is None:
        raise StorageError("no such segment", errno=2, path=path)
    return facts.size


def first_batch_max_timestamp(directory: Path, base: int, size: int) -> int:
    """The largest timestamp of the first batch, -1 if there is none."""
    path = file_names.segment_path(directory, base)
    if size > 0:
        with files.opened(path) as fd:
            for heads in Walk(fd, path, Chain(gaps_allowed=True), 0, size, bounded=False).heads():
                return heads[0].max_timestamp
    return -1


def copy_aside(path: Path, start: int, end: int, target: Path, mode: int) -> None:
    """Keep bytes before they are truncated, unless all are zero. Holes and zeros become holes of
    the copy.
    """
    with files.opened(path) as source, contextlib.ExitStack() as opened:
        fd = -1
        for first, range_end in files.data_ranges(source, start, end, path):
            for at in range(first, range_end, CHUNK_BYTES):
                data = files.pread(source, min(CHUNK_BYTES, range_end - at), at, path)
                if not data.strip(b"\0"):
                    continue
                if fd < 0:
                    fd = opened.enter_context(files.opened(target, files.CREATE | os.O_TRUNC, mode))
                files.write_all(fd, data, at - start, target)
        if fd >= 0:
            files.truncate(fd, end - start, target)
            files.sync(fd, target)
