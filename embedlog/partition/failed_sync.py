"""Cuts below the published end what a failed sync has lost (`docs/protocol.md`, durability).

FAILEDSYNC-1  only bytes without a valid checksum are cut, and later ones, never below `durable`; they are copied aside first
FAILEDSYNC-2  the generation is odd while files change, so that readers read again. A new epoch begins at the cut, and is on disk
            before the first append in it. Another record at an offset that was read must have a larger epoch
FAILEDSYNC-3  the log continues: no process waits for ever for lost bytes
FAILEDSYNC-4  the base of the segment is in the control page before any change. A process that finds it there repeats the cut from
            the start, with the same result wherever the first one was interrupted
"""

from __future__ import annotations

import logging

from embedlog import segment
from embedlog._native import system
from embedlog._native.system import Published
from embedlog.errors import CorruptRecordError
from embedlog.format import aborted_transactions
from embedlog.format.aborted_transactions import ENTRY_SIZE
from embedlog.format.record_batch import Chain
from embedlog.partition.locked_partition import LockedPartition
from embedlog.partition.recovery import producer_history
from embedlog.partition.segment_info import published_after
from embedlog.storage import checkpoints, file_names, files
from embedlog.storage.manifest import DIGESTED

logger = logging.getLogger("embedlog")


def cut_lost(held: LockedPartition, base: int) -> int:
    """Cut the log at the first bad batch of a segment; the offset from which records are lost, or the log end if none is.

    Raises CorruptRecordError for damage below the durable offset.
    """
    now = held.now
    if base > now.segment_base:
        return now.log_end
    size = now.segment_size if base == now.segment_base else segment.size_of(held.path, base)
    end, chain = _valid(held, base, size)
    if end == size:
        return now.log_end
    lost_from = max(chain.next_offset, base)
    durable = held.page.word(system.WORD_DURABLE)
    if lost_from < durable:
        raise CorruptRecordError(
            "damage below the durable end",
            path=file_names.segment_path(held.path, base),
            position=end,
            expected=f"offsets up to {durable}",
            found=f"none from {lost_from} on",
        )
    held.page.set(system.WORD_CUT_INTENT, base + 1)
    _cut(held, base, end, chain)
    return lost_from


def resume(held: LockedPartition) -> Published:
    """Finish an interrupted cut. REQUIRES: the intent is in the page."""
    now, base = held.now, held.page.word(system.WORD_CUT_INTENT) - 1
    end, chain = _valid(held, base, segment.size_of(held.path, base))
    if now.generation % 2 or (base, end) != (now.segment_base, now.segment_size):
        return _cut(held, base, end, chain)
    held.page.set(system.WORD_CUT_INTENT, 0)  # it was published, or there was nothing to cut
    return now


def _valid(held: LockedPartition, base: int, size: int) -> tuple[int, Chain]:
    """The valid bytes of a segment, and the chain up to there."""
    path = file_names.segment_path(held.path, base)
    chain = Chain(gaps_allowed=True)
    with files.opened(path) as fd:
        walk = segment.Walk(fd, path, chain, 0, size)
        for _ in walk:
            pass
    return walk.end, chain


def _cut(held: LockedPartition, base: int, end: int, chain: Chain) -> Published:
    now, directory, mode, manifest = held.now, held.path, held.mode, held.state.manifest
    lost_from = max(chain.next_offset, base)
    moving = now._replace(generation=now.generation | 1)
    held.publish(moving)
    held.writer.close_segment()
    path = file_names.segment_path(directory, base)
    logger.error(
        "cut %s at byte %d: offsets %d to %d are lost: a sync failed, and they are damaged",
        path,
        end,
        lost_from,
        now.log_end - 1,
    )
    manifest.refresh()
    # On disk first: otherwise the cut bytes would be reported as missing.
    held.replace_manifest(now, [info for info in manifest.segments.values() if info.base < base])
    _shorten(held, base, end)
    builder = segment.rebuild(directory, base, end, held.state.config.index_interval_bytes, final=False, mode=mode)
    epochs = checkpoints.read_epochs(directory / file_names.EPOCHS)
    epochs.truncate_from_end(lost_from)
    epochs.assign(max(epochs.latest_epoch, now.epoch) + 1, lost_from)
    checkpoints.write_epochs(directory / file_names.EPOCHS, epochs, mode)
    entries = _cut_producers(held, base, lost_from)
    after = published_after(moving, builder, end, lost_from, chain.digest)._replace(
        epoch=epochs.latest_epoch,
        generation=moving.generation + 1,
        first_timestamp=now.first_timestamp if base == now.segment_base and end else -1,
        flags=now.flags | DIGESTED,
    )
    state = held.producer_state(after)
    after = after._replace(
        first_unstable=state.first_unstable(lost_from),
        transaction_entries=len(entries) // ENTRY_SIZE,
        transaction_digest=aborted_transactions.digest(entries),
    )
    held.publish_replaced(after)
    held.page.set(system.WORD_CUT_INTENT, 0)
    return after


def _shorten(held: LockedPartition, base: int, end: int) -> None:
    """Set aside the bytes from `end` of a segment on, and all later segments."""
    directory = held.path
    path = file_names.segment_path(directory, base)
    size = segment.size_of(directory, base)
    if end < size:
        segment.copy_aside(path, end, size, directory / f"{file_names.CUT}{base:020d}-{end}", held.mode)
        with files.opened(path, files.WRITE) as fd:
            files.truncate(fd, end, path)
    for later in file_names.bases(files.listing(directory)):
        if later > base:
            segment.set_aside(directory, later, (*file_names.SEGMENT_SUFFIXES[1:], file_names.SNAPSHOT))
            files.rename(
                file_names.segment_path(directory, later), directory / f"{file_names.CUT}{later:020d}-0"
            )  # last, because the other names follow from it


def _cut_producers(held: LockedPartition, base: int, end: int) -> bytes:
    """Remove the state of producers after the cut; all processes read it again. Returns the remaining transaction index."""
    path = file_names.segment_path(held.path, base, file_names.TRANSACTION_INDEX)
    entries = aborted_transactions.below(files.read_bytes(path) or b"", end, base)
    if files.exists(path):
        with files.opened(path, files.WRITE) as fd:
            files.truncate(fd, len(entries), path)
    for offset in producer_history.snapshots(held.path):
        if offset > end:
            files.unlink(file_names.segment_path(held.path, offset, file_names.SNAPSHOT), missing_ok=True)
    page = held.page
    for word in (system.WORD_SNAPSHOT, system.WORD_NO_PRODUCERS):
        if page.word(word) > end + 1:
            page.set(word, 0)
    page.set(system.WORD_PRODUCED, end)
    page.invalidate_producers()
    held.producers.forget()
    return entries
