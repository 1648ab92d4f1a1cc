"""A disk of a set begins to hang while programs send without a pause: their threads of the C core
are inside it, and no call is. Nothing is lost, doubled or reordered.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path

import pyarrow as pa
import pytest

import embedlog
from embedlog._native import system
from embedlog.replicas.decisions import decision_session
from tests.support.opened_sets import isr, paths
from tests.support.replica_directories import CHANGES

LOCK_MS = 3000
CONFIG = {
    "lock.timeout.ms": LOCK_MS,
    "replica.lag.time.max.ms": 3000,
    "log.retention.check.interval.ms": 500,
}
FIRST_S = (LOCK_MS + 3000) / 1000 + 3.0  # for the first call, on a loaded machine
NEXT_S = 3.0  # for the others
BESIDE_S = 4.0  # of sends, after the first slow one
RETURN_S = 60.0
LEADER = 1
FOLLOWER = 2

Send = Callable[[bytes], None]


@pytest.fixture(autouse=True)
def short_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decision waits one second for a sync, and not ten."""
    monkeypatch.setattr(decision_session, "SYNC_NS", 1_000_000_000)


@pytest.fixture(scope="module", autouse=True)
def tracker() -> None:
    """The process of multiprocessing that removes semaphores; its pipe stays open as long as this
    process runs.
    """
    resource_tracker.ensure_running()


@contextmanager
def sender(log: embedlog.Log, kind: str) -> Iterator[Send]:
    """Sends one record, which is acknowledged when the call returns."""
    if kind.startswith("linger"):
        with log.producer(linger_ms=int(kind.removeprefix("linger "))) as producer:
            yield lambda value: void(producer.send("t", value, partition=0).result(60))
    elif kind == "batch":
        with log.producer() as producer:
            yield lambda value: void(
                producer.send_batch("t", pa.array([value]), partition=0).result(60)
            )
    elif kind == "transaction":
        with log.producer(transactional_id="of the test") as producer:
            producer.init_transactions()

            def send(value: bytes) -> None:
                with producer.transaction():
                    producer.send("t", value, partition=0)

            yield send
    else:
        with asyncio.Runner() as runner:
            aio_producer = log.async_producer()
            yield lambda value: runner.run(send_aio(aio_producer, value))
            runner.run(aio_producer.stop())


def void(found: object) -> None:
    assert found is not None


async def send_aio(producer: embedlog.AsyncProducer, value: bytes) -> None:
    await (await producer.send("t", value, partition=0))


def send_beside(
    send: Send, sent: list[bytes], kinds: tuple[str, ...], directory: str
) -> list[float]:
    """The seconds of each of many sends, without a pause, in the midst of which the disk begins to
    hang.
    """
    spent: list[float] = []
    arming = threading.Timer(0.3, lambda: system.fault_arm(kinds, 1, "hang", name=directory))
    arming.start()
    until = time.monotonic() + 0.3 + FIRST_S
    while time.monotonic() < until:
        value = b"%06d" % len(sent)
        began = time.monotonic()
        send(value)
        spent.append(time.monotonic() - began)
        sent.append(value)
        if spent[-1] > 0.09 and system.fault_counters()[1]:
            until = min(until, time.monotonic() + BESIDE_S)
    arming.join()
    assert system.fault_counters()[1], "no write was inside the disk"
    return spent


def wait_for_isr(log: embedlog.Log) -> None:
    until = time.monotonic() + RETURN_S
    while len(isr(log)) < 3:
        assert time.monotonic() < until, "a directory that answers again does not join the ISR"
        log.housekeep()


def _sends(directories: list[Path], end: Connection) -> None:
    """A process that sends without a pause beside its own disk that hangs; the seconds of each
    send.
    """
    with embedlog.open(directories, config=CONFIG) as log, sender(log, "linger 0") as send:
        own = b"%d " % os.getpid()
        sent: list[bytes] = []
        try:
            spent = send_beside(
                lambda value: send(own + value), sent, ("pwrite",), f"/d{LEADER}/t-0/"
            )
        finally:
            system.fault_off()
        end.send((spent, [own + value for value in sent]))
        assert end.recv() == "close"


def test_two_processes_that_send_without_a_pause_are_not_inside_a_disk_that_hangs(
    tmp_path: Path,
) -> None:
    with embedlog.open(paths(tmp_path), config=CONFIG) as log:
        log.create_topic("t", assignment={0: [1, 2, 3]}, config={"min.insync.replicas": 2})
        context = multiprocessing.get_context("spawn")
        ends = []
        for _ in range(2):
            own, other = context.Pipe()
            process = context.Process(target=_sends, args=(paths(tmp_path), other))
            process.start()
            other.close()
            ends.append((own, process))
        results = [own.recv() for own, _ in ends]
        for own, process in ends:
            own.send("close")
            process.join(60)
            process.close()
            own.close()
        for spent, _ in results:
            assert max(spent) < FIRST_S + NEXT_S, sorted(spent)[-6:]
        wait_for_isr(log)
        values = [record.value or b"" for record in log.scan("t").records()]
        for _, sent in results:
            own_values = set(sent)
            assert [value for value in values if value in own_values] == sent
        assert not log.verify_replicas("t")


@pytest.mark.sample(0.2)
@pytest.mark.parametrize("node", [LEADER, FOLLOWER], ids=["leader", "follower"])
@pytest.mark.parametrize(
    ("kinds", "directory"),
    [(("pwrite",), "/t-0/"), (CHANGES, "/")],
    ids=["writes of the partition", "changes of the directory"],
)
@pytest.mark.parametrize("kind", ["linger 0", "linger 5", "asyncio", "transaction", "batch"])
def test_a_send_without_a_pause_is_not_inside_a_disk_that_hangs(
    tmp_path: Path, kind: str, node: int, kinds: tuple[str, ...], directory: str
) -> None:
    with embedlog.open(paths(tmp_path), config=CONFIG) as log:
        log.create_topic("t", assignment={0: [1, 2, 3]}, config={"min.insync.replicas": 2})
        sent: list[bytes] = []
        with sender(log, kind) as send:
            for _ in range(20):
                sent.append(b"%06d" % len(sent))
                send(sent[-1])
            try:
                spent = send_beside(send, sent, kinds, f"/d{node}{directory}")
            finally:
                system.fault_off()
            slow = sorted(spent)[-6:]
            assert slow[-1] < FIRST_S, slow
            assert slow[-2] < NEXT_S, slow
            wait_for_isr(log)
            for _ in range(5):
                sent.append(b"%06d" % len(sent))
                send(sent[-1])
        values = [record.value or b"" for record in log.scan("t").records()]
        assert values == sent
        assert not log.verify_replicas("t")
