"""The log of one replica: it leads, or follows a leader; it takes batches unchanged, and commits
what the ISR has.

REPLICALOG-1  every change happens under the append lock of this partition, and compares the epoch
    of the page first
REPLICALOG-2  the start of an epoch is in the leader-epoch-checkpoint before a page or a batch has
    the epoch
REPLICALOG-3  a follower is cut where its epochs and those of the leader diverge, before it takes a
              batch of a later epoch. Cut, epoch and role are one publication (REPLICA-2)
REPLICALOG-4  no file of another directory is read under this lock, except for control pages
REPLICALOG-5  a page without a role has no high watermark: the checkpoint of the last orderly close
    has one (REPLICA-11)
REPLICALOG-6  of a follower that began again, `purged_to` is above the log end until its copy has
              passed it. It is that of the leader of this epoch, as of the begin: the copy of
              another one begins again (REPLICA-20)
REPLICALOG-7  a replica outside ISR and ELR, of which nothing is known to be its leader's, begins
              again at the leader's log start. Else it keeps the open transactions of records that
              the leader never had, or lacks those between both log starts. Its records above both
              are cut first (LOGCUT-5). Until it has begun, its page has no role
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

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
from embedlog.partition.replication.deleted_records import Source, lacks_deleted, source_of
from embedlog.partition.replication.followers import Followers
from embedlog.partition.replication.known_high_watermark import known_high_watermark
from embedlog.partition.replication.locked_replica import LockedReplica, begun, joined
from embedlog.partition.replication.refusals import Fenced, NotLeader, TooFew
from embedlog.partition.replication.replica_epochs import ReplicaEpochs
from embedlog.partition.sync import Syncer
from embedlog.partition.truncation import log_cut
from embedlog.storage import file_names, files
from embedlog.storage.checkpoints import EpochCache

if TYPE_CHECKING:
    from embedlog._native.probe import Probe

__all__ = [
    "Decision",
    "Fenced",
    "Followers",
    "Leading",
    "LockedReplica",
    "NotLeader",
    "ReplicaLog",
    "Staging",
    "TooFew",
    "Source",
    "lacks_deleted",
    "source_of",
]

EpochEnd = Callable[[int], tuple[int, int]]
LAST_READS = 8  # of a last batch, while the log is cut


class Decision(NamedTuple):
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
            found = replication.read(mapped.page)
            if found is not None and mapped.page.is_alive():
                return found
        now = state.published()  # maps the page again if it was replaced
        if state.page_file is None:
            return now, Replica()  # of a reader, without a process that writes
        found = replication.read(state.page)
        if found is None:
            raise StorageError("the control page is damaged", path=state.path / file_names.PAGE)
        return found

    @property
    def slot(self) -> int:
        """The bit of its directory in the ISR of control pages."""
        return self._state.context.node_slot

    @property
    def copied_bytes(self) -> int:
        """The bytes of batches that this process copied here from a leader, since the directory was
        opened.
        """
        place = (self._state.topic, self._state.number)
        writer = self._state.writer
        return self._state.context.copied_bytes.get(place, 0) + (
            int(writer.raw.copied_bytes) if writer is not None else 0
        )

    @scope
    def exclusive(self, deadline_ns: int | None = None) -> Iterator[LockedReplica]:
        """The append lock, with everything repaired. Raises LockTimeoutError."""
        with self._lock.exclusive(deadline_ns) as held:
            yield LockedReplica(self._lock, held)

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
        probes: Sequence[Probe] = (),
    ) -> Followers:
        """The followers to which this process appends together with this leader. `needed`: as of
        `require`. `probes`: of the disks of all of them.
        """
        locks = [follower._lock for follower in followers]
        return Followers(self._lock, locks, epoch, needed, probes)

    @staticmethod
    def check_leads(held: LockedPartition, epoch: int) -> None:
        """Raise NotLeader unless the page leads in this epoch."""
        if held.replica.role != ROLE_LEADER or held.state.read_page().epoch != epoch:
            raise NotLeader

    # ---- roles -----------------------------------------------------------------------------------

    def lead(self, decision: Decision, deadline_ns: int | None = None) -> bool:
        """Install a decision by which this replica leads; False if the page shows it, or a later
        one (REPLICA-9).
        """
        with self.exclusive(deadline_ns) as held:
            now = held.now
            replica = held.replica
            known = (
                (now.epoch, replica.partition_epoch)
                if replica.role != ROLE_NONE
                else (now.epoch, -2)
            )
            if (decision.epoch, decision.partition_epoch) <= known or decision.epoch < now.epoch:
                return False
            if replica.role == ROLE_FOLLOWER and decision.epoch == now.epoch:
                return False  # another directory leads in this epoch
            now = self._with_high_watermark(now, replica)
            start = replica.epoch_start
            epochs = None
            if replica.role == ROLE_NONE or decision.epoch != now.epoch:
                start, epochs = self._begin_epoch(held, decision.epoch)
            changed = replica._replace(
                epoch_start=start,
                maximal_isr=decision.isr,
                decided_isr=decision.isr,
                role=ROLE_LEADER,
                leader=decision.leader,
                partition_epoch=decision.partition_epoch,
                min_in_sync=decision.min_in_sync,
            )
            held.publish(now._replace(epoch=decision.epoch), changed)
            if epochs is not None:
                self._reader.epochs.note(epochs)
        return True

    @staticmethod
    def _begin_epoch(held: LockedReplica, epoch: int) -> tuple[int, EpochCache]:
        """The start of an epoch: the log end, or where it began before an orderly close. And the
        stored epochs.
        """
        before = held.epochs()
        latest = before.latest
        if (
            held.replica.role == ROLE_NONE
            and latest is not None
            and latest[0] == epoch
            and latest[1] <= held.now.log_end
        ):
            return latest[1], before
        after = held.begin_epoch(epoch, before)
        system.point("lead-epoch")
        return held.now.log_end, after

    def stage_epoch(self, epoch: int, *, leads: bool) -> Staging | None:
        """Prepare the checkpoint that this replica will store as leader or follower in a later
        epoch, without a lock.

        None if nothing is to be prepared. Nothing depends on it (EPOCHFILE-2).
        """
        now, replica = self.published()
        if now.epoch >= epoch or self._state.page_file is None:
            return None
        before = self._reader.epochs.known(now.epoch)
        after = begun(before, now, replica, epoch) if leads else joined(before, now, epoch)
        return self._state.epoch_file.stage(after)

    def _with_high_watermark(self, now: Published, replica: Replica) -> Published:
        """REPLICALOG-5."""
        known = known_high_watermark(self._state, now, replica.role)
        return now if known == now.high_watermark else now._replace(high_watermark=known)

    def compare_epochs(self) -> None:
        """Compare the leader-epoch-checkpoint with the batches before a lock is taken
        (LOGEPOCHS-6). Raises StorageError, and the errors of a load.
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
        """Follow a leader in this epoch; the log end after the cut (REPLICALOG-3). Raises Fenced.

        `limit`: nothing after this offset is kept, because its bytes are not those of the leader.
        `start`: the leader's log start, for a replica outside ISR and ELR (REPLICALOG-7).
        `epoch_end`: the leader's, called without a lock (REPLICALOG-4).
        """
        until = self._state.deadline() if deadline_ns is None else deadline_ns
        while True:
            now, _ = self.published()
            epochs = self.epochs.checked(now, until)
            end = agreed_end(epochs, now.log_end, epoch_end)
            if end < now.high_watermark:
                with self.exclusive(until) as held:
                    epochs = held.held.epochs_of_log(epochs)
                end = agreed_end(epochs, now.log_end, epoch_end)
            end = end if limit is None else min(end, limit)
            with self.exclusive(until) as held:
                found = self._follow_locked(held, leader, epoch, (end, start), now.log_end, epochs)
            if found is None:
                raise Fenced
            if found >= 0:
                return found
            if system.boot_ns() >= until:
                raise LockTimeoutError(
                    "the log keeps changing before it follows", path=self._state.path
                )

    def _follow_locked(
        self,
        held: LockedReplica,
        leader: int,
        epoch: int,
        agreed: tuple[int, int | None],
        seen_end: int,
        seen: EpochCache,
    ) -> int | None:
        """The log end after the cut; None if the page is in a later epoch, -1 if the log is not the
        seen one. `agreed`: the end of what the leader has, too, and the `start` of `follow`.
        """
        (end, start) = agreed
        now = held.now
        replica = held.replica
        if now.epoch > epoch or (now.epoch == epoch and replica.role == ROLE_LEADER):
            return None
        if now.epoch == epoch and replica.role == ROLE_FOLLOWER:
            return now.log_end
        if now.log_end != seen_end or held.epochs().entries != seen.entries:
            return -1
        now = self._with_high_watermark(now, replica)
        restarts = start is not None and end <= now.log_start  # REPLICALOG-7
        begin = start if start is not None and restarts else max(end, now.log_start)
        if now.purged_to > begin:
            now = now._replace(purged_to=begin)  # REPLICALOG-6
        if now != held.now:
            held.publish(now, replica)
        changed = replica._replace(
            maximal_isr=0, decided_isr=0, role=ROLE_FOLLOWER, leader=leader, epoch_start=0
        )
        if restarts:
            held.held.state.give_up()
            held.truncate(max(begin, now.log_start), epoch, changed._replace(role=ROLE_NONE))
            system.point("follow-restart")
            held.restart(begin, epoch, changed)
        else:
            held.truncate(begin, epoch, changed)
        return held.now.log_end

    def last_epoch(self, now: Published, replica: Replica) -> int:
        """The epoch of the last batch of what `published` returned, -1 without one. Raises
        CorruptRecordError.
        """
        return self.epochs.of_last_batch(now, replica)

    def last_shown(self) -> tuple[Published, Replica, int]:
        """As `published`, with the epoch of the last batch. The page is read again if the log was
        cut during that.

        Raises CorruptRecordError; StorageError if each of several reads met a cut.
        """
        for _ in range(LAST_READS):
            now, replica = self.published()
            with contextlib.suppress(OffsetOutOfRangeError):  # the log ends earlier now
                epoch = self.last_epoch(now, replica)
                if self.published()[0].generation == now.generation:
                    return now, replica, epoch
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
        found = self._reader.fetch(
            offset, max_bytes=max_bytes, committed=False, upto=upto, pool=pool, whole=True
        )
        found.offset = offset
        return found

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
        now = self._state.published()
        if now.generation % 2:
            return None
        path = file_names.segment_path(self._state.path, self._lock.segments.at(offset, now).base)
        return (
            None
            if files.exists(path) or self._state.published().generation != now.generation
            else path
        )

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
        fenced = False
        with self.exclusive(until) as held:
            fenced = held.now.epoch > epoch
            if not fenced:
                held.take(
                    fetched.data,
                    fetched.batches,
                    leading,
                    fetched.offset if len(fetched.batches) else None,
                )
            now = held.now
        if fenced:
            raise Fenced
        self._syncer.flush_if_due(now.log_end, now.log_end - self._state.durable_offset, 0, until)
        return now.log_end

    def begin_again(
        self,
        leader: Source,
        epoch: int,
        offset: int,
        deadline_ns: int | None = None,
        *,
        inside: int = -1,
    ) -> int:
        """Drop the log of a follower that lacks what its leader has deleted, and begin at an
        offset; the log end.

        `leader` is what the leader published in this epoch (REPLICALOG-6, REPLICA-20). The offset
        is its log start, or the first one of the batch in which that is. `inside`: a log end that
        is inside a batch of the leader. Raises Fenced.
        """
        fenced = False
        with self.exclusive(deadline_ns) as held:
            fenced = held.now.epoch != epoch or held.replica.role != ROLE_FOLLOWER
            if not fenced and (lacks_deleted(held.now, leader) or held.now.log_end == inside):
                if (held.now.log_start, held.now.log_end) != (offset, offset):
                    held.restart(offset)
                    system.point("begin-again")
                held.publish(
                    held.now._replace(purged_to=max(held.now.purged_to, leader.now.purged_to)),
                    held.replica,
                )
            end = held.now.log_end
        if fenced:
            raise Fenced
        return end

    def lose_role(self, deadline_ns: int) -> bool:
        """Take the role from the page of a log whose repair fails; False if no repair is due.
        Afterwards it joins no ISR.
        """
        with self._lock.unrepairable(deadline_ns) as held:
            if held is None:
                return False
            held.state.give_up()
            held.publish(
                held.state.read_page(),
                held.replica._replace(role=ROLE_NONE, maximal_isr=0, decided_isr=0),
            )
            return True

    def is_kept(self) -> bool:
        """Whether the log has all that it had published before its processes were killed, in this
        boot and mount.
        """
        return self._state.is_kept()

    def restart_damaged(self, offset: int, deadline_ns: int) -> bool:
        """Begin a log whose repair fails again at an offset (APPENDLOCK-4); False if it was
        repaired, or has a role meanwhile.

        REQUIRES `lose_role`, and that a settled decision removed the replica from ISR and ELR after
        that.
        """
        with self._lock.unrepairable(deadline_ns) as held:
            if held is None or held.replica.role != ROLE_NONE:
                return False
            log_cut.intend_restart(held, offset)
        with self.exclusive(deadline_ns):
            return True

    def restart(self, offset: int, deadline_ns: int, prepare: Callable[[], None]) -> None:
        """Begin the log again at an offset, also one whose repair fails (APPENDLOCK-4). `prepare`
        runs under the lock first.
        """
        with self._lock.unrepairable(deadline_ns) as held:
            if held is not None:
                prepare()
                log_cut.intend_restart(held, offset)
        with self.exclusive(deadline_ns) as locked:
            prepare()
            locked.restart(offset)

    def learn(self, epoch: int, high_watermark: int, deadline_ns: int | None = None) -> None:
        """Take the leader's high watermark without records. Raises Fenced."""
        fenced = False
        with self.exclusive(deadline_ns) as held:
            follows = held.replica.role == ROLE_FOLLOWER and held.now.epoch == epoch
            fenced = held.now.epoch > epoch
            if follows and held.now.high_watermark < high_watermark:
                held.take(
                    b"",
                    np.empty(0, batch_dtype()),
                    Leading(high_watermark, epoch, gaps_allowed=True),
                )
        if fenced:
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
        with self.exclusive(deadline_ns) as held:
            code, mark = members.commit(
                held.held.writer.native(), self._state.context.node_slot, epoch
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
        durable_required = self._state.config.flush_messages == 1
        follower._state.ensure_open()
        follower._state.check_page()
        leads = joined = False
        with self.exclusive(deadline_ns) as held:
            now = held.now
            replica = held.replica
            leads = replica.role == ROLE_LEADER and now.epoch == epoch
            if leads and replica.partition_epoch == partition_epoch:
                needed = max(now.high_watermark, replica.epoch_start)
                joined = follower._has(now, needed, durable=durable_required)
                if joined and not replica.maximal_isr >> slot & 1:
                    held.publish(now, replica._replace(maximal_isr=replica.maximal_isr | 1 << slot))
        if not leads:
            raise NotLeader
        return joined

    def _has(self, leader: Published, needed: int, *, durable: bool) -> bool:
        """Whether this follower is in the leader's epoch, with its log start and everything below
        `needed`.
        """
        found = replication.read(self._state.page)
        page = self._state.page
        if found is None or page.word(system.WORD_CUT_INTENT):
            return False
        now, replica = found
        follows = replica.role == ROLE_FOLLOWER and now.epoch == leader.epoch
        has = leader.log_end >= now.log_end >= needed and now.log_start >= leader.log_start
        return follows and has and (not durable or page.word(system.WORD_DURABLE) >= needed)


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
    known = [entry for entry in epochs.entries if entry[1] < log_end]
    end = log_end
    while known:
        epoch, start = known[-1]
        theirs, their_end = epoch_end(epoch)
        if theirs == epoch:
            return min(end, their_end)
        if theirs < 0:  # the leader does not know so late an epoch
            known = known[:-1]
            end = min(end, start)
            continue
        known = [entry for entry in known if entry[0] <= theirs]
        higher = next((begin for other, begin in epochs.entries if other > theirs), end)
        end = min(end, higher, their_end)
    return min(end, epochs.entries[0][1]) if epochs.entries else end
