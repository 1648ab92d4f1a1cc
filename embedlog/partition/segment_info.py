"""Conversions between the descriptions of a segment: published tuple, manifest record, index
builder, files.

SEGMENTINFO-1  every field of a description is named here once
SEGMENTINFO-2  a description made from files alone has no digest and no lower bound of timestamps,
    and offsets may be missing
SEGMENTINFO-3  its largest timestamp is that of the batch that the last time-index entry names, and
    of no later batch that is read
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


def start_of(now: Published, visit: int) -> Start:
    """The start of the log, for the manifest."""
    return Start(now.log_start, -1 if now.flags & GAPLESS else now.segment_base, visit)


def size_of_active(directory: str, now: Published) -> int:
    """Bytes in the file of the active segment. Raises CorruptRecordError if published ones are
    missing, also the whole file.

    A missing partition directory is a StorageError.
    """
    path = file_names.segment_name(directory, now.segment_base)
    facts = files.facts_of(path)
    if facts is None and files.is_directory(directory):
        raise CorruptRecordError(
            "the active segment is missing; another program has removed it: restore it, or close "
            "the log and repair it",
            path=path,
        )
    size = segment.size_of(Path(directory), now.segment_base) if facts is None else facts.size
    if size < now.segment_size:
        raise CorruptRecordError(
            "published bytes are missing",
            path=path,
            expected=f"{now.segment_size} bytes",
            found=size,
        )
    return size


def active_info(now: Published) -> SegmentInfo:
    """The active segment as published."""
    return SegmentInfo(
        now.segment_base,
        now.segment_size,
        now.log_end,
        now.max_timestamp,
        now.max_timestamp_offset,
        now.digest,
        now.index_entries,
        now.time_entries,
        now.transaction_entries,
        now.created_ms,
        now.epoch,
        now.flags,
        CLOSED,
        now.transaction_digest,
        now.min_timestamp,
        now.lateness_ms,
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
    times = index.last(
        file_names.segment_path(directory, base, file_names.TIME_INDEX), index.TIME_ENTRY
    )
    offsets = index.last(
        file_names.segment_path(directory, base, file_names.INDEX), index.OFFSET_ENTRY
    )
    timestamp, relative = times.entry or (-1, 0)
    rising = times.before is None or (times.before[0] < timestamp and times.before[1] < relative)
    if times.entry is not None and (
        timestamp < 0 or not 0 <= relative < next_offset - base or not rising
    ):
        return None
    info = SegmentInfo(
        base,
        size,
        next_offset,
        timestamp,
        base + relative,
        index_entries=offsets.entries,
        time_entries=times.entries,
        transaction_entries=transactions_in(directory, base),
    )
    path = file_names.segment_path(directory, base)
    with files.opened(path) as fd:
        last = _heads(fd, path, base, offsets.entry[1] if offsets.entry is not None else 0, size)
        if last is None:
            return FromFiles(
                info._replace(max_timestamp=-1, max_timestamp_offset=base, time_entries=0), None
            )
        if times.entries and not _is_newest(info, last, fd, path):
            return None
    return FromFiles(info, last[-1].base_offset + last[-1].last_offset_delta + 1 if last else base)


def _is_newest(info: SegmentInfo, last: list[Head], fd: int, path: Path) -> bool:
    """Whether the last time-index entry names a batch of its time, and none of the `last` batches
    is newer.
    """
    entry = index.Time(info.max_timestamp, info.max_timestamp_offset)
    if _newest(last) > entry.timestamp_ms:
        return False
    found: list[Head] | None = last
    if info.index_entries and (not last or entry.offset < last[0].base_offset):
        with files.opened(path.with_suffix(file_names.INDEX)) as opened:
            place = index.offset_floor(opened, info.index_entries, info.base, entry.offset)
        found = _heads(fd, path, info.base, place.position, info.size, entry.offset)
    return found is not None and _names_a_batch(entry, found)


def _names_a_batch(entry: index.Time, found: list[Head]) -> bool:
    """Whether the batch with the offset of a time-index entry has its timestamp."""
    at = bisect_right(found, entry.offset, key=lambda head: head.base_offset) - 1
    if at < 0 or entry.offset > found[at].base_offset + found[at].last_offset_delta:
        return False
    return found[at].max_timestamp == entry.timestamp_ms


def _newest(found: list[Head]) -> int:
    """The largest timestamp of batches; -1 without any. A cleaner leaves batches without records:
    they have none.
    """
    return max((head.max_timestamp for head in found if head.record_count > 0), default=-1)


def newest_header(directory: Path, info: SegmentInfo) -> int:
    """The largest timestamp in the batch headers of a segment, which are all read; -1 if they
    cannot be read.
    """
    path = file_names.segment_path(directory, info.base)
    with files.opened(path) as fd:
        return _newest(_heads(fd, path, info.base, 0, info.size) or [])


def _heads(
    fd: int, path: Path, base: int, start: int, size: int, last: int = OFFSET_MAX
) -> list[Head] | None:
    """The headers of the batches from byte `start` on, at least up to the offset `last`; None if
    they cannot be read.
    """
    if not 0 <= start <= size:
        return None
    found: list[Head] = []
    rows = bytearray(HEADERS_AT_ONCE * ROW_BYTES)
    at = start
    try:
        while at < size and (not found or found[-1].base_offset <= last):
            count, at = system.walk_headers(fd, at, size, rows, base)
            found += heads(memoryview(rows)[: count * ROW_BYTES])
    except CorruptRecordError:  # of an old format, or damaged
        walk = segment.Walk(fd, path, Chain(gaps_allowed=True), start, size, bounded=False)
        found = [head for part in walk.heads() for head in part]
        if walk.problem is not None or walk.end < size:
            return None
    return found


def transactions_in(directory: Path, base: int) -> int:
    """Entries of a transaction index, by the size of the file."""
    return index.count(
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


def builder_at(now: Published, interval_bytes: int) -> index.Builder:
    """A builder that continues the active segment. It counts only the entries that follow."""
    builder = index.Builder(now.segment_base, interval_bytes)
    builder.bytes_since_entry = now.bytes_since_entry
    builder.last_time_entry = now.last_time_entry
    builder.max_timestamp = now.max_timestamp
    builder.max_timestamp_offset = now.max_timestamp_offset
    builder.min_timestamp = now.min_timestamp
    builder.lateness_ms = now.lateness_ms
    return builder


def published_after(
    now: Published,
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
    return now._replace(
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


def published_empty(now: Published, base: int, jitter_ms: int) -> Published:
    """The tuple with a new, empty active segment at `base`."""
    jitter = 0
    if jitter_ms > 0:
        from random import randrange  # few topics need it

        jitter = randrange(jitter_ms)
    return now._replace(
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


def final_time_entry(now: Published) -> tuple[int, int] | None:
    """The time-index entry with which the active segment is closed; None if its last entry has the
    largest timestamp.
    """
    return (
        (now.max_timestamp, now.max_timestamp_offset - now.segment_base)
        if now.max_timestamp > now.last_time_entry
        else None
    )
