"""Conversions between the descriptions of a segment: published tuple, manifest record, index
builder, files.

- Every field of a description is named here once.
- A description made from files alone has no digest and no lower bound of timestamps, and offsets
  may be missing.
- Its largest timestamp is that of the batch that the last time-index entry names, and of no later
  batch that is read.
"""

from __future__ import annotations

from bisect import bisect_right
from pathlib import Path
from typing import Final, NamedTuple

from embedlog import index, segment
from embedlog._native import system
from embedlog._native.system import Published
from embedlog.errors import CorruptRecordError
from embedlog.format.aborted_transactions import ENTRY_SIZE
from embedlog.format.record_batch import Chain, Head
from embedlog.format.record_columns import OFFSET_MAX, ROW_BYTES, heads
from embedlog.storage import file_names, files
from embedlog.storage.manifest import (
    CLOSED,
    DIGESTED,
    EMPTY_MS,
    GAPLESS,
    SEALED,
    SegmentInfo,
    Start,
)

HEADERS_AT_ONCE: Final = 64


class FromFiles(NamedTuple):
    """A description made from files, and the offset after the last batch; None if its header cannot
    be read.
    """

    info: SegmentInfo
    end: int | None


def start_of(published: Published, visit: int) -> Start:
    """The start of the log, for the manifest."""
    return Start(
        published.log_start, -1 if published.flags & GAPLESS else published.segment_base, visit
    )


def size_of_active(directory: str, published: Published) -> int:
    """Bytes in the file of the active segment. Raises CorruptRecordError if published ones are
    missing, also the whole file.

    A missing partition directory is a StorageError.
    """
    path = file_names.segment_name(directory, published.segment_base)
    facts = files.facts_of(path)
    if facts is None and files.is_directory(directory):
        raise CorruptRecordError(
            "the active segment is missing; another program has removed it: restore it, or close "
            "the log and repair it",
            path=path,
        )
    size = segment.size_of(Path(directory), published.segment_base) if facts is None else facts.size
    if size < published.segment_size:
        raise CorruptRecordError(
            "published bytes are missing",
            path=path,
            expected=f"{published.segment_size} bytes",
            found=size,
        )
    return size


def active_info(published: Published) -> SegmentInfo:
    """The active segment as published."""
    return SegmentInfo(
        published.segment_base,
        published.segment_size,
        published.log_end,
        published.max_timestamp,
        published.max_timestamp_offset,
        published.digest,
        published.index_entries,
        published.time_entries,
        published.transaction_entries,
        published.created_ms,
        published.epoch,
        published.flags,
        CLOSED,
        published.transaction_digest,
        published.min_timestamp,
        published.lateness_ms,
    )


def built_info(
    builder: index.Builder, size: int, next_offset: int, digest: int, epoch: int
) -> SegmentInfo:
    """A sealed segment that was read or written whole, as its index builder read it."""
    return SegmentInfo(
        builder.base,
        size,
        next_offset,
        builder.max_timestamp,
        builder.max_timestamp_offset,
        digest,
        builder.offset_entries,
        builder.time_entries,
        epoch=epoch,
        flags=DIGESTED,
        kind=SEALED,
        min_timestamp=builder.min_timestamp,
        lateness_ms=builder.lateness_ms,
    )


