"""The swap of a compaction: new files take the place of a group of segments.

SEGMENTSWAP-1  the swap happens under the append lock with the generation odd; a process that finds
    it unfinished finishes it
SEGMENTSWAP-2  `purged_to` is raised with the swap: a view that was read below it is read again
    (tombstones may be removed)
SEGMENTSWAP-3  a swap begins only if all new files are there: a load of the partition, after its
               control page was lost, removes them
SEGMENTSWAP-4  each kind of rename is on disk before the next one: a power loss may keep any of the
    renames since the last sync
SEGMENTSWAP-5  of a leader, each swap of a dirty part raises `purged_to`, also if it is an estimate
               above that part. A replica that copies compares it (REPLICA-20). It may then be above
               the log end. That of a follower shows with which value its copy began, and a swap of
               its own does not raise it above the part
SEGMENTSWAP-6  nothing was cut since the pass began. A log that was cut, or that began again, can
               have other records in segments of the same base and size
"""

from __future__ import annotations

import logging
from pathlib import Path

from embedlog import index, leftovers, segment
from embedlog._native import system
from embedlog._native.replication import ROLE_LEADER
from embedlog._native.system import Published
from embedlog.format import aborted_transactions
from embedlog.partition.locked_partition import LockedPartition
from embedlog.storage import file_names, files, interval_digests
from embedlog.storage.manifest import SegmentInfo

logger = logging.getLogger("embedlog")


def replace(
    held: LockedPartition,
    group: list[SegmentInfo],
    made: SegmentInfo,
    records: bytes,
    end: int,
    first_dirty: int,
    cuts: int,
) -> bool:
    """Put the segment that was made in the place of a group; False if its files are deleted
    (SEGMENTSWAP-3).

    `end`: the log is clean up to there; `first_dirty`: it was clean up to there before the pass.
    `cuts`: WORD_CUTS at its begin.
    """
    now = held.now
    uncut = held.state.page.word(system.WORD_CUTS) == cuts
    if uncut and (
        held.segments.all(now)[0].base > group[0].base or now.log_start > made.next_offset
    ):
        return True  # retention was faster: the segments are deleted
    if not uncut or not _can_begin(held, group, made):  # SEGMENTSWAP-6
        logger.info(
            "%s: a compaction is repeated, the partition was loaded or cut meanwhile", held.path
        )
        return False
    held.state.mark_dirty()
    now = _begun(now)
    held.publish(now)
    _swap(held, now, group, made, records)
    purged_to = min(end, made.next_offset)
    if held.replica_at_begin.role == ROLE_LEADER and first_dirty < purged_to <= now.purged_to:
        purged_to = now.purged_to + 1  # SEGMENTSWAP-5
    held.publish_replaced(_ended(now, purged_to))
    return True


def _can_begin(held: LockedPartition, group: list[SegmentInfo], made: SegmentInfo) -> bool:
    """Whether all new files are there, and the segments that they replace are unchanged."""
    present = {info.base: info.size for info in held.segments.all(held.now)}
    return _is_complete(held.path, made) and all(
        present.get(info.base) == info.size for info in group
    )


def _is_complete(directory: Path, made: SegmentInfo) -> bool:
    """Whether every `.cleaned` file of the segment that was made has its size."""
    sizes = {
        file_names.LOG: made.size,
        file_names.INDEX: made.index_entries * index.OFFSET_ENTRY.size,
        file_names.TIME_INDEX: made.time_entries * index.TIME_ENTRY.size,
    }
    if made.transaction_entries:
        sizes[file_names.TRANSACTION_INDEX] = (
            made.transaction_entries * aborted_transactions.ENTRY_SIZE
        )
    found = {
        suffix: files.facts_of(
            file_names.segment_path(directory, made.base, suffix + file_names.CLEANED)
        )
        for suffix in sizes
    }
    return all(
        (facts := found[suffix]) is not None and facts.size == size
        for suffix, size in sizes.items()
    )


def _begun(now: Published) -> Published:
    """The tuple while files are replaced: its generation is odd."""
    return now._replace(generation=now.generation | 1)


def _ended(now: Published, purged_to: int) -> Published:
    """The tuple after the replacement: its generation is even, and records below `purged_to` may be
    removed.
    """
    return now._replace(
        generation=now.generation + now.generation % 2, purged_to=max(now.purged_to, purged_to)
    )


def _swap(
    held: LockedPartition,
    now: Published,
    group: list[SegmentInfo],
    made: SegmentInfo,
    records: bytes,
) -> None:
    directory = held.path
    manifest = held.state.manifest
    bases = {info.base for info in group}
    manifest.refresh()
    held.replace_manifest(
        now, [info for info in manifest.segments.values() if info.base not in bases]
    )
    _rename_all(directory, made.base, file_names.CLEANED, file_names.SWAP)
    # SEGMENTSWAP-4: a load removes `.cleaned` and `.deleted`, if both are there
    files.sync_directory(directory)
    system.point("swap-step")
    _set_aside(directory, group, made)
    system.point("swap-step")
    # the removal of the old digests is on disk before other batches are there
    files.sync_directory(directory)
    interval_digests.write_records(directory, made.base, records, 0, held.mode)
    for suffix in file_names.SEGMENT_SUFFIXES:
        path = file_names.segment_path(directory, made.base, suffix + file_names.SWAP)
        if files.exists(path):
            files.rename(path, file_names.segment_path(directory, made.base, suffix))
    files.sync_directory(directory)
    held.note(now, made)


def _set_aside(directory: Path, group: list[SegmentInfo], made: SegmentInfo) -> None:
    for info in group:
        kept = (
            file_names.SEGMENT_SUFFIXES
            if info.base == made.base
            else (*file_names.SEGMENT_SUFFIXES, file_names.SNAPSHOT)
        )
        segment.set_aside(directory, info.base, kept)


def _rename_all(directory: Path, base: int, before: str, after: str) -> None:
    for suffix in file_names.SEGMENT_SUFFIXES:
        path = file_names.segment_path(directory, base, suffix + before)
        if files.exists(path):
            files.rename(path, file_names.segment_path(directory, base, suffix + after))


def finish(held: LockedPartition) -> Published:
    """Finish or undo the swap of a housekeeper that has ended. REQUIRES: the generation is odd."""
    now = held.now
    leftovers.settle(held.path, {}, write=True)
    logger.warning(
        "repaired %s: a compaction was interrupted while segments were replaced", held.path
    )
    return now._replace(
        generation=now.generation + 1, purged_to=max(now.purged_to, now.segment_base)
    )
