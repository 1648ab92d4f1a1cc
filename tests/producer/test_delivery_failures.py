"""Failed records that the program does not observe: they are raised, or logged where nothing can be
raised.
"""

from __future__ import annotations

import gc
import pickle
import random
import re
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedlog
from embedlog.errors import (
    ClosedError,
    DeadlineError,
    DeliveryError,
    InvalidRecordError,
    InvalidTimestampError,
    RecordTooLargeError,
    TransactionAbortedError,
    UnknownTopicOrPartitionError,
)
from embedlog.producer.delivery_failures import ELSEWHERE, ENTRIES_MAX, DeliveryFailures
from embedlog.telemetry.metrics import Metrics
from tests.support import producer_helpers
from tests.support.delivery_failures import HEARD, lost_lines, refuse
from tests.support.partition_queues import accumulator
from tests.support.producer_helpers import LONG_MS, Stuck, run_program, values, wait_until

log = producer_helpers.log
stuck = producer_helpers.stuck
Send = Callable[[embedlog.Producer], embedlog.Future]

WRONG: dict[str, tuple[Send, type[Exception], int]] = {
    "missing topic": (lambda p: p.send("typo", b"x"), UnknownTopicOrPartitionError, 1),
    "missing partition": (
        lambda p: p.send("t", b"x", partition=9),
        UnknownTopicOrPartitionError,
        1,
    ),
    "too large": (lambda p: p.send("t", b"x" * 2_000_000), RecordTooLargeError, 1),
    "no key, compacted": (lambda p: p.send("c", b"x"), InvalidRecordError, 1),
    "time in ns": (lambda p: p.send("t", b"x", timestamp_ms=10**18), InvalidTimestampError, 1),
    "batch, missing topic": (
        lambda p: p.send_batch("typo", [b"x"] * 1000),
        UnknownTopicOrPartitionError,
        1000,
    ),
    "batch, missing partition": (
        lambda p: p.send_batch("t", [b"x"] * 7, partition=9),
        UnknownTopicOrPartitionError,
        7,
    ),
    "batch, one too large": (
        lambda p: p.send_batch("t", [b"x", b"y" * 2_000_000]),
        RecordTooLargeError,
        2,
    ),
    "batch, array": (
        lambda p: p.send_batch("typo", np.array([b"x"] * 30)),
        UnknownTopicOrPartitionError,
        30,
    ),
}


@pytest.fixture(autouse=True)
def compacted(log: embedlog.Log) -> None:
    log.create_topic("c", config={"cleanup.policy": "compact"})


# ---- raised failures -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", WRONG)
def test_what_fails_unheard_is_raised_once_by_flush_and_counted(
    log: embedlog.Log, name: str
) -> None:
    send, kind, count = WRONG[name]
    with log.producer() as producer:
        send(producer)
        with pytest.raises(DeliveryError) as lost:
            producer.flush()
        assert lost.value.count == count
        assert [(topic, type(error)) for topic, _, error in lost.value.errors] == [
            (lost.value.errors[0][0], kind),
        ]
        assert f"{count} record" in str(lost.value)
        assert str(lost.value.errors[0][2]) in str(lost.value)
        producer.flush()
        assert producer.metrics()["record-error-total"] == count


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("way", ["close", "with", "close of the log", "with of the log"])
def test_every_end_in_order_raises_what_fails_unheard(tmp_path: Path, name: str, way: str) -> None:
    send, _, count = WRONG[name]
    log = embedlog.open(tmp_path / "other", config={"housekeeping": False})
    log.create_topic("t", partitions=4)
    log.create_topic("c", config={"cleanup.policy": "compact"})
    producer = log.producer()
    send(producer)
    with pytest.raises(DeliveryError) as lost:
        if way == "close":
            producer.close()
        elif way == "with":
            with producer:
                pass
        elif way == "close of the log":
            log.close()
        else:
            with log:
                pass
    assert lost.value.count == count
    producer.close()
    log.close()


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("heard", HEARD)
@pytest.mark.parametrize("after", [False, True])
def test_what_was_asked_about_is_not_raised(
    log: embedlog.Log, name: str, heard: str, after: bool
) -> None:
    """Also if it is observed only when everything has failed."""
    with log.producer() as producer:
        future = WRONG[name][0](producer)
        if after:
            wait_until(future.done)
        HEARD[heard](future)
        producer.flush()
        assert producer.metrics()["record-error-total"] == WRONG[name][2]


