"""E19, in fast form: clocks that jump, forks with open handles, pools, threads, an interpreter that
ends during appends.

Nothing is deleted early, no lock remains, no process waits for ever; buffered records are written,
or a warning counts them.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.forkserver
import os
import select
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import embedlog
from embedlog._native import system
from embedlog.errors import ForkedError
from tests.faults.harness.processes import until
from tests.support.clocks_and_forks import _forkserver as _forkserver
from tests.support.clocks_and_forks import _true_clock as _true_clock

DAY_MS = 86_400_000
SMALL = {"segment.bytes": 400}
LONG = {"linger_ms": 60_000, "delivery_timeout_ms": 600_000}


def append(log: embedlog.Log, count: int = 1, topic: str = "t") -> None:
    with log.producer(linger_ms=0) as producer:
        for _ in range(count):
            producer.send(topic, value=b"v" * 100).result(timeout=10)


def values(path: Path, topic: str = "t") -> list[bytes]:
    with embedlog.open(path, config={"housekeeping": False}) as log:
        return [record.value for record in log.scan(topic).records()]


def run_program(text: str, path: Path, timeout_s: float = 30) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(text), str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)


# ---- clocks ------------------------------------------------------------------------------------------------------------


def test_a_clock_that_jumps_deletes_nothing_before_its_time(tmp_path: Path) -> None:
    with embedlog.open(tmp_path / "log", config={"housekeeping": False}) as log:
        log.create_topic("t", config={**SMALL, "retention.ms": 3 * DAY_MS})
        log.create_topic("back", config={**SMALL, "retention.ms": 60_000})
        for shift_ms in (0, 2 * DAY_MS, -2 * DAY_MS, 2 * DAY_MS, 0):
            system.shift_wall(shift_ms)
            append(log, 2)
            if shift_ms <= 0:
                append(log, 2, "back")
                log.housekeep()
            partition = log._engine.partition("t", 0)
            assert partition.bounds().log_start == 0
        assert log._engine.partition("back", 0).bounds().log_start == 0
        assert sum(1 for _ in log.scan("t").records()) == 10


@pytest.mark.parametrize("shift_ms", [2 * DAY_MS, -2 * DAY_MS], ids=["ahead", "back"])
def test_a_clock_that_jumps_ends_no_wait_and_delays_no_sync(tmp_path: Path, shift_ms: int) -> None:
    config = {"housekeeping": False, "lock.timeout.ms": 5000}
    with embedlog.open(tmp_path / "log", config=config) as log, log.consumer() as consumer:
        log.create_topic("t", config={"flush.ms": 1})
        consumer.subscribe(["t"])
        timer = threading.Timer(0.02, system.shift_wall, [shift_ms])
        timer.start()
        began = time.monotonic()
        assert consumer.poll(0.2) == []
        assert 0.2 <= time.monotonic() - began < 5
        timer.join()
        append(log)
        assert len(consumer.poll(5)) == 1

        def synced() -> bool:
            assert log._housekeeper is not None
            log._housekeeper.jobs.flush_due()
            return log.durable_offset("t", 0) == 1

        until(synced, "the sync that is due")


@pytest.mark.parametrize("shift_ms", [2 * DAY_MS, -2 * DAY_MS], ids=["ahead", "back"])
def test_a_lock_is_waited_for_by_another_clock(tmp_path: Path, shift_ms: int) -> None:
    config = {"housekeeping": False, "lock.timeout.ms": 200}
    with (
        embedlog.open(tmp_path / "log", config=config) as log,
        embedlog.open(tmp_path / "log", config=config) as other,
    ):
        log.create_topic("t")
        append(log)
        append(other)
        with log._engine.partition("t", 0).exclusive():
            system.shift_wall(shift_ms)
            began = time.monotonic()
            with (
                pytest.raises(embedlog.LockTimeoutError),
                other._engine.partition("t", 0).exclusive(),
            ):
                pass
            assert 0.15 < time.monotonic() - began < 5


# ---- forks -------------------------------------------------------------------------------------------------------------


def in_child(work: Callable[[], object], timeout_s: float = 20.0) -> int:
    """Exit status of a forked child that does `work` and ends without looking back; one that hangs
    is killed: -9.
    """
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    with open(os.pidfd_open(pid), "rb") as descriptor:
        if not select.select([descriptor], [], [], timeout_s)[0]:
            os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_child_refuses_what_it_inherited_and_opens_anew(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with (
        embedlog.open(path, config={"housekeeping": False}) as log,
        log.producer(**LONG) as producer,
    ):
        log.create_topic("t")
        future = producer.send("t", b"the parent's")
        with log.consumer("t", auto_offset_reset="earliest") as consumer:

            def work() -> None:
                scan = log.scan
                for call in (
                    lambda: producer.send("t", b"v"),
                    producer.flush,
                    lambda: future.result(5),
                    consumer.poll,
                    lambda: scan("t"),
                    lambda: log.create_topic("u"),
                    log.flush,
                ):
                    with pytest.raises(ForkedError):
                        call()
                for each in (producer, consumer, log):
                    each.close()
                with (
                    embedlog.open(path, config={"housekeeping": False}) as own,
                    own.producer() as sender,
                ):
                    sender.send("t", b"the child's").result(10)

            assert in_child(work) == 0
            assert future.result(10).offset == 1
    assert values(path) == [b"the child's", b"the parent's"]


def test_children_forked_amid_appends_are_stopped_by_no_lock(tmp_path: Path) -> None:
    """Whatever lock another thread held at the moment of the fork, the child does not wait for
    it.
    """
    path = tmp_path / "log"
    with (
        embedlog.open(path, config={"housekeeping": False}) as log,
        log.producer(linger_ms=0) as producer,
    ):
        log.create_topic("t", partitions=2)
        over = threading.Event()
        counts: list[int] = []

        def hammer() -> None:
            count = 0
            while not over.is_set():
                producer.send("t", b"%d" % count).result(20)
                count += 1
            counts.append(count)

        def work() -> None:
            with (
                embedlog.open(path, config={"housekeeping": False}) as own,
                own.producer() as sender,
            ):
                sender.send("t", b"a child's").result(10)

        threads = [threading.Thread(target=hammer) for _ in range(3)]
        for thread in threads:
            thread.start()
        assert [in_child(work) for _ in range(15)] == [0] * 15
        over.set()
        for thread in threads:
            thread.join(20)
    found = Counter(values(path))
    assert found.pop(b"a child's") == 15
    assert sum(found.values()) == sum(counts)


def test_a_lock_dies_with_the_parent_though_a_child_lives_on(tmp_path: Path) -> None:
    """A child inherits the descriptors, and with them the locks: it releases them."""
    program = """
        import os, sys, embedlog
        log = embedlog.open(sys.argv[1], config={"housekeeping": False})
        log.create_topic("t")
        producer = log.producer(linger_ms=0)
        producer.send("t", b"first").result()
        with log._engine.partition("t", 0).exclusive():
            if os.fork() == 0:
                os.close(1)
                os.read(0, 1)                  # runs until the test closes the pipe
                os._exit(0)
            print("locked", flush=True)
            os.kill(os.getpid(), 9)
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path / "log")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.read() == "locked\n"
        assert parent.wait(20) == -9
        with embedlog.open(
            tmp_path / "log", config={"housekeeping": False, "lock.timeout.ms": 5000}
        ) as log:
            append(log)
    assert len(values(tmp_path / "log")) == 2


