"""Applies records of an internal topic to a view, in log order; records of transactions with their
outcome.

- A view that is not transactional gets every record as it is: its topic contains no transactions.
- A transactional view gets records of a transaction as pending, and the transaction's marker as
  their outcome.
- Everything is decoded before the first record is applied: a read is applied as a whole or not at
  all.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any, NamedTuple, Protocol, runtime_checkable

from embedlog._native.lazy_numpy import np
from embedlog.format.record_batch import (
    COMMIT,
    CONTROL,
    TRANSACTIONAL,
    Batches,
    decode_parts,
    markers,
)

Record = tuple[bytes, bytes | None]


class View(Protocol):
    """The sum of one partition's records. Records are applied in log order, never by two threads at
    once.

    Other threads read a view while records are applied: each of its readers looks once, in a way
    that is atomic in Python, such as one lookup in a mapping or a copy by `list`.
    """

    def apply(self, key: bytes, value: bytes | None) -> None:
        """Apply the next record."""


@runtime_checkable
class TransactionalView(View, Protocol):
    """A view in which a transaction's records count only once it is committed."""

    def apply_pending(self, producer_id: int, key: bytes, value: bytes | None) -> None:
        """Apply the next record, of an open transaction."""

    def end_transaction(self, producer_id: int, commit: bool) -> None:
        """Apply the end of a producer's transaction."""


class _Change(NamedTuple):
    """A row where the kind of records changes: `records` of an open transaction, or the end of
    one.
    """

    row: int
    producer_id: int
    records: int = 0
    commit: bool | None = None


class Records(NamedTuple):
    """Records in log order, ready to be applied."""

    records: list[Record]
    changes: list[_Change]

    def apply_to(self, view: View) -> None:
        """Apply all of them."""
        row = 0
        for change in self.changes:
            assert isinstance(view, TransactionalView)
            _apply(view, self.records[row : change.row])
            row = change.row + change.records
            if change.commit is not None:
                view.end_transaction(change.producer_id, change.commit)
            for key, value in self.records[change.row : row]:
                view.apply_pending(change.producer_id, key, value)
        _apply(view, self.records[row:] if row else self.records)


def _apply(view: View, records: list[Record]) -> None:
    for key, value in records:
        view.apply(key, value)


NONE = Records([], [])


def read(data: Any, batches: Batches, position: int, transactional: bool) -> Records:
    """The records from offset `position` on. Raises CorruptRecordError."""
    records: list[Record] = []
    offsets: list[int] = []
    for columns in decode_parts(data, batches, columns={"key", "value", "offset"}):
        assert columns.keys is not None
        assert columns.values is not None
        assert columns.offsets is not None
        keys = columns.keys
        values = columns.values
        batch_offsets = columns.offsets.tolist()
        first = bisect_left(batch_offsets, position)
        records += [(keys[row] or b"", values[row]) for row in range(first, columns.count)]
        offsets += batch_offsets[first:]
    return Records(
        records, _find_changes(data, batches, offsets, position) if transactional else []
    )


def _find_changes(data: Any, batches: Batches, offsets: list[int], position: int) -> list[_Change]:
    transactional = np.flatnonzero(batches["attributes"] & TRANSACTIONAL)
    if not len(transactional):
        return []
    selected = batches[transactional]
    ends = {marker.offset: marker.kind == COMMIT for marker in markers(data, selected)}
    changes = []
    for base, delta, attributes, producer_id in zip(
        selected["base_offset"].tolist(),
        selected["last_offset_delta"].tolist(),
        selected["attributes"].tolist(),
        selected["producer_id"].tolist(),
        strict=True,
    ):
        row = bisect_left(offsets, base)
        if not attributes & CONTROL:
            changes.append(_Change(row, producer_id, bisect_left(offsets, base + delta + 1) - row))
        elif base >= position and base in ends:
            # otherwise compaction emptied it, since no data of the transaction is left
            changes.append(_Change(row, producer_id, commit=ends[base]))
    return changes
