"""Offset and time index of a segment (format.md 2.2, 2.3, 2.5).

- Losing an index loses time, never data: `Builder` makes it again from the batches.
- An entry names the last offset and the first byte of one batch; every user of an entry compares it
  with the batch there. A time entry names the largest timestamp so far, and the last offset of the
  first batch that has it.
- The number of valid entries comes from the page or from the file's size, never from the content of
  the entries.
- Each offset entry has the digest of all batches before it (`digests`).
- Entries are written at number x size, never appended: a failed append leaves nothing that the next
  one does not overwrite.
"""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from embedlog._native import codec, system
from embedlog._native.lazy_numpy import np
from embedlog.errors import CorruptRecordError
from embedlog.format.record_batch import Batches, batch_dtype
from embedlog.format.record_columns import RELATIVE_MAX
from embedlog.storage import file_names, files, interval_digests
from embedlog.storage.manifest import EMPTY_MS

if TYPE_CHECKING:
    from numpy.typing import NDArray

OFFSET_ENTRY: Final = struct.Struct(">ii")  # relative offset, position
TIME_ENTRY: Final = struct.Struct(">qi")  # timestamp, relative offset
# the bytes of a batch header with the size of what follows
SIZE_START = 8
SIZE_END = 12
INDEX_BYTES_MAX: Final = file_names.INT_MAX  # the largest segment.index.bytes


class IndexEntry(NamedTuple):
    """The start of a lookup: entry number (-1: the segment's start), the last offset of the batch
    there, its first byte.
    """

    number: int
    last_offset: int
    position: int

    def begins(self, batches: Batches, first: int) -> bool:
        """Whether the first of these batches is the named one, which begins at offset `first` if
        that is not -1.
        """
        if not len(batches) or (first >= 0 and batches["base_offset"][0] != first):
            return False
        return int(batches["base_offset"][0] + batches["last_offset_delta"][0]) == self.last_offset


class Time(NamedTuple):
    """An entry of a time index: a timestamp, and an offset of the first batch that has it."""

    timestamp_ms: int
    offset: int

    @classmethod
    def read(cls, raw: bytes, base: int) -> Time:
        timestamp_ms, relative = TIME_ENTRY.unpack(raw)
        return cls(timestamp_ms, base + relative)

    def row(self, batches: Batches) -> int | None:
        """The row of the batch with this offset, if the batch has this timestamp; None if the entry
        is wrong.
        """
        at = int(np.searchsorted(batches["base_offset"], self.offset, "right")) - 1
        if at < 0 or self.offset > batches["base_offset"][at] + batches["last_offset_delta"][at]:
            return None
        return at if batches["max_timestamp"][at] == self.timestamp_ms else None


class IndexEnd(NamedTuple):
    """The end of an index file: its number of entries, the last one, and the one before."""

    entry_count: int = 0
    entry: tuple[int, int] | None = None
    before: tuple[int, int] | None = None


class Cut(NamedTuple):
    """A boundary between two batches: the base offset of the second, and a position that is not
    below that of this batch. All batches in between belong to the second part.
    """

    offset: int
    position_bound: int


def count_entries(path: Path, entry_bytes: int) -> int:
    """Entries in an index file by its size, 0 if it is absent. Raises CorruptRecordError for an
    invalid size.
    """
    facts = files.facts_of(path)
    return _check_size(path, facts.size) // entry_bytes if facts is not None else 0


def _check_size(path: Path, size: int) -> int:
    """The size of an index, if its number of entries fits the control page: a sparse file can have
    any size. Raises CorruptRecordError.
    """
    if size > INDEX_BYTES_MAX:
        raise CorruptRecordError(
            "an index is too large",
            path=path,
            expected=f"at most {INDEX_BYTES_MAX} bytes",
            found=size,
        )
    return size


def offset_floor(fd: int, entries: int, base: int, offset: int) -> IndexEntry:
    """The last entry at or below `offset`, or the segment's start, also if the index is shorter
    than it should be.
    """
    target = min(offset - base, RELATIVE_MAX)
    if entries == 0 or target < 0:
        return IndexEntry(-1, base - 1, 0)
    floor = codec.index_floor_file(fd, entries, target)
    if floor is None:
        return IndexEntry(-1, base - 1, 0)
    relative, position = OFFSET_ENTRY.unpack(floor[1])
    return IndexEntry(floor[0], base + relative, position)


def find_adjacent(fd: int, log_fd: int, base: int, index_entry: IndexEntry) -> IndexEntry | None:
    """The entry after `index_entry`, if its batch directly follows by the size in the header;
    None otherwise. REQUIRES: the index has that entry.
    """
    following = read_entry(fd, index_entry.number + 1)
    head = files.pread(log_fd, SIZE_END, index_entry.position, file_names.LOG)
    end = index_entry.position + SIZE_END + int.from_bytes(head[SIZE_START:], "big", signed=True)
    if following is None or following[1] != end:
        return None
    return IndexEntry(index_entry.number + 1, base + following[0], end)


