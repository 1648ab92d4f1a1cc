"""The consumer for asyncio: nothing blocks the loop, cancelling loses nothing, one task at a
time.
"""

from __future__ import annotations

import asyncio
import pickle
import random
import threading
from typing import Any

import pytest

import embedlog
from embedlog import TopicPartition
from embedlog.aio.consumer import AsyncConsumer
from embedlog.config.other_clients import ABSENT
from embedlog.errors import (
    ClosedError,
    ConcurrentUseError,
    ConfigError,
    InvalidGroupIdError,
    NoOffsetForPartitionError,
    SerializationError,
    StateError,
    UnknownTopicOrPartitionError,
    WakeupError,
)
from tests.support.asyncio_logs import FROM_START, TP, fill, first_of_iteration, numbers, waiting
from tests.support.event_loops import run

# ---- records -----------------------------------------------------------------------------------------------------------


def test_iteration_goes_on_from_what_is_there_to_what_comes(log: embedlog.Log) -> None:
    fill(log, 3000)

    async def main() -> list[int]:
        found = []
        async with log.async_consumer("one", **FROM_START) as consumer:
            async for record in consumer:
                found.append(int(record.value))
                if len(found) == 3000:
                    later = asyncio.create_task(asyncio.to_thread(fill, log, 10, start=3000))
                if len(found) == 3010:
                    break
            await later
            assert await consumer.position(TP) == 3010
        return found

    assert run(main()) == list(range(3010))


def test_polls_take_what_they_are_asked_for(log: embedlog.Log) -> None:
    fill(log, 1000, "t")

    async def main() -> None:
        async with log.async_consumer("t", **FROM_START, max_poll_records=70) as consumer:
            assert len(await consumer.poll(1.0, max_records=3)) == 3
            records = await consumer.poll(1.0)
            assert len(records) == 70
            while more := await consumer.poll(0.0):
                records += more
            assert len(records) == 997
            assert await consumer.poll() == []
            positions = [
                await consumer.position(TopicPartition("t", number)) for number in range(3)
            ]
            assert sum(positions) == 1000
            with pytest.raises(ConfigError, match="max_records"):
                await consumer.poll(max_records=0)

    run(main())


def test_iteration_ends_after_consumer_timeout_ms(log: embedlog.Log) -> None:
    fill(log, 10)

    async def main() -> int:
        async with log.async_consumer("one", **FROM_START, consumer_timeout_ms=0) as consumer:
            return len([record async for record in consumer])

    assert run(main()) == 10


def test_what_iteration_left_comes_next(log: embedlog.Log) -> None:
    fill(log, 2000)

    async def main() -> None:
        async with log.async_consumer("one", **FROM_START) as consumer:
            async for record in consumer:
                if record.offset == 1234:
                    break
            assert await consumer.position(TP) == 1235
            assert numbers(await consumer.poll(max_records=2)) == [1235, 1236]
            async for record in consumer:
                assert record.offset == 1237
                break

    run(main())


def test_columns_have_the_same_positions(log: embedlog.Log) -> None:
    fill(log, 5000, batch_size=1000)

    async def main() -> None:
        async with log.async_consumer("one", **FROM_START) as consumer:
            assert numbers(await consumer.poll(1.0, max_records=10)) == list(range(10))
            count = 10
            async for batch in consumer.batches(timeout=0):
                assert batch.base_offset == count
                count += batch.num_rows
            assert count == 5000
            await consumer.seek(TP, 77)
            assert numbers(await consumer.poll(max_records=1)) == [77]

    run(main())


def test_deserializers_run_on_a_thread_and_a_poison_record_stops_before_itself(
    log: embedlog.Log,
) -> None:
    fill(log, 20)
    seen: set[int] = set()

    def parse(data: bytes) -> int:
        seen.add(threading.get_ident())
        if data == b"7":
            raise StopIteration
        return int(data)

    async def main() -> None:
        async with log.async_consumer("one", **FROM_START, value_deserializer=parse) as consumer:
            assert [record.value for record in await consumer.poll(1.0)] == list(range(7))
            for _ in range(2):
                with pytest.raises(SerializationError, match="offset 7"):
                    await consumer.poll()
            await consumer.seek(TP, 8)
            assert [record.value for record in await consumer.poll()] == list(range(8, 20))

    run(main())
    assert threading.get_ident() not in seen


def test_interceptors_see_each_record_once(log: embedlog.Log) -> None:
    fill(log, 100)
    seen: list[int] = []

    class Watch:
        def on_consume(self, records: list[embedlog.Record]) -> list[embedlog.Record]:
            seen.extend(record.offset for record in records)
            return records

    async def main() -> None:
        async with log.async_consumer("one", **FROM_START, interceptor_classes=[Watch]) as consumer:
            await consumer.poll(1.0, max_records=30)
            async for record in consumer:
                if record.offset == 60:
                    break
            assert len(await consumer.poll()) == 39

    run(main())
    assert seen == list(range(100))


