"""Rolling to a new segment, and repairing what a dead or broken-off appender left. Both under the append lock.

K1  a roll leaves its intent in the page before it makes a file, and publishes before it clears it
K2  repair adopts before it cuts: valid batches behind the published end were perhaps seen on disk after a crash
K3  what is cut is copied aside first and reported
K4  either can be broken off anywhere and done again
"""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING

from embedlog import index, segment
from embedlog._native import system
from embedlog._native.system import Published
from embedlog.errors import CorruptRecordError, StorageError
from embedlog.format.record_batch import Chain
from embedlog.partition import compaction, repair, truncate
from embedlog.partition.segment_list import active_info, start_of
from embedlog.storage import file_names, files
from embedlog.storage.manifest import DIGESTED, EMPTY_MS, GAPLESS, SEALED

if TYPE_CHECKING:
    from embedlog.partition.partition import Partition

logger = logging.getLogger("embedlog")


def roll_locked(partition: Partition, now: Published) -> Published:
    """Seal the active segment and begin one at the log end. No-op for an empty one. REQUIRES the append lock."""
    if now.segment_size == 0:
        return now
    partition.mark_dirty()
    base = now.log_end
    page = partition.page
    page.set(system.WORD_ROLL_INTENT, base + 1)
    system.point("roll-intent")
    final = (now.max_timestamp, now.max_timestamp_offset - now.segment_base) if now.max_timestamp > now.last_time_entry else None
    times = segment.finish(
        partition.path, now.segment_base, now.segment_size, now.index_entries, now.time_entries, final, sync=False
    )
    partition.write_snapshot(now)
    config = partition.config
    segment.create(partition.path, base, partition.home.mode, config.segment_bytes if config.preallocate else 0)
    system.point("roll-created")
    partition.manifest.note(start_of(now, partition.home.visit), active_info(now)._replace(time_entries=times, kind=SEALED))
    after = fresh(now, base, partition.config.segment_jitter_ms)
    page.publish(after, partition.home.directory_page)
    system.point("roll-published")
    page.set(system.WORD_ROLL_INTENT, 0)
    logger.debug("%s-%d: segment %d begins", partition.topic, partition.number, base)
    return after


def fresh(now: Published, base: int, jitter_ms: int) -> Published:
    """The tuple with a new, empty active segment at `base`."""
    jitter = random.randrange(jitter_ms) if jitter_ms > 0 else 0
    return now._replace(
        segment_base=base,
        segment_size=0,
        max_timestamp=-1,
        max_timestamp_offset=base,
        min_timestamp=EMPTY_MS,
        lateness_ms=0,
        last_time_entry=-1,
        first_timestamp=-1,
        created_ms=system.wall_ms(),
        roll_jitter_ms=jitter,
        bytes_since_entry=0,
        digest=0,
        index_entries=0,
        time_entries=0,
        transaction_entries=0,
        transaction_digest=0,
        flags=GAPLESS | DIGESTED,
    )


def repair_locked(partition: Partition) -> Published:
    """Make files and page agree again: adopt the valid tail, cut the rest, undo a roll that was not published.

    REQUIRES the append lock.
    """
    now = partition.page.read()
    if now is None:
        raise StorageError("the control page is damaged", path=partition.path / file_names.PAGE)
    partition.close_writer()
    partition.segments.forget()
    if partition.page.word(system.WORD_CUT_INTENT):
        now = truncate.resume_locked(partition, now)
    elif now.generation % 2 and not system.mutated("swap_unfinished"):
        now = compaction.finish_swap_locked(partition, now)
    after = _adopt(partition, now)
    if partition.page.word(system.WORD_SNAPSHOT) > after.segment_base + 1:
        partition.page.set(system.WORD_SNAPSHOT, 0)  # it may go with a segment that was not published
    _remove_unpublished(partition, after)
    if after.segment_size < now.segment_size:
        raise CorruptRecordError(
            "published bytes are gone",
            path=file_names.segment_path(partition.path, now.segment_base),
            expected=f"{now.segment_size} bytes",
            found=after.segment_size,
        )
    partition.page.publish(after, partition.home.directory_page)
    partition.page.set(system.WORD_ROLL_INTENT, 0)
    _count_unsynced(partition, now, after)
    return after


