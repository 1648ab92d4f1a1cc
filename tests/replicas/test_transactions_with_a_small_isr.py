"""Ends of transactions while a partition has too few replicas in sync, or no leader: the owner
waits, and others do not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog import TopicPartition
from embedlog._native import system
from embedlog.coordination.transactions.transaction_coordinator import Transactions
from embedlog.errors import (
    DeadlineError,
    EmbedlogError,
    LeaderNotAvailableError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
)
from embedlog.replicas.partition.replicated_partition import ReplicatedPartition
from tests.support.replica_moves import opened, partition_of
from tests.support.transactional_producers import begun, committed, help_out

FIRST = TopicPartition("First", 0)  # its marker comes before that of `__consumer_offsets`
PLAIN = b"of no transaction"
ROUNDS = 100  # of housekeeping, until the replica is in sync


@pytest.fixture
def log(tmp_path: Path) -> Iterator[embedlog.Log]:
    internal = {"offsets.topic.num.partitions": 1, "transaction.state.log.num.partitions": 1}
    with opened(tmp_path, **{"auto.leader.rebalance.enable": False}, **internal) as log:
        log.create_topic(FIRST.topic, assignment={0: [1, 2]}, config={"min.insync.replicas": "2"})
        yield log


def lose(log: embedlog.Log, root: Path, *, noticed: bool) -> None:
    """Node 2 is away. `noticed`: it has left the ISR, so that nothing is written from now on."""
    (root / "d2").rename(root / "away")
    if noticed:
        with log.producer(acks=1, linger_ms=0) as producer:
            producer.send(FIRST.topic, PLAIN).result(20)
        log.housekeep()
        assert partition_of(log, FIRST).isr == (1,)


def of_transactions(log: embedlog.Log) -> list[bytes | None]:
    return [value for value in committed(log, FIRST.topic) if value != PLAIN]


def put_back(log: embedlog.Log, root: Path) -> None:
    """Node 2 is in sync again. Nothing ends transactions meanwhile."""
    (root / "away").rename(root / "d2")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Transactions, "housekeep", lambda *_: None)
        for _ in range(ROUNDS):
            if partition_of(log, FIRST).isr == (1, 2):
                return
            log.housekeep()
    raise AssertionError(log.replicas(FIRST.topic))


@pytest.fixture
def waits(log: embedlog.Log, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The deadlines of waits for a decision of the set."""
    found: list[int] = []
    wait = log._engine.await_topics

    def counted(version: int, deadline_ns: int) -> None:
        found.append(deadline_ns)
        wait(version, deadline_ns)

    monkeypatch.setattr(log._engine, "await_topics", counted)
    return found


