"""Kafka's consumer, row by row: positions and resets, committing, seeking and questions,
interceptors and metrics.

The names say the table and the row; test_consumer has the other tables.
"""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog.errors import (
    ClosedError,
    InvalidGroupIdError,
    InvalidTimestampError,
    OffsetOutOfRangeError,
    StateError,
    UnknownTopicOrPartitionError,
    WakeupError,
)
from embedlog.types import OffsetAndTimestamp, TopicPartition
from tests.support.fake_engine import FakeEngine, Row, fill, on, places
from tests.support.fake_engine import consumer as consumer

A0 = TopicPartition("a", 0)
A1 = TopicPartition("a", 1)
B0 = TopicPartition("b", 0)


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(a=2, b=1)


# ---- positions and resets ------------------------------------------------------------------------


def test_positions_are_the_offset_of_the_next_record(engine: FakeEngine, consumer: Any) -> None:
    fill(engine.partition("b", 0), 10)
    reader = consumer("b")
    assert reader.position(B0) == 0
    reader.poll(max_records=4)
    assert reader.position(B0) == 4


@pytest.mark.parametrize(
    ("policy", "isolation", "position"),
    [
        ("earliest", "read_uncommitted", 2),
        ("latest", "read_uncommitted", 12),
        ("latest", "read_committed", 10),
        ("by_duration:PT1H", "read_uncommitted", 12),  # no record is so young
        ("by_duration:P40000D", "read_uncommitted", 2),
    ],
)
def test_positions_a_policy_leads_to(
    engine: FakeEngine, consumer: Any, policy: str, isolation: str, position: int
) -> None:
    partition = engine.partition("b", 0)
    fill(partition, 10)
    partition.append([b"open", b"open"], producer=1)
    partition.log_start = 2
    assert (
        consumer("b", auto_offset_reset=policy, isolation_level=isolation).position(B0) == position
    )


def test_positions_by_duration_is_the_first_record_that_is_young_enough(tmp_path: Path) -> None:
    with (
        embedlog.open(tmp_path / "log", config={"housekeeping": False}) as real,
        real.producer() as producer,
    ):
        real.create_topic("b")
        now_ms = time.time_ns() // 1_000_000
        hours = [timedelta(hours=number) // timedelta(milliseconds=1) for number in (5, 3, 1)]
        for age_ms in hours:
            producer.send("b", b"x", timestamp_ms=now_ms - age_ms)
        producer.flush()
        with real.consumer("b", auto_offset_reset="by_duration:PT4H") as reader:
            assert [record.offset for record in reader.poll()] == [1, 2]


def test_positions_latest_does_not_skip_what_comes_to_a_new_partition(
    engine: FakeEngine, consumer: Any
) -> None:
    """Kafka does, until the position was looked up, as its table warns. Here new partitions are
    read from their start.
    """
    reader = consumer("b", auto_offset_reset="latest")
    engine.grow("b", 2)
    engine.partition("b", 1).append([b"first"])
    assert places(reader.poll()) == [(1, 0)]


# ---- committing ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call", ["commit", "commit_async", "committed", "group_metadata", "enforce_rebalance"]
)
def test_committing_without_a_group_is_refused(consumer: Any, call: str) -> None:
    with pytest.raises(InvalidGroupIdError, match=rf"{call}\(\) needs a group id"):
        getattr(consumer("a"), call)()


# ---- seeking and questions -----------------------------------------------------------------------


def test_seeking_is_lazy_and_drops_the_buffer(engine: FakeEngine, consumer: Any) -> None:
    fill(engine.partition("b", 0), 20)
    reader = consumer("b")
    reader.poll(max_records=3)
    reader.seek(B0, 999)  # without a check
    assert reader.position(B0) == 999
    reader.seek(B0, 10)
    assert [record.offset for record in reader.poll(max_records=2)] == [10, 11]


def test_seeking_below_zero_or_where_nothing_is_assigned_is_refused(consumer: Any) -> None:
    reader = consumer("b")
    with pytest.raises(OffsetOutOfRangeError, match="not negative"):
        reader.seek(B0, -1)
    with pytest.raises(StateError, match="not assigned"):
        reader.seek(A0, 0)


