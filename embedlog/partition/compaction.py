"""Compaction of one partition: the log cleaner (format.md 7).

V1  only sealed, synced, decided segments are cleaned, by one housekeeper at a time; appenders wait for the swap alone
V2  what is made lies beside the log as `.cleaned` until all of it is on stable storage
V3  the swap happens under the append lock with the generation odd; whoever finds it broken off finishes it
V4  `purged_to` is raised with the swap: who replays from a look below it begins anew (tombstones may be gone)
V5  `.cleaned` is only made while no swap is unfinished: who finishes one takes `.cleaned` for a swap that was not reached
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from embedlog import index, segment
from embedlog._native import system
from embedlog._native.system import Published
from embedlog.errors import CorruptRecordError, in_file
from embedlog.format import aborted_transactions
from embedlog.format.aborted_transactions import AbortedTransaction
from embedlog.format.compactor import OffsetMap, clean
from embedlog.format.producer_state import Producer
from embedlog.format.record_batch import Batches, Chain, scan
from embedlog.partition import leftovers, producer_recovery
from embedlog.partition.compaction_rules import Bounds, Transactions, bounds, groups
from embedlog.partition.segment_list import start_of
from embedlog.storage import checkpoints, file_names, files, interval_digests
from embedlog.storage.manifest import DIGESTED, SEALED, SegmentInfo, joined_times

if TYPE_CHECKING:
    from pathlib import Path

    from embedlog.partition.partition import Partition

logger = logging.getLogger("embedlog")


def wants(partition: Partition) -> bool:
    """Whether this partition's settings let it be compacted."""
    return partition.config.compacted


def due(partition: Partition, known: int, now_ms: int) -> Bounds | None:
    """What a pass would clean, if it is worth one: the dirty ratio is passed, or something is overdue.

    `known`: how far it was cleaned by this process, -1: as the checkpoint says.
    """
    found = _bounds(partition, known, now_ms)
    config = partition.config
    if found.dirty_bytes and (found.overdue or found.ratio > config.min_cleanable_dirty_ratio):
        return found
    return None


def _bounds(partition: Partition, known: int, now_ms: int) -> Bounds:
    now, config = partition.published(), partition.config
    if known < 0:
        known = checkpoints.read_offsets(partition.home.root / file_names.CLEANER).get((partition.topic, partition.number), -1)
    decided = now.first_unstable < 0 or system.mutated("clean_undecided")
    stable = now.high_watermark if decided else min(now.high_watermark, now.first_unstable)
    return bounds(
        partition.segments.all(now)[:-1],
        known=known,
        log_start=now.log_start,
        stable=stable,
        now_ms=now_ms,
        min_lag_ms=config.min_compaction_lag_ms,
        max_lag_ms=config.max_compaction_lag_ms,
    )


def compact(partition: Partition, known: int, memory_bytes: int, now_ms: int) -> int:
    """One pass, if one is due; how far the log is clean then, or -1. REQUIRES the housekeeper's lock.

    The caller notes the answer in the cleaner's checkpoint. Raises CorruptRecordError, DurabilityError, LockTimeoutError.
    """
    partition.settled()  # a swap that was broken off is finished before anything is made (V5)
    found = due(partition, known, now_ms)
    if found is None:
        return -1
    if partition.durable_offset < found.end:
        partition.sync()
    work = _Pass(partition, found, memory_bytes, now_ms)
    end = work.fill_map()
    if end <= found.first_dirty:
        return -1
    for group in work.groups(end):
        made, records = work.write(group, end)
        work.swap(group, made, records, end)
    return end


