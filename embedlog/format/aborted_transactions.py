"""The aborted transactions of one segment: Kafka's `.txnindex`, entries of 34 bytes.

ABORTED-1  it is no cache: without it a read_committed reader gets aborted records, so it is checked whenever it is read, and
    rebuilt from the log where it does not hold
ABORTED-2  entries are in the order of their markers; an entry lies in the segment that holds its marker
ABORTED-3  bytes in, bytes out: nothing here knows a file
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from embedlog._native import codec
from embedlog.errors import CorruptRecordError, UnsupportedFormatError

ENTRY = np.dtype(
    [
        ("version", ">i2"),  # 0; Kafka looks at its high byte only
        ("producer_id", ">i8"),
        ("first_offset", ">i8"),  # may lie in an earlier segment
        ("last_offset", ">i8"),  # of the abort marker
        ("last_stable_offset", ">i8"),  # at the time of the abort
    ]
)
ENTRY_SIZE = 34
assert ENTRY.itemsize == ENTRY_SIZE

Entries = NDArray[Any]  # of ENTRY: numpy has no static type for structured rows


class AbortedTransaction(NamedTuple):
    """One aborted transaction: records of `producer_id` in [first_offset, last_offset) are not for read_committed readers."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def encode(transactions: Iterable[AbortedTransaction]) -> bytes:
    """The entries as they are appended to the file."""
    return np.array([(0, *each) for each in transactions], ENTRY).tobytes()


def decode(data: bytes, base: int, path: str | os.PathLike[str] | None = None) -> Entries:
    """The entries of the segment that begins at `base`, all checked.

    Raises CorruptRecordError with the position of the first entry that cannot be true, UnsupportedFormatError for a newer one.
    """
    whole = len(data) - len(data) % ENTRY_SIZE
    if whole != len(data):
        raise CorruptRecordError("the transaction index ends inside an entry", path=path, position=whole,
                                 expected=f"{ENTRY_SIZE} bytes", found=len(data) - whole)  # fmt: skip
    entries = np.frombuffer(data, ENTRY)
    _check(entries["version"] >> 8 == 0, path, entries["version"], "version 0", UnsupportedFormatError)
    _check(entries["last_offset"] >= base, path, entries["last_offset"], f"a marker in its segment, at or above {base}")
    _check(entries["first_offset"] <= entries["last_offset"], path, entries["first_offset"], "a beginning before its marker")
    rising = np.diff(entries["last_offset"].astype(np.int64), prepend=-1) > 0
    _check(rising, path, entries["last_offset"], "a marker behind the one before")
    return entries


def _check(
    good: NDArray[np.bool_], path: str | os.PathLike[str] | None, values: NDArray[Any], expected: str,
    error: type[CorruptRecordError | UnsupportedFormatError] = CorruptRecordError,
) -> None:  # fmt: skip
    if not good.all():
        row = int(np.argmin(good))
        raise error("transaction index", path=path, position=row * ENTRY_SIZE, expected=expected, found=int(values[row]))


def overlapping(entries: Entries, start: int, end: int) -> tuple[list[AbortedTransaction], bool]:
    """The transactions that touch offsets [start, end), and whether these are all.

    When they are not, the next segment's index is to be asked too, for a transaction may be aborted long after its records.
    """
    final = np.flatnonzero(entries["last_stable_offset"] >= end)
    read = entries[: final[0] + 1] if len(final) else entries
    hits = read[(read["last_offset"] >= start) & (read["first_offset"] < end)]
    return [AbortedTransaction(*row[1:]) for row in hits.tolist()], bool(len(final))


def digest(data: bytes, chained: int = 0) -> int:
    """The chain over whole entries, going on from `chained`: what page and manifest know of an index beside its length."""
    for at in range(0, len(data) - ENTRY_SIZE + 1, ENTRY_SIZE):
        chained = codec.xxh3_64(data[at : at + ENTRY_SIZE], chained)
    return chained


def below(data: bytes, end: int, base: int) -> bytes:
    """The index of a segment that is cut at `end`: without the entries whose markers are gone."""
    entries = decode(data, base)
    return data[: int(np.count_nonzero(entries["last_offset"] < end)) * ENTRY_SIZE]
