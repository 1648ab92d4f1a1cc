"""Ctrl-C, and signal handlers that close, inside the calls of a producer: the next calls work, and
every close ends.
"""

from __future__ import annotations

import contextlib
import multiprocessing.process
import multiprocessing.util
import signal
import threading
from functools import partial

import pytest

import embedlog
from embedlog.errors import ClosedError, StateError
from embedlog.producer import accumulator
from tests.support import producer_helpers
from tests.support.interrupts import OF_THIS_INTERPRETER, Interrupt, within
from tests.support.producer_helpers import Stuck, values, wait_until

log = producer_helpers.log
stuck = producer_helpers.stuck


# ---- the start of the thread ----------------------------------------------------------------------


def threads_of(producer: embedlog.Producer) -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == producer._accumulator._name]


def test_an_interrupt_after_the_start_of_the_thread_leaves_one_thread(
    log: embedlog.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = threading.Thread.start
    producer = log.producer(linger_ms=0)

    def interrupted(thread: threading.Thread) -> None:
        real(thread)
        if thread.name == producer._accumulator._name:
            monkeypatch.setattr(threading.Thread, "start", real)
            raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        producer.send("one", b"lost")
    on_thread: list[bool] = []
    for number in range(3):
        producer.send("one", b"%d" % number).add_done_callback(
            lambda _: on_thread.append(producer._accumulator.on_thread())
        )
    producer.flush(10)
    wait_until(lambda: len(threads_of(producer)) == 1)
    within(10, producer.close)
    assert set(on_thread) == {True}
    assert values(log) == [b"0", b"1", b"2"]


@OF_THIS_INTERPRETER
def test_an_interrupt_anywhere_in_the_first_send_or_in_close_leaves_a_producer_that_ends(
    log: embedlog.Log,
) -> None:
    nth = 0
    interrupt = None
    while interrupt is None or interrupt.struck is not None:
        nth += 1
        producer = log.producer(linger_ms=0)

        def whole(producer: embedlog.Producer = producer) -> None:
            producer.send("one", b"v")
            producer.close()

        interrupt = Interrupt(nth, ("accumulator.py",))
        interrupt.run(whole)
        if not producer._rows.closed:
            producer.send("one", b"v").result(10)
        producer.close(timeout=10)
        assert threads_of(producer) == [], interrupt.struck
    assert nth > 20


# ---- handlers of signals that close ---------------------------------------------------------------


@pytest.mark.parametrize("which", ["the same", "another", "the log"])
def test_a_signal_handler_may_close_while_its_thread_waits_in_close(
    log: embedlog.Log, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    waited = log.producer(linger_ms=0)
    other = log.producer(linger_ms=0)
    go = threading.Event()
    main = threading.get_ident()
    waited.send("one", b"1").add_done_callback(lambda _: go.wait(30))
    other.send("one", b"2").result(10)

    def close(*_: object) -> None:
        go.set()
        {"the same": waited, "another": other, "the log": log}[which].close()

    def strike() -> None:
        wait_until(lambda: threading.main_thread() in accumulator._joining)
        signal.pthread_kill(main, signal.SIGALRM)

    before = signal.signal(signal.SIGALRM, close)
    try:
        thread = threading.Thread(target=strike)
        thread.start()
        waited.close()
        thread.join()
    finally:
        signal.signal(signal.SIGALRM, before)
        other.close()
    assert go.is_set()
    assert accumulator._joining == {}


# ---- the wait for memory --------------------------------------------------------------------------


@OF_THIS_INTERPRETER
def test_an_interrupt_anywhere_in_a_wait_for_memory_leaves_no_place_in_the_queue(
    log: embedlog.Log, stuck: Stuck
) -> None:
    with log.producer(
        buffer_memory=3000, max_block_ms=0, linger_ms=0, batch_size=1000, on_delivery_error="log"
    ) as producer:
        producer.send("one", b"x" * 900)
        assert stuck.reached.wait(10)
        while not producer.send("one", b"x" * 900).done():
            pass
        lock = producer._accumulator._memory_lock

        def held_by_another_thread() -> None:
            with lock:
                pass

        nth = 0
        interrupt = None
        while interrupt is None or interrupt.struck is not None:
            nth += 1
            interrupt = Interrupt(nth, ("accumulator.py", "threading.py"))
            interrupt.run(lambda: producer.send("one", b"x" * 900))
            assert (
                producer.metrics()["waiting-threads"] == len(producer._accumulator._tickets) == 0
            ), interrupt.struck
            within(10, held_by_another_thread)
        assert nth > 10
        stuck.go.set()
        producer.flush(10)
        assert producer.send("one", b"x" * 900).result(10).offset > 0


@OF_THIS_INTERPRETER
def test_a_signal_handler_may_close_anywhere_in_a_wait_for_memory(
    log: embedlog.Log, stuck: Stuck
) -> None:
    nth = 0
    interrupt = None
    while interrupt is None or interrupt.struck is not None:
        nth += 1
        stuck.reached.clear()
        stuck.go.clear()
        producer = log.producer(
            buffer_memory=3000, linger_ms=0, batch_size=1000, max_block_ms=50_000
        )
        producer.send("one", b"x" * 900)
        assert stuck.reached.wait(10)
        while producer._accumulator.has_memory(1000):
            producer.send("one", b"x" * 900)

        def release(producer: embedlog.Producer = producer) -> None:
            wait_until(lambda: producer._rows.waiting or producer._rows.closed)
            stuck.go.set()

        def send(producer: embedlog.Producer = producer) -> None:
            with contextlib.suppress(ClosedError):
                producer.send("one", b"x" * 900)

        def close(producer: embedlog.Producer = producer) -> None:
            stuck.go.set()
            producer.close()

        other = threading.Thread(target=release)
        other.start()
        interrupt = Interrupt(nth, ("accumulator.py",), close)
        within(20, partial(interrupt.run, send))
        producer.close()
        other.join()
    assert nth > 10


# ---- transactions ---------------------------------------------------------------------------------


def test_a_call_of_a_signal_handler_inside_another_call_is_refused_at_once(
    log: embedlog.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    with log.producer(transactional_id="x", max_block_ms=5000) as producer:
        producer.init_transactions()
        owner = producer._transaction._owner  # type: ignore[union-attr]
        real = owner.end
        found = []

        def end(commit: bool, deadline_ns: int) -> None:
            with pytest.raises(StateError, match="inside another call of its thread") as refused:
                producer.abort_transaction()
            found.append(refused.value)
            real(commit, deadline_ns)

        monkeypatch.setattr(owner, "end", end)
        with producer.transaction():
            producer.send("one", b"v")
        assert len(found) == 1
        monkeypatch.undo()
        with producer.transaction():
            producer.send("one", b"w")
    assert values(log) == [b"v", b"w"]


# ---- columns --------------------------------------------------------------------------------------


@OF_THIS_INTERPRETER
def test_a_signal_handler_may_close_anywhere_in_the_bookkeeping_of_a_batch(
    log: embedlog.Log,
) -> None:
    nth = 0
    interrupt = None
    rows = 0
    while interrupt is None or interrupt.struck is not None:
        nth += 1
        producer = log.producer(linger_ms=60_000)
        futures: list[embedlog.Future] = []

        def send(
            producer: embedlog.Producer = producer, futures: list[embedlog.Future] = futures
        ) -> None:
            with contextlib.suppress(ClosedError):
                futures.append(producer.send_batch("one", [b"v"] * 3))

        interrupt = Interrupt(nth, ("batch_send.py",), producer.close)
        within(10, partial(interrupt.run, send))
        producer.close()
        for future in futures:
            problem = future.exception(10)
            assert problem is None or isinstance(problem, ClosedError), interrupt.struck
            rows += 3 if problem is None else 0
    assert nth > 20
    assert len(values(log)) == rows


def test_an_interrupt_before_the_registration_for_the_exit_lets_the_next_start_register(
    log: embedlog.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a worker of `multiprocessing`: without the registration the records of all producers were
    lost at its end.
    """
    registered: list[object] = []

    def interrupted(*arguments: object, **options: object) -> None:
        monkeypatch.setattr(
            multiprocessing.util,
            "Finalize",
            lambda *arguments, **options: registered.append(arguments[1]),
        )
        raise KeyboardInterrupt

    monkeypatch.setattr(
        multiprocessing.process, "parent_process", lambda: multiprocessing.process.current_process()
    )
    monkeypatch.setattr(multiprocessing.util, "Finalize", interrupted)
    monkeypatch.setattr(accumulator, "_finalized_pid", 0)
    with log.producer() as producer:
        with pytest.raises(KeyboardInterrupt):
            producer.send("one", b"v")
        assert not registered
        producer.send("one", b"v").result(20)
    with log.producer() as producer:
        producer.send("one", b"v").result(20)
    assert registered == [accumulator._close_all]
