"""Transactions without a coordinator process: any process may decide, and carry out an existing
decision.

- The first batch of a transaction in a partition is registered and written under two locks: that of
  `__transaction_state`, then the partition's. Nothing is written while the last transaction of the
  id is prepared, or under an old epoch.
- A decision is one record that raises the epoch. Its markers have the raised epoch and go to every
  listed partition. A partition of a deleted topic counts as done. The completing record is written
  only after that same decision.
- So any process may repeat any step: the next owner, a waiting reader, the housekeeper.
- An undecided transaction is aborted by other processes if its owner has ended, or has had it open
  for longer than its timeout.
- If a topic requires durability: data is on stable storage before the decision, the decision before
  the markers, the markers before the end.
- A read-only process writes nothing: it waits at the last stable offset until another process has
  finished the transaction.
- The owner repeats the completion until its deadline while too few replicas are in sync, or a
  leader is missing. Then it gets DeadlineError, and the decision is valid. A reader and the
  housekeeper do not wait: they come again, and the replicas join the ISR by the housekeeper. The
  markers of the other partitions are written meanwhile, those of partitions without a leader last.
- A snapshot of all partitions is taken under all locks of the topic. In a set it counts if the
  leaders did not change until the locks were left: at another leader, other processes decide.
  Without the topic nobody decides: a snapshot without locks counts if the topic was not created
  meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from embedlog import transaction as machine
from embedlog._native import system
from embedlog._native.scope import scope, stack
from embedlog.config.options import LONG_MAX
from embedlog.coordination.internal_topic import InternalTopic
from embedlog.coordination.producer_ids import new_producer_id
from embedlog.coordination.transactions import recovery, recovery_due
from embedlog.coordination.transactions.transaction_checks import (
    Concurrent,
    current_moment,
    refusal_error,
    select_durable,
    select_unsynced,
)
from embedlog.coordination.transactions.transaction_records import encode, encode_key
from embedlog.coordination.transactions.transaction_view import TransactionEntries
from embedlog.coordination.transactions.transactional_id_owner import (
    TransactionalIdOwner,
    TransactionHost,
)
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
from embedlog.storage.call_deadline import bound_deadline
from embedlog.storage.liveness import Liveness
from embedlog.storage.parallel_syncs import TransactionSyncs
from embedlog.telemetry import log_messages
from embedlog.transaction import PREPARED, Refusal, Status, Transaction

if TYPE_CHECKING:
    from embedlog.partition.interfaces import DurableLog, NamedLog, ReadableLog, TransactionalLog

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
        self.topic: InternalTopic[TransactionEntries] = InternalTopic(
            host,
            STATE_TOPIC,
            partitions=config.transaction_state_log_num_partitions,
            config={
                "cleanup.policy": "compact",
                "compression.type": "uncompressed",
                "segment.bytes": str(config.transaction_state_log_segment_bytes),
                # synced explicitly where needed
                "flush.messages": str(LONG_MAX),
            },
            view=TransactionEntries,
        )
        self.syncs = TransactionSyncs()
        self._partition_of_id: dict[int, int] = {}

    def owner(self, transactional_id: str, timeout_ms: int) -> TransactionalIdOwner:
        """A producer's side of its transactions. Raises ConfigError for a timeout above
        `transaction.max.timeout.ms`.
        """
        timeout_max_ms = self.host.config.transaction_max_timeout_ms
        if not 1 <= timeout_ms <= timeout_max_ms:
            expected = f"1 to {timeout_max_ms} (transaction.max.timeout.ms of the log)"
            raise ConfigError("transaction.timeout.ms", expected=expected, found=timeout_ms)
        size = len(transactional_id.encode())
        if not 1 <= size <= 2**15 - 1:
            raise ConfigError("transactional.id", expected="1 to 32767 bytes", found=size)
        return TransactionalIdOwner(self, transactional_id, timeout_ms)

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
        return self.topic.retry_until_counted(
            lambda: self._decide(name, event, deadline_ns), deadline_ns
        )

    def _decide(self, name: str, event: Event, deadline_ns: int) -> Transaction | None:
        with self.topic.lock_for_decision(self.topic.partition_of(name), deadline_ns) as decision:
            old = decision.view.get(name)
            new = event(old)
            if isinstance(new, Refusal):
                raise refusal_error(name, new, old)
            if new is not None and new is not old:
                decision.append([(encode_key(name), encode(new))])
                decision.view.keep(name, new)
            return new

    def deadline(self, deadline_ns: int | None) -> int:
        """The deadline of a call, or else that of `lock.timeout.ms`."""
        if deadline_ns is not None:
            return deadline_ns
        return bound_deadline(system.boot_ns() + self.host.config.lock_timeout_ms * 1_000_000)

    def while_undecided(self, call: Callable[[], T]) -> T:
        """The result of a call during which nothing is registered, decided or completed.

        It is made again if a leader changed, and once if the topic was created meanwhile: nobody
        holds a lock then, so the deadline begins after that. A read-only log cannot make other
        processes wait.

        Raises LeaderNotAvailableError at the deadline, and the errors of the call.
        """
        if self.host.read_only:
            return call()
        if not self.topic.local_partitions():
            result = call()
            if not self.topic.local_partitions():
                return result
        until = self.deadline(None)

        def attempt() -> T:
            with self.hold_all_locks(until):
                return call()

        return self.topic.retry_until_counted(attempt, until)

    @scope
    def hold_all_locks(self, until: int) -> Iterator[None]:
        """Hold all locks of the topic: a snapshot of all partitions is consistent, unless the end
        raises LeaderNotAvailableError.
        """
        partitions = [self.topic.partition(number) for number in self.topic.local_partitions()]
        partitions.sort(key=lambda partition: str(partition.path))  # all take them in this order
        epochs: dict[int, int] = {}
        with stack() as locks:
            for partition in partitions:
                epochs[partition.number] = locks.enter(partition.exclusive(until)).published.epoch
            yield
        if epochs and not self.host.still_lead(self.topic.name, epochs):
            raise LeaderNotAvailableError(
                f"a leader of {self.topic.name} changed while its locks were held"
            )

    # ---- completion ------------------------------------------------------------------------------

    def finish(self, name: str, decided: Transaction, deadline_ns: int) -> None:
        """Write the markers of a decision and complete it; several processes may do so at once.

        Raises DeadlineError, LockTimeoutError, StorageError, DurabilityError; then the decision is
        valid, and the call must be repeated.
        """
        try:
            self.topic.retry_until_counted(
                lambda: self._finish_once(name, decided, deadline_ns), deadline_ns, idempotent=True
            )
        except (LeaderNotAvailableError, NotEnoughReplicasError) as problem:
            reason = problem.message
            # its message is about one attempt, which wrote nothing or something
            if isinstance(problem, NotEnoughReplicasError):
                reason = f"too few replicas of {problem.topic}-{problem.partition} are in sync"
            message = (
                f"the last transaction of {name!r} is decided, but was not complete before the "
                "deadline"
            )
            raise DeadlineError(f"{message}: {reason}") from problem

    def _finish_once(self, name: str, decided: Transaction, deadline_ns: int) -> None:
        """As `finish`. Raises also NotEnoughReplicasError, LeaderNotAvailableError, before the
        deadline too.

        A partition that is not available keeps no marker from the others: its error is raised after
        them.
        """
        targets = self.host.existing(sorted(decided.partitions))
        durable = select_durable(targets)
        if durable:
            self.sync_data([self.topic.partition(self.topic.partition_of(name))], deadline_ns)
        system.point("txn-decided")
        problems = []
        for partition in sorted(targets, key=self._has_no_leader):  # which waits until the deadline
            try:
                self._mark(partition, decided, deadline_ns)
            except (LeaderNotAvailableError, LockTimeoutError, NotEnoughReplicasError) as problem:
                # of this partition alone
                problems.append(problem)
            system.point("txn-marked")
        if problems:
            raise problems[0]
        self.sync_data(durable, deadline_ns)
        self.decide(name, lambda old: machine.complete(old, decided, current_moment()), deadline_ns)
        system.point("txn-completed")

    def sync_data(self, partitions: Sequence[DurableLog], deadline_ns: int) -> None:
        """Sync all published records of these partitions. Raises DurabilityError,
        LockTimeoutError.
        """
        self.syncs.sync(
            select_unsynced((partition, partition.published().log_end) for partition in partitions),
            deadline_ns,
        )

    def _has_no_leader(self, partition: TransactionalLog) -> bool:
        try:
            return partition.replicated and not self.host.is_led(partition)
        except UnknownTopicOrPartitionError:
            return False  # deleted in the meantime: `_mark` passes over it

    @staticmethod
    def _mark(partition: TransactionalLog, decided: Transaction, deadline_ns: int) -> None:
        try:
            partition.append_marker(
                decided.producer_id,
                decided.epoch,
                commit=decided.decision == "commit",
                deadline_ns=deadline_ns,
            )
            # else `finish` syncs it together with the others
            if not partition.config.durable:
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

    def resolve(self, partition: ReadableLog, deadline_ns: int | None = None) -> bool:
        """For a reader that waits at a last stable offset: finish decided transactions, abort
        abandoned ones.

        Returns whether any work was done. May be called ten times per second; a read-only log does
        nothing. What a held lock, a failing disk or a small ISR prevents is left to the next call,
        because the caller only reads.
        """
        if self.host.read_only:
            return False
        until = system.boot_ns() + RESOLVE_NS if deadline_ns is None else deadline_ns
        producer_ids: list[int] = []
        has_worked = False
        with self._tolerate_unavailable(partition):
            open_ids = [producer_id for producer_id, _, _ in partition.open_transactions()]
            if open_ids:
                self.recover_if_due(until)
            producer_ids = open_ids  # after the recovery: without it none of them is settled
        for producer_id in producer_ids:
            with self._tolerate_unavailable(partition):
                state = self._find(producer_id)
                if state is not None:
                    has_worked |= self.finish_transaction(*state, until)
        return has_worked

    @scope
    def _tolerate_unavailable(self, partition: NamedLog) -> Iterator[None]:
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
            message = f"a transaction in {name} cannot be ended now"
            log_messages.report(
                logger, logging.INFO, (self.host.path, name, "end"), message, problem
            )

    def open_in(self, partition: TransactionalLog) -> list[str]:
        """The transactional ids with an open transaction in this partition."""
        names = []
        for producer_id, _, _ in partition.open_transactions():
            name_and_state = self._find(producer_id)
            if name_and_state is not None:
                names.append(name_and_state[0])
        return names

    def _find(self, producer_id: int) -> tuple[str, Transaction] | None:
        """The transactional id of a producer id and its state, if a partition of the topic contains
        it.
        """
        last_number = self._partition_of_id.get(producer_id)
        numbers = self.topic.local_partitions()
        if last_number is not None and last_number in numbers:
            numbers.insert(0, last_number)
        for number in numbers:
            if self.topic.is_unwritten(number):
                continue
            name_and_state = self.topic.read(number, lambda view: view.find(producer_id))
            if name_and_state is not None:
                if len(self._partition_of_id) >= REMEMBERED_IDS:
                    self._partition_of_id.clear()
                self._partition_of_id[producer_id] = number
                return name_and_state
        return None

    def is_in_use(self, state: Transaction) -> bool:
        """Whether the process of the owner runs, as far as directories of the set show that.

        A slot in a directory that left the set counts as held for an open transaction only: that
        one has a timeout.
        """
        if state.owner is None:
            return False
        if state.status is Status.ONGOING:
            return self.liveness.probe(state.owner)
        return self.liveness.probe(state.owner._replace(node=None))

    def finish_transaction(self, name: str, state: Transaction, deadline_ns: int) -> bool:
        """Do the work on one id that any process may do: True if there was any."""
        if state.status is Status.ONGOING:
            alive = self.is_in_use(state)
            if not machine.is_abandoned(state, alive, current_moment()):
                return False
            system.point("txn-giving-up")
            abandoned = state
            decided = self.decide(
                name,
                lambda old: machine.abort_abandoned(
                    old, abandoned, new_producer_id(), current_moment()
                ),
                deadline_ns,
            )
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
        if self.topic.partition_count() == 0:
            return
        self.recover_if_due(deadline_ns)
        for number in self.topic.written_partitions():
            for name in self.topic.view(number).unfinished():
                try:
                    state = self._state(number, name)
                    if state is not None:
                        self.finish_transaction(name, state, deadline_ns)
                except EmbedlogError as problem:
                    key = (self.host.path, "transaction", name)
                    log_messages.report(
                        logger, logging.WARNING, key, f"transaction of {name!r}", problem
                    )

    def forget_idle(self, deadline_ns: int) -> None:
        """Remove ids that were unused for `transactional.id.expiration.ms` and whose owner has
        ended.
        """
        limit_ms = self.host.config.transactional_id_expiration_ms
        for number in self.topic.written_partitions():
            for name, state in self._states(number):
                if self._is_expired(state, limit_ms):
                    with self.topic.lock_for_decision(number, deadline_ns) as decision:
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
                message = f"the state of transactional id {name!r} cannot be read"
                log_messages.report(
                    logger, logging.ERROR, (self.host.path, "state", name), message, problem
                )
                continue
            if state is not None:
                yield name, state

    def _is_expired(self, state: Transaction | None, limit_ms: int) -> bool:
        if state is None or not machine.is_expired(state, False, limit_ms, current_moment()):
            return False
        return not self.is_in_use(state)

    def _find_newest(self, producer_id: int) -> Transaction | None:
        name_and_state = self._find(producer_id)
        return name_and_state[1] if name_and_state is not None else None

    # ---- recovery after a power loss -------------------------------------------------------------

    def recover_if_due(self, deadline_ns: int) -> None:
        """Recover once after a power loss, before any id continues: see `recovery`."""
        pages = [directory.context.directory_page for directory in self.host.directories]
        if not any(recovery_due.is_due(page) for page in pages):
            return
        states: dict[str, Transaction] = {}
        for number in self.topic.written_partitions():
            states.update(self._states(number))
        partitions = self.host.all_partitions(loaded_only=False)
        raised_to = recovery.recover(states, self._find_newest, partitions, deadline_ns)
        for name, (producer_id, epoch) in raised_to.items():
            self._raise_epoch(name, producer_id, epoch, deadline_ns)
        for directory in self.host.directories:
            recovery_due.record_done(directory.context.directory_page)

    def _raise_epoch(self, name: str, producer_id: int, epoch: int, deadline_ns: int) -> None:
        state = self._state(self.topic.partition_of(name), name)
        if state is not None:
            # its decision contains its epoch: finish it before the epoch rises
            self.finish_transaction(name, state, deadline_ns)

        def event(old: Transaction | None) -> Transaction | None:
            if old is None:
                return None
            return machine.raise_epoch(old, producer_id, epoch, current_moment())

        self.decide(name, event, deadline_ns)


def _abort_reason(state: Transaction, alive: bool) -> str:
    return f"open for longer than {state.timeout_ms} ms" if alive else "its producer has ended"
