"""Reads pages of the records of a topic, from the newest to older ones, or from a position to newer
ones.

PAGES-1  a page reads about its own records, however long the log is; keys and values are kept up to
    `PREVIEW_BYTES`
PAGES-2  pages follow each other without a gap and without a repetition in each partition, because a
    cursor has an offset for each
PAGES-3  records of several partitions are merged by time, and stay in the order of their offsets
    within a partition
PAGES-4  a search reads pieces of `PIECE_BYTES`, and can be cancelled between two pieces; it reports
    what it has read
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import NamedTuple

from embedlog import Log, Record, Split, TopicPartition
from embedlog.console.model.filters import Matcher
from embedlog.console.model.reader import Task

PIECE_BYTES = 8 << 20
PREVIEW_BYTES = 1024
BLOCK_MAX = 1 << 16  # offsets of one read in a partition with few records


class Line(NamedTuple):
    """A record in a page, with the begins of its key and value."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    size_bytes: int
    header_count: int


class Cursor(NamedTuple):
    """Where a page begins: the end of the older records, or the start of the newer ones, by
    partition.
    """

    newest_first: bool
    offsets: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Page:
    """Some records, and where the next page begins; None if all have been read."""

    lines: tuple[Line, ...]
    cursor: Cursor
    following: Cursor | None
    complete: bool = True  # whether the search was not cancelled


def from_end(log: Log, topic: str, partitions: Sequence[int]) -> Cursor:
    """The newest records."""
    ends = {part.partition: part.high_watermark for part in log.describe_topic(topic).partitions}
    return Cursor(
        True,
        {number: end for number, end in ends.items() if not partitions or number in partitions},
    )


def from_offset(log: Log, topic: str, partitions: Sequence[int], offset: int) -> Cursor:
    """The records at an offset of each partition, and newer ones."""
    return Cursor(False, dict.fromkeys(from_end(log, topic, partitions).offsets, offset))


def from_time(log: Log, topic: str, partitions: Sequence[int], time_ms: int) -> Cursor:
    """The first record of each partition at or after a time, and newer ones."""
    ends = from_end(log, topic, partitions).offsets
    consumer = log.consumer()
    try:
        found = consumer.offsets_for_times(
            {TopicPartition(topic, number): time_ms for number in ends}
        )
    finally:
        consumer.close()
    places = {number: found[TopicPartition(topic, number)] for number in ends}
    return Cursor(
        False,
        {
            number: ends[number] if place is None else place.offset
            for number, place in places.items()
        },
    )


