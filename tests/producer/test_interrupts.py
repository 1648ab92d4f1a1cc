"""Ctrl-C, and signal handlers that close, inside the calls of a producer: the next calls work, and every close ends."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable

import pytest

import embedlog
from embedlog.producer import accumulator
from tests.support import producer_helpers
from tests.support.interrupts import OF_THIS_INTERPRETER, Interrupt
from tests.support.producer_helpers import values, wait_until

log = producer_helpers.log


def within(seconds: float, call: Callable[[], object]) -> None:
    """The call must end in that time; it runs on another thread, which would otherwise stop the test."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), "the call does not end"


# ---- the start of the thread ----------------------------------------------------------------------


def threads_of(producer: embedlog.Producer) -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == producer._accumulator._name]


def test_an_interrupt_after_the_start_of_the_thread_leaves_one_thread(log: embedlog.Log, monkeypatch: pytest.MonkeyPatch) -> None:
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
        producer.send("one", b"%d" % number).add_done_callback(lambda _: on_thread.append(producer._accumulator.on_thread()))
    producer.flush(10)
    wait_until(lambda: len(threads_of(producer)) == 1)
    within(10, producer.close)
    assert set(on_thread) == {True}
    assert values(log) == [b"0", b"1", b"2"]


@OF_THIS_INTERPRETER
def test_an_interrupt_anywhere_in_the_first_send_or_in_close_leaves_a_producer_that_ends(log: embedlog.Log) -> None:
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
    waited, other = log.producer(linger_ms=0), log.producer(linger_ms=0)
    go, main = threading.Event(), threading.get_ident()
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
