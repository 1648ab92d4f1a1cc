"""Contains the verbs of the asyncio clients. The interrupt comes in the thread of the loop, in a
loop that runs on afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

from embedlog import AsyncConsumer, AsyncProducer, GroupMetadata, OffsetAndMetadata
from tests.interrupts.consumer_verbs import COUNT, READ, READ_TPS, filled, reader
from tests.interrupts.producer_verbs import ended
from tests.interrupts.runner import Use
from tests.interrupts.verbs import verb
from tests.interrupts.world import World
from tests.interrupts.writers import PATIENCE_S, TOPIC

PATIENCE_MS = int(PATIENCE_S * 1000)


class Loop:
    """An event loop; a task that an interrupt has left is cancelled before the next one, as
    `asyncio.run` does at its end.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()

    def run(self, work: Coroutine[Any, Any, Any]) -> None:
        self._loop.run_until_complete(work)

    def run_bounded(self, work: Coroutine[Any, Any, Any]) -> None:
        left = asyncio.all_tasks(self._loop)
        for task in left:
            task.cancel()

        async def whole() -> None:
            if left:
                await asyncio.wait(left, timeout=PATIENCE_S)
            async with asyncio.timeout(2 * PATIENCE_S):
                await work

        self._loop.run_until_complete(whole())

    def close(self, *ends: Coroutine[Any, Any, Any]) -> None:
        for end in ends:
            self.run_bounded(end)
        self._loop.close()

    def abandon(self, *ends: Coroutine[Any, Any, Any]) -> None:
        """Another loop makes the ends."""
        for task in asyncio.all_tasks(self._loop):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        self._loop.close()
        other = Loop()
        other.close(*ends)


def quietly(client: AsyncProducer[Any, Any] | AsyncConsumer[Any, Any]) -> Coroutine[Any, Any, None]:
    async def end() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await client.close(timeout=PATIENCE_S)

    return end()


def use_of_producer(
    loop: Loop, producer: AsyncProducer[Any, Any], work: Callable[[], Coroutine[Any, Any, None]]
) -> Use:
    """The use of a producer whose work can be repeated."""
    return Use(
        lambda: loop.run(work()),
        lambda: loop.run_bounded(work()),
        close=lambda: loop.close(quietly(producer)),
        abandon=lambda: loop.abandon(quietly(producer)),
    )


@verb("AsyncProducer.send", "AsyncProducer.send_and_wait", "AsyncProducer.flush")
def async_send(world: World) -> Use:
    loop = Loop()
    producer = world.log.async_producer(linger_ms=0)

    async def send() -> None:
        values = world.values(2)
        future = await producer.send(TOPIC, values[0])
        await producer.send_and_wait(TOPIC, values[1])
        await producer.flush()
        await future
        world.acknowledge(*values)

    return use_of_producer(loop, producer, send)


@verb(
    "AsyncProducer.send_batch",
    "AsyncProducer.metrics",
    "AsyncProducer.partitions_for",
    "AsyncProducer.start",
    "AsyncProducer.stop",
    "AsyncProducer.close",
    "AsyncProducer.__aenter__",
    "AsyncProducer.__aexit__",
    "Log.async_producer",
    fresh=True,
)
def async_producer_block(world: World) -> Use:
    """The threads of a client start with its first call."""
    loop = Loop()
    made: list[AsyncProducer[Any, Any]] = []

    async def send() -> None:
        values = world.values(10)
        async with world.log.async_producer() as producer:
            made.append(producer)
            await producer.start()
            await (await producer.send_batch(TOPIC, values))
            assert await producer.metrics()
            assert await producer.partitions_for(TOPIC) == {0, 1}
            world.acknowledge(*values)
            await producer.stop()

    def again() -> None:
        for producer in made:
            loop.run_bounded(quietly(producer))
        loop.run_bounded(send())

    return Use(
        lambda: loop.run(send()),
        again,
        close=loop.close,
        abandon=lambda: loop.abandon(*map(quietly, made)),
    )


@verb("AsyncProducer.send_batch", fresh=True)
def async_first_batch(world: World) -> Use:
    """The same client goes on after an interrupt in its first call, in which its threads start."""
    loop = Loop()
    producer = world.log.async_producer()

    async def send() -> None:
        values = world.values(10)
        await (await producer.send_batch(TOPIC, values))
        world.acknowledge(*values)

    return use_of_producer(loop, producer, send)


@verb(
    "AsyncProducer.init_transactions",
    "AsyncProducer.begin_transaction",
    "AsyncProducer.commit_transaction",
    "AsyncProducer.abort_transaction",
    "AsyncProducer.send_offsets_to_transaction",
    "AsyncProducer.transaction",
)
def async_transactions(world: World) -> Use:
    loop = Loop()
    producer = world.log.async_producer(transactional_id="async", max_block_ms=PATIENCE_MS)
    loop.run(producer.init_transactions())

    async def transact() -> None:
        values = world.values(2, together=True)
        async with producer.transaction():
            for value in values:
                await producer.send(TOPIC, value)
        world.acknowledge(*values)
        refused = world.values(2)
        world.refuse(*refused)
        await producer.begin_transaction()
        await producer.send_batch(TOPIC, refused)
        await producer.send_offsets_to_transaction(
            {READ_TPS[0]: OffsetAndMetadata(1)}, GroupMetadata("async-offsets")
        )
        await producer.abort_transaction()
        values = world.values(2, together=True)
        await producer.begin_transaction()
        await producer.send_batch(TOPIC, values)
        await producer.commit_transaction()
        world.acknowledge(*values)

    def again() -> None:
        async def end() -> None:
            await producer.metrics()
            assert producer._sync is not None
            sync = producer._sync
            await producer._steps.run(lambda: ended(sync))

        loop.run_bounded(end())
        loop.run_bounded(transact())

    filled(world)
    return Use(
        lambda: loop.run(transact()),
        again,
        close=lambda: loop.close(quietly(producer)),
        abandon=lambda: loop.abandon(quietly(producer)),
    )


