"""The evidence for a load: what manifest, control page and durable record require of the files,
before the log is read.

- Bytes that were on stable storage, or published into a page cache that still exists, must be in
  the files. Missing bytes are damage, never a torn tail.
- A segment is only appended to, so its known first bytes stay valid; they are compared when they
  are read.
- After a broker may have changed files (`Loading.broker_wrote`) older knowledge counts only where
  the files agree with it.
- Offsets are consecutive except where compaction or a broker left gaps; an unexplained gap is named
  in a warning.
- Readers and writers, in place or in a copy, use the same evidence; the control page of a copy does
  not count.
- Segments below the first one are deleted, not missing, if a checkpoint proves it. A killed broker
  leaves no mark, but has truncated the leader epochs to the new log start. The manifest stores a
  start of ours before the checkpoints do.
- What is not known proves nothing. Only a manifest, or the mark of a first process that never
  synced, shows that a log is embedlog's and has no gaps: then a segment behind a gap is the remains
  of a lost page cache. In any other log the offsets between two segments were removed by a
  compaction, and a whole later segment is never a tail. In a directory that a broker has used the
  mark proves nothing: manifest and durable record can be lost, and the log be the broker's.
"""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from embedlog import segment
from embedlog._native.lazy_numpy import np
from embedlog._native.system import Published
from embedlog.errors import CorruptRecordError
from embedlog.format.record_batch import Chain, Problem
from embedlog.format.record_columns import RELATIVE_MAX, Batches
from embedlog.hooks.callbacks import Work
from embedlog.partition import leftovers
from embedlog.partition.segment_info import info_from_files, transactions_in
from embedlog.storage import checkpoints, file_names, files, interval_digests
from embedlog.storage.manifest import DIGESTED, GAPLESS, Manifest, SegmentInfo

if TYPE_CHECKING:
    from numpy.typing import NDArray

logger = logging.getLogger("embedlog")


GAPS_REPORTED_MAX: Final = 3  # a compacted topic has many


class Loading(NamedTuple):
    """The arguments of a load. `earlier_publication`: what an earlier page published in this boot.
    `known_durable`: the durable offset before.
    """

    directory: Path
    topic_id_bytes: bytes
    work: Work  # the progress of loads
    clean: bool = False  # the directory was closed in order, by embedlog or a broker
    write: bool = True
    recovery_point: int = 0
    log_start: int = 0
    earlier_publication: Published | None = None
    known_durable: int = 0
    interval_bytes: int = 4096
    mode: int = 0o666
    allocate_bytes: int = 0  # `preallocate`: bytes that a new segment reserves
    gaps_allowed: bool = False  # the topic is compacted
    # a broker wrote here after the last embedlog process: the manifest may be outdated
    broker_wrote: bool = False
    producer_expiration_ms: int = 1 << 62  # producers that were idle for longer are dropped
    # the DIRTY mark was there: a process had begun to write, even if no record survived
    was_marked_dirty: bool = False
    visited: bool = False  # a broker has ever used the directory
    # the directory belongs to a set: recovery begins no epoch and keeps the newest one (REPLICA-17)
    in_set: bool = False


class KnownPart(NamedTuple):
    """Known first bytes of a segment. `must`: they are in the file, or the disk has lost confirmed
    data.
    """

    size: int
    next_offset: int
    digest: int | None
    gapless: bool
    must: bool