# ---- cancelling --------------------------------------------------------------------------------------------------------


def test_a_cancelled_poll_leaves_its_records_to_the_next(log: embedlog.Log) -> None:
    async def main() -> None:
        async with log.async_consumer("one", **FROM_START) as consumer:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(consumer.poll(None), 0.05)
            await asyncio.to_thread(fill, log, 10)
            assert numbers(await consumer.poll(5.0)) == list(range(10))

    run(main())


def test_polls_cancelled_anywhere_lose_nothing_and_repeat_nothing(
    log: embedlog.Log, rng: random.Random
) -> None:
    """One poll after the other, each perhaps cancelled at some turn of the loop, while another
    thread appends.
    """
    total = 3000

    async def take(consumer: AsyncConsumer, found: list[int]) -> None:
        way = rng.randrange(3)
        if way == 0:
            found += numbers(await consumer.poll(None, max_records=rng.randint(1, 200)))
        elif way == 1:
            async for record in consumer:
                found.append(int(record.value))
                if rng.random() < 0.01:
                    await asyncio.sleep(0)
        else:
            async for batch in consumer.batches():
                found += range(batch.base_offset, batch.base_offset + batch.num_rows)

    async def main() -> list[int]:
        found: list[int] = []
        appending = asyncio.create_task(
            asyncio.to_thread(fill, log, total, linger_ms=0, batch_size=200)
        )
        async with log.async_consumer("one", **FROM_START) as consumer:
            while len(found) < total:
                task = asyncio.create_task(take(consumer, found))
                for _ in range(rng.randint(1, 30)):
                    await asyncio.sleep(0 if rng.random() < 0.7 else 0.0003)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                assert task.cancelled() or task.exception() is None
        await appending
        return found

    assert run(main()) == list(range(total))


def test_a_cancelled_verb_leaves_the_consumer_usable(log: embedlog.Log) -> None:
    fill(log, 10)

    async def main() -> None:
        async with log.async_consumer("one", **FROM_START) as consumer:
            for _ in range(20):
                task = asyncio.create_task(consumer.seek(TP, 5))
                await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                await consumer.seek(TP, 3)
                assert numbers(await consumer.poll()) == list(range(3, 10))

    run(main())


# ---- one task at a time ------------------------------------------------------------------------------------------------


def test_a_second_task_is_refused(log: embedlog.Log) -> None:
    async def main() -> None:
        async with log.async_consumer("one", **FROM_START) as consumer:
            task = asyncio.create_task(consumer.poll(None))
            await waiting(consumer)
            for call in (
                consumer.poll(),
                consumer.position(TP),
                first_of_iteration(consumer),
                consumer.metrics(),
            ):
                with pytest.raises(ConcurrentUseError, match="another task"):
                    await call
            await asyncio.to_thread(fill, log, 1)
            assert numbers(await task) == [0]
            assert await consumer.position(TP) == 1

    run(main())


def test_wakeup_from_another_task_ends_a_wait_once(log: embedlog.Log) -> None:
    async def main() -> None:
        async with log.async_consumer("one", **FROM_START) as consumer:
            task = asyncio.create_task(consumer.poll(None))
            await waiting(consumer)
            consumer.wakeup()
            with pytest.raises(WakeupError):
                await task
            assert await consumer.poll() == []
            await asyncio.to_thread(fill, log, 2)
            assert len(await consumer.poll(5.0, max_records=1)) == 1
            consumer.wakeup()  # while a record is at hand
            with pytest.raises(WakeupError):
                await consumer.poll()
            assert numbers(await consumer.poll()) == [1]

    run(main())


def test_a_wakeup_before_the_first_call_is_not_lost(log: embedlog.Log) -> None:
    async def main() -> None:
        consumer = log.async_consumer("one")
        consumer.wakeup()
        with pytest.raises(WakeupError):
            await consumer.poll(None)
        await consumer.close()

    run(main())


def test_close_from_another_task_ends_a_wait(log: embedlog.Log) -> None:
    async def main() -> None:
        consumer = log.async_consumer("one")
        task = asyncio.create_task(consumer.poll(None))
        await waiting(consumer)
        await consumer.close()
        await consumer.close()
        with pytest.raises(ClosedError):
            await task
        with pytest.raises(ClosedError):
            await consumer.poll()
        assert [record async for record in consumer] == []

    run(main())


