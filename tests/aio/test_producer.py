"""The asyncio producer: nothing blocks the loop, a cancellation loses no record, sends that wait
for memory keep their order.
"""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import random
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog.aio.producer import AsyncProducer
from embedlog.errors import (
    BufferExhaustedError,
    ClosedError,
    ConfigError,
    DeadlineError,
    DeliveryError,
    RecordTooLargeError,
    SerializationError,
    UnknownTopicOrPartitionError,
)
from tests.support import producer_helpers
from tests.support.event_loops import (
    Slow,
    Ticker,
    count_calls_from_threads,
    run,
    turns_until,
    while_files_are_slow,
)
from tests.support.producer_helpers import LONG_MS, Stuck, records, values

log = producer_helpers.log
stuck = producer_helpers.stuck


async def settled(awaitables: list[Awaitable[Any]]) -> list[Any]:
    return [await each for each in awaitables]


# ---- sending -----------------------------------------------------------------------------------------------------------


def test_records_of_a_task_keep_their_order(log: embedlog.Log) -> None:
    async def main() -> None:
        async with log.async_producer() as producer:
            futures = [await producer.send("one", b"%d" % number) for number in range(2000)]
            assert [(await future).offset for future in futures] == list(range(2000))

    run(main())
    assert values(log) == [b"%d" % number for number in range(2000)]


def test_all_that_a_record_has_arrives(log: embedlog.Log) -> None:
    async def main() -> Any:
        async with log.async_producer() as producer:
            future = await producer.send(
                "t", b"v", b"k", partition=3, timestamp_ms=1_700_000_000_000, headers=[("h", b"x")]
            )
            return await future

    assert run(main())[:3] == ("t", 3, 0)
    (record,) = records(log, "t")
    assert (record.key, record.value, record.timestamp_ms, record.headers) == (
        b"k",
        b"v",
        1_700_000_000_000,
        (("h", b"x"),),
    )


def test_futures_of_many_tasks_can_be_gathered(log: embedlog.Log) -> None:
    async def one(producer: AsyncProducer, number: int) -> int:
        offset: int = (await (await producer.send("one", b"%d" % number))).offset
        return offset

    async def main() -> None:
        async with log.async_producer(
            linger_ms=LONG_MS, delivery_timeout_ms=10 * LONG_MS
        ) as producer:
            await producer.send_batch("one", [])
            assert sorted(
                await asyncio.gather(*(one(producer, number) for number in range(300)))
            ) == list(range(300))
            assert (await producer.metrics())["batch-total"] < 10  # one turn, one batch

    run(main())


def test_a_batch_of_columns(log: embedlog.Log) -> None:
    async def main() -> Any:
        async with log.async_producer() as producer:
            return await (await producer.send_batch("one", [b"a", b"b"], keys=[b"k", b"l"]))

    assert run(main()) == [("one", 0, 0, 2)]
    assert values(log) == [b"a", b"b"]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda producer: producer.send(5, b"v"), TypeError),
        (lambda producer: producer.send("one", "text"), TypeError),
        (lambda producer: producer.send("one", b"v", partition=-1), UnknownTopicOrPartitionError),
        (lambda producer: producer.send("one", b"v", timestamp_ms="now"), TypeError),
        (lambda producer: producer.send_batch("one", 7), TypeError),
    ],
)
def test_what_is_wrong_with_the_call_raises(
    log: embedlog.Log,
    call: Callable[[AsyncProducer], Coroutine[Any, Any, Any]],
    error: type[Exception],
) -> None:
    async def main() -> None:
        async with log.async_producer() as producer:
            await producer.send("one", b"v")
            with pytest.raises(error):
                await call(producer)

    run(main())


@pytest.mark.parametrize(
    ("topic", "value", "error"),
    [
        ("unknown", b"v", UnknownTopicOrPartitionError),
        ("one", b"v" * 2_000_000, RecordTooLargeError),
    ],
)
def test_what_is_wrong_with_the_record_fails_the_future(
    log: embedlog.Log, topic: str, value: bytes, error: type[Exception]
) -> None:
    async def main() -> None:
        async with log.async_producer() as producer:
            future = await producer.send(topic, value)
            with pytest.raises(error):
                await future

    run(main())


