"""Deletes old segments: by log start, by size, by time (format.md 8).

- Only a prefix of whole segments is deleted; the search stops at the first segment that stays.
- The log start is in the manifest, on disk, and published before a file is renamed: it explains a
  missing file.
- Files are renamed first and unlinked after `file.delete.delay.ms`: readers in other processes can
  finish.
- Only here the wall clock decides; a segment without a timestamp counts by the modification time of
  its file.
- An index alone deletes nothing: the batch headers must be as old as a broker's time index states.
"""

from __future__ import annotations

import logging

from embedlog import segment
from embedlog._native import system
from embedlog._native.system import Published
from embedlog.config.topic import TopicConfig
from embedlog.partition.append_lock import AppendLock
from embedlog.partition.locked_partition import LockedPartition
from embedlog.partition.log_context import check_start
from embedlog.partition.replication.known_high_watermark import known_high_watermark
from embedlog.partition.replication.refusals import Fenced
from embedlog.partition.roll import roll
from embedlog.partition.segment_info import newest_header
from embedlog.partition.state import PartitionState
from embedlog.partition.sync import Syncer
from embedlog.storage import checkpoints, file_names, files
from embedlog.storage.manifest import SegmentInfo

logger = logging.getLogger("embedlog")


def applies(config: TopicConfig) -> bool:
    """Whether the settings of a topic allow deletion by size or time."""
    return "delete" in config.cleanup_policy and (
        config.retention_ms >= 0 or config.retention_bytes >= 0
    )


def retain(lock: AppendLock) -> int:
    """Delete the segments that the rules allow now; how many. Raises LockTimeoutError."""
    state = lock.state
    if not _find_deletable(lock, state.published()):
        return 0
    with lock.exclusive() as locked:
        published = locked.published
        deletable = _find_deletable(lock, published)
        if deletable and deletable[-1].base == published.segment_base:
            published = roll(locked, published)
        if not deletable:
            return 0
        # the remaining names first: a roll leaves its names to the next sync
        files.sync_directory(state.path)
        start = max(published.log_start, deletable[-1].next_offset)
        # the close must note the new start, else the deleted segments would be reported as missing
        state.mark_dirty()
        publish_start(locked, published, start)
        for info in deletable:
            segment.set_aside(state.path, info.base)
        files.sync_directory(state.path)
        locked.segments.forget()
    logger.info(
        "%s: %d segments below offset %d are deleted by retention",
        state.name,
        len(deletable),
        start,
    )
    return len(deletable)


def _find_deletable(lock: AppendLock, published: Published) -> list[SegmentInfo]:
    lock.segments.forget()
    infos = _list_on_disk(lock, published)
    config = lock.state.config
    by_policy = "delete" in config.cleanup_policy
    excess = -1
    if by_policy and config.retention_bytes >= 0:
        excess = sum(info.size for info in infos) - config.retention_bytes
    wall_ms = system.wall_ms()
    high_watermark = known_high_watermark(lock.state, published)
    deletable: list[SegmentInfo] = []
    for info in infos:
        active = info.base == published.segment_base
        if info.next_offset > high_watermark or (active and published.segment_size == 0):
            break
        below_start = not active and info.next_offset <= published.log_start
        too_much = excess >= 0 and excess - info.size >= 0
        too_old = (
            by_policy
            and config.retention_ms >= 0
            and _is_older(lock.state, info, wall_ms - config.retention_ms)
        )
        if not (below_start or too_much or too_old):
            break
        excess -= info.size
        deletable.append(info)
    return deletable


def _list_on_disk(lock: AppendLock, published: Published) -> list[SegmentInfo]:
    """All segments, including those below the log start that have files."""
    infos = lock.segments.all(published)
    state = lock.state
    state.manifest.refresh()
    described = list(state.manifest.segments.items())
    below = sorted(
        base
        for base, info in described
        if info.next_offset <= published.log_start and base < infos[0].base
    )
    below_infos = [
        state.manifest.segments[base]
        for base in below
        if files.exists(file_names.segment_path(state.path, base))
    ]
    return below_infos + infos


def _is_older(state: PartitionState, info: SegmentInfo, time_ms: int) -> bool:
    """Whether all records of a segment are older. A time that only a broker's time index states is
    compared with the log.
    """
    if info.max_timestamp < 0:
        facts = files.facts_of(file_names.segment_path(state.path, info.base))
        return facts is not None and facts.modified_ns // 1_000_000 < time_ms
    return info.max_timestamp < time_ms and (
        info.min_timestamp >= 0 or newest_header(state.path, info) < time_ms
    )


def publish_start(locked: LockedPartition, published: Published, start: int) -> Published:
    """Raise the log start and cut the epochs before it; it is on disk before."""
    after = published._replace(log_start=max(start, published.log_start))
    locked.append_to_manifest(after)
    locked.state.manifest.sync()
    locked.publish(after)
    epochs = locked.epochs()
    if epochs.truncate_from_start(after.log_start):
        locked.write_epochs(epochs)
    return after


def delete_records(
    lock: AppendLock,
    syncer: Syncer,
    offset: int,
    epoch: int | None = None,
    deadline_ns: int | None = None,
) -> int:
    """Raise the log start to `offset` (-1: the high watermark), on disk before it returns; the new
    log start.

    With an epoch the page must be in it: in another one, other records can be at these offsets.
    Skipped records are synced first: after a power loss a log must not end before its start.
    REQUIRES the directory lock, which covers the checkpoint. In a set the caller writes the
    checkpoint later. Raises DurabilityError; OffsetOutOfRangeError, Fenced and LockTimeoutError
    with nothing deleted.
    """
    state = lock.state
    until = state.deadline() if deadline_ns is None else deadline_ns
    start = state.bounds().high_watermark if offset == -1 else offset
    if state.durable_offset < start <= state.bounds().high_watermark:
        syncer.wait(start, until)
    with lock.exclusive(until) as locked:
        published = locked.published
        if epoch is not None and published.epoch != epoch:
            raise Fenced
        check_start(start, published.high_watermark, state.name, state.path)
        if start <= published.log_start:
            return published.log_start
        state.mark_dirty()
        published = publish_start(locked, published, start)
        if not state.context.in_set:
            checkpointed = {(state.topic, state.number): start}
            # for a broker
            checkpoints.update(
                state.context.root / file_names.LOG_STARTS, checkpointed, locked.mode
            )
        logger.info(
            "%s: records below offset %d are deleted by delete_records()", state.name, start
        )
        return published.log_start


def unlink_deleted(state: PartitionState) -> int:
    """Unlink files that were renamed long enough ago; how many. For the housekeeper."""
    now_ms = system.wall_ms()
    delay_ms = state.config.file_delete_delay_ms
    due = []
    for name in files.listing(state.path):
        if name.endswith(file_names.DELETED):
            facts = files.facts_of(state.path / name)
            if facts is not None and now_ms - facts.changed_ms >= delay_ms:
                due.append(state.path / name)
    if due:
        # the renaming process may have been killed before its sync; the names that show a round go
        # last
        files.sync_directory(state.path)
    return sum(files.unlink(path, missing_ok=True) for path in due)