def test_seeking_to_beginning_and_end_is_lazy_and_without_arguments_for_all(
    engine: FakeEngine, consumer: Any
) -> None:
    for number in range(2):
        fill(engine.partition("a", number), 5)
    reader = consumer("a")
    reader.seek_to_end()
    fill(engine.partition("a", 0), 5)  # the end is looked up at the first use
    assert (reader.position(A0), reader.position(A1)) == (10, 5)
    reader.seek_to_beginning(A1)
    assert (reader.position(A0), reader.position(A1)) == (10, 0)


def test_position_of_what_is_not_assigned_is_refused(consumer: Any) -> None:
    with pytest.raises(StateError):
        consumer("b").position(A0)


def test_pausing_is_for_assigned_partitions_and_is_lost_with_them(consumer: Any) -> None:
    reader = on(A0, A1, using=consumer)
    reader.pause(A0, A1)
    reader.assign([A1])
    reader.assign([A0, A1])
    assert reader.paused() == {A1}
    for call in (reader.pause, reader.resume):
        with pytest.raises(StateError):
            call(B0)


def test_beginning_and_end_offsets_are_of_any_partition_and_the_isolation_level(
    engine: FakeEngine, consumer: Any
) -> None:
    partition = engine.partition("b", 0)
    fill(partition, 5)
    partition.append([b"open"], producer=1)
    partition.log_start = 2
    assert consumer("a").beginning_offsets([B0]) == {B0: 2}
    assert consumer("a").end_offsets([B0]) == {B0: 6}
    assert consumer("a", isolation_level="read_committed").end_offsets([B0]) == {B0: 5}
    with pytest.raises(UnknownTopicOrPartitionError):
        consumer("a").end_offsets([TopicPartition("c", 0)])


def test_offsets_for_times_the_first_at_or_after_and_none_behind_the_end(
    engine: FakeEngine, consumer: Any
) -> None:
    partition = engine.partition("b", 0)
    fill(partition, 5)  # at 0, 1000, … ms
    partition.append([Row(b"open", timestamp_ms=9000)], producer=1)
    reader = consumer("a", isolation_level="read_committed")
    assert reader.offsets_for_times({B0: 2500}) == {B0: OffsetAndTimestamp(3, 3000, 0)}
    assert reader.offsets_for_times({B0: 8000}) == {B0: None}
    assert consumer("a").offsets_for_times({B0: 8000}) == {B0: OffsetAndTimestamp(5, 9000, 0)}
    with pytest.raises(InvalidTimestampError):
        reader.offsets_for_times({B0: -1})


def test_current_lag_is_to_the_end_of_the_isolation_level_and_none_before_a_position(
    engine: FakeEngine, consumer: Any
) -> None:
    partition = engine.partition("b", 0)
    fill(partition, 10)
    partition.append([b"open"], producer=1)
    plain = consumer("b")
    committed = consumer("b", isolation_level="read_committed")
    assert plain.current_lag(B0) is None
    for reader, lag in ((plain, 7), (committed, 6)):
        reader.poll(max_records=4)
        assert reader.current_lag(B0) == lag


def test_wakeup_ends_the_present_or_the_next_call_once_and_loses_nothing(
    engine: FakeEngine, consumer: Any
) -> None:
    fill(engine.partition("b", 0), 3)
    reader = consumer("b")
    reader.wakeup()
    reader.wakeup()
    with pytest.raises(WakeupError):
        reader.poll()
    assert len(reader.poll()) == 3


def test_wakeup_behind_the_arrival_of_data_does_not_take_the_data_away(
    engine: FakeEngine, consumer: Any
) -> None:
    reader = consumer("b", value_deserializer=lambda value: (reader.wakeup(), value)[1])
    fill(engine.partition("b", 0), 3)
    assert len(reader.poll()) == 3
    with pytest.raises(WakeupError):
        reader.poll()


