"""The client's half of transactions: states, calls, effects of records and errors; the log's half
is a fake.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog import OffsetAndMetadata, TopicPartition
from embedlog.errors import (
    DeadlineError,
    FencedError,
    InvalidGroupIdError,
    InvalidTransactionStateError,
    LeaderNotAvailableError,
    LockTimeoutError,
    NotEnoughReplicasError,
    RecordTooLargeError,
    StateError,
    StorageError,
    TransactionAbortedError,
)
from embedlog.format.record_columns import Stamp
from embedlog.producer import sender
from embedlog.producer.transaction_manager import CALLS, PREDECESSORS, ClientState, Machine
from tests.support.producer_helpers import Stuck, log, stuck, values

__all__ = ["log", "stuck"]

ENTERED = {
    "init_transactions": "init",
    "begin_transaction": "begin",
    "commit_transaction": "end",
    "abort_transaction": "end",
}


class FakeOwner:
    """Changes nothing in the log; fails once for each entry of `failures`."""

    def __init__(self) -> None:
        self.story: list[Any] = []
        self.failures: list[Exception] = []

    def _do(self, *what: Any) -> None:
        self.story.append(what)
        if self.failures:
            raise self.failures.pop(0)

    def init(self, deadline_ns: int) -> str:
        self._do("init")
        return "outcome"

    def begin(self) -> None:
        self.story.append(("begin",))

    def end(self, commit: bool, deadline_ns: int) -> None:
        self._do("end", commit)

    def close(self) -> None:
        self.story.append(("close",))

    stamp = Stamp(2**62, 0)  # idempotent, no more

    def begin_in(self, runs: Any) -> None:
        """No process is notified."""

    def append(self, partition: Any, run: Any, deadline_ns: int, progress: Any) -> Any:
        return partition.append(run, deadline_ns=deadline_ns, stamp=self.stamp, progress=progress)

    def add_offsets(self, offsets: Any, group: Any, deadline_ns: int) -> None:
        self._do("offsets", offsets)


class FakeTransactions:
    def __init__(self, owner: FakeOwner) -> None:
        self._owner = owner

    def owner(self, transactional_id: str, timeout_ms: int) -> FakeOwner:
        return self._owner


@pytest.fixture
def owner(monkeypatch: pytest.MonkeyPatch) -> FakeOwner:
    monkeypatch.setattr(sender.Sender, "appender", None, raising=False)
    return FakeOwner()


@pytest.fixture
def producer(
    log: embedlog.Log, owner: FakeOwner, monkeypatch: pytest.MonkeyPatch
) -> Iterator[embedlog.Producer]:
    monkeypatch.setattr(log._engine, "_transactions", FakeTransactions(owner))
    with log.producer(
        transactional_id="x", linger_ms=60_000, delivery_timeout_ms=600_000, max_block_ms=5000
    ) as made:
        yield made


@pytest.fixture
def ready(producer: embedlog.Producer) -> embedlog.Producer:
    producer.init_transactions()
    return producer


def state(producer: embedlog.Producer) -> ClientState:
    return producer._transaction.state


# ---- the tables ---------------------------------------------------------------------------------


def test_every_state_but_the_first_can_be_reached_and_left() -> None:
    reached = {ClientState.UNINITIALIZED}
    while True:
        further = {each for each in ClientState if PREDECESSORS[each] & reached} | reached
        if further == reached:
            break
        reached = further
    assert reached == set(ClientState)
    assert set(PREDECESSORS) == set(CALLS) == set(ClientState)
    for each in set(ClientState) - {ClientState.FATAL_ERROR}:
        assert any(each in before for after, before in PREDECESSORS.items() if after is not each)


@pytest.mark.parametrize("before", ClientState)
@pytest.mark.parametrize("after", ClientState)
def test_a_step_that_is_not_in_the_table_is_refused(
    before: ClientState, after: ClientState
) -> None:
    machine = Machine()
    machine.state = before
    if before in PREDECESSORS[after]:
        machine.enter(after)
        assert machine.state is after
    else:
        with pytest.raises(
            InvalidTransactionStateError, match=f"from {before.name} to {after.name}"
        ):
            machine.enter(after)
        assert machine.state is before


@pytest.mark.parametrize("current", ClientState)
@pytest.mark.parametrize("call", sorted({each for calls in CALLS.values() for each in calls}))
def test_a_call_in_a_wrong_state_says_which_state_and_what_is_allowed(
    current: ClientState, call: str
) -> None:
    machine = Machine()
    machine.state = current
    if call in CALLS[current]:
        machine.require(call)
        return
    with pytest.raises(InvalidTransactionStateError) as caught:
        machine.require(call)
    assert current.name in str(caught.value)
    assert all(f"{each}()" in str(caught.value) for each in CALLS[current] or ("close",))
    assert isinstance(caught.value, StateError)


# ---- the verbs ----------------------------------------------------------------------------------


def test_a_transaction_from_begin_to_commit(
    log: embedlog.Log, ready: embedlog.Producer, owner: FakeOwner
) -> None:
    for number in range(3):
        ready.begin_transaction()
        ready.send("one", b"%d" % number)
        ready.send_batch("one", [b"x", b"y"])
        ready.commit_transaction()
    assert values(log) == [b"0", b"x", b"y", b"1", b"x", b"y", b"2", b"x", b"y"]
    ready.close()
    assert owner.story == [("init",), *[("begin",), ("end", True)] * 3, ("close",)]


def test_init_says_what_became_of_the_last_one_and_is_called_once(
    producer: embedlog.Producer,
) -> None:
    assert producer.init_transactions() == "outcome"
    with pytest.raises(
        InvalidTransactionStateError,
        match=r"init_transactions\(\) is not allowed now: the state is READY",
    ):
        producer.init_transactions()


def test_nothing_is_sent_outside_of_a_transaction(
    log: embedlog.Log, producer: embedlog.Producer
) -> None:
    sends = (lambda: producer.send("one", b"v"), lambda: producer.send_batch("one", [b"v"]))
    for send in sends:
        with pytest.raises(
            InvalidTransactionStateError,
            match=r"UNINITIALIZED: expected init_transactions\(\), found send\(\)",
        ):
            send()
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("one", b"inside")  # from here on there is a fast way
    producer.commit_transaction()
    for send in sends:
        with pytest.raises(
            InvalidTransactionStateError, match=r"READY: expected begin_transaction\(\)"
        ):
            send()
    assert values(log) == [b"inside"]


def test_abort_fails_what_is_still_buffered(
    log: embedlog.Log, ready: embedlog.Producer, owner: FakeOwner
) -> None:
    ready.begin_transaction()
    ready.send("one", b"written").result(10)
    buffered = ready.send("one", b"buffered")
    ready.abort_transaction()
    assert isinstance(buffered.exception(0), TransactionAbortedError)
    assert values(log) == [b"written"]
    assert owner.story[-1] == ("end", False)
    assert state(ready) is ClientState.READY


def test_the_block_commits_or_aborts(
    log: embedlog.Log, ready: embedlog.Producer, owner: FakeOwner
) -> None:
    with ready.transaction() as same:
        assert same is ready
        ready.send("one", b"v")
    assert owner.story[-1] == ("end", True)
    with pytest.raises(KeyError, match="mine"), ready.transaction():
        ready.send("one", b"w")
        raise KeyError("mine")
    assert owner.story[-1] == ("end", False)
    with pytest.raises(KeyboardInterrupt), ready.transaction():
        raise KeyboardInterrupt
    with pytest.raises(RecordTooLargeError), ready.transaction():
        ready.send("one", b"x" * (2 << 20))
    assert owner.story[-1] == ("end", False)
    assert values(log) == [b"v"]


def test_a_failed_record_makes_commit_raise_what_it_failed_of(
    ready: embedlog.Producer, owner: FakeOwner
) -> None:
    ready.begin_transaction()
    failed = ready.send("one", b"x" * (2 << 20))
    assert state(ready) is ClientState.ABORTABLE_ERROR
    for _ in range(2):
        with pytest.raises(RecordTooLargeError) as caught:
            ready.commit_transaction()
        assert caught.value is failed.exception(0)
    with pytest.raises(
        InvalidTransactionStateError,
        match=r"ABORTABLE_ERROR after RecordTooLargeError.*abort_transaction\(\)",
    ):
        ready.send("one", b"v")
    ready.abort_transaction()
    assert [entry for entry in owner.story if entry[0] == "end"] == [("end", False)]
    ready.begin_transaction()
    ready.commit_transaction()


def test_a_record_that_fails_while_it_is_written_makes_commit_raise(
    log: embedlog.Log, ready: embedlog.Producer
) -> None:
    ready.begin_transaction()
    ready.send("one", b"x" * 5000)
    log.alter_topic("one", {"max.message.bytes": 200})
    with pytest.raises(RecordTooLargeError):
        ready.commit_transaction()
    ready.abort_transaction()


@pytest.mark.parametrize("call", sorted(set(ENTERED) - {"begin_transaction"}))
@pytest.mark.parametrize(
    "kind",
    [
        LockTimeoutError,
        DeadlineError,
        StorageError,
        embedlog.DurabilityError,
        NotEnoughReplicasError,
        LeaderNotAvailableError,
    ],
)
def test_a_call_that_can_be_repeated_stays_pending_and_names_the_remedy(
    producer: embedlog.Producer, owner: FakeOwner, call: str, kind: type[embedlog.EmbedlogError]
) -> None:
    calls = list(ENTERED)
    for each in calls[: calls.index(call)] if call != "abort_transaction" else calls[:2]:
        getattr(producer, each)()
    owner.failures = [kind("it failed")]
    with pytest.raises(kind, match=rf"it failed; {call}\(\) has begun: repeat it") as failed:
        getattr(producer, call)()
    assert failed.value.retriable
    for other in set(calls) - {call}:
        with pytest.raises(InvalidTransactionStateError, match=rf"it failed.*expected {call}\(\)"):
            getattr(producer, other)()
    getattr(producer, call)()
    assert state(producer) is ClientState.READY


def test_a_record_that_fails_after_an_interrupted_commit_is_the_reason_of_the_abort(
    ready: embedlog.Producer, owner: FakeOwner
) -> None:
    ready.begin_transaction()
    owner.failures = [StorageError("the disk is full")]
    with pytest.raises(StorageError):
        ready.commit_transaction()
    ready._transaction.note_failure(RecordTooLargeError("the record"))
    with pytest.raises(RecordTooLargeError):
        ready.commit_transaction()


def test_records_that_are_not_written_in_time_leave_the_commit_pending(
    log: embedlog.Log, owner: FakeOwner, stuck: Stuck, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log._engine, "_transactions", FakeTransactions(owner))
    with log.producer(transactional_id="x", max_block_ms=100) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("one", b"v")
        with pytest.raises(DeadlineError, match=r"max\.block\.ms"):
            producer.commit_transaction()
        with pytest.raises(
            InvalidTransactionStateError,
            match=r"COMMITTING after .*not all .*: expected commit_transaction\(\)",
        ):
            producer.send("one", b"w")
        stuck.go.set()
        producer.flush(20)
        producer.commit_transaction()
    assert values(log) == [b"v"]


def test_a_fenced_producer_can_only_be_closed(ready: embedlog.Producer, owner: FakeOwner) -> None:
    ready.begin_transaction()
    owner.failures = [FencedError("a new producer took the id over")]
    with pytest.raises(FencedError):
        ready.commit_transaction()
    assert state(ready) is ClientState.FATAL_ERROR
    for call in ENTERED:
        with pytest.raises(
            FencedError, match=rf"{call}\(\) refused, the producer is fenced.*close it"
        ):
            getattr(ready, call)()
    assert isinstance(ready.send("one", b"v").exception(0), FencedError)
    assert isinstance(ready.send_batch("one", [b"v"]).exception(0), FencedError)


def test_an_end_that_finds_another_state_in_the_log_is_the_end_of_the_producer(
    ready: embedlog.Producer, owner: FakeOwner
) -> None:
    ready.begin_transaction()
    owner.failures = [InvalidTransactionStateError("it was aborted by another process")]
    with pytest.raises(InvalidTransactionStateError, match="aborted by another process"):
        ready.commit_transaction()
    with pytest.raises(
        InvalidTransactionStateError,
        match=r"FATAL_ERROR after .*aborted by another process.*close\(\)",
    ):
        ready.abort_transaction()


@pytest.mark.parametrize("call", [*ENTERED, "send_offsets_to_transaction"])
def test_a_producer_without_an_id_has_no_transactions(log: embedlog.Log, call: str) -> None:
    arguments = ({}, None) if call.startswith("send") else ()
    with (
        log.producer() as plain,
        pytest.raises(InvalidTransactionStateError, match=r"transactional\.id"),
    ):
        getattr(plain, call)(*arguments)
    with log.producer() as plain, pytest.raises(InvalidTransactionStateError), plain.transaction():
        pass


def test_no_verb_inside_a_callback(ready: embedlog.Producer) -> None:
    raised: list[BaseException] = []

    def commit(future: embedlog.Future) -> None:
        try:
            ready.commit_transaction()
        except StateError as error:
            raised.append(error)

    ready.begin_transaction()
    future = ready.send("one", b"v")
    future.add_done_callback(commit)
    ready.commit_transaction()
    assert "inside a callback" in str(raised[0])


def test_close_ends_what_is_open(
    log: embedlog.Log, owner: FakeOwner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log._engine, "_transactions", FakeTransactions(owner))
    with log.producer(
        transactional_id="x", linger_ms=60_000, delivery_timeout_ms=600_000
    ) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        drained = producer.send("one", b"v")
    assert drained.exception(0) is None
    assert owner.story[-2:] == [("end", False), ("close",)]
    with log.producer(transactional_id="x") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        owner.failures = [LockTimeoutError("held")]
        with pytest.raises(LockTimeoutError):
            producer.commit_transaction()
    assert owner.story[-3:] == [("end", True), ("end", True), ("close",)]


def test_a_close_that_cannot_end_the_transaction_says_so(
    ready: embedlog.Producer, owner: FakeOwner, caplog: pytest.LogCaptureFixture
) -> None:
    ready.begin_transaction()
    owner.failures = [LockTimeoutError("held")]
    ready.close(1)
    assert "a transaction that could not be ended" in caplog.text


def test_many_threads_send_until_the_commit_and_no_record_is_in_between(
    log: embedlog.Log, ready: embedlog.Producer, owner: FakeOwner
) -> None:
    """Records of `send` before the commit are written before it ends; later ones are refused."""
    taken: list[int] = [0] * 4
    written_at_end: list[int] = []
    real = owner.end

    def end(commit: bool, deadline_ns: int) -> None:
        written_at_end.append(
            log.consumer().end_offsets([TopicPartition("one", 0)])[TopicPartition("one", 0)]
        )
        real(commit, deadline_ns)

    owner.end = end  # type: ignore[method-assign]
    ready.begin_transaction()
    started = threading.Barrier(5)

    def send(place: int) -> None:
        started.wait(10)
        try:
            while True:
                ready.send("one", b"v")
                taken[place] += 1
        except InvalidTransactionStateError:
            pass

    threads = [threading.Thread(target=send, args=(place,)) for place in range(4)]
    for thread in threads:
        thread.start()
    started.wait(10)
    while sum(taken) < 1000:
        pass
    ready.commit_transaction()
    for thread in threads:
        thread.join(10)
    assert written_at_end == [sum(taken)]


# ---- offsets ------------------------------------------------------------------------------------


GROUP = embedlog.GroupMetadata("g")


def test_offsets_go_into_the_transaction(ready: embedlog.Producer, owner: FakeOwner) -> None:
    ready.begin_transaction()
    ready.send_offsets_to_transaction({}, GROUP)
    ready.send_offsets_to_transaction(
        {TopicPartition("one", 0): 5, TopicPartition("t", 1): OffsetAndMetadata(7, "note")}, GROUP
    )
    wanted = {
        TopicPartition("one", 0): OffsetAndMetadata(5),
        TopicPartition("t", 1): OffsetAndMetadata(7, "note"),
    }
    assert [entry for entry in owner.story if entry[0] == "offsets"] == [("offsets", wanted)]
    ready.commit_transaction()
    with pytest.raises(InvalidTransactionStateError, match="READY"):
        ready.send_offsets_to_transaction({TopicPartition("one", 0): 5}, GROUP)


@pytest.mark.parametrize(
    ("offsets", "group", "error"),
    [
        ([5], GROUP, TypeError),
        ({"one": 5}, GROUP, TypeError),
        ({TopicPartition("one", 0): "5"}, GROUP, TypeError),
        ({TopicPartition("one", 0): 5}, None, TypeError),
        ({TopicPartition("one", 0): 5}, embedlog.GroupMetadata("g", 3), InvalidGroupIdError),
    ],
    ids=str,
)
def test_offsets_that_cannot_be_are_refused(
    ready: embedlog.Producer, offsets: Any, group: Any, error: type[Exception]
) -> None:
    ready.begin_transaction()
    with pytest.raises(error):
        ready.send_offsets_to_transaction(offsets, group)
    ready.commit_transaction()


def test_the_time_of_each_verb_is_told(ready: embedlog.Producer, tmp_path: Path) -> None:
    with ready.transaction():
        pass
    ready.begin_transaction()
    ready.abort_transaction()
    found = ready.metrics()
    assert all(
        found[f"txn-{verb}-time-ns-total"] > 0 for verb in ("init", "begin", "commit", "abort")
    )