def find_cut(fd: int, entries: int, base: int, position: int, after: int) -> Cut | None:
    """The last boundary between two batches at or below byte `position`; if that is not above
    `after`, the first one above.

    An entry has the last offset of its batch, not the first: so the offset is that of the previous
    entry plus 1.
    """
    low = 1
    high = entries
    while low < high:
        middle = (low + high) // 2
        candidate = read_entry(fd, middle)
        if candidate is not None and candidate[1] <= position:
            low = middle + 1
        else:
            high = middle
    for number in range(max(1, low - 1), min(low + 1, entries)):
        previous = read_entry(fd, number - 1)
        following = read_entry(fd, number)
        if previous is not None and following is not None and following[1] > after:
            return Cut(base + previous[0] + 1, following[1])
    return None


def read_entry(fd: int, number: int) -> tuple[int, int] | None:
    """Relative offset and position; None if the file is shorter than it should be."""
    raw = files.pread(fd, OFFSET_ENTRY.size, number * OFFSET_ENTRY.size, file_names.INDEX)
    if len(raw) < OFFSET_ENTRY.size:
        return None
    offset, position = OFFSET_ENTRY.unpack(raw)
    return offset, position


def time_floor(
    fd: int, entries: int, base: int, timestamp_ms: int, lateness_ms: int = -1
) -> Time | None:
    """The entry at which a search for a time can start; None: at the segment's start. The caller
    compares it with its batch.

    In an undamaged index no record before the batch of the last entry at or below the time is
    searched. The entry may be damaged, so it is used alone only with a proof: no record before its
    batch is newer than its time plus `lateness_ms` of the segment (-1: not known). Without a proof
    the entry before it is used, if times and offsets of the two rise: then one of them may be
    damaged.
    """
    floor = codec.time_floor_file(fd, entries, timestamp_ms) if entries else None
    if floor is None:
        return None
    number, last_raw = floor
    last = Time.read(last_raw, base)
    if 0 <= lateness_ms < timestamp_ms - last.timestamp_ms:
        return last
    before = _read_time(fd, number - 1, base) if number else None
    if before is None or before.timestamp_ms >= last.timestamp_ms or before.offset >= last.offset:
        return None
    return before


def time_ceiling(fd: int, entries: int, base: int, timestamp_ms: int) -> int | None:
    """The last offset of the first batch that is as new as `timestamp_ms` according to the index;
    None without such an entry.
    """
    floor = codec.time_floor_file(fd, entries, timestamp_ms - 1) if entries else None
    number = 0 if floor is None else floor[0] + 1
    following = _read_time(fd, number, base) if number < entries else None
    return None if following is None else following.offset


def _read_time(fd: int, number: int, base: int) -> Time | None:
    """An entry of a time index; None if the file is shorter than it should be."""
    raw = files.pread(fd, TIME_ENTRY.size, number * TIME_ENTRY.size, file_names.TIME_INDEX)
    if len(raw) != TIME_ENTRY.size:
        return None
    return Time.read(raw, base)


