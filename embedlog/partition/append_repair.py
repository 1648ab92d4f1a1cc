"""Repair: files and control page agree again after an appender was killed or interrupted.

REPAIR-1  a repair recovers before it cuts: valid batches after the published end may have been on
    disk after a crash
REPAIR-2  bytes that are cut are copied aside first, and reported
REPAIR-3  a repair can be interrupted anywhere and repeated
REPAIR-4  the state of the producers begins at the published end: batches below it are in the log,
    whatever the appender intended
REPAIR-5  the transaction index gets exactly the entries of the markers in the log: published ones,
    then the recovered ones
REPAIR-6  every process that has cached a producer of this partition reads the log again afterwards
REPAIR-7  a missing active segment is damage of the partition. A missing partition directory is a
    failure of the storage
"""

from __future__ import annotations

import logging
from pathlib import Path

from embedlog import segment
from embedlog._native import system
from embedlog._native.replication import ROLE_FOLLOWER, ROLE_NONE, Replica
from embedlog._native.system import Published
from embedlog.errors import CorruptRecordError
from embedlog.format import aborted_transactions
from embedlog.format.aborted_transactions import ENTRY_SIZE, AbortedTransaction
from embedlog.format.producer_state import ProducerState
from embedlog.format.record_batch import Batches, Chain
from embedlog.partition.compaction import swap
from embedlog.partition.locked_partition import LockedPartition
from embedlog.partition.recovery import producer_history
from embedlog.partition.segment_info import builder_at, published_after, size_of_active
from embedlog.partition.truncation import log_cut
from embedlog.partition.truncation.stable_offset import restated
from embedlog.storage import file_names, files
from embedlog.storage.manifest import DIGESTED

logger = logging.getLogger("embedlog")


def repair(held: LockedPartition) -> Published:
    """Make files and control page agree: recover the valid tail, cut the rest, undo a roll that was
    not published.
    """
    now = held.now
    held.writer.close_segment()
    held.segments.forget()
    if held.page.word(system.WORD_CUT_INTENT):
        now = log_cut.resume(held)
    elif now.generation % 2:
        now = swap.finish(held)
    held.now = now
    after, replica = _recover_tail(held, held.replica)
    if held.page.word(system.WORD_SNAPSHOT) > after.segment_base + 1:
        held.page.set(system.WORD_SNAPSHOT, 0)  # its segment may be removed as unpublished
    _remove_unpublished(held, after)
    if after.segment_size < now.segment_size:
        raise CorruptRecordError(
            "published bytes are missing",
            path=file_names.segment_path(held.path, now.segment_base),
            expected=f"{now.segment_size} bytes",
            found=after.segment_size,
        )
    held.publish(after, replica)
    held.page.set(system.WORD_ROLL_INTENT, 0)
    _count_unsynced(held, now, after)
    return after


def _count_unsynced(held: LockedPartition, now: Published, after: Published) -> None:
    """Mark the recovered records for a flush: their appender may have been killed before it marked
    them.
    """
    durable = held.page.word(system.WORD_DURABLE)
    if after.log_end <= durable:
        return
    if now.log_end <= durable:
        held.page.set(system.WORD_UNSYNCED_SINCE, held.page.word(system.WORD_OWNER_SINCE))
    if held.state.context.directory_page is not None:
        held.state.context.directory_page.add(system.WORD_UNSYNCED_COUNT, 1)


