"""One pass of the log cleaner over a partition (format.md 7).

- Only sealed, synced, decided segments are cleaned, by one housekeeper at a time; appenders wait
  for the swap alone.
- The new files are beside the log as `.cleaned` until all of them are on stable storage; then
  `swap` replaces segments.
- `.cleaned` is only made while no swap is unfinished: a process that finishes a swap takes
  `.cleaned` for one that was not begun.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

from embedlog import index, segment
from embedlog._native import system
from embedlog._native.lazy_numpy import np
from embedlog._native.system import Published
from embedlog.errors import CorruptRecordError, in_file
from embedlog.format import aborted_transactions
from embedlog.format.aborted_transactions import AbortedTransaction
from embedlog.format.compactor import KeyOffsetMap, clean
from embedlog.format.producer_state import Producer
from embedlog.format.record_batch import Batches, Chain, scan
from embedlog.hooks.callbacks import AddBytes, Work
from embedlog.partition import leftovers
from embedlog.partition.append_lock import AppendLock
from embedlog.partition.compaction import swap
from embedlog.partition.compaction.rules import (
    CleanRange,
    CompactedTransactions,
    find_clean_range,
    group_segments,
)
from embedlog.partition.reader import Reader
from embedlog.partition.recovery import producer_history
from embedlog.partition.replication.known_high_watermark import known_high_watermark
from embedlog.partition.segment_info import built_info
from embedlog.partition.sync import Syncer
from embedlog.storage import checkpoints, file_names, files, interval_digests
from embedlog.storage.manifest import SegmentInfo, join_times

logger = logging.getLogger("embedlog")


class LogCleaner:
    """Compaction of one partition. Threads: one, which REQUIRES the housekeeper's lock."""

    def __init__(self, lock: AppendLock, reader: Reader, syncer: Syncer) -> None:
        self.state = lock.state
        self.lock = lock
        self.reader = reader
        self.syncer = syncer

    def find_due(self, cleaned_to: int, now_ms: int) -> CleanRange | None:
        """The range that a pass would clean, if the pass is due: the dirty ratio is passed, or a
        record is overdue.

        `cleaned_to`: the offset up to which this process cleaned it, -1: as in the checkpoint.
        """
        clean_range = self._find_range(cleaned_to, now_ms)
        if clean_range.dirty_bytes and (
            clean_range.overdue or clean_range.ratio > self.state.config.min_cleanable_dirty_ratio
        ):
            return clean_range
        return None

    def _find_range(self, cleaned_to: int, now_ms: int) -> CleanRange:
        state = self.state
        published = self.state.published()
        config = self.state.config
        if cleaned_to < 0:
            cleaned = checkpoints.read_offsets(state.context.root / file_names.CLEANER)
            cleaned_to = cleaned.get((state.topic, state.number), -1)
        return find_clean_range(
            self.lock.segments.all(published)[:-1],
            cleaned_to=cleaned_to,
            log_start=published.log_start,
            stable=_decided_end(known_high_watermark(state, published), published),
            now_ms=now_ms,
            min_lag_ms=config.min_compaction_lag_ms,
            max_lag_ms=config.max_compaction_lag_ms,
        )

    def compact(self, cleaned_to: int, memory_bytes: int, now_ms: int, work: Work) -> int:
        """One pass, if one is due; the offset up to which the log is clean then, -1 if no pass was
        completed.

        The caller notes the answer in the cleaner's checkpoint. Raises CorruptRecordError,
        DurabilityError, LockTimeoutError.
        """
        self.lock.await_replacement()  # an interrupted swap is finished before a file is made
        # before anything of the log is read, its bounds too: `swap` compares it
        cuts = self.state.page.word(system.WORD_CUTS)
        clean_range = self.find_due(cleaned_to, now_ms)
        if clean_range is None:
            return -1
        state = self.state
        began_s = monotonic()
        if state.durable_offset < clean_range.end:
            self.syncer.sync(state.published().log_end, state.deadline())
        cleaning = _Pass(self, clean_range, memory_bytes, now_ms, cuts)
        with work.piece(cleaning.size_bytes()) as cleaning.passed:
            end = cleaning.fill_map()
            if end <= clean_range.first_dirty:
                return -1
            read_bytes = 0
            written_bytes = 0
            for group in cleaning.group_segments(end):
                new_segment, records = cleaning.write(group, end)
                if not cleaning.swap(group, new_segment, records, end):
                    return -1  # the next pass repeats it
                read_bytes += sum(info.size for info in group)
                written_bytes += new_segment.size
        self._report_pass(end, monotonic() - began_s, read_bytes, written_bytes)
        return end

    def _report_pass(self, end: int, spent_s: float, read_bytes: int, written_bytes: int) -> None:
        """Log and count a completed pass."""
        name = self.state.name
        logger.info(
            "%s: compacted up to offset %d in %.1f s, %d to %d bytes",
            name,
            end,
            spent_s,
            read_bytes,
            written_bytes,
        )
        counts = {
            "cleans": 1,
            "cleans_s": spent_s,
            "clean_read": read_bytes,
            "clean_written": written_bytes,
        }
        self.state.context.metrics.add(counts, {"cleans_s": spent_s})


