"""The transaction state of a producer: which call is allowed when, and the result of the records in
a transaction.

- States and transitions are Kafka's, as tables; `Machine` depends on nothing else.
- A record is accepted only in the state IN_TRANSACTION: the accumulator is shut in every other
  state, in one step with the transition.
- A call that timed out, or met an error of the storage or too few replicas, keeps its state. The
  same call continues where it stopped, and no other call is allowed.
- After a failed record, or offsets that the group refused, the transaction can only be aborted; a
  fenced producer can only be closed.
- The owner (`coordination.transactions`) writes to the log; this module decides when.
- No commit is decided after a failed record, also if it has fenced the producer. Failures are
  looked for after the last record was settled. A call of `send` that fails from then on is not in
  the transaction, and does not change its state.
"""

from __future__ import annotations

import enum
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from embedlog._native.scope import Guard, scope
from embedlog.coordination.groups.commit_checks import check_offsets
from embedlog.errors import (
    CommitFailedError,
    DeadlineError,
    DurabilityError,
    EmbedlogError,
    FencedError,
    FencedInstanceIdError,
    InvalidGroupIdError,
    InvalidTransactionStateError,
    LeaderNotAvailableError,
    LockTimeoutError,
    NotEnoughReplicasError,
    StateError,
    StorageError,
    TransactionAbortedError,
)
from embedlog.types import GroupMetadata, OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from embedlog.producer.accumulator import Accumulator
    from embedlog.telemetry.metrics import Metrics
    from embedlog.transaction import Outcome

logger = logging.getLogger("embedlog.producer")

T = TypeVar("T")


class ClientState(enum.Enum):
    """The state of the client, with Kafka's names."""

    UNINITIALIZED = enum.auto()
    INITIALIZING = enum.auto()
    READY = enum.auto()
    IN_TRANSACTION = enum.auto()
    COMMITTING = enum.auto()
    ABORTING = enum.auto()
    ABORTABLE_ERROR = enum.auto()
    FATAL_ERROR = enum.auto()


# state → its possible predecessors
PREDECESSORS: Mapping[ClientState, frozenset[ClientState]] = {
    ClientState.UNINITIALIZED: frozenset({ClientState.READY, ClientState.ABORTABLE_ERROR}),
    ClientState.INITIALIZING: frozenset({ClientState.UNINITIALIZED, ClientState.ABORTING}),
    ClientState.READY: frozenset(
        {ClientState.INITIALIZING, ClientState.COMMITTING, ClientState.ABORTING}
    ),
    ClientState.IN_TRANSACTION: frozenset({ClientState.READY}),
    ClientState.COMMITTING: frozenset({ClientState.IN_TRANSACTION}),
    ClientState.ABORTING: frozenset({ClientState.IN_TRANSACTION, ClientState.ABORTABLE_ERROR}),
    ClientState.ABORTABLE_ERROR: frozenset(
        {
            ClientState.IN_TRANSACTION,
            ClientState.COMMITTING,
            ClientState.ABORTABLE_ERROR,
            ClientState.INITIALIZING,
        }
    ),
    ClientState.FATAL_ERROR: frozenset(ClientState),
}

# state → allowed calls; a call that entered the state may be repeated after a timeout
CALLS: Mapping[ClientState, tuple[str, ...]] = {
    ClientState.UNINITIALIZED: ("init_transactions",),
    ClientState.INITIALIZING: ("init_transactions",),
    ClientState.READY: ("begin_transaction",),
    ClientState.IN_TRANSACTION: (
        "send",
        "send_offsets_to_transaction",
        "commit_transaction",
        "abort_transaction",
    ),
    ClientState.COMMITTING: ("commit_transaction",),
    ClientState.ABORTING: ("abort_transaction",),
    ClientState.ABORTABLE_ERROR: ("abort_transaction",),
    ClientState.FATAL_ERROR: (),
}