class _Pass:
    """One round over a partition."""

    def __init__(self, partition: Partition, found: Bounds, memory_bytes: int, now_ms: int) -> None:
        self._partition, self._bounds, self._now_ms = partition, found, now_ms
        self._now = partition.published()
        self._map = OffsetMap(memory_bytes, decompressed_max=partition.home.decompressed_max)
        aborted = self._aborted()
        self._learning, self._cleaning = Transactions(aborted), Transactions(aborted)
        self._producers = self._producers_now()

    def _sealed(self, end: int) -> list[SegmentInfo]:
        return [info for info in self._partition.segments.all(self._now)[:-1] if info.base < end]

    def _aborted(self) -> list[AbortedTransaction]:
        partition = self._partition
        found: list[AbortedTransaction] = []
        for info in partition.segments.all(self._now):
            rows = partition.aborted.entries(info, self._now)
            found += [AbortedTransaction(*map(int, list(row)[1:])) for row in rows]
        return found

    def _producers_now(self) -> dict[int, Producer]:
        with self._partition.mutex:
            return dict(self._partition.sequencing.present().producers)

    def _path(self, info: SegmentInfo) -> Path:
        return file_names.segment_path(self._partition.path, info.base)

    def _chunks(self, info: SegmentInfo) -> Iterator[tuple[memoryview, Batches]]:
        """A segment's bytes and batches, checked. Raises CorruptRecordError: what is damaged is left as it is."""
        partition = self._partition
        path = self._path(info)
        with files.opened(path) as fd:
            chain = Chain(gaps_allowed=True)
            walk = segment.Walk(fd, path, chain, 0, info.size)
            for data, batches in walk.chunks():
                partition.reader.check_epochs(path, batches, 0)
                yield data, batches
            if walk.end != info.size or (info.digested and chain.digest != info.digest):
                problem = walk.problem.message if walk.problem else "the segment is not what was written"
                raise CorruptRecordError(f"cannot be compacted: {problem}", path=path, position=walk.end)

    # ---- the map ---------------------------------------------------------------------------------

    def fill_map(self) -> int:
        """Take in what is dirty; the end of what is known then."""
        for info in self._sealed(self._bounds.end):
            if info.next_offset <= self._bounds.first_dirty:
                continue
            for data, batches in self._chunks(info):
                counts = self._learning.records(batches)
                position = int(batches["position"][0])
                with in_file(self._path(info)):
                    known = self._map.add(data, batches[counts], position=position, start_offset=self._bounds.first_dirty)
                if not known:
                    return self._map.latest + 1
            self._map.pass_over(info.next_offset - 1)
        return self._bounds.end

    # ---- writing ---------------------------------------------------------------------------------

    def groups(self, end: int) -> list[list[SegmentInfo]]:
        """The segments that are rewritten: from the log's start to the one in which the pass ends."""
        config = self._partition.config
        return groups(self._sealed(end), segment_bytes=config.segment_bytes, index_bytes=config.segment_index_bytes)

    def write(self, group: list[SegmentInfo], end: int) -> tuple[SegmentInfo, bytes]:
        """The `.cleaned` files of a group, on stable storage, and the digests that go with them."""
        partition = self._partition
        directory, base = partition.path, group[0].base
        leftovers.remove_cleaned(directory)
        self._cleaning.kept.clear()
        output = _Output(directory, base, partition.config.index_interval_bytes, partition.home.mode)
        for info in group:
            with in_file(self._path(info)):
                self._clean(info, output, end)
        return output.finish(group, list(self._cleaning.kept)), output.records

    def _clean(self, info: SegmentInfo, output: _Output, end: int) -> None:
        for data, batches in self._chunks(info):
            orders = self._cleaning.orders(
                batches, producer_recovery.markers_in(data, batches), self._producers, end, self._now_ms
            )
            for made, rows in clean(
                data,
                batches,
                orders,
                self._map,
                position=int(batches["position"][0]),
                now_ms=self._now_ms,
                delete_retention_ms=self._partition.config.delete_retention_ms,
            ):
                output.add(made, rows)

    # ---- the swap --------------------------------------------------------------------------------

    def swap(self, group: list[SegmentInfo], made: SegmentInfo, records: bytes, end: int) -> None:
        """Put what was made in the place of a group."""
        partition = self._partition
        with partition.exclusive() as now:
            if partition.segments.all(now)[0].base > group[0].base or now.log_start > made.next_offset:
                return  # retention was faster: there is nothing to replace any more
            partition.mark_dirty()
            if not system.mutated("silent_swap"):
                now = now._replace(generation=now.generation | 1)
            partition.page.publish(now, partition.home.directory_page)
            _swap_locked(partition, now, group, made, records)
            purged_to = 0 if system.mutated("purge_unnoted") else min(end, made.next_offset)
            after = now._replace(generation=now.generation + now.generation % 2, purged_to=max(now.purged_to, purged_to))
            partition.publish_locked(after)


def _swap_locked(partition: Partition, now: Published, group: list[SegmentInfo], made: SegmentInfo, records: bytes) -> None:
    directory, bases = partition.path, {info.base for info in group}
    partition.manifest.refresh()
    kept = [info for info in partition.manifest.segments.values() if info.base not in bases]
    partition.manifest.rewrite(kept, start_of(now, partition.home.visit))
    if system.mutated("aside_before_swap"):
        _set_aside(directory, group, made)
    _rename_all(directory, made.base, file_names.CLEANED, file_names.SWAP)
    system.point("swap-step")
    _set_aside(directory, group, made)
    system.point("swap-step")
    files.sync_directory(directory)  # the digests of what is replaced are gone for good before other batches are there
    interval_digests.write(directory, made.base, records, 0, partition.home.mode)
    for suffix in file_names.SEGMENT_SUFFIXES:
        path = file_names.segment_path(directory, made.base, suffix + file_names.SWAP)
        if files.exists(path):
            files.rename(path, file_names.segment_path(directory, made.base, suffix))
    files.sync_directory(directory)
    partition.manifest.note(start_of(now, partition.home.visit), made)