class Evidence:
    """The evidence for one partition. Threads: one."""

    def __init__(
        self, loading: Loading, manifest: Manifest, names: list[str], epochs: checkpoints.EpochCache
    ) -> None:
        self.loading = loading
        self._names = set(names)
        self._epochs = epochs
        # the first offset that is missing, and the first one after the gap
        self._gaps: list[tuple[int, int]] = []
        self.signs = segment.CompactionSigns()
        self._directory = loading.directory
        self._manifest = manifest
        own = not loading.broker_wrote
        self._known = manifest.segments if own else {}
        self._closed = manifest.closed if own else None
        self._start = manifest.start if own else None
        earlier = loading.earlier_publication
        closed = self._closed
        # The required end: the files must have all records below it. Not all of them need have been
        # durable: within one boot what an earlier page has published must be there, too
        self.end = max(loading.recovery_point, loading.known_durable)
        if earlier is not None:
            self.end = max(self.end, earlier.log_end)
        if closed is not None:
            self.end = max(self.end, closed.next_offset)
        self.log_start = loading.log_start
        if self._start is not None:
            self.log_start = self._start.offset
        # the first sync of a log includes its manifest
        never_synced = loading.was_marked_dirty and self.end == 0 and not loading.visited
        # of any other log it is not known
        self.has_no_gaps = own and (self._start is not None or never_synced)

    # ---- which segments there are ----------------------------------------------------------------

    def check_bases(self, bases: list[int]) -> list[int]:
        """The segments that belong to the log, rising. Raises CorruptRecordError if one is missing
        at either end.
        """
        loading = self.loading
        closed = self._closed
        if not bases and self.end > self.log_start:
            raise self._missing_error(
                self.log_start, f"a log end of at least {self.end}", "no segment"
            )
        if bases:
            self._check_first(bases[0])
            bases = self._above_start(bases)
        if closed is None or not loading.clean:
            return bases
        excess_bases = [base for base in bases if base > closed.base]
        for base in excess_bases:
            if segment.size_of(self._directory, base):
                path = file_names.segment_path(self._directory, base)
                raise CorruptRecordError(
                    "a segment after the log end",
                    path=path,
                    expected=f"none above {closed.base}",
                    found=base,
                )
        if excess_bases and loading.write:
            logger.warning(
                "set aside empty segments after the end of %s: %s", self._directory, excess_bases
            )
            for base in excess_bases:
                segment.set_aside(self._directory, base)
        return [base for base in bases if base <= closed.base]

    def _check_first(self, first: int) -> None:
        """Compare the first segment with the noted log start: retention removes only segments below
        it.
        """
        loading = self.loading
        start = self._start
        if start is None:
            described = self._known.values() if loading.clean else ()
            missing_bases = [
                info.base
                for info in described
                if info.base < first and info.next_offset > loading.log_start
            ]
            if missing_bases:
                expected = f"a log from offset {loading.log_start} on"
                raise self._missing_error(min(missing_bases), expected, f"offset {first}")
            return
        if first > start.offset and self._deleted_by_others(first):
            self.log_start = max(first, loading.log_start)
        elif first > start.offset:
            expected = f"a log from offset {start.offset} on"
            raise self._missing_error(start.offset, expected, f"offset {first}")
        elif loading.log_start > start.offset and not self._manifest.is_whole:
            self.log_start = loading.log_start  # the manifest lost its end with the newer start
        elif loading.log_start > start.offset and not loading.in_set:
            # a replica may begin again below
            raise CorruptRecordError(
                f"{file_names.LOG_STARTS} and the manifest, which is written first, differ on "
                "where the log starts:"
                " remove the one that is wrong",
                path=self._directory / file_names.MANIFEST,
                expected=f"offset {loading.log_start}",
                found=f"offset {start.offset}",
            )

    def _deleted_by_others(self, first: int) -> bool:
        """Whether a checkpoint agrees with the files that the log starts in its first segment."""
        loading = self.loading
        epochs = self._epochs.entries
        if loading.clean:
            return loading.log_start == first
        return loading.log_start >= first or bool(epochs and epochs[0][1] == first)

    def _above_start(self, bases: list[int]) -> list[int]:
        """All but the segments that retention was removing before a crash."""
        if self._start is None or self.loading.clean:
            return bases
        deletable = leftovers.segments_below(bases, self.log_start)
        if deletable and self.loading.write:
            logger.info("set aside segments below the start of %s: %s", self._directory, deletable)
            for base in deletable:
                segment.set_aside(self._directory, base)
        return bases[len(deletable) :]

    def _missing_error(self, base: int, expected: str, found: str) -> CorruptRecordError:
        path = file_names.segment_path(self._directory, base)
        return CorruptRecordError("a segment is missing", path=path, expected=expected, found=found)

    # ---- what need not be read -------------------------------------------------------------------

    def find_trusted(self, base: int, following: int | None) -> SegmentInfo | None:
        """The description of a segment that need not be read: unchanged since, or left by an
        orderly close.
        """
        loading = self.loading
        size = self.size(base)
        info = self._manifest.segments.get(base)
        closed = self._manifest.closed
        is_indexed = self.is_indexed(base)
        if following is None:
            if closed is None or closed.base != base or closed.size != size or not is_indexed:
                return None
            return self._limit_description(closed)
        is_proven = loading.clean or following <= self.end
        if (
            info is not None
            and info.size == size
            and info.next_offset == following
            and is_indexed
            and is_proven
        ):
            return self._limit_description(info)
        if following - base > RELATIVE_MAX + 1:
            return None  # a cleaner of an old broker may have left offsets that no index holds
        if not is_proven:
            return None
        if info is not None and not loading.broker_wrote:
            self._check_sealed(info, size, following)
        if is_indexed:
            with contextlib.suppress(CorruptRecordError):
                return self._describe_files(base, size, following)
        return None

    def size(self, base: int) -> int:
        """Bytes of a segment, 0 if it is not there. Raises CorruptRecordError for more than a
        position can address.
        """
        path = file_names.segment_path(self._directory, base)
        facts = files.facts_of(path)
        size = facts.size if facts else 0
        if size > segment.LOG_BYTES_MAX:
            expected = f"at most {segment.LOG_BYTES_MAX} bytes"
            raise CorruptRecordError(
                "a segment is too large", path=path, expected=expected, found=size
            )
        return size

    def is_indexed(self, base: int) -> bool:
        """Whether the index and its digests are there: one read of the segment now is cheaper than
        one for each seek.
        """
        if file_names.file_name(base, file_names.INDEX) not in self._names:
            return False
        info = self._manifest.segments.get(base)
        closed = self._manifest.closed
        if closed is not None and closed.base == base:
            info = closed
        if info is None or not info.digested or not info.index_entries:
            return True
        if not self.loading.write or self.loading.broker_wrote:
            return True  # the digests are not used, or not written again
        return file_names.file_name(base, file_names.DIGESTS) in self._names

    def transactions_in(self, base: int) -> int:
        """Entries of the transaction index of a segment, by the size of the file."""
        return transactions_in(self._directory, base)

    def _limit_description(self, info: SegmentInfo) -> SegmentInfo:
        """A known description, as far as it still holds: a broker's cleaner may write other headers
        of the same size.
        """
        if not self.loading.broker_wrote:
            return info
        # if too many entries are expected, the index is made again from the log
        entries = max(info.transaction_entries, self.transactions_in(info.base))
        return info._replace(
            flags=info.flags & ~DIGESTED, transaction_entries=entries, transaction_digest=0
        )

    def _check_sealed(self, info: SegmentInfo, size: int, following: int) -> None:
        """A sealed segment has its noted size, and the next segment is there. Raises
        CorruptRecordError.

        Without an orderly close it may be longer: a crash undid its sealing, and the record of the
        second sealing is lost.
        """
        if size < info.size or (size > info.size and self.loading.clean):
            path = file_names.segment_path(self._directory, info.base)
            fault = "short" if size < info.size else "long"
            raise CorruptRecordError(
                f"a sealed segment is too {fault}",
                path=path,
                position=size,
                expected=info.size,
                found=size,
            )
        must_join = self._start is not None or (info.gapless and not self.loading.gaps_allowed)
        if size == info.size and info.next_offset < following and must_join:
            raise self._missing_error(
                info.next_offset, f"offset {info.next_offset}", f"offset {following}"
            )

    def _describe_files(self, base: int, size: int, following: int) -> SegmentInfo | None:
        """A sealed segment that an orderly broker left; None if its last time-index entry is
        wrong.
        """
        description = info_from_files(self._directory, base, size, following)
        if description is None:
            return None
        epoch = self._epochs.epoch_for(following - 1) if following > base else -1
        if description.end is not None:
            self.note_gap(description.end, following)
        return description.info._replace(epoch=max(epoch, 0))

    def find_described(self, base: int, size: int) -> SegmentInfo | None:
        """The description of the whole last segment; after a broker only if the size is
        unchanged.
        """
        closed = self._manifest.closed
        info = self._known.get(base)
        if closed is not None and closed.base == base:
            info = closed
        if info is None or not self.loading.broker_wrote:
            return info
        if info.size != size:
            return None
        return self._limit_description(info)

    # ---- what is compared while a segment is read --------------------------------------------------

    def known_parts(self, base: int) -> list[KnownPart]:
        """The known first bytes of a segment, the longest last."""
        is_strict = self._start is not None
        clean = self.loading.clean
        closed = self._closed
        parts = []
        info = self._known.get(base)
        # else a cut may have followed: only a manifest with a START record describes no cut bytes
        if info is not None and (is_strict or closed is None or closed.base != base):
            parts.append(_known_part(info, info.next_offset <= self.end and (is_strict or clean)))
        if closed is not None and closed.base == base:
            parts.append(_known_part(closed, is_strict or clean))
        earlier = self.loading.earlier_publication
        if earlier is not None and earlier.segment_base == base:
            digest = earlier.digest if earlier.flags & DIGESTED else None
            gapless = bool(earlier.flags & GAPLESS)
            part = KnownPart(earlier.segment_size, earlier.log_end, digest, gapless, must=True)
            parts.append(part)
        return sorted(parts, key=lambda part: (part.size, part.must))

    def is_described(self, base: int) -> bool:
        """Whether embedlog has described the segment, or the log has no gaps: then its name bounds
        its offsets.
        """
        return (
            self.has_no_gaps
            or base in self._known
            or (self._closed is not None and self._closed.base == base)
        )

    def gaps_in(self, base: int, *, last: bool) -> bool:
        """Whether offsets may be missing in a segment."""
        if self.loading.broker_wrote:
            return True
        parts = self.known_parts(base)
        start = self._start
        if parts:
            return not parts[-1].gapless
        if start is None or start.gaps_base == base:
            return True
        return self.loading.gaps_allowed and not last

    def follows(self, base: int, end: int, following: int | None) -> bool:
        """Whether the next segment follows on this one: a power loss may keep a later file and lose
        an earlier one.
        """
        if following is None or end == following:
            return True
        info = self._known.get(base)
        if self._start is not None and info is not None:
            may_have_gap = not info.gapless and info.next_offset == following
        else:
            may_have_gap = (
                self.loading.gaps_allowed
                or not self.has_no_gaps
                or (info is not None and not info.gapless)
            )
        return may_have_gap and end < following

    def note_gap(self, end: int, following: int) -> None:
        """Note missing offsets: the changes of a broker are not known."""
        if end < following and not self.has_no_gaps and not self.loading.gaps_allowed:
            self._gaps.append((end, following))

    def report_gaps(self, bases: list[int]) -> None:
        """Warn of missing offsets that nothing explains. `bases` are the segments, of which some
        were not read.
        """
        if not self._gaps or self._is_compacted(bases):
            return
        for end, following in self._gaps[:GAPS_REPORTED_MAX]:
            logger.warning(
                "%s: offsets %d to %d are missing, and there is no sign of a compaction",
                self._directory,
                end,
                following - 1,
            )

    def _is_compacted(self, bases: list[int]) -> bool:
        """Whether any batch shows a compaction. The segments are read up to the first one with such
        a batch.
        """
        return self.signs.found or any(self._shows_compaction(base) for base in bases)

    def _shows_compaction(self, base: int) -> bool:
        path = file_names.segment_path(self._directory, base)
        self.signs.begin(base)
        with files.opened(path) as fd:
            size = self.size(base)
            walk = segment.Walk(fd, path, Chain(gaps_allowed=True), 0, size, bounded=False)
            for batches in walk:
                self.signs.add(batches)
        return self.signs.found


