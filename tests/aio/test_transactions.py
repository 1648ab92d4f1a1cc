"""Transactions for asyncio: the loop is never blocked; after a cancellation they are committed,
aborted or not begun.
"""

from __future__ import annotations

import asyncio
import random
import threading
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog.aio.producer import AsyncProducer
from embedlog.errors import (
    ClosedError,
    FencedError,
    InvalidTransactionStateError,
    OffsetMismatchError,
)
from tests.support.event_loops import Slow, run, turns_until, while_files_are_slow


def committed(log: embedlog.Log, topic: str = "one") -> list[bytes]:
    return [record.value for record in log.scan(topic, isolation_level="read_committed").records()]


async def send(producer: AsyncProducer, *values: bytes) -> None:
    for value in values:
        await producer.send("one", value)


def test_committed_is_seen_aborted_is_not(log: embedlog.Log) -> None:
    async def main() -> None:
        async with log.async_producer(transactional_id="x") as producer:
            await producer.init_transactions()
            async with producer.transaction() as same:
                assert same is producer
                await send(producer, b"a", b"b")
            with pytest.raises(KeyError):
                async with producer.transaction():
                    await send(producer, b"c")
                    raise KeyError
            await producer.begin_transaction()
            await send(producer, b"d")
            await producer.commit_transaction()
            await producer.begin_transaction()
            await send(producer, b"e")
            await producer.abort_transaction()

    run(main())
    assert committed(log) == [b"a", b"b", b"d"]


def test_a_wrong_state_is_refused(log: embedlog.Log) -> None:
    async def main() -> None:
        async with log.async_producer(transactional_id="x") as producer:
            for call in (
                producer.begin_transaction(),
                producer.send("one", b"v"),
                producer.commit_transaction(),
            ):
                with pytest.raises(InvalidTransactionStateError):
                    await call
            await producer.init_transactions()
            with pytest.raises(InvalidTransactionStateError):
                await producer.send("one", b"v")
            async with producer.transaction():
                with pytest.raises(InvalidTransactionStateError):
                    await producer.begin_transaction()
                with pytest.raises(TypeError, match="group_metadata"):
                    await producer.send_offsets_to_transaction({}, None)
                await producer.send("one", b"v")

    run(main())
    assert committed(log) == [b"v"]


def test_the_error_of_a_condition_leaves_the_block(log: embedlog.Log) -> None:
    async def main() -> None:
        async with log.async_producer(transactional_id="x") as producer:
            await producer.init_transactions()
            with pytest.raises(OffsetMismatchError):
                async with producer.transaction():
                    with pytest.raises(OffsetMismatchError):
                        await (await producer.send("one", b"v", expected_offset=7))
                    await producer.send("one", b"v")

    run(main())


def test_a_fenced_one_hears_of_it(log: embedlog.Log) -> None:
    async def main() -> None:
        async with (
            log.async_producer(transactional_id="x") as old,
            log.async_producer(transactional_id="x") as new,
        ):
            await old.init_transactions()
            await old.begin_transaction()
            await old.send("one", b"zombie")
            await new.init_transactions()
            with pytest.raises(FencedError):
                await old.commit_transaction()
            async with new.transaction():
                await new.send("one", b"v")

    run(main())
    assert committed(log) == [b"v"]


def test_slow_files_do_not_stop_the_loop(tmp_path: Path) -> None:
    async def attempt(path: Path, slow: Slow) -> None:
        with embedlog.open(path, config={"housekeeping": False}) as log:
            log.create_topic("one")
            async with log.async_producer(transactional_id="x") as producer:
                await producer.init_transactions()
                async with slow, producer.transaction():
                    await producer.send("one", b"v")

    while_files_are_slow(tmp_path, ["pwrite"], attempt)


def test_a_task_that_is_cancelled_inside_aborts(log: embedlog.Log) -> None:
    async def main() -> None:
        async with log.async_producer(transactional_id="x") as producer:
            await producer.init_transactions()
            inside = asyncio.Event()

            async def work() -> None:
                async with producer.transaction():
                    await producer.send("one", b"lost")
                    inside.set()
                    await asyncio.Event().wait()

            task = asyncio.create_task(work())
            await inside.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            async with producer.transaction():
                await producer.send("one", b"kept")

    run(main())
    assert committed(log) == [b"kept"]


