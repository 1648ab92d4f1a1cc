"""Puts a partition on stable storage, and reports no offset as durable that is not
(`docs/protocol.md`, durability).

- One process syncs a partition at a time, by a lock of its own; waiting threads check whether that
  sync was enough.
- An intent is written to the control page before a sync. An intent found there is a failed sync,
  unless this syncer wrote it before an interrupt, and no sync of this process has failed since.
- `durable` rises only after every segment in [durable, end) and the directory were synced through
  reliable descriptors. A descriptor is reliable if it was opened before any of these bytes was
  written, or wrote all of them again. So they are kept as long as the log's share of descriptors
  allows it.
- A failed sync is never repeated as if it had not failed: the segment is marked, on disk and then
  in the page, and rolled.
- While several senders wait for syncs, a sync waits for as many new records as the last one
  covered. This takes at most a quarter of its time. Otherwise the senders that it acknowledges
  append too late for the next one.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from embedlog import index, segment
from embedlog._native import system, waits
from embedlog._native.scope import scope
from embedlog._native.system import Published
from embedlog.errors import (
    ClosedError,
    DurabilityError,
    LockTimeoutError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from embedlog.format.record_batch import Chain
from embedlog.partition.append_lock import AppendLock
from embedlog.partition.reader import Reader
from embedlog.partition.state import poisoned_bases
from embedlog.partition.truncation import failed_sync
from embedlog.storage import file_names, files, locks
from embedlog.storage.control_page import DurableRecord
from embedlog.storage.manifest import SegmentInfo
from embedlog.telemetry import log_messages

logger = logging.getLogger("embedlog")

GATHER_SHARE: Final = 4  # of the time of a sync, which the next one waits at most
SEGMENTS_MAX: Final = 8  # of one partition whose descriptors are kept for syncs
_PID_MASK: Final = 2**32 - 1  # of an intent; the higher half is random


class _LostBytes(StorageError):
    """Bytes that were never on stable storage are damaged in the cache too."""

    def __init__(self, base: int, path: Path, position: int) -> None:
        super().__init__(
            "a batch that was never on stable storage is damaged in the cache too",
            errno=errno.EIO,
            path=path,
            position=position,
        )
        self.base = base


class Syncer:
    """Group commit for one partition. Threads: any; one syncs, the others wait for its result."""

    def __init__(self, lock: AppendLock, reader: Reader) -> None:
        self._state = lock.state
        self._append_lock = lock
        self._reader = reader
        self._lock: locks.LockFile | None = None
        self._fds: dict[int, int] = {}  # segment base -> descriptor of this syncer
        # bases whose descriptor was open during every write since `durable`
        self._trusted_bases: set[int] = set()
        self._record = DurableRecord(lock.state.path, lock.state.topic_id_bytes)
        self._opening = threading.Lock()
        self._users = 0  # threads inside `sync`
        self._intent = 0  # the last intent of this syncer, and how many syncs had failed before it
        self._failed_before = 0
        self._close_pending = False
        self._cuts = 0  # of the log, when the descriptors were opened
        # the last sync had records of others, or came after a wait for another one
        self._shared = False
        self._sync_ns = 0  # of the last sync of this process

    def open_segment(self, base: int) -> None:
        """This process begins to write a segment: open a descriptor for its syncs, then read what
        is unsynced.
        """
        has_descriptors = bool(self._fds)
        self._open_descriptor(base)
        if not has_descriptors:
            self._state.context.syncers.add(self)

    def release(self, wait_s: float = 0.0) -> bool:
        """Close the descriptors; False if a sync is in progress, without a wait. The next sync
        writes unsynced bytes again.
        """
        with self._opening:
            if self._users:
                return False
            self._release_all()
            return True

    def use_count(self) -> int:
        writer = self._state.writer
        if writer is None:
            return -1
        return writer.use_count()

    def close(self) -> None:
        """Close the descriptors, after a sync in progress: another file may get the number of a
        closed one.
        """
        with self._opening:
            self._close_pending = self._users > 0
            if not self._close_pending:
                self._release_all()

    def _release_all(self) -> None:
        self._close_pending = False
        fds = self._fds
        self._fds = {}
        for fd in fds.values():
            files.close(fd)
        self._trusted_bases.clear()
        lock = self._lock
        self._lock = None
        if lock is not None:
            lock.close()

    @scope
    def _use(self) -> Iterator[locks.LockFile]:
        """The sync lock's file, not locked yet; it and the descriptors stay open inside the
        block.
        """
        page = self._state.page
        if not page.pin():
            self._state.raise_closed()
        try:
            with self._use_pinned() as lock:
                yield lock
        finally:
            page.unpin()

    @scope
    def _use_pinned(self) -> Iterator[locks.LockFile]:
        """As `_use`. REQUIRES that the page is pinned."""
        state = self._state
        with self._opening:
            lock = self._lock
            is_fresh = lock is None
            if lock is None:
                lock = locks.LockFile(state.path / file_names.SYNC_LOCK, state.context.mode)
                self._lock = lock
            self._users += 1
        try:
            if is_fresh:
                state.context.syncers.add(self)
            else:
                state.context.syncers.note_use(self)
            yield lock
        finally:
            with self._opening:
                self._users -= 1
                if self._close_pending and not self._users:
                    self._release_all()

    def sync(self, upto: int, deadline_ns: int) -> int:
        """Return once `durable` has reached `upto`. Raises DurabilityError, LockTimeoutError."""
        state = self._state
        is_held = False

        def read_durable() -> int:
            return state.page.word(system.WORD_DURABLE)

        durable_before = read_durable()

        def sleep() -> None:
            durable = read_durable()
            if durable < upto:
                state.page.sleep(system.WORD_DURABLE, durable, deadline_ns)

        if durable_before >= upto:
            return durable_before
        try:
            with (
                self._use() as lock,
                lock.hold_while(lambda: read_durable() < upto, sleep, deadline_ns) as is_held,
            ):
                if not is_held:
                    self._shared = True
                    return read_durable()
                has_waited = read_durable() > durable_before
                if has_waited or self._shared:
                    self._gather(deadline_ns)
                end = self._sync_locked(state.published())
                self._shared = has_waited or end > upto
                return end
        except _LostBytes as lost:
            # after the sync lock is released: the append lock is before it in the lock order
            raise self._error_of(self.cut_lost(lost.base), lost) from lost
        finally:
            if is_held:  # after the unlock: a thread that needs more syncs next
                state.page.wake(system.WORD_DURABLE)

    def _gather(self, deadline_ns: int) -> None:
        """Wait for the records of those that the last sync acknowledged."""
        page = self._state.page
        awaited = page.word(system.WORD_AWAITED)
        published = self._state.published()
        if published.log_end >= awaited:
            return
        waiter = waits.Waiter()
        until_ns = min(deadline_ns, system.boot_ns() + self._sync_ns // GATHER_SHARE)
        # In a set a high watermark needs more than an append, so it is not awaited.
        while published.log_end < awaited and published.high_watermark == published.log_end:
            if waiter.wait([(page, published.log_end)], False, (), until_ns) < 0:
                return
            published = self._state.published()

    def cut_lost(self, base: int) -> int:
        """Cut the log at the first bad batch of a segment; the offset from which records are lost.
        Raises CorruptRecordError.
        """
        with self._append_lock.exclusive() as locked:
            return failed_sync.cut_lost(locked, base)

    def _sync_locked(self, published: Published) -> int:
        page = self._state.page
        durable = page.word(system.WORD_DURABLE)
        segments = self._append_lock.segments.since(durable, published)
        began_ns = system.boot_ns()
        self._write_intent(page, segments, durable, published.log_end)
        system.point("sync-intent")
        try:
            self._sync_and_raise_durable(segments, durable, published)
            page.set(system.WORD_UNSYNCED_SINCE, began_ns)
        except BaseException:  # also an interrupt, which the next sync must not take for a failure
            if self._is_own_intent(page.word(system.WORD_SYNC_OWNER)):
                page.set(system.WORD_SYNC_OWNER, 0)
            raise
        page.set(system.WORD_SYNC_OWNER, 0)
        self._sync_ns = system.boot_ns() - began_ns
        spent_s = self._sync_ns / 1e9
        self._state.context.metrics.add(
            {"flushes": 1, "flushes_s": spent_s}, {"flushes_s": spent_s}
        )
        return published.log_end

    def _sync_and_raise_durable(
        self, segments: list[SegmentInfo], durable: int, published: Published
    ) -> None:
        try:
            self._sync_all(segments, durable, published)
        except StorageError as problem:
            name = errno.errorcode.get(problem.errno or errno.EIO, str(problem.errno))
            bases = [info.base for info in segments]
            self._poison(bases, logging.ERROR, f"a sync failed with {name}")
            self._state.page.set(system.WORD_SYNC_OWNER, 0)
            if isinstance(problem, _LostBytes):
                raise
            raise self._error_of(durable, problem) from problem
        self._raise_durable(published)

    def _write_intent(
        self, page: system.Page, segments: list[SegmentInfo], durable: int, end: int
    ) -> None:
        """Write an intent to the page. If one is there whose sync may have failed, mark the
        segments.

        An interrupt may come between any two steps, so the intent becomes this syncer's own only
        after all marks.
        """
        page.set(system.WORD_SYNC_FROM, durable)
        page.set(system.WORD_SYNC_TO, end)
        other_intent = page.word(system.WORD_SYNC_OWNER)
        if self._is_own_intent(other_intent):
            return
        # not the pid alone: another process may get it
        intent = os.getpid() | int.from_bytes(os.urandom(4)) >> 1 << 32
        if other_intent:
            level = logging.WARNING
            pid = other_intent & _PID_MASK
            reason = f"a sync of process {pid} was not completed, perhaps because it ended"
            if other_intent == self._intent:
                level = logging.ERROR
                reason = "a sync was interrupted, and another one of this process has failed since"
            self._intent = 0
            page.set(system.WORD_SYNC_OWNER, intent)
            self._poison([info.base for info in segments], level, reason)
        self._failed_before = system.failed_syncs()
        self._intent = intent
        page.set(system.WORD_SYNC_OWNER, intent)

    def _is_own_intent(self, intent: int) -> bool:
        """Whether this syncer wrote the intent, and no sync has failed since."""
        return (
            intent != 0 and intent == self._intent and system.failed_syncs() == self._failed_before
        )

    def _error_of(self, durable: int, problem: StorageError) -> DurabilityError:
        fate = "may not survive a power loss"
        if isinstance(problem, _LostBytes):
            fate = "are lost"
        return DurabilityError(
            f"a sync of {self._state.name} failed: records from offset {durable} on {fate}",
            path=problem.path,
            position=problem.position,
            found=os.strerror(problem.errno or errno.EIO),
        )

    def _sync_all(self, segments: list[SegmentInfo], durable: int, published: Published) -> None:
        poisoned = self._find_poisoned()
        for info in segments:
            try:
                self._sync_segment(
                    info, info.base in poisoned, durable, info.base != published.segment_base
                )
            except StorageError as problem:
                if (
                    problem.errno != errno.ENOENT
                    or info.next_offset > self._state.published().log_start
                ):
                    raise  # else retention was faster: these records are not needed any more
        if any(info.base >= durable for info in segments) or not durable:
            files.sync_directory(self._state.path)
            self._state.manifest.sync()

    def _sync_segment(self, info: SegmentInfo, poisoned: bool, durable: int, sealed: bool) -> None:
        fd = self._open_descriptor(info.base)
        if poisoned or info.base not in self._trusted_bases:
            self._rewrite(info, fd, durable)
            self._trusted_bases.add(info.base)
        system.point("sync-segment")
        path = file_names.segment_path(self._state.path, info.base)
        self._check_name(fd, path)
        files.datasync(fd, path)
        if sealed:
            self._close_descriptor(info.base)
            self._sync_sealed(info)

    @staticmethod
    def _check_name(fd: int, path: Path) -> None:
        """The name must lead to the file that is synced: what no name leads to survives nothing.
        Raises StorageError.
        """
        named = files.facts_of(path)
        opened = files.facts(fd, path)
        if named is None or (named.device, named.inode) != (opened.device, opened.inode):
            raise StorageError(
                "another program has removed or replaced the segment", errno=errno.ENOENT, path=path
            )

    def _close_descriptor(self, base: int) -> None:
        """Close the descriptor of a segment that is not written any more."""
        with self._opening:
            files.close(self._fds.pop(base, -1))
            self._trusted_bases.discard(base)

    def _sync_sealed(self, info: SegmentInfo) -> None:
        """Sync the files of a sealed segment that recovery reads instead of its log."""
        directory = self._state.path
        for suffix in (
            file_names.INDEX,
            file_names.TIME_INDEX,
            file_names.TRANSACTION_INDEX,
            file_names.DIGESTS,
        ):
            path = file_names.segment_path(directory, info.base, suffix)
            if files.exists(path):
                with files.opened(path, files.WRITE) as fd:
                    files.datasync(fd, path)
        snapshot = file_names.segment_path(directory, info.next_offset, file_names.SNAPSHOT)
        if files.exists(snapshot):
            with files.opened(snapshot, files.WRITE) as fd:
                files.datasync(fd, snapshot)

    def _open_descriptor(self, base: int) -> int:
        """The descriptor of a segment: opened first; then the published end is compared with
        `durable` (SYNC-6).
        """
        state = self._state
        with self._opening:
            self._forget_cut()
            fd = self._fds.get(base)
            if fd is None:
                name = file_names.segment_name(state.directory, base)
                fd = files.open_file(name, files.WRITE, state.context.mode)
                self._fds[base] = fd
                system.point("sync-opened")
                published = state.page.read()
                if published is not None and (
                    published.log_end <= state.page.word(system.WORD_DURABLE)
                    or (published.segment_base == base and not published.segment_size)
                ):
                    self._trusted_bases.add(base)
                self._limit_descriptors(base)
            return fd

    def _forget_cut(self) -> None:
        """Close all descriptors if the log was cut: a name may lead to another file. REQUIRES
        `_opening`.

        A cut holds the sync lock, so the descriptors of a sync in progress are newer than any cut.
        """
        cuts = self._state.page.word(system.WORD_CUTS)
        if cuts == self._cuts:
            return
        fds = self._fds
        self._fds = {}
        self._trusted_bases.clear()
        self._cuts = cuts
        for fd in fds.values():
            files.close(fd)

    def _limit_descriptors(self, newest: int) -> None:
        """Close the oldest descriptors if segments fill faster than they are synced; their sync
        opens and writes them again.

        REQUIRES `_opening`.
        """
        while len(self._fds) > SEGMENTS_MAX and not self._users:
            oldest = min(self._fds.keys() - {newest})
            files.close(self._fds.pop(oldest))
            self._trusted_bases.discard(oldest)

    def _rewrite(self, info: SegmentInfo, fd: int, durable: int) -> None:
        """Write the same bytes again through this descriptor: a failed write-back left them clean
        in the cache.
        """
        path = file_names.segment_path(self._state.path, info.base)
        entry = self._reader.find_entry(info, durable)
        position = 0
        if index.names_its_batch(fd, entry, info.base, info.size):
            position = entry.position
        walk = segment.Walk(fd, path, Chain(gaps_allowed=True), position, info.size)
        for data, batches in walk.chunks():
            ends = batches["base_offset"] + batches["last_offset_delta"]
            is_unsynced = ends >= durable
            if is_unsynced.any():
                first = int(batches["position"][is_unsynced.argmax()]) - position
                files.write_all(fd, data[first:], position + first, path)
            position += len(data)
        if walk.end != info.size:
            raise _LostBytes(info.base, path, walk.end)

    def _find_poisoned(self) -> set[int]:
        """Bases of marked segments. A word of the page is 0 if there are none, which saves listing
        thousands of files.
        """
        if not self._state.page.word(system.WORD_POISON):
            return set()
        return set(poisoned_bases(self._state.path))

    def _poison(self, bases: list[int], level: int, reason: str) -> None:
        """Mark segments whose sync failed, or may have failed: a file first, then the page, so that
        no process trusts the next successful sync.
        """
        state = self._state
        failed_level = logging.ERROR
        if not files.exists(state.path):
            # the sync raises that, and no later one can trust what is not there
            level = logging.DEBUG
            failed_level = logging.DEBUG
        for base in bases:
            path = file_names.segment_path(state.path, base)
            logger.log(
                level, "%s: %s is marked, its unsynced bytes will be written again", reason, path
            )
            path = state.path / f"{file_names.POISON}{base}"
            try:
                with files.opened(path, files.CREATE, state.context.mode) as fd:
                    files.sync(fd, path)
                files.sync_directory(state.path)
            except StorageError as problem:
                logger.log(failed_level, "cannot write the mark to disk: %s", problem)
            self._trusted_bases.discard(base)
        if bases:
            state.page.set(system.WORD_POISON, bases[-1] + 1)

    def _raise_durable(self, published: Published) -> None:
        state = self._state
        self._record.store(published.log_end, published.segment_base, state.context.mode)
        system.point("durable-stored")
        covered = published.log_end - state.page.word(system.WORD_DURABLE)
        state.page.set(system.WORD_AWAITED, state.published().log_end + covered)
        state.page.set(system.WORD_DURABLE, published.log_end)
        for base in list(self._fds):
            if base < published.segment_base:
                self._close_descriptor(base)

    def flush_if_due(
        self, end: int, unsynced_count: int, unsynced_ms: int, deadline_ns: int
    ) -> None:
        """Sync for `flush.messages`, which is part of the acknowledgement, and for `flush.ms` if
        the housekeeper is late.
        """
        state = self._state
        if unsynced_count >= state.config.flush_messages:
            self.wait(end, deadline_ns)
        elif unsynced_ms > state.config.flush_ms and unsynced_count > 0:
            try:
                self.sync(end, deadline_ns)
            except (
                ClosedError,
                DurabilityError,
                LockTimeoutError,
                UnknownTopicOrPartitionError,
            ) as problem:
                log_messages.report(
                    logger,
                    logging.ERROR,
                    (state.path, "flush"),
                    f"background flush of {state.name}",
                    problem,
                )

    def flush_if_late(self) -> None:
        """As `flush_if_due`, for records that were not written by `Partition.append`."""
        state = self._state
        state.ensure_open()
        published = state.published()
        page = state.page
        unsynced_count = published.log_end - page.word(system.WORD_DURABLE)
        unsynced_ms = (system.boot_ns() - page.word(system.WORD_UNSYNCED_SINCE)) // 1_000_000
        self.flush_if_due(published.log_end, unsynced_count, unsynced_ms, state.deadline())

    def wait(self, upto: int, deadline_ns: int) -> None:
        """As `sync`, but raise an error if `durable` has not reached `upto`."""
        if self.sync(upto, deadline_ns) < upto:
            raise LockTimeoutError(
                "not durable before the deadline",
                path=self._state.path,
                expected=upto,
                found=self._state.page.word(system.WORD_DURABLE),
            )