def read(log: Log, topic: str, cursor: Cursor, count: int) -> Page:
    """The next `count` records."""
    bounds = _bounds(log, topic, cursor)
    block = max(4, 2 * count // max(len(bounds), 1))
    walk = _older if cursor.newest_first else _newer
    streams = [walk(log, topic, number, *bounds[number], block) for number in sorted(bounds)]
    lines: list[Line] = []
    offsets = dict(cursor.offsets)
    for line in _merged(streams, cursor.newest_first):
        if len(lines) == count:
            return Page(tuple(lines), cursor, Cursor(cursor.newest_first, offsets))
        lines.append(line)
        offsets[line.partition] = line.offset if cursor.newest_first else line.offset + 1
    return Page(tuple(lines), cursor, None)


def search(log: Log, topic: str, cursor: Cursor, count: int, matcher: Matcher, task: Task) -> Page:
    """The next records that match, at least `count` if there are so many. They are merged by
    time.
    """
    pieces = list(_pieces(log, topic, cursor))
    total = sum(piece.size_bytes for piece in pieces)
    offsets = dict(cursor.offsets)
    done = 0
    newest_first = cursor.newest_first
    lines: list[Line] = []
    more = False
    for piece in pieces:
        if task.cancelled.is_set() or len(lines) >= count:
            more = True
            break
        found, whole = _nearest(
            _matches(log, topic, piece, matcher), count - len(lines), newest_first
        )
        lines += found
        done += piece.size_bytes
        task.progress = (done, total, len(lines))
        if not whole:
            last = found[-1].offset
            offsets[piece.partition] = last if newest_first else last + 1
            more = True
            break
        offsets[piece.partition] = piece.start_offset if newest_first else piece.end_offset
    parts = [
        iter([line for line in lines if line.partition == number]) for number in sorted(offsets)
    ]
    return Page(
        tuple(_merged(parts, newest_first)),
        cursor,
        Cursor(newest_first, offsets) if more else None,
        not task.cancelled.is_set(),
    )


def record_at(log: Log, topic: str, partition: int, offset: int) -> Record[bytes, bytes] | None:
    """One whole record; None if it was deleted."""
    found = log.scan(topic, partitions=partition, start_offset=offset, end_offset=offset + 1).head(
        1
    )
    return found[0] if found else None


# ---- records in the order of a page --------------------------------------------------------------


def _line(record: Record[bytes, bytes]) -> Line:
    key = record.key
    value = record.value
    size = (0 if key is None else len(key)) + (0 if value is None else len(value))
    return Line(
        record.partition,
        record.offset,
        record.timestamp_ms,
        None if key is None else key[:PREVIEW_BYTES],
        None if value is None else value[:PREVIEW_BYTES],
        size,
        len(record.headers),
    )


def _bounds(log: Log, topic: str, cursor: Cursor) -> dict[int, tuple[int, int]]:
    """First offset and end of the records that a cursor leaves."""
    found = {}
    for part in log.describe_topic(topic).partitions:
        if part.partition in cursor.offsets:
            offset = cursor.offsets[part.partition]
            start = part.log_start_offset
            end = part.high_watermark
            found[part.partition] = (
                (start, min(offset, end)) if cursor.newest_first else (max(offset, start), end)
            )
    return {number: (start, end) for number, (start, end) in found.items() if start < end}


def _older(log: Log, topic: str, number: int, start: int, end: int, block: int) -> Iterator[Line]:
    while start < end:
        low = max(start, end - block)
        lines = _block(log, topic, number, low, end)
        yield from reversed(lines)
        end = low
        block = _grown(block, lines)


def _newer(log: Log, topic: str, number: int, start: int, end: int, block: int) -> Iterator[Line]:
    while start < end:
        high = min(end, start + block)
        lines = _block(log, topic, number, start, high)
        yield from lines
        start = high
        block = _grown(block, lines)


def _block(log: Log, topic: str, number: int, low: int, high: int) -> list[Line]:
    scan = log.scan(topic, partitions=number, start_offset=low, end_offset=high)
    return [_line(record) for record in scan.records()]


def _grown(block: int, lines: Sequence[Line]) -> int:
    """The offsets of the next read: more after deleted records, so that a compacted log is not read
    in tiny steps.
    """
    return min(4 * block, BLOCK_MAX) if 2 * len(lines) < block else block


def _merged(streams: Iterable[Iterator[Line]], newest_first: bool) -> Iterator[Line]:
    """The first lines of all streams by time; a stream keeps its own order (PAGES-3)."""
    order = _Order(newest_first)
    heads = [
        (order(line), number, line, stream)
        for number, stream in enumerate(streams)
        if (line := next(stream, None))
    ]
    heapq.heapify(heads)
    while heads:
        _, number, line, stream = heads[0]
        yield line
        after = next(stream, None)
        if after is None:
            heapq.heappop(heads)
        else:
            heapq.heapreplace(heads, (order(after), number, after, stream))


class _Order:
    """The sort key of a line."""

    def __init__(self, newest_first: bool) -> None:
        self._sign = -1 if newest_first else 1

    def __call__(self, line: Line) -> tuple[int, int, int]:
        return self._sign * line.timestamp_ms, line.partition, self._sign * line.offset


# ---- searches ------------------------------------------------------------------------------------


def _pieces(log: Log, topic: str, cursor: Cursor) -> Iterator[Split]:
    """The pieces of all partitions in turns, each partition from its cursor on."""
    lists = []
    for number, (start, end) in sorted(_bounds(log, topic, cursor).items()):
        scan = log.scan(topic, partitions=number, start_offset=start, end_offset=end)
        found = scan.splits(PIECE_BYTES)
        lists.append(found[::-1] if cursor.newest_first else found)
    return (piece for piece in chain.from_iterable(zip_longest(*lists)) if piece is not None)


def _matches(
    log: Log, topic: str, piece: Split, matcher: Matcher
) -> Iterator[Record[bytes, bytes]]:
    scan = log.scan(
        topic,
        partitions=piece.partition,
        start_offset=piece.start_offset,
        end_offset=piece.end_offset,
        start_time=matcher.since_ms,
        end_time=matcher.until_ms,
    )
    searched = matcher.searched()
    records = (
        scan.records()
        if searched is None
        else iter(scan.search(searched[0], columns=[searched[1]]))
    )
    return (record for record in records if matcher.accepts(record))


def _nearest(
    records: Iterator[Record[bytes, bytes]], count: int, newest_first: bool
) -> tuple[list[Line], bool]:
    """The nearest lines in the direction, and whether these are all of them."""
    if newest_first:
        kept = deque(map(_line, records), maxlen=count + 1)
        return list(reversed(kept))[:count], len(kept) <= count
    lines: list[Line] = []
    for record in records:
        if len(lines) == count:
            return lines, False
        lines.append(_line(record))
    return lines, True