def test_to_be_done_is_not_to_be_heard(log: embedlog.Log) -> None:
    with log.producer() as producer:
        future = producer.send("typo", b"x")
        assert future.done()
        assert "failed" in repr(future)
        with pytest.raises(DeliveryError):
            producer.flush()


@pytest.mark.parametrize("batch", [False, True])
def test_what_fails_on_its_way_is_raised_with_its_place(
    log: embedlog.Log, monkeypatch: pytest.MonkeyPatch, batch: bool
) -> None:
    refuse(monkeypatch, log, InvalidRecordError("refused by the test"))
    with log.producer(linger_ms=LONG_MS, delivery_timeout_ms=10 * LONG_MS) as producer:
        futures = [producer.send("one", b"%d" % number) for number in range(10)]
        futures += [producer.send("t", b"x", partition=3) for _ in range(5)]
        if batch:
            producer.send_batch("t", [b"x"] * 70, partition=2)
        futures[0].add_done_callback(id)
        futures[1].exception()
        futures[14].exception()
        with pytest.raises(DeliveryError, match="refused by the test") as lost:
            producer.flush()
        assert lost.value.count == 8 + 4 + 70 * batch
        places = [(topic, partition) for topic, partition, _ in lost.value.errors]
        assert sorted(places) == [("one", 0), *[("t", 2)] * batch, ("t", 3)]
        assert producer.metrics()["record-error-total"] == 15 + 70 * batch


def test_what_is_lost_while_a_flush_runs_out_of_time_is_raised_by_the_next(
    log: embedlog.Log, stuck: Stuck
) -> None:
    with log.producer(linger_ms=0) as producer:
        producer.send("one", b"v")
        producer.send("typo", b"v")
        with pytest.raises(DeadlineError):
            producer.flush(0.05)
        stuck.go.set()
        with pytest.raises(DeliveryError, match="1 record not written"):
            producer.flush(10)


def test_the_losses_of_several_producers_are_raised_together_by_their_log(tmp_path: Path) -> None:
    log = embedlog.open(tmp_path / "other", config={"housekeeping": False})
    producers = [log.producer() for _ in range(3)]
    for number, producer in enumerate(producers):
        for _ in range(number):
            producer.send(f"typo{number}", b"v")
    with pytest.raises(DeliveryError) as lost:
        log.close()
    assert lost.value.count == 3
    assert {topic for topic, _, _ in lost.value.errors} == {"typo1", "typo2"}
    with embedlog.open(tmp_path / "other") as again:
        assert again.topics() == []


def test_an_interceptor_that_is_told_is_not_the_program(log: embedlog.Log) -> None:
    class Hearing:
        heard = 0

        def on_acknowledgement(self, metadata: Any, error: BaseException | None) -> None:
            Hearing.heard += error is not None

    with log.producer(interceptor_classes=[Hearing]) as producer:
        producer.send("typo", b"v")
        producer.send_batch("typo", [b"v"] * 3)
        producer.send_batch("typo", [b"v"] * 3).exception()
        with pytest.raises(DeliveryError) as lost:
            producer.flush()
    assert (lost.value.count, Hearing.heard) == (4, 7)