def corruption_at(
    path: Path, end: int, problem: Problem | None, *, message: str, expected: str, found: str
) -> CorruptRecordError:
    """The error for a file whose good batches end at byte `end`: what the scan says of the problem
    there, or the given facts where it says nothing.
    """
    if problem is None:
        return CorruptRecordError(message, path=path, position=end, expected=expected, found=found)
    return CorruptRecordError(
        problem.message,
        path=path,
        position=problem.position,
        expected=expected if problem.expected is None else problem.expected,
        found=found if problem.found is None else problem.found,
    )


def _known_part(info: SegmentInfo, must: bool) -> KnownPart:
    digest = info.digest if info.digested else None
    return KnownPart(info.size, info.next_offset, digest, info.gapless, must)


class BatchGaps:
    """The gaps between the batches of a segment."""

    def __init__(self, base: int) -> None:
        self.gapless = True
        self.has_gap = False  # whether offsets are missing before the last batch
        self.gaps: list[tuple[int, int]] = []  # the first ones: missing from, to
        self.leap: segment.Leap | None = None  # to the last batch
        self._end = base

    def add(self, batches: Batches) -> None:
        bases = batches["base_offset"]
        ends = bases + batches["last_offset_delta"] + 1
        before = np.concatenate(([self._end], ends[:-1]))
        leaps = np.flatnonzero(bases != before)
        self.gapless = self.gapless and not len(leaps)
        self.has_gap = bool(len(leaps)) and int(leaps[-1]) == len(bases) - 1
        if len(self.gaps) < GAPS_REPORTED_MAX:
            self.gaps += [(int(before[row]), int(bases[row])) for row in leaps[:GAPS_REPORTED_MAX]]
        self._end = int(ends[-1])
        self.leap = segment.Leap(
            int(batches["position"][-1]), int(before[-1]), int(bases[-1]), self._end
        )


