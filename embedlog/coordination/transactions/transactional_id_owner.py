"""The owner of a transactional id: executes the transactions of one producer.

- An owner holds a process slot, so its end is detected at once; another owner of the same id fences
  it. In a set a registration names another slot if the directory of the current one failed or left.
  All slots are held until `close`: an earlier record, with the earlier slot, counts if the
  registration is lost.
- Every call may be repeated after an error or an interrupt, with the same arguments: it finds its
  completed steps.
- If nothing was registered, an end writes nothing and takes no lock.
- Offsets of a group are data of the transaction like any other: registered and written under the
  lock of `__transaction_state` and then of their partition. The group's consent is checked under
  the latter.
- A replica that has begun again above the data of an open transaction does not know it, and refuses
  the next batch. If all of that data is below the log start, the batch is written like a first one:
  under the lock the registration decides.
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
    current_moment,
    refusal_error,
    select_durable,
    select_unsynced,
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
from embedlog.partition.interposer import ask_before_commit, report_commit
from embedlog.storage.call_deadline import bound_waits
from embedlog.transaction import PREPARED, SETTLED, Outcome, Refusal, Status, Transaction

if TYPE_CHECKING:
    from embedlog.coordination.internal_topic import InternalTopic, TopicDecision
    from embedlog.coordination.transactions.transaction_view import TransactionEntries
    from embedlog.format.process_slot import ProcessSlot
    from embedlog.format.record_batch import EncodedRun
    from embedlog.partition.interfaces import TransactionalLog
    from embedlog.partition.log_context import Appended, AppendProgress
    from embedlog.storage.liveness import Liveness
    from embedlog.storage.parallel_syncs import TransactionSyncs
    from embedlog.types import GroupMetadata

T = TypeVar("T")
TopicPartition = tuple[str, int]
# a lock of `__transaction_state` is held about this long to wait for data partitions: no further wait
# begins after it, and none is longer
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
    topic: InternalTopic[TransactionEntries]
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

    topic_id_bytes: bytes
    end: int


class TransactionalIdOwner:
    """One transactional producer's side of its transactions. Threads: `append` from any; the others
    one at a time.
    """

    def __init__(self, transactions: Coordinator, transactional_id: str, timeout_ms: int) -> None:
        self.transactional_id = transactional_id
        self.timeout_ms = timeout_ms
        self._coordinator = transactions
        # the last one is the current one; always the same list, for threads and signals
        self._slots: list[ProcessSlot] = []
        self._closed = False
        self._id: tuple[int, int] | None = None
        self._registration_tried = False  # whether a registration was attempted in this transaction
        self._written_data: dict[TopicPartition, _Written] = {}

    @property
    def stamp(self) -> Stamp:
        """The stamp of the current transaction's batches. Raises StateError before `init`."""
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
            self._coordinator.liveness.end(process_slot)
            with suppress(ValueError):  # a signal handler, or another thread, was faster
                self._slots.remove(process_slot)

    def _ensure_slot(self) -> ProcessSlot:
        """The current process slot: another one if its directory is not used any more.
        Raises ClosedError.

        It may write a file, so the lock of `__transaction_state` is taken afterwards.
        """
        current = next(reversed(self._slots), None)
        if current is None:
            self._take_slot()
        elif not self._coordinator.liveness.shows_slot(current):
            # then the earlier one counts until the timeout of the transaction
            with suppress(StorageError):
                self._take_slot()
        return self._held_slots()[-1]

    def _take_slot(self) -> None:
        """Begin a further process slot, unless the owner is closed."""
        if not self._closed:
            self._slots.append(self._coordinator.liveness.begin())
        if self._closed:
            self.close()  # it may have come before the slot was known

    def _held_slots(self) -> tuple[ProcessSlot, ...]:
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
        coordinator = self._coordinator
        until = self._coordinator.deadline(deadline_ns)
        coordinator.host.check_writable()
        coordinator.topic.retry_until_counted(
            lambda: coordinator.recover_if_due(until), until, idempotent=True
        )
        self._ensure_slot()
        initialized = self._decide_after_predecessor(self._take_over, until)
        self._id = (initialized.producer_id, initialized.epoch)
        self.begin()
        return initialized.outcome

    def _take_over(self, old: Transaction | None) -> Transaction | Refusal:
        """The id for this owner; or, of an open transaction, its abort, after which the same is asked
        again. Refused if the id is that of a newer owner.
        """
        process_slot = self._held_slots()[-1]
        if old is not None and old.status is Status.ONGOING:  # of any owner: a new start ends it
            may_end = self._id is None or self._id == (old.producer_id, old.epoch)
            if not may_end:
                return Refusal.PRODUCER_FENCED
            aborted = machine.abort_abandoned(old, old, new_producer_id(), current_moment())
            return aborted or Refusal.PRODUCER_FENCED
        return machine.initialize(
            old, process_slot, self.timeout_ms, new_producer_id(), current_moment(), self._id
        )

    def begin(self) -> None:
        """Begin a transaction, without any effect on the log."""
        self._registration_tried = False
        self._written_data = {}

    def begin_in(
        self,
        runs: Sequence[tuple[TransactionalLog, EncodedRun, AppendProgress]],
        deadline_ns: int | None = None,
    ) -> None:
        """Register several partitions in one record, and write the first run of each under the same
        lock, if that needs no long wait.

        `append` continues from there, so an error here is not final.
        """
        until = self._coordinator.deadline(deadline_ns)
        stamp = self.stamp
        unwritten = {}
        for partition, run, progress in runs:
            if not self._has_data_in(partition):
                unwritten[partition.topic, partition.number] = (partition, run, progress)
        if not unwritten:
            return
        with bound_waits(until):
            for partition, _, _ in unwritten.values():
                partition.open()
        self._registration_tried = True
        with self._lock_for_decision(until) as decision:
            if self._register(decision, stamp, unwritten) is not None or not _may_write(decision):
                return
            until_ns = system.boot_ns() + SHARE_NS
            for tp, (partition, run, progress) in unwritten.items():
                write = partial(self._write_first, partition, run, progress)
                if system.boot_ns() >= until_ns or _append_unless_locked(write, until) is None:
                    return
                self._written_data[tp] = _Written(partition.topic_id_bytes, progress.pieces[-1][1])

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
        tp = (partition.topic, partition.number)
        until = self._coordinator.deadline(deadline_ns)
        appended = None
        # done by `begin_in`
        if progress is not None and progress.complete and not partition.replicated:
            appended = _flush_if_due(partition, progress.result(), until)
        elif self._has_data_in(partition):
            appended = self._append_next(partition, run, tp, until, progress)
        if appended is None:
            appended_first = self._coordinator.topic.retry_until_counted(
                lambda: self._append_first(partition, run, tp, until, progress), until
            )
            appended = _flush_if_due(partition, appended_first, until)
        previous_end = self._written_data[tp].end if self._has_data_in(partition) else 0
        self._written_data[tp] = _Written(
            partition.topic_id_bytes, max(previous_end, appended.last_offset + 1)
        )
        return appended

    def _append_next(
        self,
        partition: TransactionalLog,
        run: EncodedRun,
        tp: TopicPartition,
        deadline_ns: int,
        progress: AppendProgress | None,
    ) -> Appended | None:
        """Append where this transaction has data; None if the leader does not know it because that
        data is deleted.
        """
        flush = not partition.config.durable
        try:
            return partition.append(
                run, deadline_ns=deadline_ns, stamp=self.stamp, progress=progress, flush=flush
            )
        except FencedError:
            written_end = progress.pieces[-1][1] if progress is not None and progress.pieces else 0
            if max(written_end, self._written_data[tp].end) > partition.bounds().log_start:
                raise
            return None

    def _has_data_in(self, partition: TransactionalLog) -> bool:
        """Whether this partition contains data of this transaction, and is not one of a newer topic
        with the same name.
        """
        written = self._written_data.get((partition.topic, partition.number))
        return written is not None and written.topic_id_bytes == partition.topic_id_bytes

    def _append_first(
        self,
        partition: TransactionalLog,
        run: EncodedRun,
        tp: TopicPartition,
        deadline_ns: int,
        progress: AppendProgress | None,
    ) -> Appended:
        """Register the partition, and write its first run under the same lock, once the registration
        is committed. Each turn of the loop ends in one of these ways:

        | the turn | wait without the lock of `__transaction_state` | the next turn |
        | --- | --- | --- |
        | wrote | | none |
        | found an earlier decision of the id (`Concurrent`): nothing was registered | until that is carried out | registers |
        | registered, not committed yet | at the end of `_lock_for_decision`, for the commit | writes |
        | met the lock of the partition | for that lock | writes |
        """
        stamp = self.stamp
        appended = None
        self._registration_tried = True
        with bound_waits(deadline_ns):
            partition.open()  # may be slow
        write = partial(self._write_first, partition, run, progress)
        is_registration_committed = False
        while appended is None:
            with self._lock_for_decision(deadline_ns) as decision:
                problem = self._register(decision, stamp, (tp,))
                is_registration_committed = _may_write(decision, is_registration_committed)
                if problem is None and is_registration_committed:
                    appended = _append_unless_locked(write, deadline_ns)
                elif problem is not None and not isinstance(problem, Concurrent):
                    raise problem
            if isinstance(problem, Concurrent):
                self._coordinator.finish_before(problem, deadline_ns)
            elif appended is None and is_registration_committed:
                with partition.exclusive(deadline_ns):
                    pass  # the partition was locked: wait here, without a lock that others need
            # The end of `_lock_for_decision` has waited for the commit of what this turn registered.
            # After `Concurrent` it has no effect: the registration of the next turn awaits its commit
            is_registration_committed = True
        return appended

    def end(self, commit: bool, deadline_ns: int | None = None) -> None:
        """Decide, write the markers, complete. When it returns, read_committed readers see the
        transaction, or never will.

        Raises FencedError, InvalidTransactionStateError, ClosedError. After LockTimeoutError,
        StorageError, DeadlineError, NotEnoughReplicasError or LeaderNotAvailableError the same call
        may be repeated, and after a commit no other one: it may have been decided.
        """
        if not self._registration_tried:
            return
        until = self._coordinator.deadline(deadline_ns)
        producer_id, epoch = self._identity()
        slots = self._held_slots()
        if commit:
            ask_before_commit(self._coordinator.host.interposer, self.transactional_id, until)
            self._coordinator.topic.retry_until_counted(
                lambda: self._sync_data(until), until, idempotent=True
            )

        def event(old: Transaction | None) -> Transaction | Refusal:
            is_mine = old is not None and (old.producer_id, old.epoch) == (producer_id, epoch)
            if old is not None and is_mine and old.status in SETTLED and not self._written_data:
                return old  # the registration failed, so there is nothing to decide
            process_slot = slots[-1]
            if old is not None and old.owner is not None and old.owner in slots:
                process_slot = old.owner
            return machine.end(
                old,
                producer_id,
                epoch,
                process_slot,
                commit=commit,
                next_id=new_producer_id(),
                now=current_moment(),
            )

        decided = self._decide_after_predecessor(event, until)
        if decided.status in PREPARED:
            self._coordinator.finish(self.transactional_id, decided, until)
        if commit:
            report_commit(self._coordinator.host.interposer, self.transactional_id)
        self._id = machine.producer_identity_of(decided)
        self.begin()

    def _sync_data(self, deadline_ns: int) -> None:
        """Sync the data of this transaction, where its topics require that."""
        existing = self._coordinator.host.existing(self._written_data)  # not in deleted topics
        partitions = [partition for partition in existing if self._has_data_in(partition)]
        ends = [
            (partition, self._written_data[partition.topic, partition.number].end)
            for partition in select_durable(partitions)
        ]
        self._coordinator.syncs.sync(select_unsynced(ends), deadline_ns)

    def add_offsets(
        self, offsets: Mapping[Any, Any], group: GroupMetadata, deadline_ns: int | None = None
    ) -> None:
        """Commit a group's offsets with the transaction: they are invisible before its marker.

        The group's consent is checked under its lock; the registration of a refused commit stays
        empty. May be repeated. Raises FencedError for this transaction, and as `Offsets.commit` for
        the group and the offsets.
        """
        commit = self._coordinator.host.groups.prepare(offsets, group)
        until = self._coordinator.deadline(deadline_ns)
        if commit is None:
            return
        tp = (commit.topic, commit.number)
        is_appended = False
        is_registration_committed = False
        while not is_appended:
            commit.check()
            if tp in self._written_data:
                is_appended = commit.append(self.stamp, until)
            else:
                is_appended = self._coordinator.topic.retry_until_counted(
                    partial(
                        self._append_first_commit, commit, tp, is_registration_committed, until
                    ),
                    until,
                    idempotent=True,
                )
                # the end of `lock_for_decision` has waited for the commit of the registration
                is_registration_committed = True
        self._written_data[tp] = _Written(commit.partition.topic_id_bytes, commit.end)
        report_commit(self._coordinator.host.interposer, group.group_id)

    def _append_first_commit(
        self,
        commit: OffsetCommit,
        tp: TopicPartition,
        is_registration_committed: bool,
        deadline_ns: int,
    ) -> bool:
        """Register and append under both locks; False if a wait or a read is needed without them
        first.

        `is_registration_committed`: a registration that is found is known to be committed.
        """
        stamp = self.stamp
        self._registration_tried = True
        try:
            with self._lock_for_decision(deadline_ns) as decision:
                problem = self._register(decision, stamp, (tp,))
                if problem is not None:
                    raise problem
                append = partial(commit.append, stamp._replace(opens=True))
                is_registration_committed = _may_write(decision, is_registration_committed)
                is_appended = (
                    _append_unless_locked(append, deadline_ns)
                    if is_registration_committed
                    else None
                )
        except Concurrent as problem:
            self._coordinator.finish_before(problem, deadline_ns)
            return False
        if is_appended is None and is_registration_committed:
            commit.wait(deadline_ns)
        return bool(is_appended)

    # ---- registration ----------------------------------------------------------------------------

    def _lock_for_decision(
        self, deadline_ns: int
    ) -> AbstractContextManager[TopicDecision[TransactionEntries]]:
        # Without a slot the owner is closed, and writes the records that were left: `_register` then
        # names no owner, as for one that has ended
        if self._slots:
            self._ensure_slot()
        topic = self._coordinator.topic
        return topic.lock_for_decision(topic.partition_of(self.transactional_id), deadline_ns)

    def _register(
        self,
        decision: TopicDecision[TransactionEntries],
        stamp: Stamp,
        tps: Iterable[TopicPartition],
    ) -> EmbedlogError | None:
        """Record that the transaction writes to these partitions; returns the error if it may not.

        REQUIRES the lock of `decision`.
        """
        old = decision.view.get(self.transactional_id)
        new = machine.register(
            old,
            stamp.producer_id,
            stamp.epoch,
            tps,
            current_moment(),
            next(reversed(self._slots), None),
        )
        if isinstance(new, Refusal):
            return refusal_error(self.transactional_id, new, old)
        self._write(decision, old, new)
        system.point("txn-registered")
        return None

    def _write(
        self, decision: TopicDecision[TransactionEntries], old: Transaction | None, new: Transaction
    ) -> None:
        if new is not old:
            decision.append([(encode_key(self.transactional_id), encode(new))])
            decision.view.keep(self.transactional_id, new)

    def _decide_after_predecessor(
        self, event: Callable[[Transaction | None], Transaction | Refusal], deadline_ns: int
    ) -> Transaction:
        """The event's outcome, after any earlier decision was carried out."""
        while True:
            try:
                new = self._coordinator.decide(self.transactional_id, event, deadline_ns)
            except Concurrent as problem:
                self._coordinator.finish_before(problem, deadline_ns)
                continue
            assert new is not None
            if new.status in SETTLED or new.owner is not None:
                return new
            # `_take_over` aborted an open transaction, which has no owner then, and starts again
            self._coordinator.finish(self.transactional_id, new, deadline_ns)


def _flush_if_due(partition: TransactionalLog, appended: Appended, deadline_ns: int) -> Appended:
    """Do the flush that is due after an append, without the lock that others need; the commit does
    that of a durable topic.
    """
    if not partition.config.durable:
        partition.flush_if_due(appended.last_offset + 1, deadline_ns)
    return appended


def _may_write(
    decision: TopicDecision[TransactionEntries], is_registration_committed: bool = False
) -> bool:
    """Whether data may follow under the same lock: the registration must be committed before it
    (REPLICA-22).

    `is_registration_committed`: what the view had before is known to be.
    """
    return not decision.awaits_commit and (is_registration_committed or decision.was_committed)


def _append_unless_locked(write: Callable[..., T], deadline_ns: int) -> T | None:
    """Append now; None if the partition is locked: the lock of `__transaction_state` is not held
    during a wait for it.
    """
    try:
        return write(deadline_ns=min(deadline_ns, system.boot_ns() + SHARE_NS))
    except LockTimeoutError:
        if system.boot_ns() >= deadline_ns:
            raise
        return None