@verb(
    "AsyncConsumer.poll",
    "AsyncConsumer.batches",
    "AsyncConsumer.__aiter__",
    "AsyncConsumer.position",
)
def async_poll(world: World) -> Use:
    loop = Loop()
    consumer = reader(world, world.log.async_consumer)
    tp = READ_TPS[0]
    loop.run(consumer.assign([tp]))
    returned: list[Any] = []

    async def read() -> None:
        returned.extend(await consumer.poll(timeout=PATIENCE_S, max_records=3))
        async for record in consumer:
            returned.append(record)
            break

    async def check() -> None:
        """The records come in order, without a gap and without a repetition."""
        offsets = [record.offset for record in returned]
        del returned[:-1]
        position = await consumer.position(tp)
        assert offsets == list(range(position - len(offsets), position)), (
            f"the position is {position} after {offsets}"
        )
        if position > COUNT - 50:
            returned.clear()
            await consumer.seek(tp, 0)

    return Use(
        lambda: loop.run(read()),
        lambda: loop.run_bounded(read()),
        judge=lambda: loop.run_bounded(check()),
        close=lambda: loop.close(quietly(consumer)),
        abandon=lambda: loop.abandon(quietly(consumer)),
    )


@verb(
    "AsyncConsumer.subscribe",
    "AsyncConsumer.unsubscribe",
    "AsyncConsumer.commit",
    "AsyncConsumer.commit_async",
    "AsyncConsumer.committed",
    "AsyncConsumer.group_metadata",
    "AsyncConsumer.enforce_rebalance",
    "AsyncConsumer.close",
    "AsyncConsumer.start",
    "AsyncConsumer.stop",
    "AsyncConsumer.__aenter__",
    "AsyncConsumer.__aexit__",
    "Log.async_consumer",
    "AsyncConsumer.subscription",
    "AsyncConsumer.assignment",
    fresh=True,
)
def async_member(world: World) -> Use:
    filled(world)
    loop = Loop()
    made: list[AsyncConsumer[Any, Any]] = []
    begin = dict.fromkeys(READ_TPS, OffsetAndMetadata(0))

    async def visit() -> None:
        client = reader(world, world.log.async_consumer, group_id="async-visitors")
        made.append(client)
        async with client as consumer:
            await consumer.start()
            await consumer.subscribe([READ])
            assert await consumer.poll(timeout=PATIENCE_S, max_records=2)
            assert consumer.subscription() == {READ}
            assert consumer.assignment()
            await consumer.commit(begin)
            await consumer.commit_async(begin)
            assert await consumer.committed(*READ_TPS)
            assert await consumer.group_metadata()
            await consumer.enforce_rebalance()
            await consumer.unsubscribe()
            await consumer.stop()

    def again() -> None:
        for consumer in made:
            loop.run_bounded(quietly(consumer))
        loop.run_bounded(visit())

    def judge() -> None:
        assert world.log.describe_group("async-visitors").members == (), (
            "a member that was closed twice is in its group"
        )

    return Use(
        lambda: loop.run(visit()),
        again,
        judge=judge,
        close=loop.close,
        abandon=lambda: loop.abandon(*map(quietly, made)),
    )


@verb(
    "AsyncConsumer.assign",
    "AsyncConsumer.seek",
    "AsyncConsumer.seek_to_beginning",
    "AsyncConsumer.seek_to_end",
    "AsyncConsumer.pause",
    "AsyncConsumer.resume",
    "AsyncConsumer.paused",
    "AsyncConsumer.current_lag",
    "AsyncConsumer.beginning_offsets",
    "AsyncConsumer.end_offsets",
    "AsyncConsumer.offsets_for_times",
    "AsyncConsumer.metrics",
    "AsyncConsumer.wakeup",
)
def async_positions(world: World) -> Use:
    loop = Loop()
    consumer = reader(world, world.log.async_consumer)
    tp = READ_TPS[0]

    async def move() -> None:
        await consumer.assign(READ_TPS)
        await consumer.seek(tp, 7)
        await consumer.seek_to_end(tp)
        await consumer.seek_to_beginning(tp)
        assert await consumer.position(tp) == 0
        await consumer.pause(tp)
        assert consumer.paused() == {tp}
        await consumer.resume(tp)
        assert await consumer.current_lag(tp) == COUNT
        assert await consumer.beginning_offsets([tp]) == {tp: 0}
        assert await consumer.end_offsets([tp]) == {tp: COUNT}
        assert (await consumer.offsets_for_times({tp: 0}))[tp] is not None
        assert await consumer.metrics()

    return Use(
        lambda: loop.run(move()),
        lambda: loop.run_bounded(move()),
        close=lambda: loop.close(quietly(consumer)),
        abandon=lambda: loop.abandon(quietly(consumer)),
    )
