"""Contains the pure part of compaction: the latest offset of every key, and batches without
replaced records (format.md 7).

- Functions of bytes: the cleaner chooses the batches, the files and the time.
- The map has a fixed size. A full map reports the offset up to which it is complete, and the next
  pass does the rest.
- Keys are compared by a hash of 128 bits with a secret of this pass, which is never written to
  disk.
- A batch that loses no record keeps its bytes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from embedlog._native import codec
from embedlog._native.codec import DISCARD, HORIZON, KEEP_EMPTY, WHOLE
from embedlog._native.lazy_numpy import np
from embedlog.errors import CorruptRecordError, UnsupportedFormatError
from embedlog.format import compression
from embedlog.format.buffer_pool import shared_pool, zeros
from embedlog.format.decoder import expand_section, too_large_error
from embedlog.format.record_columns import (
    CODEC_MASK,
    CONTROL,
    HEADER_SIZE,
    LOG_OFFSET_MAX,
    Batches,
    batch_dtype,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

FILLED = 0.9  # of the slots of the map, as log.cleaner.io.buffer.load.factor
_SEED_BYTES = 16


class KeyOffsetMap:
    """Latest offset by key, in `memory_bytes` at most, and in less if no more than `keys` keys can
    come.
    """

    def __init__(
        self,
        memory_bytes: int,
        seed: bytes | None = None,
        decompressed_max: int = compression.LIMIT_BYTES,
        keys: int = LOG_OFFSET_MAX,
    ) -> None:
        self.decompressed_max = decompressed_max  # uncompressed bytes of a batch that is read
        slots = max(memory_bytes // codec.MAP_SLOT_BYTES, 2)
        capacity = min(1 << (slots.bit_length() - 1), 1 << int(keys / FILLED + 1).bit_length())
        secret = os.urandom(_SEED_BYTES) if seed is None else seed
        words = int.from_bytes(secret[:8], "little"), int.from_bytes(secret[8:], "little")
        self._memory = zeros(capacity * codec.MAP_SLOT_BYTES)
        self.table = codec.OffsetTable(
            self._memory, capacity, max(1, int(capacity * FILLED)), words
        )

    def __len__(self) -> int:
        return int(self.table.raw.count)

    @property
    def latest(self) -> int:
        """The last offset up to which the map is complete, -1 if it is empty."""
        return int(self.table.raw.latest)

    def find(self, key: bytes) -> int:
        """Latest offset of a key, -1 if there is none."""
        return self.table.find(key)

    def add(self, data: Any, batches: Batches, *, position: int, start_offset: int = 0) -> bool:
        """Add the records of data batches at or above `start_offset`; False if the map is full.

        Raises CorruptRecordError, UnsupportedFormatError.
        """
        for rows, packed, _ in _split_by_packing(batches):
            if packed:
                code, row = self._add_packed(data, rows, position, start_offset)
            else:
                code, row = self.table.add_run(data, position, rows, start_offset)
            if code == codec.ESPACE:
                return False
            if code < 0:
                raise _corruption_error(rows[row], self.table.problem)
        return True

    def _add_packed(
        self, data: Any, rows: Batches, position: int, start_offset: int
    ) -> tuple[int, int]:
        for row in range(len(rows)):
            body = _plain_body(data, rows[row], position, self.decompressed_max)
            code = self.table.add(rows[row : row + 1], body, start_offset)
            if code < 0:
                return code, row
        return 0, len(rows)

    def pass_over(self, offset: int) -> None:
        """The map is complete up to `offset`, although no key was added: control batches, aborted
        data.
        """
        self.table.raw.latest = max(self.latest, offset)


def clean(
    data: Any,
    batches: Batches,
    orders: NDArray[np.uint8],
    offsets: KeyOffsetMap,
    *,
    position: int,
    now_ms: int,
    delete_retention_ms: int,
) -> Iterator[tuple[memoryview, Batches]]:
    """Runs of the remaining batches: bytes, and their batch rows with positions within them; size 0
    marks a removed batch.

    `orders` has for each batch the sum of DISCARD, WHOLE, HORIZON, KEEP_EMPTY, or 0: its records
    are compared with the map. Raises CorruptRecordError; UnsupportedFormatError for batches of
    formats 0 and 1.
    """
    cleaner = codec.Cleaner(offsets.table, now_ms, now_ms + delete_retention_ms)
    for rows, packed, start in _split_by_packing(batches):
        row_orders = orders[start : start + len(rows)]
        if packed:
            for row in range(len(rows)):
                yield _repack(
                    cleaner,
                    data,
                    batch=rows[row : row + 1],
                    orders=row_orders[row : row + 1],
                    position=position,
                    decompressed_max=offsets.decompressed_max,
                )
        else:
            yield from _clean_runs(cleaner, data, rows, row_orders, position)


def _split_by_packing(batches: Batches) -> Iterator[tuple[Batches, bool, int]]:
    """Runs of batches that are all compressed, or all not: the rows, whether they are, and the
    number of the first one.

    Raises UnsupportedFormatError for batches of formats 0 and 1.
    """
    if (batches["magic"] < 2).any():
        raise UnsupportedFormatError(
            "a batch of an old format cannot be compacted", expected="magic 2"
        )
    if not len(batches):
        return  # all of them were removed by an earlier pass
    packed = (batches["attributes"] & CODEC_MASK) != 0
    borders = np.flatnonzero(np.diff(packed, prepend=~packed[:1])).tolist()
    for start, end in zip(borders, [*borders[1:], len(batches)], strict=True):
        yield np.ascontiguousarray(batches[start:end]), bool(packed[start]), start


def _clean_runs(
    cleaner: codec.Cleaner, data: Any, batches: Batches, orders: NDArray[np.uint8], position: int
) -> Iterator[tuple[memoryview, Batches]]:
    while len(batches):
        records = np.minimum(
            batches["records"], (batches["size"] - HEADER_SIZE) // codec.RECORD_SIZE_MIN
        )
        output_bytes = batches["size"].sum(dtype=np.int64) + 11 * records.sum(dtype=np.int64)
        output = shared_pool().lease(int(output_bytes)).view
        cleaned = np.empty(len(batches), batch_dtype())
        written, count = cleaner.run(data, position, batches, orders, output, cleaned)
        if written < 0:
            raise _corruption_error(batches[min(count, len(batches) - 1)], cleaner.problem)
        yield output[:written], cleaned[:count]
        batches = batches[count:]
        orders = orders[count:]


def _repack(
    cleaner: codec.Cleaner,
    data: Any,
    batch: Batches,
    orders: NDArray[np.uint8],
    position: int,
    decompressed_max: int,
) -> tuple[memoryview, Batches]:
    """A compressed batch: decompressed, cleaned, and compressed again if it changed."""
    row = batch[0]
    number = int(row["attributes"]) & CODEC_MASK
    start = int(row["position"]) - position
    original = memoryview(data).cast("B")[start : start + int(row["size"])]
    body = _plain_body(data, row, position, decompressed_max)
    plain = batch.copy()
    plain["attributes"] &= ~CODEC_MASK
    plain["size"] = HEADER_SIZE + len(body)
    plain["position"] = 0
    plain_data = bytes(HEADER_SIZE) + body
    ((output, cleaned),) = _clean_runs(cleaner, plain_data, plain, orders, 0)
    if cleaned["records"][0] == row["records"] and not _has_new_horizon(row, cleaned[0]):
        unchanged = batch.copy()
        unchanged["position"] = 0
        return original, unchanged
    if cleaned["size"][0] <= HEADER_SIZE:  # removed, or kept empty: codec 0, as in Kafka
        return output, cleaned
    packed = compression.compress(number, output[HEADER_SIZE:], None)
    sealed = bytearray(output[:HEADER_SIZE]) + memoryview(packed).cast("B")
    codec.reseal(sealed, len(sealed) - HEADER_SIZE, number)
    cleaned["size"] = len(sealed)
    cleaned["attributes"] |= number
    return memoryview(sealed), cleaned


HORIZON_BIT = 0x40


def _has_new_horizon(before: np.void, after: np.void) -> bool:
    return bool((before["attributes"] ^ after["attributes"]) & HORIZON_BIT)


def _plain_body(data: Any, row: np.void, position: int, limit: int) -> memoryview:
    try:
        return expand_section(memoryview(data).cast("B"), row, position, limit)
    except compression.LimitExceeded:
        raise too_large_error(row, limit) from None


def _corruption_error(row: np.void, problem: Any) -> CorruptRecordError:
    words = codec.PROBLEM_TEXTS.get(problem.what, "records of a batch")
    return CorruptRecordError(
        f"record {problem.record} of the batch at offset {int(row['base_offset'])}: {words}",
        position=int(row["position"]),
    )


__all__ = ["CONTROL", "DISCARD", "HORIZON", "KEEP_EMPTY", "WHOLE", "KeyOffsetMap", "clean"]
