"""Records in progress during an error: each is in the log once, each callback runs once.

Every test ends a producer with callbacks and waiters pending; none calls `flush()` first.
"""

from __future__ import annotations

import asyncio
import collections
import gc
import logging
import os
import random
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog.errors import ClosedError, EmbedlogError, StateError
from embedlog.producer import batch_send
from tests.support import producer_helpers
from tests.support.producer_helpers import LONG_MS, Stuck, run_program, values, wait_until

log = producer_helpers.log
stuck = producer_helpers.stuck


def lazy(log: embedlog.Log, **config: Any) -> embedlog.Producer:
    """A producer that sends nothing by itself for a minute."""
    return log.producer(**{"linger_ms": LONG_MS, "delivery_timeout_ms": 10 * LONG_MS, **config})


# ---- every way of closing -----------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 100, 3000])
@pytest.mark.parametrize("way", ["close", "with", "close of the log", "dropped"])
def test_what_is_buffered_at_the_end_is_written_once_and_called_back_once(
    tmp_path: Path, way: str, count: int
) -> None:
    log = embedlog.open(tmp_path / "log", config={"housekeeping": False})
    log.create_topic("one")
    producer = lazy(log, batch_size=1000)
    called: collections.Counter[int] = collections.Counter()
    for number in range(count):
        future = producer.send("one", b"%d" % number)
        future.add_done_callback(lambda future: called.update([future.result(0).offset]))
    del future
    if way == "close":
        producer.close()
    elif way == "with":
        with producer:
            pass
    elif way == "dropped":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            del producer
            gc.collect()
        wait_until(lambda: len(called) == count)
    if way != "close of the log":
        assert values(log) == [b"%d" % number for number in range(count)]
    log.close()
    assert called == dict.fromkeys(range(count), 1)
    with embedlog.open(tmp_path / "log", read_only=True) as log:
        assert values(log) == [b"%d" % number for number in range(count)]


def test_at_the_interpreters_exit_each_callback_runs(tmp_path: Path) -> None:
    done = run_program(
        """
        import sys, embedlog
        log = embedlog.open(sys.argv[1], config={"housekeeping": False})
        log.create_topic("one")
        producer = log.producer(linger_ms=60_000, delivery_timeout_ms=600_000)
        for number in range(1000):
            producer.send("one", b"%d" % number).add_done_callback(lambda future: print(future.result(0).offset))
        """,
        tmp_path,
    )
    assert done.stdout.split() == [str(number) for number in range(1000)]
    with embedlog.open(tmp_path / "log", read_only=True) as log:
        assert len(values(log)) == 1000


def test_a_forked_child_neither_writes_nor_calls_back(log: embedlog.Log) -> None:
    called: list[int] = []
    producer = lazy(log)
    for number in range(10):
        producer.send("one", b"%d" % number).add_done_callback(lambda _: called.append(os.getpid()))
    child = os.fork()
    if child == 0:
        producer.close()
        os._exit(len(called))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    producer.close()
    assert called == [os.getpid()] * 10
    assert len(values(log)) == 10


def test_a_task_that_awaits_a_record_is_woken_by_the_end_of_the_producer(log: embedlog.Log) -> None:
    async def main() -> list[int]:
        async def wait(future: embedlog.Future) -> int:
            return (await future).offset

        async with log.async_producer(
            linger_ms=LONG_MS, delivery_timeout_ms=10 * LONG_MS
        ) as producer:
            tasks = [asyncio.create_task(wait(await producer.send("one", b"v"))) for _ in range(10)]
        return await asyncio.wait_for(asyncio.gather(*tasks), 10)

    assert asyncio.run(main()) == list(range(10))


def test_a_close_without_time_fails_what_is_left_and_calls_each_back(
    log: embedlog.Log, stuck: Stuck
) -> None:
    producer = log.producer(linger_ms=0, batch_size=0)
    called: collections.Counter[int] = collections.Counter()
    futures = []
    for number in range(20):
        futures.append(producer.send("one", b"%d" % number))
        futures[-1].add_done_callback(lambda _, number=number: called.update([number]))  # type: ignore[misc]
        if not number:
            assert stuck.reached.wait(10)
    try:
        producer.close(0)
    except EmbedlogError:
        pass  # it may report the lost records
    assert sorted(called) == list(range(1, 20))
    stuck.go.set()
    wait_until(lambda: len(called) == 20)
    assert set(called.values()) == {1}
    written = [number for number, future in enumerate(futures) if future.exception(10) is None]
    assert values(log) == [b"%d" % number for number in written]
    assert all(isinstance(futures[number].exception(), ClosedError) for number in range(1, 20))


