"""The asyncio clients against the synchronous ones, in one run: the cost of the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import embedlog

from .context import QUIET, Context, filled, remove
from .measure import Outcome, against
from .rows import COUNT, iterate_rate, send_rate

LEAST = 1 / 2


def awaited_rate(context: Context, values: list[bytes]) -> float:
    """Records per second of `send()` with each future's result taken at the end."""
    directory = context.fresh("send")
    try:
        with embedlog.open(directory) as log, log.producer() as producer:
            log.create_topic("bench", 1, config=QUIET)
            producer.send("bench", values[0]).result()
            began = time.perf_counter()
            futures = [producer.send("bench", value) for value in values]
            for future in futures:
                future.result()
            return len(values) / (time.perf_counter() - began)
    finally:
        remove(directory)


async def sending(log: embedlog.Log, values: list[bytes], each: bool) -> float:
    async with log.async_producer() as producer:
        await (await producer.send("bench", values[0]))
        began = time.perf_counter()
        if each:
            futures = [await producer.send("bench", value) for value in values]
            for future in futures:
                await future
        else:
            for value in values:
                await producer.send("bench", value)
            await producer.flush()
        return len(values) / (time.perf_counter() - began)


def async_send_rate(context: Context, values: list[bytes], each: bool) -> float:
    """Records per second of `await producer.send()`; then a flush, or each future awaited, inside
    the clock.
    """
    directory = context.fresh("send")
    try:
        with embedlog.open(directory) as log:
            log.create_topic("bench", 1, config=QUIET)
            return asyncio.run(sending(log, values, each))
    finally:
        remove(directory)


async def iterating(log: embedlog.Log, count: int) -> float:
    async with log.async_consumer(
        "bench", auto_offset_reset="earliest", consumer_timeout_ms=0
    ) as consumer:
        size = found = 0
        began = time.perf_counter()
        async for record in consumer:
            size += len(record.value)
            found += 1
            if found == count:
                break
        return found / (time.perf_counter() - began)


def async_iterate_rate(directory: Path, count: int) -> float:
    """Records per second of `async for` that touches each value."""
    with embedlog.open(directory, read_only=True) as log:
        return asyncio.run(iterating(log, count))


def twins(context: Context) -> Iterator[Outcome]:
    values = [b"%0100d" % number for number in range(COUNT)]
    yield against(
        "async send/record=100B/flush",
        lambda: send_rate(context, values),
        lambda: async_send_rate(context, values, each=False),
        target=LEAST,
        rounds=context.rounds,
        unit="records/s",
    )
    yield against(
        "async send/record=100B/await each",
        lambda: awaited_rate(context, values),
        lambda: async_send_rate(context, values, each=True),
        target=LEAST,
        rounds=context.rounds,
        unit="records/s",
    )
    with filled(context, 100, COUNT * 100, keyed=True) as directory:
        yield against(
            "async iterate/record=100B/keyed",
            lambda: iterate_rate(directory, COUNT * 9 // 10),
            lambda: async_iterate_rate(directory, COUNT * 9 // 10),
            target=LEAST,
            rounds=context.rounds,
            unit="records/s",
        )
