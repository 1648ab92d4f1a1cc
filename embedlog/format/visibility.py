"""Contains the filter for control batches and aborted transactions.

VISIBILITY-1  no reader gets a control batch
VISIBILITY-2  read_committed drops a producer's transactional batches from the first offset of an
    aborted transaction on, until the ABORT marker of that producer. Batches outside of
    transactions, and those before and after, are kept
VISIBILITY-3  the partition enforces the last stable offset; the batches here are below it
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


def seen(
    batches: Batches, aborted: Sequence[tuple[int, int]], aborts: NDArray[np.bool_] | None = None
) -> Batches:
    """The batches whose records a reader gets.

    `aborted` has (producer id, first offset) of every aborted transaction that overlaps the
    batches, empty for read_uncommitted. `aborts` is true for each ABORT marker, and needed only
    with `aborted`.
    """
    control = (batches["attributes"] & CONTROL) != 0
    keep = ~control
    if aborted:
        assert aborts is not None
        keep &= ~_dropped(batches, aborted, aborts)
    return batches if keep.all() else batches[keep]


def _dropped(
    batches: Batches, aborted: Sequence[tuple[int, int]], aborts: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Marks the data batches of aborted transactions, in one pass in offset order
    (VISIBILITY-2).
    """
    waiting = sorted(aborted, key=lambda transaction: transaction[1], reverse=True)
    open_producers: set[int] = set()
    dropped = np.zeros(len(batches), np.bool_)
    transactional = (batches["attributes"] & TRANSACTIONAL) != 0
    last_offsets = batches["base_offset"] + batches["last_offset_delta"]
    for row in np.flatnonzero(transactional).tolist():
        producer = int(batches["producer_id"][row])
        while waiting and waiting[-1][1] <= last_offsets[row]:
            open_producers.add(waiting.pop()[0])
        if aborts[row]:
            open_producers.discard(producer)
        elif producer in open_producers:
            dropped[row] = True
    return dropped
