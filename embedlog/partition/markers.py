"""Writes the marker that ends a transaction in one partition, as Kafka does (format.md 13.3).

- The order is marker, entry of the transaction index, publication; a repair writes the entry again
  from the marker.
- A marker carries a raised epoch. Nothing is written if the stored epoch is as high, so any process
  may repeat it.
- A marker is written with or without an open transaction: its epoch fences late appends.
"""

from __future__ import annotations

from embedlog._native import system
from embedlog.errors import FencedError, StorageError
from embedlog.format import aborted_transactions
from embedlog.format.aborted_transactions import AbortedTransaction
from embedlog.format.producer_state import Marker, Producer, ProducerState
from embedlog.format.record_batch import marker_batch
from embedlog.partition.append_lock import AppendLock
from embedlog.partition.locked_partition import LockedPartition
from embedlog.storage import file_names, files


def append_marker(
    lock: AppendLock,
    producer_id: int,
    epoch: int,
    *,
    commit: bool,
    coordinator_epoch: int | None,
    deadline_ns: int,
) -> int | None:
    """The offset of the marker; None if the stored epoch is as high. REQUIRES the partition's
    mutex. Raises FencedError.
    """
    while True:
        outcome = _attempt(lock, producer_id, epoch, commit, coordinator_epoch, deadline_ns)
        if outcome is None:
            return None
        code, offset = outcome
        if code == system.APPENDED:
            return offset
        lock.resolve_code(code, deadline_ns)


def _attempt(
    lock: AppendLock,
    producer_id: int,
    epoch: int,
    commit: bool,
    coordinator_epoch: int | None,
    deadline_ns: int,
) -> tuple[int, int] | None:
    """(code, offset) of an attempt; None if the stored epoch is as high."""
    lock.producers.catch_up()
    with lock.exclusive_mutexed(deadline_ns) as locked:
        published = locked.published
        writer = locked.writer.native()
        state = locked.producer_state(published)
        producer = state.producers.get(producer_id) or Producer(producer_id)
        if _is_ended(producer, epoch):
            return None
        # embedlog has none; the epoch of a broker that had the directory before must not decrease
        if coordinator_epoch is None:
            coordinator_epoch = max(producer.coordinator_epoch, 0)
        fenced = coordinator_epoch < producer.coordinator_epoch
        if not fenced:
            locked.state.mark_dirty()
            now_ms = system.wall_ms()
            batch = marker_batch(producer_id, epoch, commit, coordinator_epoch, now_ms)
            code = _write(locked, state, producer, batch, commit)
            if code == system.APPENDED:
                marker = Marker(commit, coordinator_epoch)
                locked.producers.take_marker(producer_id, epoch, marker, now_ms, writer)
    if fenced:
        raise FencedError(
            f"a marker for producer {producer_id} by an older coordinator",
            expected=f"coordinator epoch {producer.coordinator_epoch} or later",
            found=coordinator_epoch,
        )
    return code, writer.out.base_offset


def _is_ended(producer: Producer, epoch: int) -> bool:
    """Whether the transaction of this epoch has its marker, or a later transaction has begun."""
    return producer.epoch >= epoch


def ending_of(
    state: ProducerState, producer_id: int, marker: Marker | None, offset: int
) -> tuple[int, bytes | None]:
    """The first unstable offset after a control batch at `offset`, and the entry of the transaction
    index if it aborts records.

    `state` is that before the batch; `marker` is None for a control batch of another kind.
    """
    starts = [
        start
        for other_id, start in state.open_transactions()
        if marker is None or other_id != producer_id
    ]
    unstable = min(starts, default=-1)
    producer = state.producers.get(producer_id)
    if marker is None or marker.committed or producer is None or producer.transaction_start < 0:
        return unstable, None
    stable = offset + 1
    if unstable >= 0:
        stable = unstable
    aborted = AbortedTransaction(producer_id, producer.transaction_start, offset, stable)
    return unstable, aborted_transactions.encode([aborted])


def _write(
    locked: LockedPartition, state: ProducerState, producer: Producer, batch: bytes, commit: bool
) -> int:
    published = locked.published
    writer = locked.writer.native()
    unstable, entry = ending_of(state, producer.producer_id, Marker(commit, 0), published.log_end)
    if entry is None:
        code = writer.append_marker(batch, unstable, None, -1)
    else:
        path = file_names.segment_path(
            locked.path, published.segment_base, file_names.TRANSACTION_INDEX
        )
        with files.opened(path, files.CREATE, locked.mode) as fd:
            code = writer.append_marker(batch, unstable, entry, fd)
        if code != system.APPENDED and published.transaction_entries == 0:
            # in Kafka only a segment with an aborted transaction has one
            files.unlink(path, missing_ok=True)
    if code == system.MUST_REPAIR:
        raise StorageError("an incompletely written marker could not be removed", path=locked.path)
    return code
