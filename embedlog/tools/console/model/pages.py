"""Reads pages of the records of a topic, from the newest to older ones, or from a position to newer
ones.

- A page reads about its own records, however long the log is; keys and values are kept up to
  `PREVIEW_BYTES`.
- Pages follow each other without a gap and without a repetition in each partition, because a cursor
  has an offset for each.
- Records of several partitions are merged by time, and stay in the order of their offsets within a
  partition.
- A search reads pieces of `PIECE_BYTES`, and can be cancelled between two pieces; it reports what it
  has read.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import NamedTuple

from embedlog import Log, Record, Split, TopicPartition
from embedlog.tools.console.model.filters import Matcher
from embedlog.tools.console.model.reader import Task

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


class PageCursor(NamedTuple):
    """Where a page begins: the end of the older records, or the start of the newer ones, by
    partition.
    """

    newest_first: bool
    offsets: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class RecordPage:
    """Some records, and where the next page begins; None if all have been read."""

    lines: tuple[Line, ...]
    cursor: PageCursor
    following: PageCursor | None
    complete: bool = True  # whether the search was not cancelled


def cursor_at_end(log: Log, topic: str, partitions: Sequence[int]) -> PageCursor:
    """The newest records of these partitions, of all if none is given."""
    ends = {}
    for description in log.describe_topic(topic).partitions:
        if not partitions or description.partition in partitions:
            ends[description.partition] = description.high_watermark
    return PageCursor(newest_first=True, offsets=ends)


def cursor_at_offset(log: Log, topic: str, partitions: Sequence[int], offset: int) -> PageCursor:
    """The records at an offset of each partition, and newer ones."""
    numbers = cursor_at_end(log, topic, partitions).offsets
    return PageCursor(newest_first=False, offsets=dict.fromkeys(numbers, offset))


def cursor_at_time(log: Log, topic: str, partitions: Sequence[int], time_ms: int) -> PageCursor:
    """The first record of each partition at or after a time, and newer ones."""
    ends = cursor_at_end(log, topic, partitions).offsets
    consumer = log.consumer()
    try:
        answers = consumer.offsets_for_times(
            {TopicPartition(topic, number): time_ms for number in ends}
        )
    finally:
        consumer.close()
    offsets = {}
    for number, end in ends.items():
        answer = answers[TopicPartition(topic, number)]
        offsets[number] = end if answer is None else answer.offset
    return PageCursor(newest_first=False, offsets=offsets)


def read_page(log: Log, topic: str, cursor: PageCursor, count: int) -> RecordPage:
    """The next `count` records."""
    bounds = _find_bounds(log, topic, cursor)
    block = max(4, 2 * count // max(len(bounds), 1))
    walk = _read_older if cursor.newest_first else _read_newer
    streams = [walk(log, topic, number, *bounds[number], block) for number in sorted(bounds)]
    lines: list[Line] = []
    offsets = dict(cursor.offsets)
    for line in _merge(streams, cursor.newest_first):
        if len(lines) == count:
            return RecordPage(tuple(lines), cursor, PageCursor(cursor.newest_first, offsets))
        lines.append(line)
        offsets[line.partition] = line.offset if cursor.newest_first else line.offset + 1
    return RecordPage(tuple(lines), cursor, None)


def search_page(
    log: Log, topic: str, cursor: PageCursor, count: int, matcher: Matcher, task: Task
) -> RecordPage:
    """The next records that match, at least `count` if there are so many. They are merged by
    time.
    """
    pieces = list(_split_into_pieces(log, topic, cursor))
    total = sum(piece.size_bytes for piece in pieces)
    offsets = dict(cursor.offsets)
    searched_bytes = 0
    newest_first = cursor.newest_first
    lines: list[Line] = []
    has_more = False
    for piece in pieces:
        if task.cancelled.is_set() or len(lines) >= count:
            has_more = True
            break
        piece_lines, is_whole = _take_nearest(
            _find_matches(log, topic, piece, matcher), count - len(lines), newest_first
        )
        lines += piece_lines
        searched_bytes += piece.size_bytes
        task.progress = (searched_bytes, total, len(lines))
        if not is_whole:
            last = piece_lines[-1].offset
            offsets[piece.partition] = last if newest_first else last + 1
            has_more = True
            break
        offsets[piece.partition] = piece.start_offset if newest_first else piece.end_offset
    streams = [
        iter([line for line in lines if line.partition == number]) for number in sorted(offsets)
    ]
    return RecordPage(
        lines=tuple(_merge(streams, newest_first)),
        cursor=cursor,
        following=PageCursor(newest_first, offsets) if has_more else None,
        complete=not task.cancelled.is_set(),
    )


def read_record(log: Log, topic: str, partition: int, offset: int) -> Record[bytes, bytes] | None:
    """One whole record; None if it was deleted."""
    scan = log.scan(topic, partitions=partition, start_offset=offset, end_offset=offset + 1)
    records = scan.head(1)
    return records[0] if records else None


# ---- records in the order of a page --------------------------------------------------------------


def _line_of(record: Record[bytes, bytes]) -> Line:
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


def _find_bounds(log: Log, topic: str, cursor: PageCursor) -> dict[int, tuple[int, int]]:
    """First offset and end of the records that a cursor leaves, of each partition with some."""
    bounds = {}
    for description in log.describe_topic(topic).partitions:
        offset = cursor.offsets.get(description.partition)
        if offset is None:
            continue
        start = description.log_start_offset
        end = description.high_watermark
        if cursor.newest_first:
            end = min(offset, end)
        else:
            start = max(offset, start)
        if start < end:
            bounds[description.partition] = (start, end)
    return bounds


def _read_older(
    log: Log, topic: str, number: int, start: int, end: int, block: int
) -> Iterator[Line]:
    while start < end:
        low = max(start, end - block)
        lines = _read_block(log, topic, number, low, end)
        yield from reversed(lines)
        end = low
        block = _next_block_size(block, lines)


def _read_newer(
    log: Log, topic: str, number: int, start: int, end: int, block: int
) -> Iterator[Line]:
    while start < end:
        high = min(end, start + block)
        lines = _read_block(log, topic, number, start, high)
        yield from lines
        start = high
        block = _next_block_size(block, lines)


def _read_block(log: Log, topic: str, number: int, low: int, high: int) -> list[Line]:
    scan = log.scan(topic, partitions=number, start_offset=low, end_offset=high)
    return [_line_of(record) for record in scan.records()]


def _next_block_size(block: int, lines: Sequence[Line]) -> int:
    """The offsets of the next read: more after deleted records, so that a compacted log is not read
    in tiny steps.
    """
    if 2 * len(lines) < block:
        return min(4 * block, BLOCK_MAX)
    return block


def _merge(streams: Iterable[Iterator[Line]], newest_first: bool) -> Iterator[Line]:
    """The first lines of all streams by time; a stream keeps its own order."""
    order = _Order(newest_first)
    heads = []
    for number, stream in enumerate(streams):
        first = next(stream, None)
        if first is not None:
            heads.append((order(first), number, first, stream))
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


def _split_into_pieces(log: Log, topic: str, cursor: PageCursor) -> Iterator[Split]:
    """The pieces of all partitions in turns, each partition from its cursor on."""
    lists = []
    for number, (start, end) in sorted(_find_bounds(log, topic, cursor).items()):
        scan = log.scan(topic, partitions=number, start_offset=start, end_offset=end)
        pieces = scan.splits(PIECE_BYTES)
        lists.append(pieces[::-1] if cursor.newest_first else pieces)
    return (piece for piece in chain.from_iterable(zip_longest(*lists)) if piece is not None)


def _find_matches(
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
    term = matcher.search_term()
    if term is None:
        records = scan.records()
    else:
        pattern, column = term
        records = iter(scan.search(pattern, columns=[column]))
    return (record for record in records if matcher.accepts(record))


def _take_nearest(
    records: Iterator[Record[bytes, bytes]], count: int, newest_first: bool
) -> tuple[list[Line], bool]:
    """The nearest lines in the direction, and whether these are all of them."""
    if newest_first:
        nearest = deque(map(_line_of, records), maxlen=count + 1)
        return list(reversed(nearest))[:count], len(nearest) <= count
    lines: list[Line] = []
    for record in records:
        if len(lines) == count:
            return lines, False
        lines.append(_line_of(record))
    return lines, True
