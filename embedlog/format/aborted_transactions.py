"""Encodes and decodes the transaction index of one segment: Kafka's `.txnindex`, entries of 34
bytes.

- The index is not a cache: without it read_committed readers get aborted records. It is checked at
  each read, and rebuilt from the log if the check fails.
- Entries are in the order of their markers; an entry is in the segment that contains its marker.
- Functions of bytes: the module opens no file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from embedlog._native import codec
from embedlog._native.lazy_numpy import np
from embedlog.errors import CorruptRecordError, UnsupportedFormatError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    # rows of `_entry_dtype`: numpy has no static type for structured rows
    Entries: TypeAlias = NDArray[Any]
else:
    Entries = Any  # for annotations only: numpy is imported at its first use


@cache
def _entry_dtype() -> np.dtype[np.void]:
    return np.dtype(
        [
            ("version", ">i2"),  # 0; Kafka reads its high byte only
            ("producer_id", ">i8"),
            ("first_offset", ">i8"),  # may be in an earlier segment
            ("last_offset", ">i8"),  # of the abort marker
            ("last_stable_offset", ">i8"),  # at the time of the abort
        ]
    )


ENTRY_SIZE = 34


class AbortedTransaction(NamedTuple):
    """One aborted transaction: records of `producer_id` in [first_offset, last_offset) are hidden
    from read_committed readers.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def encode(transactions: Iterable[AbortedTransaction]) -> bytes:
    """The bytes of the entries."""
    rows = [(0, *transaction) for transaction in transactions]
    return np.array(rows, _entry_dtype()).tobytes()


def decode(data: bytes, base: int, path: str | os.PathLike[str] | None = None) -> Entries:
    """The entries of the segment that begins at `base`, all checked.

    Raises CorruptRecordError with the position of the first invalid entry, UnsupportedFormatError
    for a newer version.
    """
    whole = len(data) - len(data) % ENTRY_SIZE
    if whole != len(data):
        raise CorruptRecordError(
            "the transaction index ends inside an entry",
            path=path,
            position=whole,
            expected=f"{ENTRY_SIZE} bytes",
            found=len(data) - whole,
        )
    entries = np.frombuffer(data, _entry_dtype())
    _check(
        entries["version"] >> 8 == 0, path, entries["version"], "version 0", UnsupportedFormatError
    )
    _check(
        entries["last_offset"] >= base,
        path,
        entries["last_offset"],
        f"a marker in its segment, at or above {base}",
    )
    _check(
        entries["first_offset"] <= entries["last_offset"],
        path,
        entries["first_offset"],
        "a first offset up to its marker",
    )
    rising = np.diff(entries["last_offset"].astype(np.int64), prepend=-1) > 0
    _check(rising, path, entries["last_offset"], "a marker after the previous one")
    return entries


def _check(
    good: NDArray[np.bool_],
    path: str | os.PathLike[str] | None,
    values: NDArray[Any],
    expected: str,
    error: type[CorruptRecordError | UnsupportedFormatError] = CorruptRecordError,
) -> None:
    if not good.all():
        row = int(np.argmin(good))
        raise error(
            "transaction index",
            path=path,
            position=row * ENTRY_SIZE,
            expected=expected,
            found=int(values[row]),
        )


def overlapping(entries: Entries, start: int, end: int) -> tuple[list[AbortedTransaction], bool]:
    """The transactions that touch offsets [start, end), and whether the list is complete.

    If not, the index of the next segment must be read too: the marker of a transaction may be far
    after its records. The list is complete once an entry has a last stable offset at or above the
    end: a transaction that ends after that marker began at or above that offset (Kafka's rule).
    """
    final = np.flatnonzero(entries["last_stable_offset"] >= end)
    is_complete = len(final) > 0
    if is_complete:
        entries = entries[: final[0] + 1]
    touching = entries[(entries["last_offset"] >= start) & (entries["first_offset"] < end)]
    return [AbortedTransaction(*row[1:]) for row in touching.tolist()], is_complete


def digest(data: bytes, chained: int = 0) -> int:
    """The digest of the entries in `data`, without a part of one at the end, continued from
    `chained`; control page and manifest contain it beside the length.
    """
    for at in range(0, len(data) - ENTRY_SIZE + 1, ENTRY_SIZE):
        chained = codec.xxh3_64(data[at : at + ENTRY_SIZE], chained)
    return chained


def below(data: bytes, end: int, base: int) -> bytes:
    """The index of a segment that is truncated at `end`: without entries whose markers are
    removed.
    """
    entries = decode(data, base)
    return data[: int(np.count_nonzero(entries["last_offset"] < end)) * ENTRY_SIZE]
