"""Loading a partition: from files, clean or not, to the tuple that its page publishes (DESIGN 6, format.md 5).

V1  a bad batch above what is known to be durable is a torn tail: copied aside, cut, reported
V2  a bad batch below it is corruption: an error, and not a byte of the partition is changed
V3  batches behind a hole never come back: what follows a cut goes aside with it
V4  nothing is written unless `Loading.write`; and then only under the append lock, in an order that can be broken off anywhere
V5  an unclean recovery behind a reboot, and every cut below a published end, begins a new leader epoch
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass, field
from pathlib import Path

from embedlog import checkpoint, digests, files, history, index, layout, leftovers, segment, transaction_index
from embedlog._native import system
from embedlog._native.system import Published
from embedlog.columns import LOG_OFFSET_MAX
from embedlog.errors import CorruptRecordError
from embedlog.manifest import CLOSED, DIGESTED, GAPLESS, Manifest, SegmentInfo
from embedlog.record import Chain, Problem
from embedlog.segments import published_of

logger = logging.getLogger("embedlog")
_Examined = tuple[SegmentInfo, Published, bool]  # whole: nothing had to be cut


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


@dataclass
class Loaded:
    """What came of it. The last of `segments` is the active one, as `published` describes it."""

    published: Published
    segments: list[SegmentInfo]
    epochs: checkpoint.EpochCache
    history: history.History
    cut: list[str] = field(default_factory=list)  # what was cut off, in words


def load(loading: Loading) -> Loaded:
    """Bring a partition into a state that can be published. Raises CorruptRecordError for damage below the durable offset."""
    manifest = Manifest(loading.directory, loading.topic_id)
    manifest.refresh()
    known = {} if loading.gaps_allowed else manifest.segments
    names = leftovers.settle(loading.directory, known, write=loading.write, foreign=loading.foreign)
    return _Loader(loading, names, manifest).run()


class _Loader:
    def __init__(self, loading: Loading, names: list[str], manifest: Manifest) -> None:
        self.loading = loading
        self.directory = loading.directory
        self.names = set(names)
        self.bases = layout.bases(names)
        self.manifest = manifest
        self.epochs = checkpoint.read_epochs(self.directory / layout.EPOCHS)
        self.cut: list[str] = []
        floor = loading.floor
        self.trusted_end = max(loading.recovery_point, loading.known_durable, floor.log_end if floor else 0)
        self.chain = Chain()
        self.seen_epochs: list[tuple[int, int]] = []
        self.read_again: list[int] = []
        self.saw_producers = False

    def run(self) -> Loaded:
        if not self.bases:
            self.bases = [self._first_segment()]
        self._check_range()
        self._check_first()
        segments: list[SegmentInfo] = []
        active: Published | None = None
        for number, base in enumerate(self.bases):
            last = number + 1 == len(self.bases)
            following = None if last else self.bases[number + 1]
            trusted = self._trusted(base, following)
            if trusted is not None and not last:
                segments.append(trusted)
                self.chain = Chain(trusted.next_offset, trusted.epoch)
                continue
            info, active, whole = self._examine(base, following, closed=trusted)
            segments.append(info)
            if not whole and not last:
                self._drop(self.bases[number + 1 :])
                break
        if active is None:
            raise AssertionError("the last segment is always examined")
        return self._finish(segments, active)

    def _first_segment(self) -> int:
        base = self.loading.log_start
        if self.loading.write:
            segment.create(self.directory, base, self.loading.mode, self.loading.allocate_bytes)
        return base

    def _check_range(self) -> None:
        """Every offset of a segment is an int64. Raises CorruptRecordError for a file's name that leaves no room for that."""
        if self.bases[-1] > LOG_OFFSET_MAX:
            path = layout.segment_path(self.directory, self.bases[-1])
            expected = f"a base offset of at most {LOG_OFFSET_MAX}"
            raise CorruptRecordError("the name of a segment is no offset", path=path, expected=expected, found=self.bases[-1])

    def _check_first(self) -> None:
        """What retention removed lies below the noted start; what is gone above it was not removed by us."""
        loading, first = self.loading, self.bases[0]
        if not loading.clean or loading.foreign:
            return
        known = self.manifest.segments.values()
        gone = [info.base for info in known if info.base < first and info.next_offset > loading.log_start]
        if gone:
            path = layout.segment_path(self.directory, min(gone))
            expected, found = f"a log from offset {loading.log_start} on", f"offset {first}"
            raise CorruptRecordError("a segment is missing", path=path, expected=expected, found=found)

    def _trusted(self, base: int, following: int | None) -> SegmentInfo | None:
        """What is known of a segment that need not be read: ours and unchanged, or left by an orderly shutdown."""
        path = layout.segment_path(self.directory, base)
        found = files.facts_of(path)
        indexed = self._indexed(base)
        size = found.size if found else 0
        info = self.manifest.segments.get(base)
        closed = self.manifest.closed
        if following is None:
            usable = closed is not None and closed.base == base and closed.size == size and indexed
            return self._remembered(closed) if closed is not None and usable else None
        below = following <= max(self.trusted_end, self.loading.recovery_point)
        if info is not None and info.size == size and info.next_offset == following and indexed and (self.loading.clean or below):
            return self._remembered(info)
        if not self.loading.clean and not below:
            return None
        if info is not None and not self.loading.foreign:
            self._check_sealed(info, size, following)
        with contextlib.suppress(CorruptRecordError):
            return self._from_files(base, size, following) if indexed else None
        return None

    def _indexed(self, base: int) -> bool:
        """The index is there, and the digests that go with it: better read a segment once now than at each seek."""
        closed = self.manifest.closed
        info = closed if closed is not None and closed.base == base else self.manifest.segments.get(base)
        needed = info is not None and info.digested and info.index_entries and self.loading.write and not self.loading.foreign
        return {layout.file_name(base, each) for each in (layout.INDEX, layout.DIGESTS)[: 2 if needed else 1]} <= self.names

    def _remembered(self, info: SegmentInfo) -> SegmentInfo:
        """What we know of a segment, as far as it holds: a broker's cleaner may write other heads into as many bytes."""
        if not self.loading.foreign:
            return info
        entries = max(info.transaction_entries, self._transactions_in(info.base))  # too many: it is made again from the log
        return info._replace(flags=info.flags & ~DIGESTED, transaction_entries=entries, transaction_digest=0)

    def _transactions_in(self, base: int) -> int:
        return index.count(layout.segment_path(self.directory, base, layout.TRANSACTION_INDEX), transaction_index.ENTRY_SIZE)

    def _check_sealed(self, info: SegmentInfo, size: int, following: int) -> None:
        """A segment that we sealed is as long as it was, and the one behind it is there. Raises CorruptRecordError.

        Without an orderly close it may be longer: it was sealed, a crash undid that, and the second sealing's record is lost.
        """
        if size < info.size or (size > info.size and self.loading.clean):
            path, what = layout.segment_path(self.directory, info.base), "short" if size < info.size else "long"
            raise CorruptRecordError(f"a sealed segment is too {what}", path=path, position=size, expected=info.size, found=size)
        if size == info.size and info.next_offset < following and info.gapless and not self.loading.gaps_allowed:
            raise CorruptRecordError(
                "a segment is missing",
                path=layout.segment_path(self.directory, info.next_offset),
                expected=f"offset {info.next_offset}",
                found=f"offset {following}",
            )

    def _from_files(self, base: int, size: int, following: int) -> SegmentInfo:
        """A sealed segment that an orderly broker left: its last time-index entry has its largest timestamp."""
        paths = segment.paths(self.directory, base)
        newest = index.last_entry(paths.time_index, index.TIME_ENTRY) if files.exists(paths.time_index) else None
        timestamp, relative = newest or (-1, 0)
        epoch = self.epochs.epoch_for(following - 1) if following > base else -1
        return SegmentInfo(
            base,
            size,
            following,
            timestamp,
            base + relative,
            index_entries=index.count(paths.offset_index, index.OFFSET_ENTRY.size),
            time_entries=index.count(paths.time_index, index.TIME_ENTRY.size),
            transaction_entries=self._transactions_in(base),
            epoch=max(epoch, 0),
        )

    # ---- one segment, read -----------------------------------------------------------------------

    def _examine(self, base: int, following: int | None, closed: SegmentInfo | None) -> _Examined:
        """Read a segment: from its last index entry if it was closed in order, else all of it. Whole: nothing had to be cut."""
        path = layout.segment_path(self.directory, base)
        size = segment.size_of(self.directory, base) if path.name in self.names else 0
        if path.name not in self.names and not self.loading.write:  # a reader of a partition that nobody has written to yet
            info = SegmentInfo(base, 0, base, max_timestamp_offset=base, flags=GAPLESS | DIGESTED, min_timestamp=index.EMPTY_MS)
            return info, published_of(info, 0, 0), True
        short = None
        if following is None and (self.loading.clean or closed is not None) and self._indexed(base):
            with contextlib.suppress(CorruptRecordError):  # an index that cannot be read is made again from the log
                short = self._from_last_entry(base, path, size, closed)
            if short is not None:
                return short, published_of(short, size - self._last_position(base), short.time_entries), True
        return self._scan(base, path, size, following)

    def _last_position(self, base: int) -> int:
        last = index.last_entry(layout.segment_path(self.directory, base, layout.INDEX), index.OFFSET_ENTRY)
        return last[1] if last else 0

    def _from_last_entry(self, base: int, path: Path, size: int, closed: SegmentInfo | None) -> SegmentInfo | None:
        """The active segment of an orderly shutdown: its end lies behind the last index entry. None if it does not agree."""
        paths = segment.paths(self.directory, base)
        if paths.offset_index.name not in self.names or paths.time_index.name not in self.names:
            return None
        last = index.last_entry(paths.offset_index, index.OFFSET_ENTRY)
        start = last[1] if last else 0
        if last and not 0 <= start < size:
            return None  # it points outside the log
        chain = Chain(-1 if last else base, -1, gaps_allowed=True)
        if size == 0:
            chain.next_offset = base
        else:
            with files.opened(path) as fd:
                walk = segment.Walk(fd, path, chain, start, size)
                for batches in walk:
                    if last is not None:
                        if int(batches["base_offset"][0]) + int(batches["last_offset_delta"][0]) != base + last[0]:
                            return None  # the index points elsewhere: read everything
                        last = None
                    self._note_epochs(batches)
            if walk.problem is not None or walk.end != size or last is not None:
                return None
        newest = index.last_entry(paths.time_index, index.TIME_ENTRY)
        timestamp, relative = newest or (-1, 0)
        known = closed if closed is not None and closed.next_offset == chain.next_offset else None
        times = index.count(paths.time_index, index.TIME_ENTRY.size)
        if known is not None and (known.time_entries, known.max_timestamp) != (times, timestamp):
            return None  # the time index was changed since: make it again
        return SegmentInfo(
            base,
            size,
            chain.next_offset,
            timestamp,
            base + relative,
            known.digest if known else 0,
            index.count(paths.offset_index, index.OFFSET_ENTRY.size),
            times,
            known.transaction_entries if known else self._transactions_in(base),
            created_ms=known.created_ms if known else 0,
            epoch=max(chain.epoch, self.chain.epoch, 0),
            flags=known.flags if known else GAPLESS | DIGESTED if size == 0 else 0,
            kind=CLOSED,
            transaction_digest=known.transaction_digest if known else 0,
            min_timestamp=known.min_timestamp if known else index.EMPTY_MS if size == 0 else -1,
            lateness_ms=known.lateness_ms if known else 0,
        )

    def _scan(self, base: int, path: Path, size: int, following: int | None, agreed: segment.Walk | None = None) -> _Examined:
        """Read a segment whole; a second time, up to where the digests agreed, if they did not to the end."""
        builder = index.Builder(base, self.loading.interval_bytes)
        self.read_again.append(base)
        gaps = self.loading.gaps_allowed or base not in self.manifest.segments
        first = self.chain.next_offset if self.chain.next_offset >= 0 else base
        chain = Chain(first if gaps else max(first, base), self.chain.epoch, gaps_allowed=True)
        gapless, expected = True, base
        end = size if agreed is None or agreed.agreed is None else agreed.agreed
        with files.opened(path) as fd, digests.opened(self.directory, base, usable=not self.loading.foreign) as records:
            walk = segment.Walk(fd, path, chain, 0, end, records)
            for batches in walk:
                bases = batches["base_offset"]
                gapless = (
                    gapless
                    and int(bases[0]) == expected
                    and bool((bases[1:] == (bases + batches["last_offset_delta"] + 1)[:-1]).all())
                )
                expected = int(bases[-1]) + int(batches["last_offset_delta"][-1]) + 1
                builder.add(batches, walk.before)
                self._note_epochs(batches)
        if walk.agreed is not None:
            return self._scan(base, path, size, following, walk)
        chain.next_offset = max(chain.next_offset, base)
        self.chain = Chain(chain.next_offset, chain.epoch)
        self._check_written(base, path, walk.end, chain)
        if walk.end < size:
            self._cut(base, path, walk.end, size, agreed.problem if agreed else walk.problem)
        whole = walk.end == size and self._reaches(base, chain.next_offset, following)
        if following is not None:
            builder.add_time_entry()
        if self.loading.write:
            builder.write(self.directory, self.loading.mode)
        end = chain.next_offset
        if following is not None and whole and end < following:
            end, gapless = following, False  # the last records of it were compacted away
        times: Published | SegmentInfo | index.Builder = self.manifest.times_known(base, walk.end, chain.digest) or builder
        floor = self.loading.floor
        if floor is not None and (floor.segment_base, floor.segment_size, floor.digest) == (base, walk.end, chain.digest):
            times = floor  # headers seldom say how old the records are
        info = SegmentInfo(
            base,
            walk.end,
            end,
            builder.max_timestamp,
            builder.max_timestamp_offset,
            chain.digest,
            builder.offset_entries,
            builder.time_entries,
            epoch=max(chain.epoch, 0),
            flags=DIGESTED | (GAPLESS if gapless else 0),
            min_timestamp=times.min_timestamp,
            lateness_ms=times.lateness_ms,
        )
        return info, published_of(info, builder.bytes_since_entry, builder.time_entries, builder.last_time_entry), whole

    def _reaches(self, base: int, end: int, following: int | None) -> bool:
        """Whether the next segment follows on this one: a power loss may have kept a later file and lost an earlier one (V3)."""
        if following is None or end == following:
            return True
        known = self.manifest.segments.get(base)
        gaps = self.loading.gaps_allowed or self.loading.foreign or (known is not None and not known.gapless)
        return gaps and end < following

    def _note_epochs(self, batches: object) -> None:
        self.saw_producers = self.saw_producers or bool((batches["producer_id"] >= 0).any())  # type: ignore[index]
        epochs, bases = batches["leader_epoch"].tolist(), batches["base_offset"].tolist()  # type: ignore[index]
        latest = self.seen_epochs[-1][0] if self.seen_epochs else -1
        for epoch, base in zip(epochs, bases, strict=True):
            if epoch > latest:
                self.seen_epochs.append((epoch, base))
                latest = epoch

    # ---- damage ----------------------------------------------------------------------------------

    def _check_written(self, base: int, path: Path, end: int, chain: Chain) -> None:
        """What was published in this boot, or sealed, is there (the digest covers what Kafka's CRC leaves out)."""
        floor, sealed = self.loading.floor, self.manifest.segments.get(base)
        known = [] if sealed is None or self.loading.foreign else [(sealed.size, sealed.digested, sealed.digest)]
        if floor is not None and floor.segment_base == base:
            known.append((floor.segment_size, bool(floor.flags & DIGESTED), floor.digest))
        for size, digested, digest in known:
            if digested and size == end and digest != chain.digest:
                found = f"{chain.digest:016x}"
                raise CorruptRecordError(digests.OTHERS, path=path, position=end, expected=f"digest {digest:016x}", found=found)

    def _cut(self, base: int, path: Path, end: int, size: int, problem: Problem | None) -> None:
        durable = 0 if system.mutated("truncate_below_recovery_point") else self.trusted_end
        lost_from = self.chain.next_offset
        if lost_from < durable:
            raise CorruptRecordError(
                problem.message if problem else "the file ends inside a batch that was durable",
                path=path,
                position=problem.position if problem else end,
                expected=f"offsets up to {durable}" if problem is None or problem.expected is None else problem.expected,
                found=f"none from {lost_from} on" if problem is None or problem.found is None else problem.found,
            )
        what = problem.message if problem else "the file ends inside a batch"
        self.cut.append(f"{path}: {size - end} bytes from byte {end} on, offset {lost_from}: {what}")
        if self.loading.write:
            logger.warning("cut a torn tail of %d bytes at byte %d of %s (offset %d): %s", size - end, end, path, lost_from, what)
            segment.copy_aside(path, end, size, self.directory / f"{layout.CUT}{base:020d}-{end}", self.loading.mode)
            with files.opened(path, files.WRITE) as fd:
                files.truncate(fd, end, path)

    def _drop(self, following: list[int]) -> None:
        """Segments behind a hole: kept aside, never read again."""
        for base in following:
            path = layout.segment_path(self.directory, base)
            self.cut.append(f"{path}: all of it, it lies behind a hole")
            if base < self.trusted_end:
                raise CorruptRecordError(
                    "a segment below the durable offset does not follow on the one before",
                    path=path,
                    expected=f"base offset {self.chain.next_offset}",
                    found=base,
                )
            if self.loading.write:
                logger.warning("set aside %s: it lies behind a hole", path)
                files.rename(path, self.directory / f"{layout.CUT}{base:020d}-0")
                segment.set_aside(self.directory, base)

    # ---- the end ---------------------------------------------------------------------------------

    def _finish(self, segments: list[SegmentInfo], active: Published) -> Loaded:
        loading = self.loading
        end = active.log_end
        if end < loading.log_start:
            raise CorruptRecordError(
                "the log ends before its start",
                path=self.directory,
                expected=f"a log end of at least {loading.log_start}",
                found=end,
            )
        if end < self.trusted_end and not loading.foreign and not system.mutated("truncate_below_recovery_point"):
            raise CorruptRecordError(
                "the log ends before what was on stable storage",
                path=layout.segment_path(self.directory, active.segment_base),
                expected=f"a log end of at least {self.trusted_end}",
                found=end,
            )
        for epoch, start in self.seen_epochs:
            if epoch > self.epochs.latest_epoch:
                self.epochs.assign(epoch, start)
        seen_epoch = max(self.epochs.latest_epoch, active.epoch)  # before the cut: an epoch that readers saw is never used again
        self.epochs.truncate_from_end(end)
        rebooted = loading.floor is None
        below_published = loading.floor is not None and end < loading.floor.log_end
        unclean = not loading.clean and rebooted and (loading.begun or end > segments[0].base)
        if (unclean or below_published) and not system.mutated("no_new_epoch"):
            self.epochs.assign(seen_epoch + 1, end)
        elif self.epochs.latest_epoch < 0:
            self.epochs.assign(max(active.epoch, 0), end if end > segments[0].base and active.epoch > 0 else segments[0].base)
        start = max(loading.log_start, segments[0].base)
        self.epochs.truncate_from_start(start)
        epoch = max(self.epochs.latest_epoch, 0)
        if not history.index_holds(self.directory, segments[-1]):  # it is written on: that must not begin with a gap
            self.read_again, self.saw_producers = [*self.read_again, segments[-1].base], True
        past = history.load(
            self.directory, segments, end=end, clean=loading.clean, read_again=self.read_again, replay=self.saw_producers
        )
        past.state.expire(system.wall_ms(), loading.producer_expiration_ms)
        segments[:] = [history.with_index(self.directory, info, past, last=info is segments[-1]) for info in segments]
        published = active._replace(
            transaction_entries=segments[-1].transaction_entries,
            transaction_digest=segments[-1].transaction_digest,
            log_start=start,
            epoch=epoch,
            first_timestamp=segment.first_timestamp(self.directory, active.segment_base, active.segment_size),
            first_unstable=past.state.first_unstable(end),
        )
        return Loaded(published, segments, self.epochs, past, self.cut)
