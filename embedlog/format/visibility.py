"""Contains the filter for control batches and aborted transactions.

- No reader gets a control batch.
- Read_committed drops a producer's transactional batches from the first offset of an aborted
  transaction on, until the ABORT marker of that producer. Batches outside of transactions, and
  those before and after, are kept.
- The partition enforces the last stable offset; the batches here are below it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from embedlog._native.lazy_numpy import np
from embedlog.format.record_batch import CONTROL, TRANSACTIONAL, Batches

if TYPE_CHECKING:
    from numpy.typing import NDArray

Isolation: TypeAlias = Literal["read_uncommitted", "read_committed"]
"""Whether records of open and aborted transactions are read: "read_uncommitted" or
"read_committed".
"""
READ_UNCOMMITTED: Final = "read_uncommitted"
READ_COMMITTED: Final = "read_committed"


def end_offset(bounds: Any, isolation: str) -> int:
    """The end of the offsets for readers with this isolation level, exclusive."""
    end: int = bounds.last_stable if isolation == READ_COMMITTED else bounds.high_watermark
    return end


def filter_visible(
    batches: Batches, aborted: Sequence[tuple[int, int]], aborts: NDArray[np.bool_] | None = None
) -> Batches:
    """The batches whose records a reader gets.

    `aborted` has (producer id, first offset) of every aborted transaction that overlaps the
    batches, empty for read_uncommitted. `aborts` is true for each ABORT marker, and needed only
    with `aborted`.
    """
    is_visible = (batches["attributes"] & CONTROL) == 0
    if aborted:
        assert aborts is not None
        is_visible &= ~_mark_aborted(batches, aborted, aborts)
    return batches if is_visible.all() else batches[is_visible]


def _mark_aborted(
    batches: Batches, aborted: Sequence[tuple[int, int]], aborts: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Which rows are data batches of aborted transactions, by one pass in offset order."""
    waiting = sorted(aborted, key=lambda transaction: transaction[1], reverse=True)
    aborting_producers: set[int] = set()
    is_aborted = np.zeros(len(batches), np.bool_)
    is_transactional = (batches["attributes"] & TRANSACTIONAL) != 0
    last_offsets = batches["base_offset"] + batches["last_offset_delta"]
    for row in np.flatnonzero(is_transactional).tolist():
        producer_id = int(batches["producer_id"][row])
        while waiting and waiting[-1][1] <= last_offsets[row]:
            aborting_id, _ = waiting.pop()
            aborting_producers.add(aborting_id)
        if aborts[row]:
            aborting_producers.discard(producer_id)
        elif producer_id in aborting_producers:
            is_aborted[row] = True
    return is_aborted
