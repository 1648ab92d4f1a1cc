"""How a producer ends: closed, dropped, forked, interrupted, with the interpreter; nothing is lost
in silence.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import signal
import threading
import time
from pathlib import Path

import pytest

import embedlog
from embedlog.errors import (
    ClosedError,
    DeadlineError,
    DeliveryError,
    EmbedlogError,
    ForkedError,
    UnknownTopicOrPartitionError,
)
from embedlog.partition.state import PartitionState
from embedlog.producer import transaction_manager
from embedlog.producer.accumulator import Accumulator
from embedlog.testing import faults
from tests.support import producer_helpers
from tests.support.event_loops import run
from tests.support.interrupts import within
from tests.support.producer_helpers import LONG_MS, Stuck, run_program, values

log = producer_helpers.log
producer = producer_helpers.producer
stuck = producer_helpers.stuck


# ---- the end ------------------------------------------------------------------------------------


def test_close_sends_what_is_buffered_and_may_be_called_again(log: embedlog.Log) -> None:
    producer = log.producer(linger_ms=LONG_MS, delivery_timeout_ms=10 * LONG_MS)
    future = producer.send("one", b"v")
    producer.close()
    producer.close()
    assert future.done()
    assert values(log) == [b"v"]
    for call in (
        lambda: producer.send("one", b"v"),
        lambda: producer.send_batch("one", [b"v"]),
        producer.flush,
        producer.__enter__,
    ):
        with pytest.raises(ClosedError):
            call()
    assert "closed" in repr(producer)


def test_a_close_that_runs_out_of_time_fails_the_rest(log: embedlog.Log, stuck: Stuck) -> None:
    producer = log.producer(linger_ms=0)
    written = producer.send("one", b"on its way")
    assert stuck.reached.wait(10)
    dropped = producer.send("one", b"late")
    batch = producer.send_batch("one", [b"late"] * 5)
    with pytest.raises(DeliveryError) as lost:
        producer.close(timeout=0.05)
    assert lost.value.count == 6
    producer.close(timeout=0)
    for future in (dropped, batch):
        with pytest.raises(ClosedError, match="before the record was written"):
            future.result(0)
    stuck.go.set()
    assert written.result(10).offset == 0
    assert values(log) == [b"on its way"]


def test_a_close_has_one_deadline_for_the_records_and_the_abort(
    log: embedlog.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The records use up the whole time. The clock is one that only waits advance."""
    clock = [100.0]
    waits = list[float | None]()

    def flush(timeout_s: float | None) -> bool:
        waits.append(timeout_s)
        clock[0] += timeout_s or 0
        return False

    with log.producer(transactional_id="x") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        with monkeypatch.context() as patched:
            patched.setattr(producer._accumulator, "flush", flush)
            patched.setattr(producer._transaction, "_clock_ns", lambda: int(clock[0] * 1e9))
            patched.setattr(transaction_manager.time, "monotonic", lambda: clock[0])
            with pytest.raises(DeadlineError):
                producer._transaction.close(5)
        assert waits == [5, 0]


def test_closing_the_log_sends_what_its_producers_hold(tmp_path: Path) -> None:
    log = embedlog.open(tmp_path / "log")
    log.create_topic("one")
    producer = log.producer(linger_ms=LONG_MS, delivery_timeout_ms=10 * LONG_MS)
    future = producer.send("one", b"v")
    log.close()
    assert future.result(0).offset == 0


def test_a_flush_that_takes_too_long_says_so(log: embedlog.Log, stuck: Stuck) -> None:
    with log.producer() as producer:
        producer.send("one", b"v")
        with pytest.raises(DeadlineError):
            producer.flush(0.05)
        stuck.go.set()
        producer.flush(10)


def test_a_dropped_producer_sends_what_it_holds_and_warns(log: embedlog.Log) -> None:
    producer = log.producer(linger_ms=LONG_MS, delivery_timeout_ms=10 * LONG_MS)
    future = producer.send("one", b"v")
    with pytest.warns(ResourceWarning, match="dropped without close"):
        del producer
    assert future.result(10).offset == 0


def test_an_idle_producer_costs_no_time(log: embedlog.Log, producer: embedlog.Producer) -> None:
    producer.send("one", b"v").result(10)
    before = time.process_time()
    threading.Event().wait(0.5)
    assert time.process_time() - before < 0.05


def test_pickling_is_refused_with_the_way_to_do_it(producer: embedlog.Producer) -> None:
    with pytest.raises(TypeError, match="open the log in the process"):
        pickle.dumps(producer)


