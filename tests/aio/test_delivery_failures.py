"""Unobserved failures of the asyncio producer: raised by its methods, or logged if a task was
cancelled.
"""

from __future__ import annotations

import asyncio

import pytest

import embedlog
from embedlog.errors import DeliveryError, UnknownTopicOrPartitionError
from tests.support import producer_helpers
from tests.support.delivery_failures import lost_lines
from tests.support.producer_helpers import Stuck

log = producer_helpers.log
stuck = producer_helpers.stuck


@pytest.mark.parametrize("way", ["flush", "close", "async with"])
def test_the_asyncio_producer_raises_what_fails_unheard(log: embedlog.Log, way: str) -> None:
    async def main() -> int:
        producer = log.async_producer()
        await producer.send("typo", b"x")
        await producer.send_batch("typo", [b"x"] * 6)
        heard = await producer.send("typo", b"x")
        with pytest.raises(UnknownTopicOrPartitionError):
            await heard
        with pytest.raises(DeliveryError) as lost:
            if way == "flush":
                await producer.flush()
            elif way == "close":
                await producer.close()
            else:
                async with producer:
                    pass
        await producer.close()
        return lost.value.count

    assert asyncio.run(main()) == 7


def test_a_flush_of_asyncio_that_is_cancelled_leaves_the_loss_to_the_next_call(
    log: embedlog.Log, stuck: Stuck
) -> None:
    async def main() -> None:
        async with log.async_producer(linger_ms=0) as producer:
            await producer.send("one", b"v")
            await producer.send("typo", b"v")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(producer.flush(), 0.05)
            stuck.go.set()
            with pytest.raises(DeliveryError):
                await producer.flush()

    asyncio.run(main())


def test_a_close_of_asyncio_that_is_cancelled_logs_the_loss(
    log: embedlog.Log, stuck: Stuck, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        producer = log.async_producer(linger_ms=0)
        await producer.send("one", b"v")
        await producer.send("typo", b"v")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(producer.close(), 0.05)
        stuck.go.set()
        while not lost_lines(caplog):
            await asyncio.sleep(0.001)

    asyncio.run(asyncio.wait_for(main(), 20))
    assert len(lost_lines(caplog)) == 1


def test_another_exception_that_leaves_async_with_goes_first(
    log: embedlog.Log, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with log.async_producer() as producer:
            await producer.send("typo", b"v")
            raise KeyError

    with pytest.raises(KeyError):
        asyncio.run(main())
    assert len(lost_lines(caplog)) == 1


def test_a_task_that_is_cancelled_while_it_awaits_has_not_heard(
    log: embedlog.Log, stuck: Stuck
) -> None:
    async def wait(future: embedlog.Future) -> None:
        await future

    async def main() -> None:
        producer = log.producer(linger_ms=0, buffer_memory=1 << 20)
        held = producer.send("one", b"v")
        assert stuck.reached.wait(10)
        waiting = producer.send("one", b"w")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(wait(waiting), 0.05)
        with pytest.raises(DeliveryError, match="1 record not written"):
            producer.close(0)
        stuck.go.set()
        assert held.result(10).offset == 0

    asyncio.run(main())