def _recover_tail(held: LockedPartition, replica: Replica) -> tuple[Published, Replica]:
    now = held.now
    directory = held.path
    base = held.now.segment_base
    path = file_names.segment_path(directory, base)
    size = size_of_active(str(directory), now)  # REPAIR-7
    builder = builder_at(now, held.state.config.index_interval_bytes)
    first_timestamp = now.first_timestamp
    with files.opened(path, files.WRITE) as fd:
        walk = _walk_tail(fd, path, now, size, replica)
        producers = _Producers(held)
        for data, batches in walk.chunks():
            producers.take(data, batches)
            builder.add(batches, walk.before)
            if first_timestamp < 0 and now.segment_size == 0 and int(batches["position"][0]) == 0:
                first_timestamp = int(batches["max_timestamp"][0])
        if walk.end < size:
            segment.copy_aside(
                path,
                walk.end,
                size,
                directory / f"{file_names.CUT}{base:020d}-{walk.end}",
                held.mode,
            )
            files.truncate(fd, walk.end, path)
            logger.warning(
                "repaired %s: cut %d bytes at byte %d that an interrupted append left",
                path,
                size - walk.end,
                walk.end,
            )
    if walk.end > now.segment_size:
        logger.warning(
            "repaired %s: recovered offsets %d to %d, written by a process that has ended",
            path,
            now.log_end,
            walk.chain.next_offset - 1,
        )
    digested = bool(now.flags & DIGESTED)
    builder.write_tail(directory, now.index_entries, now.time_entries, held.mode, digested=digested)
    before = (now.index_entries, now.time_entries)
    after = published_after(
        now, builder, walk.end, walk.chain.next_offset, walk.chain.digest, before=before
    )
    if replica.role != ROLE_NONE:
        after = after._replace(high_watermark=min(now.high_watermark, after.log_end))
    return producers.finish(after._replace(first_timestamp=first_timestamp), replica)


def _remove_unpublished(held: LockedPartition, now: Published) -> None:
    """Remove the segments of a roll that was not published. They have no acknowledged record."""
    for base in file_names.bases(files.listing(held.path)):
        if base <= now.segment_base:
            continue
        path = file_names.segment_path(held.path, base)
        size = segment.size_of(held.path, base)
        if size:
            segment.copy_aside(
                path, 0, size, held.path / f"{file_names.CUT}{base:020d}-0", held.mode
            )
        for suffix in (*file_names.SEGMENT_SUFFIXES, file_names.SNAPSHOT, file_names.DIGESTS):
            files.unlink(file_names.segment_path(held.path, base, suffix), missing_ok=True)
        logger.warning("repaired %s: removed segment %d of an interrupted roll", held.path, base)


def _walk_tail(fd: int, path: Path, now: Published, size: int, replica: Replica) -> segment.Walk:
    """Reads the bytes of the active segment from the published end up to `size`. A copy has batches
    of earlier epochs.
    """
    epoch = now.epoch if replica.role != ROLE_FOLLOWER else -1
    return segment.Walk(fd, path, Chain(now.log_end, epoch, now.digest), now.segment_size, size)


def _invalidate_producers(held: LockedPartition) -> None:
    """Every process must read the producers again: its last append may be among the bytes that were
    cut.
    """
    held.page.invalidate_producers()
    held.producers.forget()


class _Producers:
    """Producers and transactions of the recovered batches (REPAIR-4, REPAIR-5)."""

    def __init__(self, held: LockedPartition) -> None:
        self._held = held
        self._state: ProducerState | None = None
        self._aborted: list[AbortedTransaction] = []

    def take(self, data: memoryview, batches: Batches) -> None:
        """Take the next recovered batches; `data` begins at the first one."""
        if self._state is None:
            if not (batches["producer_id"] >= 0).any():
                return
            self._state = self._held.producer_state(self._held.now)
        self._aborted += self._state.replay(batches, producer_history.markers_in(data, batches))

    def finish(self, now: Published, replica: Replica) -> tuple[Published, Replica]:
        """The tuple and the replica state with the fields of transactions. `now` describes the
        recovered log.
        """
        held = self._held
        entries = aborted_transactions.encode(self._aborted)
        count = now.transaction_entries + len(self._aborted)
        now = now._replace(
            transaction_digest=aborted_transactions.digest(entries, now.transaction_digest)
        )
        path = file_names.segment_path(held.path, now.segment_base, file_names.TRANSACTION_INDEX)
        if self._aborted or files.exists(path):
            with files.opened(path, files.CREATE, held.mode) as fd:
                files.write_all(fd, entries, now.transaction_entries * ENTRY_SIZE, path)
                if files.facts(fd, path).size > count * ENTRY_SIZE:
                    files.truncate(fd, count * ENTRY_SIZE, path)
        _invalidate_producers(held)
        if self._state is None:
            return now._replace(transaction_entries=count), replica
        held.page.set(system.WORD_PRODUCED, self._state.offset)
        return restated(now._replace(transaction_entries=count), replica, self._state)
