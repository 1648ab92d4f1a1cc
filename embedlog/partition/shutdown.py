"""Leaving a partition as Kafka leaves it after an orderly shutdown, and the checkpoints of the directory.

Z1  the order: repair if need be, final time-index entry and trimming, producers' snapshot, sync by the rules of `sync`,
    the closing record, then the DIRTY mark goes
Z2  the clean mark of the directory follows only if every partition came this far
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from embedlog import segment
from embedlog.partition.segment_list import active_info, start_of
from embedlog.storage import checkpoints, file_names, files

if TYPE_CHECKING:
    from embedlog.partition.partition import Partition


def close_in_order(partition: Partition) -> None:
    """Bring the files to rest. REQUIRES the door, as the last one out. Raises DurabilityError if a sync fails."""
    with partition.exclusive() as now:
        final = (
            (now.max_timestamp, now.max_timestamp_offset - now.segment_base) if now.max_timestamp > now.last_time_entry else None
        )
        times = segment.finish(
            partition.path, now.segment_base, now.segment_size, now.index_entries, now.time_entries, final, sync=True
        )
        after = now._replace(time_entries=times, last_time_entry=max(now.last_time_entry, now.max_timestamp))
        partition.write_snapshot(now)
        partition.page.publish(after, None)
    partition.sync()
    with partition.exclusive() as now:
        partition.manifest.note(start_of(now, partition.home.visit), active_info(now))
        partition.manifest.sync()
        files.sync_directory(partition.path)
        if files.unlink(partition.path / file_names.DIRTY, missing_ok=True):
            files.sync_directory(partition.path)


def write_checkpoints(partitions: list[Partition], *, closing: bool) -> None:
    """Recovery points, log starts and high watermarks of these partitions.

    REQUIRES the directory lock, or the door as the last one out.
    """
    if not partitions:
        return
    root, mode = partitions[0].home.root, partitions[0].home.mode
    recovery: dict[tuple[str, int], int | None] = {}
    starts: dict[tuple[str, int], int | None] = {}
    ends: dict[tuple[str, int], int | None] = {}
    for partition in partitions:
        now, name = partition.published(), (partition.topic, partition.number)
        recovery[name] = now.log_end if closing else min(partition.durable_offset, now.log_end)
        ends[name] = now.high_watermark
        starts[name] = now.log_start or None  # Kafka leaves it out at a segment's start: but then a missing one goes unnoticed
    checkpoints.update(root / file_names.RECOVERY_POINTS, recovery, mode)
    checkpoints.update(root / file_names.LOG_STARTS, starts, mode)
    checkpoints.update(root / file_names.HIGH_WATERMARKS, ends, mode)
