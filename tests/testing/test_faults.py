"""Faults on request: each one through the public API, with the error handling of production, and
with the clients it concerns.
"""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog import TopicPartition
from embedlog.testing import Faults, assert_committed, assert_records, faults, open_log, records

EIO = OSError(errno.EIO, os.strerror(errno.EIO))
ENOSPC = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
WAIT_S = 60
FEW_TRIES = {
    "delivery_timeout_ms": 300,
    "linger_ms": 0,
    "request_timeout_ms": 100,
    "retry_backoff_ms": 20,
}


@pytest.fixture(scope="module")
def shared() -> Iterator[embedlog.Log]:
    with open_log() as opened:
        yield opened


@pytest.fixture
def topic(shared: embedlog.Log, request: pytest.FixtureRequest) -> str:
    name: str = "".join(each if each.isalnum() else "-" for each in request.node.name)[:100]
    shared.create_topic(name, 2)
    return name


@pytest.fixture
def injected(shared: embedlog.Log) -> Iterator[Faults]:
    yield faults(shared)
    assert shared._engine.interposer is None


def values(log: embedlog.Log, topic: str) -> list[Any]:
    return [each.value for each in records(log, topic)]


def until(condition: Callable[[], bool], step: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s
        step()


# ---- appends: the producer -------------------------------------------------------------------------------------------


def test_a_passing_failure_is_retried_as_in_production(
    shared: embedlog.Log, topic: str, injected: Faults
) -> None:
    with shared.producer(retry_backoff_ms=1) as producer:
        producer.send(topic, b"before", partition=0).result(WAIT_S)
        with injected.append_fails(topic, times=3) as fault:
            assert producer.send(topic, b"v", partition=0).result(WAIT_S).offset == 1
        assert fault.count == 3
        assert producer.metrics()["record-retry-total"] == 3
    assert values(shared, topic) == [b"before", b"v"]


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_lasting_failure_fails_the_future_with_its_cause(
    shared: embedlog.Log, topic: str, injected: Faults, idempotent: bool
) -> None:
    with shared.producer(
        enable_idempotence=idempotent, on_delivery_error="log", **FEW_TRIES
    ) as producer:
        with injected.append_fails(topic, ENOSPC, times=None):
            error = producer.send(topic, b"lost").exception(WAIT_S)
        assert isinstance(error, embedlog.DeadlineError)
        assert isinstance(error.__cause__, embedlog.StorageError)
        assert error.__cause__.errno == errno.ENOSPC
        producer.send(topic, b"kept").result(WAIT_S)
    assert values(shared, topic) == [b"kept"]


def test_any_error_reaches_callback_and_flush(
    shared: embedlog.Log, topic: str, injected: Faults
) -> None:
    given = embedlog.NotEnoughReplicasError("too few")
    called = list[Any]()
    with shared.producer(retries=0) as producer, injected.append_fails(topic, given, times=None):
        producer.send(topic, b"v").add_done_callback(
            lambda future: called.append(future.exception())
        )
        producer.send(topic, b"v")
        with pytest.raises(embedlog.DeliveryError) as raised:
            producer.flush()
    assert called == [given]
    assert "1 record not written" in str(raised.value)
    assert values(shared, topic) == []


def test_only_the_named_partition_fails(shared: embedlog.Log, topic: str, injected: Faults) -> None:
    with (
        shared.producer(on_delivery_error="log", retries=0) as producer,
        injected.append_fails(topic, partition=1, times=None),
    ):
        good, bad = (producer.send(topic, b"%d" % number, partition=number) for number in (0, 1))
        assert good.result(WAIT_S).partition == 0
        assert isinstance(bad.exception(WAIT_S), embedlog.StorageError)


def test_a_direct_append_of_the_caller_is_not_passed_by(
    shared: embedlog.Log, topic: str, injected: Faults
) -> None:
    with shared.producer(retries=0, on_delivery_error="log") as producer:
        for number in range(5):  # from the second on, the waiting caller appends in its own thread
            producer.send(topic, b"%d" % number, partition=0).result(WAIT_S)
        for _ in range(2):
            with injected.append_fails(topic) as fault:
                assert producer.send(topic, b"x", partition=0).exception(WAIT_S) is not None
            assert fault.count == 1
        producer.send(topic, b"5", partition=0).result(WAIT_S)
    assert values(shared, topic) == [b"%d" % number for number in range(6)]


def test_a_held_append_continues_when_it_is_released(
    shared: embedlog.Log, topic: str, injected: Faults
) -> None:
    with shared.producer(linger_ms=0) as producer, injected.append_held(topic) as held:
        future = producer.send(topic, b"v")
        held.reached()
        assert not future.done()
        assert values(shared, topic) == []
        with pytest.raises(embedlog.DeadlineError):
            future.result(0.01)
        held.release()
        assert future.result(WAIT_S).offset == 0


def test_an_append_that_is_held_for_too_long_fails() -> None:
    with open_log("t", config={"lock_timeout_ms": 500}) as log:
        with (
            log.producer(on_delivery_error="log", **FEW_TRIES) as producer,
            faults(log).append_held("t"),
        ):
            error = producer.send("t", b"v").exception(WAIT_S)
        assert isinstance(error, embedlog.DeadlineError)
        assert values(log, "t") == []


def test_a_slow_append_takes_longer(shared: embedlog.Log, topic: str, injected: Faults) -> None:
    with shared.producer() as producer, injected.append_slow(0.05, topic) as fault:
        began = time.monotonic()
        producer.send(topic, b"v").result(WAIT_S)
        assert time.monotonic() - began >= 0.05
    assert fault.count == 1


def test_a_full_disk_stops_data_and_commits_until_it_is_healed(
    shared: embedlog.Log, topic: str, injected: Faults
) -> None:
    with (
        shared.producer(retry_backoff_ms=1) as producer,
        shared.consumer(group_id=topic) as consumer,
    ):
        consumer.assign([TopicPartition(topic, 0)])
        with injected.disk_full() as disk:
            future = producer.send(topic, b"v", partition=0)
            disk.reached()
            with pytest.raises(embedlog.StorageError, match="ENOSPC"):
                consumer.commit({TopicPartition(topic, 0): 0})
            assert not future.done()
            disk.heal()
            assert future.result(WAIT_S).offset == 0
            consumer.commit({TopicPartition(topic, 0): 1})
    assert_committed(shared, topic, {(topic, 0): 1})


def test_a_failed_record_aborts_its_transaction(
    shared: embedlog.Log, topic: str, injected: Faults
) -> None:
    with shared.producer(transactional_id=topic) as producer:
        producer.init_transactions()
        refused = injected.append_fails(topic, embedlog.RecordTooLargeError("refused"), times=None)
        with refused, pytest.raises(embedlog.RecordTooLargeError), producer.transaction():
            producer.send(topic, b"lost")
        with producer.transaction():
            producer.send(topic, b"kept")
    assert_records(shared, topic, ["kept"])


def test_a_set_of_directories_has_the_same_faults(tmp_path: Path) -> None:
    with (
        embedlog.open([tmp_path / "1", tmp_path / "2"], housekeeping=False) as log,
        log.producer() as producer,
    ):
        log.create_topic("t", replication_factor=2)
        injected = faults(log)
        for number in range(3):
            producer.send("t", b"%d" % number).result(WAIT_S)
        with injected.append_fails("t") as fault:  # another directory takes over the lead
            assert producer.send("t", b"3").result(WAIT_S).offset == 3
        assert fault.count == 1
        with injected.append_held("t") as held:
            future = producer.send("t", b"4")
            held.reached()
            held.release()
            assert future.result(WAIT_S).offset == 4
        assert values(log, "t") == [b"%d" % number for number in range(5)]


# ---- appends: asyncio ------------------------------------------------------------------------------------------------


def test_asyncio_clients_meet_the_same_faults(
    shared: embedlog.Log, topic: str, injected: Faults
) -> None:
    async def run() -> None:
        options: Any = {
            "group_id": topic,
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
        }
        async with shared.async_producer(retries=0, on_delivery_error="log") as producer:
            with injected.append_fails(topic), pytest.raises(embedlog.StorageError):
                await (await producer.send(topic, b"lost"))
            with injected.append_held(topic) as held:
                future = await producer.send(topic, b"v")
                await asyncio.to_thread(held.reached)
                held.release()
                await future
        async with shared.async_consumer(topic, **options) as consumer:
            assert [each.value for each in await consumer.poll(WAIT_S)] == [b"v"]
            with injected.commit_fails(topic), pytest.raises(embedlog.StorageError):
                await consumer.commit()
            injected.expire(await consumer.group_metadata())
            with pytest.raises(embedlog.CommitFailedError):
                await consumer.commit()

    asyncio.run(run())


# ---- commits ---------------------------------------------------------------------------------------------------------


def test_a_failed_commit_of_offsets_writes_nothing(
    shared: embedlog.Log, topic: str, injected: Faults
) -> None:
    with shared.consumer(group_id=topic, enable_auto_commit=False) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        given = embedlog.CommitFailedError("the group has moved on")
        with (
            injected.commit_fails(topic, given),
            pytest.raises(embedlog.CommitFailedError, match="moved on"),
        ):
            consumer.commit({TopicPartition(topic, 0): 7})
        called: list[Any] = []
        with injected.commit_fails(topic, times=None):
            consumer.commit_async(
                {TopicPartition(topic, 0): 8}, lambda offsets, problem: called.append(problem)
            )
            until(lambda: bool(called), lambda: consumer.poll(0.01))
        assert isinstance(called[0], embedlog.StorageError)
        assert consumer.committed(TopicPartition(topic, 0)) == {TopicPartition(topic, 0): None}
        consumer.commit({TopicPartition(topic, 0): 9})
    assert_committed(shared, topic, {(topic, 0): 9})


def test_a_failed_commit_of_a_transaction_may_be_repeated(
    shared: embedlog.Log, topic: str, injected: Faults
) -> None:
    with shared.producer(transactional_id=topic) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"v")
        with injected.commit_fails(topic), pytest.raises(embedlog.StorageError):
            producer.commit_transaction()
        assert records(shared, topic) == []
        producer.commit_transaction()
    assert_records(shared, topic, ["v"])


