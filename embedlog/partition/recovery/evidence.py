"""What must be found in a partition's files: what manifest, control page and durable record say before the log is read.

P1  what was put on stable storage, or published into the page cache that is still there, must be there: less is damage, and
    never cut as a torn tail
P2  a segment is only ever appended to: what was known of its first bytes stays true, and is compared when they are read
P3  of what a broker may have changed since (`Loading.foreign`) only what the files themselves agree with is believed
P4  offsets follow on each other but where compaction or a broker left gaps; a gap that nothing explains is named in a warning
P5  who reads and who writes, in place or in a copy, go by the same evidence; a copy has no page that counts
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from embedlog import index, segment
from embedlog._native import system
from embedlog._native.system import Published
from embedlog.errors import CorruptRecordError
from embedlog.format.record_batch import Problem
from embedlog.format.record_columns import BATCH, Batches
from embedlog.partition.segment_info import info_from_files, transactions_in
from embedlog.storage import checkpoints, file_names, files, interval_digests
from embedlog.storage.manifest import DIGESTED, GAPLESS, Manifest, SegmentInfo

logger = logging.getLogger("embedlog")

_HEADERS_AT_ONCE: Final = 64
GAPS_NAMED_MAX: Final = 3  # a topic that was compacted once has many


@dataclass(frozen=True)
class Loading:
    """What a loader is told. `floor` is what an earlier page published in this boot; `known_durable` what was synced before."""

    directory: Path
    topic_id: bytes
    clean: bool = False  # an orderly shutdown left this directory, ours or a broker's
    write: bool = True
    recovery_point: int = 0
    log_start: int = 0
    floor: Published | None = None
    known_durable: int = 0
    interval_bytes: int = 4096
    mode: int = 0o666
    allocate_bytes: int = 0  # `preallocate`: what a new segment reserves
    gaps_allowed: bool = False  # the topic is compacted
    foreign: bool = False  # somebody else wrote here since we last did: what we remember of the files may be out of date
    producer_expiration_ms: int = 1 << 62  # producers that were idle for longer are not taken over
    begun: bool = False  # the DIRTY mark was there: somebody had begun to write, even if nothing of it came back


class Point(NamedTuple):
    """The first bytes of a segment as they are known. `must`: they are there, or the disk has lost what it had confirmed."""

    size: int
    next_offset: int
    digest: int | None
    gapless: bool
    must: bool


class Evidence:
    """What is known of one partition. Threads: one."""

    def __init__(self, loading: Loading, manifest: Manifest, names: list[str], epochs: checkpoints.EpochCache) -> None:
        self.loading, self._names, self._epochs = loading, set(names), epochs
        self._gaps_named = 0
        self._directory, self._manifest = loading.directory, manifest
        own = not loading.foreign
        self._known = manifest.segments if own else {}
        self._closed = manifest.closed if own else None
        self._start = manifest.start if own else None
        floor, closed = loading.floor, self._closed
        published = floor.log_end if floor is not None else 0
        self.end = max(loading.recovery_point, loading.known_durable, published, closed.next_offset if closed is not None else 0)
        self.log_start = loading.log_start if self._start is None else self._start.offset

    # ---- which segments there are ----------------------------------------------------------------

    def check_bases(self, bases: list[int]) -> list[int]:
        """The segments that belong to the log, rising. Raises CorruptRecordError if one is missing at either end."""
        loading, closed = self.loading, self._closed
        if not bases and self.end > self.log_start:
            raise self._missing(self.log_start, f"a log end of at least {self.end}", "no segment")
        if bases:
            self._check_first(bases[0])
            bases = self._above_start(bases)
        if closed is None or not loading.clean:
            return bases
        strays = [base for base in bases if base > closed.base]
        for base in strays:
            if segment.size_of(self._directory, base):
                path = file_names.segment_path(self._directory, base)
                raise CorruptRecordError(
                    "a segment behind the log's end", path=path, expected=f"none above {closed.base}", found=base
                )
        if strays and loading.write:
            logger.warning("set aside empty segments behind the end of %s: %s", self._directory, strays)
            for base in strays:
                segment.set_aside(self._directory, base)
        return [base for base in bases if base <= closed.base]

    def _check_first(self, first: int) -> None:
        """What retention removed lies below the noted start; what is gone above it was not removed by us."""
        loading, start = self.loading, self._start
        if start is None:
            known = self._known.values() if loading.clean else ()
            gone = [info.base for info in known if info.base < first and info.next_offset > loading.log_start]
            if gone:
                raise self._missing(min(gone), f"a log from offset {loading.log_start} on", f"offset {first}")
            return
        if loading.log_start > start.offset and loading.log_start == first:
            self.log_start = first  # two that agree: another version removed what lies before
        elif first > start.offset:
            raise self._missing(start.offset, f"a log from offset {start.offset} on", f"offset {first}")
        elif loading.log_start > start.offset and not self._manifest.whole:
            self.log_start = loading.log_start  # the manifest lost its end, and with it the newer start
        elif loading.log_start > start.offset:
            raise CorruptRecordError(
                f"{file_names.LOG_STARTS} and the manifest, which is written first, differ on where the log starts:"
                " remove the one that is wrong",
                path=self._directory / file_names.MANIFEST,
                expected=f"offset {loading.log_start}",
                found=f"offset {start.offset}",
            )

    def _above_start(self, bases: list[int]) -> list[int]:
        """All but the segments that retention was about to remove when a crash came: what is left of them is not missed.

        They were perhaps never synced, so they can be torn or have holes, and the log goes on above them.
        """
        if self._start is None or self.loading.clean:
            return bases
        doomed = [base for base, following in pairwise(bases) if following <= self.log_start]
        if doomed and self.loading.write:
            logger.info("set aside segments below the start of %s: %s", self._directory, doomed)
            for base in doomed:
                segment.set_aside(self._directory, base)
        return bases[len(doomed) :]

    def _missing(self, base: int, expected: str, found: str) -> CorruptRecordError:
        path = file_names.segment_path(self._directory, base)
        return CorruptRecordError("a segment is missing", path=path, expected=expected, found=found)

    # ---- what need not be read -------------------------------------------------------------------

    def trusted(self, base: int, following: int | None) -> SegmentInfo | None:
        """What is known of a segment that need not be read: ours and unchanged, or left by an orderly shutdown."""
        loading = self.loading
        size = self.size(base)
        info, closed, indexed = self._manifest.segments.get(base), self._manifest.closed, self.indexed(base)
        if following is None:
            usable = closed is not None and closed.base == base and closed.size == size and indexed
            return self._remembered(closed) if closed is not None and usable else None
        below = following <= self.end
        if info is not None and info.size == size and info.next_offset == following and indexed and (loading.clean or below):
            return self._remembered(info)
        if not loading.clean and not below:
            return None
        if info is not None and not loading.foreign:
            self._check_sealed(info, size, following)
        with contextlib.suppress(CorruptRecordError):
            return self._from_files(base, size, following) if indexed else None
        return None

    def size(self, base: int) -> int:
        """Bytes of a segment, 0 if it is not there. Raises CorruptRecordError for more than positions in it can count."""
        path = file_names.segment_path(self._directory, base)
        found = files.facts_of(path)
        size = found.size if found else 0
        if size > segment.BATCH_BYTES_MAX:
            expected = f"at most {segment.BATCH_BYTES_MAX} bytes"
            raise CorruptRecordError("a segment is larger than any can be", path=path, expected=expected, found=size)
        return size

    def indexed(self, base: int) -> bool:
        """The index is there, and the digests that go with it: better read a segment once now than at each seek."""
        closed = self._manifest.closed
        info = closed if closed is not None and closed.base == base else self._manifest.segments.get(base)
        needed = info is not None and info.digested and info.index_entries and self.loading.write and not self.loading.foreign
        return {
            file_names.file_name(base, each) for each in (file_names.INDEX, file_names.DIGESTS)[: 2 if needed else 1]
        } <= self._names

    def transactions_in(self, base: int) -> int:
        """Entries of a segment's transaction index, by its size."""
        return transactions_in(self._directory, base)

    def _remembered(self, info: SegmentInfo) -> SegmentInfo:
        """What we know of a segment, as far as it holds: a broker's cleaner may write other heads into as many bytes."""
        if not self.loading.foreign:
            return info
        entries = max(info.transaction_entries, self.transactions_in(info.base))  # too many: it is made again from the log
        return info._replace(flags=info.flags & ~DIGESTED, transaction_entries=entries, transaction_digest=0)

    def _check_sealed(self, info: SegmentInfo, size: int, following: int) -> None:
        """A segment that we sealed is as long as it was, and the one behind it is there. Raises CorruptRecordError.

        Without an orderly close it may be longer: it was sealed, a crash undid that, and the second sealing's record is lost.
        """
        if size < info.size or (size > info.size and self.loading.clean):
            path, what = file_names.segment_path(self._directory, info.base), "short" if size < info.size else "long"
            raise CorruptRecordError(f"a sealed segment is too {what}", path=path, position=size, expected=info.size, found=size)
        joined = self._start is not None or (info.gapless and not self.loading.gaps_allowed)
        if size == info.size and info.next_offset < following and joined:
            raise self._missing(info.next_offset, f"offset {info.next_offset}", f"offset {following}")

    def _from_files(self, base: int, size: int, following: int) -> SegmentInfo | None:
        """A sealed segment that an orderly broker left: its last time-index entry has its largest timestamp.

        None if that entry names no record of the segment.
        """
        info = info_from_files(self._directory, base, size, following)
        if info is None:
            return None
        epoch = self._epochs.epoch_for(following - 1) if following > base else -1
        end = following if self.loading.gaps_allowed else self._end_of(base, size)
        if end is not None:
            self.name_gap(end, following)
        return info._replace(epoch=max(epoch, 0))

    def _end_of(self, base: int, size: int) -> int | None:
        """The offset behind a segment's last batch, by the headers behind its last index entry; None if they cannot be read."""
        path = file_names.segment_path(self._directory, base)
        last = index.last_entry(file_names.segment_path(self._directory, base, file_names.INDEX), index.OFFSET_ENTRY)
        rows, end, at = np.empty(_HEADERS_AT_ONCE, BATCH), base, last[1] if last is not None else 0
        if not 0 <= at <= size:
            return None
        with files.opened(path) as fd:
            while at < size:
                try:
                    count, at = system.walk_headers(fd, at, size, rows, base)
                except CorruptRecordError:
                    return None  # of an old format, or damaged: whoever reads it finds out
                end = int(rows["base_offset"][count - 1]) + int(rows["last_offset_delta"][count - 1]) + 1
        return end

    def described(self, base: int, size: int) -> SegmentInfo | None:
        """What is known of the last segment as a whole. A broker may have changed it: then only if it has that size still."""
        closed = self._manifest.closed
        info = closed if closed is not None and closed.base == base else self._known.get(base)
        if info is None or not self.loading.foreign:
            return info
        return self._remembered(info) if info.size == size else None

    # ---- what is compared while a segment is read --------------------------------------------------

    def points(self, base: int) -> list[Point]:
        """What is known of the first bytes of a segment, the longest last."""
        strict, clean, closed = self._start is not None, self.loading.clean, self._closed
        found = []
        info = self._known.get(base)
        if info is not None and (strict or closed is None or closed.base != base):  # else a cut may have followed (M5)
            found.append(_point(info, info.next_offset <= self.end and (strict or clean)))
        if closed is not None and closed.base == base:
            found.append(_point(closed, strict or clean))
        floor = self.loading.floor
        if floor is not None and floor.segment_base == base:
            digest = floor.digest if floor.flags & DIGESTED else None
            found.append(Point(floor.segment_size, floor.log_end, digest, bool(floor.flags & GAPLESS), True))
        return sorted(found, key=lambda point: (point.size, point.must))

    def gaps_in(self, base: int, *, last: bool) -> bool:
        """Whether offsets may be missing in a segment."""
        if self.loading.foreign:
            return True
        points, start = self.points(base), self._start
        if points:
            return not points[-1].gapless
        if start is None or start.gaps_base == base:
            return True
        return self.loading.gaps_allowed and not last

    def follows(self, base: int, end: int, following: int | None) -> bool:
        """Whether the next segment follows on this one: a power loss may have kept a later file and lost an earlier one."""
        if following is None or end == following:
            return True
        known = self._known.get(base)
        if self._start is not None and known is not None:
            gaps = not known.gapless and known.next_offset == following
        else:
            gaps = self.loading.gaps_allowed or self.loading.foreign or (known is not None and not known.gapless)
        return gaps and end < following

    def name_gap(self, end: int, following: int) -> None:
        """Warn of offsets that nothing accounts for: what a broker did to a topic cannot be known, only that they are gone."""
        if end >= following or not self.loading.foreign or self.loading.gaps_allowed:
            return
        self._gaps_named += 1
        if self._gaps_named <= GAPS_NAMED_MAX:
            logger.warning(
                "%s: offsets %d to %d are missing, and nothing says that they were compacted",
                self._directory,
                end,
                following - 1,
            )