@pytest.mark.parametrize("taken", [False, True], ids=["before a thread took it", "in the middle"])
def test_a_cancelled_commit_says_whether_it_goes_on(
    log: embedlog.Log, monkeypatch: pytest.MonkeyPatch, taken: bool
) -> None:
    reached = threading.Event()
    go = threading.Event()

    async def main() -> None:
        async with log.async_producer(transactional_id="x") as producer:
            await producer.init_transactions()
            await producer.begin_transaction()
            await producer.send("one", b"v")
            transaction: Any = producer._sync._transaction  # type: ignore[union-attr]
            real = transaction._owner.end

            def end(*arguments: Any) -> None:
                reached.set()
                assert go.wait(30)
                real(*arguments)

            monkeypatch.setattr(transaction._owner, "end", end)
            began = threading.Event()
            blocker = asyncio.create_task(
                producer._steps.run(lambda: began.set() or (taken or go.wait(30)))
            )
            await turns_until(began.is_set)
            task = asyncio.create_task(producer.commit_transaction())
            if taken:
                await turns_until(reached.is_set)
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError) as caught:
                await task
            assert caught.value.__notes__ == [
                f"commit_transaction: it {'continues to its end' if taken else 'did not begin'}"
            ]
            go.set()
            await blocker
            if not taken:
                await producer.commit_transaction()
            await producer.begin_transaction()  # waits for that end
            await producer.abort_transaction()

    run(main())
    assert committed(log) == [b"v"]


def test_transactions_cancelled_anywhere_are_whole_or_not_at_all(
    log: embedlog.Log, rng: random.Random
) -> None:
    async def work(producer: AsyncProducer, number: int) -> None:
        async with producer.transaction():
            for partition in range(3):
                await producer.send("t", b"%d" % number, partition=partition)
                await asyncio.sleep(0)

    async def main() -> tuple[set[int], set[int]]:
        sure = set()
        perhaps = set()
        async with log.async_producer(transactional_id="x") as producer:
            await producer.init_transactions()
            for number in range(60):
                task = asyncio.create_task(work(producer, number))
                for _ in range(rng.randint(0, 12)):
                    await asyncio.sleep(0 if rng.random() < 0.5 else 0.001)
                task.cancel()
                try:
                    await task
                    sure.add(number)
                except asyncio.CancelledError as error:
                    if any(
                        "commit" in note and "continues" in note
                        for note in getattr(error, "__notes__", ())
                    ):
                        perhaps.add(number)
            async with producer.transaction():
                await producer.send("one", b"at the end")
        return sure, perhaps

    sure, perhaps = run(main())
    found = [
        [
            int(record.value)
            for record in log.scan(
                "t", partitions=number, isolation_level="read_committed"
            ).records()
        ]
        for number in range(3)
    ]
    assert found[0] == found[1] == found[2]
    assert sure <= set(found[0]) <= sure | perhaps
    assert len(found[0]) == len(set(found[0]))
    assert committed(log) == [b"at the end"]


def test_an_interrupt_right_after_the_beginning_aborts(
    log: embedlog.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with log.async_producer(transactional_id="x") as producer:
            await producer.init_transactions()
            step = producer._run_step

            async def interrupted(name: str, call: Any) -> None:
                await step(name, call)
                raise KeyboardInterrupt

            with monkeypatch.context() as patch:
                patch.setattr(producer, "_run_step", interrupted)
                with pytest.raises(KeyboardInterrupt):
                    async with producer.transaction():
                        pass
            async with producer.transaction():
                await producer.send("one", b"kept")

    run(main())
    assert committed(log) == [b"kept"]


def test_a_refused_beginning_leaves_the_transaction_of_another_task_open(log: embedlog.Log) -> None:
    async def main() -> None:
        async with log.async_producer(transactional_id="x") as producer:
            await producer.init_transactions()
            async with producer.transaction():
                with pytest.raises(InvalidTransactionStateError):
                    async with producer.transaction():
                        pass
                await producer.send("one", b"kept")

    run(main())
    assert committed(log) == [b"kept"]


@pytest.mark.parametrize("at", ["before", "inside"])
def test_a_producer_that_is_closed_ends_the_block_with_an_error(log: embedlog.Log, at: str) -> None:
    """The threads of a closed producer execute no call any more: the abort waited for them without
    limit.
    """

    async def main() -> None:
        producer = log.async_producer(transactional_id="x")
        await producer.init_transactions()
        async with asyncio.timeout(20):
            if at == "before":
                await producer.close()
            with pytest.raises(ClosedError):
                async with producer.transaction():
                    await producer.send("one", b"lost")
                    await producer.close()

    run(main())
    assert committed(log) == []
