"""The followers of one leader, to which this process appends together with the leader, in one call
of the C core.

- The mutexes of the followers are tried, never waited for, while this thread has the mutex of the
  leader.
- A writer is used only while it is the current one of its partition, and the partition is marked
  dirty.
- Every unusual case is left to the copy: then only the leader takes the run, and the caller commits
  it. `_native.replication` says at each code what was written: after OTHER_ISR nothing, so the
  same run is appended once more, to the leader; after UNCOMMITTED the leader has it.
- A thread of the C core makes the append. A follower whose disk does not answer in a moment is left
  to the copy. A leader that does not answer fails: whether the run is in its log is not known then.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from embedlog._native import replication, system
from embedlog._native.replication import Together
from embedlog.errors import StorageError
from embedlog.partition.interposer import InterposedWriter

if TYPE_CHECKING:
    from embedlog.partition.append_lock import AppendLock
    from embedlog.partition.log_context import AppendProgress
    from embedlog.partition.state import PartitionState

HANGS: Final = "the directory does not answer: its disk hangs"  # text of an error


class DirectReplicas:
    """The writers of a leader and its followers at one moment: a `DirectTarget` while none of them
    was replaced.
    """

    def __init__(
        self,
        leader: PartitionState,
        followers: Sequence[PartitionState],
        epoch: int,
        needed: int,
        writers: list[system.Writer],
    ) -> None:
        """`writers` has the writers, the leader's first."""
        self._leader = leader
        self.mutex = leader.mutex
        self.followers = tuple(
            (state, state.mutex, writer)
            for state, writer in zip(followers, writers[1:], strict=True)
        )
        slots = [state.context.node_slot for state in (leader, *followers)]
        self.native = Together(
            (slots[0], writers[0]),
            list(zip(slots[1:], writers[1:], strict=True)),
            epoch,
            needed,
            leader.context.lock_timeout_ms * 1_000_000,
        )

    # The C core compares both. A getter in Python could run a signal's handler there, and its
    # exception would be lost.
    writer = property(attrgetter("_leader.writer"))
    config = property(attrgetter("_leader.config"))

    @property
    def addresses(self) -> tuple[int, int]:
        """As `Writer.addresses`, of an append to all."""
        return self.native.addresses


class Followers:
    """The followers of a leader in this process. Threads: any."""

    def __init__(
        self,
        leader: AppendLock,
        followers: Sequence[AppendLock],
        epoch: int,
        needed: int,
    ) -> None:
        """`needed`: the least ISR, if the page requires no larger one."""
        self._leader = leader
        self._epoch = epoch
        self.needed = needed
        self._states = [lock.state for lock in followers]
        self._direct: DirectReplicas | None = None
        self._answered_ns = 0
        # the leader's page must be read again: another ISR was found, or a follower is not prepared.
        # It stays true: the owner makes new `Followers`
        self.stale = False

    @property
    def direct(self) -> DirectReplicas | None:
        """The target of direct appends, None until an append of this process has prepared all
        files.
        """
        direct = self._direct
        if direct is None or self.stale or self._writers_now() != _writers(direct):
            return None
        return direct

    def _writers_now(self) -> list[system.Writer | None]:
        return [state.writer for state in (self._leader.state, *self._states)]

    @property
    def answered_ns(self) -> int:
        """The last time at which the followers had all records, as far as this process knows."""
        direct = self._direct
        if direct is None:
            return self._answered_ns
        return max(self._answered_ns, direct.native.answered_ns)

    def note_answer(self, at_ns: int) -> None:
        """The followers had all records at this time."""
        self._answered_ns = at_ns
        direct = self._direct
        if direct is not None:
            direct.native.note_answer(at_ns)

    def append(self, progress: AppendProgress, deadline_ns: int, producer: Any) -> int:
        """Append the rest of a run; a code of `system.Writer.append`. The progress shows what was
        committed.

        REQUIRES the mutex of the leader. Raises StorageError if the leader's disk hangs.
        """
        lock = self._leader
        lock.writer.require(self._epoch, all_in_sync=self.needed)
        writer = lock.state.writer or lock.writer.native()
        arguments = (
            progress.run.buffer,
            progress.start,
            progress.table_left,
            deadline_ns,
            producer,
        )
        if isinstance(writer, InterposedWriter):
            return writer.append(*arguments)  # the followers copy it
        entered = self._enter()
        try:
            if len(entered) == len(self._states):
                code = self._prepare_together().append(*arguments)
                if code == replication.OTHER_ISR:
                    self.stale = True
            else:
                code = replication.OTHER_ISR  # as the C core says it: nothing was written
        finally:
            for mutex in entered:
                mutex.release()
        if code == system.APPENDED:
            progress.committed = int(writer.out.next_offset)
            return code
        if code == replication.OTHER_ISR:
            return writer.append(*arguments)  # nothing was written
        if code == replication.IN_DOUBT:
            raise StorageError(HANGS, errno=errno.ETIMEDOUT, path=lock.state.path)
        if code == replication.UNCOMMITTED:
            return system.APPENDED  # the leader has the run, and the caller commits it
        return code

    def _enter(self) -> list[threading.RLock]:
        """The taken mutexes of the followers; fewer than all if one is not free or not prepared."""
        entered: list[threading.RLock] = []
        for state in self._states:
            if not state.mutex.acquire(blocking=False):
                break
            entered.append(state.mutex)
            if state.writer is None or not state.marked_dirty:
                entered.pop().release()
                self.stale = True  # it is to be prepared by a copy, or it failed and leaves the ISR
                break
        return entered

    def _prepare_together(self) -> Together:
        """The current writers for the C core. REQUIRES all mutexes, and that each partition has a
        writer.
        """
        direct = self._direct
        current_writers = self._writers_now()
        if direct is None or current_writers != _writers(direct):
            writers = [writer for writer in current_writers if writer is not None]
            direct = DirectReplicas(
                self._leader.state, self._states, self._epoch, self.needed, writers
            )
            self._direct = direct
            direct.native.note_answer(self._answered_ns)
        return direct.native


def _writers(direct: DirectReplicas) -> list[system.Writer | None]:
    return [*direct.native.writers]
