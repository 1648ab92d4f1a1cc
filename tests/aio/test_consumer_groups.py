"""Groups in event loops: the same membership, listeners that are coroutines, and the state after a
cancellation.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog import TopicPartition
from embedlog.aio.consumer import AsyncConsumer
from embedlog.errors import ClosedError, CommitFailedError, ListenerError
from tests.support.event_loops import run

SHORT = {"group.min.session.timeout.ms": 100, "housekeeping": False}
MEMBER = {"group_id": "g", "auto_offset_reset": "earliest", "session_timeout_ms": 10_000}


@pytest.fixture
def log(tmp_path: Path) -> Iterator[embedlog.Log]:
    with embedlog.open(tmp_path / "log", config=SHORT) as opened:
        opened.create_topic("t", 2)
        yield opened


def send(log: embedlog.Log, count: int) -> None:
    with log.producer() as producer:
        for number in range(count):
            producer.send("t", b"%d" % number, partition=number % 2)


async def shared(*members: AsyncConsumer) -> None:
    """Until two members share two partitions."""
    async with asyncio.timeout(30):
        while [len(member.assignment()) for member in members] != [1, 1]:
            await asyncio.gather(*(member.poll(0.02) for member in members))


def test_tasks_are_members_like_any_other(log: embedlog.Log) -> None:
    send(log, 100)

    async def main() -> None:
        async with (
            log.async_consumer("t", **MEMBER) as one,
            log.async_consumer("t", **MEMBER) as other,
        ):
            await shared(one, other)
            assert not one.assignment() & other.assignment()
            await one.close()
            async with asyncio.timeout(30):
                while len(other.assignment()) < 2:
                    await other.poll(0.02)
            metadata = await other.group_metadata()
            assert (metadata.group_id, len(metadata.member_id) > 8) == ("g", True)

    run(main())
    assert sum(place.offset for place in log.group_offsets("g").values()) == 100


def test_iteration_commits_what_it_is_through_with_and_misses_nothing(log: embedlog.Log) -> None:
    send(log, 1000)

    async def main(count: int) -> list[tuple[int, int]]:
        seen = []
        async with log.async_consumer("t", **MEMBER) as consumer:
            async for record in consumer:
                seen.append((record.partition, record.offset))
                if len(seen) == count:
                    break
        return seen

    first = run(main(300))
    second = run(main(700))
    assert sorted(first + second) == sorted((number % 2, number // 2) for number in range(1000))


def test_iteration_stops_for_the_group_when_that_is_due(
    log: embedlog.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(log, 400)

    async def main() -> list[bool]:
        due = []
        async with log.async_consumer("t", **MEMBER) as consumer:
            async for _ in consumer:
                group: Any = consumer._sync._group  # type: ignore[union-attr]
                due.append(group.until_ns == 0)
                if len(due) == 50:
                    group.until_ns = 0
                    monkeypatch.setattr("embedlog.consumer.collector.monotonic_ns", lambda: 1 << 62)
                if len(due) == 60:
                    return due
        return due

    assert not any(run(main()))


def test_listeners_that_are_functions_run_on_the_consumers_thread(log: embedlog.Log) -> None:
    threads: list[int] = []

    async def main() -> None:
        async with log.async_consumer(**MEMBER) as consumer:
            await consumer.subscribe(
                ["t"], on_assigned=lambda tps: threads.append(threading.get_ident())
            )
            await consumer.poll(0.1)

    run(main())
    assert len(threads) == 1
    assert threads[0] != threading.get_ident()


def test_listeners_that_are_coroutines_run_in_the_loop_and_use_the_consumer(
    log: embedlog.Log,
) -> None:
    send(log, 20)
    told: list[Any] = []

    async def main() -> list[int]:
        consumer = log.async_consumer(enable_auto_commit=False, **MEMBER)

        async def assigned(tps: list[TopicPartition]) -> None:
            told.append((threading.get_ident() == threading.main_thread().ident, len(tps)))
            for tp in tps:
                assert await consumer.position(tp) == 0
                await consumer.seek(tp, 7)

        async def revoked(tps: list[TopicPartition]) -> None:
            await consumer.commit()
            told.append("revoked")

        async with consumer:
            await consumer.subscribe(["t"], on_assigned=assigned, on_revoked=revoked)
            found: list[int] = []
            async with asyncio.timeout(30):
                while len(found) < 6:
                    found += [record.offset for record in await consumer.poll(0.05)]
        return found

    assert sorted(run(main())) == [7, 7, 8, 8, 9, 9]
    assert told == [(True, 2), "revoked"]
    assert {place.offset for place in log.group_offsets("g").values()} == {10}


@pytest.mark.parametrize("end", ["close", "stop"])
def test_a_coroutine_may_close_the_consumer(log: embedlog.Log, end: str) -> None:
    """The consumer's only thread waits for the listener, and executes the close for it."""
    done: list[str] = []

    async def main() -> None:
        consumer = log.async_consumer(**MEMBER)

        async def assigned(tps: list[TopicPartition]) -> None:
            await getattr(consumer, end)()
            done.append("closed")

        await consumer.subscribe(["t"], on_assigned=assigned)
        async with asyncio.timeout(30):
            with pytest.raises(ClosedError):
                await consumer.poll(None)
            await consumer.close()

    run(main())
    assert done == ["closed"]
    assert not log.describe_group("g").members


