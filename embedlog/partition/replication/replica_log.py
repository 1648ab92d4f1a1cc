"""The log of one replica: it leads, or follows a leader; it takes batches unchanged, and commits what the ISR has.

REPLICALOG-1  every change happens under the append lock of this partition, and compares the epoch of the page first
REPLICALOG-2  the start of an epoch is in the leader-epoch-checkpoint before a page or a batch shows the epoch
REPLICALOG-3  a follower is cut where its epochs and those of the leader part, before it takes a batch of a later epoch
REPLICALOG-4  a batch is checked by the read from the leader, and written unchanged
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from embedlog._native import replication, system
from embedlog._native.replication import Leading, Members, Replica
from embedlog._native.system import Published
from embedlog.errors import StorageError
from embedlog.format.record_columns import Batches
from embedlog.partition import markers, truncate
from embedlog.partition.append_lock import AppendLock
from embedlog.partition.held import Held
from embedlog.partition.reader import Fetched
from embedlog.storage import checkpoints, file_names

CONTROL_BATCH = 0x20


class Decision(NamedTuple):
    """An installed decision about a partition, as far as its pages have it."""

    leader: int  # node
    epoch: int
    partition_epoch: int
    isr: int  # a bit for each directory
    min_in_sync: int


class Fenced(Exception):
    """The page is in a later epoch than the caller. Never leaves the engine."""


class ReplicaLog:
    """The replica that one partition of one directory is. Threads: any."""

    def __init__(self, lock: AppendLock) -> None:
        self._lock = lock
        self._state = lock.state

    def published(self) -> tuple[Published, Replica]:
        """The published tuple and the replica state, of one publication. Raises StorageError."""
        self._state.published()  # maps the page again if it was replaced
        found = replication.read(self._state.page)
        if found is None:
            raise StorageError("the control page is damaged", path=self._state.path / file_names.PAGE)
        return found

    # ---- roles -----------------------------------------------------------------------------------

    def lead(self, decision: Decision, deadline_ns: int) -> bool:
        """Install a decision by which this replica leads; False if the page shows it, or a later one (REPLICA-16)."""
        with self._lock.exclusive(deadline_ns) as held:
            now, replica = self._read(held)
            if (decision.epoch, decision.partition_epoch) <= (now.epoch, replica.partition_epoch) and replica.role:
                return False
            if decision.epoch < now.epoch:
                return False
            start = replica.epoch_start
            if replica.role != replication.ROLE_LEADER or decision.epoch != now.epoch:
                start = now.log_end
                self._begin_epoch(held, decision.epoch, start)
            changed = replica._replace(
                epoch_start=start,
                maximal_isr=decision.isr,
                decided_isr=decision.isr,
                role=replication.ROLE_LEADER,
                leader=decision.leader,
                partition_epoch=decision.partition_epoch,
                min_in_sync=decision.min_in_sync,
            )
            self._publish(held, now._replace(epoch=decision.epoch), changed)
        return True

    def follow(self, leader: int, epoch: int, epoch_end: Callable[[int], tuple[int, int]], deadline_ns: int) -> int:
        """Follow a leader in this epoch; the log end after the cut (REPLICALOG-3).

        `epoch_end` is that of the leader's partition. Raises Fenced.
        """
        with self._lock.exclusive(deadline_ns) as held:
            now, replica = self._read(held)
            if now.epoch > epoch or (now.epoch == epoch and replica.role == replication.ROLE_LEADER):
                raise Fenced
            if now.epoch == epoch and replica.role == replication.ROLE_FOLLOWER:
                return now.log_end
            end = agreed_end(checkpoints.read_epochs(held.path / file_names.EPOCHS), now.log_end, epoch_end)
            if end < now.log_end:
                now = truncate.cut_to(held, end)
            changed = replica._replace(maximal_isr=0, decided_isr=0, role=replication.ROLE_FOLLOWER, leader=leader, epoch_start=0)
            now = now._replace(epoch=epoch, high_watermark=min(now.high_watermark, end))
            self._publish(held, now, changed)
        return end

    def _begin_epoch(self, held: Held, epoch: int, start: int) -> None:
        path = held.path / file_names.EPOCHS
        epochs = checkpoints.read_epochs(path)
        if epochs.assign(epoch, start):
            checkpoints.write_epochs(path, epochs, held.mode)

    # ---- copies ----------------------------------------------------------------------------------

    def take(self, fetched: Fetched, leading: Leading, deadline_ns: int) -> int:
        """Append the batches that a read from the leader returned; the log end.

        Raises Fenced. Stops at a batch that does not continue the log: another process has copied it.
        """
        with self._lock.exclusive(deadline_ns) as held:
            for rows in _runs(fetched.batches):
                first, last = rows[0], rows[-1]
                run = fetched.data[int(first["position"]) : int(last["position"]) + int(last["size"])]
                if not self._take_run(held, run, rows, leading):
                    break
            return self._read(held)[0].log_end

    def _take_run(self, held: Held, run: memoryview, rows: Batches, leading: Leading) -> bool:
        """Append one run of data batches, or one marker; False if it does not continue the log. Raises Fenced, StorageError."""
        start, known = 0, checkpoints.read_epochs(held.path / file_names.EPOCHS).latest_epoch
        held.state.mark_dirty()
        while start < len(run):
            writer = held.writer.native()
            ending = self._ending(held, run, rows) if int(rows["attributes"][0]) & CONTROL_BATCH else replication.NO_ENDING
            code = replication.follow(writer, leading._replace(data_epoch=known), run, start, rows, ending)
            if code == system.APPENDED:
                start += writer.out.consumed
            elif code == replication.NEW_EPOCH:
                row = rows[np.searchsorted(rows["position"], int(rows["position"][0]) + start)]
                known = int(row["leader_epoch"])
                self._begin_epoch(held, known, int(row["base_offset"]))
            elif code == replication.FENCED:
                raise Fenced
            elif code == replication.BEHIND:
                return False
            else:
                self._lock.settle_held(code)
        return True

    # ---- the commit ------------------------------------------------------------------------------

    def commit(self, members: Members, node_slot: int, epoch: int, deadline_ns: int) -> int:
        """Raise the high watermark to what every member of the maximal ISR has; returns it. Raises Fenced."""
        with self._lock.exclusive(deadline_ns) as held:
            writer = held.writer.native()
            replication.require_leader(writer, node_slot, epoch, all_in_sync=False)
            code, mark = members.commit(writer)
            if code == system.NOT_LEADER:
                raise Fenced
            if code < 0:
                raise StorageError("cannot commit", errno=system.errno_of(code), path=held.path)
            return mark