def test_the_error_survives_pickling() -> None:
    error = DeliveryError(
        "3 records",
        count=3,
        errors=[("t", 1, ClosedError("closed")), ("t", None, ValueError("no"))],
    )
    again = pickle.loads(pickle.dumps(error))
    assert (again.count, str(again)) == (3, str(error))
    assert [(topic, partition, repr(problem)) for topic, partition, problem in again.errors] == [
        (topic, partition, repr(problem)) for topic, partition, problem in error.errors
    ]


# ---- logged failures -----------------------------------------------------------------------------


@pytest.mark.parametrize("config", [{"on_delivery_error": "log"}, {"acks": "0"}])
def test_what_is_not_to_be_raised_is_logged_once_for_each_topic_and_reason(
    log: embedlog.Log, caplog: pytest.LogCaptureFixture, config: dict[str, Any]
) -> None:
    with log.producer(**config) as producer:
        for number in range(200):
            producer.send("typo", b"x")
            producer.send("t", b"x", partition=9)
            producer.send(
                "wrong" if number % 2 else "t",
                b"x" * (2_000_000 if not number % 2 else 1),
                partition=0,
            )
        producer.flush()
        assert len(lost_lines(caplog)) == 4
        assert sum(int(re.findall(r"(\d+) records", line)[0]) for line in lost_lines(caplog)) == 600
        assert producer.metrics()["record-error-total"] == 600
    assert len(lost_lines(caplog)) == 4


def test_records_that_fail_behind_acks_0_are_logged_and_counted(
    log: embedlog.Log, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(monkeypatch, log, InvalidRecordError("refused by the test"))
    with log.producer(acks="0", linger_ms=LONG_MS, delivery_timeout_ms=10 * LONG_MS) as producer:
        for _ in range(7):
            assert producer.send("one", b"x").exception() is None
        producer.flush()
        assert producer.metrics()["record-error-total"] == 7
    (line,) = lost_lines(caplog)
    assert "7 records for one" in line
    assert "refused by the test" in line


@pytest.mark.parametrize("of_log", [False, True])
def test_another_exception_that_leaves_with_goes_first_and_the_loss_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, of_log: bool
) -> None:
    log = embedlog.open(tmp_path / "other", config={"housekeeping": False})
    producer = log.producer()
    with pytest.raises(KeyError), log if of_log else producer:
        producer.send("typo", b"x")
        raise KeyError
    (line,) = lost_lines(caplog)
    assert "typo" in line
    log.close()


def test_a_producer_that_is_dropped_logs_what_it_loses(
    log: embedlog.Log, caplog: pytest.LogCaptureFixture
) -> None:
    producer = log.producer(linger_ms=LONG_MS, delivery_timeout_ms=10 * LONG_MS)
    written = producer.send("one", b"v")
    producer.send("typo", b"x")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        del producer
        gc.collect()
    wait_until(lambda: lost_lines(caplog))
    assert written.result(10).offset == 0
    assert len(lost_lines(caplog)) == 1


def test_what_is_lost_at_the_interpreters_exit_is_logged(tmp_path: Path) -> None:
    done = run_program(
        """
        import sys, embedlog
        log = embedlog.open(sys.argv[1], config={"housekeeping": False})
        producer = log.producer()
        for _ in range(1000):
            producer.send("typo", b"v")
        """,
        tmp_path,
    )
    assert done.returncode == 0
    assert done.stderr.count("1000 records for typo were not written") == 1, done.stderr


def test_what_a_thread_loses_after_close_gave_up_waiting_is_logged(
    log: embedlog.Log, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached = threading.Event()
    go = threading.Event()

    def append(*_: object, **__: object) -> None:
        reached.set()
        assert go.wait(20)
        raise InvalidRecordError("refused by the test")

    monkeypatch.setattr(type(log._engine.partition("one", 0)), "append", append)
    producer = log.producer(linger_ms=0)
    producer.send("one", b"on its way")
    assert reached.wait(10)
    producer.close(0)
    assert lost_lines(caplog) == []
    go.set()
    wait_until(lambda: lost_lines(caplog))
    assert "refused by the test" in lost_lines(caplog)[0]


# ---- transactions --------------------------------------------------------------------------------


def test_what_a_commit_raises_is_not_raised_again(log: embedlog.Log) -> None:
    with log.producer(transactional_id="x") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"x" * 2_000_000)
        with pytest.raises(RecordTooLargeError):
            producer.commit_transaction()
        producer.flush()
        producer.abort_transaction()
        with pytest.raises(RecordTooLargeError), producer.transaction():
            producer.send("t", b"x" * 2_000_000)
        with producer.transaction():
            producer.send("t", b"good")
    assert [value for value in values(log, "t") if value == b"good"]


