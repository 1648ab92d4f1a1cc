"""The swap of a compaction: new files take the place of a group of segments.

- The swap happens under the append lock with the generation odd; a process that finds it unfinished
  finishes it.
- `purged_to` is raised with the swap: a view that was read below it is read again (tombstones may
  be removed).
- A swap begins only if all new files are there: a load of the partition, after its control page was
  lost, removes them.
- Each kind of rename is on disk before the next one: a power loss may keep any of the renames since
  the last sync.
- `purged_to` of a leader and of a follower mean different things, as the table shows. A follower
  that copies compares its own with the leader's (REPLICA-20).
- Nothing was cut since the pass began. A log that was cut, or that began again, can have other
  records in segments of the same base and size.

| replica | what its `purged_to` shows | a swap of a dirty part raises it |
| --- | --- | --- |
| leader | below it, records may be removed | in any case: to the end of the part, else by 1 |
| follower | that of the leader with which its copy began | to the end of the part at most |

So that of a leader may be above the log end.
"""

from __future__ import annotations

import logging
from pathlib import Path

from embedlog import index, segment
from embedlog._native import system
from embedlog._native.replication import ROLE_LEADER
from embedlog._native.system import Published
from embedlog.format import aborted_transactions
from embedlog.partition import leftovers
from embedlog.partition.locked_partition import LockedPartition
from embedlog.storage import file_names, files, interval_digests
from embedlog.storage.manifest import SegmentInfo

logger = logging.getLogger("embedlog")


def replace(
    locked: LockedPartition,
    group: list[SegmentInfo],
    new_segment: SegmentInfo,
    records: bytes,
    *,
    clean_end: int,
    clean_end_before: int,
    cuts: int,
) -> bool:
    """Put a new segment in the place of a group; whether the pass may go on.

    False if the new files are gone, if retention removed a part of the group, or if the log was
    cut: then the pass is repeated. True also if retention removed the whole group: then nothing is
    left to be replaced, and the new files are `leftovers`.

    The log is clean below `clean_end` after the pass, and was below `clean_end_before` before it.
    `cuts`: WORD_CUTS at its begin.
    """
    published = locked.published
    is_uncut = locked.state.page.word(system.WORD_CUTS) == cuts
    first_base = locked.segments.all(published)[0].base
    group_end = group[-1].next_offset
    is_group_deleted = first_base >= group_end or published.log_start >= group_end
    if is_uncut and is_group_deleted:
        return True
    if not is_uncut or not _can_begin(locked, group, new_segment):
        logger.info(
            "%s: a compaction is repeated, the partition was loaded, cut or shortened meanwhile",
            locked.path,
        )
        return False
    locked.state.mark_dirty()
    published = _with_odd_generation(published)
    locked.publish(published)
    _swap(locked, published, group, new_segment, records)
    purged_to = min(clean_end, new_segment.next_offset)
    is_dirty_part = clean_end_before < purged_to
    is_leader = locked.replica_at_begin.role == ROLE_LEADER
    if is_leader and is_dirty_part and purged_to <= published.purged_to:
        purged_to = published.purged_to + 1  # a replica that copies must notice it
    locked.publish_replaced(_with_even_generation(published, purged_to))
    return True


def _can_begin(locked: LockedPartition, group: list[SegmentInfo], new_segment: SegmentInfo) -> bool:
    """Whether all new files are there, and the segments that they replace are unchanged."""
    if not _is_complete(locked.path, new_segment):
        return False
    sizes = {info.base: info.size for info in locked.segments.all(locked.published)}
    return all(sizes.get(info.base) == info.size for info in group)


def _is_complete(directory: Path, new_segment: SegmentInfo) -> bool:
    """Whether every `.cleaned` file of the segment that was made has its size."""
    sizes = {
        file_names.LOG: new_segment.size,
        file_names.INDEX: new_segment.index_entries * index.OFFSET_ENTRY.size,
        file_names.TIME_INDEX: new_segment.time_entries * index.TIME_ENTRY.size,
    }
    if new_segment.transaction_entries:
        sizes[file_names.TRANSACTION_INDEX] = (
            new_segment.transaction_entries * aborted_transactions.ENTRY_SIZE
        )
    for suffix, size in sizes.items():
        path = file_names.segment_path(directory, new_segment.base, suffix + file_names.CLEANED)
        facts = files.facts_of(path)
        if facts is None or facts.size != size:
            return False
    return True


def _with_odd_generation(published: Published) -> Published:
    """The tuple while files are replaced: its generation is odd."""
    return published._replace(generation=published.generation | 1)


def _with_even_generation(published: Published, purged_to: int) -> Published:
    """The tuple after the replacement: its generation is even, and records below `purged_to` may be
    removed.
    """
    return published._replace(
        generation=published.generation + published.generation % 2,
        purged_to=max(published.purged_to, purged_to),
    )


def _swap(
    locked: LockedPartition,
    published: Published,
    group: list[SegmentInfo],
    new_segment: SegmentInfo,
    records: bytes,
) -> None:
    directory = locked.path
    manifest = locked.state.manifest
    bases = {info.base for info in group}
    manifest.refresh()
    locked.replace_manifest(
        published, [info for info in manifest.segments.values() if info.base not in bases]
    )
    _rename_all(directory, new_segment.base, file_names.CLEANED, file_names.SWAP)
    # on disk before the next rename: a load removes `.cleaned` and `.deleted`, if both are there
    files.sync_directory(directory)
    system.point("swap-step")
    _set_aside(directory, group, new_segment)
    system.point("swap-step")
    # the removal of the old digests is on disk before other batches are there
    files.sync_directory(directory)
    interval_digests.write_records(directory, new_segment.base, records, 0, locked.mode)
    _rename_all(directory, new_segment.base, file_names.SWAP, "")
    files.sync_directory(directory)
    locked.append_to_manifest(published, new_segment)


def _set_aside(directory: Path, group: list[SegmentInfo], new_segment: SegmentInfo) -> None:
    for info in group:
        suffixes: tuple[str, ...] = file_names.SEGMENT_SUFFIXES
        if info.base != new_segment.base:
            suffixes = (*suffixes, file_names.SNAPSHOT)
        segment.set_aside(directory, info.base, suffixes)


def _rename_all(directory: Path, base: int, before: str, after: str) -> None:
    for suffix in file_names.SEGMENT_SUFFIXES:
        path = file_names.segment_path(directory, base, suffix + before)
        if files.exists(path):
            files.rename(path, file_names.segment_path(directory, base, suffix + after))


def finish(locked: LockedPartition) -> Published:
    """Finish or undo the swap of a housekeeper that has ended. REQUIRES: the generation is odd."""
    published = locked.published
    # the known segments would only show what retention has left half done
    leftovers.carry_out(locked.path, known={}, write=True)
    logger.warning(
        "repaired %s: a compaction was interrupted while segments were replaced", locked.path
    )
    purged_to = published.purged_to
    if locked.replica_at_begin.role == ROLE_LEADER:
        purged_to += 1  # as in `replace`: an earlier estimate is not below what was replaced now
    return published._replace(
        generation=published.generation + 1,
        purged_to=max(purged_to, published.segment_base),
    )
