"""The owner of a transactional id: executes the transactions of one producer.

OWNER-1  an owner holds a process slot, so its end is detected at once; another owner of the same id
    fences it. In a set a registration names another slot if the directory of the present one failed
    or left. All slots are held until `close`: an earlier record, with the earlier slot, counts if
    the registration is lost
OWNER-2  every call may be repeated after an error or an interrupt, with the same arguments: it
    finds its completed steps
OWNER-3  if nothing was registered, an end writes nothing and takes no lock
OWNER-4  offsets of a group are data of the transaction like any other: registered and written under
    the lock of `__transaction_state` and then of their partition. The group's consent is checked
    under the latter
OWNER-5  a replica that has begun again above the data of an open transaction does not know it, and
    refuses the next batch. If all of that data is below the log start, the batch is written like a
    first one: under the lock the registration decides
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from embedlog import transaction as machine
from embedlog._native import system
from embedlog.coordination.host import Host
from embedlog.coordination.producer_ids import new_producer_id
from embedlog.coordination.transactions.transaction_checks import (
    Concurrent,
    asks_for_durability,
    now,
    refused,
    to_be_durable,
    unsynced,
)
from embedlog.coordination.transactions.transaction_records import encode, encode_key
from embedlog.errors import (
    ClosedError,
    EmbedlogError,
    FencedError,
    LockTimeoutError,
    StateError,
    StorageError,
)
from embedlog.format.record_batch import Stamp
from embedlog.partition.interposer import commit_begins, commit_succeeded
from embedlog.storage.call_deadline import bounded_waits
from embedlog.transaction import PREPARED, SETTLED, Outcome, Refusal, Status, Transaction

if TYPE_CHECKING:
    from embedlog.coordination.internal_topic import Decision, InternalTopic
    from embedlog.coordination.transactions.transaction_view import Entries
    from embedlog.format.process_slot import ProcessSlot
    from embedlog.format.record_batch import EncodedRun
    from embedlog.partition.api import TransactionalLog
    from embedlog.partition.log_context import Appended, AppendProgress
    from embedlog.storage.liveness import Liveness
    from embedlog.storage.parallel_syncs import TransactionSyncs
    from embedlog.types import GroupMetadata

T = TypeVar("T")
TopicPartition = tuple[str, int]
# a lock of `__transaction_state` is held at most this long to wait for a data partition
SHARE_NS: Final = 50_000_000


class OffsetCommit(Protocol):
    """A commit of a group's offsets that becomes part of a transaction."""

    topic: str
    number: int
    end: int

    @property
    def partition(self) -> TransactionalLog: ...
    def check(self) -> None: ...
    def append(self, stamp: Stamp, deadline_ns: int) -> bool: ...
    def wait(self, deadline_ns: int) -> None: ...


class OffsetCommits(Protocol):
    """The committed offsets of groups."""

    def prepare(self, offsets: Mapping[Any, Any], group: GroupMetadata) -> OffsetCommit | None: ...


class TransactionHost(Host, Protocol):
    """The open log with its groups."""

    @property
    def groups(self) -> OffsetCommits: ...


class Coordinator(Protocol):
    """Decisions about all transactional ids of one open log."""

    host: TransactionHost
    liveness: Liveness
    topic: InternalTopic[Entries]
    syncs: TransactionSyncs

    def deadline(self, deadline_ns: int | None) -> int: ...
    def recover_if_due(self, deadline_ns: int) -> None: ...
    def decide(
        self,
        name: str,
        event: Callable[[Transaction | None], Transaction | Refusal | None],
        deadline_ns: int,
    ) -> Transaction | None: ...
    def finish(self, name: str, seen: Transaction, deadline_ns: int) -> None: ...
    def finish_before(self, problem: Concurrent, deadline_ns: int) -> None: ...


class _Written(NamedTuple):
    """The end of this transaction's data in a partition, and the topic's id, since another topic
    may get the same name.
    """

    topic_id: bytes
    end: int