def test_a_coroutine_may_commit_and_close_at_the_revocation(log: embedlog.Log) -> None:
    done: list[str] = []

    async def main() -> None:
        consumer = log.async_consumer(enable_auto_commit=False, **MEMBER)

        async def revoked(tps: list[TopicPartition]) -> None:
            await consumer.commit({tps[0]: 1})
            await consumer.close()
            done.append("closed")

        await consumer.subscribe(["t"], on_revoked=revoked)
        async with asyncio.timeout(30):
            await consumer.poll(0.1)
            assert consumer.assignment()
            await consumer.unsubscribe()

    run(main())
    assert done == ["closed"]
    assert sum(place.offset for place in log.group_offsets("g").values()) == 1


def test_a_coroutine_that_raises_is_a_listener_that_failed(log: embedlog.Log) -> None:
    async def fail(tps: list[TopicPartition]) -> None:
        raise ValueError("of the user's")

    async def main() -> None:
        async with log.async_consumer(**MEMBER) as consumer:
            await consumer.subscribe(["t"], on_assigned=fail)
            with pytest.raises(ListenerError, match="of the user's"):
                await consumer.poll(0.1)
            assert len(consumer.assignment()) == 2

    run(main())


def test_commits_of_tasks(log: embedlog.Log) -> None:
    told: list[Any] = []
    tp = TopicPartition("t", 0)

    async def main() -> None:
        async with log.async_consumer("t", enable_auto_commit=False, **MEMBER) as consumer:
            with pytest.raises(CommitFailedError):
                await consumer.commit({tp: 1})
            await consumer.poll(0.05)
            await consumer.commit({tp: 1})
            await consumer.commit_async(
                {tp: 2}, lambda offsets, error: told.append((offsets[tp].offset, error))
            )
            await consumer.poll(0.0)
            assert (await consumer.committed(tp))[tp].offset == 2  # type: ignore[union-attr]
            await consumer.enforce_rebalance()
            await consumer.poll(0.05)
            assert (await consumer.group_metadata()).generation == 2
            assert (await consumer.metrics())["commit-total"] == 2

    run(main())
    assert told == [(2, None)]


def test_a_cancelled_poll_in_a_group_loses_nothing(log: embedlog.Log) -> None:
    send(log, 200)

    async def main() -> set[tuple[int, int]]:
        seen: set[tuple[int, int]] = set()
        async with log.async_consumer("t", max_poll_records=7, **MEMBER) as consumer:
            async with asyncio.timeout(30):
                while len(seen) < 200:
                    task = asyncio.create_task(consumer.poll(0.05))
                    await asyncio.sleep(0)
                    if len(seen) % 3 == 0:
                        task.cancel()
                    try:
                        seen |= {(record.partition, record.offset) for record in await task}
                    except asyncio.CancelledError:
                        seen |= {
                            (record.partition, record.offset)
                            for record in await consumer.poll(0.05)
                        }
        return seen

    assert len(run(main())) == 200


def test_tasks_that_a_coroutine_starts_use_the_consumer(log: embedlog.Log) -> None:
    """`gather`, `wait_for` and a group of tasks, also nested; a task that outlives the listener is
    one like others.
    """
    send(log, 20)
    places: list[object] = []
    late: list[asyncio.Task[None]] = []

    async def main() -> None:
        consumer = log.async_consumer(**MEMBER)
        over = asyncio.Event()

        async def continues() -> None:
            await over.wait()
            places.append(await consumer.position(min(consumer.assignment())))

        async def assigned(tps: list[TopicPartition]) -> None:
            places.extend(await asyncio.gather(*[consumer.position(tp) for tp in tps]))
            places.append(await asyncio.wait_for(consumer.position(tps[0]), 20))

            async def nested() -> None:
                async with asyncio.TaskGroup() as group:
                    group.create_task(consumer.seek(tps[0], 9))

            await asyncio.create_task(nested())
            late.append(asyncio.create_task(continues()))

        async with asyncio.timeout(30), consumer:
            await consumer.subscribe(["t"], on_assigned=assigned)
            while not late:
                await consumer.poll(0.05)
            over.set()
            await late[0]

    run(main())
    assert places[:3] == [0, 0, 0]
    assert places[3] in (9, 10), "the poll may return the record at 9"