# ---- callbacks with calls of their own -----------------------------------------------------------


@pytest.mark.parametrize(
    "raised",
    [
        asyncio.CancelledError,
        SystemExit,
        KeyboardInterrupt,
        GeneratorExit,
        RecursionError,
        MemoryError,
        ValueError,
    ],
)
def test_whatever_a_callback_raises_is_logged_and_the_thread_goes_on(
    log: embedlog.Log, caplog: pytest.LogCaptureFixture, raised: type[BaseException]
) -> None:
    def callback(_: object) -> None:
        raise raised

    with log.producer(linger_ms=0) as producer:
        first = producer.send("one", b"first")
        first.add_done_callback(callback)
        seen: list[object] = []
        first.add_done_callback(seen.append)
        wait_until(lambda: seen)
        assert [producer.send("one", b"later").result(10).offset for _ in range(10)] == list(
            range(1, 11)
        )
    assert raised.__name__ in caplog.text
    assert len(values(log)) == 11


def test_a_log_handler_that_raises_ends_no_thread_and_keeps_no_callback_from_running(
    log: embedlog.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise SystemExit("the handler")

    hooked: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", lambda what: hooked.append(what.exc_type))
    monkeypatch.setattr("sys.unraisablehook", lambda what: hooked.append(what.exc_type))
    broken = Broken()
    logging.getLogger("embedlog").addHandler(broken)
    try:
        with log.producer(linger_ms=0) as producer:
            seen: list[object] = []
            for _ in range(3):
                future = producer.send("one", b"v")
                future.add_done_callback(lambda _: 1 / 0)
                future.add_done_callback(seen.append)
            wait_until(lambda: len(seen) == 3)
            assert producer.send("one", b"v").result(10).offset == 3
    finally:
        logging.getLogger("embedlog").removeHandler(broken)
    assert hooked
    assert set(hooked) == {SystemExit}


def test_a_callback_that_closes_its_producer_loses_nothing(log: embedlog.Log) -> None:
    producer = lazy(log)
    called: collections.Counter[tuple[int, int]] = collections.Counter()
    busy = threading.Lock()

    def note(future: embedlog.Future) -> None:
        with busy:  # no other callback runs inside this one
            called.update([future.result(0)[1:3]])
            producer.close()

    for number in range(400):
        producer.send("t", b"%d" % number, partition=number % 4).add_done_callback(note)
    producer.close()
    assert called == dict.fromkeys(
        [(partition, offset) for partition in range(4) for offset in range(100)], 1
    )
    assert len(values(log, "t")) == 400


def test_a_callback_that_closes_the_log_loses_nothing(tmp_path: Path) -> None:
    log = embedlog.open(tmp_path / "log", config={"housekeeping": False})
    log.create_topic("one")
    producers = [lazy(log, batch_size=0) for _ in range(3)]
    called: collections.Counter[object] = collections.Counter()
    closed = threading.Event()

    def close(future: embedlog.Future) -> None:
        called[id(future)] += 1
        log.close()
        closed.set()

    futures = [producer.send("one", b"v") for producer in producers for _ in range(30)]
    futures[0].add_done_callback(close)
    for future in futures[1:]:
        future.add_done_callback(lambda future: called.update([id(future)]))
    futures[0].hasten()
    assert closed.wait(20)
    wait_until(lambda: len(called) == 90)
    assert set(called.values()) == {1}
    assert all(future.exception(0) is None for future in futures)
    with embedlog.open(tmp_path / "log", read_only=True) as log:
        assert len(values(log)) == 90


def test_callbacks_that_close_each_others_producers_do_not_wait_for_ever(log: embedlog.Log) -> None:
    first = log.producer(linger_ms=0)
    second = log.producer(linger_ms=0)
    both = threading.Barrier(2)
    raised: list[BaseException] = []

    def close(other: embedlog.Producer) -> None:
        both.wait(10)
        try:
            other.close()
        except StateError as error:
            raised.append(error)

    first.send("one", b"v").add_done_callback(lambda _: close(second))
    second.send("one", b"v").add_done_callback(lambda _: close(first))
    first.close(20)
    second.close(20)
    assert len(raised) == 1
    assert len(values(log)) == 2


def test_a_callback_that_sends_on_is_served_until_the_producer_is_closed(log: embedlog.Log) -> None:
    taken: list[embedlog.Future] = []
    with log.producer(linger_ms=0) as producer:

        def again(future: embedlog.Future) -> None:
            if len(taken) < 100:
                taken.append(producer.send("one", b"again"))
                taken[-1].add_done_callback(again)

        producer.send("one", b"first").add_done_callback(again)
        wait_until(lambda: len(taken) == 100 and taken[-1].done())
    assert len(values(log)) == 101
    assert sorted(future.result(0).offset for future in taken) == list(range(1, 101))


# ---- sends during the close ----------------------------------------------------------------------


def send_until_refused(
    producer: embedlog.Producer, taken: list[embedlog.Future], batch: bool
) -> None:
    try:
        while True:
            taken.append(
                producer.send_batch("one", [b"b"] * 3) if batch else producer.send("one", b"v")
            )
    except ClosedError:
        pass


@pytest.mark.parametrize("batch", [False, True])
def test_what_is_sent_while_the_producer_closes_is_refused_or_written(
    log: embedlog.Log, rng: random.Random, batch: bool
) -> None:
    rows = 0
    for _ in range(20):
        producer = log.producer(linger_ms=rng.choice([0, 1]))
        taken: list[embedlog.Future] = []
        threads = [
            threading.Thread(target=send_until_refused, args=(producer, taken, batch))
            for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        threading.Event().wait(rng.random() * 0.003)
        producer.close()
        for thread in threads:
            thread.join(10)
        assert all(future.done() for future in taken)
        assert not [future for future in taken if future.exception(0)]
        rows += len(taken) * (3 if batch else 1)
    assert len(values(log)) == rows


def test_a_producer_whose_thread_cannot_begin_takes_nothing_and_can_be_closed(
    log: embedlog.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = log.producer()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="no more threads"):
            producer.send("one", b"v")
    assert producer.send("one", b"v").result(10).offset == 0
    producer.close()
    never = log.producer()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="no more threads"):
            never.send("one", b"v")
        never.close()


def refuse(self: threading.Thread) -> None:
    raise RuntimeError("no more threads")


def test_a_flush_that_waits_for_callbacks_ends_with_the_producer(
    log: embedlog.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = log.producer(linger_ms=0)
    holding = threading.Event()
    entered = threading.Event()
    go = threading.Event()
    inner = producer._accumulator.flush

    def hold(_: object) -> None:
        holding.set()
        assert go.wait(20)

    def flush(timeout_s: float | None) -> bool:
        entered.set()
        return inner(timeout_s)

    monkeypatch.setattr(producer._accumulator, "flush", flush)
    producer.send("one", b"v").add_done_callback(hold)
    assert holding.wait(10)
    flushing = threading.Thread(target=producer.flush)
    closing = threading.Thread(target=producer.close)
    flushing.start()
    assert entered.wait(10)  # else it would be refused by a closed producer
    closing.start()
    wait_until(lambda: "closed" in repr(producer))
    go.set()
    for thread in (flushing, closing):
        thread.join(10)
        assert not thread.is_alive()


# ---- between the append and the results ----------------------------------------------------------


@pytest.mark.parametrize("where", ["note_written", "_count", "report_result"])
@pytest.mark.parametrize("raised", [MemoryError, SystemExit])
def test_what_fails_after_an_append_writes_nothing_twice_and_leaves_nothing_open(
    log: embedlog.Log, monkeypatch: pytest.MonkeyPatch, where: str, raised: type[BaseException]
) -> None:
    left = [3]

    def failing(*_: object) -> None:
        if left[0] > 0:
            left[0] -= 1
            raise raised
        real(*_)

    target: Any
    with log.producer(linger_ms=0, max_in_flight_requests_per_connection=5) as producer:
        target = {
            "note_written": type(producer._delivery.appender),
            "_count": type(producer._delivery),
            "report_result": batch_send.RunSend,
        }[where]
        real = getattr(target, where)
        monkeypatch.setattr(target, where, failing)
        futures = [producer.send("one", b"a"), producer.send_batch("one", [b"b"] * 5)]
        called: list[object] = []
        for future in futures:
            future.add_done_callback(called.append)
        if where != "report_result":
            wait_until(lambda: len(called) == 2)
        else:
            wait_until(lambda: futures[0] in called)
        producer.send("one", b"c").result(10)
    assert sorted(values(log)) == [b"a"] + [b"b"] * 5 + [b"c"]
