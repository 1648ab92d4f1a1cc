"""The log of one replica: it leads, or follows a leader; it takes batches unchanged, and commits
what the ISR has.

- Every change happens under the append lock of this partition, and compares the epoch of the page
  first.
- The start of an epoch is in the leader-epoch-checkpoint before a page or a batch has the epoch.
- A follower is cut where its epochs and those of the leader diverge, before it takes a batch of a
  later epoch. Cut, epoch and role are one publication (REPLICA-2).
- No file of another directory is read under this lock, except for control pages.
- A page without a role has no high watermark: the checkpoint of the last orderly close has one
  (REPLICA-11).
- Of a follower that began again, `purged_to` is above the log end until its copy has passed it. It
  is that of the leader of this epoch, as of the begin: the copy of another one begins again
  (REPLICA-20).
- A replica outside ISR and ELR, of which nothing is known to be its leader's, begins again at the
  leader's log start. Else it keeps the open transactions of records that the leader never had, or
  lacks those between both log starts. Its records above both are cut first, so that they stay in
  other files. Until it has begun, its page has no role.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from embedlog._native import replication, system
from embedlog._native.lazy_numpy import np
from embedlog._native.replication import (
    ROLE_FOLLOWER,
    ROLE_LEADER,
    ROLE_NONE,
    Leading,
    Members,
    Replica,
)
from embedlog._native.scope import scope
from embedlog._native.system import Published
from embedlog.errors import LockTimeoutError, OffsetOutOfRangeError, StorageError
from embedlog.format.buffer_pool import BufferPool
from embedlog.format.record_columns import batch_dtype
from embedlog.partition.append_lock import AppendLock
from embedlog.partition.epoch_file import Staging
from embedlog.partition.locked_partition import LockedPartition
from embedlog.partition.reader import Fetched, Reader
from embedlog.partition.replication.deleted_records import CopySource, lacks_deleted, source_of
from embedlog.partition.replication.followers import Followers
from embedlog.partition.replication.known_high_watermark import known_high_watermark
from embedlog.partition.replication.locked_replica import (
    LockedReplica,
    epochs_of_follower,
    epochs_of_leader,
)
from embedlog.partition.replication.refusals import Fenced, NotLeader, TooFew
from embedlog.partition.replication.replica_epochs import ReplicaEpochs
from embedlog.partition.sync import Syncer
from embedlog.partition.truncation import log_cut
from embedlog.storage import file_names, files
from embedlog.storage.checkpoints import EpochCache

__all__ = [
    "LeaderDecision",
    "Fenced",
    "Followers",
    "Leading",
    "LockedReplica",
    "NotLeader",
    "ReplicaLog",
    "Staging",
    "TooFew",
    "CopySource",
    "lacks_deleted",
    "source_of",
]

EpochEnd = Callable[[int], tuple[int, int]]
LAST_READS = 8  # of a last batch, while the log is cut


class LeaderDecision(NamedTuple):
    """A decision about a partition, as far as the leader's page contains it."""

    leader: int  # node
    epoch: int
    partition_epoch: int
    isr: int  # a bit for each directory
    min_in_sync: int


