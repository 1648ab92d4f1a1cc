"""Repair: files and control page agree again after an appender was killed or interrupted.

- A repair recovers before it cuts: valid batches after the published end may have been on disk
  after a crash.
- Bytes that are cut are copied aside first, and reported.
- A repair can be interrupted anywhere and repeated.
- The state of the producers begins at the published end: batches below it are in the log, whatever
  the appender intended.
- The transaction index gets exactly the entries of the markers in the log: published ones, then the
  recovered ones.
- Every process that has cached a producer of this partition reads the log again afterwards.
- A missing active segment is damage of the partition. A missing partition directory is a failure of
  the storage.
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
from embedlog.partition.truncation.stable_offset import restate_stable_offset
from embedlog.storage import file_names, files
from embedlog.storage.manifest import DIGESTED

logger = logging.getLogger("embedlog")


def repair(locked: LockedPartition) -> Published:
    """Make files and control page agree: recover the valid tail, cut the rest, undo a roll that was
    not published.
    """
    published = locked.published
    locked.writer.close_segment()
    locked.segments.forget()
    if locked.page.word(system.WORD_CUT_INTENT):
        published = log_cut.resume(locked)
    elif published.generation % 2:
        published = swap.finish(locked)
    locked.published = published
    after, replica = _recover_tail(locked, locked.replica)
    if locked.page.word(system.WORD_SNAPSHOT) > after.segment_base + 1:
        locked.page.set(system.WORD_SNAPSHOT, 0)  # its segment may be removed as unpublished
    _remove_unpublished(locked, after)
    if after.segment_size < published.segment_size:
        raise CorruptRecordError(
            "published bytes are missing",
            path=file_names.segment_path(locked.path, published.segment_base),
            expected=f"{published.segment_size} bytes",
            found=after.segment_size,
        )
    locked.publish(after, replica)
    locked.page.set(system.WORD_ROLL_INTENT, 0)
    _count_unsynced(locked, published, after)
    return after


def _count_unsynced(locked: LockedPartition, published: Published, after: Published) -> None:
    """Mark the recovered records for a flush: their appender may have been killed before it marked
    them.
    """
    durable = locked.page.word(system.WORD_DURABLE)
    if after.log_end <= durable:
        return
    if published.log_end <= durable:
        locked.page.set(system.WORD_UNSYNCED_SINCE, locked.page.word(system.WORD_OWNER_SINCE))
    if locked.state.context.directory_page is not None:
        locked.state.context.directory_page.add(system.WORD_UNSYNCED_COUNT, 1)


def _recover_tail(locked: LockedPartition, replica: Replica) -> tuple[Published, Replica]:
    published = locked.published
    directory = locked.path
    base = locked.published.segment_base
    path = file_names.segment_path(directory, base)
    size = size_of_active(str(directory), published)  # raises if published bytes are missing
    builder = builder_at(published, locked.state.config.index_interval_bytes)
    first_timestamp = published.first_timestamp
    with files.opened(path, files.WRITE) as fd:
        walk = _walk_tail(fd, path, published, size, replica)
        producers = _RecoveredProducers(locked)
        for data, batches in walk.chunks():
            producers.take(data, batches)
            builder.add(batches, walk.before)
            if (
                first_timestamp < 0
                and published.segment_size == 0
                and int(batches["position"][0]) == 0
            ):
                first_timestamp = int(batches["max_timestamp"][0])
        if walk.end < size:
            segment.copy_aside(
                path,
                walk.end,
                size,
                directory / f"{file_names.CUT}{base:020d}-{walk.end}",
                locked.mode,
            )
            files.truncate(fd, walk.end, path)
            logger.warning(
                "repaired %s: cut %d bytes at byte %d that an interrupted append left",
                path,
                size - walk.end,
                walk.end,
            )
    if walk.end > published.segment_size:
        logger.warning(
            "repaired %s: recovered offsets %d to %d, written by a process that has ended",
            path,
            published.log_end,
            walk.chain.next_offset - 1,
        )
    digested = bool(published.flags & DIGESTED)
    builder.write_tail(
        directory, published.index_entries, published.time_entries, locked.mode, digested=digested
    )
    before = (published.index_entries, published.time_entries)
    after = published_after(
        published, builder, walk.end, walk.chain.next_offset, walk.chain.digest, before=before
    )
    if replica.role != ROLE_NONE:
        after = after._replace(high_watermark=min(published.high_watermark, after.log_end))
    return producers.finish(after._replace(first_timestamp=first_timestamp), replica)


def _remove_unpublished(locked: LockedPartition, published: Published) -> None:
    """Remove the segments of a roll that was not published. They have no acknowledged record."""
    for base in file_names.bases(files.listing(locked.path)):
        if base <= published.segment_base:
            continue
        path = file_names.segment_path(locked.path, base)
        size = segment.size_of(locked.path, base)
        if size:
            segment.copy_aside(
                path, 0, size, locked.path / f"{file_names.CUT}{base:020d}-0", locked.mode
            )
        for suffix in (*file_names.SEGMENT_SUFFIXES, file_names.SNAPSHOT, file_names.DIGESTS):
            files.unlink(file_names.segment_path(locked.path, base, suffix), missing_ok=True)
        logger.warning("repaired %s: removed segment %d of an interrupted roll", locked.path, base)


def _walk_tail(
    fd: int, path: Path, published: Published, size: int, replica: Replica
) -> segment.Walk:
    """Reads the bytes of the active segment from the published end up to `size`. A copy has batches
    of earlier epochs.
    """
    epoch = published.epoch if replica.role != ROLE_FOLLOWER else -1
    return segment.Walk(
        fd, path, Chain(published.log_end, epoch, published.digest), published.segment_size, size
    )


def _invalidate_producers(locked: LockedPartition) -> None:
    """Every process must read the producers again: its last append may be among the bytes that were
    cut.
    """
    locked.page.invalidate_producers()
    locked.producers.forget()


class _RecoveredProducers:
    """Producers and transactions of the recovered batches."""

    def __init__(self, locked: LockedPartition) -> None:
        self._locked = locked
        self._state: ProducerState | None = None
        self._aborted: list[AbortedTransaction] = []

    def take(self, data: memoryview, batches: Batches) -> None:
        """Take the next recovered batches; `data` begins at the first one."""
        if self._state is None:
            if not (batches["producer_id"] >= 0).any():
                return
            self._state = self._locked.producer_state(self._locked.published)
        self._aborted += self._state.replay(batches, producer_history.markers_in(data, batches))

    def finish(self, published: Published, replica: Replica) -> tuple[Published, Replica]:
        """The tuple and the replica state with the fields of transactions. `published` describes
        the recovered log.
        """
        locked = self._locked
        entries = aborted_transactions.encode(self._aborted)
        count = published.transaction_entries + len(self._aborted)
        published = published._replace(
            transaction_digest=aborted_transactions.digest(entries, published.transaction_digest)
        )
        path = file_names.segment_path(
            locked.path, published.segment_base, file_names.TRANSACTION_INDEX
        )
        if self._aborted or files.exists(path):
            with files.opened(path, files.CREATE, locked.mode) as fd:
                files.write_all(fd, entries, published.transaction_entries * ENTRY_SIZE, path)
                if files.facts(fd, path).size > count * ENTRY_SIZE:
                    files.truncate(fd, count * ENTRY_SIZE, path)
        _invalidate_producers(locked)
        if self._state is None:
            return published._replace(transaction_entries=count), replica
        locked.page.set(system.WORD_PRODUCED, self._state.offset)
        return restate_stable_offset(
            published._replace(transaction_entries=count), replica, self._state
        )
