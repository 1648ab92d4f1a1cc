"""The end of a consumer's `with` block by an exception: automatic commits include only what was
processed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog import Consumer, TopicPartition, WakeupError

PLACE = TopicPartition("t", 0)
OPTIONS: dict[str, Any] = {"group_id": "g", "auto_offset_reset": "earliest"}
COUNT = 5


class Failed(Exception):
    pass


@pytest.fixture
def log(tmp_path: Path) -> Iterator[embedlog.Log]:
    with embedlog.open(tmp_path / "log", config={"housekeeping": False}) as opened:
        opened.create_topic("t")
        with opened.producer() as producer:
            producer.send_batch("t", [b"%d" % number for number in range(COUNT)]).result(20)
        yield opened


def committed(log: embedlog.Log) -> int | None:
    found = log.group_offsets("g").get(PLACE)
    return None if found is None else found.offset


def poll(consumer: Consumer) -> None:
    assert len(consumer.poll(timeout=20)) == COUNT


def iterate(consumer: Consumer) -> None:
    for record in consumer:
        if record.offset == COUNT - 1:
            return


def batches(consumer: Consumer) -> None:
    assert len(next(consumer.batches(timeout=20))) == COUNT


WAYS = pytest.mark.parametrize("read", [poll, iterate, batches])


@WAYS
def test_records_that_were_returned_last_are_not_committed(
    log: embedlog.Log, read: Callable[[Consumer], None]
) -> None:
    with pytest.raises(Failed), log.consumer("t", **OPTIONS) as consumer:
        read(consumer)
        raise Failed
    assert committed(log) is None
    with log.consumer("t", **OPTIONS) as consumer:
        read(consumer)
    assert committed(log) == COUNT


@WAYS
@pytest.mark.parametrize("error", [Failed, KeyboardInterrupt])
def test_records_are_committed_if_a_later_call_returned_nothing(
    log: embedlog.Log, read: Callable[[Consumer], None], error: type[BaseException]
) -> None:
    with pytest.raises(error), log.consumer("t", **OPTIONS) as consumer:
        read(consumer)
        assert consumer.poll() == []
        raise error
    assert committed(log) == COUNT


def test_a_wait_that_is_interrupted_commits_what_was_returned_before(log: embedlog.Log) -> None:
    with pytest.raises(WakeupError), log.consumer("t", **OPTIONS) as consumer:
        poll(consumer)
        consumer.poll()
        consumer.wakeup()
        consumer.poll(timeout=20)
    assert committed(log) == COUNT


def test_an_explicit_close_commits(log: embedlog.Log) -> None:
    with pytest.raises(Failed), log.consumer("t", **OPTIONS) as consumer:
        try:
            poll(consumer)
            raise Failed
        finally:
            consumer.close()
    assert committed(log) == COUNT


def test_an_error_of_a_poll_commits_what_was_returned_before(log: embedlog.Log) -> None:
    def refuse(data: bytes) -> bytes:
        if data == b"bad":
            raise ValueError("bad")
        return data

    with (
        pytest.raises(embedlog.SerializationError),
        log.consumer("t", value_deserializer=refuse, **OPTIONS) as consumer,
    ):
        poll(consumer)
        with log.producer() as producer:
            producer.send("t", b"bad").result(20)
        consumer.poll(timeout=20)
    assert committed(log) == COUNT


# ---- asyncio ---------------------------------------------------------------------------------------------------------


def test_async_records_that_were_returned_last_are_not_committed(log: embedlog.Log) -> None:
    async def work() -> None:
        async with log.async_consumer("t", **OPTIONS) as consumer:
            assert len(await consumer.poll(timeout=20)) == COUNT
            raise Failed

    with pytest.raises(Failed):
        asyncio.run(work())
    assert committed(log) is None


@pytest.mark.parametrize("waits", [False, True])
def test_a_cancelled_task_commits_what_it_had_processed(log: embedlog.Log, waits: bool) -> None:
    """`waits`: the task is cancelled while it waits for more records, otherwise in the work on the
    last one.
    """

    async def work(processed: asyncio.Event) -> None:
        async with log.async_consumer("t", **OPTIONS) as consumer:
            async for record in consumer:
                if record.offset == COUNT - 1:
                    processed.set()
                    if not waits:
                        await asyncio.Event().wait()

    async def main() -> None:
        processed = asyncio.Event()
        task = asyncio.create_task(work(processed))
        await asyncio.wait_for(processed.wait(), 20)
        for _ in range(3 if waits else 0):
            await asyncio.sleep(0)  # the task begins to wait
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert committed(log) == (COUNT if waits else None)
