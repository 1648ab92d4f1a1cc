"""The followers of one leader, to which this process appends together with the leader, in one call
of the C core.

FOLLOWERS-1  the mutexes of the followers are tried, never waited for, while this thread has the
    mutex of the leader
FOLLOWERS-2  a writer is used only while it is the present one of its partition, and the partition
    is marked dirty
FOLLOWERS-3  every unusual case is left to the copy: then only the leader takes the run, and the
    caller commits it
FOLLOWERS-4  disks that have not answered a moment ago are asked, and what does not answer at once
    is left to the copy: the disk may hang
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from embedlog._native import replication, system
from embedlog._native.replication import Together
from embedlog.partition.interposer import InterposedWriter

if TYPE_CHECKING:
    from embedlog._native.probe import Probe
    from embedlog.partition.append_lock import AppendLock
    from embedlog.partition.log_context import AppendProgress
    from embedlog.partition.state import PartitionState


class DirectReplicas:
    """The present writers of a leader and its followers: a `DirectTarget` while they are the
    present ones.
    """

    def __init__(
        self,
        leader: PartitionState,
        followers: Sequence[PartitionState],
        epoch: int,
        needed: int,
        used: list[system.Writer],
        probes: Sequence[Probe],
    ) -> None:
        """`used` has the writers, the leader's first."""
        self._leader = leader
        self.mutex = leader.mutex
        self.followers = tuple(
            (state, state.mutex, writer) for state, writer in zip(followers, used[1:], strict=True)
        )
        slots = [state.context.node_slot for state in (leader, *followers)]
        self.native = Together(
            (slots[0], used[0]), list(zip(slots[1:], used[1:], strict=True)), epoch, needed, probes
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
        probes: Sequence[Probe] = (),
    ) -> None:
        """`needed`: the least ISR, if the page requires no larger one. `probes`: of the disks of all
        of them.
        """
        self._leader = leader
        self._probes = probes
        self._epoch = epoch
        self.needed = needed
        self._states = [lock.state for lock in followers]
        self._direct: DirectReplicas | None = None
        self._answered_ns = 0
        # the leader's page must be read again: another ISR was found, or a follower is not prepared
        self.stale = False

    @property
    def direct(self) -> DirectReplicas | None:
        """The target of direct appends, None until an append of this process has prepared all
        files.
        """
        found = self._direct
        return (
            found
            if found is not None and not self.stale and self._present() == _writers(found)
            else None
        )

    def _present(self) -> list[system.Writer | None]:
        return [state.writer for state in (self._leader.state, *self._states)]

    @property
    def answered_ns(self) -> int:
        """The last time at which the followers had all records, as far as this process knows."""
        found = self._direct
        return (
            self._answered_ns if found is None else max(self._answered_ns, found.native.answered_ns)
        )

    def answered(self, at_ns: int) -> None:
        """The followers had all records at this time (FOLLOWERS-4)."""
        self._answered_ns = at_ns
        found = self._direct
        if found is not None:
            found.native.note_answer(at_ns)

    def append(self, progress: AppendProgress, deadline_ns: int, known: Any) -> int:
        """Append the rest of a run; a code of `system.Writer.append`. The progress shows what was
        committed.

        REQUIRES the mutex of the leader.
        """
        lock = self._leader
        lock.writer.require(self._epoch, all_in_sync=self.needed)
        writer = lock.state.writer or lock.writer.native()
        arguments = (progress.run.buffer, progress.start, progress.table_left, deadline_ns, known)
        if isinstance(writer, InterposedWriter):
            return writer.append(*arguments)  # the followers copy it
        entered = self._enter()
        try:
            code = (
                self._together().append(*arguments)
                if len(entered) == len(self._states)
                else replication.OTHER_ISR
            )
            self.stale = self.stale or (
                code == replication.OTHER_ISR and len(entered) == len(self._states)
            )
        finally:
            for mutex in entered:
                mutex.release()
        if code == system.APPENDED:
            progress.committed = int(writer.out.next_offset)
        elif code in (replication.OTHER_ISR, replication.APART):
            return writer.append(*arguments)
        return system.APPENDED if code == replication.UNCOMMITTED else code

    def _enter(self) -> list[threading.RLock]:
        """The taken mutexes of the followers; fewer than all if one is not free or not prepared
        (FOLLOWERS-1, FOLLOWERS-2).
        """
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

    def _together(self) -> Together:
        """The present writers for the C core. REQUIRES all mutexes, and that each partition has a
        writer.
        """
        found = self._direct
        present = self._present()
        if found is None or present != _writers(found):
            used = [writer for writer in present if writer is not None]
            found = self._direct = DirectReplicas(
                self._leader.state, self._states, self._epoch, self.needed, used, self._probes
            )
            found.native.note_answer(self._answered_ns)
        return found.native


def _writers(direct: DirectReplicas) -> list[system.Writer | None]:
    return [*direct.native.writers]
