"""User code that raises exceptions outside of Exception: it ends no thread of the library and
prevents no other callback.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog.admin.housekeeper import Housekeeper
from embedlog.errors import ListenerError
from embedlog.hooks import callbacks
from tests.support import producer_helpers
from tests.support.producer_helpers import wait_until

log = producer_helpers.log


class Raising:
    """An interceptor of both clients, each of whose methods raises."""

    heard: list[str]

    def __init__(self, heard: list[str], raised: type[BaseException] | None) -> None:
        self.heard = heard
        self.raised = raised

    def _called(self, name: str) -> None:
        self.heard.append(name)
        if self.raised is not None:
            raise self.raised

    def on_send(self, record: Any) -> Any:
        self._called("send")
        return record

    def on_acknowledgement(self, metadata: Any, error: BaseException | None) -> None:
        self._called("acknowledgement")

    def on_consume(self, records: Any) -> Any:
        self._called("consume")
        return records

    def on_commit(self, offsets: Any) -> None:
        self._called("commit")

    def close(self) -> None:
        self._called("close")


@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_goes_on_in_the_main_thread_only(raised: type[BaseException]) -> None:
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(callbacks.is_interrupt(raised())))
    thread.start()
    thread.join()
    assert (callbacks.is_interrupt(raised()), found) == (True, [False])
    assert not callbacks.is_interrupt(asyncio.CancelledError())


def test_a_report_whose_handler_raises_goes_to_the_hook_of_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise SystemExit("the handler")

    hooked: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", lambda what: hooked.append(what.exc_type) or 1 / 0)
    logger = logging.getLogger("tests.edges")
    broken = Broken()
    logger.addHandler(broken)
    try:
        callbacks.log_exception(logger, "it failed")
    finally:
        logger.removeHandler(broken)
    assert hooked == [SystemExit]


def test_interceptors_of_both_clients_may_raise_anything(log: embedlog.Log) -> None:
    heard: list[str] = []
    both = [Raising([], asyncio.CancelledError), Raising(heard, None)]
    with log.producer(interceptor_classes=both) as producer:
        assert producer.send("one", b"v").result(10).offset == 0
        producer.flush()
    config: Any = {"group_id": "g", "auto_offset_reset": "earliest", "interceptor_classes": both}
    with log.consumer("one", **config) as consumer:
        assert [record.value for record in consumer.poll(timeout=10)] == [b"v"]
        consumer.commit()
    assert [name for name in heard if name != "commit"] == [
        "send",
        "acknowledgement",
        "close",
        "consume",
        "close",
    ]
    assert "commit" in heard


def test_the_callback_of_a_commit_may_raise_anything(log: embedlog.Log) -> None:
    called: list[Any] = []

    def callback(offsets: Any, error: BaseException | None) -> None:
        called.append(error)
        raise asyncio.CancelledError

    with log.producer() as producer:
        producer.send("one", b"v")
    with log.consumer(
        "one", group_id="g", auto_offset_reset="earliest", enable_auto_commit=False
    ) as consumer:
        assert consumer.poll(timeout=10)
        consumer.commit_async(callback=callback)
        consumer.commit_async(callback=callback)
        wait_until(lambda: consumer.poll(0) == [] and len(called) == 2)
    assert called == [None, None]


def test_a_listener_may_raise_anything_and_the_assignment_stands(log: embedlog.Log) -> None:
    def assigned(_: object) -> None:
        raise asyncio.CancelledError

    with log.consumer(group_id="g") as consumer:
        consumer.subscribe(["one"], on_assigned=assigned)
        with pytest.raises(ListenerError) as caught:
            wait_until(lambda: consumer.poll(timeout=0.1))
        assert isinstance(caught.value.__cause__, asyncio.CancelledError)
        assert len(consumer.assignment()) == 1


def test_nothing_that_a_round_raises_ends_the_housekeeper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds: list[None] = []

    def tick(_: Housekeeper) -> None:
        rounds.append(None)
        raise SystemExit

    monkeypatch.setattr(Housekeeper, "tick", tick)
    with embedlog.open(tmp_path / "log", config={"log.flush.scheduler.interval.ms": 5}):
        wait_until(lambda: len(rounds) > 3)