class Owner:
    """One transactional producer's side of its transactions. Threads: `append` from any; the others
    one at a time.
    """

    def __init__(self, transactions: Coordinator, transactional_id: str, timeout_ms: int) -> None:
        self.transactional_id = transactional_id
        self.timeout_ms = timeout_ms
        self._all = transactions
        # the last one is the present one; always the same list, for threads and signals
        self._slots: list[ProcessSlot] = []
        self._closed = False
        self._id: tuple[int, int] | None = None
        self._registration_tried = False  # whether a registration was attempted in this transaction
        self._opened: dict[TopicPartition, _Written] = {}

    @property
    def stamp(self) -> Stamp:
        """The stamp of the present transaction's batches. Raises StateError before `init`."""
        return Stamp(*self._identity(), transactional=True)

    def _identity(self) -> tuple[int, int]:
        if self._id is None:
            raise StateError(
                f"transactional id {self.transactional_id!r}: call init_transactions() first"
            )
        return self._id

    def close(self) -> None:
        """Release the process slots: an open transaction then counts as abandoned. Idempotent; a
        signal handler may call it.
        """
        self._closed = True
        for process_slot in tuple(self._slots):
            self._all.liveness.end(process_slot)
            with suppress(ValueError):  # a signal handler, or another thread, was faster
                self._slots.remove(process_slot)

    def _slot(self) -> ProcessSlot:
        """The present process slot: another one if its directory is not used any more (OWNER-1).
        Raises ClosedError.

        It may write a file, so the lock of `__transaction_state` is taken afterwards.
        """
        present = next(reversed(self._slots), None)
        if present is None:
            self._take_slot()
        elif not self._all.liveness.shows_slot(present):
            # then the earlier one counts until the timeout of the transaction
            with suppress(StorageError):
                self._take_slot()
        return self._held()[-1]

    def _take_slot(self) -> None:
        """Begin a further process slot, unless the owner is closed."""
        if not self._closed:
            self._slots.append(self._all.liveness.begin())
        if self._closed:
            self.close()  # it may have come before the slot was known

    def _held(self) -> tuple[ProcessSlot, ...]:
        """The process slots, at least one. Raises ClosedError."""
        slots = tuple(self._slots)
        if not slots:
            raise ClosedError(f"transactional id {self.transactional_id!r}: the owner was closed")
        return slots

    # ---- calls -----------------------------------------------------------------------------------

    def init(self, deadline_ns: int | None = None) -> Outcome | None:
        """Take over the id: fence its previous owner, finish or abort its transaction; returns the
        outcome of the last transaction.

        Raises FencedError if a newer producer took over the id since this one had it, ClosedError,
        LockTimeoutError, DeadlineError.
        """
        everything = self._all
        until = self._all.deadline(deadline_ns)
        everything.host.check_writable()
        everything.topic.repeated(lambda: everything.recover_if_due(until), until, idempotent=True)
        self._slot()
        taken = self._without_predecessor(self._take, until)
        self._id = (taken.producer_id, taken.epoch)
        self.begin()
        return taken.outcome

    def _take(self, old: Transaction | None) -> Transaction | Refusal:
        process_slot = self._held()[-1]
        if old is not None and old.status is Status.ONGOING:  # of any owner: a new start ends it
            claimed = self._id is None or self._id == (old.producer_id, old.epoch)
            aborted = (
                machine.abort_abandoned(old, old, new_producer_id(), now()) if claimed else None
            )
            return aborted or Refusal.PRODUCER_FENCED
        return machine.initialize(
            old, process_slot, self.timeout_ms, new_producer_id(), now(), self._id
        )

    def begin(self) -> None:
        """Begin a transaction, without any effect on the log."""
        self._registration_tried = False
        self._opened = {}

    def begin_in(
        self,
        runs: Sequence[tuple[TransactionalLog, EncodedRun, AppendProgress]],
        deadline_ns: int | None = None,
    ) -> None:
        """Register several partitions in one record, and write the first run of each under the same
        lock, if that needs no long wait.

        `append` continues from there, so an error here is not final.
        """
        until = self._all.deadline(deadline_ns)
        stamp = self.stamp
        fresh = {(each[0].topic, each[0].number): each for each in runs}
        for where in [
            where for where, (partition, _, _) in fresh.items() if self._has_data_in(partition)
        ]:
            del fresh[where]
        if not fresh:
            return
        with bounded_waits(until):
            for partition, _, _ in fresh.values():
                partition.open()
        self._registration_tried = True
        with self._deciding(until) as decision:
            if self._register(decision, stamp, fresh) is not None or not _may_write(decision):
                return
            until_ns = system.boot_ns() + SHARE_NS
            for where, (partition, run, progress) in fresh.items():
                write = partial(self._write_first, partition, run, progress)
                if system.boot_ns() >= until_ns or _unless_locked(write, until) is None:
                    return
                self._opened[where] = _Written(partition.topic_id, progress.pieces[-1][1])

    def _write_first(
        self,
        partition: TransactionalLog,
        run: EncodedRun,
        progress: AppendProgress | None,
        deadline_ns: int,
    ) -> Appended:
        return partition.append(
            run,
            stamp=self.stamp._replace(opens=True),
            flush=False,
            progress=progress,
            deadline_ns=deadline_ns,
        )

    def append(
        self,
        partition: TransactionalLog,
        run: EncodedRun,
        deadline_ns: int | None = None,
        progress: AppendProgress | None = None,
    ) -> Appended:
        """Append stamped batches; the first ones in a partition are registered and written under
        both locks.

        Raises FencedError if this transaction is not open any more, and the errors of
        `Partition.append`.
        """
        where = (partition.topic, partition.number)
        until = self._all.deadline(deadline_ns)
        done = None
        # done by `begin_in`
        if progress is not None and progress.complete and not partition.replicated:
            done = _flushed(partition, progress.appended(), until)
        elif self._has_data_in(partition):
            done = self._append_next(partition, run, where, until, progress)
        if done is None:
            first = self._all.topic.repeated(
                lambda: self._append_first(partition, run, where, until, progress), until
            )
            done = _flushed(partition, first, until)
        before = self._opened[where].end if self._has_data_in(partition) else 0
        self._opened[where] = _Written(partition.topic_id, max(before, done.last_offset + 1))
        return done

    def _append_next(
        self,
        partition: TransactionalLog,
        run: EncodedRun,
        where: TopicPartition,
        deadline_ns: int,
        progress: AppendProgress | None,
    ) -> Appended | None:
        """Append where this transaction has data; None if the leader does not know it because that
        data is deleted (OWNER-5).
        """
        flush = not asks_for_durability(partition)
        try:
            return partition.append(
                run, deadline_ns=deadline_ns, stamp=self.stamp, progress=progress, flush=flush
            )
        except FencedError:
            written = progress.pieces[-1][1] if progress is not None and progress.pieces else 0
            if max(written, self._opened[where].end) > partition.bounds().log_start:
                raise
            return None

    def _has_data_in(self, partition: TransactionalLog) -> bool:
        """Whether this partition contains data of this transaction, and is not one of a newer topic
        with the same name.
        """
        written = self._opened.get((partition.topic, partition.number))
        return written is not None and written.topic_id == partition.topic_id

    def _append_first(
        self,
        partition: TransactionalLog,
        run: EncodedRun,
        where: TopicPartition,
        deadline_ns: int,
        progress: AppendProgress | None,
    ) -> Appended:
        stamp = self.stamp
        done = None
        self._registration_tried = True
        with bounded_waits(deadline_ns):
            partition.open()  # may be slow
        write = partial(self._write_first, partition, run, progress)
        committed = False
        while done is None:
            with self._deciding(deadline_ns) as decision:
                problem = self._register(decision, stamp, (where,))
                committed = _may_write(decision, committed)
                if problem is None and committed:
                    done = _unless_locked(write, deadline_ns)
                elif problem is not None and not isinstance(problem, Concurrent):
                    raise problem
            if isinstance(problem, Concurrent):
                self._all.finish_before(problem, deadline_ns)
            elif done is None and committed:
                with partition.exclusive(deadline_ns):
                    pass  # the partition was locked: wait here, without a lock that others need
            committed = True  # the end of `deciding` has waited for the commit of the registration
        return done

    def end(self, commit: bool, deadline_ns: int | None = None) -> None:
        """Decide, write the markers, complete. When it returns, read_committed readers see the
        transaction, or never will.

        Raises FencedError, InvalidTransactionStateError, ClosedError. After LockTimeoutError,
        StorageError, DeadlineError, NotEnoughReplicasError or LeaderNotAvailableError the same call
        may be repeated, and after a commit no other one: it may have been decided.
        """
        if not self._registration_tried:
            return
        until, (producer_id, epoch), slots = (
            self._all.deadline(deadline_ns),
            self._identity(),
            self._held(),
        )
        if commit:
            commit_begins(self._all.host.interposer, self.transactional_id, until)
            self._all.topic.repeated(lambda: self._sync_data(until), until, idempotent=True)

        def event(old: Transaction | None) -> Transaction | Refusal:
            mine = old is not None and (old.producer_id, old.epoch) == (producer_id, epoch)
            if old is not None and mine and old.status in SETTLED and not self._opened:
                return old  # the registration failed, so there is nothing to decide
            process_slot = next(
                (each for each in slots if old is not None and each == old.owner), slots[-1]
            )
            return machine.end(
                old, producer_id, epoch, process_slot, commit, new_producer_id(), now()
            )

        decided = self._without_predecessor(event, until)
        if decided.status in PREPARED:
            self._all.finish(self.transactional_id, decided, until)
        if commit:
            commit_succeeded(self._all.host.interposer, self.transactional_id)
        self._id = machine.following(decided)
        self.begin()

    def _sync_data(self, deadline_ns: int) -> None:
        """Sync the data of this transaction, where its topics require that."""
        # not in deleted topics
        written = [
            each for each in self._all.host.existing(self._opened) if self._has_data_in(each)
        ]
        ends = (
            (each, self._opened[each.topic, each.number].end) for each in to_be_durable(written)
        )
        self._all.syncs.sync(unsynced(ends), deadline_ns)

    def add_offsets(
        self, offsets: Mapping[Any, Any], group: GroupMetadata, deadline_ns: int | None = None
    ) -> None:
        """Commit a group's offsets with the transaction: they are invisible before its marker.

        The group's consent is checked under its lock; the registration of a refused commit stays
        empty. May be repeated. Raises FencedError for this transaction, and as `Offsets.commit` for
        the group and the offsets.
        """
        commit = self._all.host.groups.prepare(offsets, group)
        until = self._all.deadline(deadline_ns)
        if commit is None:
            return
        where = (commit.topic, commit.number)
        done = False
        committed = False
        while not done:
            commit.check()
            if where in self._opened:
                done = commit.append(self.stamp, until)
            else:
                done = self._all.topic.repeated(
                    partial(self._open_with, commit, where, committed, until), until
                )
                # the end of `deciding` has waited for the commit of the registration
                committed = True
        self._opened[where] = _Written(commit.partition.topic_id, commit.end)
        commit_succeeded(self._all.host.interposer, group.group_id)

    def _open_with(
        self, commit: OffsetCommit, where: TopicPartition, committed: bool, deadline_ns: int
    ) -> bool:
        """Register and append under both locks; False if a wait or a read is needed without them
        first.

        `committed`: a registration that is found is known to be committed.
        """
        stamp = self.stamp
        self._registration_tried = True
        try:
            with self._deciding(deadline_ns) as decision:
                problem = self._register(decision, stamp, (where,))
                if problem is not None:
                    raise problem
                append = partial(commit.append, stamp._replace(opens=True))
                committed = _may_write(decision, committed)
                done = _unless_locked(append, deadline_ns) if committed else None
        except Concurrent as problem:
            self._all.finish_before(problem, deadline_ns)
            return False
        if done is None and committed:
            commit.wait(deadline_ns)
        return bool(done)

    # ---- registration ----------------------------------------------------------------------------

    def _deciding(self, deadline_ns: int) -> AbstractContextManager[Decision[Entries]]:
        if self._slots:  # records that a closed producer has left are written, too
            self._slot()
        topic = self._all.topic
        return topic.deciding(topic.partition_of(self.transactional_id), deadline_ns)

    def _register(
        self, decision: Decision[Entries], stamp: Stamp, places: Iterable[TopicPartition]
    ) -> EmbedlogError | None:
        """Record that the transaction writes to these partitions; returns the error if it may not.

        REQUIRES the lock of `decision`.
        """
        old = decision.view.get(self.transactional_id)
        new = machine.register(
            old, stamp.producer_id, stamp.epoch, places, now(), next(reversed(self._slots), None)
        )
        if isinstance(new, Refusal):
            return refused(self.transactional_id, new, old)
        self._write(decision, old, new)
        system.point("txn-registered")
        return None

    def _write(
        self, decision: Decision[Entries], old: Transaction | None, new: Transaction
    ) -> None:
        if new is not old:
            decision.append([(encode_key(self.transactional_id), encode(new))])
            decision.view.keep(self.transactional_id, new)

    def _without_predecessor(
        self, event: Callable[[Transaction | None], Transaction | Refusal], deadline_ns: int
    ) -> Transaction:
        """The event's outcome, after any earlier decision was carried out."""
        while True:
            try:
                new = self._all.decide(self.transactional_id, event, deadline_ns)
            except Concurrent as problem:
                self._all.finish_before(problem, deadline_ns)
                continue
            assert new is not None
            if new.status in SETTLED or new.owner is not None:
                return new
            # `init` aborted the open transaction, and starts again
            self._all.finish(self.transactional_id, new, deadline_ns)


def _flushed(partition: TransactionalLog, done: Appended, deadline_ns: int) -> Appended:
    """Do the flush that is due after an append, without the lock that others need; the commit does
    that of a durable topic.
    """
    if not asks_for_durability(partition):
        partition.flush_if_due(done.last_offset + 1, deadline_ns)
    return done


def _may_write(decision: Decision[Entries], committed: bool = False) -> bool:
    """Whether data may follow under the same lock: the registration must be committed before it
    (REPLICA-22).

    `committed`: what the view had before is known to be.
    """
    return not decision.pending and (committed or decision.committed)


def _unless_locked(write: Callable[..., T], deadline_ns: int) -> T | None:
    """Append now; None if the partition is locked: the lock of `__transaction_state` is not held
    during a wait for it.
    """
    try:
        return write(deadline_ns=min(deadline_ns, system.boot_ns() + SHARE_NS))
    except LockTimeoutError:
        if system.boot_ns() >= deadline_ns:
            raise
        return None