def test_what_is_aborted_was_not_lost(log: embedlog.Log) -> None:
    with log.producer(
        transactional_id="x", linger_ms=LONG_MS, delivery_timeout_ms=10 * LONG_MS
    ) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        future = producer.send("t", b"v")
        producer.send("typo", b"v")
        producer.abort_transaction()
        assert isinstance(future.exception(0), TransactionAbortedError)
        producer.flush()


def test_a_flush_inside_a_transaction_raises_and_the_block_aborts(log: embedlog.Log) -> None:
    with log.producer(transactional_id="x") as producer:
        producer.init_transactions()
        with pytest.raises(DeliveryError), producer.transaction():
            producer.send("typo", b"v")
            producer.flush()
        with producer.transaction():
            producer.send("one", b"v")
    assert list(log.scan("one", isolation_level="read_committed").records())


# ---- the ledger ----------------------------------------------------------------------------------


class Failing:
    """A producer batch whose failed records stay unheard."""

    def fail(self, error: BaseException, tally: Any, count: int) -> None:
        accumulator().promise(True)[1].fail(error, tally, count)


def test_memory_is_bounded_however_many_places_and_reasons_there_are(rng: random.Random) -> None:
    failures = DeliveryFailures("p", Metrics(), raises=True)
    producer_batch: Any = Failing()
    for number in range(10 * ENTRIES_MAX):
        error = rng.choice([ClosedError, InvalidRecordError])(f"reason {rng.randrange(50)}")
        failures.fail(producer_batch, f"topic{number}", 0, error, 3)
    with pytest.raises(DeliveryError) as lost:
        failures.raise_or_log_unreceived()
    assert lost.value.count == 30 * ENTRIES_MAX
    assert ENTRIES_MAX < len(lost.value.errors) <= ENTRIES_MAX + 2
    assert lost.value.errors[0][0] == "topic0"
    assert lost.value.errors[-1][0] == ELSEWHERE
    assert len(str(lost.value)) < 1000


def test_what_is_kept_of_a_failure_keeps_no_record_alive(log: embedlog.Log) -> None:
    class Mine(bytes):
        pass

    with log.producer() as producer:
        for _ in range(50):
            producer.send("t", Mine(b"x" * 2_000_000))
        gc.collect()
        # isinstance() asks what a dead weak proxy refers to
        assert not [each for each in gc.get_objects() if type(each) is Mine]
        with pytest.raises(DeliveryError) as lost:
            producer.flush()
        assert lost.value.count == 50


def test_failures_from_many_threads_are_counted_exactly(log: embedlog.Log) -> None:
    counts: list[int] = []

    def send(producer: embedlog.Producer) -> None:
        for number in range(300):
            future = producer.send("typo", b"v")
            if number % 3 == 0:
                future.exception()

    with log.producer() as producer:
        threads = [threading.Thread(target=send, args=(producer,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            try:
                producer.flush()
            except DeliveryError as lost:
                counts.append(lost.count)
        for thread in threads:
            thread.join()
        try:
            producer.flush()
        except DeliveryError as lost:
            counts.append(lost.count)
        assert producer.metrics()["record-error-total"] == 1200
    # A failure that flush() raised between send() and exception() was unheard then
    assert 800 <= sum(counts) <= 1200
