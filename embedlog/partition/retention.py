"""Deleting old segments: by log start, by size, by time (format.md 8).

E1  only a prefix of whole segments goes, and the scan stops at the first one that stays
E2  the log start is in the manifest, on disk, and published before a file is renamed: whoever then misses a file finds out why
E3  files are renamed first and unlinked after `file.delete.delay.ms`: readers in other processes finish
E4  the wall clock decides here, and only here; a segment without a timestamp counts by its file's modification time
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from embedlog import segment
from embedlog._native import system
from embedlog._native.system import Published
from embedlog.errors import OffsetOutOfRangeError
from embedlog.partition import roll
from embedlog.partition.segment_list import start_of
from embedlog.storage import checkpoints, file_names, files
from embedlog.storage.manifest import SegmentInfo

if TYPE_CHECKING:
    from embedlog.partition.partition import Partition

logger = logging.getLogger("embedlog")


def wants(partition: Partition) -> bool:
    """Whether this partition's settings let anything be deleted by size or time."""
    config = partition.config
    return "delete" in config.cleanup_policy and (config.retention_ms >= 0 or config.retention_bytes >= 0)


def retain(partition: Partition) -> int:
    """Delete what the rules allow now; how many segments went. Raises LockTimeoutError."""
    now = partition.published()
    if not _deletable(partition, now):
        return 0
    with partition.exclusive() as now:
        doomed = _deletable(partition, now)
        if doomed and doomed[-1].base == now.segment_base:
            now = roll.roll_locked(partition, now)
        if not doomed:
            return 0
        files.sync_directory(partition.path)  # the names that stay, before the others go: a roll leaves its own to the next sync
        start = max(now.log_start, doomed[-1].next_offset)
        partition.mark_dirty()  # the closing has to note the new start: else the segments that went would be missed
        publish_start_locked(partition, now, start)
        for info in doomed:
            segment.set_aside(partition.path, info.base)
        files.sync_directory(partition.path)
        partition.segments.forget()
    told = (partition.topic, partition.number, len(doomed), start)
    logger.info("%s-%d: %d segments below offset %d are deleted by retention", *told)
    return len(doomed)


def _deletable(partition: Partition, now: Published) -> list[SegmentInfo]:
    partition.segments.forget()
    infos = _all_on_disk(partition, now)
    config = partition.config
    by_policy = "delete" in config.cleanup_policy
    excess = sum(info.size for info in infos) - config.retention_bytes if by_policy and config.retention_bytes >= 0 else -1
    wall_ms = system.wall_ms()
    doomed: list[SegmentInfo] = []
    for info in infos:
        active = info.base == now.segment_base
        if info.next_offset > now.high_watermark or (active and now.segment_size == 0):
            break
        below_start = not active and info.next_offset <= now.log_start
        too_much = excess >= 0 and excess - info.size >= 0
        too_old = by_policy and config.retention_ms >= 0 and wall_ms - _newest(partition, info) > config.retention_ms
        if not (below_start or too_much or too_old):
            break
        excess -= info.size
        doomed.append(info)
    return doomed


def _all_on_disk(partition: Partition, now: Published) -> list[SegmentInfo]:
    """Segments below the log start too, as long as their files are there."""
    infos = partition.segments.all(now)
    partition.manifest.refresh()
    known = list(partition.manifest.segments.items())
    below = sorted(base for base, info in known if info.next_offset <= now.log_start and base < infos[0].base)
    there = [partition.manifest.segments[base] for base in below if files.exists(file_names.segment_path(partition.path, base))]
    return there + infos


def _newest(partition: Partition, info: SegmentInfo) -> int:
    if info.max_timestamp >= 0:
        return info.max_timestamp
    found = files.facts_of(file_names.segment_path(partition.path, info.base))
    return found.modified_ns // 1_000_000 if found else system.wall_ms()


def publish_start_locked(partition: Partition, now: Published, start: int) -> Published:
    """Raise the log start and cut the epochs before it; it is on disk before. REQUIRES the append lock."""
    after = now._replace(log_start=max(start, now.log_start))
    partition.manifest.note(start_of(after, partition.home.visit))
    partition.manifest.sync()
    partition.page.publish(after, partition.home.directory_page)
    epochs = checkpoints.read_epochs(partition.path / file_names.EPOCHS)
    if epochs.truncate_from_start(after.log_start):
        checkpoints.write_epochs(partition.path / file_names.EPOCHS, epochs, partition.home.mode)
    return after


def delete_records(partition: Partition, offset: int) -> int:
    """Raise the log start to `offset` (-1: the high watermark), on disk before it returns; the new log start.

    What it skips is on disk before: a log that came back shorter than its start could not be opened any more.
    REQUIRES the directory lock, which covers the checkpoint. Raises OffsetOutOfRangeError, DurabilityError.
    """
    start = partition.bounds().high_watermark if offset == -1 else offset
    if partition.durable_offset < start <= partition.bounds().high_watermark:
        partition.syncer.wait(start, partition.deadline())
    with partition.exclusive() as now:
        if not 0 <= start <= now.high_watermark:
            raise OffsetOutOfRangeError(
                f"cannot delete records of {partition.topic}-{partition.number}",
                path=partition.path,
                expected=f"-1, or 0 to {now.high_watermark}",
                found=offset,
            )
        if start <= now.log_start:
            return now.log_start
        partition.mark_dirty()
        noted = {(partition.topic, partition.number): start}
        now = publish_start_locked(partition, now, start)
        checkpoints.update(partition.home.root / file_names.LOG_STARTS, noted, partition.home.mode)  # for a broker
        logger.info("%s-%d: records below offset %d are deleted on demand", partition.topic, partition.number, start)
        return now.log_start


def unlink_deleted(partition: Partition) -> int:
    """Unlink what was renamed long enough ago; how many files went. For the housekeeper."""
    now_ms, delay_ms = system.wall_ms(), partition.config.file_delete_delay_ms
    due = []
    for name in files.listing(partition.path):
        if name.endswith(file_names.DELETED):
            found = files.facts_of(partition.path / name)
            if found is not None and now_ms - found.changed_ms >= delay_ms:
                due.append(partition.path / name)
    if due:
        files.sync_directory(partition.path)  # who renamed them may have died before it did: what tells of a round goes last
    return sum(files.unlink(path, missing_ok=True) for path in due)