def info_from_files(directory: Path, base: int, size: int, next_offset: int) -> FromFiles | None:
    """A segment as its files describe it: the last time-index entry of a sealed segment has its
    largest timestamp.

    None if that entry is wrong: it names no batch of its time, or a newer batch follows the last
    entry of the offset index. If batches there cannot be read, the times are unknown. Raises
    CorruptRecordError for an index of an invalid size.
    """
    time_index = file_names.segment_path(directory, base, file_names.TIME_INDEX)
    offset_index = file_names.segment_path(directory, base, file_names.INDEX)
    times = index.read_end(time_index, index.TIME_ENTRY)
    offsets = index.read_end(offset_index, index.OFFSET_ENTRY)
    timestamp = -1
    relative = 0
    if times.entry is not None:
        timestamp, relative = times.entry
        if timestamp < 0 or not 0 <= relative < next_offset - base:
            return None
        if times.before is not None:
            timestamp_before, relative_before = times.before
            if timestamp_before >= timestamp or relative_before >= relative:
                return None
    start = 0
    if offsets.entry is not None:
        start = offsets.entry[1]
    info = SegmentInfo(
        base,
        size,
        next_offset,
        timestamp,
        base + relative,
        index_entries=offsets.entry_count,
        time_entries=times.entry_count,
        transaction_entries=transactions_in(directory, base),
    )
    path = file_names.segment_path(directory, base)
    with files.opened(path) as fd:
        last_heads = _read_heads(fd, path, base, start, size)
        if last_heads is None:
            without_times = info._replace(
                max_timestamp=-1, max_timestamp_offset=base, time_entries=0
            )
            return FromFiles(without_times, None)
        if times.entry_count and not _is_newest(info, last_heads, fd, path):
            return None
    end = base
    if last_heads:
        end = last_heads[-1].base_offset + last_heads[-1].last_offset_delta + 1
    return FromFiles(info, end)


def _is_newest(info: SegmentInfo, last_heads: list[Head], fd: int, path: Path) -> bool:
    """Whether the last time-index entry names a batch of its time, and none of the last batches is
    newer.
    """
    entry = index.Time(info.max_timestamp, info.max_timestamp_offset)
    if _newest(last_heads) > entry.timestamp_ms:
        return False
    heads: list[Head] | None = last_heads
    if info.index_entries and (not last_heads or entry.offset < last_heads[0].base_offset):
        with files.opened(path.with_suffix(file_names.INDEX)) as index_fd:
            entry_before = index.offset_floor(index_fd, info.index_entries, info.base, entry.offset)
        heads = _read_heads(fd, path, info.base, entry_before.position, info.size, entry.offset)
    return heads is not None and _names_a_batch(entry, heads)


def _names_a_batch(entry: index.Time, heads: list[Head]) -> bool:
    """Whether the batch with the offset of a time-index entry has its timestamp."""
    number = bisect_right(heads, entry.offset, key=lambda head: head.base_offset) - 1
    if number < 0:
        return False
    batch = heads[number]
    has_offset = entry.offset <= batch.base_offset + batch.last_offset_delta
    return has_offset and batch.max_timestamp == entry.timestamp_ms


def _newest(heads: list[Head]) -> int:
    """The largest timestamp of batches; -1 without any. A cleaner leaves batches without records:
    they have none.
    """
    return max((head.max_timestamp for head in heads if head.record_count > 0), default=-1)


def newest_header(directory: Path, info: SegmentInfo) -> int:
    """The largest timestamp in the batch headers of a segment, which are all read; -1 if they
    cannot be read.
    """
    path = file_names.segment_path(directory, info.base)
    with files.opened(path) as fd:
        batch_heads = _read_heads(fd, path, info.base, 0, info.size)
    return _newest(batch_heads or [])


def _read_heads(
    fd: int, path: Path, base: int, start: int, size: int, last: int = OFFSET_MAX
) -> list[Head] | None:
    """The headers of the batches from byte `start` on, at least up to the offset `last`; None if
    they cannot be read.
    """
    if not 0 <= start <= size:
        return None
    batch_heads: list[Head] = []
    rows = bytearray(HEADERS_AT_ONCE * ROW_BYTES)
    position = start
    try:
        while position < size and (not batch_heads or batch_heads[-1].base_offset <= last):
            count, position = system.walk_headers(fd, position, size, rows, base)
            batch_heads += heads(memoryview(rows)[: count * ROW_BYTES])
    except CorruptRecordError:  # of an old format, or damaged
        walk = segment.Walk(fd, path, Chain(gaps_allowed=True), start, size, bounded=False)
        batch_heads = [head for chunk in walk.heads() for head in chunk]
        if walk.problem is not None or walk.end < size:
            return None
    return batch_heads