def _decided_end(high_watermark: int, published: Published) -> int:
    """The offset below which every transaction is committed or aborted."""
    if published.first_unstable < 0:
        return high_watermark
    return min(high_watermark, published.first_unstable)


class _Pass:
    """One pass over a partition."""

    def __init__(
        self,
        cleaner: LogCleaner,
        clean_range: CleanRange,
        memory_bytes: int,
        now_ms: int,
        cuts: int,
    ) -> None:
        self._cuts = cuts  # when the bounds were read
        self._cleaner = cleaner
        self._state = cleaner.state
        self._range = clean_range
        self._now_ms = now_ms
        self._published = self._state.published()
        self._map = KeyOffsetMap(
            memory_bytes,
            decompressed_max=self._state.context.decompressed_max,
            keys=clean_range.end - clean_range.first_dirty,
        )
        aborted = self._read_aborted()
        self._learning = CompactedTransactions(aborted)
        self._cleaning = CompactedTransactions(aborted)
        self._producers = self._read_producers()
        self.passed: AddBytes = lambda count: None  # takes the bytes that were read

    def size_bytes(self) -> int:
        """The bytes that the pass reads: the dirty part for the map, then everything."""
        segments = self._sealed_below(self._range.end)
        size_bytes = 0
        for info in segments:
            size_bytes += info.size
            if info.next_offset > self._range.first_dirty:
                size_bytes += info.size
        return size_bytes

    def _sealed_below(self, end: int) -> list[SegmentInfo]:
        return [
            info
            for info in self._cleaner.lock.segments.all(self._published)[:-1]
            if info.base < end
        ]

    def _read_aborted(self) -> list[AbortedTransaction]:
        transactions: list[AbortedTransaction] = []
        for info in self._cleaner.lock.segments.all(self._published):
            rows = self._cleaner.reader.aborted.entries(info, self._published)
            transactions += [AbortedTransaction(*map(int, list(row)[1:])) for row in rows]
        return transactions

    def _read_producers(self) -> dict[int, Producer]:
        with self._state.mutex:
            return dict(self._cleaner.lock.current_producers().producers)

    def _path(self, info: SegmentInfo) -> Path:
        return file_names.segment_path(self._state.path, info.base)

    def _chunks(self, info: SegmentInfo) -> Iterator[tuple[memoryview, Batches]]:
        """The bytes and batches of a segment, checked. Raises CorruptRecordError: a damaged segment
        is not changed.
        """
        path = self._path(info)
        with files.opened(path) as fd:
            chain = Chain(gaps_allowed=True)
            walk = segment.Walk(fd, path, chain, 0, info.size)
            for data, batches in walk.chunks():
                self._cleaner.reader.epochs.check(path, batches, 0)
                yield data, batches
                self.passed(len(data))
            if walk.end != info.size or (info.digested and chain.digest != info.digest):
                problem = "the segment is not what was written"
                if walk.problem is not None:
                    problem = walk.problem.message
                raise CorruptRecordError(
                    f"cannot be compacted: {problem}", path=path, position=walk.end
                )

    # ---- the map ---------------------------------------------------------------------------------

    def fill_map(self) -> int:
        """Read the keys of the dirty part; the end of the part that the map covers."""
        for info in self._sealed_below(self._range.end):
            if info.next_offset <= self._range.first_dirty:
                continue
            for data, batches in self._chunks(info):
                has_records = self._learning.select_records(batches)
                position = int(batches["position"][0])
                with in_file(self._path(info)):
                    fits = self._map.add(
                        data,
                        batches[has_records],
                        position=position,
                        start_offset=self._range.first_dirty,
                    )
                if not fits:
                    return self._map.latest + 1
            self._map.pass_over(info.next_offset - 1)
        return self._range.end

    # ---- writing ---------------------------------------------------------------------------------

    def group_segments(self, end: int) -> list[list[SegmentInfo]]:
        """The segments to rewrite: from the log start to the one in which the pass ends."""
        config = self._state.config
        return group_segments(
            self._sealed_below(end),
            segment_bytes=config.segment_bytes,
            index_bytes=config.segment_index_bytes,
        )

    def write(self, group: list[SegmentInfo], end: int) -> tuple[SegmentInfo, bytes]:
        """Write the `.cleaned` files of a group to stable storage; their description and their
        digests.
        """
        state = self._state
        directory = state.path
        base = group[0].base
        leftovers.remove_cleaned(directory)
        self._cleaning.kept.clear()
        output = _Output(directory, base, state.config.index_interval_bytes, state.context.mode)
        for info in group:
            with in_file(self._path(info)):
                self._clean(info, output, end)
        return output.finish(group, list(self._cleaning.kept)), output.records

    def _clean(self, info: SegmentInfo, output: _Output, end: int) -> None:
        for data, batches in self._chunks(info):
            orders = self._cleaning.decide(
                batches,
                producer_history.markers_in(data, batches),
                self._producers,
                end,
                self._now_ms,
            )
            for cleaned, rows in clean(
                data,
                batches,
                orders,
                self._map,
                position=int(batches["position"][0]),
                now_ms=self._now_ms,
                delete_retention_ms=self._state.config.delete_retention_ms,
            ):
                output.add(cleaned, rows)

    def swap(
        self, group: list[SegmentInfo], new_segment: SegmentInfo, records: bytes, end: int
    ) -> bool:
        """Put the segment that was made in the place of its group; False if the pass must be
        repeated.
        """
        with self._cleaner.lock.exclusive() as locked:
            return swap.replace(
                locked,
                group,
                new_segment,
                records,
                clean_end=end,
                clean_end_before=self._range.first_dirty,
                cuts=self._cuts,
            )