class Comparison:
    """Compares the known first bytes of a segment while it is read."""

    def __init__(self, path: Path, parts: list[KnownPart]) -> None:
        self._path = path
        self._parts = list(parts)  # that were not compared yet, the shortest first
        self.proven = -1  # the end of the longest known part that was found unchanged

    def compare_batches(self, batches: Batches, before: NDArray[np.uint64]) -> None:
        """Compare at these batches; `before`: the chain digest before each. Raises
        CorruptRecordError.
        """
        positions = batches["position"]
        while self._parts and self._parts[0].size <= positions[-1]:
            part = self._parts.pop(0)
            row = int(np.searchsorted(positions, part.size))
            digest = None
            if positions[row] == part.size:
                digest = int(before[row])
            self._compare(part, digest, always=False)

    def compare_end(self, end: int, digest: int, problem: Problem | None) -> None:
        """Compare where the good batches end. Raises CorruptRecordError."""
        for part in self._parts:
            if part.size == end:
                self._compare(part, digest, always=True)
            elif part.size > end and part.must:
                raise self._missing_bytes(part, end, problem)

    def _missing_bytes(
        self, part: KnownPart, end: int, problem: Problem | None
    ) -> CorruptRecordError:
        return corruption_at(
            self._path,
            end,
            problem,
            message="the file ends inside a batch, or before it",
            expected=f"offsets up to {part.next_offset - 1}, in {part.size} bytes",
            found=f"good batches up to byte {end}",
        )

    def _compare(self, part: KnownPart, digest: int | None, *, always: bool) -> None:
        if (part.digest is None and digest is not None) or part.digest == digest:
            self.proven = part.size
        elif part.must or always:
            found = "no batch that begins here"
            if digest is not None:
                found = f"{digest:016x}"
            raise CorruptRecordError(
                interval_digests.OTHERS,
                path=self._path,
                position=part.size,
                expected=f"digest {part.digest or 0:016x}",
                found=found,
            )
