"""Reads and decodes the visible records of some batches of a partition in one step.

- Every record of a chunk is visible at the isolation level and inside the window.
- A chunk is at least one batch and has about the requested bytes; it may have no record (markers,
  aborted, compacted).
- A chunk ends before a batch that cannot be decoded: the next chunk begins at its first offset, and
  fails.
- A run is one batch whose records are made when they are taken. It exists only if the whole batch
  can be parsed.
- The read-ahead divides data that is not compressed by the index: each thread reads and decodes
  ranges of its own. Compressed data is read by one thread, and decoded by all.
- Few offsets are read like those of a consumer: one verified batch, of which only the wanted
  records are made.
- A window ends at its end offset, which was an end of the log once. If the log ends below that, a
  replica that shows more is waited for, and records that are lost are an error.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from embedlog._native import system
from embedlog._native._rows import RecordRun, record_run
from embedlog.columns.few_records import decoded_of
from embedlog.columns.readahead import read_ahead
from embedlog.errors import CorruptRecordError, OffsetOutOfRangeError, in_file
from embedlog.format import record_batch
from embedlog.format.buffer_pool import SharedBytes, shared_pool
from embedlog.format.compression import LimitExceeded
from embedlog.format.decoder import GROUP_BYTES, expand_section
from embedlog.format.record_columns import OFFSET_MAX, OFFSET_MIN, Decoded, Window
from embedlog.format.visibility import READ_COMMITTED, end_offset, filter_visible

if TYPE_CHECKING:
    from embedlog.partition.interfaces import ReadableLog

SHORT_BYTES = 0  # one batch, if a partition can read it alone
# of the usual size that are read of a range at once: an index with few entries makes ranges as long
# as a segment
RANGE_PIECES_MAX = 4
FEW_OFFSETS = 16  # so few offsets of a scan are read batch by batch
AHEAD_BYTES = 32 << 20  # a larger batch is not decompressed ahead, so that at most one is in memory
RANGES_AT_ONCE = 16  # so that a division takes no more than a millisecond
GROUP_MAX = 64  # batches of a group, because small batches may be followed by large ones
# assumed decoded bytes of the first compressed batch: the default limit of producers
BATCH_GUESS = 1 << 20


class Chunk(NamedTuple):
    """Decoded records, the position after them, their size in the log, and the mean of decoded
    bytes per batch.
    """

    decoded: Decoded
    next_offset: int
    size_bytes: int
    batch_bytes: int
    epoch: int  # leader epoch of the record before `next_offset`; -1 if its batch was removed


def read_chunk(
    partition: Any, offset: int, *, max_bytes: int, isolation: str, batch_bytes: int = BATCH_GUESS
) -> Chunk | None:
    """The chunk at `offset` with all columns; None at the end.

    `batch_bytes` is that of the previous chunk.
    Raises OffsetOutOfRangeError, and CorruptRecordError if the first batch is damaged.
    """
    fetched = partition.fetch(offset, max_bytes=max_bytes, isolation=isolation, pool=shared_pool())
    if len(fetched.batches) == 0 and fetched.next_offset <= offset:
        return None
    window = Window(start_offset=offset)
    with in_file(fetched.path, fetched.position):
        parts = group_batches(visible_batches(fetched, window), batch_bytes)
        batches = parts[0] if parts else fetched.batches[:0]
        try:
            part = decode(fetched, batches, window)
        except CorruptRecordError:
            good = _count_decodable(fetched, batches, window)
            if good == 0:
                raise
            part = decode(fetched, batches[:good], window)
    assert part.decoded is not None
    if part.batch_count < len(batches):
        next_offset = int(batches["base_offset"][part.batch_count])
    elif len(parts) > 1:
        next_offset = int(parts[1]["base_offset"][0])
    else:
        next_offset = fetched.next_offset
    return Chunk(
        part.decoded,
        next_offset=next_offset,
        size_bytes=len(fetched.data),
        batch_bytes=mean_batch_bytes(part, batch_bytes),
        epoch=_epoch_below(fetched.batches, next_offset),
    )


class BatchRun(NamedTuple):
    """The records of one batch, made when they are taken; then as `Chunk`."""

    records: RecordRun
    next_offset: int
    size_bytes: int
    epoch: int


def read_run(partition: ReadableLog, offset: int, *, isolation: str) -> BatchRun | None:
    """The records of one batch from `offset` on; None if `read_chunk` must find them, or why they
    cannot be read.
    """
    fetched = partition.fetch(
        offset, max_bytes=SHORT_BYTES, isolation=isolation, pool=shared_pool()
    )
    batches = fetched.batches
    has_control = len(batches) > 0 and batches["attributes"][0] & record_batch.CONTROL
    if len(batches) > 1 or fetched.aborted or has_control:
        batches = visible_batches(fetched, Window(start_offset=offset))
    if not len(batches):
        return None
    row = batches[:1]
    try:
        body = expand_section(fetched.data, row[0], 0, fetched.decompressed_max)
    except (CorruptRecordError, LimitExceeded):
        return None
    records = record_run(partition.topic, partition.number, row, body, offset)
    if records is None or not records.count:
        return None
    next_offset = int(row["base_offset"][0]) + int(row["last_offset_delta"][0]) + 1
    return BatchRun(records, next_offset, len(fetched.data), records.leader_epoch)


def _epoch_below(batches: record_batch.Batches, end: int) -> int:
    """Leader epoch of the last batch below `end`."""
    row = len(batches) - 1
    while row >= 0 and batches["base_offset"][row] >= end:
        row -= 1
    return int(batches["leader_epoch"][row]) if row >= 0 else -1


def group_batches(batches: record_batch.Batches, batch_bytes: int) -> list[record_batch.Batches]:
    """Compressed batches in groups of about GROUP_BYTES when decoded, at least one each; other
    batches in one group.

    The estimate is the size of the last batches, not their ratio: producers limit the size of a
    batch, not its ratio.
    """
    if not len(batches):
        return []
    if len(batches) < 2 or not (batches["attributes"] & record_batch.CODEC_MASK).any():
        return [batches]
    count = min(GROUP_MAX, max(1, GROUP_BYTES // batch_bytes))
    return [batches[start : start + count] for start in range(0, len(batches), count)]


def mean_batch_bytes(part: record_batch.DecodedPart, previous: int) -> int:
    """The mean of decoded bytes per batch; `previous` if it is unknown."""
    decoded = part.decoded
    if decoded is None or decoded.values is None or part.batch_count == 0:
        return previous
    size_bytes = len(decoded.values.data)
    if decoded.keys is not None:
        size_bytes += len(decoded.keys.data)
    return max(1, size_bytes // part.batch_count)


def visible_batches(fetched: Any, window: Window) -> record_batch.Batches:
    """The fetched batches that may contain a record for this reader."""
    aborts = record_batch.aborts(fetched.data, fetched.batches) if fetched.aborted else None
    batches = filter_visible(fetched.batches, fetched.aborted, aborts)
    if window.start_ms > OFFSET_MIN:
        batches = batches[batches["max_timestamp"] >= window.start_ms]
    if window.end_ms < OFFSET_MAX:
        batches = batches[
            (batches["min_timestamp"] < window.end_ms) | (batches["min_timestamp"] < 0)
        ]
    return batches


def decode(fetched: Any, batches: record_batch.Batches, window: Window) -> record_batch.DecodedPart:
    """The records of the first of these batches inside the window. Raises CorruptRecordError."""
    return record_batch.decode_some(
        fetched.data, batches, window=window, pool=shared_pool(), limit=fetched.decompressed_max
    )


def is_plain(batches: record_batch.Batches) -> bool:
    """Whether there are batches, and none is compressed."""
    return len(batches) > 0 and not (batches["attributes"] & record_batch.CODEC_MASK).any()


def _count_decodable(fetched: Any, batches: record_batch.Batches, window: Window) -> int:
    """How many batches can be decoded one by one before the first failure; at least 1."""
    for row in range(len(batches)):
        try:
            decode(fetched, batches[row : row + 1], window)
        except CorruptRecordError:
            return row
    return min(1, len(batches))


class EncodedPiece(NamedTuple):
    """Fetched batches that are decoded together."""

    number: int  # of the partition
    window: Window
    fetched: Any
    data: memoryview  # the fetched bytes, for the thread that decodes the piece
    batches: record_batch.Batches
    whole: bool  # no other piece contains these bytes


class EncodedRange(NamedTuple):
    """Offsets of a partition whose batches are read by the thread that decodes them."""

    number: int  # of the partition
    partition: Any
    window: Window  # its offsets are those of the range
    size_bytes: int  # in the log, about


class Decodings(NamedTuple):
    """The decoded part of a piece, if any, and what remains of the piece."""

    number: int  # of the partition
    decoded: Decoded | None
    remaining: EncodedPiece | EncodedRange | None


class ChunkSource:
    """The chunks of several partitions, in the order of the partitions, for the read-ahead of a
    scan.

    Compressed batches are decoded in groups, and large ones one by one.

    **Threads:** `fetch` one at a time, `decode` any.
    """

    def __init__(
        self,
        partitions: Mapping[int, Any],
        windows: Mapping[int, Window],
        *,
        isolation: str,
        columns: Sequence[str],
        max_bytes: int,
    ) -> None:
        self._waiting = [
            (number, partitions[number], windows[number])
            for number in sorted(windows, reverse=True)
        ]
        self._position = self._waiting[-1][2].start_offset if self._waiting else 0
        self._pieces: deque[EncodedPiece | EncodedRange] = deque()
        self._batch_bytes = BATCH_GUESS
        self._isolation = isolation
        self._columns = columns
        self._max_bytes = max_bytes
        self._plain = False  # the batches that were read last are not compressed
        # when a fetch first found nothing: by partition and position
        self._stopped_ns: dict[tuple[int, int], int] = {}
        # with one processor a division costs more than it saves
        self._shared = len(os.sched_getaffinity(0)) > 1

    def fetch(self) -> EncodedPiece | None:
        """The next encoded piece; None after the last. REQUIRES: no call of `fetch_apart`."""
        piece = self._next_piece(divides=False)
        assert not isinstance(piece, EncodedRange)
        return piece

    def fetch_apart(self) -> EncodedPiece | EncodedRange | None:
        """The next encoded piece, or a range that the decoding thread reads; None after
        the last.
        """
        return self._next_piece(divides=self._shared)

    def _next_piece(self, *, divides: bool) -> EncodedPiece | EncodedRange | None:
        while not self._pieces:
            if not self._waiting:
                return None
            number, partition, window = self._waiting[-1]
            if self._position < window.end_offset:
                self._take_batches(number, partition, window, divides)
                continue
            self._waiting.pop()
            if self._waiting:
                self._position = self._waiting[-1][2].start_offset
        return self._pieces.popleft()

    def count(self) -> int | None:
        """The number of records in the next piece; None after the last. Only batches that a bound
        divides are decoded.
        """
        piece = self.fetch()
        if piece is None:
            return None
        window = piece.window
        batches = piece.batches
        last_offsets = batches["base_offset"] + batches["last_offset_delta"]
        whole = batches["magic"] == 2
        whole &= (batches["base_offset"] >= window.start_offset) & (window.start_ms == OFFSET_MIN)
        whole &= (last_offsets < window.end_offset) & (window.end_ms == OFFSET_MAX)
        count = int(batches["records"][whole].sum())
        remaining: EncodedPiece | EncodedRange | None = piece._replace(
            batches=batches[~whole], whole=False
        )
        while remaining is not None:
            decodings = self.decode_rest(remaining)
            if decodings.decoded is not None:
                count += decodings.decoded.count
            remaining = decodings.remaining
        return count

    def has_few_offsets(self) -> bool:
        """Whether all windows together have at most FEW_OFFSETS: then a thread costs more than it
        saves.
        """
        offset_count = sum(
            window.end_offset - window.start_offset for _, _, window in self._waiting
        )
        return offset_count <= FEW_OFFSETS

    def pieces(self) -> Iterator[Decodings]:
        """All pieces, fetched and decoded when they are taken."""
        while (piece := self.fetch()) is not None:
            yield self.decode(piece)

    def decode_points(self) -> Iterator[Decodings]:
        """The same for few offsets: records of single batches as long as the partition has the
        short way to them.
        """
        while True:
            decodings = None
            if not self._pieces:
                decodings = self._decode_point()
            if decodings is None:
                piece = self.fetch()
                if piece is None:
                    return
                decodings = self.decode(piece)
            yield decodings

    def _decode_point(self) -> Decodings | None:
        """The records of the batch at the position; None if a fetch must find them, or the end."""
        if not self._waiting:
            return None
        number, partition, window = self._waiting[-1]
        if self._position >= window.end_offset:
            return None
        point = partition.point(self._position, self._isolation == READ_COMMITTED)
        if point is None:
            return None
        run = point.run
        records = [
            record
            for record in run.take(window.end_offset - self._position)
            if window.has(record.offset, record.timestamp_ms)
        ]
        # a run with records left is longer than the window
        self._position = window.end_offset if run.count else run.end
        return Decodings(number, decoded_of(records, self._columns), None)

    def decode_ahead(self) -> Iterator[Decodings]:
        """The same with the help of a second thread."""
        fetch: Callable[[], Any] = self.fetch_apart  # a type checker cannot infer a union with None
        return read_ahead(fetch, self.decode, has_more=self.has_more)

    def has_more(self) -> bool:
        """Whether another piece may follow. For the thread that fetches."""
        if self._pieces or len(self._waiting) > 1:
            return True
        return bool(self._waiting) and self._position < self._waiting[-1][2].end_offset

    def _take_batches(self, number: int, partition: Any, window: Window, divides: bool) -> None:
        """Reads the next bytes, or divides the next ones. REQUIRES: the position is below the end
        of the window.
        """
        has_times = window.start_ms != OFFSET_MIN or window.end_ms != OFFSET_MAX
        if divides and self._plain and not has_times:
            self._divide(number, partition, window)
            return
        start_offset = partition.skip_by_time(self._position, window.start_ms, window.end_ms)
        if start_offset > self._position:
            self._position = start_offset
            return
        is_short = window.end_offset - self._position <= FEW_OFFSETS
        max_bytes = SHORT_BYTES if is_short else self._max_bytes
        fetched = partition.fetch(
            self._position,
            max_bytes=max_bytes,
            isolation=self._isolation,
            upto=window.end_offset,
            pool=shared_pool(),
        )
        parts = group_batches(visible_batches(fetched, window), self._batch_bytes)
        self._plain = is_plain(fetched.batches)
        data = SharedBytes(fetched.data)
        self._pieces.extend(
            EncodedPiece(number, window, fetched, data.view(), part, len(parts) == 1)
            for part in parts
        )
        if fetched.next_offset <= self._position:
            self._check_end(number, partition, self._position, window.end_offset)
        self._position = fetched.next_offset

    def _check_end(self, number: int, partition: Any, position: int, end: int) -> None:
        """After a fetch that found nothing at a position: raises OffsetOutOfRangeError if the log
        ends below `end`.

        Records that compaction removed leave the end as it is: a fetch passes them.
        """
        since_ns = self._stopped_ns.get((number, position))
        self._stopped_ns.setdefault((number, position), system.boot_ns())
        bounds = partition.awaited_bounds(end, self._isolation, since_ns)
        current_end = end_offset(bounds, self._isolation)
        if current_end < end:
            raise OffsetOutOfRangeError(
                f"{partition.topic}-{number} ends before the last record of this scan: records "
                "were lost after its creation",
                topic=partition.topic,
                partition=number,
                expected=f"offset {end}",
                found=current_end,
            )

    def _divide(self, number: int, partition: Any, window: Window) -> None:
        """Divide the next bytes into ranges."""
        range_ends = partition.split_points(
            self._position, window.end_offset, self._max_bytes, RANGES_AT_ONCE
        )
        self._plain = bool(range_ends)  # without any, the next bytes are read
        for range_end in range_ends:
            part = window._replace(start_offset=self._position, end_offset=range_end.offset)
            self._pieces.append(EncodedRange(number, partition, part, range_end.size_bytes))
            self._position = range_end.offset

    def decode(self, piece: EncodedPiece | EncodedRange) -> Decodings:
        """The records of a piece, up to the limit of the read-ahead. Raises CorruptRecordError."""
        return self._decode_part(piece, AHEAD_BYTES)

    def decode_rest(self, piece: EncodedPiece | EncodedRange) -> Decodings:
        """What remains of a piece after `decode`, or a part of it. For the consumer, before it
        takes the records.
        """
        return self._decode_part(piece, None)

    def _decode_part(
        self, piece: EncodedPiece | EncodedRange, alone_bytes: int | None
    ) -> Decodings:
        if isinstance(piece, EncodedPiece):
            return self._decode(piece, alone_bytes)
        return self._decode_range(piece, alone_bytes)

    def _decode_range(self, piece: EncodedRange, alone_bytes: int | None) -> Decodings:
        """Read and decode a range, or its begin: the index may have no entry inside, and its
        batches may be compressed.
        """
        number, partition, window, size_bytes = piece
        fetched = partition.fetch(
            window.start_offset,
            max_bytes=min(size_bytes, RANGE_PIECES_MAX * self._max_bytes),
            isolation=self._isolation,
            upto=window.end_offset,
            pool=shared_pool(),
        )
        if not is_plain(fetched.batches):
            self._plain = False  # from the next piece on
        parts = group_batches(visible_batches(fetched, window), self._batch_bytes)
        first_part = parts[0] if parts else fetched.batches[:0]
        decodings = self._decode(
            EncodedPiece(
                number,
                window,
                fetched,
                data=fetched.data,
                batches=first_part,
                whole=len(parts) == 1,
            ),
            alone_bytes,
        )
        next_batches = None  # that were read and not decoded
        if isinstance(decodings.remaining, EncodedPiece):
            next_batches = decodings.remaining.batches
        elif len(parts) > 1:
            next_batches = parts[1]
        next_offset = fetched.next_offset
        if next_batches is not None:
            next_offset = int(next_batches["base_offset"][0])
        if next_offset >= window.end_offset:
            return decodings._replace(remaining=None)  # also if compaction removed the last records
        if next_batches is None and next_offset <= window.start_offset:
            self._check_end(number, partition, window.start_offset, window.end_offset)
        remaining_window = window._replace(start_offset=max(window.start_offset, next_offset))
        return decodings._replace(remaining=piece._replace(window=remaining_window))

    def _decode(self, piece: EncodedPiece, alone_bytes: int | None) -> Decodings:
        number, window, fetched, data, batches, whole = piece
        with in_file(fetched.path, fetched.position):
            part = record_batch.decode_some(
                data,
                batches,
                window=window,
                columns=self._columns,
                pool=shared_pool(),
                limit=fetched.decompressed_max,
                alone_bytes=alone_bytes,
                in_place=whole,
            )
        self._batch_bytes = mean_batch_bytes(part, self._batch_bytes)
        remaining = None
        if part.batch_count < len(batches):
            remaining = piece._replace(batches=batches[part.batch_count :])
        return Decodings(number, part.decoded, remaining)
