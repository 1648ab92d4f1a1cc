"""Failures of programs that neither flush nor close nor observe: a log message, in time and without
repetition.
"""

from __future__ import annotations

import re

import pytest

import embedlog
from embedlog.errors import ClosedError, DeliveryError
from embedlog.producer import delivery_failures
from embedlog.producer.delivery_failures import DeliveryFailures
from embedlog.telemetry import log_messages
from embedlog.telemetry.metrics import Metrics
from tests.support import producer_helpers
from tests.support.delivery_failures import HEARD, lost_lines, refuse
from tests.support.partition_queues import accumulator
from tests.support.producer_helpers import wait_until

log = producer_helpers.log


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was logged lately."""
    monkeypatch.setattr(log_messages, "report", log_messages.Recurring().report)


def test_a_producer_that_never_flushes_logs_what_fails_in_the_background(
    log: embedlog.Log,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    fresh: None,
) -> None:
    refuse(monkeypatch, log, embedlog.StorageError("the disk is gone"))
    monkeypatch.setattr(delivery_failures, "NOTICE_S", 0.0)
    with log.producer() as producer:
        producer.send("one", b"v")
        wait_until(lambda: lost_lines(caplog))
        for _ in range(20):
            producer.send("one", b"v")
            wait_until(lambda: not producer._rows.pending())
        assert [re.findall(r"(\d+) records for (\w+)", line) for line in lost_lines(caplog)] == [
            [("1", "one")]
        ]
        assert "the disk is gone" in lost_lines(caplog)[0]
        with pytest.raises(DeliveryError) as lost:
            producer.flush()
        assert lost.value.count == 21


class Watch:
    """In the place of the module `time`."""

    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


def test_only_what_stays_unheard_is_logged_and_once_an_hour_at_most(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    watch = Watch()
    monkeypatch.setattr(delivery_failures, "time", watch)
    monkeypatch.setattr(log_messages, "report", log_messages.Recurring(watch.monotonic).report)
    rung: list[float] = []
    found = DeliveryFailures("p", Metrics(), raises=True)
    found.on_failure = lambda: rung.append(watch.now_s)
    rows = accumulator()

    def fail(topic: str) -> embedlog.Future:
        future, promise = rows.promise(True)
        found.fail(promise, topic, 0, ClosedError("reason"), 1)
        return future

    assert found.report_if_due() is None
    for name, hear in HEARD.items():
        hear(fail(name))
    fail("lost")
    assert rung == [0.0]
    watch.now_s = delivery_failures.NOTICE_S / 2
    assert found.report_if_due() == delivery_failures.NOTICE_S / 2
    assert lost_lines(caplog) == []
    for _ in range(61):
        watch.now_s += delivery_failures.NOTICE_S
        assert found.report_if_due() is None
        fail("lost")
    assert len(rung) == 62
    lines = lost_lines(caplog)
    assert len(lines) == 2
    assert all("records for lost" in line for line in lines)
    found.take()
    watch.now_s += delivery_failures.NOTICE_S
    assert found.report_if_due() is None
    assert lost_lines(caplog) == lines


def test_a_failure_after_a_flush_or_after_an_older_one_has_a_minute_of_its_own(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fresh: None
) -> None:
    watch = Watch()
    monkeypatch.setattr(delivery_failures, "time", watch)
    failures = DeliveryFailures("p", Metrics(), raises=True)
    rows = accumulator()

    def fail(topic: str) -> None:
        failures.fail(rows.promise(True)[1], topic, 0, ClosedError("reason"), 1)

    fail("flushed")
    failures.take()
    watch.now_s = 10.0
    fail("first")
    watch.now_s = 50.0
    fail("second")
    watch.now_s = 60.0
    assert failures.report_if_due() == 10.0
    watch.now_s = 70.0
    assert failures.report_if_due() == 40.0
    assert [line.split(" for ")[1].split()[0] for line in lost_lines(caplog)] == ["first"]
    watch.now_s = 110.0
    assert failures.report_if_due() is None
    assert [line.split(" for ")[1].split()[0] for line in lost_lines(caplog)] == ["first", "second"]


def test_a_failure_of_a_finalizer_during_a_report_is_reported_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fresh: None
) -> None:
    """The notice of its failure was forgotten."""
    watch = Watch()
    monkeypatch.setattr(delivery_failures, "time", watch)
    failures = DeliveryFailures("p", Metrics(), raises=True)
    rows = accumulator()
    is_unreceived = failures._is_unreceived

    def fail(topic: str) -> None:
        failures.fail(rows.promise(True)[1], topic, 0, ClosedError("reason"), 1)

    def send_meanwhile(failure: delivery_failures.DeliveryFailure) -> bool:
        fail(f"{failure.topic}-meanwhile")
        return is_unreceived(failure)

    fail("a")
    fail("b")
    watch.now_s = delivery_failures.NOTICE_S
    monkeypatch.setattr(failures, "_is_unreceived", send_meanwhile)
    assert failures.report_if_due() == delivery_failures.NOTICE_S
    monkeypatch.undo()
    assert len(failures.take()) == 4
    assert len(lost_lines(caplog)) == 2


def test_failures_that_are_received_during_a_flush_are_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failures = DeliveryFailures("p", Metrics(), raises=True)
    future, promise = accumulator().promise(True)
    failures.fail(promise, "t", 0, ClosedError("reason"), 1)
    take = failures.take

    def take_and_read() -> list[delivery_failures.DeliveryFailure]:
        taken = take()
        future.exception()
        return taken

    monkeypatch.setattr(failures, "take", take_and_read)
    failures.raise_or_log_unreceived()