def test_close_twice_is_nothing_and_any_other_use_is_refused(consumer: Any) -> None:
    reader = consumer("a")
    reader.close()
    reader.close()
    for call in (
        reader.poll,
        lambda: reader.subscribe(["a"]),
        lambda: reader.seek(A0, 1),
        reader.metrics,
    ):
        with pytest.raises(ClosedError):
            call()


# ---- interceptors and metrics --------------------------------------------------------------------


def test_interceptors_on_consume_runs_right_before_poll_returns_chained_and_may_fail(
    engine: FakeEngine, consumer: Any
) -> None:
    fill(engine.partition("b", 0), 4)

    class Tail:
        def on_consume(self, records: list[Any]) -> list[Any]:
            return records[1:]

    class Broken:
        def on_consume(self, records: list[Any]) -> list[Any]:
            raise ValueError("its own business")

    reader = consumer("b", interceptor_classes=[Tail(), Broken(), Tail()])
    assert places(reader.poll()) == [(0, 2), (0, 3)]


FETCH = (
    "fetch-size-avg",
    "fetch-size-max",
    "fetch-latency-avg",
    "fetch-latency-max",
    "fetch-rate",
    "fetch-total",
    "bytes-consumed-rate",
    "bytes-consumed-total",
    "records-consumed-rate",
    "records-consumed-total",
    "records-per-request-avg",
)
LAG = (
    "records-lag",
    "records-lag-avg",
    "records-lag-max",
    "records-lead",
    "records-lead-avg",
    "records-lead-min",
)
LOOP = (
    "last-poll-seconds-ago",
    "time-between-poll-avg",
    "time-between-poll-max",
    "poll-idle-ratio-avg",
    "assigned-partitions",
)


def test_metrics_fetch_lag_and_loop_have_kafkas_names(engine: FakeEngine, consumer: Any) -> None:
    fill(engine.partition("b", 0), 10)
    reader = consumer("b")
    quiet = reader.metrics()
    assert quiet["fetch-total"] == 0
    assert quiet["partitions"][B0]["records-lag"] is None
    reader.poll(max_records=4)
    reader.poll(timeout=0.01, max_records=4)
    known = reader.metrics()
    for name in (*FETCH, *LOOP):
        assert known[name] is not None, name
    assert (
        known["records-consumed-total"],
        known["fetch-total"],
        known["records-per-request-avg"],
    ) == (8, 1, 10)
    assert (known["records-lag-max"], known["records-lead-min"]) == (2, 8)
    of_partition = known["partitions"][B0]
    assert all(of_partition[name] is not None for name in LAG)
    assert (
        of_partition["position"],
        of_partition["records-lag"],
        of_partition["records-lead"],
    ) == (8, 2, 8)


def test_metrics_rates_means_and_maxima_forget_what_is_older_than_a_minute(
    engine: FakeEngine, consumer: Any
) -> None:
    fill(engine.partition("b", 0), 10)
    now = time.monotonic()
    reader = consumer("b")
    metrics = reader._waiter.metrics
    metrics._clock = lambda: now
    reader.poll(max_records=4)
    assert reader.metrics()["partitions"][B0]["records-lead-avg"] is not None
    now += 61
    metrics.due = 0.0  # a poll compares it with a clock of its own
    reader.poll(max_records=4)
    known = reader.metrics()
    assert (
        known["fetch-total"],
        known["fetch-rate"],
        known["fetch-latency-max"],
        known["fetch-size-avg"],
    ) == (
        1,
        0.0,
        None,
        None,
    )
    assert known["partitions"][B0]["records-lead-avg"] is None
    assert (known["records-consumed-total"], known["records-consumed-rate"]) == (8, 4 / 30)


def test_metrics_a_record_that_was_fetched_and_dropped_was_not_consumed(
    engine: FakeEngine, consumer: Any
) -> None:
    fill(engine.partition("b", 0), 10)
    reader = consumer("b")
    reader.poll(max_records=4)
    reader.seek(B0, 0)
    assert reader.metrics()["records-consumed-total"] == 4
    reader.poll(max_records=2)
    reader.unsubscribe()
    assert reader.metrics()["records-consumed-total"] == 6
