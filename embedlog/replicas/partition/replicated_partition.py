"""This module is the partition that callers of a set use: every call goes to the leader, and
failovers are hidden.

An append is made once: before it continues at another leader, the epochs of that leader show which
of its batches are there. Each attempt with acks=all asks for the size of the ISR, until it was
large enough after the commit. A decision under the append lock counts only after its commit:
leaving `exclusive` waits for that (REPLICA-22).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn, TypeVar

from embedlog._native import system
from embedlog._native.scope import Stack, scope, stack
from embedlog.errors import (
    EmbedlogError,
    LeaderNotAvailableError,
    LockTimeoutError,
    NotEnoughReplicasAfterAppendError,
    StorageError,
)
from embedlog.partition.log_context import Appended, AppendProgress
from embedlog.partition.replication.replica_log import Fenced, NotLeader, TooFew
from embedlog.replicas.members import directory_workers
from embedlog.replicas.members.open_directories import is_of_storage
from embedlog.replicas.partition.leader import Leader, LeaderChanged
from embedlog.replicas.partition.led_partition import LedPartition, is_page_of
from embedlog.replicas.partition.parallel_sync import (
    NEVER,
    commit_and_sync,
    durable_offset,
    sync_if_due,
)
from embedlog.replicas.partition.partition_replicas import PartitionReplicas
from embedlog.replicas.partition.record_deletion import RecordDeletion
from embedlog.replicas.partition.repeated_appends import is_in_log_of, reduce_to_survivors
from embedlog.replicas.partition.usual_reads import LeaderTail
from embedlog.storage.call_deadline import wait_end

if TYPE_CHECKING:
    from embedlog.config.topic import TopicConfig
    from embedlog.format.buffer_pool import BufferPool
    from embedlog.format.record_batch import EncodedRun, Stamp
    from embedlog.partition.interfaces import Fetched, HeldAppend, LockedPartition, PointRead
    from embedlog.partition.log_context import DirectTarget
    from embedlog.partition.partition import Partition
    from embedlog.partition.replication.replica_log import Followers
    from embedlog.replicas.members.directory_workers import DirectoryWorker
    from embedlog.replicas.partition.usual_reads import LeaderWatch

T = TypeVar("T")


class _JointFollowers(NamedTuple):
    """A leader with the followers that take a run in the same call."""

    leader: Leader
    followers: Followers
    workers: tuple[DirectoryWorker, ...]  # of the directories of all of them

    def answer(self) -> bool:
        """Whether all directories answer now; what they have not shown a moment ago they are
        asked.
        """
        self.note_answers(self.followers.answered_ns)
        if not directory_workers.answer(self.workers):
            return False
        self.followers.answered(
            min([worker.answered_ns for worker in self.workers], default=system.boot_ns())
        )
        return True

    def note_answers(self, at_ns: int) -> None:
        """All had every record at this time (boot clock)."""
        for worker in self.workers:
            worker.answered_ns = max(worker.answered_ns, at_ns)
        self.followers.answered(max(at_ns, self.followers.answered_ns))


class ReplicatedPartition(LedPartition):
    """One partition of a set. Threads: every public method may be called from any thread."""

    def __init__(
        self,
        replicas: PartitionReplicas,
        config: Callable[[], TopicConfig],
        lock_timeout_ms: int,
        check_open: Callable[[], None],
    ) -> None:
        super().__init__(replicas, config, lock_timeout_ms, check_open)
        self._locked = threading.local()
        self._followers: _JointFollowers | None = None
        self._watch: LeaderWatch | None = None

    # ---- durability ------------------------------------------------------------------------------

    @property
    def durable_offset(self) -> int:
        """The smallest durable offset of the ISR: records below it are on stable storage in all of
        its directories.

        0 while this process does not reach a member: it may have synced nothing.
        """
        return self._call_with_leader(
            lambda leader: durable_offset(self._replicas, leader), self.deadline()
        )

    def sync(self, deadline_ns: int | None = None) -> int:
        """Put everything that is published now on stable storage in all directories of the ISR.
        Raises DurabilityError.
        """
        end = self.published().log_end
        self.sync_to(end, self._deadline_of(deadline_ns))
        return max(end, self.durable_offset)

    def sync_to(self, end: int, deadline_ns: int) -> None:
        """Put the committed records below `end` on stable storage in all directories of the ISR
        (REPLICA-14).
        """

        def sync(leader: Leader) -> None:
            commit_and_sync(
                self._replicas, leader, min(end, leader.partition.published().log_end), deadline_ns
            )

        self._call_with_leader(sync, deadline_ns)

    def flush_if_due(self, end: int, deadline_ns: int, unsynced_ms: int = 0) -> None:
        """Sync up to `end` in each directory that is due by its topic's settings."""

        def flush(leader: Leader, isr: list[tuple[int, Partition]]) -> None:
            for _, replica in isr:
                flush_end = min(end, replica.published().log_end)
                replica.flush_if_due(flush_end, deadline_ns, unsynced_ms)

        self._call_with_isr(flush)

    def flush_if_late(self) -> None:
        """Sync records of the leader, if the housekeeper is late. Without a leader now, the next
        one is not waited for.
        """
        self._check_open()
        leader = self._replicas.leaders.find_present_leader()
        if leader is not None:
            try:
                leader.partition.flush_if_late()
            except EmbedlogError as problem:
                if self._is_still_leading(leader) is not False:
                    self._forget_failed(problem, self.deadline())

    def _call_with_isr(self, call: Callable[[Leader, list[tuple[int, Partition]]], T]) -> T:
        """The result of a call with the leader and the replicas in the ISR, the leader first
        (`_call_with_leader`).
        """
        return self._call_with_leader(
            lambda leader: call(leader, self._replicas.in_sync.find_replicas(leader)),
            self.deadline(),
        )

    def _call_with_leader(self, call: Callable[[Leader], T], deadline_ns: int) -> T:
        """The result of a call with the leader; repeated after a directory has failed. At the
        deadline its error is raised.
        """
        while True:
            try:
                return call(self._find_leader(deadline_ns))
            except LeaderChanged:
                self._leader = None
            except EmbedlogError as problem:
                if system.boot_ns() >= deadline_ns:
                    raise
                self._forget_failed(problem, deadline_ns)
            self._check_deadline(deadline_ns)

    # ---- appending -------------------------------------------------------------------------------

    @property
    def direct_target(self) -> DirectTarget | None:
        """The leader with its followers, once an append of this process has prepared all of
        them.
        """
        joint = self._followers
        if (
            joint is None
            or joint.leader is not self._leader
            or joint.followers.needed != self._replicas.in_sync.needed_isr_size()
        ):
            return None
        return joint.followers.direct

    @property
    def batch_limit(self) -> int:
        """Bytes of the largest batch that is accepted now."""
        return self.config.batch_limit

    def check_in_sync(self) -> None:
        """Nothing: the leader's page decides, under its lock (REPLICA-4)."""

    def note_direct(self, stamp: Stamp, next_sequence: int, seen: int) -> None:
        """As `Partition.note_direct`, for the leader of `direct_target`."""
        leader = self._leader  # another thread may forget it
        if leader is None:
            return
        worker = self._replicas.members.worker(leader.node)
        note = partial(leader.partition.note_direct, stamp, next_sequence, seen)
        with suppress(StorageError, LockTimeoutError):  # what is not noted is read from the log
            if worker is None or worker.is_answering():
                note()
            else:
                worker.run(note)

    def seen_plain(self, stamp: Stamp) -> int:
        """As `Partition.seen_plain`, of the present leader only (REPLICA-16)."""
        leader = self._leader
        if leader is None:
            return -1
        return leader.partition.seen_plain(stamp)

    def append(
        self,
        run: EncodedRun,
        *,
        deadline_ns: int | None = None,
        stamp: Stamp | None = None,
        flush: bool = True,
        progress: AppendProgress | None = None,
        all_in_sync: bool = True,
    ) -> Appended:
        """As `Partition.append`, at the leader. With `all_in_sync` (acks=all) it returns after the
        commit (REPLICA-4).

        Raises also NotEnoughReplicasError before, NotEnoughReplicasAfterAppendError after the
        append; LeaderNotAvailableError.
        """
        self._check_open()
        until = self._deadline_of(deadline_ns)
        progress = progress or AppendProgress(run)
        progress.waiting = all_in_sync
        while True:
            leader = self._find_leader(until, show=not all_in_sync)
            try:
                if progress.pieces and progress.epochs[-1] != leader.epoch:
                    reduce_to_survivors(progress, leader, stamp)
                progress.epoch = leader.epoch
                is_durable = leader.partition.config.flush_messages != NEVER
                if not progress.complete:
                    # in the leader's log
                    searches = progress.expected_offset is not None or progress.is_in_doubt(stamp)
                    followers = None
                    if all_in_sync and not searches:
                        followers = self._prepare_followers(leader)
                    if followers is None:
                        leader.partition.replica.require(
                            leader.epoch,
                            all_in_sync=all_in_sync,
                            needed=self._replicas.in_sync.needed_isr_size(),
                        )
                    flushes_alone = flush and not (all_in_sync and is_durable)
                    self._append_to(leader, progress, stamp, followers, until, flush=flushes_alone)
                    self._replicas.note_worked(leader.node)
                    # as it was at the append
                    is_durable = leader.partition.config.flush_messages != NEVER
                appended = progress.appended()
                if all_in_sync and progress.committed <= appended.last_offset:
                    end = appended.last_offset + 1
                    self._replicas.in_sync.commit(leader, end, until)
                    if self._followers is not None:
                        self._followers.note_answers(system.boot_ns())
                    # also if the ISR is too small now: readers may have the record
                    progress.seen_committed = end
                    self._replicas.in_sync.check_needed_size(leader, end, until)
                    progress.committed = end
                if not all_in_sync:
                    self._replicas.in_sync.note_appended()
                elif is_durable and flush:
                    sync_if_due(self._replicas, leader, appended.last_offset + 1, until)
                return appended
            except TooFew:
                raise self._replicas.in_sync.too_few_error(leader) from None
            except (NotLeader, LeaderChanged):
                self._leader = None
            except EmbedlogError as problem:
                self._forget_failed(problem, until)
            self._check_deadline(until)

    def _append_to(
        self,
        leader: Leader,
        progress: AppendProgress,
        stamp: Stamp | None,
        followers: Followers | None,
        until: int,
        *,
        flush: bool,
    ) -> None:
        """Append the rest of a run to the leader; by the thread of its directory, unless that has
        answered a moment ago.

        If the directory hangs, the thread goes on with a run and a progress of its own.
        """
        deadline_ns = self._replicas.members.lock_deadline(until)
        append = partial(
            leader.partition.append,
            deadline_ns=deadline_ns,
            stamp=stamp,
            flush=flush,
            followers=followers,
        )
        worker = self._replicas.members.worker(leader.node)
        if followers is not None or worker is None or worker.is_answering():
            append(progress.run, progress=progress)
        else:
            attempt = progress.copied()
            try:
                worker.run(partial(append, attempt.run, progress=attempt), limit_ns=worker.lock_ns)
            finally:
                progress.take_over(attempt)
        if followers is not None and progress.committed > 0 and self._followers is not None:
            self._followers.note_answers(system.boot_ns())
        elif worker is not None:
            worker.note_answer()

    def _check_answers(self, leader: Leader) -> None:
        """Before a lock of the leader is taken by this thread. Raises StorageError if its directory
        hangs.
        """
        worker = self._replicas.members.worker(leader.node)
        if worker is not None and not worker.is_answering():
            worker.run(worker.probe)

    def _prepare_followers(self, leader: Leader) -> Followers | None:
        """The followers that take a run in the same call; None if a directory does not answer.

        They change with the leader and with its ISR.
        """
        joint = self._followers
        needed = self._replicas.in_sync.needed_isr_size()
        if (
            joint is None
            or joint.leader is not leader
            or joint.followers.stale
            or joint.followers.needed != needed
        ):
            members = self._replicas.in_sync.find_replicas(leader)
            by_node = [self._replicas.members.worker(node) for node, _ in members]
            workers = tuple(worker for worker in by_node if worker is not None)
            followers = leader.partition.replica.with_followers(
                [replica.replica for _, replica in members[1:]],
                leader.epoch,
                needed,
                [worker.disk for worker in workers],
            )
            joint = _JointFollowers(leader, followers, workers)
            self._followers = joint
        if not joint.answer():
            return None
        return joint.followers

    # ---- the append lock -------------------------------------------------------------------------

    @scope
    def exclusive(self, deadline_ns: int | None = None) -> Iterator[LockedPartition]:
        """The append lock of the leader. On leaving it waits until everything in the log is
        committed.

        Meanwhile `fetch` of this thread reads up to the log end. Raises NotEnoughReplicasError.
        """
        self._check_open()
        until = self._deadline_of(deadline_ns)
        with stack() as entered:
            leader, held = self._lock_leader(entered, until)
            start = held.state.read_page().log_end
            self._locked.leader = leader
            try:
                yield held
            except NotLeader as changed:
                self._leader = None
                raise LeaderNotAvailableError(
                    f"the leader of {self._replicas.name} changed; nothing was written"
                ) from changed
            except TooFew:
                raise self._replicas.in_sync.too_few_error(leader) from None
            except EmbedlogError as problem:
                self._raise_own_error(problem, leader)
            finally:
                self._locked.leader = None
            end = held.state.read_page().log_end
        try:
            self._wait_for_commit(leader, end, until, written=end > start)
        except LeaderChanged:
            self._commit_elsewhere(leader.epoch, end, until, written=end > start)

    def _commit_elsewhere(self, epoch: int, end: int, until: int, *, written: bool) -> None:
        """As `_wait_for_commit`, at the next leaders, while each of them has what was written in
        `epoch`.

        Raises LeaderNotAvailableError if one does not have it.
        """
        while True:
            self._leader = None
            leader = self._find_leader(until)
            try:
                is_in_log = is_in_log_of(leader, epoch, end - 1)
            except EmbedlogError as problem:
                self._forget_failed(problem, until)
                self._check_deadline(until)
                continue
            if not is_in_log:
                raise LeaderNotAvailableError(
                    f"the leader of {self._replicas.name} changed before the commit"
                )
            try:
                return self._wait_for_commit(leader, end, until, written=written)
            except LeaderChanged:
                self._check_deadline(until)

    def _wait_for_commit(self, leader: Leader, end: int, until: int, *, written: bool) -> None:
        """Wait for the commit, also while the ISR is too small: the records are in the leader's
        log, and must not be repeated.

        `written`: by this call, so that the size applies that this process needs. Raises
        LeaderChanged, and at the deadline NotEnoughReplicasAfterAppendError.
        """
        while True:
            version = self._replicas.members.version()
            try:
                if written:
                    self._replicas.in_sync.commit_for_all(leader, end, until)
                else:
                    self._replicas.in_sync.commit(leader, end, until)
                return
            except NotEnoughReplicasAfterAppendError:
                if system.boot_ns() >= wait_end(until):
                    raise
            try:
                is_leading = self._replicas.members.is_leading(leader)
            except EmbedlogError as problem:
                self._forget_failed(problem, until)
                raise LeaderChanged from problem
            if not is_leading:
                raise LeaderChanged
            self._replicas.members.wait(version, until)

    def _raise_own_error(self, problem: EmbedlogError, leader: Leader) -> NoReturn:
        """Raise the error of a decision; one of the leader's directory as LeaderNotAvailableError:
        another replica leads then.
        """
        if problem.path is None or not is_of_storage(problem):
            raise problem
        if not Path(problem.path).is_relative_to(leader.partition.path):
            raise problem
        self._forget_failed(problem, self.deadline())
        raise LeaderNotAvailableError(
            f"the leader of {self._replicas.name} failed before a commit"
        ) from problem

    def confirm(self, end: int, epoch: int) -> bool:
        """Commit the records below `end` that the leader of an epoch has, so that they can be acted
        on (REPLICA-22).

        False if another one leads: it may lack them, and have others there.
        """
        now = self.published()
        until = self.deadline()
        if now.epoch != epoch or now.high_watermark >= end:
            return now.epoch == epoch
        while True:
            leader = self._find_leader(until)
            if leader.epoch != epoch:
                return False
            try:
                self._wait_for_commit(leader, end, until, written=False)
                return True
            except LeaderChanged:
                self._leader = None
            self._check_deadline(until)

    def _lock_leader(self, entered: Stack, until: int) -> tuple[Leader, LockedPartition]:
        """Take the append lock of the leader; of the next one if its directory fails or the leader
        changes.
        """
        while True:
            leader = self._find_leader(until)
            try:
                self._check_answers(leader)
                leader.partition.replica.require(
                    leader.epoch, all_in_sync=True, needed=self._replicas.in_sync.needed_isr_size()
                )
                with stack() as tried:
                    held = tried.enter(
                        leader.partition.exclusive(self._replicas.members.lock_deadline(until))
                    )
                    leader.partition.replica.check_leads(held, leader.epoch)
                    entered.take_over(tried)
                return leader, held
            except NotLeader:
                self._leader = None
            except EmbedlogError as problem:
                self._forget_failed(problem, until)
            self._check_deadline(until)

    def following_sequence(self, stamp: Stamp) -> int:
        """As `Partition.following_sequence`. REQUIRES `exclusive`."""
        return self._locked_leader().following_sequence(stamp)

    def _locked_leader(self) -> Partition:
        """The leader whose lock this thread holds: another thread may have seen the next one
        meanwhile.
        """
        leader: Leader = self._locked.leader
        return leader.partition

    def held_replica(self) -> Partition | None:
        """The leader whose lock this thread holds, for a read of its files; None without
        `exclusive`.

        A look for the leader could take the lock again. Raises LeaderNotAvailableError as long as
        the start of its epoch is not committed.
        """
        leader: Leader | None = getattr(self._locked, "leader", None)
        if leader is None:
            return None
        now, replica = leader.page()
        if now.high_watermark < replica.epoch_start:
            raise LeaderNotAvailableError(
                f"the leader of {self._replicas.name} has not committed the start of its epoch"
            )
        return leader.partition

    def append_held(self, batch: bytes, stamp: Stamp | None = None) -> HeldAppend:
        """As `Partition.append_held`. REQUIRES `exclusive`."""
        return self._locked_leader().append_held(batch, stamp)

    # ---- transactions ----------------------------------------------------------------------------

    def append_marker(
        self,
        producer_id: int,
        epoch: int,
        *,
        commit: bool,
        coordinator_epoch: int | None = None,
        deadline_ns: int | None = None,
    ) -> int | None:
        """As `Partition.append_marker`, at the leader; it returns after the commit. A repetition
        finds the marker.
        """
        self._check_open()
        until = self._deadline_of(deadline_ns)
        while True:
            leader = self._find_leader(until)
            try:
                self._check_answers(leader)
                leader.partition.replica.require(
                    leader.epoch, all_in_sync=True, needed=self._replicas.in_sync.needed_isr_size()
                )
                offset = leader.partition.append_marker(
                    producer_id,
                    epoch,
                    commit=commit,
                    coordinator_epoch=coordinator_epoch,
                    deadline_ns=self._replicas.members.lock_deadline(until),
                )
                self._replicas.in_sync.commit_for_all(
                    leader, leader.partition.published().log_end, until
                )
                return offset
            except TooFew:
                raise self._replicas.in_sync.too_few_error(leader) from None
            except (NotLeader, LeaderChanged):
                self._leader = None
            except EmbedlogError as problem:
                self._forget_failed(problem, until)
            self._check_deadline(until)

    def open_transactions(self) -> list[tuple[int, int, int]]:
        """As `Partition.open_transactions`, of the leader."""
        return self._call_at_leader(lambda partition: partition.open_transactions())

    def stored_epoch(self, producer_id: int) -> int:
        """As `Partition.stored_epoch`, of the leader."""
        return self._call_at_leader(lambda partition: partition.stored_epoch(producer_id))

    def delete_records(self, offset: int) -> int:
        """As `Partition.delete_records`: the log start is on disk in all directories of the ISR.

        Raises also NotEnoughReplicasError, NotEnoughDirectoriesError, LeaderNotAvailableError;
        NotEnoughReplicasAfterAppendError if a replica may have deleted.
        """
        self._check_open()
        until = self.deadline()
        deletion = RecordDeletion(self._replicas, offset, until)
        try:
            while True:
                try:
                    return deletion.delete_everywhere(self._find_shown_leader(until))
                except (LeaderChanged, Fenced, NotLeader):
                    self._leader = None
                except EmbedlogError as problem:
                    self._forget_failed(problem, until)
                self._check_deadline(until)
        except EmbedlogError as problem:
            if not deletion.has_begun:
                raise
            raise deletion.unfinished_error(problem) from problem

    # ---- reading ---------------------------------------------------------------------------------

    def fetch(
        self,
        offset: int,
        *,
        max_bytes: int = 1 << 20,
        isolation: str = "read_uncommitted",
        upto: int | None = None,
        pool: BufferPool | None = None,
    ) -> Fetched:
        """As `Partition.fetch`, from the leader; within `exclusive` up to the log end
        (REPLICA-22).
        """
        locked: Leader | None = getattr(self._locked, "leader", None)
        if locked is not None:
            return locked.partition.replica.read(offset, max_bytes, upto)
        return self._call_at_leader(
            lambda partition: partition.fetch(
                offset, max_bytes=max_bytes, isolation=isolation, upto=upto, pool=pool
            )
        )

    def point(self, offset: int, committed: bool) -> PointRead | None:
        """As `Partition.point`, of the leader, while nothing in the set changes; otherwise None."""
        watch = self._watch_leader()
        if watch is None:
            return None
        with suppress(EmbedlogError):
            point = watch.leader.partition.point(offset, committed)
            if point is not None and watch.is_unchanged() and self._is_still_leading(watch.leader):
                return point
        return None

    def tail(self, offset: int, isolation: str) -> LeaderTail | None:
        """As `Partition.tail`, of the leader. It ends with the next change in the set."""
        watch = self._watch_leader()
        if watch is None:
            return None
        with suppress(EmbedlogError):
            tail = watch.leader.partition.tail(offset, isolation)
            if tail is not None:
                return LeaderTail(tail, watch)
        return None

    def _watch_leader(self) -> LeaderWatch | None:
        """The leader of the last call if it may be read by the short paths; None while that is not
        known.
        """
        watch = self._watch
        if watch is not None and watch.leader is self._leader and watch.is_unchanged():
            return watch
        self._check_leader()
        leader = self._leader
        changes = self._changes
        version = self._checked_version
        if (
            leader is None
            or self._replicas.members.read_only
            or changes != self._replicas.members.changes
            or version & 1
        ):
            return None
        with suppress(EmbedlogError):
            now, replica = leader.partition.replica.published()
            if (
                is_page_of(leader, now, replica)
                and now.high_watermark >= replica.epoch_start
                and now.epoch >= self._lowest
            ):
                self._watch = self._replicas.watch(leader, changes, version)
                return self._watch
        return None