@pytest.mark.parametrize("form", ["records", "batches"])
def test_close_from_another_task_ends_an_iteration(log: embedlog.Log, form: str) -> None:
    async def main() -> None:
        consumer = log.async_consumer("one")

        async def iterate() -> list[Any]:
            return [
                found async for found in (consumer if form == "records" else consumer.batches())
            ]

        task = asyncio.create_task(iterate())
        await waiting(consumer)
        await consumer.close()
        assert await task == []

    run(main())


@pytest.mark.parametrize("form", ["records", "batches"])
def test_closing_the_log_is_an_error_of_an_iteration(log: embedlog.Log, form: str) -> None:
    async def main() -> None:
        consumer = log.async_consumer("one")

        async def iterate() -> None:
            async for _ in consumer if form == "records" else consumer.batches():
                raise AssertionError("no record")

        task = asyncio.create_task(iterate())
        await waiting(consumer)
        await asyncio.to_thread(log.close)
        with pytest.raises(ClosedError):
            await task
        await consumer.close()

    run(main())


def test_closing_the_log_ends_a_wait(log: embedlog.Log) -> None:
    async def main() -> None:
        async with log.async_consumer("one") as consumer:
            task = asyncio.create_task(consumer.poll(None))
            await waiting(consumer)
            await asyncio.to_thread(log.close)
            with pytest.raises(ClosedError):
                await task

    run(main())


# ---- the other verbs ---------------------------------------------------------------------------------------------------


def test_the_verbs_of_the_sync_one(log: embedlog.Log) -> None:
    fill(log, 10)

    async def main() -> None:
        async with log.async_consumer(**FROM_START) as consumer:
            with pytest.raises(StateError):
                await consumer.poll()
            await consumer.assign([TP])
            assert consumer.assignment() == {TP}
            assert consumer.subscription() == set()
            assert await consumer.beginning_offsets([TP]) == {TP: 0}
            assert await consumer.end_offsets([TP]) == {TP: 10}
            assert await consumer.offsets_for_times({TP: 2**60}) == {TP: None}
            await consumer.seek_to_end(TP)
            assert await consumer.poll() == []
            await consumer.seek_to_beginning(TP)
            await consumer.pause(TP)
            assert consumer.paused() == {TP}
            assert await consumer.poll() == []
            await consumer.resume(TP)
            assert len(await consumer.poll()) == 10
            assert await consumer.current_lag(TP) == 0
            assert (await consumer.metrics())["records-consumed-total"] == 10
            for call in (
                consumer.commit(),
                consumer.commit_async(),
                consumer.committed(TP),
                consumer.group_metadata(),
            ):
                with pytest.raises(InvalidGroupIdError):
                    await call
            await consumer.unsubscribe()
            await consumer.subscribe(pattern="o.*")
            assert consumer.subscription() == {"one"}

    run(main())


def test_every_public_verb_has_its_twin() -> None:
    from embedlog.aio.producer import AsyncProducer

    def verbs(of: type) -> set[str]:
        return {name for name in dir(of) if not name.startswith("_")}

    assert verbs(embedlog.Consumer) <= verbs(AsyncConsumer)
    assert verbs(AsyncConsumer) - verbs(embedlog.Consumer) <= ABSENT["Consumer"].keys()
    assert verbs(embedlog.Producer) <= verbs(AsyncProducer)


@pytest.mark.parametrize(
    ("topics", "config", "error"),
    [
        (("unknown",), {}, UnknownTopicOrPartitionError),
        (("one",), {"auto_offset_reset": "none"}, NoOffsetForPartitionError),
        (("one",), {"group_id": "g", "group_protocol": "consumer"}, ConfigError),
    ],
)
def test_mistakes_raise_where_they_are_awaited(
    log: embedlog.Log, topics: tuple[str, ...], config: dict[str, Any], error: type[Exception]
) -> None:
    async def main() -> None:
        with pytest.raises(error):
            async with log.async_consumer(*topics, **config) as consumer:
                await consumer.poll()

    run(main())


def test_pickling_is_refused_with_the_way_to_do_it(log: embedlog.Log) -> None:
    with pytest.raises(TypeError, match="create one in the worker"):
        pickle.dumps(log.async_consumer())


def test_a_close_before_the_first_call_ends_lets_it_fail(log: embedlog.Log) -> None:
    """A call that meets the close is refused: it waited without limit for a thread that had
    ended.
    """

    async def main() -> None:
        consumer = log.async_consumer("one")
        call = asyncio.create_task(consumer.poll(0.01))
        await asyncio.sleep(0)
        async with asyncio.timeout(20):
            await consumer.close()
            with pytest.raises(ClosedError):
                await call

    run(main())
