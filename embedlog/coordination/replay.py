"""How records of an internal topic come into a view: in log order, those of transactions with what became of them.

REPLAY-1  a view that does not tell them apart gets every record as it comes: nobody writes transactions to its topic
REPLAY-2  one that does gets what a transaction wrote as pending, and the transaction's marker as the word that settles it
REPLAY-3  everything is decoded before the first record is taken in: a view is fed as a whole or not at all
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from embedlog.format.record_batch import COMMIT, CONTROL, TRANSACTIONAL, Batches, decode_parts, markers

Record = tuple[bytes, bytes | None]


class View(Protocol):
    """What the records of one partition add up to. It is fed in log order, never by two threads at once."""

    def apply(self, key: bytes, value: bytes | None) -> None:
        """Take the next record in."""


@runtime_checkable
class DiscerningView(View, Protocol):
    """One for which a transaction's records count only once it is committed."""

    def apply_pending(self, producer_id: int, key: bytes, value: bytes | None) -> None:
        """The next record, of a transaction that is open."""

    def settle(self, producer_id: int, commit: bool) -> None:
        """The end of a producer's transaction."""


class _Turn(NamedTuple):
    """Where among the records something else begins: `records` of an open transaction, or the end of one."""

    row: int
    producer_id: int
    records: int = 0
    commit: bool | None = None


class Records(NamedTuple):
    """Some records in log order, ready to be taken in."""

    records: list[Record]
    turns: list[_Turn]

    def into(self, view: View) -> None:
        """Take all of them in."""
        row = 0
        for turn in self.turns:
            assert isinstance(view, DiscerningView)
            _apply(view, self.records[row : turn.row])
            row = turn.row + turn.records
            if turn.commit is not None:
                view.settle(turn.producer_id, turn.commit)
            for key, value in self.records[turn.row : row]:
                view.apply_pending(turn.producer_id, key, value)
        _apply(view, self.records[row:] if row else self.records)


def _apply(view: View, records: list[Record]) -> None:
    for key, value in records:
        view.apply(key, value)


NONE = Records([], [])


def read(data: Any, batches: Batches, position: int, discerning: bool) -> Records:
    """The records from offset `position` on. Raises CorruptRecordError."""
    records: list[Record] = []
    offsets: list[int] = []
    for columns in decode_parts(data, batches, columns={"key", "value", "offset"}):
        assert columns.keys is not None
        assert columns.values is not None
        assert columns.offsets is not None
        keys, values, found = columns.keys, columns.values, columns.offsets.tolist()
        first = bisect_left(found, position)
        records += [(keys[row] or b"", values[row]) for row in range(first, columns.count)]
        offsets += found[first:]
    return Records(records, _turns(data, batches, offsets, position) if discerning else [])


def _turns(data: Any, batches: Batches, offsets: list[int], position: int) -> list[_Turn]:
    transactional = np.flatnonzero(batches["attributes"] & TRANSACTIONAL)
    if not len(transactional):
        return []
    found = batches[transactional]
    ends = {marker.offset: marker.kind == COMMIT for marker in markers(data, found)}
    turns = []
    for base, delta, attributes, producer_id in zip(
        found["base_offset"].tolist(),
        found["last_offset_delta"].tolist(),
        found["attributes"].tolist(),
        found["producer_id"].tolist(),
        strict=True,
    ):
        row = bisect_left(offsets, base)
        if not attributes & CONTROL:
            turns.append(_Turn(row, producer_id, bisect_left(offsets, base + delta + 1) - row))
        elif base >= position and base in ends:  # else compaction has emptied it, as nothing of the transaction is left
            turns.append(_Turn(row, producer_id, commit=ends[base]))
    return turns
