"""The clock of a test: timestamps, retention, expiry; and what remains real."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import embedlog
from embedlog import TopicPartition
from embedlog.testing import Clock, clock, open_log, records

START = datetime(2026, 3, 29, 0, 30, tzinfo=UTC)
START_MS = 1_774_744_200_000
WAIT_S = 60


@pytest.fixture
def stopped() -> Iterator[Clock]:
    with clock(START) as found:
        yield found


def send(log: embedlog.Log, topic: str, *values: bytes, **options: Any) -> list[int]:
    with log.producer() as producer:
        return [
            producer.send(topic, value, **options).result(WAIT_S).timestamp_ms for value in values
        ]


def test_records_have_the_time_of_the_clock(stopped: Clock) -> None:
    with open_log({"t": 1, "appended": 1}) as log:
        log.alter_topic("appended", {"message.timestamp.type": "LogAppendTime"})
        assert send(log, "t", b"a", b"b") == [START_MS, START_MS]
        assert stopped.advance(hours=8) == START_MS + 8 * 3_600_000
        with log.producer() as producer:
            producer.send("t", b"c")
            producer.send_batch("t", values=[b"d"])
        assert send(log, "appended", b"e") == [stopped.now_ms]
        assert [each.timestamp_ms - START_MS for each in records(log, "t")] == [
            0,
            0,
            8 * 3_600_000,
            8 * 3_600_000,
        ]
        assert records(log, "appended")[0].timestamp_ms == stopped.now_ms
        found = list(log.scan("t", start_time=START + timedelta(hours=1)).records())
        assert [each.value for each in found] == [b"c", b"d"]
        with pytest.raises(embedlog.InvalidTimestampError):
            send(log, "t", b"f", timestamp_ms=stopped.now_ms + 2 * 3_600_000)


def test_time_is_set_and_advanced_in_parts(stopped: Clock) -> None:
    assert (stopped.now_ms, stopped.now) == (START_MS, START)
    stopped.advance(timedelta(minutes=1), days=1, hours=1, minutes=1, seconds=1, milliseconds=1)
    assert stopped.now == START + timedelta(days=1, hours=1, minutes=2, seconds=1, milliseconds=1)
    stopped.set(START)
    assert stopped.now_ms == START_MS
    for wrong in (
        lambda: stopped.advance(seconds=-1),
        lambda: stopped.set(-1),
        lambda: stopped.set(datetime(2026, 1, 1)),
    ):
        with pytest.raises(ValueError, match=r"backwards|before 1970|needs a time zone"):
            wrong()
    with pytest.raises(
        TypeError, match=r"interval is a timedelta, not 5; a number has a unit, such as minutes=5"
    ):
        stopped.advance(5)  # type: ignore[arg-type]
    with pytest.raises(
        embedlog.UnknownOptionError, match=r"no argument minute; did you mean minutes\?"
    ):
        stopped.advance(minute=5)  # type: ignore[call-arg]
    assert stopped.now_ms == START_MS


def test_there_is_one_clock_and_afterwards_the_real_time() -> None:
    before_ms = time.time_ns() // 1_000_000
    with clock() as first:
        assert before_ms <= first.now_ms
        with pytest.raises(embedlog.StateError, match="already"), clock():
            pass
        first.advance(days=300)
    with open_log("t") as log:
        assert before_ms <= send(log, "t", b"v")[0] <= time.time_ns() // 1_000_000


def test_retention_deletes_what_is_old(stopped: Clock) -> None:
    with open_log("t") as log:
        log.alter_topic("t", {"retention.ms": "28800000"})
        send(log, "t", b"old")
        stopped.advance(hours=7)
        log.housekeep()
        assert len(records(log, "t")) == 1
        stopped.advance(hours=1, milliseconds=1)
        log.housekeep()
        assert records(log, "t") == []
        send(log, "t", b"new")
        log.housekeep()
        assert [each.value for each in records(log, "t")] == [b"new"]


def test_segments_roll_by_time(stopped: Clock) -> None:
    with open_log("t") as log:
        log.alter_topic("t", {"segment.ms": "60000"})
        send(log, "t", b"1")
        stopped.advance(minutes=2)
        send(log, "t", b"2")
        assert len(list((log.path / "t-0").glob("*.log"))) == 2


def test_tombstones_are_compacted_after_their_time(stopped: Clock) -> None:
    with open_log() as log:
        settings = {
            "cleanup.policy": "compact",
            "delete.retention.ms": "60000",
            "min.cleanable.dirty.ratio": "0",
            "segment.ms": "1",
        }
        log.create_topic("t", config=settings)
        with log.producer() as producer:
            for value in (b"1", None):
                producer.send("t", value, key=b"k").result(WAIT_S)
                stopped.advance(seconds=1)
            producer.send("t", b"active", key=b"other").result(WAIT_S)
        log.housekeep()
        assert [each.value for each in records(log, "t")] == [None, b"active"]
        stopped.advance(minutes=2)
        send(log, "t", b"active", key=b"other")
        log.housekeep()
        assert {each.value for each in records(log, "t")} == {b"active"}


def test_open_transactions_time_out(stopped: Clock) -> None:
    with (
        open_log("t") as log,
        log.producer(transactional_id="id", transaction_timeout_ms=60_000) as producer,
    ):
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"v").result(WAIT_S)
        stopped.advance(seconds=59)
        log.housekeep()
        assert log.describe_topic("t").partitions[0].last_stable_offset == 0
        stopped.advance(seconds=2)
        log.housekeep()
        assert log.describe_topic("t").partitions[0].last_stable_offset == 2
        with pytest.raises(embedlog.FencedError):
            producer.commit_transaction()


def test_committed_offsets_expire(stopped: Clock) -> None:
    with open_log("t", config={"offsets.retention.minutes": 60}) as log:
        with log.consumer(group_id="g") as consumer:
            consumer.assign([TopicPartition("t", 0)])
            consumer.commit({TopicPartition("t", 0): 0})
        for minutes, left in ((59, 1), (1, 0)):
            stopped.advance(minutes=minutes)
            log.housekeep()
            assert len(log.groups()) == left


def test_a_consumer_that_does_not_poll_leaves_its_group(stopped: Clock) -> None:
    with (
        open_log("t") as log,
        log.consumer("t", group_id="g", enable_auto_commit=False) as consumer,
    ):
        deadline_s = time.monotonic() + WAIT_S
        while not consumer.assignment() and time.monotonic() < deadline_s:
            consumer.poll(0.1)
        stopped.advance(minutes=4)
        consumer.commit({TopicPartition("t", 0): 0})
        stopped.advance(minutes=2)
        assert log.describe_group("g").members == ()
        with pytest.raises(embedlog.CommitFailedError):
            consumer.commit({TopicPartition("t", 0): 0})


def test_a_member_that_polls_in_time_takes_over(stopped: Clock) -> None:
    with (
        open_log({"t": 2}) as log,
        log.consumer(group_id="g", max_poll_interval_ms=600_000) as patient,
    ):
        lost: list[list[TopicPartition]] = []
        with log.consumer(group_id="g", enable_auto_commit=False) as late:
            late.subscribe(["t"], on_lost=lost.append)
            patient.subscribe(["t"])
            deadline_s = time.monotonic() + WAIT_S
            while {len(each.assignment()) for each in (late, patient)} != {
                1
            } and time.monotonic() < deadline_s:
                late.poll(0.01)
                patient.poll(0.01)
            stopped.advance(minutes=6)  # between the two intervals
            assert [each.member_id for each in log.describe_group("g").members] == [
                patient.group_metadata().member_id
            ]
            while len(patient.assignment()) != 2 and time.monotonic() < deadline_s:
                patient.poll(0.01)
            assert len(patient.assignment()) == 2
            late.poll(0)
            assert len(lost) == 1


def test_waits_are_real(stopped: Clock) -> None:
    with open_log("t") as log, log.consumer("t", consumer_timeout_ms=20) as consumer:
        assert list(consumer) == []
        assert consumer.poll(0.01) == []
        with log.producer(linger_ms=5) as producer:
            assert producer.send("t", b"v").result(WAIT_S).timestamp_ms == START_MS