def test_serializers_and_partitioners_are_asked(log: embedlog.Log) -> None:
    asked: list[int] = []

    def partitioner(key: bytes | None, every: list[int], available: list[int]) -> int:
        asked.append(threading.get_ident())
        return 2

    async def main() -> None:
        async with log.async_producer(
            value_serializer=str.encode, partitioner=partitioner
        ) as producer:
            sent = await settled(
                [await producer.send("t", f"text {number}") for number in range(3)]
            )
            assert {metadata.partition for metadata in sent} == {2}
            with pytest.raises(SerializationError):
                await producer.send("t", 5)

    run(main())
    assert values(log, "t") == [b"text 0", b"text 1", b"text 2"]
    assert set(asked) == {threading.get_ident()}


def test_new_partitions_and_new_topics_are_noticed(log: embedlog.Log) -> None:
    async def main() -> None:
        async with log.async_producer() as producer:
            await (await producer.send("one", b"v"))
            await asyncio.to_thread(log.create_partitions, "one", 3)
            assert await producer.partitions_for("one") == {0, 1, 2}
            assert (await (await producer.send("one", b"v", partition=2))).partition == 2
            await asyncio.to_thread(log.create_topic, "late")
            assert (await (await producer.send("late", b"v"))).offset == 0

    run(main())


def test_settings_are_checked_before_anything_is_awaited(log: embedlog.Log) -> None:
    with pytest.raises(ConfigError, match="linger"):
        log.async_producer(linger_ms=-1)


# ---- the loop is never blocked -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kinds", "call"),
    [
        (["stat"], lambda producer: producer.send("t", b"v")),
        (["pwrite"], lambda producer: producer.flush()),
        (["stat"], lambda producer: producer.partitions_for("t")),
        pytest.param(
            ["stat", "pwrite"],
            lambda producer: producer.send_batch("one", [b"v"]),
            marks=pytest.mark.slow,
        ),
        (["pwrite"], lambda producer: producer.close()),
    ],
    ids=["send", "flush", "partitions_for", "send_batch", "close"],
)
def test_slow_files_do_not_stop_the_loop(
    tmp_path: Path, kinds: list[str], call: Callable[[AsyncProducer], Coroutine[Any, Any, Any]]
) -> None:
    async def attempt(path: Path, slow: Slow) -> None:
        with embedlog.open(path, config={"housekeeping": False}) as log:
            log.create_topic("one")
            log.create_topic("t")
            # the page shows no change: each lookup of topics reads their file
            log._engine.registry.word = lambda: 1
            async with log.async_producer(
                linger_ms=LONG_MS, delivery_timeout_ms=10 * LONG_MS
            ) as producer:
                await producer.send("one", b"v")
                async with slow:
                    found = await call(producer)
                    if isinstance(found, embedlog.Future):
                        await found

    while_files_are_slow(tmp_path, kinds, attempt)


def test_a_task_that_only_sends_lets_others_run(log: embedlog.Log) -> None:
    async def main() -> None:
        async with log.async_producer() as producer:
            await producer.send("one", b"v")
            with Ticker() as ticker:
                for _ in range(20_000):
                    await producer.send("one", b"v")
                await ticker.stop()
            assert ticker.count >= 30

    run(main())


def test_fates_cross_into_the_loop_batch_by_batch(log: embedlog.Log) -> None:
    calls: list[object] = []

    async def main() -> None:
        async with log.async_producer() as producer:
            await producer.send("one", b"v")
            count_calls_from_threads(calls)
            futures = [await producer.send("one", b"%0100d" % number) for number in range(20_000)]
            await settled(futures)

    run(main())
    assert len(calls) < 500


# ---- memory of the buffer ---------------------------------------------------------------------------------------------

SMALL = {"buffer_memory": 20_000, "batch_size": 1000, "linger_ms": 0, "max_request_size": 10_000}


def test_sends_wait_for_room_in_the_order_of_coming(log: embedlog.Log, stuck: Stuck) -> None:
    async def main() -> None:
        async with log.async_producer(**SMALL) as producer:
            order: list[int] = []
            await producer.send_batch("one", [])  # it has looked the topic up

            async def one(number: int) -> None:
                await producer.send("one", b"%0500d" % number)
                order.append(number)

            tasks = [asyncio.create_task(one(number)) for number in range(100)]
            await turns_until(lambda: stuck.reached.is_set() and len(order) >= 10)
            for _ in range(50):
                await asyncio.sleep(0)
            assert len(order) < 60
            stuck.go.set()
            await asyncio.gather(*tasks)
            assert order == list(range(100))

    run(main())
    assert [int(value) for value in values(log)] == list(range(100))


