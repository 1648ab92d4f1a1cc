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
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

from embedlog._native import replication, system
from embedlog._native.scope import Stack, scope, stack
from embedlog.errors import (
    EmbedlogError,
    LeaderNotAvailableError,
    LockTimeoutError,
    NotEnoughReplicasAfterAppendError,
    StorageError,
)
from embedlog.format.visibility import end_offset
from embedlog.partition.log_context import Appended, AppendProgress
from embedlog.partition.replication.replica_log import NotLeader, TooFew
from embedlog.replicas.members.open_directories import is_of_storage
from embedlog.replicas.partition.leader import Leader, LeaderChanged
from embedlog.replicas.partition.leader_calls import LeaderCalls
from embedlog.replicas.partition.parallel_sync import (
    FLUSH_NEVER,
    commit_and_sync,
    durable_offset,
    sync_if_due,
)
from embedlog.replicas.partition.partition_replicas import PartitionReplicas
from embedlog.replicas.partition.record_deletion import RecordDeletion
from embedlog.replicas.partition.repeated_appends import is_in_log_of, reduce_to_survivors
from embedlog.replicas.partition.usual_reads import LeaderTail
from embedlog.storage.call_deadline import bound_deadline, wait_end

if TYPE_CHECKING:
    from embedlog._native.system import Page, Published
    from embedlog.config.topic import TopicConfig
    from embedlog.format.buffer_pool import BufferPool
    from embedlog.format.record_batch import EncodedRun, Stamp
    from embedlog.partition.interfaces import (
        Fetched,
        HeldAppend,
        LockedPartition,
        PointRead,
        SplitPoint,
    )
    from embedlog.partition.log_context import Bounds, DirectTarget
    from embedlog.partition.partition import Partition
    from embedlog.partition.replication.replica_log import Followers
    from embedlog.replicas.members.directory_workers import DirectoryWorker
    from embedlog.replicas.rules.events import PartitionId
    from embedlog.types import OffsetAndTimestamp


class _JointFollowers(NamedTuple):
    """A leader with the followers that take a run in the same call."""

    leader: Leader
    followers: Followers
    workers: tuple[DirectoryWorker, ...]  # of the directories of all of them

    def is_hanging(self) -> bool:
        """Whether a directory hangs, as far as this process knows."""
        return any(worker.is_hanging for worker in self.workers)

    def note_answers(self, at_ns: int) -> None:
        """All had every record at this time (boot clock)."""
        for worker in self.workers:
            worker.answered_ns = max(worker.answered_ns, at_ns)
        self.followers.note_answer(max(at_ns, self.followers.answered_ns))


