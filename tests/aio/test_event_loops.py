"""Event loops and the asyncio clients: slow files do not block a loop, a log may be used by several
loops, any loop works.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog import TopicPartition
from embedlog.aio.consumer import AsyncConsumer
from tests.support.asyncio_logs import FROM_START, TP, fill, first_of_iteration, numbers, waiting
from tests.support.event_loops import (
    Slow,
    Ticker,
    count_calls_from_threads,
    run,
    while_files_are_slow,
)

# ---- the loop is never blocked -----------------------------------------------------------------------------------------


async def first_of_batches(consumer: AsyncConsumer) -> None:
    async for _ in consumer.batches():
        return


@pytest.mark.parametrize(
    ("kinds", "call"),
    [
        (["pread"], lambda consumer: consumer.poll(5.0)),
        (["pread"], first_of_iteration),
        (["pread"], first_of_batches),
        (["stat"], lambda consumer: consumer.subscribe(["t"])),
        (["pread"], lambda consumer: consumer.offsets_for_times({TP: 5})),
        (["open"], lambda consumer: consumer.end_offsets([TopicPartition("t", 0)])),
    ],
    ids=["poll", "iteration", "batches", "subscribe", "offsets_for_times", "end_offsets"],
)
def test_slow_files_do_not_stop_the_loop(
    tmp_path: Path, kinds: list[str], call: Callable[[AsyncConsumer], Coroutine[Any, Any, Any]]
) -> None:
    async def attempt(path: Path, slow: Slow) -> None:
        with embedlog.open(path, config={"housekeeping": False}) as log:
            log.create_topic("one")
            log.create_topic("t")
            fill(log, 100)
            # the page shows no change: each lookup of topics reads their file
            log._engine.registry.word = lambda: 1
            async with log.async_consumer("one", **FROM_START) as consumer:
                await consumer.metrics()
                async with slow:
                    await call(consumer)

    while_files_are_slow(tmp_path, kinds, attempt)


def test_records_that_are_there_let_other_tasks_run(log: embedlog.Log) -> None:
    fill(log, 20_000)

    async def main() -> None:
        async with log.async_consumer("one", **FROM_START) as consumer:
            with Ticker() as ticker:
                async for record in consumer:
                    if record.offset == 9_999:
                        break
                while record.offset < 19_999:
                    record = (await consumer.poll())[-1]
                await ticker.stop()
            assert ticker.count >= 30

    run(main())


def test_threads_hand_over_run_by_run(log: embedlog.Log) -> None:
    fill(log, 20_000)
    calls: list[object] = []

    async def main() -> None:
        async with log.async_consumer("one", **FROM_START) as consumer:
            count_calls_from_threads(calls)
            async for record in consumer:
                if record.offset == 19_999:
                    break

    run(main())
    assert len(calls) < 10


# ---- loops -------------------------------------------------------------------------------------------------------------


def test_one_consumer_in_several_loops(log: embedlog.Log) -> None:
    fill(log, 9)
    consumer = log.async_consumer("one", **FROM_START)
    assert [numbers(run(consumer.poll(1.0, max_records=3))) for _ in range(3)] == [
        [0, 1, 2],
        [3, 4, 5],
        [6, 7, 8],
    ]
    run(consumer.close())


def test_a_loop_closed_in_the_middle_of_a_poll_leaves_its_records_to_the_next(
    log: embedlog.Log,
) -> None:
    consumer = log.async_consumer("one", **FROM_START)
    loop = asyncio.new_event_loop()
    task = loop.create_task(consumer.poll(None))
    loop.run_until_complete(waiting(consumer))
    loop.close()
    fill(log, 5)
    assert numbers(run(consumer.poll(5.0))) == list(range(5))
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    run(consumer.close())


class OddLoop(asyncio.SelectorEventLoop):
    """A loop that has nothing but the public methods, as those written in C have."""

    def __getattribute__(self, name: str) -> Any:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        assert not (
            name.startswith("_") and not name.startswith("__") and caller.startswith("embedlog")
        ), name
        return super().__getattribute__(name)


def test_only_public_methods_of_the_loop_are_used(log: embedlog.Log) -> None:
    async def main() -> None:
        async with (
            log.async_producer() as producer,
            log.async_consumer("one", **FROM_START) as consumer,
        ):
            await (await producer.send("one", b"5"))
            await producer.flush()
            assert numbers(await consumer.poll(5.0)) == [5]

    with asyncio.Runner(loop_factory=OddLoop) as runner:
        runner.run(main())


def test_with_uvloop(log: embedlog.Log) -> None:
    uvloop = pytest.importorskip("uvloop")
    fill(log, 1000)

    async def main() -> None:
        async with (
            log.async_producer() as producer,
            log.async_consumer("one", **FROM_START) as consumer,
        ):
            futures = [await producer.send("one", b"%d" % number) for number in range(1000, 2000)]
            assert (await asyncio.gather(*futures))[-1].offset == 1999
            async for record in consumer:
                if record.offset == 1999:
                    break
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(consumer.poll(None), 0.02)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