def returning(log: embedlog.Log, root: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Node 2 is put back at the first wait."""
    found: list[int] = []

    def waited(version: int, deadline_ns: int) -> None:
        found.append(version)
        if len(found) == 1:
            put_back(log, root)

    monkeypatch.setattr(log._engine, "await_topics", waited)
    return found


@pytest.mark.parametrize("noticed", [True, False])
@pytest.mark.parametrize("call", ["commit_transaction", "abort_transaction"])
def test_an_end_waits_until_enough_replicas_are_in_sync(
    log: embedlog.Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, noticed: bool
) -> None:
    """It was decided, and raised NotEnoughReplicasError at once."""
    with log.producer(transactional_id="x", linger_ms=0) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(FIRST.topic, b"v").result(20)
        lose(log, tmp_path, noticed=noticed)
        waited = returning(log, tmp_path, monkeypatch)
        getattr(producer, call)()
        assert waited
        found = [b"v"] if call == "commit_transaction" else []
        assert of_transactions(log) == found
        producer.begin_transaction()
        producer.send(FIRST.topic, b"next").result(20)
        producer.commit_transaction()
    assert of_transactions(log) == [*found, b"next"]


def test_the_next_owner_waits_until_enough_replicas_are_in_sync(
    log: embedlog.Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = begun(log, "x")
    writer.write(b"v", topic=FIRST.topic)
    lose(log, tmp_path, noticed=True)
    waited = returning(log, tmp_path, monkeypatch)
    with log.producer(transactional_id="x") as producer:
        producer.init_transactions()
    assert waited
    assert of_transactions(log) == []


def test_an_end_that_waits_until_its_deadline_names_the_remedy(
    log: embedlog.Log, tmp_path: Path
) -> None:
    with log.producer(transactional_id="x", linger_ms=0, max_block_ms=300) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(FIRST.topic, b"v").result(20)
        lose(log, tmp_path, noticed=True)
        for _ in range(2):
            with pytest.raises(
                DeadlineError,
                match=r"too few replicas of First-0 are in sync; commit_transaction\(\)",
            ) as late:
                producer.commit_transaction()
            assert late.value.retriable
        put_back(log, tmp_path)
        producer._transaction._timeout_s = 60.0
        producer.commit_transaction()
    assert of_transactions(log) == [b"v"]


def test_others_do_not_wait_for_replicas(
    log: embedlog.Log, tmp_path: Path, waits: list[int]
) -> None:
    """A reader of committed offsets got NotEnoughReplicasError. The housekeeper must not wait for
    the ISR: it restores it.
    """
    append_marker = ReplicatedPartition.append_marker

    def of_no_offsets(self: ReplicatedPartition, *arguments: Any, **options: Any) -> int | None:
        if self.topic == "__consumer_offsets":
            raise NotEnoughReplicasError("too few", retriable=True)
        return append_marker(self, *arguments, **options)

    with log.producer(transactional_id="x", linger_ms=0, max_block_ms=300) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(FIRST.topic, b"v").result(20)
        producer.send_offsets_to_transaction({FIRST: 1}, embedlog.GroupMetadata("g"))
        lose(log, tmp_path, noticed=True)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ReplicatedPartition, "append_marker", of_no_offsets)
            with pytest.raises(DeadlineError):
                producer.commit_transaction()
            assert waits
            del waits[:]
            assert not help_out(log, 0, "__consumer_offsets")
            log.housekeep()
            with log.consumer(group_id="g", default_api_timeout_ms=300) as consumer:
                consumer.assign([FIRST])
                with pytest.raises(DeadlineError, match="undecided transaction"):
                    consumer.committed(FIRST)
            assert not waits
        put_back(log, tmp_path)
        log.housekeep()
        assert log.group_offsets("g")[FIRST].offset == 1
        producer.commit_transaction()
    assert of_transactions(log) == [b"v"]


Failure = tuple[str, Callable[[], EmbedlogError]]
FAILURES: dict[str, Failure] = {
    "no leader for a marker": ("append_marker", lambda: LeaderNotAvailableError("no leader")),
    "an uncommitted marker": (
        "append_marker",
        lambda: NotEnoughReplicasAfterAppendError("not committed", retriable=True),
    ),
    "uncommitted data": (
        "sync_to",
        lambda: NotEnoughReplicasAfterAppendError("not committed", retriable=True),
    ),
}


@pytest.mark.parametrize("failure", sorted(FAILURES))
def test_each_step_of_a_commit_is_repeated(
    log: embedlog.Log, monkeypatch: pytest.MonkeyPatch, waits: list[int], failure: str
) -> None:
    name, error = FAILURES[failure]
    log.create_topic("durable", replication_factor=3, config={"flush.messages": "1"})
    writer = begun(log)
    failures = list[int]()
    step = getattr(ReplicatedPartition, name)
    writer.write(b"v", topic="durable")

    def failing_once(self: ReplicatedPartition, *arguments: Any, **options: Any) -> Any:
        if self.topic == "durable" and not failures:
            failures.append(1)
            raise error()
        return step(self, *arguments, **options)

    monkeypatch.setattr(ReplicatedPartition, name, failing_once)
    writer.commit()
    assert len(failures) == len(waits) == 1
    assert committed(log, "durable") == [b"v"]


def test_a_recovery_is_repeated_by_the_next_owner(
    log: embedlog.Log, monkeypatch: pytest.MonkeyPatch, waits: list[int]
) -> None:
    failures: list[int] = []
    recover = Transactions.recover_if_due

    def failing_once(self: Transactions, deadline_ns: int) -> None:
        if not failures:
            failures.append(1)
            raise NotEnoughReplicasError("too few", retriable=True)
        recover(self, deadline_ns)

    monkeypatch.setattr(Transactions, "recover_if_due", failing_once)
    assert begun(log).owner.stamp.producer_id >= 0
    assert len(failures) == len(waits) == 1


@pytest.mark.parametrize("commit", [True, False])
def test_a_partition_without_a_leader_keeps_no_marker_from_the_others(
    log: embedlog.Log, tmp_path: Path, commit: bool
) -> None:
    """Its marker comes first by name: readers of the other partitions stopped at the transaction
    until it had a leader.
    """
    log.create_topic("Away", assignment={0: [3]}, config={"min.insync.replicas": 1})
    writer = begun(log, "x")
    for topic in (FIRST.topic, "Away"):
        writer.write(b"v", topic=topic)
    (tmp_path / "d3").rename(tmp_path / "away3")
    with pytest.raises(DeadlineError, match="is decided"):
        writer.owner.end(commit, system.boot_ns() + 3_000_000_000)
    assert log._engine.partition(*FIRST).open_transactions() == []
    assert of_transactions(log) == ([b"v"] if commit else [])
    (tmp_path / "away3").rename(tmp_path / "d3")
    writer.owner.end(commit)
    assert committed(log, "Away") == ([b"v"] if commit else [])


def test_a_reader_ends_the_transactions_after_one_that_cannot_be_ended_now(
    log: embedlog.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("x", "y"):
        begun(log, name).write(b"v", topic=FIRST.topic)
    settled = []

    def finish_transaction(self: Transactions, name: str, *_: object) -> bool:
        settled.append(name)
        if len(settled) == 1:
            raise LeaderNotAvailableError("no leader")
        return True

    monkeypatch.setattr(Transactions, "finish_transaction", finish_transaction)
    assert log._engine.transactions.resolve(log._engine.partition(*FIRST))
    assert settled == ["x", "y"]


def test_a_topic_that_is_deleted_before_its_marker_does_not_end_a_commit(
    log: embedlog.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.create_topic("Last")
    look = Transactions._has_no_leader
    looks = list[str]()

    def deleting(self: Transactions, partition: Any) -> bool:
        if not looks:
            log.delete_topic(FIRST.topic)
        looks.append(partition.topic)
        return look(self, partition)

    with log.producer(transactional_id="x", linger_ms=0) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for topic in (FIRST.topic, "Last"):
            producer.send(topic, b"value").result(20)
        monkeypatch.setattr(Transactions, "_has_no_leader", deleting)
        producer.commit_transaction()
    assert FIRST.topic in looks
    assert committed(log, "Last") == [b"value"]