class ReplicaLog:
    """The replica of one partition in one directory. Threads: any."""

    def __init__(self, lock: AppendLock, reader: Reader, syncer: Syncer) -> None:
        self._lock = lock
        self._reader = reader
        self._syncer = syncer
        self._state = lock.state
        self.epochs = ReplicaEpochs(lock, reader)

    def published(self) -> tuple[Published, Replica]:
        """The published tuple and the replica state of one publication, without a lock. Raises
        StorageError.
        """
        state = self._state
        mapped = state.page_file
        if mapped is not None and not state.closed and not state.context.read_only:
            publication = replication.read(mapped.page)
            if publication is not None and mapped.page.is_alive():
                return publication
        published = state.published()  # maps the page again if it was replaced
        mapped = state.page_file
        if mapped is None:
            return published, Replica()  # of a reader, without a process that writes
        publication = replication.read(mapped.page)
        if publication is None:
            raise StorageError("the control page is damaged", path=state.path / file_names.PAGE)
        return publication

    @property
    def slot(self) -> int:
        """The bit of its directory in the ISR of control pages."""
        return self._state.context.node_slot

    @property
    def copied_bytes(self) -> int:
        """The bytes of batches that this process copied here from a leader, since the directory was
        opened.
        """
        partition = (self._state.topic, self._state.number)
        copied_bytes = self._state.context.copied_bytes.get(partition, 0)
        writer = self._state.writer
        if writer is not None:
            copied_bytes += int(writer.raw.copied_bytes)
        return copied_bytes

    @scope
    def exclusive(self, deadline_ns: int | None = None) -> Iterator[LockedReplica]:
        """The append lock, with everything repaired. Raises LockTimeoutError."""
        with self._lock.exclusive(deadline_ns) as partition:
            yield LockedReplica(self._lock, partition)

    # ---- appends of this process -----------------------------------------------------------------

    def require(self, epoch: int, *, all_in_sync: bool, needed: int = 1) -> None:
        """Accept appends of this process only while the page leads in this epoch. An append raises
        NotLeader or TooFew otherwise.

        With `all_in_sync`, the decided ISR must be large enough for the page, and have `needed`
        members.
        """
        with self._lock.mutex_until(self._state.deadline()):
            self._lock.writer.require(epoch, needed if all_in_sync else 0)

    def with_followers(
        self,
        followers: Sequence[ReplicaLog],
        epoch: int,
        needed: int = 1,
    ) -> Followers:
        """The followers to which this process appends together with this leader. `needed`: as of
        `require`.
        """
        locks = [follower._lock for follower in followers]
        return Followers(self._lock, locks, epoch, needed)

    @staticmethod
    def check_leads(locked: LockedPartition, epoch: int) -> None:
        """Raise NotLeader unless the page leads in this epoch."""
        if locked.replica.role != ROLE_LEADER or locked.state.read_page().epoch != epoch:
            raise NotLeader

    # ---- roles -----------------------------------------------------------------------------------

    def lead(self, decision: LeaderDecision, deadline_ns: int | None = None) -> bool:
        """Install a decision by which this replica leads; False if the page shows it, or a later
        one (REPLICA-9).
        """
        with self.exclusive(deadline_ns) as locked:
            published = locked.published
            replica = locked.replica
            if decision.epoch < published.epoch:
                return False
            # without a role the page shows no decision of its epoch
            partition_epoch = replica.partition_epoch if replica.role != ROLE_NONE else -2
            if decision.epoch == published.epoch and decision.partition_epoch <= partition_epoch:
                return False
            if replica.role == ROLE_FOLLOWER and decision.epoch == published.epoch:
                return False  # another directory leads in this epoch
            published = self._with_high_watermark(published, replica)
            start = replica.epoch_start
            epochs = None
            if replica.role == ROLE_NONE or decision.epoch != published.epoch:
                start, epochs = self._begin_epoch(locked, decision.epoch)
            changed = replica._replace(
                epoch_start=start,
                maximal_isr=decision.isr,
                decided_isr=decision.isr,
                role=ROLE_LEADER,
                leader=decision.leader,
                partition_epoch=decision.partition_epoch,
                min_in_sync=decision.min_in_sync,
            )
            locked.publish(published._replace(epoch=decision.epoch), changed)
            if epochs is not None:
                self._reader.epochs.take(epochs)
        return True

    @staticmethod
    def _begin_epoch(locked: LockedReplica, epoch: int) -> tuple[int, EpochCache]:
        """The start of an epoch: the log end, or where it began before an orderly close. And the
        stored epochs.
        """
        before = locked.epochs()
        latest = before.latest
        if (
            locked.replica.role == ROLE_NONE
            and latest is not None
            and latest[0] == epoch
            and latest[1] <= locked.published.log_end
        ):
            return latest[1], before
        after = locked.begin_epoch(epoch, before)
        system.point("lead-epoch")
        return locked.published.log_end, after

    def stage_epoch(self, epoch: int, *, leads: bool) -> Staging | None:
        """Prepare the checkpoint that this replica will store as leader or follower in a later
        epoch, without a lock.

        None if nothing is to be prepared. Nothing depends on it (`epoch_file`).
        """
        published, replica = self.published()
        if published.epoch >= epoch or self._state.page_file is None:
            return None
        before = self._reader.epochs.epochs_with(published.epoch)
        if leads:
            after = epochs_of_leader(before, published, replica, epoch)
        else:
            after = epochs_of_follower(before, published, epoch)
        return self._state.epoch_file.stage(after)

    def _with_high_watermark(self, published: Published, replica: Replica) -> Published:
        """The tuple with the high watermark of the last orderly close, if its page has no role."""
        high_watermark = known_high_watermark(self._state, published, replica.role)
        if high_watermark == published.high_watermark:
            return published
        return published._replace(high_watermark=high_watermark)

    def compare_epochs(self) -> None:
        """Compare the leader-epoch-checkpoint with the batches before a lock is taken. Raises
        StorageError, and the errors of a load.
        """
        self.epochs.compare_early()

    def follow(
        self,
        leader: int,
        epoch: int,
        epoch_end: EpochEnd,
        deadline_ns: int | None = None,
        *,
        limit: int | None = None,
        start: int | None = None,
    ) -> int:
        """Follow a leader in this epoch; the log end after the cut. Raises Fenced.

        `limit`: nothing after this offset is kept, because its bytes are not those of the leader.
        `start`: the leader's log start, for a replica outside ISR and ELR. `epoch_end`: the
        leader's, called without a lock.
        """
        until = self._state.deadline() if deadline_ns is None else deadline_ns
        while True:
            published, _ = self.published()
            epochs = self.epochs.read_checked(published, until)
            end = agreed_end(epochs, published.log_end, epoch_end)
            if end < published.high_watermark:
                with self.exclusive(until) as locked:
                    epochs = locked.partition.remake_epochs(epochs)
                end = agreed_end(epochs, published.log_end, epoch_end)
            if limit is not None:
                end = min(end, limit)
            with self.exclusive(until) as locked:
                log_end = self._follow_locked(
                    locked,
                    leader,
                    epoch,
                    agreed=(end, start),
                    compared_end=published.log_end,
                    compared=epochs,
                )
            if log_end is None:
                raise Fenced
            if log_end >= 0:
                return log_end
            if system.boot_ns() >= until:
                raise LockTimeoutError(
                    "the log keeps changing before it follows", path=self._state.path
                )

    def _follow_locked(
        self,
        locked: LockedReplica,
        leader: int,
        epoch: int,
        *,
        agreed: tuple[int, int | None],
        compared_end: int,
        compared: EpochCache,
    ) -> int | None:
        """The log end after the cut; None if the page is in a later epoch, -1 if the log is not the
        compared one. `agreed`: the end of what the leader has, too, and the `start` of `follow`.
        """
        end, start = agreed
        published = locked.published
        replica = locked.replica
        if published.epoch > epoch or (published.epoch == epoch and replica.role == ROLE_LEADER):
            return None
        if published.epoch == epoch and replica.role == ROLE_FOLLOWER:
            return published.log_end
        if published.log_end != compared_end or locked.epochs().entries != compared.entries:
            return -1
        published = self._with_high_watermark(published, replica)
        begin = max(end, published.log_start)
        restarts = False
        if start is not None and end <= published.log_start:
            restarts = True  # nothing of it is known to be the leader's
            begin = start
        if published.purged_to > begin:
            published = published._replace(purged_to=begin)  # that of the leader of this epoch
        if published != locked.published:
            locked.publish(published, replica)
        changed = replica._replace(
            maximal_isr=0, decided_isr=0, role=ROLE_FOLLOWER, leader=leader, epoch_start=0
        )
        if restarts:
            locked.partition.state.give_up()
            locked.truncate(
                max(begin, published.log_start), epoch, changed._replace(role=ROLE_NONE)
            )
            system.point("follow-restart")
            locked.restart(begin, epoch, changed)
        else:
            locked.truncate(begin, epoch, changed)
        return locked.published.log_end

    def last_epoch(self, published: Published, replica: Replica) -> int:
        """The epoch of the last batch of what `published` returned, -1 without one. Raises
        CorruptRecordError.
        """
        return self.epochs.epoch_of_last_batch(published, replica)

    def last_shown(self) -> tuple[Published, Replica, int]:
        """As `published`, with the epoch of the last batch. The page is read again if the log was
        cut during that.

        Raises CorruptRecordError; StorageError if each of several reads met a cut.
        """
        for _ in range(LAST_READS):
            published, replica = self.published()
            with contextlib.suppress(OffsetOutOfRangeError):  # the log ends earlier now
                epoch = self.last_epoch(published, replica)
                if self.published()[0].generation == published.generation:
                    return published, replica, epoch
        raise StorageError(
            "the log was cut during each read of its last batch", path=self._state.path
        )

    # ---- copies ----------------------------------------------------------------------------------

    def read(
        self,
        offset: int,
        max_bytes: int = 1 << 20,
        upto: int | None = None,
        pool: BufferPool | None = None,
    ) -> Fetched:
        """Whole checked batches from the one that holds `offset`, up to the log end, for another
        replica.

        The generation is compared afterwards. Raises OffsetOutOfRangeError, CorruptRecordError.
        """
        self._state.ensure_open()
        fetched = self._reader.fetch(
            offset, max_bytes=max_bytes, committed=False, upto=upto, pool=pool, whole=True
        )
        fetched.offset = offset
        return fetched

    def bytes_from(self, offset: int) -> int:
        """Bytes from an offset of the active segment to the log end; up to an index interval
        more.
        """
        return self._reader.bytes_from(offset)

    def missing_segment(self, offset: int) -> Path | None:
        """The file of the segment with an offset, if it is not there: an open descriptor may still
        read it.

        None while segments are replaced.
        """
        published = self._state.published()
        if published.generation % 2:
            return None
        base = self._lock.segments.at(offset, published).base
        path = file_names.segment_path(self._state.path, base)
        if files.exists(path) or self._state.published().generation != published.generation:
            return None
        return path

    def take(
        self,
        fetched: Fetched,
        epoch: int,
        high_watermark: int,
        deadline_ns: int | None = None,
        log_start: int = 0,
    ) -> int:
        """Append the batches that `read` of a leader returned; the log end. Raises Fenced.

        `epoch`, `high_watermark` and `log_start` are those of the leader. Batches that do not
        continue the log are not taken.
        """
        until = self._state.deadline() if deadline_ns is None else deadline_ns
        leading = Leading(high_watermark, epoch, gaps_allowed=True, log_start=log_start)
        is_fenced = False
        with self.exclusive(until) as locked:
            is_fenced = locked.published.epoch > epoch
            if not is_fenced:
                at = fetched.offset if len(fetched.batches) else None
                locked.take(fetched.data, fetched.batches, leading, at)
            published = locked.published
        if is_fenced:
            raise Fenced
        unsynced_count = published.log_end - self._state.durable_offset
        self._syncer.flush_if_due(published.log_end, unsynced_count, 0, until)
        return published.log_end

    def begin_again(
        self,
        leader: CopySource,
        epoch: int,
        offset: int,
        deadline_ns: int | None = None,
        *,
        inside: int = -1,
    ) -> int:
        """Drop the log of a follower that lacks what its leader has deleted, and begin at an
        offset; the log end.

        `leader` is what the leader published in this epoch (REPLICA-20). The offset is its log
        start, or the first one of the batch in which that is. `inside`: a log end that is inside a
        batch of the leader. Raises Fenced.
        """
        is_fenced = False
        with self.exclusive(deadline_ns) as locked:
            before = locked.published
            is_fenced = before.epoch != epoch or locked.replica.role != ROLE_FOLLOWER
            must_begin = lacks_deleted(before, leader) or before.log_end == inside
            if must_begin and not is_fenced:
                if (before.log_start, before.log_end) != (offset, offset):
                    locked.restart(offset)
                    system.point("begin-again")
                purged_to = max(locked.published.purged_to, leader.published.purged_to)
                locked.publish(locked.published._replace(purged_to=purged_to), locked.replica)
            end = locked.published.log_end
        if is_fenced:
            raise Fenced
        return end

    def lose_role(self, deadline_ns: int) -> bool:
        """Take the role from the page of a log whose repair fails; False if no repair is due.
        Afterwards it joins no ISR.
        """
        with self._lock.lock_unrepaired(deadline_ns) as locked:
            if locked is None:
                return False
            locked.state.give_up()
            locked.publish(
                locked.state.read_page(),
                locked.replica._replace(role=ROLE_NONE, maximal_isr=0, decided_isr=0),
            )
            return True

    def is_kept(self) -> bool:
        """Whether the log has all that it had published before its processes were killed, in this
        boot and mount.
        """
        return self._state.is_kept()

    def restart_damaged(self, offset: int, deadline_ns: int) -> bool:
        """Begin a log whose repair fails again at an offset; False if it was repaired, or has a
        role meanwhile.

        REQUIRES `lose_role`, and that a settled decision removed the replica from ISR and ELR after
        that.
        """
        with self._lock.lock_unrepaired(deadline_ns) as locked:
            if locked is None or locked.replica.role != ROLE_NONE:
                return False
            log_cut.intend_restart(locked, offset)
        with self.exclusive(deadline_ns):
            return True

    def restart(self, offset: int, deadline_ns: int, prepare: Callable[[], None]) -> None:
        """Begin the log again at an offset, also one whose repair fails. `prepare` runs under the
        lock first.
        """
        with self._lock.lock_unrepaired(deadline_ns) as unrepaired:
            if unrepaired is not None:
                prepare()
                log_cut.intend_restart(unrepaired, offset)
        with self.exclusive(deadline_ns) as locked:
            prepare()
            locked.restart(offset)

    def learn(self, epoch: int, high_watermark: int, deadline_ns: int | None = None) -> None:
        """Take the leader's high watermark without records. Raises Fenced."""
        is_fenced = False
        with self.exclusive(deadline_ns) as locked:
            follows = locked.replica.role == ROLE_FOLLOWER and locked.published.epoch == epoch
            is_fenced = locked.published.epoch > epoch
            if follows and locked.published.high_watermark < high_watermark:
                leading = Leading(high_watermark, epoch, gaps_allowed=True)
                locked.take(b"", np.empty(0, batch_dtype()), leading)
        if is_fenced:
            raise Fenced

    # ---- the commit ------------------------------------------------------------------------------

    def commit(
        self,
        followers: Sequence[tuple[int, ReplicaLog]],
        epoch: int,
        deadline_ns: int | None = None,
    ) -> int:
        """Raise the high watermark to what every member of the maximal ISR has; returns it. Raises
        NotLeader.

        `followers`: (slot, replica). Nothing is committed without a member of the maximal ISR that
        is not given (REPLICA-3).
        """
        members = Members([_member(slot, follower) for slot, follower in followers])
        with self.exclusive(deadline_ns) as locked:
            code, mark = members.commit(
                locked.partition.writer.native(), self._state.context.node_slot, epoch
            )
        if code == system.NOT_LEADER:
            raise NotLeader
        if code < 0:
            raise StorageError("cannot commit", errno=system.errno_of(code), path=self._state.path)
        return mark

    def join(
        self,
        follower: ReplicaLog,
        slot: int,
        epoch: int,
        partition_epoch: int,
        deadline_ns: int | None = None,
    ) -> bool:
        """Add a follower to the maximal ISR, if it has everything that a member must have; whether
        it is a member (REPLICA-6).

        `partition_epoch` is that of the newest decision: the page must contain it. Raises
        NotLeader.
        """
        durable_required = self._state.config.durable
        follower._state.ensure_open()
        follower._state.check_page()
        leads = False
        is_member = False
        with self.exclusive(deadline_ns) as locked:
            published = locked.published
            replica = locked.replica
            leads = replica.role == ROLE_LEADER and published.epoch == epoch
            if leads and replica.partition_epoch == partition_epoch:
                needed = max(published.high_watermark, replica.epoch_start)
                is_member = follower._has_all(published, needed, durable=durable_required)
                if is_member and not replica.maximal_isr >> slot & 1:
                    maximal_isr = replica.maximal_isr | 1 << slot
                    locked.publish(published, replica._replace(maximal_isr=maximal_isr))
        if not leads:
            raise NotLeader
        return is_member

    def _has_all(self, leader: Published, needed: int, *, durable: bool) -> bool:
        """Whether this follower is in the leader's epoch, with its log start and everything below
        `needed`.
        """
        publication = replication.read(self._state.page)
        page = self._state.page
        if publication is None or page.word(system.WORD_CUT_INTENT):
            return False
        published, replica = publication
        if replica.role != ROLE_FOLLOWER or published.epoch != leader.epoch:
            return False
        if published.log_start < leader.log_start:
            return False
        if not leader.log_end >= published.log_end >= needed:
            return False
        return not durable or page.word(system.WORD_DURABLE) >= needed