def read_end(path: Path, layout: struct.Struct) -> IndexEnd:
    """The end of an index file; no entries if it is absent. Raises CorruptRecordError for an
    invalid size.
    """
    facts = files.facts_of(path)
    if facts is None or facts.size < layout.size:
        return IndexEnd()
    if _check_size(path, facts.size) % layout.size:
        raise CorruptRecordError(
            "invalid size of an index",
            path=path,
            expected=f"a multiple of {layout.size}",
            found=facts.size,
        )
    size = min(facts.size, 2 * layout.size)
    with files.opened(path) as fd:
        raw = files.pread(fd, size, facts.size - size, path)
    if len(raw) < size:
        raise CorruptRecordError(
            "an index was shortened while it was read", path=path, expected=facts.size
        )
    ends = list(layout.iter_unpack(raw))
    return IndexEnd(facts.size // layout.size, ends[-1], ends[-2] if len(ends) > 1 else None)


def names_its_batch(fd: int, index_entry: IndexEntry, base: int, size: int) -> bool:
    """Whether the batch at the position of an offset entry is the one that the entry names, by its
    header.
    """
    row = np.zeros(1, batch_dtype())
    with contextlib.suppress(CorruptRecordError):
        count, _ = system.walk_headers(fd, index_entry.position, size, row, base)
        return (
            count == 1
            and int(row["base_offset"][0]) + int(row["last_offset_delta"][0])
            == index_entry.last_offset
        )
    return False


def newest_timestamps(batches: Batches) -> NDArray[np.int64]:
    """The timestamp of each batch that counts for the time index. A batch that compaction emptied
    has none: -1.
    """
    return np.where(batches["records"] == 0, -1, batches["max_timestamp"]).astype(np.int64)


class Builder:
    """Builds both indexes from batch headers, by the rule of an append (format.md 2.5).

    Batches whose offsets an entry cannot hold have none: a load for writing splits their segment.
    """

    def __init__(self, base: int, interval_bytes: int) -> None:
        self.base = base
        self.interval_bytes = interval_bytes
        self.offsets = bytearray()
        self.times = bytearray()
        self.digests: list[tuple[int, int]] = []  # position, chain digest of all earlier batches
        self.bytes_since_entry = 0
        self.max_timestamp = -1
        self.max_timestamp_offset = base
        self.min_timestamp = EMPTY_MS
        self.lateness_ms = 0
        self.last_time_entry = -1

    @property
    def offset_entries(self) -> int:
        return len(self.offsets) // OFFSET_ENTRY.size

    @property
    def time_entries(self) -> int:
        return len(self.times) // TIME_ENTRY.size

    def add(self, batches: Batches, before: NDArray[np.uint64]) -> None:
        """Add the following batches; their positions are bytes of the segment. `before`: chain
        digests.
        """
        rows = zip(
            batches["base_offset"].tolist(),
            batches["last_offset_delta"].tolist(),
            batches["position"].tolist(),
            batches["size"].tolist(),
            newest_timestamps(batches).tolist(),
            np.where(batches["records"] == 0, EMPTY_MS, batches["min_timestamp"]).tolist(),
            before.tolist(),
            strict=True,
        )
        for first, delta, position, size, timestamp, oldest, digest in rows:
            last = first + delta
            # with a batch of unknown times, the smallest timestamp of the segment is unknown, and
            # its lateness too
            if oldest >= 0:
                self.lateness_ms = max(self.lateness_ms, self.max_timestamp - oldest)
            self.min_timestamp = min(self.min_timestamp, oldest)
            if timestamp > self.max_timestamp:
                self.max_timestamp = timestamp
                self.max_timestamp_offset = last
            if self.bytes_since_entry > self.interval_bytes and last - self.base <= RELATIVE_MAX:
                self.offsets += OFFSET_ENTRY.pack(last - self.base, position)
                self.digests.append((position, digest))
                self.add_time_entry()
                self.bytes_since_entry = 0
            self.bytes_since_entry += size

    def add_time_entry(self) -> None:
        """Add the largest timestamp so far, unless the index has it: at each offset entry, and when
        the segment is closed.
        """
        if (
            self.max_timestamp > self.last_time_entry
            and self.max_timestamp_offset - self.base <= RELATIVE_MAX
        ):
            self.times += TIME_ENTRY.pack(self.max_timestamp, self.max_timestamp_offset - self.base)
            self.last_time_entry = self.max_timestamp

    def records(self, first: int = 0) -> bytes:
        """The digests as stored in their file; `first` is the number of the first one."""
        records = (
            interval_digests.encode_record(self.base, first + at, *digest)
            for at, digest in enumerate(self.digests)
        )
        return b"".join(records)

    def write(self, directory: Path, mode: int = 0o666) -> None:
        """Replace the offset index, the time index and the file of digests, without a sync. REQUIRES
        the append lock.
        """
        for suffix, raw in ((file_names.INDEX, self.offsets), (file_names.TIME_INDEX, self.times)):
            path = file_names.segment_path(directory, self.base, suffix)
            with files.opened(path, files.CREATE, mode) as fd:
                files.write_all(fd, raw, 0, path)
                files.truncate(fd, len(raw), path)
        interval_digests.write_records(directory, self.base, self.records(), 0, mode)

    def write_tail(
        self,
        directory: Path,
        offset_entries: int,
        time_entries: int,
        mode: int = 0o666,
        *,
        digested: bool = True,
    ) -> None:
        """Write the built entries after the first entries of existing files, and truncate the rest.
        REQUIRES the append lock.
        """
        tails = (
            (file_names.INDEX, self.offsets, offset_entries * OFFSET_ENTRY.size),
            (file_names.TIME_INDEX, self.times, time_entries * TIME_ENTRY.size),
        )
        for suffix, raw, position in tails:
            path = file_names.segment_path(directory, self.base, suffix)
            with files.opened(path, files.CREATE, mode) as fd:
                files.write_all(fd, raw, position, path)
                files.truncate(fd, position + len(raw), path)
        if digested:
            interval_digests.write_records(
                directory, self.base, self.records(offset_entries), offset_entries, mode
            )
