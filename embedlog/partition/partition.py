"""One partition, shared by any number of processes: locked, repaired, appended to, read.

D5  a thread takes the mutex, then the OFD lock; whoever finds the owner word set repairs before anything else
D6  after every failure the partition is as it was, or the owner word stays set so that the next holder repairs
D7  descriptors are few: one set for the active segment, the others come from the log's cache
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from embedlog._native import system
from embedlog._native.system import Published
from embedlog.config.topic import TopicConfig
from embedlog.errors import (
    ClosedError,
    InvalidRecordError,
    LockTimeoutError,
    ReadOnlyError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from embedlog.format.producer_state import ProducerState
from embedlog.format.record_batch import EncodedRun, Stamp
from embedlog.partition import markers, producer_recovery, roll
from embedlog.partition.aborted_index import Aborted
from embedlog.partition.context import UNDONE, Appended, Home
from embedlog.partition.producer_sequences import Going, Sequencing
from embedlog.partition.reader import Fetched, Reader
from embedlog.partition.segment_list import Segments
from embedlog.partition.state import Presence
from embedlog.partition.sync import Syncer
from embedlog.partition.time_pruning import Pruning
from embedlog.storage import file_names, files, lock_order, locks
from embedlog.storage.manifest import DIGESTED
from embedlog.types import OffsetAndTimestamp

if TYPE_CHECKING:
    from embedlog.format.buffer_pool import BufferPool
    from embedlog.partition.tail import Tail

logger = logging.getLogger("embedlog")

LOOK_S = 0.001  # a swap takes about as long; a reader without the right to lock cannot be woken


class Partition(Presence):
    """Append to and read one partition.

    Threads: every public method may be called from any thread. Raises ClosedError after `close`.
    """

    def __init__(self, home: Home, topic: str, number: int, path: Path, topic_id: bytes, config: TopicConfig) -> None:
        super().__init__(home, topic, number, path, topic_id, config)
        self._lock_name = str(path / file_names.LOCK)
        self.lock_file: locks.LockFile | None = None
        self.writer: system.Writer | None = None
        self.writer_fds: tuple[int, ...] = ()
        self.segments = Segments(self)
        self.reader = Reader(self)
        self.aborted = Aborted(self)
        self.pruning = Pruning(self)
        self.sequencing = Sequencing(self)
        self.syncer: Syncer = Syncer(self)

    def close(self) -> None:
        """Give back descriptors and mapping; what was appended stays where it is. Idempotent."""
        super().close()
        self.home.writers.closed(self)
        self.home.syncers.closed(self)

    def _forget_files(self) -> None:
        self.segments.forget()
        self.reader.forget()
        self.aborted.forget()
        self.sequencing.forget()

    def close_writer(self) -> None:
        fds, self.writer_fds = self.writer_fds, ()
        for fd in fds:
            files.close(fd)
        if self.writer is not None:
            self.writer.segment(-1, -1, -1, -1, -1)

    # ---- locking ---------------------------------------------------------------------------------

    def _mutex_until(self, deadline_ns: int) -> contextlib.AbstractContextManager[None]:
        return locks.holding(self.mutex, deadline_ns, self.path)

    @contextlib.contextmanager
    def exclusive(self, deadline_ns: int | None = None) -> Iterator[Published]:
        """The append lock with everything repaired and caught up: for a roll, a truncation, a checked append.

        An exception inside leaves the owner word set: the next holder repairs. Raises LockTimeoutError.
        """
        self.ensure_open()
        until = self.deadline() if deadline_ns is None else deadline_ns
        with self._mutex_until(until), self.exclusive_mutexed(until) as now:
            yield now

    @contextlib.contextmanager
    def exclusive_mutexed(self, deadline_ns: int) -> Iterator[Published]:
        """As `exclusive`. REQUIRES the mutex."""
        broken = True
        lock_order.taken(self._lock_name)
        try:
            self._begin(deadline_ns)
            now = self.page.read()
            if now is None:
                raise StorageError("the control page is damaged", path=self.path / file_names.PAGE)
            yield now
            broken = False
        finally:
            writer = self.writer
            if writer is not None:  # an interrupt may have come right behind the locking: what is not held is not hurt
                try:
                    writer.end(broken)
                except BaseException:  # an interrupt before it had done its work
                    writer.end(True)
                    raise
            lock_order.left(self._lock_name)

    def _begin(self, deadline_ns: int) -> None:
        """Take the append lock; repair and map again until the page is in order."""
        while True:
            code = self.appender().begin(min(deadline_ns, system.boot_ns() + system.SLICE_NS))
            if code == 0:
                return
            self._settle(code, deadline_ns)

    def _settle(self, code: int, deadline_ns: int) -> None:
        """Do what an append's code asks for; return to try again, but not behind the deadline."""
        late = system.boot_ns() >= deadline_ns
        if code == system.TIMED_OUT:
            if late:
                raise self._lock_timeout()
        elif late and code > 0 and code != system.IS_DELETED:
            raise LockTimeoutError("not in order before the deadline", path=self.path, found=UNDONE[code])
        elif code == system.MUST_REPAIR:
            self._repair(deadline_ns)
        elif code == system.MUST_REMAP:
            self._remap_mutexed()
        elif code == system.LOST_DIRECTORY:
            self.home.retake()
            self._guard_directory()
        elif code == system.IS_DELETED:
            raise UnknownTopicOrPartitionError(f"topic {self.topic} was deleted", path=self.path)
        elif code in (system.MUST_ROLL, system.IS_POISONED):
            full = self.appender().segment_base
            self.sequencing.catch_up()  # for the snapshot beside the new segment
            with self.exclusive_mutexed(deadline_ns) as now:
                if now.segment_base == full:  # else somebody else was faster
                    roll.roll_locked(self, now)
        elif code == system.MUST_REOPEN:
            self.open_active()
        elif code == system.NOT_DATA:
            raise InvalidRecordError(f"a control batch among the data for {self.topic}-{self.number}; append_marker writes those")
        else:
            raise StorageError("cannot append", errno=system.errno_of(code), path=self.path)

    def _repair(self, deadline_ns: int) -> None:
        writer = self.appender()
        lock = self.lock_file
        if lock is None:
            raise ClosedError(f"partition {self.topic}-{self.number} is closed")
        broken = True
        try:
            self._lock_os(lock, deadline_ns)
            page = self.page
            if page.word(system.WORD_OWNER) or page.word(system.WORD_ROLL_INTENT):
                self.mark_dirty()
                roll.repair_locked(self)
            broken = False
        finally:
            writer.end(broken)

    # ---- appending -------------------------------------------------------------------------------

    def appender(self) -> system.Writer:
        """Lock file and limits for appending, opened when first needed. REQUIRES the mutex."""
        if self.writer is None:
            if self.home.read_only:
                raise ReadOnlyError("the log was opened read-only; without read_only=True it can be changed", path=self.path)
            page, mapped = self.page, self.page_file
            lock = self._open_lock()
            try:
                self.writer = system.Writer(
                    page,
                    self.home.directory_page,
                    lock.path,
                    str(self.path / file_names.PAGE),
                    lock.fd,
                    mapped.device if mapped else 0,
                    mapped.inode if mapped else 0,
                )
            except OSError as problem:
                lock.close()
                raise StorageError("cannot look at the append lock", errno=problem.errno or 0, path=lock.path) from problem
            self.lock_file = lock
            self._guard_directory()
            self.apply_config(self.config)
            self.home.writers.opened(self)
        return self.writer

    def _guard_directory(self) -> None:
        """Before every append the directory's `.lock` must still be the file that we hold: a broker unlinks it late."""
        if self.writer is not None and self.home.held_lock is not None:
            self.writer.guard(*self.home.held_lock())

    def settled(self) -> Published:
        """The published tuple once no segment is being replaced; finished here if the one who was at it is dead.

        Raises LockTimeoutError.
        """
        if not self.home.read_only:
            with self.exclusive() as now:
                return now
        until, pause = self.deadline(), threading.Event()
        while (now := self.published()).generation % 2:
            if system.boot_ns() >= until:
                raise LockTimeoutError("segments are being replaced, and whoever was at it does not go on", path=self.path)
            pause.wait(LOOK_S)
        return now

    def release(self) -> bool:
        """Give back the descriptors of an idle writer, not those of its syncs; False if it is at work."""
        if locks.owned(self.mutex):
            return False
        try:
            if not self.mutex.acquire(blocking=False):
                return False
            self._drop_appender()
            return True
        finally:
            try:
                self.mutex.release()
            except RuntimeError:
                pass  # it was never taken

    def _drop_writer(self) -> None:
        self._drop_appender()
        self.syncer.close()

    def _drop_appender(self) -> None:
        self.close_writer()
        self.writer = None
        if self.lock_file is not None:
            self.lock_file.close()
            self.lock_file = None

    def publish_locked(self, after: Published) -> None:
        """Publish a tuple that describes other files than before. REQUIRES the append lock."""
        self._forget_files()
        self.page.publish(after, self.home.directory_page)

    def apply_config(self, config: TopicConfig) -> None:
        """Take a topic's new settings."""
        self.config = config
        if self.writer is not None:
            interval_ms = min(config.segment_ms, config.max_compaction_lag_ms) if config.compacted else config.segment_ms
            self.writer.limits(
                segment_bytes=config.segment_bytes,
                segment_ms=interval_ms,
                index_bytes=config.segment_index_bytes,
                index_interval=config.index_interval_bytes,
                append_time=config.message_timestamp_type == "LogAppendTime",
            )

    def open_active(self) -> None:
        """Descriptors of the segment that is active now, for this process's appends."""
        now = self.page.read()
        if now is None:
            self._remap_mutexed()
            return
        self.close_writer()
        fds: list[int] = []
        try:
            digests = [file_names.DIGESTS] if now.flags & DIGESTED else []
            for suffix in (file_names.LOG, file_names.INDEX, file_names.TIME_INDEX, *digests):
                path = file_names.segment_path(self.path, now.segment_base, suffix)
                fds.append(files.open_file(path, files.THROUGH if self.home.locked else files.CREATE, self.home.mode))
        except BaseException:
            for fd in fds:
                files.close(fd)
            raise
        self.writer_fds = tuple(fds)
        self.syncer.opened(now.segment_base, fds[0])
        self.appender().segment(now.segment_base, *[*fds, -1][:4])

    def append(
        self,
        run: EncodedRun,
        *,
        deadline_ns: int | None = None,
        stamp: Stamp | None = None,
        flush: bool = True,
        going: Going | None = None,
    ) -> Appended:
        """Append whole batches, in order; with `stamp`, as that producer's, who must have stamped them (`record.stamp`).

        Raises LockTimeoutError, ReadOnlyError, RecordTooLargeError, StorageError, UnknownTopicOrPartitionError; for a stamped run
        FencedError, OutOfOrderSequenceError, InvalidTransactionStateError, with nothing written.

        After another error nothing of the batch at hand is visible; batches of the same run before it may be. A stamped run may
        then be appended again as it is: whatever of it is in the log already is found there. Without `flush` the caller, who
        holds another partition's lock, calls `flush_if_due` behind it. `going` remembers how far the same run came before.
        """
        self.home.check_open()
        self.ensure_open()
        self._check_sizes(run)
        until = self.deadline() if deadline_ns is None else deadline_ns
        going = going or Going(run)
        with self._mutex_until(until):
            self.home.check_open()  # it may have been closed, in order, while this thread waited
            if not self._marked_dirty:
                with self.exclusive_mutexed(until):
                    self.mark_dirty()
            self.home.writers.used(self)
            size, buffer = len(run.buffer), run.buffer
            known = system.NULL if stamp is None else self.sequencing.known(stamp)
            while going.start < size:
                writer = self.appender()
                code = writer.append(buffer, going.start, going.rows_left, min(until, system.boot_ns() + system.SLICE_NS), known)
                if code == system.APPENDED:
                    out = writer.out
                    if stamp is not None and stamp.transactional:
                        self.sequencing.appended(run, going.start, out)
                    going.take(out.base_offset, out.next_offset, out.consumed, out.append_time_ms)
                    continue
                if code == system.MUST_CATCH_UP and stamp is not None:
                    code = self.sequencing.append(stamp, going, until)
                if code != system.APPENDED:
                    self._settle(code, until)
            unsynced_ms, durable = self.appender().out.unsynced_ms, self.page.word(system.WORD_DURABLE)
        if flush:
            end = going.pieces[-1][1]
            self.syncer.flush_if_due(end, end - durable, unsynced_ms, until)
        return going.appended()

    def append_marker(
        self, producer_id: int, epoch: int, *, commit: bool, coordinator_epoch: int | None = None, deadline_ns: int | None = None
    ) -> int | None:
        """End a transaction here with a marker that carries the raised `epoch`: its offset, None if that epoch was stored before.

        Raises FencedError for a coordinator epoch that goes back, and what `append` raises. May be repeated after any error.
        """
        self.home.check_open()
        self.ensure_open()
        until = self.deadline() if deadline_ns is None else deadline_ns
        with self._mutex_until(until):
            self.home.writers.used(self)
            while (found := markers.append_marker(self, producer_id, epoch, commit, coordinator_epoch, until)) is not None:
                code, offset = found
                if code == system.APPENDED:
                    break
                self._settle(code, until)
            if found is None:
                return None
            out = self.appender().out
            unsynced_ms, durable = out.unsynced_ms, out.durable
        self.syncer.flush_if_due(offset + 1, offset + 1 - durable, unsynced_ms, until)
        return offset

    def open_transactions(self) -> list[tuple[int, int, int]]:
        """(producer id, epoch, first offset) of every transaction that is open here, the oldest first."""
        producers = self._present().producers.values()
        found = [(each.producer_id, each.epoch, each.transaction_start) for each in producers if each.transaction_start >= 0]
        return sorted(found, key=lambda each: each[2])

    def stored_epoch(self, producer_id: int) -> int:
        """The newest epoch of a producer here, -1 if it is not known."""
        producer = self._present().producers.get(producer_id)
        return producer.epoch if producer is not None else -1

    def _present(self) -> ProducerState:
        self.home.check_open()
        self.ensure_open()
        with self._mutex_until(self.deadline()):
            return self.sequencing.present()

    @property
    def batch_limit(self) -> int:
        """Bytes of the largest batch that is taken now."""
        return self.config.batch_limit

    def _check_sizes(self, run: EncodedRun) -> None:
        if not len(run.batches) or not len(run.buffer):
            raise InvalidRecordError(f"an append to {self.topic}-{self.number} without a batch")
        if len(run.buffer) > self.batch_limit:
            self.config.check_batch(int(run.batches["size"].max()), f"a batch for {self.topic}-{self.number}")

    def fetch(
        self,
        offset: int,
        *,
        max_bytes: int = 1 << 20,
        isolation: str = "read_uncommitted",
        upto: int | None = None,
        pool: BufferPool | None = None,
    ) -> Fetched:
        """Whole checked batches from the one that holds `offset`; none at the end.

        Raises OffsetOutOfRangeError, CorruptRecordError.
        """
        self.home.check_open()
        self.ensure_open()
        committed = isolation == "read_committed"
        return self.reader.fetch(offset, max_bytes=max_bytes, committed=committed, upto=upto, pool=pool)

    def tail(self, offset: int, isolation: str) -> Tail | None:
        """The short way to what is published behind `offset`, if that is the end and was read up to in the usual way."""
        return self.reader.tail(offset, isolation == "read_committed")

    def unread_bytes(self, offset: int) -> int | None:
        """Bytes that wait behind `offset`, None where that cannot be told without reading."""
        return self.reader.unread_bytes(offset)

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        """The largest epoch known here that is at most `epoch`, and the offset at which it ended; (-1, -1) if there is none."""
        self.ensure_open()
        return self.reader.epoch_end(epoch)

    def offset_for_time(self, timestamp_ms: int, isolation: str = "read_uncommitted") -> OffsetAndTimestamp | None:
        """The first record with this timestamp or a later one, None if there is none."""
        self.home.check_open()
        self.ensure_open()
        return self.reader.offset_for_time(timestamp_ms, isolation == "read_committed")

    def expire_producers(self) -> None:
        """Forget producers that have been idle for long; for the housekeeper."""
        if self.page_file is not None and self.sequencing.loaded:
            with self._mutex_until(self.deadline()):
                self.sequencing.expire(self.home.producer_expiration_ms)

    def write_snapshot(self, now: Published) -> None:
        """Leave the producers as of the log end beside the log. REQUIRES the append lock."""
        if self.page.word(system.WORD_SNAPSHOT) != now.log_end + 1:
            producer_recovery.write_snapshot(self.path, self.sequencing.state_locked(now).encode(), now.log_end, self.home.mode)
            self.page.set(system.WORD_SNAPSHOT, now.log_end + 1)

    def sync(self, deadline_ns: int | None = None) -> int:
        """Put everything that is published now on stable storage; returns the durable offset. Raises DurabilityError."""
        self.ensure_open()
        return self.syncer.sync(self.published().log_end, self.deadline() if deadline_ns is None else deadline_ns)