def transactions_in(directory: Path, base: int) -> int:
    """Entries of a transaction index, by the size of the file."""
    return index.count_entries(
        file_names.segment_path(directory, base, file_names.TRANSACTION_INDEX), ENTRY_SIZE
    )


def published_of(
    info: SegmentInfo, since_entry: int, time_entries: int, last_time_entry: int | None = None
) -> Published:
    """A tuple whose active segment is `info`. The caller sets the fields that describe the log."""
    return Published(
        segment_base=info.base,
        segment_size=info.size,
        log_end=info.next_offset,
        high_watermark=info.next_offset,
        max_timestamp=info.max_timestamp,
        max_timestamp_offset=info.max_timestamp_offset,
        min_timestamp=info.min_timestamp,
        lateness_ms=info.lateness_ms,
        last_time_entry=info.max_timestamp if last_time_entry is None else last_time_entry,
        created_ms=info.created_ms or system.wall_ms(),
        bytes_since_entry=since_entry,
        digest=info.digest,
        epoch=info.epoch,
        index_entries=info.index_entries,
        time_entries=time_entries,
        transaction_entries=info.transaction_entries,
        flags=info.flags,
    )


def builder_at(published: Published, interval_bytes: int) -> index.Builder:
    """A builder that continues the active segment. It counts only the entries that follow."""
    builder = index.Builder(published.segment_base, interval_bytes)
    builder.bytes_since_entry = published.bytes_since_entry
    builder.last_time_entry = published.last_time_entry
    builder.max_timestamp = published.max_timestamp
    builder.max_timestamp_offset = published.max_timestamp_offset
    builder.min_timestamp = published.min_timestamp
    builder.lateness_ms = published.lateness_ms
    return builder


def published_after(
    published: Published,
    builder: index.Builder,
    size: int,
    log_end: int,
    digest: int,
    *,
    before: tuple[int, int] = (0, 0),
) -> Published:
    """The tuple after a builder has seen the active segment up to `size` bytes.

    `before`: entries of the offset index and of the time index that the builder continues
    (`builder_at`).
    """
    return published._replace(
        segment_base=builder.base,
        segment_size=size,
        log_end=log_end,
        high_watermark=log_end,
        digest=digest,
        max_timestamp=builder.max_timestamp,
        max_timestamp_offset=builder.max_timestamp_offset,
        min_timestamp=builder.min_timestamp,
        lateness_ms=builder.lateness_ms,
        last_time_entry=builder.last_time_entry,
        bytes_since_entry=builder.bytes_since_entry,
        index_entries=before[0] + builder.offset_entries,
        time_entries=before[1] + builder.time_entries,
    )


def published_empty(published: Published, base: int, jitter_ms: int) -> Published:
    """The tuple with a new, empty active segment at `base`."""
    jitter = 0
    if jitter_ms > 0:
        from random import randrange  # few topics need it

        jitter = randrange(jitter_ms)
    return published._replace(
        segment_base=base,
        segment_size=0,
        max_timestamp=-1,
        max_timestamp_offset=base,
        min_timestamp=EMPTY_MS,
        lateness_ms=0,
        last_time_entry=-1,
        first_timestamp=-1,
        created_ms=system.wall_ms(),
        roll_jitter_ms=jitter,
        bytes_since_entry=0,
        digest=0,
        index_entries=0,
        time_entries=0,
        transaction_entries=0,
        transaction_digest=0,
        flags=GAPLESS | DIGESTED,
    )


def final_time_entry(published: Published) -> tuple[int, int] | None:
    """The time-index entry with which the active segment is closed; None if its last entry has the
    largest timestamp.
    """
    if published.max_timestamp <= published.last_time_entry:
        return None
    return published.max_timestamp, published.max_timestamp_offset - published.segment_base
