"""From a partition's bytes to columns: the visible records of some batches, decoded in one go.

K1  what comes out is visible at the reader's isolation level and inside the window
K2  a chunk is at least one batch and about as many bytes as were asked for; it may hold no record (markers, aborted, compacted)
K3  nothing is decoded behind a batch that cannot be decoded: its first offset is where the next chunk begins, and fails
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from embedlog import record
from embedlog.buffers import shared_pool
from embedlog.columns import OFFSET_MIN, Decoded, Window
from embedlog.errors import CorruptRecordError
from embedlog.isolation import seen


class Chunk(NamedTuple):
    """Decoded records, the position behind them, and their size in the log."""

    decoded: Decoded
    next_offset: int
    size_bytes: int


def read_chunk(partition: Any, offset: int, *, max_bytes: int, isolation: str) -> Chunk | None:
    """What comes at `offset`, all columns; None if there is nothing and the position stays.

    Raises OffsetOutOfRangeError, and CorruptRecordError if not even the first batch is good.
    """
    fetched = partition.fetch(offset, max_bytes=max_bytes, isolation=isolation, pool=shared_pool())
    if len(fetched.batches) == 0 and fetched.next_offset <= offset:
        return None
    window = Window(start_offset=offset)
    batches = visible(fetched, window)
    size = len(fetched.data)
    try:
        return Chunk(decode(fetched, batches, window), fetched.next_offset, size)
    except CorruptRecordError:
        good = _good_prefix(fetched, batches, window)
        if good == 0:
            raise
        return Chunk(decode(fetched, batches[:good], window), int(batches["base_offset"][good]), size)


def visible(fetched: Any, window: Window) -> record.Batches:
    """The fetched batches that can hold a record for this reader."""
    aborts = record.aborts(fetched.data, fetched.batches) if fetched.aborted else None
    batches = seen(fetched.batches, fetched.aborted, aborts)
    if window.start_ms > OFFSET_MIN:
        batches = batches[batches["max_timestamp"] >= window.start_ms]
    return batches


def decode(fetched: Any, batches: record.Batches, window: Window, columns: Sequence[str] | None = None) -> Decoded:
    """The records of these batches inside the window. Raises CorruptRecordError."""
    return record.decode(fetched.data, batches, window=window, columns=columns, pool=shared_pool())


def _good_prefix(fetched: Any, batches: record.Batches, window: Window) -> int:
    """How many batches decode, one by one, before the first that does not (K3)."""
    for row in range(len(batches)):
        try:
            decode(fetched, batches[row : row + 1], window)
        except CorruptRecordError:
            return row
    return len(batches)


class Source:
    """The chunks of several partitions, one partition after the other: what a scan reads ahead.

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
        self._isolation = isolation
        self._columns = columns
        self._max_bytes = max_bytes

    def fetch(self) -> tuple[int, Window, Any] | None:
        """The next bytes, with their partition's number and window; None behind the last."""
        while self._waiting:
            number, partition, window = self._waiting[-1]
            if self._position < window.end_offset:
                fetched = partition.fetch(
                    self._position,
                    max_bytes=self._max_bytes,
                    isolation=self._isolation,
                    upto=window.end_offset,
                    pool=shared_pool(),
                )
                if len(fetched.batches):
                    self._position = fetched.next_offset
                    return number, window, fetched
            self._waiting.pop()  # the window ends here, or all behind this place was compacted away
            if self._waiting:
                self._position = self._waiting[-1][2].start_offset
        return None

    def decode(self, fetched: tuple[int, Window, Any]) -> tuple[int, Decoded]:
        """Its records, with the partition's number. Raises CorruptRecordError."""
        number, window, raw = fetched
        return number, decode(raw, visible(raw, window), window, self._columns)