def test_a_send_that_is_cancelled_took_nothing_and_those_behind_it_get_their_turn(
    log: embedlog.Log, stuck: Stuck
) -> None:
    async def main() -> int:
        async with log.async_producer(**SMALL) as producer:
            await producer.send_batch("one", [])
            tasks = [
                asyncio.create_task(producer.send("one", b"%0500d" % number))
                for number in range(100)
            ]
            await turns_until(lambda: stuck.reached.is_set() and len(producer._waiting) > 20)
            taken = [task.done() for task in tasks].count(True)
            for task in tasks[taken : taken + 5]:  # the first of them has a thread waiting for it
                task.cancel()
            await asyncio.gather(*tasks[taken : taken + 5], return_exceptions=True)
            assert all(task.cancelled() for task in tasks[taken : taken + 5])
            stuck.go.set()
            await asyncio.gather(*tasks, return_exceptions=True)
            return taken

    taken = run(main())
    assert [int(value) for value in values(log)] == [*range(taken), *range(taken + 5, 100)]


def test_a_send_cancelled_anywhere_was_taken_if_and_only_if_it_returned(
    log: embedlog.Log, rng: random.Random
) -> None:
    async def main() -> list[int]:
        async with log.async_producer(**SMALL) as producer:
            await producer.send_batch("one", [])
            tasks = [
                asyncio.create_task(producer.send("one", b"%0500d" % number))
                for number in range(2000)
            ]
            while not all(task.done() for task in tasks):
                rng.choice(tasks).cancel()
                await asyncio.sleep(0 if rng.random() < 0.9 else 0.0005)
            return [number for number, task in enumerate(tasks) if not task.cancelled()]

    taken = run(main())
    assert 0 < len(taken) < 2000
    assert sorted(int(value) for value in values(log)) == taken


def test_no_room_for_too_long_fails_the_future(log: embedlog.Log, stuck: Stuck) -> None:
    async def main() -> None:
        async with log.async_producer(**SMALL, max_block_ms=100) as producer:
            futures = await asyncio.gather(
                *(producer.send("one", b"%0500d" % number) for number in range(50))
            )
            stuck.go.set()
            results = await asyncio.gather(*futures, return_exceptions=True)
            exhausted = [result for result in results if isinstance(result, BufferExhaustedError)]
            assert 5 < len(exhausted) < 45
            assert all(
                result.offset >= 0
                for result in results
                if not isinstance(result, BufferExhaustedError)
            )

    began = time.monotonic()
    run(main())
    assert time.monotonic() - began < 5  # all of them waited at once, not one after the other


def test_closing_ends_those_who_wait_for_room(log: embedlog.Log, stuck: Stuck) -> None:
    async def main() -> None:
        producer = log.async_producer(**SMALL)
        tasks = [
            asyncio.create_task(producer.send("one", b"%0500d" % number)) for number in range(100)
        ]
        await turns_until(lambda: stuck.reached.is_set() and len(producer._waiting) > 20)
        closing = asyncio.create_task(producer.close(0.05))
        results = await asyncio.gather(*tasks, return_exceptions=True)
        # which ones is not defined: tasks overtake
        assert sum(isinstance(result, ClosedError) for result in results) > 20
        # of those that had a place, and whose futures their tasks have not seen yet
        with contextlib.suppress(DeliveryError):
            await closing
        stuck.go.set()

    run(main())


# ---- cancelling the rest -----------------------------------------------------------------------------------------------


def test_a_cancelled_flush_sends_all_the_same(log: embedlog.Log, stuck: Stuck) -> None:
    async def main() -> None:
        async with log.async_producer(
            linger_ms=LONG_MS, delivery_timeout_ms=10 * LONG_MS
        ) as producer:
            future = await producer.send("one", b"v")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(producer.flush(), 0.05)
            with pytest.raises(DeadlineError):
                await producer.flush(0.05)
            stuck.go.set()
            assert (await future).offset == 0
            await producer.flush()

    run(main())


