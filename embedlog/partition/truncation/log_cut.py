"""Cuts the log of a partition from an offset on, or begins it again at another offset.

LOGCUT-1  the control page has the whole intent before any change. A process that finds it completes
          this cut, with the same result wherever it was interrupted
LOGCUT-2  the generation is odd while files change, so that readers read again. The number of cuts
          changes before the publication, so that descriptors of replaced files are opened again
LOGCUT-3  before a file changes, `durable` is not above the remaining log, in the page and on disk.
          A loss of the page after that reports no cut byte as missing. The sync lock is held,
          because a sync in progress would raise `durable` again
LOGCUT-4  segments leave from the last to the first, then bytes: at each moment the files are a
    prefix of the log
LOGCUT-5  cut bytes are kept in other files; a log that begins again deletes its segments like
    retention
LOGCUT-6  after a loss found by a sync, a log of one directory begins a new epoch. In a set only a
          decision begins one: there the page loses its role (REPLICA-17)
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
from embedlog._native.scope import scope
from embedlog._native.system import Published
from embedlog.errors import StorageError
from embedlog.format import aborted_transactions
from embedlog.format.aborted_transactions import ENTRY_SIZE
from embedlog.format.record_batch import Chain
from embedlog.partition.locked_partition import LockedPartition
from embedlog.partition.recovery import producer_history
from embedlog.partition.recovery.evidence import Run
from embedlog.partition.segment_info import published_after, published_empty, start_of
from embedlog.partition.truncation.stable_offset import restated
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


def remaining(directory: Path, base: int, size: int, offset: int) -> Remaining:
    """The valid batches in the first `size` bytes of a segment that end at or below `offset`."""
    path = file_names.segment_path(directory, base)
    chain = Chain(gaps_allowed=True)
    run = Run(base)
    log_end = base
    with files.opened(path) as fd:
        walk = segment.Walk(fd, path, chain, 0, size)
        for batches in walk:
            ends = batches["base_offset"] + batches["last_offset_delta"] + 1
            kept = int(np.searchsorted(ends, offset, "right"))
            if kept:
                run.add(batches[:kept])
                log_end = int(ends[kept - 1])
            if kept < len(batches):
                return Remaining(
                    int(batches["position"][kept]), log_end, int(walk.before[kept]), run.gapless
                )
    return Remaining(walk.end, log_end, chain.digest, run.gapless)


def begin(
    held: LockedPartition,
    kind: int,
    base: int,
    offset: int,
    epoch: int | None = None,
    replica: Replica | None = None,
) -> Published:
    """Cut the log as `kind` (`system.CUT_LOST`, ...) requires; the published tuple.

    `epoch` and `replica` are published with the cut. After an interruption the cut is completed
    without them.
    """
    held.state.mark_dirty()
    _store_intent(held, kind, base, offset)
    return _complete(held, epoch, replica)


def intend_restart(held: LockedPartition, offset: int) -> None:
    """Store the intent to begin the log again at an offset: the next repair does it. REQUIRES that
    a repair is due.
    """
    held.state.mark_dirty()
    _store_intent(held, system.CUT_ALL, offset, offset)


def _store_intent(held: LockedPartition, kind: int, base: int, offset: int) -> None:
    page = held.page
    if kind != system.CUT_END:  # which leaves what the leader has
        held.state.give_up()
    page.set(system.WORD_CUT_BASE, base)
    page.set(system.WORD_CUT_OFFSET, offset)
    page.set(system.WORD_CUT_INTENT, kind)
    system.point("cut-intent")


def resume(held: LockedPartition) -> Published:
    """Complete an interrupted cut. REQUIRES: the intent is in the page."""
    logger.warning("repaired %s: a cut of the log was interrupted", held.path)
    return _complete(held, None, None)


def _complete(held: LockedPartition, epoch: int | None, replica: Replica | None) -> Published:
    page = held.page
    kind, base, offset = (
        page.word(word)
        for word in (system.WORD_CUT_INTENT, system.WORD_CUT_BASE, system.WORD_CUT_OFFSET)
    )
    found = replication.read(page)
    if found is None:
        raise StorageError("the control page is damaged", path=held.path / file_names.PAGE)
    now, present = found
    if now.generation % 2 == 0 and _is_published(held, now, kind, base, offset):
        if replica is not None:
            now = now if epoch is None else now._replace(epoch=epoch)
            held.publish(now, replica)
        page.set(system.WORD_CUT_INTENT, 0)
        return now
    moving = now._replace(generation=now.generation | 1)
    with _no_sync(held):
        held.publish(moving)
        system.point("cut-begun")
        held.writer.close_segment()
        held.state.manifest.refresh()
        after, left = (
            _begun_again(held, moving, offset)
            if kind == system.CUT_ALL
            else _cut(held, moving, base, offset)
        )
        held.state.forget_files()
        after = after._replace(
            generation=moving.generation + 1, epoch=_cut_epochs(held, kind, after, present)
        )
        if kind == system.CUT_LOST and present.role != ROLE_NONE:
            replica = Replica()
        elif present.role == ROLE_NONE and replica is None:
            after = after._replace(high_watermark=after.log_end)
        if epoch is not None:
            after = after._replace(epoch=epoch)
        state = held.producer_state(after)
        after = after._replace(
            transaction_entries=len(left) // ENTRY_SIZE,
            transaction_digest=aborted_transactions.digest(left),
        )
        after, replica = restated(after, replica or present, state)
        files.sync_directory(held.path)
        system.point("cut-done")
        page.add(system.WORD_CUTS, 1)
        held.publish_replaced(after, replica)
        system.point("cut-published")
    page.set(system.WORD_CUT_INTENT, 0)
    return after


def _is_published(held: LockedPartition, now: Published, kind: int, base: int, offset: int) -> bool:
    """Whether the published tuple is that of the log after the cut: it was published, or there is
    nothing to cut.
    """
    directory = held.path
    page = held.page
    if kind == system.CUT_ALL:
        begun = (now.segment_base, now.segment_size, now.log_start) == (offset, 0, offset)
        no_producers = (
            page.word(system.WORD_NO_PRODUCERS) == offset + 1 > page.word(system.WORD_SNAPSHOT)
        )
        return begun and no_producers and files.exists(file_names.segment_path(directory, offset))
    if now.segment_base != base or now.log_end > offset:
        return False
    return (
        remaining(directory, base, segment.size_of(directory, base), offset).size
        == now.segment_size
    )


@scope
def _no_sync(held: LockedPartition) -> Iterator[None]:
    """Hold the sync lock (LOGCUT-3). It is after the append lock in the order of locks."""
    lock = locks.LockFile(held.path / file_names.SYNC_LOCK, held.mode)
    try:
        with lock.hold(held.state.deadline()):
            yield
    finally:
        lock.close()


def _lower_durable(held: LockedPartition, end: int, base: int) -> None:
    page = held.page
    if page.word(system.WORD_DURABLE) > end:
        page.set(system.WORD_DURABLE, end)
    DurableRecord(held.path, held.state.topic_id).lower(end, base, held.mode)
    system.point("cut-durable")


# ---- a cut at the end ----------------------------------------------------------------------------


def _cut(held: LockedPartition, now: Published, base: int, offset: int) -> tuple[Published, bytes]:
    """Cut the files; the tuple after that, and the remaining transaction index."""
    directory = held.path
    manifest = held.state.manifest
    mode = held.mode
    active = base == now.segment_base
    size = segment.size_of(directory, base)
    left = remaining(directory, base, min(size, now.segment_size) if active else size, offset)
    logger.warning(
        "cut %s at byte %d: offsets %d to %d are set aside",
        file_names.segment_path(directory, base),
        left.size,
        left.log_end,
        now.log_end - 1,
    )
    _lower_durable(held, left.log_end, base)
    # On disk first: otherwise the cut bytes would be reported as missing.
    gaps_base = -1 if left.gapless else base
    kept = [info for info in manifest.segments.values() if info.base < base]
    manifest.rewrite(kept, Start(now.log_start, gaps_base, held.state.context.visit))
    system.point("cut-manifest")
    _shorten(directory, base, left.size, mode)
    builder = segment.rebuild(
        directory, base, left.size, held.state.config.index_interval_bytes, final=False, mode=mode
    )
    system.point("cut-indexes")
    after = published_after(now, builder, left.size, left.log_end, left.digest)
    return after._replace(
        high_watermark=min(now.high_watermark, left.log_end),
        first_timestamp=now.first_timestamp
        if active and left.size
        else segment.first_timestamp(directory, base, left.size),
        flags=DIGESTED | (GAPLESS if left.gapless else 0),
    ), _cut_producers(held, base, left.log_end)


def _shorten(directory: Path, base: int, end: int, mode: int) -> None:
    """Set aside all later segments, and the bytes from `end` of a segment on (LOGCUT-4)."""
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


def _cut_producers(held: LockedPartition, base: int, end: int) -> bytes:
    """Remove the state of producers after the cut; all processes read it again. Returns the
    remaining transaction index.
    """
    path = file_names.segment_path(held.path, base, file_names.TRANSACTION_INDEX)
    entries = aborted_transactions.below(files.read_bytes(path) or b"", end, base)
    if files.exists(path):
        with files.opened(path, files.WRITE) as fd:
            files.truncate(fd, len(entries), path)
    for offset in producer_history.snapshots(held.path):
        if offset > end:
            files.unlink(
                file_names.segment_path(held.path, offset, file_names.SNAPSHOT), missing_ok=True
            )
    page = held.page
    for word in (system.WORD_SNAPSHOT, system.WORD_NO_PRODUCERS):
        if page.word(word) > end + 1:
            page.set(word, 0)
    page.set(system.WORD_PRODUCED, end)
    page.invalidate_producers()
    return entries


def _cut_epochs(held: LockedPartition, kind: int, after: Published, present: Replica) -> int:
    """Remove the epochs of cut records; the epoch of the page after the cut (LOGCUT-6)."""
    if kind == system.CUT_ALL:
        held.write_epochs(EpochCache())
        return after.epoch
    epochs = held.epochs(after)
    before = list(epochs.entries)
    epochs.truncate_from_end(after.log_end)
    begins = kind == system.CUT_LOST and present.role == ROLE_NONE and not held.state.context.in_set
    if begins:
        epochs.assign(max(before[-1][0] if before else -1, after.epoch) + 1, after.log_end)
    if epochs.entries != before:
        held.write_epochs(epochs)
    return epochs.latest_epoch if begins else after.epoch


# ---- a log that begins again ---------------------------------------------------------------------


def _begun_again(held: LockedPartition, now: Published, start: int) -> tuple[Published, bytes]:
    """Delete all segments, and begin an empty one at `start`."""
    directory = held.path
    manifest = held.state.manifest
    page = held.page
    config = held.state.config
    logger.warning(
        "%s: offsets %d to %d are deleted, the log begins again at %d",
        directory,
        now.log_start,
        now.log_end - 1,
        start,
    )
    _lower_durable(held, min(now.log_start, start), now.segment_base)
    manifest.rewrite([], start_of(now, held.state.context.visit))
    system.point("cut-manifest")
    for base in reversed(file_names.bases(files.listing(directory))):
        segment.set_aside(directory, base)
        system.point("cut-segment")
    for offset in producer_history.snapshots(directory):
        files.unlink(
            file_names.segment_path(directory, offset, file_names.SNAPSHOT), missing_ok=True
        )
    files.sync_directory(directory)  # no file of the old log may return under a later start
    manifest.rewrite([], Start(start, visit=held.state.context.visit))
    segment.create(directory, start, held.mode, config.segment_bytes if config.preallocate else 0)
    system.point("cut-indexes")
    page.set(system.WORD_SNAPSHOT, 0)
    page.set(system.WORD_NO_PRODUCERS, start + 1)
    page.set(system.WORD_PRODUCED, start)
    page.set(system.WORD_DURABLE, start)
    page.invalidate_producers()
    after = published_empty(now, start, config.segment_jitter_ms)
    return after._replace(
        log_start=start, log_end=start, high_watermark=start, first_unstable=-1
    ), b""
