"""Between `send()` and the log: linger, batches, memory, futures and callbacks."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

import embedlog
from embedlog import RecordMetadata
from embedlog.errors import (
    BufferExhaustedError,
    DeadlineError,
    StateError,
    UnknownTopicOrPartitionError,
)
from tests.support import producer_helpers
from tests.support.producer_helpers import LONG_MS, Stuck, values, wait_until

log = producer_helpers.log
producer = producer_helpers.producer
stuck = producer_helpers.stuck


# ---- batching, linger, memory -------------------------------------------------------------------


def test_records_wait_for_their_linger_and_go_together(log: embedlog.Log) -> None:
    with log.producer(linger_ms=LONG_MS, delivery_timeout_ms=10 * LONG_MS) as producer:
        futures = [producer.send("one", b"%d" % number) for number in range(10)]
        assert not futures[0].done()
        assert values(log) == []
        start = time.monotonic()
        assert futures[3].result(10).offset == 3
        assert time.monotonic() - start < 10
        assert all(future.done() for future in futures)
        assert producer.metrics()["batch-total"] == 1


def test_a_linger_ends_by_itself(log: embedlog.Log) -> None:
    with log.producer(linger_ms=20) as producer:
        future = producer.send("one", b"v")
        wait_until(future.done)
        later = producer.send("one", b"v")  # after the thread has slept
        wait_until(later.done)


@pytest.mark.parametrize(("size", "batches"), [(0, 50), (1000, 7), (1 << 20, 1)])
def test_batch_size_cuts_the_batches(log: embedlog.Log, size: int, batches: int) -> None:
    with log.producer(
        batch_size=size, linger_ms=LONG_MS, delivery_timeout_ms=10 * LONG_MS
    ) as producer:
        for _ in range(50):
            producer.send("one", b"x" * 100)
        producer.flush()
        assert producer.metrics()["batch-total"] == batches


def test_full_memory_makes_send_wait_and_then_fail(log: embedlog.Log, stuck: Stuck) -> None:
    with log.producer(
        buffer_memory=3000, max_block_ms=50, linger_ms=0, batch_size=1000
    ) as producer:
        first = producer.send("one", b"x" * 900)
        assert stuck.reached.wait(10)
        others = [producer.send("one", b"x" * 900) for _ in range(3)]
        assert isinstance(others[-1].exception(0), BufferExhaustedError)
        assert producer.metrics()["buffer-exhausted-waits-total"] > 0
        stuck.go.set()
        assert first.result(10).offset == 0
        assert others[0].result(10).offset == 1
    assert len(values(log)) == 3


def test_who_waits_for_memory_is_served_in_order(log: embedlog.Log, stuck: Stuck) -> None:
    with log.producer(buffer_memory=2000, linger_ms=0, batch_size=1000) as producer:
        producer.send("one", b"0" * 900)
        assert stuck.reached.wait(10)
        producer.send("one", b"1" * 900)
        threads = []
        for number in range(2, 6):
            thread = threading.Thread(target=producer.send, args=("one", b"%d" % number * 900))
            thread.start()
            threads.append(thread)
            wait_until(lambda: producer.metrics()["waiting-threads"] == len(threads))
        stuck.go.set()
        for thread in threads:
            thread.join(10)
    assert [value[:1] for value in values(log)] == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_a_callback_that_finds_the_memory_full_does_not_wait_for_itself(log: embedlog.Log) -> None:
    found: list[BaseException | None] = []
    with log.producer(buffer_memory=1000, linger_ms=0) as producer:

        def overfill(_: object) -> None:
            producer.send("one", b"y" * 600)
            found.append(producer.send("one", b"z" * 600).exception(0))

        producer.send("one", b"x" * 600).add_done_callback(overfill)
        wait_until(lambda: found)
    assert isinstance(found[0], BufferExhaustedError)


def test_memory_comes_back(log: embedlog.Log, producer: embedlog.Producer) -> None:
    for _ in range(1000):
        producer.send("t", b"x" * 100)
    producer.send_batch("t", [b"x" * 100] * 1000)
    producer.flush()
    figures = producer.metrics()
    assert figures["buffer-available-bytes"] == figures["buffer-total-bytes"]
    assert figures["record-send-total"] == 2000


# ---- futures and callbacks ----------------------------------------------------------------------


def test_callbacks_run_in_order_on_the_producers_thread(
    log: embedlog.Log, producer: embedlog.Producer
) -> None:
    seen: list[tuple[int, bool, str]] = []

    def note(future: embedlog.Future) -> None:
        seen.append((future.result(0).offset, future.done(), threading.current_thread().name))

    futures = [producer.send("one", b"v") for _ in range(100)]
    for future in reversed(futures):
        future.add_done_callback(note)
    producer.flush()
    late = [offset for offset, _, _ in seen]
    assert sorted(late) == list(range(100))
    futures[0].add_done_callback(note)
    wait_until(lambda: len(seen) == 101)
    assert {(done, name.startswith("embedlog-producer-")) for _, done, name in seen} == {
        (True, True)
    }


def test_callbacks_added_before_the_fate_run_in_append_order(
    log: embedlog.Log, stuck: Stuck
) -> None:
    with log.producer(linger_ms=0) as producer:
        futures = [producer.send("one", b"%d" % number) for number in range(20)]
        seen: list[int] = []
        for future in reversed(futures):
            future.add_done_callback(lambda each: seen.append(each.result(0).offset))
        stuck.go.set()
        producer.flush()
    assert seen == list(range(20))


def test_a_raising_callback_is_logged_and_harms_nobody(
    log: embedlog.Log, producer: embedlog.Producer, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[object] = []
    future = producer.send("one", b"v")
    future.add_done_callback(lambda _: 1 / 0)
    future.add_done_callback(seen.append)
    producer.flush()
    assert seen == [future]
    assert "ZeroDivisionError" in caplog.text
    assert producer.send("one", b"v").result(10).offset == 1


def test_flush_waits_for_callbacks_too(log: embedlog.Log, producer: embedlog.Producer) -> None:
    for number in range(50):
        seen: list[object] = []
        producer.send("one", b"v").add_done_callback(seen.append)
        producer.flush()
        assert len(seen) == 1, number


def test_flush_and_close_inside_a_callback_do_not_wait_for_themselves(log: embedlog.Log) -> None:
    found: list[object] = []
    with log.producer() as producer:

        def misuse(_: object) -> None:
            try:
                producer.flush()
            except StateError as error:
                found.append(error)
            producer.close()
            found.append("closed")

        producer.send("one", b"v").add_done_callback(misuse)
        wait_until(lambda: len(found) == 2)
    assert isinstance(found[0], StateError)


def test_acks_0_does_not_wait(log: embedlog.Log, stuck: Stuck) -> None:
    with log.producer(acks=0) as producer:
        future = producer.send("one", b"v", timestamp_ms=5)
        assert future.done()
        assert future.result() == RecordMetadata("one", 0, -1, 5)
        stuck.go.set()
    assert values(log) == [b"v"]


@pytest.mark.parametrize("acks", [1, "all", -1])
def test_other_acks_wait_for_the_append(log: embedlog.Log, stuck: Stuck, acks: Any) -> None:
    with log.producer(acks=acks, linger_ms=0) as producer:
        future = producer.send("one", b"v")
        assert stuck.reached.wait(10)
        assert not future.done()
        with pytest.raises(DeadlineError):
            future.result(0.01)
        stuck.go.set()
        assert future.result(10).offset == 0


def test_futures_can_be_awaited(log: embedlog.Log, producer: embedlog.Producer) -> None:
    async def main() -> list[Any]:
        many = [producer.send("one", b"%d" % number) for number in range(100)]
        batch = producer.send_batch("one", [b"x"] * 5)
        return [*[(await future).offset for future in many], await batch, await many[0]]

    found = asyncio.run(main())
    assert found[:100] == list(range(100))
    assert found[100] == [("one", 0, 100, 5)]
    assert found[101].offset == 0


def test_a_cancelled_await_loses_nothing(log: embedlog.Log, stuck: Stuck) -> None:
    async def main(producer: embedlog.Producer) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(_awaited(producer.send("one", b"v")), 0.05)

    async def _awaited(future: embedlog.Future) -> Any:
        return await future

    with log.producer() as producer:
        asyncio.run(main(producer))
        stuck.go.set()
    assert values(log) == [b"v"]


def test_tasks_of_one_iteration_of_the_loop_share_a_batch(log: embedlog.Log) -> None:
    async def sent(producer: embedlog.Producer, number: int) -> int:
        return (await producer.send("one", b"%d" % number)).offset

    async def main() -> list[int]:
        with log.producer(linger_ms=LONG_MS, delivery_timeout_ms=10 * LONG_MS) as producer:
            offsets = await asyncio.gather(*(sent(producer, number) for number in range(1000)))
            assert producer.metrics()["batch-total"] == 1
        return offsets

    assert asyncio.run(main()) == list(range(1000))


def test_results_that_become_known_together_wake_the_loop_once(log: embedlog.Log) -> None:
    calls: list[object] = []

    async def sent(producer: embedlog.Producer, number: int) -> int:
        return (await producer.send("one", b"%d" % number)).offset

    async def main() -> list[int]:
        loop = asyncio.get_running_loop()
        real = loop.call_soon_threadsafe

        def counted(*arguments: Any) -> asyncio.Handle:
            calls.append(arguments)
            return real(*arguments)

        with log.producer(linger_ms=LONG_MS, delivery_timeout_ms=10 * LONG_MS) as producer:
            tasks = [asyncio.create_task(sent(producer, number)) for number in range(1000)]
            await asyncio.sleep(0)  # each task waits for its result
            loop.call_soon_threadsafe = counted  # type: ignore[method-assign]
            producer.flush()  # blocks the loop: every result is known before its next iteration
            return await asyncio.gather(*tasks)

    assert asyncio.run(main()) == list(range(1000))
    assert len(calls) == 1


def test_an_awaited_failure_raises(log: embedlog.Log, producer: embedlog.Producer) -> None:
    async def main() -> None:
        await producer.send("unknown", b"v")

    with pytest.raises(UnknownTopicOrPartitionError):
        asyncio.run(main())


def test_a_callback_that_comes_late_runs_before_those_of_later_records(log: embedlog.Log) -> None:
    order: list[int] = []
    with log.producer(linger_ms=0) as producer:
        holding = threading.Event()
        go = threading.Event()

        def hold(future: embedlog.Future) -> None:
            holding.set()
            assert go.wait(10)

        first = producer.send("one", b"first")
        first.result(10)
        first.add_done_callback(hold)
        assert holding.wait(10)
        first.add_done_callback(lambda future: order.append(1))  # late, while the thread is busy
        second = producer.send("one", b"second")
        second.add_done_callback(lambda future: order.append(2))
        go.set()
        producer.flush(10)
    assert order == [1, 2]