# ---- the end of a process ----------------------------------------------------------------------------------------------


def buffer_some(path: str, count: int) -> None:
    """A worker that forgets to flush."""
    log = embedlog.open(path, config={"housekeeping": False})
    kept.append(log.producer(**LONG))
    for number in range(count):
        kept[-1].send("t", b"%d" % number)


kept: list[embedlog.Producer] = []


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_what_a_worker_has_buffered_at_its_end_is_written(tmp_path: Path, method: str) -> None:
    with embedlog.open(tmp_path / "log") as log:
        log.create_topic("t")
    context = multiprocessing.get_context(method)
    process = context.Process(target=buffer_some, args=(str(tmp_path / "log"), 50))
    process.start()
    process.join(30)
    assert process.exitcode == 0
    assert values(tmp_path / "log") == [b"%d" % number for number in range(50)]


def test_an_interpreter_that_ends_amid_sends_writes_what_it_took(tmp_path: Path) -> None:
    program = """
        import atexit, sys, threading
        taken = []
        atexit.register(lambda: print(len(taken)))     # the last to be called
        import embedlog
        log = embedlog.open(sys.argv[1])
        log.create_topic("t", partitions=3)
        producer = log.producer()
        def work():
            while True:
                try:
                    producer.send("t", b"v" * 50)
                except embedlog.ClosedError:
                    return
                taken.append(1)
        for _ in range(3):
            threading.Thread(target=work, daemon=True).start()
        while len(taken) < 20_000:
            pass
    """
    answer = run_program(program, tmp_path / "log")
    assert (answer.returncode, answer.stderr) == (0, "")
    assert len(values(tmp_path / "log")) == int(answer.stdout) >= 20_000


def test_an_interpreter_that_ends_amid_waits_ends(tmp_path: Path) -> None:
    """Threads that poll, iterate, wait for a record, in the log or in a loop, do not keep it."""
    program = """
        import asyncio, sys, threading, embedlog
        log = embedlog.open(sys.argv[1])
        log.create_topic("t")
        begun = []
        def poll():
            consumer = log.consumer("t")
            begun.append(1)
            consumer.poll(None)
        async def follow():
            async with log.async_consumer("t") as consumer:
                begun.append(1)
                async for record in consumer:
                    pass
        for work in (poll, poll, lambda: asyncio.run(follow())):
            threading.Thread(target=work, daemon=True).start()
        while len(begun) < 3:
            pass
    """
    answer = run_program(program, tmp_path / "log")
    assert (answer.returncode, answer.stderr) == (0, "")
