"""From a partition's bytes to columns: the visible records of some batches, decoded in one go.

CHUNK-1  what comes out is visible at the reader's isolation level and inside the window
CHUNK-2  a chunk is at least one batch and about as many bytes as were asked for; it may hold no record (markers, aborted,
    compacted)
CHUNK-3  nothing is decoded behind a batch that cannot be decoded: its first offset is where the next chunk begins, and fails
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from embedlog.errors import CorruptRecordError, in_file
from embedlog.format import record_batch
from embedlog.format.buffer_pool import shared_pool
from embedlog.format.decoder import GROUP_BYTES
from embedlog.format.record_columns import OFFSET_MAX, OFFSET_MIN, Decoded, Window
from embedlog.format.visibility import seen

AHEAD_BYTES = 32 << 20  # a batch of more is uncompressed when its turn comes, not ahead: there is one of them in memory at a time
GROUP_MAX = 64  # batches of a group, even where they are small: the next ones may not be
BATCH_GUESS = 1 << 20  # decoded bytes of a compressed batch before the first was seen: what producers allow themselves


class Chunk(NamedTuple):
    """Decoded records, the position behind them, their size in the log, and the decoded bytes of an average batch."""

    decoded: Decoded
    next_offset: int
    size_bytes: int
    batch_bytes: int
    epoch: int  # leader epoch of what lies before `next_offset`; -1 where there is no batch any more


def read_chunk(partition: Any, offset: int, *, max_bytes: int, isolation: str, batch_bytes: int = BATCH_GUESS) -> Chunk | None:
    """What comes at `offset`, all columns; None if there is nothing and the position stays.

    `batch_bytes` is that of the chunk before.
    Raises OffsetOutOfRangeError, and CorruptRecordError if not even the first batch is good.
    """
    fetched = partition.fetch(offset, max_bytes=max_bytes, isolation=isolation, pool=shared_pool())
    if len(fetched.batches) == 0 and fetched.next_offset <= offset:
        return None
    window = Window(start_offset=offset)
    with in_file(fetched.path, fetched.position):
        parts = groups(visible(fetched, window), batch_bytes)
        batches = parts[0] if parts else fetched.batches[:0]
        try:
            part = decode(fetched, batches, window)
        except CorruptRecordError:
            good = _good_prefix(fetched, batches, window)
            if good == 0:
                raise
            part = decode(fetched, batches[:good], window)
    assert part.decoded is not None
    if part.batch_count < len(batches):
        following = int(batches["base_offset"][part.batch_count])
    else:
        following = int(parts[1]["base_offset"][0]) if len(parts) > 1 else fetched.next_offset
    batch_bytes = average(part, batch_bytes)
    return Chunk(part.decoded, following, len(fetched.data), batch_bytes, _epoch(fetched.batches, following))


def _epoch(batches: record_batch.Batches, end: int) -> int:
    """Leader epoch of the last batch below `end`."""
    row = len(batches) - 1
    while row >= 0 and batches["base_offset"][row] >= end:
        row -= 1
    return int(batches["leader_epoch"][row]) if row >= 0 else -1


def groups(batches: record_batch.Batches, batch_bytes: int) -> list[record_batch.Batches]:
    """Compressed batches in groups of about GROUP_BYTES when decoded, at least one each; others as they are.

    Going by what the last batches came to, not by how well they compressed: a batch is made up to a limit, a ratio knows none.
    """
    if len(batches) < 2 or not (batches["attributes"] & record_batch.CODEC_MASK).any():
        return [batches] if len(batches) else []
    count = min(GROUP_MAX, max(1, GROUP_BYTES // batch_bytes))
    return [batches[start : start + count] for start in range(0, len(batches), count)]


def average(part: record_batch.Part, before: int) -> int:
    """Decoded bytes of a batch; `before` where that cannot be told."""
    decoded = part.decoded
    if decoded is None or decoded.values is None or part.batch_count == 0:
        return before
    total = len(decoded.values.data) + (0 if decoded.keys is None else len(decoded.keys.data))
    return max(1, total // part.batch_count)


def visible(fetched: Any, window: Window) -> record_batch.Batches:
    """The fetched batches that can hold a record for this reader."""
    aborts = record_batch.aborts(fetched.data, fetched.batches) if fetched.aborted else None
    batches = seen(fetched.batches, fetched.aborted, aborts)
    if window.start_ms > OFFSET_MIN:
        batches = batches[batches["max_timestamp"] >= window.start_ms]
    if window.end_ms < OFFSET_MAX:
        batches = batches[(batches["min_timestamp"] < window.end_ms) | (batches["min_timestamp"] < 0)]
    return batches


def decode(fetched: Any, batches: record_batch.Batches, window: Window) -> record_batch.Part:
    """The records of the first of these batches inside the window. Raises CorruptRecordError."""
    return record_batch.decode_some(fetched.data, batches, window=window, pool=shared_pool(), limit=fetched.decompressed_max)


def _good_prefix(fetched: Any, batches: record_batch.Batches, window: Window) -> int:
    """How many batches decode, one by one, before the first that does not (CHUNK-3); 1 if they do not all together."""
    for row in range(len(batches)):
        try:
            decode(fetched, batches[row : row + 1], window)
        except CorruptRecordError:
            return row
    return min(1, len(batches))


class Piece(NamedTuple):
    """Fetched batches that are decoded together."""

    number: int  # of the partition
    window: Window
    fetched: Any
    batches: record_batch.Batches
    whole: bool  # nobody else decodes from these bytes


class Decodings(NamedTuple):
    """What was decoded of a piece, if anything was, and what is left of it."""

    number: int  # of the partition
    decoded: Decoded | None
    rest: Piece | None


class Source:
    """The chunks of several partitions, one partition after the other: what a scan reads ahead.

    Compressed batches are decoded in groups, and large ones one by one.

    **Threads:** `fetch` by one at a time, `decode` by any.
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
        self._waiting = [(number, partitions[number], windows[number]) for number in sorted(windows, reverse=True)]
        self._position = self._waiting[-1][2].start_offset if self._waiting else 0
        self._pieces: deque[Piece] = deque()
        self._batch_bytes = BATCH_GUESS
        self._isolation = isolation
        self._columns = columns
        self._max_bytes = max_bytes

    def fetch(self) -> Piece | None:
        """The next piece, still encoded; None behind the last."""
        while not self._pieces:
            if not self._waiting:
                return None
            number, partition, window = self._waiting[-1]
            if self._position >= window.end_offset or not self._take(number, partition, window):
                self._waiting.pop()  # the window ends here, or all behind this place was compacted away
                if self._waiting:
                    self._position = self._waiting[-1][2].start_offset
        return self._pieces.popleft()

    def more(self) -> bool:
        """Whether there may be another piece; for who fetches."""
        if self._pieces or len(self._waiting) > 1:
            return True
        return bool(self._waiting) and self._position < self._waiting[-1][2].end_offset

    def _take(self, number: int, partition: Any, window: Window) -> bool:
        """Reads on; False if there is nothing more."""
        useful = partition.skip_by_time(self._position, window.start_ms, window.end_ms)
        if useful > self._position:
            self._position = useful
            return True
        fetched = partition.fetch(
            self._position, max_bytes=self._max_bytes, isolation=self._isolation, upto=window.end_offset, pool=shared_pool()
        )
        parts = groups(visible(fetched, window), self._batch_bytes)
        self._pieces.extend(Piece(number, window, fetched, part, len(parts) == 1) for part in parts)
        moved: bool = fetched.next_offset > self._position
        self._position = fetched.next_offset
        return moved

    def decode(self, piece: Piece) -> Decodings:
        """Its records, as far as they are few enough to be made ahead. Raises CorruptRecordError."""
        return self._decode(piece, AHEAD_BYTES)

    def rest(self, piece: Piece) -> Decodings:
        """What `decode` left of a piece, or a part of it; for who takes the records, right before it does."""
        return self._decode(piece, None)

    def _decode(self, piece: Piece, alone_bytes: int | None) -> Decodings:
        number, window, fetched, batches, whole = piece
        with in_file(fetched.path, fetched.position):
            part = record_batch.decode_some(
                fetched.data, batches, window=window, columns=self._columns, pool=shared_pool(), limit=fetched.decompressed_max,
                alone_bytes=alone_bytes, in_place=whole,
            )  # fmt: skip
        self._batch_bytes = average(part, self._batch_bytes)
        left = batches[part.batch_count :]
        return Decodings(number, part.decoded, piece._replace(batches=left) if len(left) else None)