class Machine:
    """The state, and the error that caused it. Pure: no lock, no clock, no log."""

    def __init__(self) -> None:
        self.state = ClientState.UNINITIALIZED
        self.error: BaseException | None = None

    def enter(self, state: ClientState, error: BaseException | None = None) -> None:
        """Raises InvalidTransactionStateError for a transition that Kafka's table does not
        contain.
        """
        if self.state not in PREDECESSORS[state]:
            raise InvalidTransactionStateError(
                f"no transition from {self.state.name} to {state.name}"
            )
        self.state = state
        self.error = error

    def require(self, call: str) -> None:
        """Raises unless the call is allowed now: FencedError for a fenced producer, else
        InvalidTransactionStateError.
        """
        if call in CALLS[self.state]:
            return
        if isinstance(self.error, FencedError):
            raise FencedError(
                f"{call}() refused, the producer is fenced: {self.error.message}; close it"
            ) from self.error
        expected = (
            " or ".join(f"{allowed_call}()" for allowed_call in CALLS[self.state]) or "close()"
        )
        reason = f" after {self.error!r}" if self.error is not None else ""
        raise InvalidTransactionStateError(
            f"{call}() is not allowed now: the state is {self.state.name}{reason}",
            expected=expected,
            found=f"{call}()",
        ) from self.error

    def remain(self, call: str, error: EmbedlogError) -> None:
        """A call failed with an error that its repetition can repair: it is retriable, and names
        the remedy.
        """
        self.error = error
        error.retriable = True
        error.remedy = (
            f"{call}() has begun: repeat it until it succeeds, other calls than close() are refused"
        )

    def fail(self, error: BaseException) -> None:
        """A record failed, or a call failed with an error that a retry cannot repair."""
        is_fatal = isinstance(error, FencedError | InvalidTransactionStateError)
        if is_fatal and not isinstance(error, FencedInstanceIdError):
            self.enter(ClientState.FATAL_ERROR, error)
        elif self.state is ClientState.ABORTABLE_ERROR:
            self.enter(ClientState.ABORTABLE_ERROR, self.error)  # the first error stays
        elif (
            self.state in PREDECESSORS[ClientState.ABORTABLE_ERROR]
            and self.state is not ClientState.INITIALIZING
        ):
            self.enter(ClientState.ABORTABLE_ERROR, error)


class IdOwner(Protocol):
    """Holds the transactional id in the log."""

    def init(self, deadline_ns: int) -> Outcome | None: ...
    def begin(self) -> None: ...
    def end(self, commit: bool, deadline_ns: int) -> None: ...
    def close(self) -> None: ...
    def add_offsets(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group: GroupMetadata,
        deadline_ns: int,
    ) -> None: ...


