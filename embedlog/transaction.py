"""The rules of one transactional id: its states, and the change that each event makes. Pure: no
file, no lock, no clock.

- A function takes the newest record and an event, and returns the record to append, or a `Refusal`.
  It returns the same record if there is nothing to append. The caller holds the lock of
  `__transaction_state` from the read to the append.
- Every decision raises the epoch (KIP-890): a writer with the previous epoch is fenced, and an old
  marker cannot end a new transaction.
- A decision is written once; it may be completed only while it is still the newest one.
- The outcome of the last transaction, with its identity, is kept until the next decision.
- Time is given as a `Moment`: the wall clock for Kafka's fields and the expiry of ids, the
  monotonic clock for timeouts.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, IntEnum
from typing import Final, NamedTuple

from embedlog.format.process_slot import ProcessSlot
from embedlog.format.record_columns import EPOCH_MAX

# the last epoch of a transaction: its decision must still raise it
EPOCH_LAST: Final = EPOCH_MAX - 1
NO_ID: Final = -1
CLIENT_VERSION: Final = 2  # Kafka's version of "every transaction raises the epoch"


class Status(IntEnum):
    """Kafka's numbers. `DEAD` and `PREPARE_EPOCH_FENCE` exist in a broker's memory only, never on
    disk.
    """

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7


PREPARED: Final = frozenset({Status.PREPARE_COMMIT, Status.PREPARE_ABORT})
COMPLETED: Final = frozenset({Status.COMPLETE_COMMIT, Status.COMPLETE_ABORT})
SETTLED: Final = COMPLETED | {Status.EMPTY}


class Refusal(Enum):
    """Reasons to refuse an event, with Kafka's names."""

    PRODUCER_FENCED = (
        "a newer producer has this transactional id, or the transaction was aborted by others"
    )
    INVALID_PRODUCER_ID_MAPPING = "the transactional id belongs to another producer id now"
    CONCURRENT_TRANSACTIONS = "the last transaction is not complete yet"
    INVALID_TXN_STATE = "the transaction is not in a state for this"


class Moment(NamedTuple):
    """The current time, on both clocks."""

    wall_ms: int
    monotonic_ns: int
    # a number for this boot of the machine: monotonic clocks of different boots cannot be compared
    boot: int


class Outcome(NamedTuple):
    """The outcome of a transaction, with its identity."""

    kind: str  # "commit" or "abort"
    producer_id: int
    epoch: int  # the epoch of its records


class Beginning(NamedTuple):
    """The start of a transaction, on the clock of timeouts."""

    boot: int
    monotonic_ns: int


TopicPartition = tuple[str, int]


class Transaction(NamedTuple):
    """The newest record of a transactional id."""

    producer_id: int
    epoch: int
    timeout_ms: int
    status: Status = Status.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    updated_ms: int = -1
    started_ms: int = -1
    previous_id: int = NO_ID
    next_id: int = NO_ID
    client_version: int = CLIENT_VERSION
    owner: ProcessSlot | None = None
    began: Beginning | None = None
    outcome: Outcome | None = None
    others: tuple[tuple[int, bytes], ...] = ()  # unknown tagged fields of a newer version

    @property
    def decision(self) -> str:
        """The decision of a prepared or completed state."""
        commits = (Status.PREPARE_COMMIT, Status.COMPLETE_COMMIT)
        return "commit" if self.status in commits else "abort"


# ---- events of the owner -------------------------------------------------------------------------


def initialize(
    old: Transaction | None,
    process_slot: ProcessSlot,
    timeout_ms: int,
    new_id: int,
    now: Moment,
    claimed: tuple[int, int] | None = None,
) -> Transaction | Refusal:
    """A producer starts to use the id. `claimed`: the id and epoch that it had, if it is the same
    producer as before.
    """
    if old is None:
        return Transaction(new_id, 0, timeout_ms, updated_ms=now.wall_ms, owner=process_slot)
    if claimed is not None:
        claimed_id, claimed_epoch = claimed
        if claimed_id != old.producer_id or claimed_epoch not in (old.epoch, old.epoch - 1):
            return Refusal.PRODUCER_FENCED
    if old.status not in SETTLED:
        return Refusal.CONCURRENT_TRANSACTIONS
    is_exhausted = old.epoch >= EPOCH_LAST
    return old._replace(
        producer_id=new_id if is_exhausted else old.producer_id,
        previous_id=old.producer_id if is_exhausted else old.previous_id,
        epoch=0 if is_exhausted else old.epoch + 1,
        timeout_ms=timeout_ms,
        status=Status.EMPTY,
        partitions=frozenset(),
        updated_ms=now.wall_ms,
        started_ms=-1,
        next_id=NO_ID,
        client_version=CLIENT_VERSION,
        owner=process_slot,
        began=None,
    )