def test_a_cancelled_batch_says_whether_it_goes_its_way(log: embedlog.Log, stuck: Stuck) -> None:
    async def main() -> None:
        async with log.async_producer(buffer_memory=20_000) as producer:
            rows = [b"%01000d" % number for number in range(100)]
            # one is in, four threads wait
            tasks = [asyncio.create_task(producer.send_batch("one", rows)) for _ in range(6)]
            await turns_until(
                lambda: producer._sync is not None and producer._sync._rows.waiting == 4
            )
            notes = []
            for task in [task for task in tasks if not task.done()]:
                task.cancel()
                with pytest.raises(asyncio.CancelledError) as caught:
                    await task
                notes += caught.value.__notes__
            stuck.go.set()
            assert (
                sorted(notes)
                == ["send_batch to one: nothing was accepted"]
                + ["send_batch to one: the records are sent"] * 4
            )

    run(main())
    assert len(values(log)) == 500


def test_cancelling_who_awaits_a_future_harms_no_other(log: embedlog.Log, stuck: Stuck) -> None:
    async def main() -> None:
        async with log.async_producer() as producer:
            future = await producer.send("one", b"v")

            async def wait() -> int:
                return (await future).offset  # type: ignore[no-any-return]

            first = asyncio.create_task(wait())
            second = asyncio.create_task(wait())
            await turns_until(stuck.reached.is_set)
            first.cancel()
            stuck.go.set()
            assert await second == 0
            assert first.cancelled()

    run(main())


# ---- life --------------------------------------------------------------------------------------------------------------


def test_a_closed_one_refuses(log: embedlog.Log) -> None:
    async def main() -> None:
        producer = log.async_producer()
        assert "not started" in repr(producer)
        async with producer:
            await producer.send("one", b"v")
        await producer.close()
        assert "closed" in repr(producer)
        for call in (
            producer.send("one", b"v"),
            producer.flush(),
            producer.send_batch("one", []),
            producer.__aenter__(),
        ):
            with pytest.raises(ClosedError):
                await call

    run(main())
    assert values(log) == [b"v"]


def test_closing_the_log_closes_it(log: embedlog.Log) -> None:
    async def main() -> None:
        async with log.async_producer(
            linger_ms=LONG_MS, delivery_timeout_ms=10 * LONG_MS
        ) as producer:
            future = await producer.send("one", b"v")
            await asyncio.to_thread(log.close)
            assert (await future).offset == 0
            with pytest.raises(ClosedError):
                await producer.send("one", b"v")

    run(main())


def test_one_producer_in_several_loops(log: embedlog.Log) -> None:
    producer = log.async_producer()

    async def main() -> int:
        return (await (await producer.send("one", b"v"))).offset  # type: ignore[no-any-return]

    assert [run(main()) for _ in range(3)] == [0, 1, 2]
    run(producer.close())


def test_a_loop_closed_while_its_task_waits_for_room_leaves_the_line_usable(
    log: embedlog.Log, stuck: Stuck
) -> None:
    producer = log.async_producer(**SMALL)

    async def fill() -> None:
        tasks = [
            asyncio.create_task(producer.send("one", b"%0500d" % number)) for number in range(100)
        ]
        await turns_until(lambda: len(producer._waiting) > 20)
        assert tasks

    run(fill())  # cancels the remaining ones
    assert not producer._waiting
    stuck.go.set()

    async def main() -> None:
        async with producer:
            await (await producer.send("one", b"last"))

    run(main())
    assert values(log)[-1] == b"last"


def test_pickling_is_refused_with_the_way_to_do_it(log: embedlog.Log) -> None:
    with pytest.raises(TypeError, match="open the log in the process"):
        pickle.dumps(log.async_producer())


def test_a_close_before_the_first_call_ends_lets_it_fail(log: embedlog.Log) -> None:
    """A call that meets the close is refused: it waited without limit for a thread that had
    ended.
    """

    async def main() -> None:
        producer = log.async_producer()
        begun = (producer.flush(), producer.partitions_for("one"), producer.send("one", b"v"))
        calls = [asyncio.create_task(call) for call in begun]
        await asyncio.sleep(0)
        async with asyncio.timeout(20):
            await producer.close()
            for found in await asyncio.gather(*calls, return_exceptions=True):
                assert isinstance(found, ClosedError)

    run(main())
