"""Ctrl-C inside a close: a second close completes what the first one began, and nobody stays in a
group.
"""

from __future__ import annotations

import asyncio
import gc
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog import AsyncConsumer, AsyncProducer, Consumer, Producer, TopicPartition
from embedlog._native import system
from embedlog.storage import file_names, files
from embedlog.storage.liveness import Lease
from tests.support.interrupts import within
from tests.support.strike import Strike

SAMPLE = 20  # of the points of a close
CLOSE_S = 20.0
CONFIG = {
    "housekeeping": False,
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
}

pytestmark = [
    pytest.mark.may_leak("an interrupt between a system call and the assignment of its result"),
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited"),
]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[embedlog.Log]:
    with embedlog.open(tmp_path / "log", config=CONFIG) as log:
        log.create_topic("t")
        with log.producer() as producer:
            producer.send_batch("t", [b"v"] * 5000)
        yield log


@pytest.fixture(autouse=True)
def no_collection() -> Iterator[None]:
    """The interpreter swallows an interrupt in a finalizer."""
    gc.disable()
    yield
    gc.enable()
    gc.collect()


@contextmanager
def ignoring_swallowed() -> Iterator[None]:
    """The interpreter swallows an interrupt in a callback of a weak reference, and reports it."""
    before = sys.unraisablehook

    def report(unraisable: Any) -> None:
        if not isinstance(unraisable.exc_value, KeyboardInterrupt):
            before(unraisable)

    sys.unraisablehook = report
    try:
        yield
    finally:
        sys.unraisablehook = before


def strike_each(
    rng: random.Random,
    make: Callable[[], tuple[Callable[[], Any], Callable[[Strike], Any]]],
    sample: int = SAMPLE,
) -> None:
    """Interrupt some points of a call, among them the first ones; `make` prepares it and returns it
    with its judge.

    The number of points of two calls differs a little, so the end may be missed.
    """
    call, judge = make()
    counted = Strike(0)
    counted.run(call)
    judge(counted)
    points = sorted(
        {*range(1, 6), *rng.sample(range(1, counted.points + 1), min(sample, counted.points))}
    )
    struck_count = 0
    for nth in points:
        call, judge = make()
        strike = Strike(nth)
        try:
            with ignoring_swallowed():
                strike.run(call)
        except TypeError as problem:
            if "'traceback' object is not callable" not in str(problem):
                raise
            strike.has_struck = False  # CPython 3.11 has lost its trace function
        within(3 * CLOSE_S, lambda judge=judge, strike=strike: judge(strike))  # type: ignore[misc]
        struck_count += strike.has_struck
    assert struck_count > len(points) / 2


# ---- members of a group ---------------------------------------------------------------------------


def has_left(log: embedlog.Log, consumer: Consumer[Any, Any], strike: Strike) -> None:
    assert log.describe_group("g").members == (), strike.place
    assert consumer._group is not None
    lease: Lease | None = consumer._group._lease
    assert lease is None, strike.place
    assert consumer.assignment() == set(), strike.place


def test_a_second_close_leaves_the_group(log: embedlog.Log, rng: random.Random) -> None:
    def make() -> tuple[Callable[[], Any], Callable[[Strike], Any]]:
        revoked: list[TopicPartition] = []
        consumer = log.consumer(group_id="g", auto_offset_reset="earliest")
        consumer.subscribe(["t"], on_revoked=revoked.extend)
        assert consumer.poll(timeout=CLOSE_S, max_records=1)
        position = consumer.position(TopicPartition("t", 0))

        def judge(strike: Strike) -> None:
            consumer.close(CLOSE_S)
            has_left(log, consumer, strike)
            assert set(revoked) == {TopicPartition("t", 0)}, strike.place
            assert log.group_offsets("g")[TopicPartition("t", 0)].offset == position, strike.place
            consumer.close(0)

        return consumer.close, judge

    strike_each(rng, make)


def test_a_second_close_commits_nothing_after_the_exception_that_left_the_block(
    log: embedlog.Log,
) -> None:
    """Points of the interrupted end of a `with` block that an exception leaves."""
    for nth in range(40, 400, 40):
        consumer = log.consumer("t", group_id=f"g{nth}", auto_offset_reset="earliest")
        assert consumer.poll(timeout=CLOSE_S, max_records=1)
        strike = Strike(nth)
        strike.run(lambda consumer=consumer: consumer.__exit__(ValueError, ValueError(), None))  # type: ignore[misc]
        consumer.close()
        assert log.group_offsets(f"g{nth}") == {}, strike.place


def test_a_close_inside_a_listener_of_the_close_returns_at_once(log: embedlog.Log) -> None:
    consumer = log.consumer(group_id="g", auto_offset_reset="earliest")
    consumer.subscribe(["t"], on_revoked=lambda _: consumer.close())
    assert consumer.poll(timeout=CLOSE_S)
    within(CLOSE_S, consumer.close)
    assert log.describe_group("g").members == ()


def test_a_listener_that_raises_ends_the_close(log: embedlog.Log) -> None:
    calls: list[object] = []

    def refuse(_: object) -> None:
        calls.append(None)
        raise ValueError("refused")

    consumer = log.consumer(group_id="g", auto_offset_reset="earliest")
    consumer.subscribe(["t"], on_revoked=refuse)
    assert consumer.poll(timeout=CLOSE_S)
    with pytest.raises(embedlog.ListenerError, match="refused"):
        consumer.close()
    consumer.close()
    assert len(calls) == 1
    assert log.describe_group("g").members == ()