class TransactionManager:
    """The transactional part of one producer.

    `timeout_s` is max.block.ms; `clock_ns` the clock of the owner's deadlines. Threads: any; one
    call runs at a time.
    """

    def __init__(
        self,
        owner: IdOwner,
        accumulator: Accumulator,
        figures: Metrics,
        *,
        timeout_s: float,
        clock_ns: Callable[[], int],
    ) -> None:
        self._owner = owner
        self._accumulator = accumulator
        self._figures = figures
        self._timeout_s = timeout_s
        self._clock_ns = clock_ns
        # called before a call raises FencedError
        self.on_fenced: Callable[[], object] = lambda: None
        # held during a call; a nested call of a signal handler is refused
        self._call = threading.RLock()
        # Held during a transition and the change of `shut`. A signal handler may close the producer
        # in the midst: then its transitions come first, `shut` is that of the last state, and a
        # closed producer refuses all calls.
        self._step = threading.RLock()
        self._machine = Machine()
        self._deciding = False  # the owner ends the transaction, all of whose records are settled
        self.opener: object = None  # the argument of the last `begin`
        accumulator.rows.shut = True

    @property
    def state(self) -> ClientState:
        return self._machine.state

    @property
    def has_failed(self) -> bool:
        """Whether a record or a call failed permanently."""
        return self._machine.state in (ClientState.ABORTABLE_ERROR, ClientState.FATAL_ERROR)

    # ---- calls -----------------------------------------------------------------------------------

    def init(self) -> Outcome | None:
        """The outcome of the last transaction of this id."""

        def take_over(deadline_ns: int) -> Outcome | None:
            outcome = self._owner.init(deadline_ns)
            self._enter(ClientState.READY)
            return outcome

        return self._run_call("init_transactions", "init", ClientState.INITIALIZING, take_over)

    def begin(self, opener: object = None) -> None:
        def open_transaction(_: int) -> None:
            self._owner.begin()
            self.opener = opener
            self._enter(ClientState.IN_TRANSACTION)

        self._run_call("begin_transaction", "begin", None, open_transaction)

    def commit(self) -> None:
        """Commit. Raises a record's error; then the transaction can only be aborted, or the
        producer closed.
        """
        if self.state is ClientState.ABORTABLE_ERROR:
            self._raise_failure()

        def end(deadline_ns: int) -> None:
            self._drain(deadline_ns)
            with self._decide():
                self._raise_failure()
                self._owner.end(True, deadline_ns)
                self._enter(ClientState.READY)

        self._run_call("commit_transaction", "commit", ClientState.COMMITTING, end)

    def abort(self) -> None:
        def end(deadline_ns: int) -> None:
            self._accumulator.drop(
                TransactionAbortedError("the transaction was aborted before the record was written")
            )
            self._drain(deadline_ns)
            with self._decide():
                self._owner.end(False, deadline_ns)
                self._raise_failure()  # of a record that has fenced the producer: it does not go on
                self._enter(ClientState.READY)

        self._run_call("abort_transaction", "abort", ClientState.ABORTING, end)

    def abort_after_failure(self, problem: BaseException) -> BaseException:
        """Abort if possible; never raises, because the user must receive the earlier exception. The
        one that leaves the block.

        It is that of the failed record, if `problem` is the refusal of a later call: which of both
        comes first is a race.
        """
        leaving = problem
        error = self._machine.error
        if (
            isinstance(problem, InvalidTransactionStateError)
            and self.state is ClientState.ABORTABLE_ERROR
            and error is not None
            and problem.__cause__ is error
        ):
            leaving = error
        if "abort_transaction" not in CALLS[self.state]:
            return leaving
        try:
            self.abort()
        except EmbedlogError:
            logger.exception(
                "a transaction could not be aborted; it ends by itself after transaction.timeout.ms"
            )
        return leaving

    def send_offsets(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int], group: Any
    ) -> None:
        def add(deadline_ns: int) -> None:
            checked = check_offsets(offsets)
            member = _check_group(group)
            if checked:
                self._owner.add_offsets(checked, member, deadline_ns)

        # a wrong state is named before wrong arguments
        self._run_call("send_offsets_to_transaction", "send_offsets", None, add)

    def close(self, timeout_s: float | None) -> None:
        """Complete a commit that has begun, or abort an open transaction; if this fails, other
        processes do it.

        After an interrupt the next close does it.
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s
        try:
            if self.state is ClientState.IN_TRANSACTION:
                self._accumulator.flush(timeout_s)
            remaining_s = None if until is None else max(0.0, until - time.monotonic())
            with self._limit_timeout(remaining_s):
                if self.state is ClientState.COMMITTING:
                    self.commit()
                elif "abort_transaction" in CALLS[self.state]:
                    self.abort()
        except Exception:
            self.leave()
            raise
        self.leave()

    def leave(self) -> None:
        """Leave an open transaction for other processes to abort."""
        self._owner.close()

    # ---- records ---------------------------------------------------------------------------------

    def check_send(self) -> None:
        """Raises unless a transaction is open."""
        self._machine.require("send")

    def note_failure(self, error: BaseException) -> None:
        """A record was not written."""
        with self._step:
            if not self._deciding:
                self._machine.fail(error)
                self._shut_locked()

    # ---- transitions -----------------------------------------------------------------------------

    def _run_call(
        self, call: str, figure: str, state: ClientState | None, work: Callable[[int], T]
    ) -> T:
        """Run one call at a time, in `state` until it ends; `work` gets the deadline. A permanent
        failure is recorded.

        An interrupt at any point leaves the lock free.
        """
        if self._accumulator.on_thread():
            raise StateError(f"{call}() inside a callback of this producer would wait for itself")
        if self._call._is_owned():  # type: ignore[attr-defined]
            raise StateError(
                f"{call}() inside another call of its thread, as in a signal handler, would wait "
                "for itself"
            )
        began = time.monotonic()
        try:
            if not self._call.acquire(timeout=self._timeout_s):
                raise DeadlineError(
                    f"{call}(): another call did not finish in time",
                    expected=f"{self._timeout_s} s (max.block.ms)",
                )
            with self._step:
                self._machine.require(call)
                if state is not None and self._machine.state is not state:
                    self._machine.enter(state)
                self._shut_locked()
            result = self._run_recorded(call, state, work)
        except FencedError:
            self.on_fenced()
            raise
        finally:
            try:
                # in one step: an interrupt could come between a check and the release
                self._call.release()
            except RuntimeError:
                pass  # not acquired
            self._figures.spent(figure, time.monotonic() - began)
        return result  # not inside: an interrupt after the call must still release

    def _run_recorded(self, call: str, state: ClientState | None, work: Callable[[int], T]) -> T:
        try:
            return work(self._clock_ns() + int(self._timeout_s * 1e9))
        except (FencedError, InvalidTransactionStateError, CommitFailedError) as error:
            # the log's state decides
            self.note_failure(error)
            raise
        except (
            DeadlineError,
            DurabilityError,
            LeaderNotAvailableError,
            LockTimeoutError,
            NotEnoughReplicasError,
            StorageError,
        ) as error:
            with self._step:
                if self._machine.state is state:
                    self._machine.remain(call, error)
            raise

    def _enter(self, state: ClientState) -> None:
        with self._step:
            self._machine.enter(state)
            self._shut_locked()

    def _shut_locked(self) -> None:
        self._accumulator.rows.shut = self._machine.state is not ClientState.IN_TRANSACTION

    def _drain(self, deadline_ns: int) -> None:
        """Wait until every record is settled. Raises DeadlineError."""
        if not self._accumulator.flush(max(0, deadline_ns - self._clock_ns()) / 1e9):
            raise DeadlineError(
                "not all records were written in time",
                expected=f"{self._timeout_s} s (max.block.ms)",
            )

    @scope
    def _decide(self) -> Iterator[None]:
        """While the owner ends the transaction: `_raise_failure` sees each failure before it, and
        no later one.
        """
        with Guard(partial(setattr, self, "_deciding", False)):
            with self._step:
                self._deciding = True
            yield

    def _raise_failure(self) -> None:
        error = self._machine.error
        if self.has_failed and error is not None:
            raise error

    @scope
    def _limit_timeout(self, timeout_s: float | None) -> Iterator[None]:
        previous_s = self._timeout_s
        if timeout_s is not None:
            self._timeout_s = min(previous_s, timeout_s)
        with Guard(partial(setattr, self, "_timeout_s", previous_s)):
            yield


def _check_group(group: object) -> GroupMetadata:
    """Raises TypeError for an object of another type, InvalidGroupIdError for a member that cannot
    be in the group.
    """
    if not isinstance(group, GroupMetadata):
        raise TypeError(
            f"group_metadata must be the result of consumer.group_metadata(), not {group!r}"
        )
    if group.generation > 0 and not group.member_id:
        raise InvalidGroupIdError(
            "group_metadata has a generation, but no member id", found=repr(group)
        )
    return group