def _point(info: SegmentInfo, must: bool) -> Point:
    return Point(info.size, info.next_offset, info.digest if info.digested else None, info.gapless, must)


class Run:
    """The batches of a segment, as they follow on each other."""

    def __init__(self, base: int) -> None:
        self.gapless = True
        self.leapt = False  # whether offsets are missing before the last batch
        self.gaps: list[tuple[int, int]] = []  # the first ones: missing from, to
        self._end = base

    def add(self, batches: Batches) -> None:
        bases = batches["base_offset"]
        ends = bases + batches["last_offset_delta"] + 1
        before = np.concatenate(([self._end], ends[:-1]))
        leaps = np.flatnonzero(bases != before)
        self.gapless = self.gapless and not len(leaps)
        self.leapt = bool(len(leaps)) and int(leaps[-1]) == len(bases) - 1
        if len(self.gaps) < GAPS_NAMED_MAX:
            self.gaps += [(int(before[at]), int(bases[at])) for at in leaps[:GAPS_NAMED_MAX]]
        self._end = int(ends[-1])


class Comparison:
    """The known beginnings of one segment, compared while it is read."""

    def __init__(self, path: Path, points: list[Point]) -> None:
        self._path, self._left = path, list(points)
        self.proven = -1  # the end of the longest beginning that was found as it was known

    def passed(self, batches: Batches, before: NDArray[np.uint64]) -> None:
        """Compare at the batches; `before`: the chain digest before each. Raises CorruptRecordError."""
        positions = batches["position"]
        while self._left and self._left[0].size <= positions[-1]:
            point = self._left.pop(0)
            at = int(np.searchsorted(positions, point.size))
            self._compare(point, int(before[at]) if positions[at] == point.size else None, always=False)

    def ended(self, end: int, digest: int, problem: Problem | None) -> None:
        """Compare where the good batches end. Raises CorruptRecordError."""
        for point in self._left:
            if point.size == end:
                self._compare(point, digest, always=True)
            elif point.size > end and point.must:
                raise CorruptRecordError(
                    problem.message if problem else "the file ends inside a batch, or before it",
                    path=self._path,
                    position=problem.position if problem else end,
                    expected=f"offsets up to {point.next_offset - 1}, in {point.size} bytes"
                    if problem is None or problem.expected is None
                    else problem.expected,
                    found=f"good batches up to byte {end}" if problem is None or problem.found is None else problem.found,
                )

    def _compare(self, point: Point, found: int | None, *, always: bool) -> None:
        if (point.digest is None and found is not None) or point.digest == found:
            self.proven = point.size
        elif point.must or always:
            raise CorruptRecordError(
                interval_digests.OTHERS,
                path=self._path,
                position=point.size,
                expected=f"digest {point.digest or 0:016x}",
                found="no batch that begins here" if found is None else f"{found:016x}",
            )