def _member(slot: int, follower: ReplicaLog) -> replication.Member:
    state = follower._state
    state.ensure_open()
    mapped = state.page_file
    if mapped is None:
        raise StorageError("the control page is not mapped", path=state.path / file_names.PAGE)
    return replication.Member(slot, mapped.page, mapped.path, mapped.device, mapped.inode)


def agreed_end(epochs: EpochCache, log_end: int, epoch_end: EpochEnd) -> int:
    """The offset up to which a follower with these epochs has the leader's records (KIP-101,
    KIP-279).

    Epochs without a batch do not count. The follower asks for its last epoch, and from the answer
    for the next lower one that both know.
    """
    entries = [entry for entry in epochs.entries if entry[1] < log_end]
    end = log_end
    while entries:
        epoch, start = entries[-1]
        theirs, their_end = epoch_end(epoch)
        if theirs == epoch:
            return min(end, their_end)
        if theirs < 0:  # the leader does not know so late an epoch
            entries = entries[:-1]
            end = min(end, start)
            continue
        entries = [entry for entry in entries if entry[0] <= theirs]
        higher = next((begin for other, begin in epochs.entries if other > theirs), end)
        end = min(end, higher, their_end)
    if epochs.entries:
        end = min(end, epochs.entries[0][1])
    return end