def test_offsets_of_a_transaction_fail_as_commits_of_their_group(
    shared: embedlog.Log, topic: str, injected: Faults
) -> None:
    with shared.producer(transactional_id=topic) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        with injected.commit_fails(f"{topic}-group"), pytest.raises(embedlog.StorageError):
            producer.send_offsets_to_transaction(
                {TopicPartition(topic, 0): 1}, embedlog.GroupMetadata(f"{topic}-group")
            )
        producer.abort_transaction()


# ---- members and producers -------------------------------------------------------------------------------------------


def test_a_fenced_producer_cannot_commit(
    shared: embedlog.Log, topic: str, injected: Faults
) -> None:
    with shared.producer(transactional_id=topic) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"v").result(WAIT_S)
        injected.fence(topic)
        with pytest.raises(embedlog.FencedError):
            producer.commit_transaction()
    assert records(shared, topic) == []


@pytest.fixture
def member(shared: embedlog.Log, topic: str) -> Iterator[tuple[Any, list[str]]]:
    """A consumer with both partitions, and the list of the later calls of its listeners."""
    calls: list[str] = []
    named = {
        name: lambda _, name=name: calls.append(name)
        for name in ("on_assigned", "on_revoked", "on_lost")
    }
    with shared.consumer(group_id=topic, enable_auto_commit=False) as consumer:
        consumer.subscribe([topic], **named)
        until(lambda: len(consumer.assignment()) == 2, lambda: consumer.poll(0.1))
        calls.clear()
        yield consumer, calls


