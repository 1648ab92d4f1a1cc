"""One partition, shared by any number of processes: its page, its segments, its lock.

D1  positions come from the page, never from a file's size or from what this process remembers
D2  a thread takes the mutex, then the OFD lock; whoever finds the owner word set repairs before anything else
D3  a page counts only in the incarnation in which it was made; loading writes only under the append lock
D4  after every failure the partition is as it was, or the owner word stays set so that the next holder repairs
D5  descriptors are few: one set for the active segment, the others come from the log's cache
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from embedlog import checkpoint, files, layout, recovery, rolling
from embedlog._native import system
from embedlog._native.system import Published
from embedlog.config import TopicConfig
from embedlog.errors import (
    ClosedError,
    LockTimeoutError,
    ReadOnlyError,
    RecordTooLargeError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from embedlog.handles import Handles
from embedlog.manifest import Manifest
from embedlog.page import DurableRecord, PageFile, boot_number, check, floor_of, make_page, map_page
from embedlog.reader import Fetched, Reader
from embedlog.record import EncodedRun
from embedlog.segments import Segments
from embedlog.sync import Syncer
from embedlog.values import OffsetAndTimestamp

if TYPE_CHECKING:
    from embedlog.buffers import BufferPool


class Appended(NamedTuple):
    """Where a run came to lie. Between its pieces (base offset, next offset) other processes may have appended."""

    base_offset: int
    last_offset: int
    append_time_ms: int  # -1 under CreateTime
    pieces: tuple[tuple[int, int], ...]


class Bounds(NamedTuple):
    """The published offsets: readers see [log_start, high_watermark), committed ones below last_stable."""

    log_start: int
    log_end: int
    high_watermark: int
    last_stable: int
    epoch: int


class Writers:
    """Bounds the partitions whose write descriptors are open: the longest idle gives its own back. Threads: any."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._mutex = threading.Lock()
        self._open: OrderedDict[int, Partition] = OrderedDict()

    def opened(self, partition: Partition) -> None:
        with self._mutex:
            self._open[id(partition)] = partition
            idle = [each for each in self._open.values() if each is not partition][: max(0, len(self._open) - self._limit)]
        for each in idle:
            if each.release():
                self.closed(each)

    def closed(self, partition: Partition) -> None:
        with self._mutex:
            self._open.pop(id(partition), None)


@dataclass
class Home:
    """What a partition must know of the directory it lies in. Shared by all partitions of one open log."""

    root: Path
    incarnation: bytes
    directory_page: system.Page | None
    read_only: bool = False
    clean: bool = False  # the directory was left in order before this incarnation
    foreign: bool = False  # somebody else wrote here since we last did
    mode: int = 0o666
    lock_timeout_ms: int = 10_000
    recovery_points: dict[tuple[str, int], int] = field(default_factory=dict)
    log_starts: dict[tuple[str, int], int] = field(default_factory=dict)
    check_open: Callable[[], None] = lambda: None
    handles: Handles = field(default_factory=lambda: Handles(400))
    writers: Writers = field(default_factory=lambda: Writers(32))
    refresh: Callable[[], bool] | None = None  # for a reader: does somebody write here now?


