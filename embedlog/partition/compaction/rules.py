"""Decides what a compaction does with each batch, before it reads records (format.md 7.1, 7.3,
7.4).

- Pure: input is batch headers, markers and numbers, output is decisions.
- Records of an aborted transaction are removed; its marker one delete horizon after the last of
  them.
- The last batch of a producer stays, even if empty: its sequences must not be forgotten before the
  producer.
- The last batch of a pass stays, even if empty: the log keeps its end offset up to there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from embedlog._native.lazy_numpy import np
from embedlog.format.aborted_transactions import AbortedTransaction
from embedlog.format.compactor import DISCARD, HORIZON, HORIZON_BIT, KEEP_EMPTY, WHOLE
from embedlog.format.producer_state import NO_PRODUCER, Marker, Producer
from embedlog.format.record_columns import CONTROL, RELATIVE_MAX, TRANSACTIONAL, Batches
from embedlog.storage.manifest import SegmentInfo

if TYPE_CHECKING:
    from numpy.typing import NDArray


class CleanRange(NamedTuple):
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


def find_clean_range(
    sealed: list[SegmentInfo],
    *,
    cleaned_to: int,
    log_start: int,
    stable: int,
    now_ms: int,
    min_lag_ms: int,
    max_lag_ms: int,
) -> CleanRange:
    """The range that may be cleaned. `cleaned_to`: the cleaner's checkpoint; `stable`: records from
    it on are undecided.
    """
    end_of_sealed = sealed[-1].next_offset if sealed else log_start
    first_dirty = log_start
    if log_start <= cleaned_to <= end_of_sealed:
        first_dirty = cleaned_to
    end = min(stable, end_of_sealed)
    if min_lag_ms > 0:
        for info in sealed:
            if info.next_offset > first_dirty and info.max_timestamp > now_ms - min_lag_ms:
                end = min(end, info.base)
                break
    end = max((info.next_offset for info in sealed if info.next_offset <= end), default=first_dirty)
    dirty = [info for info in sealed if first_dirty < info.next_offset <= end]
    overdue = any(info.size and 0 <= _oldest_ms(info) < now_ms - max_lag_ms for info in dirty)
    clean_bytes = sum(info.size for info in sealed if info.next_offset <= first_dirty)
    dirty_bytes = sum(info.size for info in dirty)
    return CleanRange(first_dirty, max(end, first_dirty), clean_bytes, dirty_bytes, overdue)


def _oldest_ms(info: SegmentInfo) -> int:
    """A lower bound of the timestamps; the largest timestamp if no bound is known."""
    if info.min_timestamp >= 0:
        return info.min_timestamp
    return info.max_timestamp


def group_segments(
    sealed: Iterable[SegmentInfo], *, segment_bytes: int, index_bytes: int
) -> list[list[SegmentInfo]]:
    """Groups of consecutive segments that become one segment each, by their current sizes."""
    joined_groups: list[list[SegmentInfo]] = []
    # bytes of the last group
    log_size = 0
    index_size = 0
    time_index_size = 0
    for info in sealed:
        log_size += info.size
        index_size += 8 * info.index_entries
        time_index_size += 12 * info.time_entries
        fits = log_size <= segment_bytes and max(index_size, time_index_size) <= index_bytes
        if joined_groups and info.size:
            last_offset = info.next_offset - 1
            fits = fits and last_offset - joined_groups[-1][0].base <= RELATIVE_MAX
        if not joined_groups or not fits:
            joined_groups.append([])
            log_size = info.size
            index_size = 8 * info.index_entries
            time_index_size = 12 * info.time_entries
        joined_groups[-1].append(info)
    return joined_groups


class CompactedTransactions:
    """Follows the transactions of a log in the order of its batches, and decides for each batch."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        # that have not begun yet, the next one last
        self._waiting = sorted(
            aborted, key=lambda transaction: transaction.first_offset, reverse=True
        )
        self._open: dict[int, AbortedTransaction] = {}
        self._with_records: set[int] = set()  # producers with a record since their last marker
        self.kept: list[AbortedTransaction] = []  # transactions whose markers stay

    def select_records(self, batches: Batches) -> NDArray[np.bool_]:
        """For each batch, whether it has committed or plain records. Markers are followed too."""
        orders = self.decide(batches, lambda row: None, {}, -1, 0)
        counts: NDArray[np.bool_] = (batches["attributes"] & CONTROL == 0) & (orders & DISCARD == 0)
        return counts

    def decide(
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
                transaction = self._waiting.pop()
                self._open[transaction.producer_id] = transaction
            if batch["attributes"] & CONTROL:
                orders[row] |= self._decide_marker(batch, marker_of(row), now_ms)
            elif batch["attributes"] & TRANSACTIONAL:
                self._with_records.add(int(batch["producer_id"]))
                if int(batch["producer_id"]) in self._open:
                    orders[row] |= DISCARD
            if _is_needed(batch, last, producers.get(int(batch["producer_id"]))):
                orders[row] |= KEEP_EMPTY
        other_controls = (batches["attributes"] & CONTROL != 0) & (
            batches["producer_id"] == NO_PRODUCER
        )
        orders[other_controls] |= WHOLE
        return orders

    def _decide_marker(self, batch: np.void, marker: Marker | None, now_ms: int) -> int:
        producer = int(batch["producer_id"])
        has_records = producer in self._with_records
        self._with_records.discard(producer)
        aborted = self._open.pop(producer, None)
        if not batch["records"]:
            return DISCARD
        if has_records or (marker is None and aborted is None):
            if aborted is not None:
                self.kept.append(aborted)
            return WHOLE
        if batch["attributes"] & HORIZON_BIT and now_ms >= int(batch["base_timestamp"]):
            return DISCARD
        if aborted is not None:
            self.kept.append(aborted)
        return WHOLE | HORIZON


def _is_needed(batch: np.void, last_offset: int, producer: Producer | None) -> bool:
    """Whether the producer's state at the log end depends on this batch."""
    if producer is None:
        return False
    if producer.batches:
        return producer.batches[-1].last_offset == last_offset
    return bool(batch["attributes"] & CONTROL) and int(batch["producer_epoch"]) == producer.epoch