def closed_in(
    loop: asyncio.AbstractEventLoop, client: AsyncConsumer[Any, Any] | AsyncProducer[Any, Any]
) -> None:
    """Close again, after the tasks that the interrupt has left, as `asyncio.run` ends them."""
    for task in asyncio.all_tasks(loop):
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.close()
    asyncio.run(asyncio.wait_for(client.close(CLOSE_S), 2 * CLOSE_S))


def test_a_second_close_of_an_asyncio_consumer_leaves_the_group(
    log: embedlog.Log, rng: random.Random
) -> None:
    def make() -> tuple[Callable[[], Any], Callable[[Strike], Any]]:
        loop = asyncio.new_event_loop()
        client = log.async_consumer(
            "t", group_id="g", auto_offset_reset="earliest", enable_auto_commit=False
        )
        assert loop.run_until_complete(client.poll(timeout=CLOSE_S, max_records=1))

        def judge(strike: Strike) -> None:
            closed_in(loop, client)
            assert client._sync is not None
            has_left(log, client._sync, strike)

        return lambda: loop.run_until_complete(client.close()), judge

    strike_each(rng, make)


def test_a_close_of_an_asyncio_consumer_after_a_cancelled_one_leaves_the_group(
    log: embedlog.Log,
) -> None:
    async def run() -> None:
        client = log.async_consumer("t", group_id="g", auto_offset_reset="earliest")
        assert await client.poll(timeout=CLOSE_S, max_records=1)
        closing = asyncio.ensure_future(client.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await client.close()
        assert log.describe_group("g").members == ()

    asyncio.run(run())


# ---- producers ------------------------------------------------------------------------------------


def test_a_second_close_of_a_producer_writes_its_records(
    log: embedlog.Log, rng: random.Random
) -> None:
    closes: list[int] = []

    class Closing:
        def on_send(self, record: Any) -> Any:
            return record

        def close(self) -> None:
            closes.append(1)

    def make() -> tuple[Callable[[], Any], Callable[[Strike], Any]]:
        closes.clear()
        producer: Producer[Any, Any] = log.producer(linger_ms=60_000, interceptor_classes=[Closing])
        future = producer.send("t", b"w")

        def judge(strike: Strike) -> None:
            producer.close(CLOSE_S)
            assert future.result(0).offset >= 0, strike.place
            assert closes, strike.place

        return producer.close, judge

    strike_each(rng, make)


def test_a_second_close_of_a_transactional_producer_ends_its_transaction(
    log: embedlog.Log, rng: random.Random
) -> None:
    def make() -> tuple[Callable[[], Any], Callable[[Strike], Any]]:
        producer: Producer[Any, Any] = log.producer(transactional_id="x")
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"w")

        def judge(strike: Strike) -> None:
            producer.close(CLOSE_S)
            assert list(log.open_transactions("t")) == [], strike.place

        return producer.close, judge

    strike_each(rng, make)


def test_a_second_close_of_an_asyncio_producer_writes_its_records(
    log: embedlog.Log, rng: random.Random
) -> None:
    def make() -> tuple[Callable[[], Any], Callable[[Strike], Any]]:
        loop = asyncio.new_event_loop()
        client = log.async_producer(linger_ms=60_000)
        future = loop.run_until_complete(client.send("t", b"w"))

        def judge(strike: Strike) -> None:
            closed_in(loop, client)
            assert future.result(CLOSE_S).offset >= 0, strike.place

        return lambda: loop.run_until_complete(client.close()), judge

    strike_each(rng, make)


def test_a_cancelled_close_of_an_asyncio_producer_continues_though_its_thread_is_busy(
    log: embedlog.Log,
) -> None:
    """A call that no thread has taken is withdrawn by its cancellation: then another one must end
    the producer.
    """

    async def run() -> embedlog.Future[Any]:
        client = log.async_producer(linger_ms=60_000)
        future = await client.send("t", b"w")
        closing = asyncio.ensure_future(client.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        return future

    future = asyncio.run(run())
    assert future.result(CLOSE_S).offset >= 0


# ---- logs -----------------------------------------------------------------------------------------


def is_free(directory: Path) -> bool:
    """Whether a broker could take the directory."""
    with files.opened(directory / file_names.BROKER_LOCK, files.WRITE) as fd:
        return system.lock_try(fd, True) == 0


@pytest.mark.parametrize("directories", [1, 2])
def test_a_second_close_of_a_log_leaves_its_directories(
    tmp_path: Path, rng: random.Random, directories: int
) -> None:
    root = tmp_path / "disks"
    paths: Any = (
        [root / f"d{number}" for number in range(directories)] if directories > 1 else root / "d0"
    )

    def make() -> tuple[Callable[[], Any], Callable[[Strike], Any]]:
        shutil.rmtree(root, ignore_errors=True)
        log = embedlog.open(paths, config=CONFIG | {"housekeeping": True})
        log.create_topic("t", replication_factor=directories)
        producer: Producer[Any, Any] = log.producer()
        producer.send("t", b"w").result(CLOSE_S)
        consumer = log.consumer("t", group_id="g", auto_offset_reset="earliest")
        assert consumer.poll(timeout=CLOSE_S, max_records=1)

        def judge(strike: Strike) -> None:
            log.close()
            assert all(map(is_free, root.iterdir())), strike.place
            assert repr(consumer).endswith("closed>"), strike.place
            assert repr(producer).endswith("closed>"), strike.place
            with embedlog.open(paths, config=CONFIG) as again:
                assert [record.value for record in again.scan("t").records()] == [b"w"], (
                    strike.place
                )
                assert again.describe_group("g").members == (), strike.place

        return log.close, judge

    strike_each(rng, make, sample=10 // directories)