class _Output:
    """A segment that is being written, as `.cleaned` files."""

    def __init__(self, directory: Path, base: int, interval_bytes: int, mode: int) -> None:
        self._directory = directory
        self._base = base
        self._mode = mode
        self._path = file_names.segment_path(directory, base, file_names.LOG + file_names.CLEANED)
        self._builder = index.Builder(base, interval_bytes)
        self._chain = Chain(gaps_allowed=True, segment_base=base)
        self._size = 0
        self._epoch = 0
        with files.opened(self._path, files.CREATE, mode) as fd:
            files.truncate(fd, 0, self._path)

    def add(self, data: memoryview, rows: Batches) -> None:
        """Append the remaining records; they are checked as a reader does before they are
        written.
        """
        if not len(data):
            return
        digest = self._chain.digest
        scanned = scan(data, self._chain, position=self._size)
        if (
            scanned.problem is not None
            or scanned.consumed != len(data)
            or len(scanned.batches) != np.count_nonzero(rows["size"])
        ):
            raise CorruptRecordError(
                "compaction made batches that cannot be read", path=self._path, position=self._size
            )
        with files.opened(self._path, files.WRITE) as fd:
            files.write_all(fd, data, self._size, self._path)
        self._builder.add(
            scanned.batches, interval_digests.digests_before(data, scanned.batches, digest)
        )
        self._epoch = int(scanned.batches["leader_epoch"][-1])
        self._size += len(data)

    @property
    def records(self) -> bytes:
        return self._builder.records()

    def finish(self, group: list[SegmentInfo], aborted: list[AbortedTransaction]) -> SegmentInfo:
        """Write the indexes, sync all files, and set the modification time of the last segment of
        the group.
        """
        builder = self._builder
        last = group[-1]
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
        oldest_ms, lateness_ms = join_times(group)
        return built_info(
            builder, self._size, last.next_offset, self._chain.digest, self._epoch
        )._replace(
            transaction_entries=len(aborted),
            created_ms=last.created_ms,
            min_timestamp=oldest_ms,
            lateness_ms=lateness_ms,
        )