def _count_unsynced(partition: Partition, now: Published, after: Published) -> None:
    """What was taken over is to be flushed in time, too, and whoever wrote it may have died before saying so."""
    durable = partition.page.word(system.WORD_DURABLE)
    if after.log_end <= durable:
        return
    if now.log_end <= durable:
        partition.page.set(system.WORD_UNSYNCED_SINCE, partition.page.word(system.WORD_OWNER_SINCE))
    if partition.home.directory_page is not None:
        partition.home.directory_page.add(system.WORD_UNSYNCED_COUNT, 1)


def _adopt(partition: Partition, now: Published) -> Published:
    directory, base = partition.path, now.segment_base
    path = file_names.segment_path(directory, base)
    size = segment.size_of(directory, base)
    if size < now.segment_size:
        raise CorruptRecordError("published bytes are gone", path=path, expected=f"{now.segment_size} bytes", found=size)
    chain = Chain(now.log_end, now.epoch, now.digest)
    builder = index.Builder(base, partition.config.index_interval_bytes)
    builder.bytes_since_entry, builder.last_time_entry = now.bytes_since_entry, now.last_time_entry
    builder.max_timestamp, builder.max_timestamp_offset = now.max_timestamp, now.max_timestamp_offset
    builder.min_timestamp, builder.lateness_ms = now.min_timestamp, now.lateness_ms
    first_timestamp = now.first_timestamp
    with files.opened(path, files.WRITE) as fd:
        walk = segment.Walk(
            fd, path, chain, now.segment_size, now.segment_size if system.mutated("cut_instead_of_adopt") else size
        )
        adopted = repair.Adoption(partition, now)
        for data, batches in walk.chunks():
            adopted.take(data, batches)
            builder.add(batches, walk.before)
            if first_timestamp < 0 and now.segment_size == 0 and int(batches["position"][0]) == 0:
                first_timestamp = int(batches["max_timestamp"][0])
        if walk.end < size:
            segment.copy_aside(path, walk.end, size, directory / f"{file_names.CUT}{base:020d}-{walk.end}", partition.home.mode)
            files.truncate(fd, walk.end, path)
            logger.warning("repaired %s: cut %d bytes at byte %d that a broken-off append left", path, size - walk.end, walk.end)
    if walk.end > now.segment_size:
        logger.warning(
            "repaired %s: took over offsets %d to %d, which a dead process had written", path, now.log_end, chain.next_offset - 1
        )
    digested = bool(now.flags & DIGESTED)
    builder.write_tail(directory, now.index_entries, now.time_entries, partition.home.mode, digested=digested)
    return adopted.finish(now)._replace(
        segment_size=walk.end,
        log_end=chain.next_offset,
        high_watermark=chain.next_offset,
        digest=chain.digest,
        first_timestamp=first_timestamp,
        max_timestamp=builder.max_timestamp,
        max_timestamp_offset=builder.max_timestamp_offset,
        min_timestamp=builder.min_timestamp,
        lateness_ms=builder.lateness_ms,
        last_time_entry=builder.last_time_entry,
        bytes_since_entry=builder.bytes_since_entry,
        index_entries=now.index_entries + builder.offset_entries,
        time_entries=now.time_entries + builder.time_entries,
    )


def _remove_unpublished(partition: Partition, now: Published) -> None:
    """Segments above the active one: a roll that did not come to publishing. They hold nothing that was acknowledged."""
    for base in file_names.bases(files.listing(partition.path)):
        if base <= now.segment_base:
            continue
        path = file_names.segment_path(partition.path, base)
        size = segment.size_of(partition.path, base)
        if size:
            segment.copy_aside(path, 0, size, partition.path / f"{file_names.CUT}{base:020d}-0", partition.home.mode)
        for suffix in (*file_names.SEGMENT_SUFFIXES, file_names.SNAPSHOT, file_names.DIGESTS):
            files.unlink(file_names.segment_path(partition.path, base, suffix), missing_ok=True)
        logger.warning("repaired %s: removed segment %d of a roll that was broken off", partition.path, base)
