"""The close of a log with its clients: of those that were dropped, and of those that another thread
makes meanwhile.
"""

from __future__ import annotations

import collections
import gc
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog.engine.clients import Children
from embedlog.errors import DeliveryError, LockTimeoutError
from embedlog.producer.accumulator import Accumulator


@pytest.fixture
def log(tmp_path: Path) -> Iterator[embedlog.Log]:
    with embedlog.open(tmp_path / "log", config={"housekeeping": False}) as opened:
        opened.create_topic("t", 2)
        yield opened


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_the_records_of_a_dropped_producer_are_written_before_its_log_is_closed(
    log: embedlog.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were lost: the log was closed before the thread of the producer wrote them."""
    closing = threading.Event()
    left = threading.Event()
    close = Children._close
    release = log._engine._release_directories
    deliver = Accumulator._deliver

    def closed(children: Children) -> list[DeliveryError]:
        closing.set()
        return close(children)

    def late(accumulator: Accumulator, queue: Any) -> None:
        assert closing.wait(20)
        left.wait(0.3)  # the present close comes after the delivery
        deliver(accumulator, queue)

    monkeypatch.setattr(Children, "_close", closed)
    monkeypatch.setattr(log._engine, "_release_directories", lambda: (release(), left.set()))
    monkeypatch.setattr(Accumulator, "_deliver", late)
    producer = log.producer(linger_ms=60_000)
    futures = [producer.send("t", b"%d" % number) for number in range(1000)]
    del producer
    gc.collect()
    log.close()
    assert [future.exception(20) for future in futures] == [None] * 1000
    with embedlog.open(log.path, read_only=True) as again:
        assert len(list(again.scan("t").records())) == 1000


def test_a_log_is_closed_while_another_thread_makes_clients() -> None:
    """The iteration over the clients failed with RuntimeError, and the log stayed open. The oldest
    clients are dropped.
    """
    children = Children()
    made: collections.deque[Any] = collections.deque(maxlen=2000)

    class Client:
        closed = False

        def close(self) -> None:
            self.closed = True

    def make() -> None:
        while not ended.is_set():
            made.append(Client())
            children.add(made[-1])

    ended = threading.Event()
    first = Client()
    children.add(first)
    thread = threading.Thread(target=make)
    switch_interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    thread.start()
    try:
        for _ in range(600):
            with children.close_first():
                assert first.closed
    finally:
        sys.setswitchinterval(switch_interval_s)
        ended.set()
        thread.join()


class Failing:
    """A client whose first close raises."""

    def __init__(self, problem: BaseException | None) -> None:
        self.problem = problem
        self.is_closed = False

    def close(self) -> None:
        problem = self.problem
        self.problem = None
        if problem is not None:
            raise problem
        self.is_closed = True


@pytest.mark.parametrize("problem", [LockTimeoutError("late"), KeyboardInterrupt()])
def test_losses_are_logged_if_the_close_of_another_client_raises(
    problem: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    children = Children()
    clients = [Failing(DeliveryError("2 records not written", count=2)), Failing(problem)]
    for client in clients:
        children.add(client)
    with pytest.raises(type(problem)), children.close_first():
        pytest.fail("the log stays open")
    assert "2 records not written" in caplog.text


def test_every_client_is_closed_if_others_raise_errors(caplog: pytest.LogCaptureFixture) -> None:
    children = Children()
    clients = [Failing(LockTimeoutError("first")), Failing(LockTimeoutError("second"))]
    last = Failing(None)
    for client in (*clients, last):
        children.add(client)
    with pytest.raises(LockTimeoutError, match="first"), children.close_first():
        pytest.fail("the log stays open")
    assert last.is_closed
    assert "second" in caplog.text
    with children.close_first():
        assert all(client.is_closed for client in clients)
