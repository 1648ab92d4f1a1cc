"""Loads a partition from its files, closed in order or not, and makes the tuple that its control
page publishes (format.md 5).

- A bad batch above the durable offset is a torn tail: copied aside, cut, reported. A load without
  the right to write describes in `Loaded.cut` what it would cut.
- A bad batch below it is corruption: an error, and no byte of the partition is changed.
- Batches after a gap are never used again: they are set aside with the cut. This holds only where
  embedlog wrote the log (`Evidence.has_no_gaps`). What others left is cut only at its end, and only
  where no batch with a valid checksum follows.
- Files change only if `Loading.write`, under the append lock, in an order that can be interrupted
  anywhere.
- An unclean recovery after a reboot, and every cut below a published end, begins a new leader
  epoch.
- A segment of others with offsets that an index cannot hold is split first (`overflow`). A load
  without the right to write reads it without indexes, and continues the log in an empty segment
  after it. Its batches must be valid, rise, end below the next segment, and not differ by one
  changed bit from an offset that continues the log.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from embedlog import index, segment
from embedlog._native import system
from embedlog._native.system import Published
from embedlog.errors import CorruptRecordError
from embedlog.format.record_batch import Batches, Chain, Problem
from embedlog.format.record_columns import LOG_OFFSET_MAX
from embedlog.hooks.callbacks import AddBytes
from embedlog.partition import leftovers
from embedlog.partition.recovery import log_epochs
from embedlog.partition.recovery import producer_history as history
from embedlog.partition.recovery.evidence import (
    BatchGaps,
    Comparison,
    Evidence,
    Loading,
    corruption_at,
)
from embedlog.partition.segment_info import built_info, info_from_files, published_of
from embedlog.storage import checkpoints, file_names, files, interval_digests
from embedlog.storage.manifest import CLOSED, DIGESTED, EMPTY_MS, GAPLESS, Manifest, SegmentInfo

logger = logging.getLogger("embedlog")

# whole: no byte had to be cut, and the next segment follows
_Examined = tuple[SegmentInfo, Published, bool]


def _times_of(info: SegmentInfo) -> tuple[int, int, int]:
    """The fields that come from the time index of a segment."""
    return info.time_entries, info.max_timestamp, info.max_timestamp_offset


@dataclass(eq=False, repr=False)
class Loaded:
    """The result of a load. The last of `segments` is the active one, as `published` describes
    it.
    """

    published: Published
    segments: list[SegmentInfo]
    epochs: checkpoints.EpochCache
    history: history.ProducerHistory
    cut: list[str] = field(default_factory=list)  # descriptions of the cuts
    epochs_differ: bool = False  # from those in the leader-epoch-checkpoint
    spent_s: float = 0.0
    recovered: bool = False  # it has records, and was not closed in order


def load(loading: Loading) -> Loaded:
    """Bring a partition into a state that can be published. Raises CorruptRecordError for damage
    below the durable offset.
    """
    began_s = monotonic()
    manifest = Manifest(loading.directory, loading.topic_id_bytes)
    manifest.refresh()
    known_segments = {} if loading.gaps_allowed else manifest.segments
    while True:
        names = leftovers.carry_out(
            loading.directory,
            known_segments,
            write=loading.write,
            broker_wrote=loading.broker_wrote,
        )
        try:
            loaded = _Loader(loading, names, manifest).run()
            break
        except _OverflowError as problem:
            logger.warning(
                "split %s: offsets exceed its base by more than 2^31 - 1, as a broker's cleaner "
                "before Kafka 1.1 left them",
                file_names.segment_path(loading.directory, problem.base),
            )
            # only old cleaners have left such segments
            from embedlog.partition.recovery import overflow

            overflow.split(
                loading.directory, problem.base, loading.mode, broker_wrote=loading.broker_wrote
            )
    loaded.recovered = not loading.clean and loaded.published.log_end > loaded.published.log_start
    loaded.spent_s = monotonic() - began_s
    return loaded


class _OverflowError(Exception):
    """A segment has to be split before the load."""

    def __init__(self, base: int) -> None:
        super().__init__(base)
        self.base = base


class _Loader:
    def __init__(self, loading: Loading, names: list[str], manifest: Manifest) -> None:
        self.loading = loading
        self.directory = loading.directory
        self.names = set(names)
        self.bases = file_names.bases(names)
        self.epochs = checkpoints.EpochCache()
        # in a set a damaged checkpoint is made again
        ignored = log_epochs.EPOCH_FILE_ERRORS if loading.in_set else ()
        with contextlib.suppress(*ignored):
            self.epochs = checkpoints.read_epochs(self.directory / file_names.EPOCHS)
        self.stored_epochs = list(self.epochs.entries)
        self.manifest = manifest
        self.evidence = Evidence(loading, manifest, names, self.epochs)
        self.cut: list[str] = []
        self.chain = Chain()
        self.seen_epochs = checkpoints.EpochCache()
        self.epochs_agree = True  # the batches that were read, with the checkpoint of a broker
        self.read_again: list[int] = []
        self.has_producers = False
        self.passed: AddBytes = lambda count: None

    def run(self) -> Loaded:
        work = self.loading.work
        size_bytes = 0
        if work:
            size_bytes = sum(self._size_of(base) for base in self.bases)
        with work.piece(size_bytes) as self.passed:
            return self._run()

    def _size_of(self, base: int) -> int:
        path = file_names.segment_path(self.directory, base)
        facts = files.facts_of(path)
        if facts is None:
            return 0
        return facts.size

    def _run(self) -> Loaded:
        self._check_range()
        self.bases = self.evidence.check_bases(self.bases)
        if not self.bases:
            self.bases = [self._begin_log()]
        segments: list[SegmentInfo] = []
        active: Published | None = None
        for number, base in enumerate(self.bases):
            is_last = number + 1 == len(self.bases)
            following = None if is_last else self.bases[number + 1]
            trusted = self.evidence.find_trusted(base, following)
            if trusted is not None and not is_last:
                segments.append(trusted)
                self.chain = Chain(trusted.next_offset, trusted.epoch)
                self.passed(trusted.size)
                continue
            info, active, is_whole = self._examine(base, following, closed=trusted)
            segments.append(info)
            if not is_whole and not is_last:
                self._drop(self.bases[number + 1 :])
                break
            if is_last and segment.overflows(base, info.next_offset):  # only a reader comes here
                info, active, _ = self._examine(info.next_offset, None, None)
                segments.append(info)
        if active is None:
            raise AssertionError("the last segment is always examined")
        return self._finish(segments, active)

    def _begin_log(self) -> int:
        base = self.evidence.log_start
        if self.loading.write:
            segment.create(self.directory, base, self.loading.mode, self.loading.allocate_bytes)
        return base

    def _check_range(self) -> None:
        """Every offset of a segment must fit an int64. Raises CorruptRecordError for a base offset
        that is too large.
        """
        if self.bases and self.bases[-1] > LOG_OFFSET_MAX:
            path = file_names.segment_path(self.directory, self.bases[-1])
            expected = f"a base offset of at most {LOG_OFFSET_MAX}"
            raise CorruptRecordError(
                "the name of a segment is no offset",
                path=path,
                expected=expected,
                found=self.bases[-1],
            )

    # ---- one segment, read -----------------------------------------------------------------------

    def _examine(self, base: int, following: int | None, closed: SegmentInfo | None) -> _Examined:
        """Read a segment: from its last index entry if it was closed in order, else all of it.
        Whole: no byte had to be cut, and the next segment follows.
        """
        path = file_names.segment_path(self.directory, base)
        has_file = path.name in self.names
        if not has_file and not self.loading.write:  # of a partition without any write yet
            empty = SegmentInfo(
                base,
                0,
                base,
                max_timestamp_offset=base,
                flags=GAPLESS | DIGESTED,
                min_timestamp=EMPTY_MS,
            )
            return empty, published_of(empty, 0, 0), True
        # of a file that was created just now the reserved bytes are not data
        size = self.evidence.size(base) if has_file else 0
        if (
            following is None
            and (self.loading.clean or closed is not None)
            and self.evidence.is_indexed(base)
        ):
            info = None
            # an index that cannot be read is made again from the log
            with contextlib.suppress(CorruptRecordError):
                info = self._read_from_last_entry(base, path, size)
            if info is not None:
                bytes_since_entry = size - self._last_position(base)
                return info, published_of(info, bytes_since_entry, info.time_entries), True
        return self._scan(base, path, size, following)

    def _last_position(self, base: int) -> int:
        path = file_names.segment_path(self.directory, base, file_names.INDEX)
        entry = index.read_end(path, index.OFFSET_ENTRY).entry
        if entry is None:
            return 0
        return entry[1]

    def _read_from_last_entry(self, base: int, path: Path, size: int) -> SegmentInfo | None:
        """The active segment after an orderly close, read from its last index entry. None if log
        and index do not agree.
        """
        paths = segment.paths(self.directory, base)
        if paths.offset_index.name not in self.names or paths.time_index.name not in self.names:
            return None
        entries, last, _ = index.read_end(paths.offset_index, index.OFFSET_ENTRY)
        start = 0
        last_offset = None
        if last is not None:
            start = last[1]
            last_offset = base + last[0]
        known_info = self.evidence.find_described(base, size)
        has_digest = known_info is not None and known_info.digested
        if last is not None and not 0 <= start < size:
            return None  # it points outside the log
        if known_info is not None and known_info.size != size:
            return None
        state: interval_digests.State | None = interval_digests.State()
        if has_digest:
            state = self._find_chain(base, entries, start)
        if state is None:
            return None  # a digest record is missing: that costs time
        if known_info is not None:
            has_gaps = not known_info.gapless
        else:
            has_gaps = self.evidence.gaps_in(base, last=True)
        expected = base if last is None else -1
        chain = Chain(expected, -1, state.digest, gaps_allowed=has_gaps)
        if size == 0:
            chain.next_offset = base
        elif not self._walk_from(path, chain, start, size, last_offset):
            return None
        if known_info is not None:
            # a full read shows what is wrong
            if chain.next_offset != known_info.next_offset:
                return None
            if has_digest and chain.digest != known_info.digest:
                return None
        described = info_from_files(self.directory, base, size, chain.next_offset)
        if described is None:
            return None
        if known_info is not None and _times_of(known_info) != _times_of(described.info):
            return None  # the time index was changed: make it again
        info = described.info._replace(epoch=max(chain.epoch, self.chain.epoch, 0), kind=CLOSED)
        if known_info is None:
            if size == 0:
                info = info._replace(flags=GAPLESS | DIGESTED, min_timestamp=EMPTY_MS)
            return info
        return info._replace(
            digest=known_info.digest,
            transaction_entries=known_info.transaction_entries,
            created_ms=known_info.created_ms,
            flags=known_info.flags,
            transaction_digest=known_info.transaction_digest,
            min_timestamp=known_info.min_timestamp,
            lateness_ms=known_info.lateness_ms,
        )

    def _find_chain(self, base: int, entries: int, start: int) -> interval_digests.State | None:
        """The chain digest at the last index entry, or at the start of the segment; None if it is
        not known.
        """
        if not entries:
            return interval_digests.State()
        with interval_digests.open_records(self.directory, base) as records:
            if records is None:
                return None
            return records.state_at(entries - 1, start)

    def _walk_from(
        self, path: Path, chain: Chain, start: int, size: int, last_offset: int | None
    ) -> bool:
        """Whether all batches from an index entry on are good, and the first one is the batch of
        the entry.
        """
        with files.opened(path) as fd:
            walk = segment.Walk(fd, path, chain, start, size)
            for heads in walk.heads():  # few: an opening does not need numpy
                if last_offset is not None:
                    if heads[0].base_offset + heads[0].last_offset_delta != last_offset:
                        return False  # the index entry is wrong: read everything
                    last_offset = None
                self.has_producers = self.has_producers or any(
                    head.producer_id >= 0 for head in heads
                )
                for head in heads:
                    self._note_epoch(head.leader_epoch, head.base_offset)
        return walk.problem is None and walk.end == size and last_offset is None

    def _scan(
        self,
        base: int,
        path: Path,
        size: int,
        following: int | None,
        agreed_walk: segment.Walk | None = None,
    ) -> _Examined:
        """Read a segment whole; if digests or epochs disagree, read it a second time up to the last
        agreement.
        """
        loading = self.loading
        is_own = not self.loading.broker_wrote
        builder = index.Builder(base, loading.interval_bytes)
        self.read_again.append(base)
        may_have_gaps = self.evidence.gaps_in(base, last=following is None)
        chain = Chain(
            max(self.chain.next_offset, base), self.chain.epoch, gaps_allowed=may_have_gaps
        )
        batch_gaps = BatchGaps(base)
        self.evidence.signs.begin(base)
        comparison = Comparison(path, self.evidence.known_parts(base))
        end = size
        if agreed_walk is not None and agreed_walk.agreed is not None:
            end = agreed_walk.agreed
        epochs = self.epochs if is_own else None
        with (
            files.opened(path) as fd,
            interval_digests.open_records(self.directory, base, usable=is_own) as records,
        ):
            walk = segment.Walk(
                fd, path, chain, 0, end, records, epochs, bounded=self.evidence.is_described(base)
            )
            for batches in walk:
                comparison.compare_batches(batches, walk.before)
                batch_gaps.add(batches)
                self.evidence.signs.add(batches)
                builder.add(batches, walk.before)
                self._note_epochs(batches)
                self.passed(int(batches["size"].sum()))
        if walk.agreed is not None:
            return self._scan(base, path, size, following, walk)
        chain.next_offset = max(chain.next_offset, base)
        self.chain = Chain(chain.next_offset, chain.epoch)
        problem = walk.problem
        if agreed_walk is not None:
            problem = agreed_walk.problem
        comparison.compare_end(walk.end, chain.digest, problem)
        if walk.end < size:
            is_proven = comparison.proven == walk.end
            self._check_torn(base, path, walk.end, size, problem, batch_gaps, proven=is_proven)
        self._check_leap(base, path, batch_gaps, following)
        overflows = segment.overflows(base, chain.next_offset)
        if overflows and loading.write:
            raise _OverflowError(base)
        if walk.end < size:
            self._cut(base, path, walk.end, size, problem)
        for gap in batch_gaps.gaps:
            self.evidence.note_gap(*gap)
        is_whole = walk.end == size and self.evidence.follows(base, chain.next_offset, following)
        if following is not None:
            builder.add_time_entry()
        if loading.write:
            builder.write(self.directory, loading.mode)
        end = chain.next_offset
        gapless = batch_gaps.gapless
        if following is not None and is_whole and end < following:
            self.evidence.note_gap(end, following)
            # its last records were compacted away
            end = following
            gapless = False
        info = self._describe_scanned(builder, walk.end, end, chain, gapless=gapless)
        if overflows:
            # what a broker has written there does not count
            info = info._replace(index_entries=0, time_entries=0)
        published = published_of(
            info, builder.bytes_since_entry, info.time_entries, builder.last_time_entry
        )
        return info, published, is_whole

    def _describe_scanned(
        self, builder: index.Builder, size: int, next_offset: int, chain: Chain, *, gapless: bool
    ) -> SegmentInfo:
        """The description of a segment that was read whole, with the best known times."""
        base = builder.base
        times: Published | SegmentInfo | index.Builder = (
            self.manifest.find_times(base, size, chain.digest) or builder
        )
        earlier = self.loading.earlier_publication
        if (
            earlier is not None
            and earlier.segment_base == base
            and earlier.segment_size == size
            and earlier.digest == chain.digest
        ):
            times = earlier  # headers rarely contain the smallest timestamp
        info = built_info(builder, size, next_offset, chain.digest, max(chain.epoch, 0))
        info = info._replace(
            flags=DIGESTED | (GAPLESS if gapless else 0),
            min_timestamp=times.min_timestamp,
            lateness_ms=times.lateness_ms,
        )
        if not self.loading.write and not self._has_times(builder):
            # a search for a time then starts at the segment's start
            info = info._replace(time_entries=0)
        return info

    def _has_times(self, builder: index.Builder) -> bool:
        """Whether the time index on disk begins with the entries that were built."""
        path = file_names.segment_path(self.directory, builder.base, file_names.TIME_INDEX)
        if path.name not in self.names:
            return False
        with files.opened(path) as fd:
            return files.pread(fd, len(builder.times), 0, path) == bytes(builder.times)

    def _note_epochs(self, batches: Batches) -> None:
        self.has_producers = self.has_producers or bool((batches["producer_id"] >= 0).any())
        bases = batches["base_offset"]
        epochs = batches["leader_epoch"]
        if self.loading.broker_wrote and self.epochs_agree:
            self.epochs_agree = self.epochs.find_disagreement(bases, epochs) is None
        for epoch, base in zip(epochs.tolist(), bases.tolist(), strict=True):
            self._note_epoch(epoch, base)

    def _note_epoch(self, epoch: int, base: int) -> None:
        if epoch not in (checkpoints.NO_EPOCH, self.seen_epochs.latest_epoch):
            self.seen_epochs.assign(epoch, base)

    # ---- damage ----------------------------------------------------------------------------------

    def _check_torn(
        self,
        base: int,
        path: Path,
        end: int,
        size: int,
        problem: Problem | None,
        batch_gaps: BatchGaps,
        *,
        proven: bool,
    ) -> None:
        """Bytes from `end` on may be cut only if none of them can be durable. Raises
        CorruptRecordError.

        An orderly close leaves no torn bytes, except after the known part of the segment
        (`proven`). A torn write makes no batch of lower offsets with a valid checksum. Where
        offsets may be missing, such a batch means that its own offset is damaged, or the one before
        it, which has_gap. A torn write also makes no offset that is outside the range of the
        segment.
        """
        durable = self.evidence.end
        lost_from = self.chain.next_offset
        is_torn = not self.loading.clean or proven or lost_from == self.loading.recovery_point > 0
        if problem is not None and not problem.torn:
            is_torn = False
        if is_torn and lost_from >= durable and self.evidence.gaps_in(base, last=False):
            next_offset = self._offset_at(path, end, size)
            lowest = lost_from if batch_gaps.has_gap else durable
            is_torn = next_offset is None or next_offset >= lowest
        if is_torn and not self.evidence.has_no_gaps:
            is_torn = base == self.bases[-1] and segment.has_batch(path, end, size) is False
        if lost_from >= durable and is_torn:
            return
        raise corruption_at(
            path,
            end,
            problem,
            message="the file ends inside a batch that was durable",
            expected=f"offsets up to {durable}",
            found=f"none from {lost_from} on",
        )

    def _check_leap(
        self, base: int, path: Path, batch_gaps: BatchGaps, following: int | None
    ) -> None:
        """Offsets that leave the range of a segment must be those that were written. Raises
        CorruptRecordError.
        """
        leap = batch_gaps.leap
        if leap is None or not segment.overflows(base, leap.end):
            return
        overlaps = following is not None and leap.end > following
        if overlaps or (leap.is_damage(base) and leap.found >= self.evidence.end):
            expected = f"offset {leap.expected}"
            if following is not None:
                expected = f"an offset below {following}"
            raise CorruptRecordError(
                f"{segment.LEAPT}; {checkpoints.WAY_OUT}",
                path=path,
                position=leap.position,
                expected=expected,
                found=leap.found,
            )

    def _cut(self, base: int, path: Path, end: int, size: int, problem: Problem | None) -> None:
        lost_from = self.chain.next_offset
        reason = "the file ends inside a batch"
        if problem is not None:
            reason = problem.message
        self.cut.append(
            f"{path}: {size - end} bytes from byte {end} on, offset {lost_from}: {reason}"
        )
        if self.loading.write:
            logger.warning(
                "cut a torn tail of %d bytes at byte %d of %s (offset %d): %s",
                size - end,
                end,
                path,
                lost_from,
                reason,
            )
            copy = self.directory / f"{file_names.CUT}{base:020d}-{end}"
            segment.copy_aside(path, end, size, copy, self.loading.mode)
            with files.opened(path, files.WRITE) as fd:
                files.truncate(fd, end, path)

    def _drop(self, following: list[int]) -> None:
        """Set aside the segments after a gap; they are never read again."""
        for base in following:
            path = file_names.segment_path(self.directory, base)
            self.cut.append(f"{path}: the whole file, because it is after a gap")
            if base < self.evidence.end or not self.evidence.has_no_gaps:
                raise CorruptRecordError(
                    "a segment does not follow on the one before, and nothing shows that it was "
                    "never on stable storage",
                    path=path,
                    expected=f"base offset {self.chain.next_offset}",
                    found=base,
                )
            if self.loading.write:
                logger.warning("set aside %s: it is after a gap", path)
                files.rename(path, self.directory / f"{file_names.CUT}{base:020d}-0")
                segment.set_aside(self.directory, base)

    @staticmethod
    def _offset_at(path: Path, position: int, size: int) -> int | None:
        """The base offset of the batch at a position, if its checksum is right."""
        with files.opened(path) as fd:
            for batches in segment.Walk(fd, path, Chain(gaps_allowed=True), position, size):
                return int(batches["base_offset"][0])
        return None

    # ---- the end ---------------------------------------------------------------------------------

    def _complete_epochs(self, active: Published, first_base: int, start: int) -> None:
        """Bring the epochs up to the end of the log, from its `start` on, with a new one if records
        may be lost.
        """
        loading = self.loading
        end = active.log_end
        if loading.in_set:
            whole = active._replace(log_start=start)
            self.epochs, _ = log_epochs.read_or_make(
                self.directory, whole, digests=loading.write and not loading.broker_wrote
            )
        # before the cut: an epoch that was read is never used again
        seen_epoch = max(self.epochs.latest_epoch, active.epoch)
        self._take_seen_epochs()
        seen_epoch = max(self.epochs.latest_epoch, seen_epoch)
        self.epochs.truncate_from_end(end)
        if self._needs_epoch(end, first_base):
            self.epochs.assign(seen_epoch + 1, end)
        elif self.epochs.latest_epoch < seen_epoch and (seen_epoch > 0 or loading.in_set):
            # of removed records; in a set it may be a promise (QUORUM-3)
            self.epochs.assign(seen_epoch, end)
        elif self.epochs.latest_epoch < 0:
            self.epochs.assign(0, first_base)
        self.epochs.truncate_from_start(start)

    def _take_seen_epochs(self) -> None:
        """Complete the epochs by those of the batches that were read; a checkpoint of a broker that
        differs is replaced.
        """
        if not self.epochs_agree:
            self.epochs.truncate_from_end(min(self.read_again))
        for epoch, start in self.seen_epochs.entries:
            latest = self.epochs.latest
            if latest is None or (epoch > latest[0] and start >= latest[1]):
                self.epochs.assign(epoch, start)

    def _check_durable_end(self, active: Published) -> None:
        if active.log_end < self.evidence.end:
            raise CorruptRecordError(
                "the log ends before the durable end",
                path=file_names.segment_path(self.directory, active.segment_base),
                expected=f"a log end of at least {self.evidence.end}",
                found=active.log_end,
            )

    def _needs_epoch(self, end: int, first_base: int) -> bool:
        """Whether records may be lost that others have read: offsets from `end` on are then given
        anew in a new epoch.
        """
        loading = self.loading
        if loading.in_set:
            return False
        if loading.earlier_publication is not None:
            return end < loading.earlier_publication.log_end
        return not loading.clean and (loading.was_marked_dirty or end > first_base)

    def _purged_to(self, active: Published) -> int:
        """In a set, the offset below which compaction may have removed records: the page of before
        had it (REPLICA-20).
        """
        loading = self.loading
        earlier = self.loading.earlier_publication
        if not loading.in_set or not loading.gaps_allowed:
            return 0
        if earlier is None:
            return active.segment_base
        if earlier.generation % 2 == 0:
            return earlier.purged_to
        return max(earlier.purged_to, active.segment_base)  # a swap was interrupted

    def _finish(self, segments: list[SegmentInfo], active: Published) -> Loaded:
        loading = self.loading
        log_start = self.evidence.log_start
        end = active.log_end
        if end < log_start:
            raise CorruptRecordError(
                "the log ends before its start",
                path=self.directory,
                expected=f"a log end of at least {log_start}",
                found=end,
            )
        self._check_durable_end(active)
        self.evidence.report_gaps([info.base for info in segments if info.size])
        start = max(log_start, segments[0].base)
        self._complete_epochs(active, segments[0].base, start)
        # the index of the active segment is continued, so it must be complete
        if not history.is_index_valid(self.directory, segments[-1]):
            self.read_again = [*self.read_again, segments[-1].base]
            self.has_producers = True
        past = history.load(
            self.directory,
            segments,
            end=end,
            clean=loading.clean,
            read_again=self.read_again,
            replay=self.has_producers,
        )
        past.state.expire(system.wall_ms(), loading.producer_expiration_ms)
        segments[:] = [
            history.with_index(self.directory, info, past, last=info is segments[-1])
            for info in segments
        ]
        published = active._replace(
            transaction_entries=segments[-1].transaction_entries,
            transaction_digest=segments[-1].transaction_digest,
            log_start=start,
            epoch=max(self.epochs.latest_epoch, 0),
            purged_to=self._purged_to(active),
            first_timestamp=segment.first_batch_max_timestamp(
                self.directory, active.segment_base, active.segment_size
            ),
            first_unstable=past.state.first_unstable(end),
        )
        return Loaded(
            published,
            segments,
            self.epochs,
            past,
            cut=self.cut,
            epochs_differ=self.epochs.entries != self.stored_epochs,
        )