def test_a_forked_child_is_refused_and_the_parent_goes_on(log: embedlog.Log) -> None:
    with log.producer(linger_ms=LONG_MS, delivery_timeout_ms=10 * LONG_MS) as producer:
        pending = producer.send("one", b"of the parent")
        child = os.fork()
        if child == 0:
            calls = (
                lambda: producer.send("one", b"v"),
                lambda: producer.send_batch("one", [b"v"]),
                producer.flush,
                pending.result,
            )
            outcomes = []
            for call in calls:
                try:
                    call()
                    outcomes.append("accepted")
                except ForkedError:
                    outcomes.append("refused")
                except EmbedlogError as error:
                    outcomes.append(repr(error))
            producer.close()
            os._exit(0 if outcomes == ["refused"] * 4 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert pending.result(10).offset == 0
    assert values(log) == [b"of the parent"]


def test_what_is_buffered_at_the_interpreters_exit_is_written(tmp_path: Path) -> None:
    done = run_program(
        """
        import sys, embedlog
        log = embedlog.open(sys.argv[1])
        log.create_topic("one")
        producer = log.producer(linger_ms=60_000, delivery_timeout_ms=600_000, compression_type="zstd")
        for number in range(1000):
            producer.send("one", b"%d" % number)
        """,
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    with embedlog.open(tmp_path / "log") as log:
        assert values(log) == [b"%d" % number for number in range(1000)]


def test_what_cannot_be_written_at_exit_is_counted(tmp_path: Path) -> None:
    done = run_program(
        """
        import sys, threading, embedlog, embedlog.producer.accumulator
        embedlog.producer.accumulator.EXIT_TIMEOUT_S = 0.1
        log = embedlog.open(sys.argv[1])
        log.create_topic("one")
        partition = type(log._engine.partition("one", 0))
        partition.append = lambda *_, **__: threading.Event().wait()
        producer = log.producer(linger_ms=0)
        producer.send("one", b"stuck")
        while producer.metrics()["buffer-available-bytes"] == 32 << 20: pass
        import time; threading.Event().wait(0.2)
        for number in range(7):
            producer.send("one", b"v")
        """,
        tmp_path,
    )
    assert "7 records" in done.stderr


@pytest.mark.parametrize("number", ["SIGINT", pytest.param("SIGTERM", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "call", ["future.result()", "producer.flush()", "producer.close()", "future.exception(30)"]
)
def test_a_signal_ends_a_wait_at_once_and_loses_nothing(
    tmp_path: Path, call: str, number: str
) -> None:
    done = run_program(
        f"""
        import os, signal, sys, threading, time, embedlog, embedlog.producer.accumulator
        embedlog.producer.accumulator.EXIT_TIMEOUT_S = 0.1
        log = embedlog.open(sys.argv[1], config={{"housekeeping": False}})
        log.create_topic("one")
        real = type(log._engine.partition("one", 0)).append
        go = threading.Event()
        def append(self, *arguments, **keywords):
            go.wait()
            return real(self, *arguments, **keywords)
        type(log._engine.partition("one", 0)).append = append
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        producer = log.producer(linger_ms=0)
        future = producer.send("one", b"v")
        struck = []
        def strike():
            threading.Event().wait(0.3)
            struck.append(time.monotonic())
            os.kill(os.getpid(), signal.{number})
        threading.Thread(target=strike).start()
        try:
            {call}
        except KeyboardInterrupt:
            print("late" if time.monotonic() - struck[0] > 0.1 else "interrupted")
        go.set()
        print(future.result(10).offset)
        """,
        tmp_path,
    )
    assert done.stdout.split() == ["interrupted", "0"], done.stderr


def test_names_and_numbers_are_told(log: embedlog.Log) -> None:
    before = signal.getsignal(signal.SIGINT)
    with log.producer(client_id="mine") as producer:
        assert repr(producer) == "<embedlog.Producer mine>"
        producer.send("one", b"v").result(10)
        with pytest.raises(UnknownTopicOrPartitionError):
            producer.partitions_for("unknown")
    assert issubclass(ClosedError, EmbedlogError)
    assert logging.getLogger("embedlog.producer").name.startswith("embedlog")
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("kind", ["sync", "asyncio"])
def test_a_close_that_times_out_raises_what_its_thread_has_failed_meanwhile(
    log: embedlog.Log, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread logged it as if the close had returned, which then returned without an error."""
    abandon = Accumulator.abandon

    def late(accumulator: Accumulator) -> None:
        accumulator.rows.wake()
        assert accumulator._finished.wait(20)
        abandon(accumulator)

    async def on_loop() -> None:
        producer = log.async_producer(linger_ms=0)
        future = await producer.send("one", b"v")
        with pytest.raises(DeliveryError, match="1 record not written"):
            await producer.close(0)
        assert future.done()

    monkeypatch.setattr(Accumulator, "abandon", late)
    with faults(log).disk_full(required=False):
        if kind == "asyncio":
            run(on_loop())
            return
        producer = log.producer(linger_ms=0)
        future = producer.send("one", b"v")
        with pytest.raises(DeliveryError, match="1 record not written"):
            producer.close(0)
        assert future.done()


@pytest.mark.parametrize("transactional", [False, True])
def test_a_log_is_closed_inside_the_load_of_a_partition_that_its_producer_waits_for(
    tmp_path: Path, transactional: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a signal handler: the producer's thread waited without limit for the thread that waited
    for it.
    """
    config = {"housekeeping": False, "lock.timeout.ms": 300}
    with embedlog.open(tmp_path / "log", config=config) as log:
        log.create_topic("one")
    log = embedlog.open(tmp_path / "log", config=config)
    options = {"transactional_id": "x"} if transactional else {}
    producer = log.producer(
        linger_ms=0, delivery_timeout_ms=1000, request_timeout_ms=500, max_block_ms=1000, **options
    )
    if transactional:
        producer.init_transactions()
        producer.begin_transaction()
    load = PartitionState._load_locked
    delivers = Accumulator._deliver
    waits = threading.Event()

    def deliver(accumulator: Accumulator, queue: object) -> None:
        waits.set()
        delivers(accumulator, queue)

    def interrupted(state: PartitionState, mapped: object) -> None:
        monkeypatch.setattr(PartitionState, "_load_locked", load)
        producer.send("one", b"v").add_done_callback(lambda future: None)
        assert waits.wait(20)
        log.close()
        load(state, mapped)

    monkeypatch.setattr(Accumulator, "_deliver", deliver)
    monkeypatch.setattr(PartitionState, "_load_locked", interrupted)
    with contextlib.suppress(EmbedlogError):
        within(30, lambda: log.last_record("one", 0))
    assert log._engine.closed