def _set_aside(directory: Path, group: list[SegmentInfo], made: SegmentInfo) -> None:
    for info in group:
        kept = file_names.SEGMENT_SUFFIXES if info.base == made.base else (*file_names.SEGMENT_SUFFIXES, file_names.SNAPSHOT)
        segment.set_aside(directory, info.base, kept)


def _rename_all(directory: Path, base: int, before: str, after: str) -> None:
    for suffix in file_names.SEGMENT_SUFFIXES:
        path = file_names.segment_path(directory, base, suffix + before)
        if files.exists(path):
            files.rename(path, file_names.segment_path(directory, base, suffix + after))


def finish_swap_locked(partition: Partition, now: Published) -> Published:
    """Finish or undo what a dead housekeeper was about. REQUIRES the append lock, the generation being odd."""
    leftovers.settle(partition.path, {}, write=True)
    logger.warning("repaired %s: a compaction was broken off while segments were replaced", partition.path)
    return now._replace(generation=now.generation + 1, purged_to=max(now.purged_to, now.segment_base))


class _Output:
    """One segment in the making, as `.cleaned` files."""

    def __init__(self, directory: Path, base: int, interval_bytes: int, mode: int) -> None:
        self._directory, self._base, self._mode = directory, base, mode
        self._path = file_names.segment_path(directory, base, file_names.LOG + file_names.CLEANED)
        self._builder = index.Builder(base, interval_bytes)
        self._chain = Chain(gaps_allowed=True, segment_base=base)
        self._size = 0
        self._epoch = 0
        with files.opened(self._path, files.CREATE, mode) as fd:
            files.truncate(fd, 0, self._path)

    def add(self, data: memoryview, rows: Batches) -> None:
        """Append what stays; it is read as a reader would before it is written."""
        if not len(data):
            return
        digest = self._chain.digest
        scanned = scan(data, self._chain, position=self._size)
        if scanned.problem is not None or scanned.consumed != len(data) or len(scanned.batches) != np.count_nonzero(rows["size"]):
            raise CorruptRecordError("compaction made batches that cannot be read", path=self._path, position=self._size)
        with files.opened(self._path, files.WRITE) as fd:
            files.write_all(fd, data, self._size, self._path)
        self._builder.add(scanned.batches, interval_digests.before(data, scanned.batches, digest))
        self._epoch = int(scanned.batches["leader_epoch"][-1])
        self._size += len(data)

    @property
    def records(self) -> bytes:
        return self._builder.records()

    def finish(self, group: list[SegmentInfo], aborted: list[AbortedTransaction]) -> SegmentInfo:
        """Indexes, stable storage, and the time of the last segment that went in."""
        builder, last = self._builder, group[-1]
        builder.add_time_entry()
        parts = {
            file_names.INDEX: bytes(builder.offsets),
            file_names.TIME_INDEX: bytes(builder.times),
            file_names.TRANSACTION_INDEX: aborted_transactions.encode(aborted),
        }
        facts = files.facts_of(file_names.segment_path(self._directory, last.base))
        for suffix, raw in parts.items():
            path = file_names.segment_path(self._directory, self._base, suffix + file_names.CLEANED)
            if raw or suffix != file_names.TRANSACTION_INDEX:
                with files.opened(path, files.CREATE, self._mode) as fd:
                    files.write_all(fd, raw, 0, path)
                    files.truncate(fd, len(raw), path)
                    files.sync(fd, path)
        with files.opened(self._path, files.WRITE) as fd:
            files.sync(fd, self._path)
        if facts is not None:
            files.set_modified(self._path, facts.modified_ns)
        files.sync_directory(self._directory)
        return SegmentInfo(
            self._base,
            self._size,
            last.next_offset,
            builder.max_timestamp,
            builder.max_timestamp_offset,
            self._chain.digest,
            builder.offset_entries,
            builder.time_entries,
            len(aborted),
            last.created_ms,
            self._epoch,
            DIGESTED,
            SEALED,
            0,
            *joined_times(group),
        )
