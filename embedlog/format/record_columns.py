"""Defines columns of byte strings and records in Arrow's layout, and batch headers as rows: input
and output of the codec.

- A BytesColumn owns no memory: its arrays keep their memory alive.
- Row i of a BytesColumn is data[offsets[i]:offsets[i + 1]], and null if its bit in `validity` is
  clear.
- A batch row describes one batch header; the C core fills and reads the same 80 bytes.
- A column None means only nulls in the input, and a column that was not requested in the output.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from embedlog._native.lazy_numpy import np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes: TypeAlias = NDArray[np.uint8]
    Offsets: TypeAlias = NDArray[np.int32] | NDArray[np.int64]
    # rows of `batch_dtype`: numpy has no static type for structured rows
    Batches: TypeAlias = NDArray[Any]
else:
    Bytes = Offsets = Batches = Any  # for annotations only: numpy is imported at its first use


OFFSET_MIN = -(2**63)
OFFSET_MAX = 2**63 - 1
# an index counts offsets from its segment's base in 31 bits (format.md 2.2)
RELATIVE_MAX = 2**31 - 1
# maximum of offsets and of segment bases: as in batch.h
LOG_OFFSET_MAX = OFFSET_MAX - RELATIVE_MAX - 1

# ---- batches -------------------------------------------------------------------------------------

HEADER_SIZE = 61


@cache
def batch_dtype() -> np.dtype[np.void]:
    """The type of a row that describes one batch header."""
    # Every byte is part of a field: numpy removes gaps when it concatenates.
    return np.dtype(
        [
            ("position", "<i8"),
            ("size", "<i4"),
            ("leader_epoch", "<i4"),
            ("base_offset", "<i8"),
            ("base_timestamp", "<i8"),
            ("max_timestamp", "<i8"),
            ("min_timestamp", "<i8"),  # lower bound of its timestamps; -1: unknown
            ("producer_id", "<i8"),
            ("last_offset_delta", "<i4"),
            ("base_sequence", "<i4"),
            ("records", "<i4"),
            ("attributes", "<i2"),
            ("producer_epoch", "<i2"),
            ("magic", "i1"),
            ("pad", "i1", 3),
            ("crc", "<u4"),
        ]
    )


ROW_BYTES = 80  # of a row of `batch_dtype`
# parts of a row of `batch_dtype`: the fields of `Sequenced`, and those of `Head`
_SEQUENCED = struct.Struct("<48xq4xi4xhh")
_HEAD = struct.Struct("<12xiq8xq8xqi4xi12x")


class Sequenced(NamedTuple):
    """The fields of a batch row that the checks of an idempotent append read."""

    producer_id: int
    base_sequence: int
    attributes: int
    producer_epoch: int


def first_sequenced(table: Any) -> Sequenced:
    """The fields of the first row in a buffer of batch rows: one row does not need numpy."""
    return Sequenced(*_SEQUENCED.unpack_from(table))


class Head(NamedTuple):
    """The fields of a batch row that a walk along a log reads."""

    leader_epoch: int
    base_offset: int
    max_timestamp: int
    producer_id: int
    last_offset_delta: int
    record_count: int


def heads(table: Any) -> list[Head]:
    """Fields of each row in a buffer of batch rows: a few rows do not need numpy."""
    return list(map(Head._make, _HEAD.iter_unpack(table)))


CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20


class EncodedRun(NamedTuple):
    """Consecutive sealed batches, before they are stamped: base offsets begin at 0, the epoch is 0.

    `table` has the bytes of a batch row for each, with positions within `buffer`. The run owns
    both, and may be stamped in place.
    """

    buffer: memoryview
    batch_count: int
    record_count: int
    size: int
    table: Any  # a buffer

    @property
    def batches(self) -> Batches:
        """The rows of `table` as an array, which shares its memory."""
        return np.frombuffer(self.table, batch_dtype())


EPOCH_MAX: Final = 2**15 - 1  # of a producer


class Stamp(NamedTuple):
    """The producer of a run. `opens`: the first batch may open a transaction in its partition; the
    caller has checked that the producer may.

    The id, the epoch and the transactional bit are covered by the CRC, so they are stamped before
    the append.
    """

    producer_id: int
    epoch: int
    transactional: bool = False
    opens: bool = False


NO_STAMP: Final = Stamp(-1, -1)  # of batches without a producer

# ---- records -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class BytesColumn:
    """`len(offsets) - 1` byte strings, as in Arrow: row r is `data[offsets[r]:offsets[r + 1]]`. The
    offsets here are Arrow's, bytes of `data`, and none of a log.

    `validity` is a bitmap, least significant bit first, in which row r is the bit
    `r + validity_offset`: 1 a string, 0 None; no bitmap: no row is None. `validity_offset` is above
    0 for a slice of a larger column, which shares its bitmap.
    """

    data: Bytes
    offsets: Offsets
    validity: Bytes | None = None
    validity_offset: int = 0

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> bytes | None:
        if not 0 <= row < len(self):
            raise IndexError(row)
        bit = row + self.validity_offset
        if self.validity is not None and not self.validity[bit >> 3] >> (bit & 7) & 1:
            return None
        return self.data[self.offsets[row] : self.offsets[row + 1]].tobytes()

    def __iter__(self) -> Iterator[bytes | None]:
        return (self[row] for row in range(len(self)))

    @classmethod
    def of(cls, items: list[bytes | None] | list[bytes]) -> BytesColumn:
        """A column from Python objects, for tests and few items; `_rows` has the fast function."""
        data = np.frombuffer(b"".join(item or b"" for item in items), dtype=np.uint8)
        offsets = np.zeros(len(items) + 1, dtype=np.int64)
        np.cumsum([len(item or b"") for item in items], out=offsets[1:])
        validity = None
        if any(item is None for item in items):
            validity = np.packbits([item is not None for item in items], bitorder="little")
        return cls(data, offsets, validity)


class Headers(NamedTuple):
    """Headers of all rows: row r has the headers `starts[r]` up to `starts[r + 1]`. Keys are UTF-8
    and never null.
    """

    starts: NDArray[np.int32]
    keys: BytesColumn
    values: BytesColumn


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Columns:
    """Records to encode. `timestamps` is one array or one number for all (milliseconds)."""

    count: int
    values: BytesColumn | None
    keys: BytesColumn | None = None
    timestamps: NDArray[np.int64] | int = -1
    headers: Headers | None = None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Decoded:
    """Decoded records; a column that was not requested is None."""

    count: int
    offsets: NDArray[np.int64] | None
    timestamps: NDArray[np.int64] | None
    timestamp_types: NDArray[np.int8] | None
    leader_epochs: NDArray[np.int32] | None
    keys: BytesColumn | None
    values: BytesColumn | None
    headers: Headers | None


class Window(NamedTuple):
    """Limits of the selected records: starts inclusive, ends exclusive. An end of OFFSET_MAX is no
    limit, for times as for offsets: no offset is that high.
    """

    start_offset: int = OFFSET_MIN
    end_offset: int = OFFSET_MAX
    # the extremes of i64, for times as well
    start_ms: int = OFFSET_MIN
    end_ms: int = OFFSET_MAX

    def has(self, offset: int, time_ms: int) -> bool:
        """Whether a record is selected; an end of OFFSET_MAX is unlimited, as in the decoder."""
        if not (self.start_offset <= offset < self.end_offset and self.start_ms <= time_ms):
            return False
        return time_ms < self.end_ms or self.end_ms == OFFSET_MAX