class Partition:
    """Append to and read one partition.

    Threads: every public method may be called from any thread. Raises ClosedError after `close`.
    """

    def __init__(self, home: Home, topic: str, number: int, path: Path, topic_id: bytes, config: TopicConfig) -> None:
        self.home, self.topic, self.number, self.path, self.topic_id = home, topic, number, path, topic_id
        self.config = config
        self.mutex = threading.Lock()
        self.lock_file: files.LockFile | None = None
        self.page_file: PageFile | None = None
        self.writer: system.Writer | None = None
        self.writer_fds: tuple[int, ...] = ()
        self.manifest = Manifest(path, topic_id)
        self.static: recovery.Loaded | None = None
        self.closed = False
        self._marked_dirty = False
        self.segments = Segments(self)
        self.reader = Reader(self)
        self.syncer = Syncer(self)

    # ---- opening and closing ---------------------------------------------------------------------

    def ensure_open(self) -> None:
        """Map the page, made and loaded first if this incarnation has none yet."""
        if self.closed:
            raise ClosedError(f"partition {self.topic}-{self.number} is closed")
        if self.page_file is not None:
            return
        with self.mutex:
            if self.page_file is None and self.static is None:
                self._open_read_only() if self.home.read_only else self._open_for_writing()
            elif self.home.read_only and self.page_file is None:
                self._switch_to_live()

    def _expected(self, page_file: PageFile) -> object:
        return system.identity(self.home.incarnation, self.topic_id, self.number, page_file.device, page_file.inode)

    def _switch_to_live(self) -> bool:
        """Follow a live page if somebody has made one since: a read-only reader of a directory that others write."""
        if self.home.refresh is None or not self.home.refresh():
            return False
        mapped = map_page(self.path / layout.PAGE, writable=False)
        if mapped is None:
            return False
        if not check(mapped, self._expected(mapped)):
            mapped.close()
            return False
        self.page_file, self.static = mapped, None
        self.segments.forget()
        return True

    def _open_read_only(self) -> None:
        if not self._switch_to_live():
            self.static = recovery.load(self.loading(write=False))

    def _open_for_writing(self) -> None:
        """Map the page of this incarnation; if there is none yet, make it from the files, under the append lock."""
        mapped = map_page(self.path / layout.PAGE, writable=True)
        if mapped is not None and check(mapped, self._expected(mapped)):
            self.page_file = mapped
            return
        if mapped is not None:
            mapped.close()
        lock = self._open_lock()
        try:
            self._lock_os(lock, self.deadline())
            try:
                self.page_file = self._page_locked()
            finally:
                lock.unlock()
        finally:
            lock.close()

    def _open_lock(self) -> files.LockFile:
        """The lock file, made by whoever comes first. Raises UnknownTopicOrPartitionError if the partition is gone."""
        if not files.is_directory(self.path):
            raise UnknownTopicOrPartitionError(f"partition {self.topic}-{self.number} has no directory", path=self.path)
        return files.LockFile(self.path / layout.LOCK, self.home.mode)

    def _page_locked(self) -> PageFile:
        """The valid page of this incarnation, loaded from the files if nobody has done so yet."""
        mapped = make_page(self.path / layout.PAGE, self.home.mode)
        try:
            if not check(mapped, self._expected(mapped)):
                self._load_locked(mapped)
            return mapped
        except BaseException:
            mapped.close()
            raise

    def _load_locked(self, mapped: PageFile) -> None:
        floor = None if self.home.foreign else floor_of(mapped, self.topic_id, self.number)
        loading = self.loading(write=True, floor=floor)
        if not loading.clean:
            self.mark_dirty()
        loaded = recovery.load(loading)
        epochs = checkpoint.read_epochs(self.path / layout.EPOCHS)
        if epochs.entries != loaded.epochs.entries:
            checkpoint.write_epochs(self.path / layout.EPOCHS, loaded.epochs, self.home.mode)
        sealed = loaded.segments[:-1]
        self.manifest.refresh()
        if self.home.foreign or [self.manifest.segments.get(info.base) for info in sealed] != sealed:
            self.manifest.rewrite(sealed)
        durable = loaded.published.log_end if loading.clean and not self.home.foreign else min(loading.known_durable, loaded.published.log_end)
        mapped.page.write(self._expected(mapped), loaded.published, durable)
        mapped.page.set(system.WORD_BOOT, boot_number())
        for base in poisoned_bases(self.path):
            mapped.page.set(system.WORD_POISON, base + 1)

    def loading(self, *, write: bool, floor: Published | None = None) -> recovery.Loading:
        """What the loader has to know of this partition."""
        dirty = files.exists(self.path / layout.DIRTY) and not self.home.foreign
        name = (self.topic, self.number)
        durable = None if self.home.foreign else DurableRecord(self.path, self.topic_id).read()
        return recovery.Loading(
            self.path, self.topic_id, clean=self.home.clean and not dirty, write=write, recovery_point=self.home.recovery_points.get(name, 0),
            log_start=self.home.log_starts.get(name, 0), floor=floor, known_durable=durable.offset if durable else 0,
            interval_bytes=self.config.index_interval_bytes, mode=self.home.mode, gaps_allowed=self.config.compacted)

    def mark_dirty(self) -> None:
        """On disk before the first write of this incarnation: the last one out closes what is marked. REQUIRES the append lock."""
        if self._marked_dirty or system.mutated("no_dirty"):
            return
        path = self.path / layout.DIRTY
        if not files.exists(path):
            with files.opened(path, files.CREATE, self.home.mode) as fd:
                files.sync(fd, path)
            files.sync_directory(self.path)
        self._marked_dirty = True

    def close(self) -> None:
        """Give back descriptors and mapping; what was appended stays where it is. Idempotent."""
        with self.mutex:
            self.closed = True
            self._drop_writer()
            self.home.writers.closed(self)
            self.reader.close()
            if self.page_file is not None:
                self.page_file.close()
                self.page_file = None

    def close_writer(self) -> None:
        fds, self.writer_fds = self.writer_fds, ()
        for fd in fds:
            files.close(fd)
        if self.writer is not None:
            self.writer.segment(-1, -1, -1, -1)

    # ---- what is published -----------------------------------------------------------------------

    @property
    def page(self) -> system.Page:
        if self.page_file is None:
            raise ClosedError(f"partition {self.topic}-{self.number} is closed")
        return self.page_file.page

    def published(self) -> Published:
        """The published tuple. Raises StorageError if the page was destroyed under us and cannot be rebuilt."""
        self.ensure_open()
        if self.page_file is None:
            if self._switch_to_live() and self.page_file is not None:
                return self.published()
            if self.static is None:
                raise ClosedError(f"partition {self.topic}-{self.number} is closed")
            return self.static.published
        found = self.page_file.page.read()
        if found is None or not self._page_stands():
            return self._published_again()
        return found

    def _page_stands(self) -> bool:
        """Whether the page that is mapped is still one of this incarnation: not cut, not overwritten."""
        mapped = self.page_file
        return mapped is not None and mapped.page.alive()

    def _published_again(self) -> Published:
        self.remap()
        found = self.page.read()
        if found is None:
            raise StorageError("the control page is damaged and could not be rebuilt", path=self.path / layout.PAGE)
        return found

    def look_again(self) -> None:
        """At a wait's end: does the page's name still lead to what is mapped? If not, map it anew."""
        mapped = self.page_file
        if mapped is None or self.closed:
            return
        named = files.facts_of(mapped.path)
        if named is None or (named.device, named.inode) != (mapped.device, mapped.inode):
            self.remap()

    def bounds(self) -> Bounds:
        """Offsets of this moment; one page read."""
        now = self.published()
        stable = now.high_watermark if now.first_unstable < 0 else min(now.high_watermark, now.first_unstable)
        return Bounds(now.log_start, now.log_end, now.high_watermark, stable, now.epoch)

    @property
    def durable_offset(self) -> int:
        """Records below it are on stable storage, as far as this machine was told."""
        self.ensure_open()
        return self.page.word(system.WORD_DURABLE) if self.page_file is not None else self.published().log_end

    # ---- locking ---------------------------------------------------------------------------------

    def deadline(self) -> int:
        return system.boot_ns() + self.home.lock_timeout_ms * 1_000_000

    @contextlib.contextmanager
    def _mutex_until(self, deadline_ns: int) -> Iterator[None]:
        if not self.mutex.acquire(blocking=False) and not self.mutex.acquire(timeout=max(0.0, (deadline_ns - system.boot_ns()) / 1e9)):
            raise LockTimeoutError("another thread of this process held the partition until the deadline", path=self.path)
        try:
            yield
        finally:
            self.mutex.release()

    def _lock_os(self, lock: files.LockFile, deadline_ns: int) -> None:
        code = system.lock_until(lock.fd, True, deadline_ns)
        if code == system.TIMED_OUT:
            raise self._lock_timeout()
        if code < 0:
            raise StorageError("cannot lock", errno=system.errno_of(code), path=lock.path)

    def _lock_timeout(self) -> LockTimeoutError:
        owner, since = "an unknown process", ""
        if self.page_file is not None and (pid := self.page_file.page.word(system.WORD_OWNER)):
            age_s = (system.boot_ns() - self.page_file.page.word(system.WORD_OWNER_SINCE)) / 1e9
            owner, since = f"pid {pid} on {socket.gethostname()}", f" for {age_s:.1f} s"
        return LockTimeoutError(f"append lock not free before the deadline: held by {owner}{since}", path=self.path / layout.LOCK)

    @contextlib.contextmanager
    def exclusive(self, deadline_ns: int | None = None) -> Iterator[Published]:
        """The append lock with everything repaired and caught up: for a roll, a truncation, a checked append.

        An exception inside leaves the owner word set: the next holder repairs. Raises LockTimeoutError.
        """
        self.ensure_open()
        until = self.deadline() if deadline_ns is None else deadline_ns
        with self._mutex_until(until), self._exclusive_mutexed(until) as now:
            yield now

    @contextlib.contextmanager
    def _exclusive_mutexed(self, deadline_ns: int) -> Iterator[Published]:
        writer = self._begin(deadline_ns)
        broken = True
        try:
            now = self.page.read()
            if now is None:
                raise StorageError("the control page is damaged", path=self.path / layout.PAGE)
            yield now
            broken = False
        finally:
            writer.end(broken)

    def _begin(self, deadline_ns: int) -> system.Writer:
        """Take the append lock; repair and map again until the page is in order."""
        while True:
            writer = self._writer()
            code = writer.begin(min(deadline_ns, system.boot_ns() + system.SLICE_NS))
            if code == 0:
                return writer
            self._settle(code, deadline_ns)

    def _settle(self, code: int, deadline_ns: int) -> None:
        """Do what an append's code asks for; return to try again."""
        if code == system.TIMED_OUT:
            if system.boot_ns() >= deadline_ns:
                raise self._lock_timeout()
        elif code == system.MUST_REPAIR:
            self._repair(deadline_ns)
        elif code == system.MUST_REMAP:
            self._remap_mutexed()
        elif code == system.IS_DELETED:
            raise UnknownTopicOrPartitionError(f"topic {self.topic} was deleted", path=self.path)
        elif code in (system.MUST_ROLL, system.IS_POISONED):
            with self._exclusive_mutexed(deadline_ns) as now:
                rolling.roll_locked(self, now)
        elif code == system.MUST_REOPEN:
            self._open_active()
        else:
            raise StorageError("cannot append", errno=system.errno_of(code), path=self.path)

    def _repair(self, deadline_ns: int) -> None:
        writer = self._writer()
        lock = self.lock_file
        if lock is None:
            raise ClosedError(f"partition {self.topic}-{self.number} is closed")
        self._lock_os(lock, deadline_ns)
        broken = True
        try:
            page = self.page
            if page.word(system.WORD_OWNER) or page.word(system.WORD_ROLL_INTENT):
                self.mark_dirty()
                rolling.repair_locked(self)
            broken = False
        finally:
            writer.end(broken)

    def remap(self) -> None:
        """The page was replaced, cut or deleted under us: find or make the right one."""
        with self._mutex_until(self.deadline()):
            if not self.closed:
                self._remap_mutexed()

    def _remap_mutexed(self) -> None:
        self._drop_writer()
        if self.page_file is not None:
            self.page_file.close()
            self.page_file = None
        if not files.is_directory(self.path):
            raise UnknownTopicOrPartitionError(f"topic {self.topic} was deleted", path=self.path)
        self.segments.forget()
        self._open_read_only() if self.home.read_only else self._open_for_writing()

    # ---- appending -------------------------------------------------------------------------------

    def _writer(self) -> system.Writer:
        """Lock file and limits for appending, opened when first needed. REQUIRES the mutex."""
        if self.writer is None:
            if self.home.read_only:
                raise ReadOnlyError("the log was opened read-only", path=self.path)
            page, mapped = self.page, self.page_file
            lock = self._open_lock()
            self.lock_file = lock
            self.writer = system.Writer(page, self.home.directory_page, lock.path, str(self.path / layout.PAGE), lock.fd,
                                        mapped.device if mapped else 0, mapped.inode if mapped else 0)
            self.apply_config(self.config)
            self.home.writers.opened(self)
        return self.writer

    def release(self) -> bool:
        """Give back the descriptors of an idle writer; False if it is at work."""
        if not self.mutex.acquire(blocking=False):
            return False
        try:
            self._drop_writer()
            return True
        finally:
            self.mutex.release()

    def _drop_writer(self) -> None:
        self.close_writer()
        self.syncer.close()
        self.writer = None
        if self.lock_file is not None:
            self.lock_file.close()
            self.lock_file = None

    def apply_config(self, config: TopicConfig) -> None:
        """Take a topic's new settings."""
        self.config = config
        if self.writer is not None:
            interval_ms = min(config.segment_ms, config.max_compaction_lag_ms) if config.compacted else config.segment_ms
            self.writer.limits(segment_bytes=config.segment_bytes, segment_ms=interval_ms, index_bytes=config.segment_index_bytes,
                               index_interval=config.index_interval_bytes, append_time=config.message_timestamp_type == "LogAppendTime")

    def _open_active(self) -> None:
        """Descriptors of the segment that is active now, for this process's appends."""
        now = self.page.read()
        if now is None:
            self._remap_mutexed()
            return
        self.close_writer()
        fds: list[int] = []
        try:
            for suffix in (layout.LOG, layout.INDEX, layout.TIME_INDEX):
                fds.append(files.open_file(layout.segment_path(self.path, now.segment_base, suffix), files.CREATE, self.home.mode))
        except BaseException:
            for fd in fds:
                files.close(fd)
            raise
        self.writer_fds = tuple(fds)
        self.syncer.opened(now.segment_base, fds[0])
        self._writer().segment(now.segment_base, *fds)

    def append(self, run: EncodedRun, *, deadline_ns: int | None = None) -> Appended:
        """Append whole batches, in order. Raises LockTimeoutError, ReadOnlyError, RecordTooLargeError, StorageError, UnknownTopicOrPartitionError.

        After an error nothing of the batch at hand is visible; batches of the same run before it may be.
        """
        self.home.check_open()
        self.ensure_open()
        self._check_sizes(run)
        until = self.deadline() if deadline_ns is None else deadline_ns
        pieces: list[tuple[int, int]] = []
        with self._mutex_until(until):
            if not self._marked_dirty:
                with self._exclusive_mutexed(until):
                    self.mark_dirty()
            start, size = 0, len(run.buffer)
            while start < size:
                writer = self._writer()
                code = writer.append(run.buffer, start, min(until, system.boot_ns() + system.SLICE_NS))
                if code != system.APPENDED:
                    self._settle(code, until)
                    continue
                out = writer.out
                pieces.append((out.base_offset, out.next_offset))
                start += out.consumed
            time_ms, unsynced_ms, behind = out.append_time_ms, out.unsynced_ms, out.next_offset - out.durable
        if behind >= self.config.flush_messages or (unsynced_ms > self.config.flush_ms and behind > 0):
            self.syncer.sync(pieces[-1][1], until)
        return Appended(pieces[0][0], pieces[-1][1] - 1, time_ms, tuple(pieces))

    def _check_sizes(self, run: EncodedRun) -> None:
        largest = int(run.batches["size"].max()) if len(run.batches) else 0
        limit = min(self.config.max_message_bytes, self.config.segment_bytes)
        if largest > limit:
            name = "max.message.bytes" if limit == self.config.max_message_bytes else "segment.bytes"
            raise RecordTooLargeError(f"a batch for {self.topic}-{self.number} is larger than {name}", expected=f"at most {limit} bytes", found=largest)

    def fetch(self, offset: int, *, max_bytes: int = 1 << 20, isolation: str = "read_uncommitted", upto: int | None = None,
              pool: BufferPool | None = None) -> Fetched:
        """Whole checked batches from the one that holds `offset`; none at the end. Raises OffsetOutOfRangeError, CorruptRecordError."""
        self.home.check_open()
        self.ensure_open()
        return self.reader.fetch(offset, max_bytes=max_bytes, committed=isolation == "read_committed", upto=upto, pool=pool)

    def offset_for_time(self, timestamp_ms: int, isolation: str = "read_uncommitted") -> OffsetAndTimestamp | None:
        """The first record with this timestamp or a later one, None if there is none."""
        self.home.check_open()
        self.ensure_open()
        return self.reader.offset_for_time(timestamp_ms, isolation == "read_committed")

    def carry_snapshot(self, offset: int) -> None:
        """Leave the producers' state beside a segment that begins at `offset`. REQUIRES the append lock."""

    def sync(self, deadline_ns: int | None = None) -> int:
        """Put everything that is published now on stable storage; returns the durable offset. Raises DurabilityError."""
        self.ensure_open()
        return self.syncer.sync(self.published().log_end, self.deadline() if deadline_ns is None else deadline_ns)


def poisoned_bases(directory: Path) -> list[int]:
    """Segments of which a sync failed once: marker files that outlive a reboot."""
    names = (name.removeprefix(layout.POISON) for name in os.listdir(directory) if name.startswith(layout.POISON))
    return sorted(int(name) for name in names if name.isdigit())
