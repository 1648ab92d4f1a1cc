"""Calls of clients on a set without a leader, or without a majority: each ends within its own
timeout.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog import TopicPartition
from embedlog.errors import (
    DeadlineError,
    LeaderNotAvailableError,
    LockTimeoutError,
    NotEnoughReplicasError,
)
from tests.support.producer_helpers import wait_until

LED = TopicPartition("t", 1)
UNLED = TopicPartition("t", 0)
# a call that waits with the limit of a lock exceeds the bound
TIMEOUT_S = 0.1
LOCK_S = 60.0
BOUND_S = 20.0
AWAY = {"leader": ("d1",), "majority": ("d1", "d3")}


@dataclass
class Clients:
    """Clients that were in use before the directories went away. `t-0` has one replica, on node 1;
    `t-1` has one on node 2.
    """

    root: Path
    log: embedlog.Log
    consumer: embedlog.Consumer[Any, Any]
    member: embedlog.Consumer[Any, Any]
    # commits offsets, and is no member: no rebalance comes between
    assigned: embedlog.Consumer[Any, Any]
    producer: embedlog.Producer[Any, Any]
    owner: embedlog.Producer[Any, Any]

    def move(self, mode: str, *, back: bool = False) -> None:
        for name in AWAY[mode]:
            here = self.root / name
            there = self.root / f"away-{name}"
            there.rename(here) if back else here.rename(there)


def init_in_time(owner: Any) -> None:
    """Its calls last 100 ms at most, which the first one of a log may exceed: it is repeated."""
    until_s = time.monotonic() + 30
    while True:
        try:
            owner.init_transactions()
            return
        except (DeadlineError, LockTimeoutError):
            assert time.monotonic() < until_s


@pytest.fixture
def clients(tmp_path: Path) -> Iterator[Clients]:
    config = {"lock.timeout.ms": int(LOCK_S * 1000), "default.replication.factor": 3}
    brief = {
        "max_block_ms": 100,
        "delivery_timeout_ms": 60_000,
        "linger_ms": 0,
        "on_delivery_error": "log",
    }
    with ExitStack() as stack:
        log = stack.enter_context(
            embedlog.open([tmp_path / f"d{node}" for node in (1, 2, 3)], config=config)
        )
        log.create_topic("t", assignment={0: [1], 1: [2]})
        log.create_topic("u")
        producer = stack.enter_context(log.producer(**brief))
        for number in range(4):
            producer.send("t", b"%d" % number, partition=number % 2).result(20)
        owner = log.producer(transactional_id="x", **brief)
        owner.init_transactions()
        reading = {
            "auto_offset_reset": "earliest",
            "default_api_timeout_ms": 100,
            "enable_auto_commit": False,
        }
        consumer = log.consumer("t", **reading)
        member = log.consumer("t", group_id="g", **reading)
        assert len(polled(member, 4)) == len(polled(consumer, 4)) == 4
        member.commit()
        assigned = log.consumer(group_id="h", **reading)
        assigned.assign([LED])
        assigned.commit({LED: 0})
        yield Clients(tmp_path, log, consumer, member, assigned, producer, owner)
        owner.close(TIMEOUT_S)
        assigned.close(TIMEOUT_S)
        member.close(TIMEOUT_S)


def polled(consumer: embedlog.Consumer[Any, Any], count: int) -> list[bytes]:
    found: list[bytes] = []
    end = time.monotonic() + 30
    while len(found) < count and time.monotonic() < end:
        found += [record.value for record in consumer.poll(0.2)]
    return found


def unavailable(call: Callable[[], object]) -> None:
    """The error names the last thing that was waited for: a leader, a lock of another thread, or
    the ISR of a present leader.
    """
    with pytest.raises((LeaderNotAvailableError, LockTimeoutError, NotEnoughReplicasError)):
        call()


def undecided(on: Clients) -> None:
    """A commit that failed after its append waits for a majority. After one that failed before it
    the earlier offset is there.
    """
    try:
        found = on.assigned.committed(LED)[LED]
    except (LeaderNotAvailableError, LockTimeoutError, NotEnoughReplicasError):
        return
    assert found is not None
    assert found.offset == 0


def late(call: Callable[[], object]) -> None:
    with pytest.raises(DeadlineError):
        call()


def nothing(call: Callable[[], Any]) -> None:
    assert list(call()) == []


async def polled_by_a_task(log: embedlog.Log) -> list[bytes]:
    async with log.async_consumer(
        "t", auto_offset_reset="earliest", default_api_timeout_ms=100
    ) as consumer:
        return [record.value for record in await consumer.poll(TIMEOUT_S)]


CALLS: dict[str, Callable[[Clients], object]] = {
    "poll": lambda on: nothing(lambda: on.consumer.poll(TIMEOUT_S)),
    "poll without a timeout": lambda on: nothing(on.consumer.poll),
    "batches": lambda on: nothing(lambda: on.consumer.batches(TIMEOUT_S)),
    "position": lambda on: on.consumer.position(UNLED),
    "end_offsets": lambda on: unavailable(lambda: on.consumer.end_offsets([UNLED])),
    "beginning_offsets": lambda on: unavailable(lambda: on.consumer.beginning_offsets([UNLED])),
    "offsets_for_times": lambda on: unavailable(lambda: on.consumer.offsets_for_times({UNLED: 0})),
    "current_lag": lambda on: unavailable(lambda: on.consumer.current_lag(UNLED)),
    "poll of a member": lambda on: nothing(lambda: on.member.poll(TIMEOUT_S)),
    "result": lambda on: late(
        lambda: on.producer.send("t", b"late", partition=0).result(TIMEOUT_S)
    ),
    "flush": lambda on: late(lambda: on.producer.flush(TIMEOUT_S)),
    "poll of a task": lambda on: asyncio.run(polled_by_a_task(on.log)),
}
UNDECIDED: dict[str, Callable[[Clients], object]] = {
    "commit": lambda on: unavailable(lambda: on.assigned.commit({LED: 1})),
    "committed": undecided,
}


def is_led(on: Clients) -> bool:
    return on.log._engine.is_led(on.log._engine.partition(*UNLED))


def duration_s(call: Callable[[], object]) -> float:
    began = time.monotonic()
    call()
    return time.monotonic() - began


@pytest.mark.parametrize("mode", [pytest.param("leader", marks=pytest.mark.slow), "majority"])
def test_a_call_ends_within_its_timeout(clients: Clients, mode: str) -> None:
    clients.move(mode)
    calls = CALLS | (UNDECIDED if mode == "majority" else {})
    spent = {name: duration_s(lambda call=call: call(clients)) for name, call in calls.items()}  # type: ignore[misc]
    assert {name: each for name, each in spent.items() if each > BOUND_S} == {}
    clients.move(mode, back=True)
    assert b"late" in polled(clients.consumer, 1), "the same clients continue"
    clients.producer.flush(30)
    clients.producer.send("t", b"led", partition=1).result(30)
    assert {b"led", b"late"} <= set(polled(clients.member, 2))
    assert [record.value for record in clients.log.scan("t", partitions=[0]).records()].count(
        b"late"
    ) == 1


def test_a_partition_without_a_leader_stops_no_other_one(clients: Clients) -> None:
    """A record of the other partition arrives although the call could wait for a minute."""
    clients.move("leader")
    clients.producer.send("t", b"led", partition=1).result(30)
    found: list[list[Any]] = []
    assert duration_s(lambda: found.append(clients.consumer.poll(60))) < BOUND_S
    assert [record.value for record in found[0]] == [b"led"]
    assert clients.consumer.position(UNLED) == 2
    found.clear()
    assert duration_s(lambda: found.append(clients.member.poll(60))) < BOUND_S
    assert [record.value for record in found[0]] == [b"led"]


def test_a_report_waits_for_no_leader(clients: Clients) -> None:
    """`default.api.timeout.ms` is a minute. The partition with a leader has its lag."""
    reader = clients.log.consumer("t", auto_offset_reset="earliest", default_api_timeout_ms=60_000)
    assert len(polled(reader, 4)) == 4
    clients.move("leader")
    clients.producer.send("t", b"late", partition=0)
    found: list[dict[str, Any]] = []

    def reported() -> bool:
        found.append(reader.metrics())
        return found[-1]["partitions"][UNLED]["records-lag"] is None

    assert duration_s(lambda: wait_until(reported, BOUND_S)) < BOUND_S
    assert found[-1]["partitions"][UNLED]["position"] == 2
    assert found[-1]["partitions"][UNLED]["records-lead"] is None
    assert found[-1]["partitions"][LED]["records-lag"] == found[-1]["records-lag-max"] == 0
    clients.move("leader", back=True)
    reader.close()


def test_an_optional_sync_waits_for_no_leader(clients: Clients) -> None:
    """The limit of a lock is a minute. The producer's thread and `log.close()` wait for such a
    sync.
    """
    clients.move("leader")
    late(lambda: clients.producer.send("t", b"late", partition=0).result(TIMEOUT_S))
    wait_until(lambda: not is_led(clients))
    assert duration_s(clients.log._engine.partition("t", 0).flush_if_late) < BOUND_S
    clients.move("leader", back=True)


@pytest.mark.parametrize("transactional", [False, True])
def test_records_of_other_partitions_are_written_while_one_has_no_leader(
    clients: Clients, transactional: bool
) -> None:
    """One attempt could wait for half a minute. Its records are written when the leader is back, in
    order.
    """
    producer = clients.owner if transactional else clients.producer
    if transactional:
        producer.begin_transaction()
    clients.move("leader")
    waiting = [producer.send("t", b"late %d" % number, partition=0) for number in range(3)]
    wait_until(lambda: not is_led(clients), BOUND_S)
    for number in range(3):
        led = producer.send("t", b"led %d" % number, partition=1)
        wait_until(led.done, BOUND_S)
        assert led.exception() is None
    assert not any(each.done() for each in waiting)
    clients.move("leader", back=True)
    assert [each.result(30).offset for each in waiting] == [2, 3, 4]
    if transactional:
        producer._transaction._timeout_s = 30
        producer.commit_transaction()


def test_a_close_without_a_majority_ends_within_its_timeout(clients: Clients) -> None:
    clients.owner.begin_transaction()
    clients.owner.send("t", b"open", partition=1).result(30)
    clients.move("majority")
    refusals = (DeadlineError, LeaderNotAvailableError, LockTimeoutError, NotEnoughReplicasError)
    with pytest.raises(refusals):
        clients.owner.commit_transaction()
    assert duration_s(lambda: clients.member.close(TIMEOUT_S)) < BOUND_S
    assert duration_s(lambda: clients.owner.close(TIMEOUT_S)) < BOUND_S
    assert duration_s(lambda: clients.producer.close(TIMEOUT_S)) < BOUND_S
    assert duration_s(clients.log.close) < BOUND_S
    clients.move("majority", back=True)
    with embedlog.open([clients.root / f"d{node}" for node in (1, 2, 3)]) as log:
        assert len(list(log.scan("t", isolation_level="read_committed").records())) >= 4
        assert log.group_offsets("g")[LED].offset == 2
