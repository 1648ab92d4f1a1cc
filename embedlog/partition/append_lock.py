"""The append lock of one partition: mutex, then lock file, then repair until the control page is in
order.

- A thread takes the mutex, then the OFD lock; a holder that finds the owner word set repairs before
  anything else.
- After a failure the partition is as it was, or the owner word stays set so that the next holder
  repairs.
- The consequence of each code of the C core is defined here: for a caller that has the lock, and
  for one that has not.
- Damage can make a repair impossible. A holder without a repair may take the role from the page. It
  may also store the intent of a cut that removes all segments, which the next repair completes
  first (`log_cut`).
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple

from embedlog._native import replication, system
from embedlog._native.replication import Replica
from embedlog._native.scope import Guard, scope
from embedlog._native.system import Published
from embedlog.errors import (
    EmbedlogError,
    InvalidRecordError,
    LockTimeoutError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from embedlog.format.producer_state import ProducerState
from embedlog.format.record_columns import Stamp
from embedlog.partition.append_repair import repair
from embedlog.partition.locked_partition import LockedPartition
from embedlog.partition.producer_sequences import ProducerSequences
from embedlog.partition.replication.refusals import NotLeader, Refused, TooFew
from embedlog.partition.roll import roll
from embedlog.partition.segment_list import SegmentList
from embedlog.partition.state import PartitionState
from embedlog.partition.writer import AppendWriter
from embedlog.storage import file_names, files, locks

NO_MUTEX: Final = contextlib.nullcontext()  # for a caller that holds it
# between two reads of a generation; a reader without the right to lock cannot be woken
PAUSE_S: Final = 0.001

UNDONE: Final = {
    system.MUST_REPAIR: "an append that was not finished is still to be repaired",
    system.MUST_ROLL: "a new segment is still to be begun",
    system.MUST_REOPEN: "the files of the active segment are still to be opened",
    system.MUST_REMAP: "the control page is still to be mapped",
    system.TOO_LARGE: "the batch is too large",
    system.IS_POISONED: "the segment whose sync failed is still to be left",
    system.LOST_DIRECTORY: "the directory's lock file is still to be taken again",
    system.MUST_CATCH_UP: "records of other processes are still to be read",
    system.NOT_DATA: "the batch holds no data",
}  # the reason for which an append could not be made before its deadline


class HeldAppend(NamedTuple):
    """The place of a batch that was appended under the lock, and the age in ms of the oldest record
    that is not durable.
    """

    base_offset: int
    next_offset: int
    unsynced_ms: int


class AppendLock:
    """The right to append to one partition. Threads: any."""

    def __init__(
        self,
        state: PartitionState,
        segments: SegmentList,
        writer: AppendWriter,
        producers: ProducerSequences,
    ) -> None:
        self.state = state
        self.segments = segments
        self.writer = writer
        self.producers = producers
        self._lock_name = f"{state.directory}/{file_names.LOCK}"

    # ---- taking it -------------------------------------------------------------------------------

    def mutex_until(self, deadline_ns: int) -> contextlib.AbstractContextManager[None]:
        """The mutex only, which excludes the other threads of this process. Raises
        LockTimeoutError.
        """
        return locks.holding(self.state.mutex, deadline_ns, self.state.path)

    def exclusive(
        self, deadline_ns: int | None = None
    ) -> contextlib.AbstractContextManager[LockedPartition]:
        """The lock with everything repaired and caught up.

        An exception inside leaves the owner word set: the next holder repairs. Raises
        LockTimeoutError.
        """
        state = self.state
        if state.closed or state.page_file is None:
            state.ensure_open()
        until = state.deadline() if deadline_ns is None else deadline_ns
        return self._exclusive(until, locks.holding(state.mutex, until, state.path))

    def exclusive_mutexed(
        self, deadline_ns: int
    ) -> contextlib.AbstractContextManager[LockedPartition]:
        """As `exclusive`. REQUIRES the mutex."""
        return self._exclusive(deadline_ns, NO_MUTEX)

    @scope
    def _exclusive(
        self, deadline_ns: int, mutex: contextlib.AbstractContextManager[None]
    ) -> Iterator[LockedPartition]:
        with mutex, Guard(self._end, told=True):
            locks.record_lock(self._lock_name)
            publication = self._begin(deadline_ns)
            yield LockedPartition(
                self.state, self.segments, self.writer, self.producers, publication
            )

    def _end(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give the OFD lock back; after an exception the next holder repairs. A lock that is not
        held is not harmed.
        """
        writer = self.state.writer
        if writer is not None:
            writer.end(kind is not None)
        locks.record_unlock(self._lock_name)

    def _make_locked(self) -> LockedPartition:
        return LockedPartition(self.state, self.segments, self.writer, self.producers)

    def _begin(self, deadline_ns: int) -> tuple[Published, Replica]:
        """Take the OFD lock; repair and map again until the control page is in order. What it
        publishes.
        """
        while True:
            writer = self.state.writer or self.writer.native()
            code = writer.begin(min(deadline_ns, system.boot_ns() + system.SLICE_NS))
            if code == 0:
                publication = replication.read(self.state.page)
                if publication is not None:
                    return publication
                writer.end(False)
                # which makes a damaged page again from the log (`control_page`)
                code = system.MUST_REMAP
            self.resolve_code(code, deadline_ns)

    # ---- the consequences of a code --------------------------------------------------------------

    def resolve_code(self, code: int, deadline_ns: int) -> None:
        """Perform the action for the code of a failed append or lock, without the lock. Return to
        try again before the deadline.
        """
        state = self.state
        late = system.boot_ns() >= deadline_ns
        if code == system.TIMED_OUT:
            if late:
                raise state.lock_timeout()
        elif late and code in UNDONE:
            raise LockTimeoutError(
                "partition not repaired before the deadline", path=state.path, found=UNDONE[code]
            )
        elif code == system.MUST_REPAIR:
            self._repair(deadline_ns)
        elif code == system.MUST_REMAP:
            state.remap_mutexed()
        elif code == system.LOST_DIRECTORY:
            state.context.reacquire()
            self.writer.guard_directory()
        elif code in (system.MUST_ROLL, system.IS_POISONED):
            full_base = self.writer.native().segment_base
            self.producers.catch_up()  # for the snapshot of the new segment
            with self.exclusive_mutexed(deadline_ns) as locked:
                if locked.published.segment_base == full_base:  # else another process was faster
                    roll(locked, locked.published)
        elif code == system.MUST_REOPEN:
            published = self.state.page.read()
            if published is None:
                self.state.remap_mutexed()
            else:
                self.writer.open_active(published)
        else:
            raise self._error_of(code)

    def append_held(self, batch: bytes, stamp: Stamp | None = None) -> HeldAppend:
        """Append one batch, as the producer's whose stamp it carries. REQUIRES the lock.

        Raises InvalidRecordError, StorageError, UnknownTopicOrPartitionError.
        """
        self.state.mark_dirty()
        while True:
            writer = self.writer.native()
            code = writer.append_locked(batch, 0)
            if code == system.APPENDED:
                break
            self.resolve_code_held(code)
        out = writer.out
        if stamp is not None:
            self.producers.update(stamp, out.next_sequence, out.seen)
        return HeldAppend(out.base_offset, out.next_offset, out.unsynced_ms)

    def resolve_code_held(self, code: int) -> None:
        """As `resolve_code`, for a caller that has the lock. The lock was taken, so nothing is left
        to repair or to take again.
        """
        if code in (system.MUST_ROLL, system.IS_POISONED):
            locked = self._make_locked()
            roll(locked, locked.published)
        elif code == system.MUST_REOPEN:
            # mapping the page again would give the lock back
            self.writer.open_active(self.state.read_page())
        elif code == system.MUST_REMAP:
            # raises: under the lock a damaged control page is not made again
            self.state.read_page()
        else:
            raise self._error_of(code)

    def _error_of(self, code: int) -> EmbedlogError | Refused:
        """The error for a code that no further try changes."""
        state = self.state
        if code == system.NOT_LEADER:
            return NotLeader()
        if code == system.TOO_FEW:
            return TooFew()
        if code == system.IS_DELETED:
            return UnknownTopicOrPartitionError(f"topic {state.topic} was deleted", path=state.path)
        if code == system.NOT_DATA:
            return InvalidRecordError(
                f"a control batch among the data for {state.name}; append_marker writes those"
            )
        if code == system.MUST_REPAIR:
            return StorageError("a failed append could not be undone", path=state.path)
        return StorageError("cannot append", errno=system.errno_of(code), path=state.path)

    def _repair(self, deadline_ns: int) -> None:
        writer = self.writer.native()
        lock = self.writer.lock_file
        if lock is None:
            self.state.raise_closed()
        is_broken = True  # until the page is in order: an interrupt may come between any two steps
        try:
            self.state.lock_os(lock, deadline_ns)
            page = self.state.page
            is_damaged = page.read() is None
            if not is_damaged:
                if page.word(system.WORD_OWNER) or page.word(system.WORD_ROLL_INTENT):
                    self.state.mark_dirty()
                    repair(self._make_locked())
                is_broken = False
        finally:
            writer.end(is_broken)
        if is_damaged:
            self.state.remap_mutexed()

    @scope
    def lock_unrepaired(self, deadline_ns: int) -> Iterator[LockedPartition | None]:
        """The lock of a partition whose repair fails, without the repair; None if no repair is due.

        The next holder repairs. Raises LockTimeoutError.
        """
        self.state.ensure_open()
        with locks.holding(self.state.mutex, deadline_ns, self.state.path):
            writer = self.writer.native()
            lock = self.writer.lock_file
            if lock is None:
                self.state.raise_closed()
            if writer.is_left:
                raise self.state.lock_timeout()
            with Guard(functools.partial(self._leave_broken, writer)):
                locks.record_lock(self._lock_name)
                self.state.lock_os(lock, deadline_ns)
                page = self.state.page
                is_due = page.word(system.WORD_OWNER) or page.word(system.WORD_ROLL_INTENT)
                yield self._make_locked() if is_due else None

    def _leave_broken(self, writer: system.Writer) -> None:
        writer.end(True)
        locks.record_unlock(self._lock_name)

    # ---- for readers -----------------------------------------------------------------------------

    def await_replacement(self) -> Published:
        """The published tuple at a moment when no segment is being replaced. An interrupted
        replacement is finished here.

        Raises LockTimeoutError.
        """
        state = self.state
        if not state.context.read_only:
            with self.exclusive() as locked:
                return locked.published
        until = state.deadline()
        pause = threading.Event()
        while True:
            published = state.published()
            if published.generation % 2 == 0:
                return published
            if system.boot_ns() >= until:
                raise LockTimeoutError(
                    "the replacement of segments by another process did not finish before the "
                    "deadline",
                    path=state.path,
                )
            pause.wait(PAUSE_S)

    def store(self, path: Path, data: bytes, generation: int) -> None:
        """Write a file that was made again from the log, unless segments were replaced since."""
        with self.exclusive() as locked:
            if locked.published.generation == generation:
                files.write_atomically(path, data, locked.mode)

    def current_producers(self) -> ProducerState:
        """The producers as of a log end that was published when this was called, or later. REQUIRES
        the mutex.
        """
        state = self.state
        producers = self.producers
        if state.loaded_files is not None:
            return state.loaded_files.history.state
        producers.catch_up()
        if producers.caught_up is not None:
            return producers.caught_up
        if state.context.read_only:
            return producers.state_locked(state.published())
        with self.exclusive_mutexed(state.deadline()) as locked:
            return producers.state_locked(locked.published)