def test_a_rebalance_calls_the_listeners(
    topic: str, injected: Faults, member: tuple[Any, list[str]]
) -> None:
    consumer, calls = member
    generation = consumer.group_metadata().generation
    injected.rebalance(topic)
    until(lambda: consumer.group_metadata().generation > generation, lambda: consumer.poll(0.1))
    until(lambda: "on_assigned" in calls, lambda: consumer.poll(0.1))
    assert calls[0] == "on_revoked"
    assert len(consumer.assignment()) == 2


def test_another_member_takes_its_share_and_leaves(
    topic: str, injected: Faults, member: tuple[Any, list[str]]
) -> None:
    consumer, _ = member
    with injected.other_member(topic, topic):
        until(lambda: len(consumer.assignment()) == 1, lambda: consumer.poll(0.1))
    until(lambda: len(consumer.assignment()) == 2, lambda: consumer.poll(0.1))


def test_an_expired_member_loses_its_partitions(
    topic: str, injected: Faults, member: tuple[Any, list[str]]
) -> None:
    consumer, calls = member
    injected.expire(consumer)
    with pytest.raises(embedlog.CommitFailedError):
        consumer.commit({TopicPartition(topic, 0): 0})
    until(lambda: "on_assigned" in calls, lambda: consumer.poll(0.1))
    assert calls == ["on_lost", "on_assigned"]
    consumer.commit({TopicPartition(topic, 0): 0})


def test_requests_for_no_member_are_errors(
    shared: embedlog.Log, topic: str, injected: Faults
) -> None:
    with shared.consumer(group_id=topic) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        with pytest.raises(embedlog.StateError, match="no member"):
            injected.expire(consumer)
        consumer.commit({TopicPartition(topic, 0): 0})
    with pytest.raises(embedlog.StateError, match="no members that read"):
        injected.rebalance(topic)


# ---- the end of the process ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("at", "expected"), [("before append", []), ("after append", [b"1"])])
def test_a_process_is_killed_at_an_append(
    shared: embedlog.Log, topic: str, injected: Faults, at: Any, expected: Any
) -> None:
    def work(log: embedlog.Log) -> None:
        with log.producer() as producer:
            producer.send(topic, b"1", partition=0).result(WAIT_S)

    injected.killed(work, at, topic)
    assert values(shared, topic) == expected
    # the append lock, and a torn append of the child, are no obstacle
    with shared.producer() as producer:
        producer.send(topic, b"2", partition=0).result(WAIT_S)
    assert values(shared, topic) == [*expected, b"2"]