class ReplicatedPartition:
    """One partition of a set, as callers use it. Threads: every public method may be called from
    any thread.
    """

    replicated: Final = True

    def __init__(
        self,
        replicas: PartitionReplicas,
        config: Callable[[], TopicConfig],
        lock_timeout_ms: int,
        check_open: Callable[[], None],
    ) -> None:
        self.topic = replicas.topic
        self.number = replicas.number
        self._config = config
        self._replicas = replicas
        self._calls = LeaderCalls(replicas, lock_timeout_ms, check_open)
        self._locked = threading.local()  # `leader`: whose append lock this thread holds
        self._followers: _JointFollowers | None = None

    def deadline(self) -> int:
        """The deadline (boot clock, ns) of work that begins at this call."""
        return self._calls.deadline()

    def check_open(self) -> None:
        """Raises ClosedError or ForkedError if the log is not open in this process."""
        self._calls.check_open()

    @property
    def closed(self) -> bool:
        """Whether its topic was deleted."""
        return self._replicas.members.is_deleted()

    @property
    def partition_id(self) -> PartitionId:
        """The topic's id and the number."""
        return self._replicas.partition_id

    @property
    def topic_id_bytes(self) -> bytes:
        return self._replicas.topic_uuid.bytes

    @property
    def config(self) -> TopicConfig:
        return self._config()

    @property
    def node(self) -> int:
        """The node of the leader. Raises LeaderNotAvailableError."""
        return self._calls.find(self.deadline()).node

    @property
    def lowest_epoch(self) -> int:
        """The highest epoch that a call has read from: no later one reads from a lower one."""
        return self._calls.highest_read_epoch

    def raise_lowest_epoch(self, epoch: int) -> None:
        """A caller has read from a replica in this epoch."""
        self._calls.highest_read_epoch = max(self._calls.highest_read_epoch, epoch)

    # ---- the published state ---------------------------------------------------------------------

    def published(self) -> Published:
        """The tuple of the leader."""
        return self._calls.read(lambda partition: partition.published())

    def bounds(self) -> Bounds:
        """The current offsets, from one read of the leader's page."""
        return self._calls.read(lambda partition: partition.bounds())

    def awaited_bounds(self, end: int, isolation: str, since_ns: int | None = None) -> Bounds:
        """The current offsets, after a wait until the deadline for a replica with the records below
        `end`.

        `since_ns`: a reader has found nothing since then (boot clock), although a replica showed
        the records. Its page can be that of a lost directory, so the wait ends with the deadline of
        the first call. Raises LeaderNotAvailableError.

        A process that changes nothing may read a follower, whose high watermark is late: that it
        ends there does not show that the log does. A leader that has committed the start of its
        epoch shows that, or all members of the ISR together. Then a majority of the directories
        must show that this is the ISR.
        """
        if since_ns is None:
            until_ns = self.deadline()
        else:
            until_ns = bound_deadline(since_ns + self._calls.timeout_ns)
        while True:
            version = self._replicas.members.version()
            is_final, bounds, page = self._calls.read(
                lambda partition: (
                    self._is_final(partition),
                    partition.bounds(),
                    partition.mapped_page,
                )
            )
            shown_end = end_offset(bounds, isolation)
            is_shown = shown_end >= end
            if is_shown and since_ns is None:
                return bounds
            if not is_shown and (is_final or self._replicas.members.has_lost(end)):
                return bounds
            if system.boot_ns() >= until_ns:
                verb = "returns" if is_shown else "shows"
                text = (
                    f"no replica of {self._replicas.name} in sync {verb} all records below {end} "
                    "before the deadline"
                )
                raise LeaderNotAvailableError(text, expected=f"offset {end}", found=shown_end)
            self._calls.leader = None  # another replica may show more
            tails: list[tuple[Page, int]] = []
            # a wait for a committed offset would end at once
            if page is not None and bounds.high_watermark < end:
                tails.append((page, end - 1))
            self._replicas.members.wait(version, until_ns, tails)
            if is_shown:
                return bounds

    def _is_final(self, partition: Partition) -> bool:
        """Whether the high watermark of a replica is that of the log: records above it that were
        committed are lost.
        """
        now, replica = partition.replica.published()
        if replica.role != replication.ROLE_LEADER or now.high_watermark < replica.epoch_start:
            return False
        decided_epoch = self._replicas.members.decided_epoch()
        return now.epoch >= max(self._calls.highest_read_epoch, decided_epoch)

    @property
    def path(self) -> Path:
        """The leader's directory of the partition, for messages."""
        return self._calls.read(lambda partition: partition.path)

    @property
    def mapped_page(self) -> Page | None:
        """The leader's control page, for waits on it; None while there is no leader."""
        self._calls.check_leader()
        return self._calls.read_at_once(lambda partition: partition.mapped_page)

    def open(self) -> None:
        """Find the leader, and load its files."""
        self._calls.read(lambda partition: partition.open())

    def is_led(self) -> bool:
        """Whether it has a leader now; nothing waits for one."""
        return self._calls.read_at_once(lambda partition: partition.published()) is not None

    def check_page(self) -> None:
        """At the end of a wait: look at the leader's page again."""
        self._calls.check_leader()
        self._calls.read_at_once(lambda partition: partition.check_page())

    def notify(self) -> None:
        """Wake the processes that follow decisions in this partition."""
        self._calls.read(lambda partition: partition.notify())

    def is_prepared(self) -> bool:
        """As `Partition.is_prepared`, of the leader."""
        return self._calls.read(lambda partition: partition.is_prepared())

    def holds_data(self) -> bool:
        """As `Partition.holds_data`, of the leader."""
        return self._calls.read(lambda partition: partition.holds_data())

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
        return self._calls.read(
            lambda partition: partition.fetch(
                offset, max_bytes=max_bytes, isolation=isolation, upto=upto, pool=pool
            )
        )

    def point(self, offset: int, committed: bool) -> PointRead | None:
        """As `Partition.point`, of the leader, while nothing in the set changes; otherwise None."""
        watch = self._calls.watch_leader()
        if watch is None:
            return None
        with suppress(EmbedlogError):
            point = watch.leader.partition.point(offset, committed)
            if (
                point is not None
                and watch.is_unchanged()
                and self._calls.is_still_leading(watch.leader)
            ):
                return point
        return None

    def tail(self, offset: int, isolation: str) -> LeaderTail | None:
        """As `Partition.tail`, of the leader. It ends with the next change in the set."""
        watch = self._calls.watch_leader()
        if watch is None:
            return None
        with suppress(EmbedlogError):
            tail = watch.leader.partition.tail(offset, isolation)
            if tail is not None:
                return LeaderTail(tail, watch)
        return None

    def unread_bytes(self, offset: int) -> int | None:
        """As `Partition.unread_bytes`, of the leader."""
        return self._calls.read(lambda partition: partition.unread_bytes(offset))

    def end_by_time(self, first: int, last: int, end_ms: int) -> int:
        """As `Partition.end_by_time`, of the leader."""
        return self._calls.read(lambda partition: partition.end_by_time(first, last, end_ms))

    def skip_by_time(self, offset: int, start_ms: int, end_ms: int) -> int:
        """As `Partition.skip_by_time`, of the leader."""
        return self._calls.read(lambda partition: partition.skip_by_time(offset, start_ms, end_ms))

    def split_points(
        self, start: int, end: int, max_bytes: int, count: int | None = None
    ) -> list[SplitPoint]:
        """As `Partition.split_points`, of the leader."""
        return self._calls.read(
            lambda partition: partition.split_points(start, end, max_bytes, count)
        )

    def size_bytes(self) -> int:
        """Bytes in the logs of all segments of the leader."""
        return self._calls.read(lambda partition: partition.size_bytes())

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        """As `Partition.epoch_end`, from the leader."""
        return self._calls.read(lambda partition: partition.epoch_end(epoch))

    def offset_for_time(
        self, timestamp_ms: int, isolation: str = "read_uncommitted"
    ) -> OffsetAndTimestamp | None:
        """As `Partition.offset_for_time`, from the leader."""
        return self._calls.read(
            lambda partition: partition.offset_for_time(timestamp_ms, isolation)
        )

    # ---- durability ------------------------------------------------------------------------------

    @property
    def durable_offset(self) -> int:
        """The smallest durable offset of the ISR: records below it are on stable storage in all of
        its directories.

        0 while this process does not reach a member: it may have synced nothing.
        """
        return self._calls.retry(
            lambda leader: durable_offset(self._replicas, leader), self.deadline(), raises_last=True
        )

    def sync(self, deadline_ns: int | None = None) -> int:
        """Put everything that is published now on stable storage in all directories of the ISR.
        Raises DurabilityError.
        """
        end = self.published().log_end
        self.sync_to(end, self._calls.deadline_of(deadline_ns))
        return max(end, self.durable_offset)

    def sync_to(self, end: int, deadline_ns: int) -> None:
        """Put the committed records below `end` on stable storage in all directories of the ISR
        (REPLICA-14).
        """

        def sync(leader: Leader) -> None:
            commit_and_sync(
                self._replicas, leader, min(end, leader.partition.published().log_end), deadline_ns
            )

        self._calls.retry(sync, deadline_ns, raises_last=True)

    def flush_if_due(self, end: int, deadline_ns: int, unsynced_ms: int = 0) -> None:
        """Sync up to `end` in each directory that is due by its topic's settings."""

        def flush(leader: Leader) -> None:
            for _, replica in self._replicas.in_sync.find_replicas(leader):
                flush_end = min(end, replica.published().log_end)
                replica.flush_if_due(flush_end, deadline_ns, unsynced_ms)

        self._calls.retry(flush, self.deadline(), raises_last=True)

    def flush_if_late(self) -> None:
        """Sync records of the leader, if the housekeeper is late. Without a leader now, the next
        one is not waited for.
        """
        self._calls.check_open()
        leader = self._replicas.leaders.find_present_leader()
        if leader is not None:
            try:
                leader.partition.flush_if_late()
            except EmbedlogError as problem:
                if self._calls.is_still_leading(leader) is not False:
                    self._calls.forget_failed(problem, self.deadline())

    # ---- appending -------------------------------------------------------------------------------

    @property
    def direct_target(self) -> DirectTarget | None:
        """The leader with its followers, once an append of this process has prepared all of
        them.
        """
        joint = self._followers
        if (
            joint is None
            or joint.leader is not self._calls.leader
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
        leader = self._calls.leader  # another thread may forget it
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
        """As `Partition.seen_plain`, of the current leader only (REPLICA-16)."""
        leader = self._calls.leader
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
        self._calls.check_open()
        until_ns = self._calls.deadline_of(deadline_ns)
        progress = progress or AppendProgress(run)
        progress.waiting = all_in_sync
        append = partial(
            self._append_at,
            progress=progress,
            stamp=stamp,
            until_ns=until_ns,
            flush=flush,
            all_in_sync=all_in_sync,
        )
        find = self._calls.find_for_append if all_in_sync else self._calls.find
        return self._calls.retry(append, until_ns, find)

    def _append_at(
        self,
        leader: Leader,
        *,
        progress: AppendProgress,
        stamp: Stamp | None,
        until_ns: int,
        flush: bool,
        all_in_sync: bool,
    ) -> Appended:
        """Append at this leader what its log does not have yet. Raises NotLeader, LeaderChanged,
        TooFew, and the errors of `append`.
        """
        if progress.pieces and progress.epochs[-1] != leader.epoch:
            reduce_to_survivors(progress, leader, stamp)
        progress.epoch = leader.epoch
        is_durable = leader.partition.config.flush_messages != FLUSH_NEVER
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
            self._append_to(leader, progress, stamp, followers, until_ns, flush=flushes_alone)
            self._replicas.note_worked(leader.node)
            # as it was at the append
            is_durable = leader.partition.config.flush_messages != FLUSH_NEVER
        appended = progress.result()
        if all_in_sync and progress.committed <= appended.last_offset:
            end = appended.last_offset + 1
            self._replicas.in_sync.commit(leader, end, until_ns)
            if self._followers is not None:
                self._followers.note_answers(system.boot_ns())
            # also if the ISR is too small now: readers may have the record
            progress.seen_committed = end
            self._replicas.in_sync.check_size_for_acks_all(leader, end, until_ns)
            progress.committed = end
        if not all_in_sync:
            self._replicas.in_sync.note_appended()
        elif is_durable and flush:
            sync_if_due(self._replicas, leader, appended.last_offset + 1, until_ns)
        return appended

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
            attempt = progress.copy()
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
        """The followers that take a run in the same call; None if a directory hangs.

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
                [partition.replica for _, partition in members[1:]],
                leader.epoch,
                needed,
            )
            joint = _JointFollowers(leader, followers, workers)
            self._followers = joint
        if joint.is_hanging():
            return None
        return joint.followers

    # ---- the append lock -------------------------------------------------------------------------

    @scope
    def exclusive(self, deadline_ns: int | None = None) -> Iterator[LockedPartition]:
        """The append lock of the leader. On leaving it waits until everything in the log is
        committed.

        Meanwhile `fetch` of this thread reads up to the log end. Raises NotEnoughReplicasError,
        LeaderNotAvailableError; NotEnoughReplicasAfterAppendError if records were appended inside
        and may still be committed. After the other two nothing of the last append counts.
        """
        self._calls.check_open()
        until = self._calls.deadline_of(deadline_ns)
        with stack() as entered:
            leader, held = self._lock_leader(entered, until)
            start = held.state.read_page().log_end
            self._locked.leader = leader
            try:
                yield held
            except NotLeader as changed:
                self._calls.leader = None
                raise LeaderNotAvailableError(
                    f"the leader of {self._replicas.name} changed before an append"
                ) from changed
            except TooFew:
                raise self._replicas.in_sync.too_few_error(leader) from None
            except EmbedlogError as problem:
                self._raise_own_error(problem, leader)
            finally:
                self._locked.leader = None
            try:
                end = held.state.read_page().log_end
            except EmbedlogError as problem:
                raise self._uncertain_error(start + 1, problem) from problem
        try:
            self._wait_for_commit(leader, end, until, written=end > start)
        except LeaderChanged as changed:
            self._commit_elsewhere(leader.epoch, end, until, changed, written=end > start)
        except (LeaderNotAvailableError, StorageError) as problem:
            if end == start:
                raise
            raise self._uncertain_error(end, problem) from problem

    def _commit_elsewhere(
        self, epoch: int, end: int, until: int, changed: LeaderChanged, *, written: bool
    ) -> None:
        """As `_wait_for_commit`, at the next leaders, while each of them has what was written in
        `epoch`.

        Raises LeaderNotAvailableError if one does not have it.
        """
        is_lost = False

        def wait_at(leader: Leader) -> None:
            nonlocal is_lost
            is_in_log = is_in_log_of(leader, epoch, end - 1)
            if not is_in_log:
                is_lost = is_in_log is False
                raise LeaderNotAvailableError(
                    f"the leader of {self._replicas.name} changed before the commit"
                ) from changed.__cause__
            self._wait_for_commit(leader, end, until, written=written)

        self._calls.leader = None
        try:
            self._calls.retry(wait_at, until)
        except (LeaderNotAvailableError, LockTimeoutError, StorageError) as problem:
            if is_lost or not written:
                raise
            raise self._uncertain_error(end, problem) from problem

    def _uncertain_error(
        self, end: int, problem: EmbedlogError
    ) -> NotEnoughReplicasAfterAppendError:
        """The error of a decision that was appended, and whose commit is not known: a caller that
        repeats what did not count must not repeat it.
        """
        text = (
            f"a decision in {self._replicas.name} was appended, and may be committed later: "
            f"{problem}"
        )
        facts = self._replicas.in_sync.size_facts()
        return NotEnoughReplicasAfterAppendError(text, offset=end - 1, **facts)

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
                self._calls.forget_failed(problem, until)
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
        self._calls.forget_failed(problem, self.deadline())
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

        def confirm_at(leader: Leader) -> bool:
            if leader.epoch != epoch:
                return False
            self._wait_for_commit(leader, end, until, written=False)
            return True

        return self._calls.retry(confirm_at, until)

    def _lock_leader(self, entered: Stack, until: int) -> tuple[Leader, LockedPartition]:
        """Take the append lock of the leader; of the next one if its directory fails or the leader
        changes.
        """

        def lock(leader: Leader) -> tuple[Leader, LockedPartition]:
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

        return self._calls.retry(lock, until)

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
        now, replica = leader.read_page()
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
        self._calls.check_open()
        until = self._calls.deadline_of(deadline_ns)

        def append_at(leader: Leader) -> int | None:
            self._check_answers(leader)
            leader.partition.replica.require(
                leader.epoch, all_in_sync=True, needed=self._replicas.in_sync.needed_isr_size()
            )
            append = partial(
                leader.partition.append_marker,
                producer_id,
                epoch,
                commit=commit,
                coordinator_epoch=coordinator_epoch,
                deadline_ns=self._replicas.members.lock_deadline(until),
            )
            offset = self._replicas.members.runner_of(leader.node)(append)
            self._replicas.in_sync.commit_for_all(
                leader, leader.partition.published().log_end, until
            )
            return offset

        return self._calls.retry(append_at, until)

    def open_transactions(self) -> list[tuple[int, int, int]]:
        """As `Partition.open_transactions`, of the leader."""
        return self._calls.read(lambda partition: partition.open_transactions())

    def stored_epoch(self, producer_id: int) -> int:
        """As `Partition.stored_epoch`, of the leader."""
        return self._calls.read(lambda partition: partition.stored_epoch(producer_id))

    def delete_records(self, offset: int) -> int:
        """As `Partition.delete_records`: the log start is on disk in all directories of the ISR.

        Raises also NotEnoughReplicasError, NotEnoughDirectoriesError, LeaderNotAvailableError;
        NotEnoughReplicasAfterAppendError if a replica may have deleted.
        """
        self._calls.check_open()
        until = self.deadline()
        deletion = RecordDeletion(self._replicas, offset, until)
        try:
            return self._calls.retry(deletion.delete_everywhere, until, self._calls.find_committed)
        except EmbedlogError as problem:
            if not deletion.has_begun:
                raise
            raise deletion.unfinished_error(problem) from problem
