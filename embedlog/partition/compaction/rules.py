"""Decides what a compaction does with each batch, before it reads records (format.md 7.1, 7.3,
7.4).

COMPACTION-1  pure: input is batch headers, markers and numbers, output is decisions
COMPACTION-2  records of an aborted transaction are removed; its marker one delete horizon after the
    last of them
COMPACTION-3  the last batch of a producer stays, even if empty: its sequences must not be forgotten
    before the producer
COMPACTION-4  the last batch of a pass stays, even if empty: the log keeps its end offset up to
    there
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from embedlog._native.lazy_numpy import np
from embedlog.format.aborted_transactions import AbortedTransaction
from embedlog.format.compactor import DISCARD, HORIZON, HORIZON_BIT, KEEP_EMPTY, WHOLE
from embedlog.format.producer_state import NO_PRODUCER, Marker, Producer
from embedlog.format.record_columns import CONTROL, TRANSACTIONAL, Batches
from embedlog.storage.manifest import SegmentInfo

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Bounds(NamedTuple):
    """The part of a log that a pass may clean, and its dirty bytes."""

    first_dirty: int
    end: int  # exclusive; a segment's base
    clean_bytes: int
    dirty_bytes: int
    overdue: bool  # a record is older than max.compaction.lag.ms

    @property
    def ratio(self) -> float:
        """The dirty share of the part that can be cleaned."""
        return self.dirty_bytes / max(1, self.clean_bytes + self.dirty_bytes)


def bounds(
    sealed: list[SegmentInfo],
    *,
    known: int,
    log_start: int,
    stable: int,
    now_ms: int,
    min_lag_ms: int,
    max_lag_ms: int,
) -> Bounds:
    """The range that may be cleaned. `known`: the cleaner's checkpoint; `stable`: records from it
    on are undecided.
    """
    end_of_sealed = sealed[-1].next_offset if sealed else log_start
    first_dirty = known if log_start <= known <= end_of_sealed else log_start
    end = min(stable, end_of_sealed)
    for info in sealed:
        if (
            min_lag_ms > 0
            and info.next_offset > first_dirty
            and info.max_timestamp > now_ms - min_lag_ms
        ):
            end = min(end, info.base)
            break
    end = max((info.next_offset for info in sealed if info.next_offset <= end), default=first_dirty)
    dirty = [info for info in sealed if first_dirty < info.next_offset <= end]
    overdue = any(info.size and 0 <= _oldest(info) < now_ms - max_lag_ms for info in dirty)
    clean_bytes = sum(info.size for info in sealed if info.next_offset <= first_dirty)
    return Bounds(
        first_dirty, max(end, first_dirty), clean_bytes, sum(info.size for info in dirty), overdue
    )


def _oldest(info: SegmentInfo) -> int:
    """A lower bound of the timestamps; the largest timestamp if no bound is known."""
    return info.min_timestamp if info.min_timestamp >= 0 else info.max_timestamp


def groups(
    sealed: Iterable[SegmentInfo], *, segment_bytes: int, index_bytes: int
) -> list[list[SegmentInfo]]:
    """Groups of consecutive segments that become one segment each, by their present sizes."""
    found: list[list[SegmentInfo]] = []
    size = offsets = times = 0
    for info in sealed:
        size = size + info.size
        offsets = offsets + 8 * info.index_entries
        times = times + 12 * info.time_entries
        far = (
            bool(found) and bool(info.size) and info.next_offset - 1 - found[-1][0].base > 2**31 - 1
        )
        if not found or far or size > segment_bytes or offsets > index_bytes or times > index_bytes:
            found.append([])
            size = info.size
            offsets = 8 * info.index_entries
            times = 12 * info.time_entries
        found[-1].append(info)
    return found


class Transactions:
    """Follows the transactions of a log in the order of its batches, and decides for each batch."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._waiting = sorted(aborted, key=lambda each: each.first_offset, reverse=True)
        self._open: dict[int, AbortedTransaction] = {}
        self._met: set[int] = set()  # producers with a record since their last marker
        self.kept: list[AbortedTransaction] = []  # transactions whose markers stay

    def records(self, batches: Batches) -> NDArray[np.bool_]:
        """For each batch, whether it has committed or plain records. Markers are followed too."""
        orders = self.orders(batches, lambda row: None, {}, -1, 0)
        counts: NDArray[np.bool_] = (batches["attributes"] & CONTROL == 0) & (orders & DISCARD == 0)
        return counts

    def orders(
        self,
        batches: Batches,
        marker_of: Callable[[int], Marker | None],
        producers: Mapping[int, Producer],
        end: int,
        now_ms: int,
    ) -> NDArray[np.uint8]:
        """The decision for each batch. `end`: of the pass; `producers`: as of the log end."""
        orders = np.zeros(len(batches), np.uint8)
        lasts = batches["base_offset"] + batches["last_offset_delta"]
        orders[lasts + 1 == end] |= KEEP_EMPTY
        for row in np.flatnonzero(batches["producer_id"] != NO_PRODUCER).tolist():
            batch = batches[row]
            last = int(lasts[row])
            while self._waiting and self._waiting[-1].first_offset <= last:
                begun = self._waiting.pop()
                self._open[begun.producer_id] = begun
            if batch["attributes"] & CONTROL:
                orders[row] |= self._marker(batch, marker_of(row), now_ms)
            elif batch["attributes"] & TRANSACTIONAL:
                self._met.add(int(batch["producer_id"]))
                if int(batch["producer_id"]) in self._open:
                    orders[row] |= DISCARD
            if _is_needed(batch, last, producers.get(int(batch["producer_id"]))):
                orders[row] |= KEEP_EMPTY
        rest = (batches["attributes"] & CONTROL != 0) & (batches["producer_id"] == NO_PRODUCER)
        orders[rest] |= WHOLE
        return orders

    def _marker(self, batch: np.void, marker: Marker | None, now_ms: int) -> int:
        producer = int(batch["producer_id"])
        met = producer in self._met
        self._met.discard(producer)
        ended = self._open.pop(producer, None)
        if not batch["records"]:
            return DISCARD
        if met or (marker is None and ended is None):
            if ended is not None:
                self.kept.append(ended)
            return WHOLE
        horizon = int(batch["base_timestamp"]) if batch["attributes"] & HORIZON_BIT else None
        if horizon is not None and now_ms >= horizon:
            return DISCARD
        if ended is not None:
            self.kept.append(ended)
        return WHOLE | HORIZON


def _is_needed(batch: np.void, last_offset: int, producer: Producer | None) -> bool:
    """Whether the producer's state at the log end depends on this batch."""
    if producer is None:
        return False
    if producer.batches:
        return producer.batches[-1].last_offset == last_offset
    return bool(batch["attributes"] & CONTROL) and int(batch["producer_epoch"]) == producer.epoch