def test_the_second_append_can_be_the_last(
    shared: embedlog.Log, topic: str, injected: Faults
) -> None:
    def work(log: embedlog.Log) -> None:
        with log.producer() as producer:
            for number in range(3):
                producer.send(topic, b"%d" % number, partition=0).result(WAIT_S)

    injected.killed(work, "before append", topic, nth=2)
    assert values(shared, topic) == [b"0"]


@pytest.mark.parametrize(("at", "expected"), [("before commit", None), ("after commit", 5)])
def test_a_process_is_killed_at_a_commit_of_offsets(
    shared: embedlog.Log, topic: str, injected: Faults, at: Any, expected: Any
) -> None:
    def work(log: embedlog.Log) -> None:
        with log.consumer(group_id=topic) as consumer:
            consumer.assign([TopicPartition(topic, 0)])
            consumer.commit({TopicPartition(topic, 0): 5})

    injected.killed(work, at, topic)
    with shared.consumer(group_id=topic) as consumer:
        found = consumer.committed(TopicPartition(topic, 0))[TopicPartition(topic, 0)]
    assert (found and found.offset) == expected


@pytest.mark.parametrize(("at", "expected"), [("before commit", []), ("after commit", [b"v"])])
def test_a_process_is_killed_at_a_commit_of_a_transaction(
    shared: embedlog.Log, topic: str, injected: Faults, at: Any, expected: Any
) -> None:
    def work(log: embedlog.Log) -> None:
        with log.producer(transactional_id=topic) as producer:
            producer.init_transactions()
            with producer.transaction():
                producer.send(topic, b"v")

    injected.killed(work, at, topic)
    injected.fence(topic)  # the next start of the program ends the transaction
    assert values(shared, topic) == expected


@pytest.mark.parametrize(
    ("at", "undecided"), [("before commit", set()), ("after commit", {("__consumer_offsets", 0)})]
)
def test_a_process_is_killed_at_offsets_of_a_transaction(
    shared: embedlog.Log, topic: str, injected: Faults, at: Any, undecided: set[Any]
) -> None:
    def work(log: embedlog.Log) -> None:
        with log.producer(transactional_id=topic) as producer:
            producer.init_transactions()
            with producer.transaction():
                producer.send_offsets_to_transaction(
                    {TopicPartition(topic, 0): 5}, embedlog.GroupMetadata(f"{topic}-group")
                )

    injected.killed(work, at, f"{topic}-group")
    found = {
        (each.topic, each.partition)
        for each in shared.open_transactions()
        if each.transactional_id == topic
    }
    assert found == undecided  # in the log, and not committed
    injected.fence(topic)
    with shared.consumer(group_id=f"{topic}-group") as consumer:
        assert consumer.committed(TopicPartition(topic, 0)) == {TopicPartition(topic, 0): None}


def test_a_function_that_is_not_killed_fails_the_test(injected: Faults) -> None:
    def fails(log: embedlog.Log) -> None:
        raise ZeroDivisionError("in the child")

    with pytest.raises(AssertionError, match="ZeroDivisionError: in the child"):
        injected.killed(fails, "before append")
    with pytest.raises(AssertionError, match="without reaching this point: it returned"):
        injected.killed(lambda log: None, "after commit", "g")
    with pytest.raises(AssertionError, match=r"did not end within 0.1 s"):
        injected.killed(lambda log: threading.Event().wait(WAIT_S), "before commit", timeout=0.1)


# ---- the blocks ------------------------------------------------------------------------------------------------------


def test_a_fault_that_nothing_reached_fails_the_test(
    shared: embedlog.Log, topic: str, injected: Faults
) -> None:
    with (
        pytest.raises(AssertionError, match="no append was made inside the block"),
        injected.append_fails(topic),
    ):
        pass
    with (
        injected.append_fails(topic, required=False) as fault,
        pytest.raises(AssertionError, match=r"no append reached it"),
    ):
        fault.reached(0.01)
    with pytest.raises(KeyError), injected.disk_full():
        raise KeyError  # the first error counts
    other = faults(shared).append_fails()
    with (
        injected.append_slow(1, required=False),
        pytest.raises(embedlog.StateError, match="already"),
        other,
    ):
        pass
    with shared.producer() as producer:
        producer.send(topic, b"v").result(WAIT_S)


def test_the_log_may_be_closed_inside_the_block() -> None:
    with open_log("t") as log, faults(log).disk_full(required=False):
        log.close()
