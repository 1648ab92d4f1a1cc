"""Cuts the log of a partition from an offset on, or begins it again at another offset.

- The control page has the whole intent before any change. A process that finds it completes this
  cut, with the same result wherever it was interrupted.
- The generation is odd while files change, so that readers read again. The number of cuts changes
  before the publication, so that descriptors of replaced files are opened again.
- Before a file changes, `durable` is not above the remaining log, in the page and on disk. A loss
  of the page after that reports no cut byte as missing. The sync lock is held, because a sync in
  progress would raise `durable` again.
- Segments leave from the last to the first, then bytes: at each moment the files are a prefix of
  the log.
- Cut bytes are kept in other files; a log that begins again deletes its segments like retention.
- After a loss found by a sync, a log of one directory begins a new epoch. In a set only a decision
  begins one: there the page loses its role (REPLICA-17).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from embedlog import segment
from embedlog._native import replication, system
from embedlog._native.lazy_numpy import np
from embedlog._native.replication import ROLE_NONE, Replica
from embedlog._native.scope import Guard, scope
from embedlog._native.system import Published
from embedlog.errors import StorageError
from embedlog.format import aborted_transactions
from embedlog.format.aborted_transactions import ENTRY_SIZE
from embedlog.format.record_batch import Chain
from embedlog.partition.locked_partition import LockedPartition
from embedlog.partition.recovery import producer_history
from embedlog.partition.recovery.evidence import BatchGaps
from embedlog.partition.segment_info import published_after, published_empty, start_of
from embedlog.partition.truncation.stable_offset import restate_stable_offset
from embedlog.storage import file_names, files, locks
from embedlog.storage.checkpoints import EpochCache
from embedlog.storage.control_page import DurableRecord
from embedlog.storage.manifest import DIGESTED, GAPLESS, Start

logger = logging.getLogger("embedlog")


class Remaining(NamedTuple):
    """What a cut leaves of its segment: bytes, log end, chain digest, and whether each offset is
    there.
    """

    size: int
    log_end: int
    digest: int
    gapless: bool


def find_remaining(directory: Path, base: int, size: int, offset: int) -> Remaining:
    """The valid batches in the first `size` bytes of a segment that end at or below `offset`."""
    path = file_names.segment_path(directory, base)
    chain = Chain(gaps_allowed=True)
    batch_gaps = BatchGaps(base)
    log_end = base
    with files.opened(path) as fd:
        walk = segment.Walk(fd, path, chain, 0, size)
        for batches in walk:
            ends = batches["base_offset"] + batches["last_offset_delta"] + 1
            kept_count = int(np.searchsorted(ends, offset, "right"))
            if kept_count:
                batch_gaps.add(batches[:kept_count])
                log_end = int(ends[kept_count - 1])
            if kept_count < len(batches):
                position = int(batches["position"][kept_count])
                digest = int(walk.before[kept_count])
                return Remaining(position, log_end, digest, batch_gaps.gapless)
    return Remaining(walk.end, log_end, chain.digest, batch_gaps.gapless)


def begin(
    locked: LockedPartition,
    kind: int,
    base: int,
    offset: int,
    *,
    epoch: int | None = None,
    replica: Replica | None = None,
) -> Published:
    """Cut the log as `kind` (`system.CUT_LOST`, ...) requires; the published tuple.

    `epoch` and `replica` are published with the cut. After an interruption the cut is completed
    without them.
    """
    locked.state.mark_dirty()
    _store_intent(locked, kind, base, offset)
    return _complete(locked, epoch, replica)


def intend_restart(locked: LockedPartition, offset: int) -> None:
    """Store the intent to begin the log again at an offset: the next repair does it. REQUIRES that
    a repair is due.
    """
    locked.state.mark_dirty()
    _store_intent(locked, system.CUT_ALL, offset, offset)


def _store_intent(locked: LockedPartition, kind: int, base: int, offset: int) -> None:
    page = locked.page
    if kind != system.CUT_END:  # which leaves what the leader has
        locked.state.give_up()
    page.set(system.WORD_CUT_BASE, base)
    page.set(system.WORD_CUT_OFFSET, offset)
    page.set(system.WORD_CUT_INTENT, kind)
    system.point("cut-intent")


def resume(locked: LockedPartition) -> Published:
    """Complete an interrupted cut. REQUIRES: the intent is in the page."""
    logger.warning("repaired %s: a cut of the log was interrupted", locked.path)
    return _complete(locked, None, None)


def _complete(locked: LockedPartition, epoch: int | None, replica: Replica | None) -> Published:
    page = locked.page
    kind = page.word(system.WORD_CUT_INTENT)
    base = page.word(system.WORD_CUT_BASE)
    offset = page.word(system.WORD_CUT_OFFSET)
    publication = replication.read(page)
    if publication is None:
        raise StorageError("the control page is damaged", path=locked.path / file_names.PAGE)
    published, current_replica = publication
    if published.generation % 2 == 0 and _is_published(locked, published, kind, base, offset):
        if replica is not None:
            if epoch is not None:
                published = published._replace(epoch=epoch)
            locked.publish(published, replica)
        page.set(system.WORD_CUT_INTENT, 0)
        return published
    moving = published._replace(generation=published.generation | 1)
    with _no_sync(locked):
        locked.publish(moving)
        system.point("cut-begun")
        locked.writer.close_segment()
        locked.state.manifest.refresh()
        if kind == system.CUT_ALL:
            after = _begin_again(locked, moving, offset)
            index_bytes = b""
        else:
            after, index_bytes = _cut(locked, moving, base, offset)
        locked.state.forget_files()
        after = after._replace(
            generation=moving.generation + 1,
            epoch=_cut_epochs(locked, kind, after, current_replica),
        )
        if kind == system.CUT_LOST and current_replica.role != ROLE_NONE:
            replica = Replica()
        elif current_replica.role == ROLE_NONE and replica is None:
            after = after._replace(high_watermark=after.log_end)
        if epoch is not None:
            after = after._replace(epoch=epoch)
        state = locked.producer_state(after)
        after = after._replace(
            transaction_entries=len(index_bytes) // ENTRY_SIZE,
            transaction_digest=aborted_transactions.digest(index_bytes),
        )
        after, replica = restate_stable_offset(after, replica or current_replica, state)
        files.sync_directory(locked.path)
        system.point("cut-done")
        page.add(system.WORD_CUTS, 1)
        locked.publish_replaced(after, replica)
        system.point("cut-published")
    page.set(system.WORD_CUT_INTENT, 0)
    return after


def _is_published(
    locked: LockedPartition, published: Published, kind: int, base: int, offset: int
) -> bool:
    """Whether the published tuple is that of the log after the cut: it was published, or there is
    nothing to cut.
    """
    directory = locked.path
    page = locked.page
    if kind == system.CUT_ALL:
        if published.segment_base != offset or published.segment_size:
            return False
        if published.log_start != offset:
            return False
        if page.word(system.WORD_NO_PRODUCERS) != offset + 1:
            return False
        if page.word(system.WORD_SNAPSHOT) >= offset + 1:
            return False
        return files.exists(file_names.segment_path(directory, offset))
    if published.segment_base != base or published.log_end > offset:
        return False
    size = segment.size_of(directory, base)
    return find_remaining(directory, base, size, offset).size == published.segment_size


@scope
def _no_sync(locked: LockedPartition) -> Iterator[None]:
    """Hold the sync lock, which is after the append lock in the order of locks."""
    lock = locks.LockFile(locked.path / file_names.SYNC_LOCK, locked.mode)
    with Guard(lock.close), lock.hold(locked.state.deadline()):
        yield


def _lower_durable(locked: LockedPartition, end: int, base: int) -> None:
    page = locked.page
    if page.word(system.WORD_DURABLE) > end:
        page.set(system.WORD_DURABLE, end)
    DurableRecord(locked.path, locked.state.topic_id_bytes).lower(end, base, locked.mode)
    system.point("cut-durable")


# ---- a cut at the end ----------------------------------------------------------------------------


def _cut(
    locked: LockedPartition, published: Published, base: int, offset: int
) -> tuple[Published, bytes]:
    """Cut the files; the tuple after that, and the remaining transaction index."""
    directory = locked.path
    manifest = locked.state.manifest
    mode = locked.mode
    is_active = base == published.segment_base
    size = segment.size_of(directory, base)
    if is_active:
        size = min(size, published.segment_size)
    remaining = find_remaining(directory, base, size, offset)
    logger.warning(
        "cut %s at byte %d: offsets %d to %d are set aside",
        file_names.segment_path(directory, base),
        remaining.size,
        remaining.log_end,
        published.log_end - 1,
    )
    _lower_durable(locked, remaining.log_end, base)
    # On disk first: otherwise the cut bytes would be reported as missing.
    gaps_base = -1 if remaining.gapless else base
    earlier = [info for info in manifest.segments.values() if info.base < base]
    manifest.rewrite(
        earlier, Start(published.log_start, gaps_base, locked.state.context.last_broker_visit)
    )
    system.point("cut-manifest")
    _shorten(directory, base, remaining.size, mode)
    builder = segment.rebuild(
        directory,
        base,
        remaining.size,
        locked.state.config.index_interval_bytes,
        final=False,
        mode=mode,
    )
    system.point("cut-indexes")
    if is_active and remaining.size:
        first_timestamp = published.first_timestamp
    else:
        first_timestamp = segment.first_batch_max_timestamp(directory, base, remaining.size)
    after = published_after(published, builder, remaining.size, remaining.log_end, remaining.digest)
    after = after._replace(
        high_watermark=min(published.high_watermark, remaining.log_end),
        first_timestamp=first_timestamp,
        flags=DIGESTED | (GAPLESS if remaining.gapless else 0),
    )
    return after, _cut_producers(locked, base, remaining.log_end)


def _shorten(directory: Path, base: int, end: int, mode: int) -> None:
    """Set aside all later segments, and the bytes from `end` of a segment on."""
    for later in reversed(file_names.bases(files.listing(directory))):
        if later > base:
            segment.set_aside(
                directory, later, (*file_names.SEGMENT_SUFFIXES[1:], file_names.SNAPSHOT)
            )
            path = file_names.segment_path(directory, later)
            # last: the other names follow from it
            files.rename(path, directory / f"{file_names.CUT}{later:020d}-0")
            system.point("cut-segment")
    path = file_names.segment_path(directory, base)
    size = segment.size_of(directory, base)
    if end < size:
        segment.copy_aside(path, end, size, directory / f"{file_names.CUT}{base:020d}-{end}", mode)
        with files.opened(path, files.WRITE) as fd:
            files.truncate(fd, end, path)


def _cut_producers(locked: LockedPartition, base: int, end: int) -> bytes:
    """Remove the state of producers after the cut; all processes read it again. Returns the
    remaining transaction index.
    """
    path = file_names.segment_path(locked.path, base, file_names.TRANSACTION_INDEX)
    entries = aborted_transactions.below(files.read_bytes(path) or b"", end, base)
    if files.exists(path):
        with files.opened(path, files.WRITE) as fd:
            files.truncate(fd, len(entries), path)
    for offset in producer_history.snapshot_offsets(locked.path):
        if offset > end:
            snapshot = file_names.segment_path(locked.path, offset, file_names.SNAPSHOT)
            files.unlink(snapshot, missing_ok=True)
    page = locked.page
    for word in (system.WORD_SNAPSHOT, system.WORD_NO_PRODUCERS):
        if page.word(word) > end + 1:
            page.set(word, 0)
    page.set(system.WORD_PRODUCED, end)
    page.invalidate_producers()
    return entries


def _cut_epochs(locked: LockedPartition, kind: int, after: Published, replica: Replica) -> int:
    """Remove the epochs of cut records; the epoch of the page after the cut."""
    if kind == system.CUT_ALL:
        locked.write_epochs(EpochCache())
        return after.epoch
    epochs = locked.epochs(after)
    before = list(epochs.entries)
    epochs.truncate_from_end(after.log_end)
    epoch = after.epoch
    if kind == system.CUT_LOST and replica.role == ROLE_NONE and not locked.state.context.in_set:
        latest = before[-1][0] if before else -1
        epoch = max(latest, after.epoch) + 1
        epochs.assign(epoch, after.log_end)
    if epochs.entries != before:
        locked.write_epochs(epochs)
    return epoch


# ---- a log that begins again ---------------------------------------------------------------------


def _begin_again(locked: LockedPartition, published: Published, start: int) -> Published:
    """Delete all segments, and begin an empty one at `start`."""
    directory = locked.path
    manifest = locked.state.manifest
    page = locked.page
    config = locked.state.config
    logger.warning(
        "%s: offsets %d to %d are deleted, the log begins again at %d",
        directory,
        published.log_start,
        published.log_end - 1,
        start,
    )
    _lower_durable(locked, min(published.log_start, start), published.segment_base)
    manifest.rewrite([], start_of(published, locked.state.context.last_broker_visit))
    system.point("cut-manifest")
    for base in reversed(file_names.bases(files.listing(directory))):
        segment.set_aside(directory, base)
        system.point("cut-segment")
    for offset in producer_history.snapshot_offsets(directory):
        files.unlink(
            file_names.segment_path(directory, offset, file_names.SNAPSHOT), missing_ok=True
        )
    files.sync_directory(directory)  # no file of the old log may return under a later start
    manifest.rewrite([], Start(start, visit=locked.state.context.last_broker_visit))
    segment.create(directory, start, locked.mode, config.segment_bytes if config.preallocate else 0)
    system.point("cut-indexes")
    page.set(system.WORD_SNAPSHOT, 0)
    page.set(system.WORD_NO_PRODUCERS, start + 1)
    page.set(system.WORD_PRODUCED, start)
    page.set(system.WORD_DURABLE, start)
    page.invalidate_producers()
    after = published_empty(published, start, config.segment_jitter_ms)
    return after._replace(log_start=start, log_end=start, high_watermark=start, first_unstable=-1)
