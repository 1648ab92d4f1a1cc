"""Transactions without a coordinator process: any process may decide, and carry out an existing
decision.

TXNCOORDINATOR-1  the first batch of a transaction in a partition is registered and written under
    two locks: that of `__transaction_state`, then the partition's. Nothing is written while the
    last transaction of the id is prepared, or under an old epoch
TXNCOORDINATOR-2  a decision is one record that raises the epoch. Its markers have the raised epoch
    and go to every listed partition. A partition of a deleted topic counts as done. The completing
    record is written only after that same decision
TXNCOORDINATOR-3  so any process may repeat any step: the next owner, a waiting reader, the
    housekeeper
TXNCOORDINATOR-4  an undecided transaction is aborted by other processes if its owner has ended, or
    has had it open for longer than its timeout
TXNCOORDINATOR-5  if a topic requires durability: data is on stable storage before the decision, the
    decision before the markers, the markers before the end
TXNCOORDINATOR-6  a read-only process writes nothing: it waits at the last stable offset until
    another process has finished the transaction
TXNCOORDINATOR-7  the owner repeats the completion until its deadline while too few replicas are in
    sync, or a leader is missing. Then it gets DeadlineError, and the decision is valid. A reader
    and the housekeeper do not wait: they come again, and the replicas join the ISR by the
    housekeeper. The markers of the other partitions are written meanwhile, those of partitions
    without a leader last
TXNCOORDINATOR-8  a snapshot of all partitions is taken under all locks of the topic. In a set it
    counts if the leaders did not change until the locks were left: at another leader, other
    processes decide. Without the topic nobody decides: a snapshot without locks counts if the topic
    was not created meanwhile
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from embedlog import _logging
from embedlog import transaction as machine
from embedlog._native import system
from embedlog._native.scope import scope, stack
from embedlog.config.options import LONG_MAX
from embedlog.coordination.internal_topic import InternalTopic
from embedlog.coordination.producer_ids import new_producer_id
from embedlog.coordination.transactions import recovery, recovery_due
from embedlog.coordination.transactions.transaction_checks import (
    Concurrent,
    asks_for_durability,
    now,
    refused,
    to_be_durable,
    unsynced,
)
from embedlog.coordination.transactions.transaction_records import encode, encode_key
from embedlog.coordination.transactions.transaction_view import Entries
from embedlog.coordination.transactions.transactional_id_owner import Owner, TransactionHost
from embedlog.errors import (
    ConfigError,
    CorruptRecordError,
    DeadlineError,
    DurabilityError,
    EmbedlogError,
    LeaderNotAvailableError,
    LockTimeoutError,
    NotEnoughReplicasError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from embedlog.storage.call_deadline import bounded
from embedlog.storage.liveness import Liveness
from embedlog.storage.parallel_syncs import TransactionSyncs
from embedlog.transaction import PREPARED, Refusal, Status, Transaction

if TYPE_CHECKING:
    from embedlog.partition.api import DurableLog, TransactionalLog

logger = logging.getLogger("embedlog")


STATE_TOPIC: Final = "__transaction_state"
RESOLVE_NS: Final = 100_000_000  # the longest wait of a reader for a lock
REMEMBERED_IDS: Final = 10_000  # cached partitions of producer ids

T = TypeVar("T")
Event = Callable[[Transaction | None], Transaction | Refusal | None]


class Transactions:
    """The transactions of one open log. Threads: any."""

    def __init__(self, host: TransactionHost, liveness: Liveness | None = None) -> None:
        """`liveness`: the process slots, if they are not those of `host.path`."""
        config = host.config
        self.host = host
        self.liveness = liveness or Liveness(host.path, config.file_mode, config.shared == "locks")
        self.topic: InternalTopic[Entries] = InternalTopic(
            host,
            STATE_TOPIC,
            partitions=config.transaction_state_log_num_partitions,
            config={
                "cleanup.policy": "compact",
                "compression.type": "uncompressed",
                "segment.bytes": str(config.transaction_state_log_segment_bytes),
                # synced explicitly where needed (TXNCOORDINATOR-5)
                "flush.messages": str(LONG_MAX),
            },
            view=Entries,
        )
        self.syncs = TransactionSyncs()
        self._where: dict[int, int] = {}

    def owner(self, transactional_id: str, timeout_ms: int) -> Owner:
        """A producer's side of its transactions. Raises ConfigError for a timeout above
        `transaction.max.timeout.ms`.
        """
        most = self.host.config.transaction_max_timeout_ms
        if not 1 <= timeout_ms <= most:
            expected = f"1 to {most} (transaction.max.timeout.ms of the log)"
            raise ConfigError("transaction.timeout.ms", expected=expected, found=timeout_ms)
        size = len(transactional_id.encode())
        if not 1 <= size <= 2**15 - 1:
            raise ConfigError("transactional.id", expected="1 to 32767 bytes", found=size)
        return Owner(self, transactional_id, timeout_ms)

    def close(self) -> None:
        """Release the process slots of this object. Idempotent."""
        self.liveness.close()

    # ---- decisions -------------------------------------------------------------------------------

    def decide(self, name: str, event: Event, deadline_ns: int) -> Transaction | None:
        """Apply an event to an id's state, and append the result if it is a change; None if the
        event does not apply now.

        Raises FencedError, InvalidTransactionStateError, and Concurrent with the state that must be
        finished first.
        """
        return self.topic.repeated(lambda: self._decide(name, event, deadline_ns), deadline_ns)

    def _decide(self, name: str, event: Event, deadline_ns: int) -> Transaction | None:
        with self.topic.deciding(self.topic.partition_of(name), deadline_ns) as decision:
            old = decision.view.get(name)
            new = event(old)
            if isinstance(new, Refusal):
                raise refused(name, new, old)
            if new is not None and new is not old:
                decision.append([(encode_key(name), encode(new))])
                decision.view.keep(name, new)
            return new

    def deadline(self, deadline_ns: int | None) -> int:
        return (
            bounded(system.boot_ns() + self.host.config.lock_timeout_ms * 1_000_000)
            if deadline_ns is None
            else deadline_ns
        )

    def while_undecided(self, take: Callable[[], T]) -> T:
        """The result of a call during which nothing is registered, decided or completed
        (TXNCOORDINATOR-8).

        It is made again if a leader changed, and once if the topic was created meanwhile: nobody
        holds a lock then, so the deadline begins after that. A read-only log cannot make other
        processes wait.

        Raises LeaderNotAvailableError at the deadline, and the errors of the call.
        """
        if self.host.read_only:
            return take()
        if not self.topic.here():
            taken = take()
            if not self.topic.here():
                return taken
        until = self.deadline(None)

        def attempt() -> T:
            with self.all_locks_held(until):
                return take()

        return self.topic.repeated(attempt, until)

    @scope
    def all_locks_held(self, until: int) -> Iterator[None]:
        """Hold all locks of the topic: a snapshot of all partitions is consistent, unless the end
        raises LeaderNotAvailableError (TXNCOORDINATOR-8).
        """
        epochs = dict[int, int]()
        with stack() as held:
            for partition in sorted(
                map(self.topic.partition, self.topic.here()), key=lambda each: str(each.path)
            ):
                epochs[partition.number] = held.enter(partition.exclusive(until)).now.epoch
            yield
        if epochs and not self.host.still_lead(self.topic.name, epochs):
            raise LeaderNotAvailableError(
                f"a leader of {self.topic.name} changed while its locks were held"
            )

    # ---- completion ------------------------------------------------------------------------------

    def finish(self, name: str, seen: Transaction, deadline_ns: int) -> None:
        """Write the markers of a decision and complete it; several processes may do so at once
        (TXNCOORDINATOR-7).

        Raises DeadlineError, LockTimeoutError, StorageError, DurabilityError; then the decision is
        valid, and the call must be repeated.
        """
        try:
            self.topic.repeated(
                lambda: self._finish_once(name, seen, deadline_ns), deadline_ns, idempotent=True
            )
        except (LeaderNotAvailableError, NotEnoughReplicasError) as problem:
            why = problem.message
            # its message is about one attempt, which wrote nothing or something
            if isinstance(problem, NotEnoughReplicasError):
                why = f"too few replicas of {problem.topic}-{problem.partition} are in sync"
            what = (
                f"the last transaction of {name!r} is decided, but was not complete before the "
                "deadline"
            )
            raise DeadlineError(f"{what}: {why}") from problem

    def _finish_once(self, name: str, seen: Transaction, deadline_ns: int) -> None:
        """As `finish`. Raises also NotEnoughReplicasError, LeaderNotAvailableError, before the
        deadline too.

        A partition that is not available keeps no marker from the others: its error is raised after
        them.
        """
        targets = self.host.existing(sorted(seen.partitions))
        durable = to_be_durable(targets)
        if durable:
            self.sync_data([self.topic.partition(self.topic.partition_of(name))], deadline_ns)
        system.point("txn-decided")
        problems = []
        for partition in sorted(targets, key=self._has_no_leader):  # which waits until the deadline
            try:
                self._mark(partition, seen, deadline_ns)
            except (LeaderNotAvailableError, LockTimeoutError, NotEnoughReplicasError) as problem:
                # of this partition alone
                problems.append(problem)
            system.point("txn-marked")
        if problems:
            raise problems[0]
        self.sync_data(durable, deadline_ns)
        self.decide(name, lambda old: machine.complete(old, seen, now()), deadline_ns)
        system.point("txn-completed")

    def sync_data(self, partitions: Sequence[DurableLog], deadline_ns: int) -> None:
        """Sync all published records of these partitions. Raises DurabilityError,
        LockTimeoutError.
        """
        self.syncs.sync(
            unsynced((each, each.published().log_end) for each in partitions), deadline_ns
        )

    def _has_no_leader(self, partition: TransactionalLog) -> bool:
        try:
            return partition.replicated and not self.host.is_led(partition)
        except UnknownTopicOrPartitionError:
            return False  # deleted in the meantime: `_mark` passes over it

    @staticmethod
    def _mark(partition: TransactionalLog, seen: Transaction, deadline_ns: int) -> None:
        try:
            partition.append_marker(
                seen.producer_id,
                seen.epoch,
                commit=seen.decision == "commit",
                deadline_ns=deadline_ns,
            )
            # else `finish` syncs it together with the others
            if not asks_for_durability(partition):
                partition.flush_if_late()
        except UnknownTopicOrPartitionError:
            pass  # deleted in the meantime

    def finish_before(self, problem: Concurrent, deadline_ns: int) -> None:
        """Carry out the decision that blocks another one. Raises DeadlineError after the
        deadline.
        """
        if system.boot_ns() >= deadline_ns:
            raise DeadlineError(
                f"the last transaction of {problem.name!r} was not complete before the deadline"
            )
        self.finish(problem.name, problem.state, deadline_ns)

    # ---- completion for others -------------------------------------------------------------------

    def resolve(self, partition: TransactionalLog, deadline_ns: int | None = None) -> bool:
        """For a reader that waits at a last stable offset: finish decided transactions, abort
        abandoned ones.

        Returns whether any work was done. May be called ten times per second; a read-only log does
        nothing. What a held lock, a failing disk or a small ISR prevents is left to the next call,
        because the caller only reads.
        """
        if self.host.read_only:
            return False
        until = system.boot_ns() + RESOLVE_NS if deadline_ns is None else deadline_ns
        opened = list[int]()
        done = False
        with self._left_to_the_next_call(partition):
            found = [producer_id for producer_id, _, _ in partition.open_transactions()]
            if found:
                self.recover_if_due(until)
            opened = found
        for producer_id in opened:
            with self._left_to_the_next_call(partition):
                state = self._find(producer_id)
                if state is not None:
                    done |= self.settle(*state, until)
        return done

    @scope
    def _left_to_the_next_call(self, partition: TransactionalLog) -> Iterator[None]:
        try:
            yield
        except (
            LockTimeoutError,
            StorageError,
            DurabilityError,
            DeadlineError,
            LeaderNotAvailableError,
            NotEnoughReplicasError,
        ) as problem:
            name = f"{partition.topic}-{partition.number}"
            what = f"a transaction in {name} cannot be ended now"
            _logging.report(logger, logging.INFO, (self.host.path, name, "end"), what, problem)

    def open_in(self, partition: TransactionalLog) -> list[str]:
        """The transactional ids with an open transaction in this partition."""
        found = [self._find(producer_id) for producer_id, _, _ in partition.open_transactions()]
        return [each[0] for each in found if each is not None]

    def _find(self, producer_id: int) -> tuple[str, Transaction] | None:
        """The transactional id of a producer id and its state, if a partition of the topic contains
        it.
        """
        known = self._where.get(producer_id)
        numbers = self.topic.here()
        for number in numbers if known is None or known not in numbers else (known, *numbers):
            if self.topic.is_unwritten(number):
                continue
            found = self.topic.read(number, lambda view: view.find(producer_id))
            if found is not None:
                if len(self._where) >= REMEMBERED_IDS:
                    self._where.clear()
                self._where[producer_id] = number
                return found
        return None

    def is_in_use(self, state: Transaction) -> bool:
        """Whether the process of the owner runs, as far as directories of the set show that.

        A slot in a directory that left the set counts as held for an open transaction only: that
        one has a timeout.
        """
        if state.owner is None:
            return False
        return self.liveness.probe(
            state.owner if state.status is Status.ONGOING else state.owner._replace(node=None)
        )

    def settle(self, name: str, state: Transaction, deadline_ns: int) -> bool:
        """Do the work on one id that any process may do: True if there was any."""
        if state.status is Status.ONGOING:
            alive = self.is_in_use(state)
            if not machine.is_abandoned(state, alive, now()):
                return False
            system.point("txn-giving-up")
            event = lambda old: machine.abort_abandoned(old, state, new_producer_id(), now())  # noqa: E731
            decided = self.decide(name, event, deadline_ns)
            if decided is None:
                return False
            logger.info(
                "aborted transaction %d/%d of %r: %s",
                state.producer_id,
                state.epoch,
                name,
                _abort_reason(state, alive),
            )
            state = decided
        if state.status not in PREPARED:
            return False
        self._finish_once(name, state, deadline_ns)
        return True

    def housekeep(self, deadline_ns: int) -> None:
        """Process every unfinished transaction, for all waiting readers. Failures are reported and
        tried again.
        """
        if self.topic.count() == 0:
            return
        self.recover_if_due(deadline_ns)
        for number in self.topic.written():
            for name in self.topic.view(number).unsettled():
                try:
                    state = self._state(number, name)
                    if state is not None:
                        self.settle(name, state, deadline_ns)
                except EmbedlogError as problem:
                    key = (self.host.path, "transaction", name)
                    _logging.report(
                        logger, logging.WARNING, key, f"transaction of {name!r}", problem
                    )

    def forget_idle(self, deadline_ns: int) -> None:
        """Remove ids that were unused for `transactional.id.expiration.ms` and whose owner has
        ended.
        """
        limit_ms = self.host.config.transactional_id_expiration_ms
        for number in self.topic.written():
            for name, state in self._states(number):
                if self._is_expired(state, limit_ms):
                    with self.topic.deciding(number, deadline_ns) as decision:
                        if self._is_expired(decision.view.get(name), limit_ms):
                            decision.append([(encode_key(name), None)])

    def _state(self, number: int, name: str) -> Transaction | None:
        """The committed state of an id."""
        return self.topic.read(number, lambda view: view.get(name))

    def _states(self, number: int) -> Iterator[tuple[str, Transaction]]:
        """Every readable id of a partition; unreadable ones are reported and skipped."""
        view = self.topic.view(number)
        for name in view.names():
            try:
                state = view.get(name)
            except CorruptRecordError as problem:
                what = f"the state of transactional id {name!r} cannot be read"
                _logging.report(
                    logger, logging.ERROR, (self.host.path, "state", name), what, problem
                )
                continue
            if state is not None:
                yield name, state

    def _is_expired(self, state: Transaction | None, limit_ms: int) -> bool:
        if state is None or not machine.is_expired(state, False, limit_ms, now()):
            return False
        return not self.is_in_use(state)

    def _newest(self, producer_id: int) -> Transaction | None:
        found = self._find(producer_id)
        return found[1] if found is not None else None

    # ---- recovery after a power loss -------------------------------------------------------------

    def recover_if_due(self, deadline_ns: int) -> None:
        """Recover once after a power loss, before any id continues: see `recovery`."""
        for directory in self.host.directories:
            if recovery_due.is_due(directory.context.directory_page):
                break
        else:
            return
        known = dict(each for number in self.topic.written() for each in self._states(number))
        every = self.host.all_partitions(loaded_only=False)
        for name, to in recovery.recover(known, self._newest, every, deadline_ns).items():
            self._raise_epoch(name, *to, deadline_ns)
        for directory in self.host.directories:
            recovery_due.done(directory.context.directory_page)

    def _raise_epoch(self, name: str, producer_id: int, epoch: int, deadline_ns: int) -> None:
        found = self._state(self.topic.partition_of(name), name)
        if found is not None:
            # its decision contains its epoch: finish it before the epoch rises
            self.settle(name, found, deadline_ns)
        event = lambda old: old and machine.raise_epoch(old, producer_id, epoch, now())  # noqa: E731
        self.decide(name, event, deadline_ns)


def _abort_reason(state: Transaction, alive: bool) -> str:
    return f"open for longer than {state.timeout_ms} ms" if alive else "its producer has ended"