def register(
    old: Transaction | None,
    producer_id: int,
    epoch: int,
    partitions: Iterable[TopicPartition],
    now: Moment,
    process_slot: ProcessSlot | None = None,
) -> Transaction | Refusal:
    """The transaction of this id and epoch will write to these partitions; the first registration
    begins it.

    `process_slot`: that of its owner from now on, if it may be another one.
    """
    if old is None or old.producer_id != producer_id:
        return Refusal.INVALID_PRODUCER_ID_MAPPING
    if old.epoch != epoch:
        return Refusal.PRODUCER_FENCED
    if old.status in PREPARED:
        return Refusal.CONCURRENT_TRANSACTIONS
    owner = process_slot or old.owner
    if old.status is Status.ONGOING:
        registered = old.partitions.union(partitions)
        if registered == old.partitions and owner == old.owner:
            return old
        return old._replace(partitions=registered, updated_ms=now.wall_ms, owner=owner)
    return old._replace(
        status=Status.ONGOING,
        partitions=frozenset(partitions),
        updated_ms=now.wall_ms,
        started_ms=now.wall_ms,
        owner=owner,
        began=Beginning(now.boot, now.monotonic_ns),
    )


def end(
    old: Transaction | None,
    producer_id: int,
    epoch: int,
    process_slot: ProcessSlot,
    commit: bool,
    next_id: int,
    now: Moment,
) -> Transaction | Refusal:
    """The owner decides. A repeated call, after an error or an interrupt, finds its own decision
    and changes nothing.
    """
    kind = "commit" if commit else "abort"
    if (
        old is not None
        and old.owner == process_slot
        and old.outcome == (kind, producer_id, epoch)
        and old.status is not Status.ONGOING
    ):
        return old
    if old is None or old.producer_id != producer_id:
        return Refusal.INVALID_PRODUCER_ID_MAPPING
    if old.epoch != epoch:
        return Refusal.PRODUCER_FENCED
    if old.status is Status.ONGOING:
        return _prepare(old, commit, next_id, now)
    if old.status in COMPLETED and old.decision == kind:
        return old
    if old.status in PREPARED and old.decision == kind:
        return Refusal.CONCURRENT_TRANSACTIONS
    return Refusal.INVALID_TXN_STATE


# ---- events of any process ------------------------------------------------------------------------


def is_abandoned(state: Transaction, alive: bool, now: Moment) -> bool:
    """Whether an undecided transaction must be aborted: its owner has ended, or it has been open
    for too long.
    """
    if state.status is not Status.ONGOING:
        return False
    if state.owner is None or state.began is None or not alive or state.began.boot != now.boot:
        return True
    return now.monotonic_ns - state.began.monotonic_ns > state.timeout_ms * 1_000_000


def abort_abandoned(
    old: Transaction | None, seen: Transaction, next_id: int, now: Moment
) -> Transaction | None:
    """Abort an abandoned transaction; None if it is not the same transaction now. This fences its
    owner.
    """
    if (
        old is None
        or old.status is not Status.ONGOING
        or (old.producer_id, old.epoch) != (seen.producer_id, seen.epoch)
    ):
        return None
    return _prepare(old, False, next_id, now)._replace(owner=None)


def complete(old: Transaction | None, seen: Transaction, now: Moment) -> Transaction | None:
    """Every marker of the decision `seen` is written; None if another process has completed it."""
    identity = (seen.status, seen.producer_id, seen.epoch)
    if old is None or (old.status, old.producer_id, old.epoch) != identity:
        return None
    has_next_id = seen.next_id != NO_ID
    return old._replace(
        status=Status.COMPLETE_COMMIT if seen.decision == "commit" else Status.COMPLETE_ABORT,
        producer_id=seen.next_id if has_next_id else seen.producer_id,
        previous_id=seen.producer_id,
        next_id=NO_ID,
        epoch=0 if has_next_id else seen.epoch,
        partitions=frozenset(),
        updated_ms=now.wall_ms,
        began=None,
    )


def _prepare(old: Transaction, commit: bool, next_id: int, now: Moment) -> Transaction:
    return old._replace(
        status=Status.PREPARE_COMMIT if commit else Status.PREPARE_ABORT,
        epoch=old.epoch + 1,
        next_id=next_id if old.epoch >= EPOCH_LAST else NO_ID,
        client_version=CLIENT_VERSION,
        updated_ms=now.wall_ms,
        outcome=Outcome("commit" if commit else "abort", old.producer_id, old.epoch),
    )


def is_expired(state: Transaction, alive: bool, expiration_ms: int, now: Moment) -> bool:
    """Whether an id was unused for so long that it expires."""
    return state.status in SETTLED and not alive and now.wall_ms - state.updated_ms >= expiration_ms


# ---- recovery after a power loss -----------------------------------------------------------------


def covers(state: Transaction | None, partition: TopicPartition, epoch: int) -> bool:
    """Whether the record covers open data of this epoch in this partition, so that the data will be
    decided.
    """
    if state is None or state.status in SETTLED or partition not in state.partitions:
        return False
    data_epoch = state.epoch if state.status is Status.ONGOING else state.epoch - 1
    return epoch == data_epoch


def raise_epoch(old: Transaction, producer_id: int, epoch: int, now: Moment) -> Transaction:
    """Raise the epoch to one that a partition has stored: records of this id with that epoch were
    lost.
    """
    if old.status not in SETTLED or old.producer_id != producer_id or epoch <= old.epoch:
        return old
    return old._replace(epoch=min(epoch, EPOCH_MAX), updated_ms=now.wall_ms)


def producer_identity_of(state: Transaction) -> tuple[int, int]:
    """Producer id and epoch with which an id continues, after a decision perhaps with a new
    producer id.
    """
    if state.next_id != NO_ID:
        return state.next_id, 0
    return state.producer_id, state.epoch
