"""Polls over a log in memory: limits, turns, isolation levels, positions. Over real ones:
test_live.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest

from embedlog.errors import (
    ConfigError,
    InvalidTimestampError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    StateError,
    UnknownTopicOrPartitionError,
)
from embedlog.types import OffsetAndTimestamp, TopicPartition
from tests.support.batches import batch
from tests.support.fake_engine import ABORT, COMMIT, FakeEngine, Row, consumer, fill, mixed, places

__all__ = ["consumer"]

A0, A1, A2 = (TopicPartition("a", number) for number in range(3))


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(a=3, b=1)


# ---- poll -----------------------------------------------------------------------------------------------------------


def test_records_have_all_their_fields(engine: FakeEngine, consumer: Any) -> None:
    engine.partition("b", 0).append([Row(b"v", b"k", [("h", b"1"), ("h", None)], 77)])
    (record,) = consumer("b").poll()
    assert (
        record.topic,
        record.partition,
        record.offset,
        record.timestamp_ms,
        record.timestamp_type,
    ) == ("b", 0, 0, 77, 0)
    assert (record.key, record.value, record.headers, record.leader_epoch) == (
        b"k",
        b"v",
        (("h", b"1"), ("h", None)),
        0,
    )


def test_a_poll_is_cut_at_max_poll_records_and_the_rest_stays_buffered(
    engine: FakeEngine, consumer: Any
) -> None:
    fill(engine.partition("b", 0), 25)
    reader = consumer("b", max_poll_records=10)
    assert [len(reader.poll()) for _ in range(4)] == [10, 10, 5, 0]
    reader.seek(TopicPartition("b", 0), 0)
    before = engine.partition("b", 0).fetches
    assert places(reader.poll(max_records=2)) == [(0, 0), (0, 1)]
    assert places(reader.poll(max_records=2)) == [(0, 2), (0, 3)]
    assert engine.partition("b", 0).fetches == before + 1


@pytest.mark.parametrize("count", [0, -1])
def test_fewer_than_one_record_is_refused(consumer: Any, count: int) -> None:
    with pytest.raises(ConfigError, match="max_records"):
        consumer("b").poll(max_records=count)


def test_partitions_take_turns(engine: FakeEngine, consumer: Any) -> None:
    for number in range(3):
        fill(engine.partition("a", number), 40)
    reader = consumer("a", max_partition_fetch_bytes=1, max_poll_records=10)
    polls = [places(reader.poll()) for _ in range(12)]
    assert [poll[0][0] for poll in polls] == [0, 1, 2] * 4
    assert sorted(place for poll in polls for place in poll) == [
        (p, o) for p in range(3) for o in range(40)
    ]


def test_one_poll_drains_a_partition_and_goes_on_with_the_next(
    engine: FakeEngine, consumer: Any
) -> None:
    fill(engine.partition("a", 0), 4)
    fill(engine.partition("a", 2), 4)
    assert places(consumer("a", max_poll_records=6).poll()) == [
        (0, 0),
        (0, 1),
        (0, 2),
        (0, 3),
        (2, 0),
        (2, 1),
    ]


def test_a_batch_larger_than_every_limit_is_read(engine: FakeEngine, consumer: Any) -> None:
    engine.partition("b", 0).append([Row(b"x" * 5000)])
    assert len(consumer("b", max_partition_fetch_bytes=1).poll()) == 1


def test_the_first_batch_may_hold_records_before_the_position(
    engine: FakeEngine, consumer: Any
) -> None:
    fill(engine.partition("b", 0), 20)
    reader = consumer("b")
    reader.seek(TopicPartition("b", 0), 7)
    assert places(reader.poll(max_records=4)) == [(0, 7), (0, 8), (0, 9), (0, 10)]


def test_gaps_are_stepped_over(engine: FakeEngine, consumer: Any) -> None:
    partition = engine.partition("b", 0)
    fill(partition, 2)
    partition.skip(5)
    fill(partition, 1)
    partition.append([b"gone"], data=batch(8, [], last_offset_delta=0))
    reader = consumer("b")
    assert places(reader.poll()) == [(0, 0), (0, 1), (0, 7)]
    assert reader.poll() == []
    assert reader.position(TopicPartition("b", 0)) == 9


def test_a_paused_partition_keeps_what_was_fetched(engine: FakeEngine, consumer: Any) -> None:
    fill(engine.partition("a", 0), 10)
    reader = consumer("a")
    reader.poll(max_records=3)
    fetches = engine.partition("a", 0).fetches
    reader.pause(A0)
    assert reader.poll() == []
    reader.resume(A0)
    assert places(reader.poll())[0] == (0, 3)
    assert engine.partition("a", 0).fetches == fetches


def test_an_empty_poll_returns_after_its_timeout(engine: FakeEngine, consumer: Any) -> None:
    assert consumer("a").poll(timeout=0.01) == []
    assert engine.waits == 1


def test_a_waiting_poll_returns_when_something_comes(engine: FakeEngine, consumer: Any) -> None:
    reader = consumer("a")

    def append() -> None:
        assert engine.sleeping.wait(10)
        engine.partition("a", 2).append([b"x"])

    thread = threading.Thread(target=append)
    thread.start()
    assert places(reader.poll(timeout=30)) == [(2, 0)]
    thread.join()


def test_a_committed_reader_sleeps_while_a_transaction_is_open(
    engine: FakeEngine, consumer: Any
) -> None:
    """It must not spin because the log is longer than its visible part."""
    engine.partition("b", 0).append([b"x"], producer=7)
    reader = consumer("b", isolation_level="read_committed")
    assert reader.poll(timeout=0.02) == []
    assert engine.waits == 1


# ---- isolation ------------------------------------------------------------------------------------------------------


def test_read_committed_sees_what_was_committed_below_the_stable_offset(
    engine: FakeEngine, consumer: Any
) -> None:
    mixed(engine.partition("b", 0))
    reader = consumer("b", isolation_level="read_committed")
    assert [record.value for record in reader.poll()] == [b"plain", b"kept", b"again"]
    assert reader.end_offsets([TopicPartition("b", 0)]) == {("b", 0): 8}
    assert reader.current_lag(TopicPartition("b", 0)) == 0
    engine.partition("b", 0).end(3, COMMIT)
    assert [record.value for record in reader.poll()] == [b"open", b"after"]


def test_read_uncommitted_sees_all_but_markers(engine: FakeEngine, consumer: Any) -> None:
    mixed(engine.partition("b", 0))
    values = [record.value for record in consumer("b").poll()]
    assert values == [b"plain", b"gone", b"gone too", b"kept", b"again", b"open", b"after"]


@pytest.mark.parametrize("size", [1, 100, 1 << 20])
def test_a_fetch_that_begins_inside_an_aborted_transaction(
    engine: FakeEngine, consumer: Any, size: int
) -> None:
    partition = engine.partition("b", 0)
    for _ in range(5):
        partition.append([b"gone"], producer=1)
    partition.append([b"stays"])
    partition.end(1, ABORT)
    reader = consumer("b", isolation_level="read_committed", max_partition_fetch_bytes=size)
    reader.seek(TopicPartition("b", 0), 2)
    assert [record.value for record in reader.poll()] == [b"stays"]
    assert reader.poll() == []
    assert reader.position(TopicPartition("b", 0)) == 7


# ---- positions ------------------------------------------------------------------------------------------------------


def test_seeking(engine: FakeEngine, consumer: Any) -> None:
    fill(engine.partition("a", 0), 30)
    reader = consumer("a")
    reader.poll(max_records=5)
    reader.seek(A0, 20)
    assert reader.position(A0) == 20
    assert places(reader.poll(max_records=1)) == [(0, 20)]
    reader.seek_to_beginning(A0)
    assert reader.position(A0) == 0
    reader.seek_to_end()
    assert (reader.position(A0), reader.position(A1)) == (30, 0)


@pytest.mark.parametrize(
    ("offset", "error"),
    [(-1, OffsetOutOfRangeError), ("3", TypeError), (True, TypeError), (1.0, TypeError)],
)
def test_wrong_offsets_are_refused(consumer: Any, offset: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        consumer("a").seek(A0, offset)


@pytest.mark.parametrize(
    "verb", ["position", "pause", "resume", "current_lag", "seek_to_end", "seek_to_beginning"]
)
def test_positions_of_what_is_not_assigned_are_a_state_error(consumer: Any, verb: str) -> None:
    with pytest.raises(StateError, match="b-0 is not assigned"):
        getattr(consumer("a"), verb)(TopicPartition("b", 0))


def test_a_position_out_of_range_follows_the_reset_policy(
    engine: FakeEngine, consumer: Any
) -> None:
    fill(engine.partition("b", 0), 10)
    engine.partition("b", 0).log_start = 4
    reader = consumer("b")
    reader.seek(TopicPartition("b", 0), 99)
    assert places(reader.poll(max_records=1)) == [(0, 4)]
    reader.seek(TopicPartition("b", 0), 0)
    assert places(reader.poll(max_records=1)) == [(0, 4)]


def test_retention_faster_than_a_reset_is_followed(
    engine: FakeEngine, consumer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start at which a reader is set down may be gone again before it reads from there."""
    partition = engine.partition("b", 0)
    fill(partition, 10)
    fetch = partition.fetch
    starts = iter([3, 5, 8])

    def overtaken(offset: int, **keywords: Any) -> Any:
        partition.log_start = next(starts, partition.log_start)
        return fetch(offset, **keywords)

    monkeypatch.setattr(partition, "fetch", overtaken)
    assert places(consumer("b").poll(max_records=1)) == [(0, 8)]


def test_a_position_out_of_range_without_a_policy_is_an_error(
    engine: FakeEngine, consumer: Any
) -> None:
    fill(engine.partition("b", 0), 10)
    reader = consumer("b", auto_offset_reset="none")
    with pytest.raises(NoOffsetForPartitionError, match="b-0"):
        reader.poll()
    reader.seek(TopicPartition("b", 0), 99)
    with pytest.raises(OffsetOutOfRangeError, match="99"):
        reader.poll()
    reader.seek(TopicPartition("b", 0), 9)
    assert places(reader.poll()) == [(0, 9)]


def test_lag_is_none_before_there_is_a_position(engine: FakeEngine, consumer: Any) -> None:
    fill(engine.partition("a", 0), 10)
    reader = consumer("a")
    assert reader.current_lag(A0) is None
    reader.poll(max_records=4)
    assert reader.current_lag(A0) == 6


def test_beginnings_ends_and_times_need_no_assignment(engine: FakeEngine, consumer: Any) -> None:
    fill(engine.partition("a", 1), 10)
    engine.partition("a", 1).log_start = 3
    reader = consumer()
    assert reader.beginning_offsets([A0, A1]) == {A0: 0, A1: 3}
    assert reader.end_offsets([A0, A1]) == {A0: 0, A1: 10}
    assert reader.offsets_for_times({A1: 4500, A0: 1}) == {
        A1: OffsetAndTimestamp(5, 5000, 0),
        A0: None,
    }
    assert reader.offsets_for_times({A1: 99_000}) == {A1: None}
    with pytest.raises(InvalidTimestampError, match="a-1"):
        reader.offsets_for_times({A1: -1})
    with pytest.raises(UnknownTopicOrPartitionError):
        reader.end_offsets([("a", 3)])


def test_a_time_behind_the_stable_offset_finds_nothing(engine: FakeEngine, consumer: Any) -> None:
    engine.partition("b", 0).append([Row(b"x", timestamp_ms=5)], producer=1)
    reader = consumer("b", isolation_level="read_committed")
    assert reader.offsets_for_times({("b", 0): 5}) == {("b", 0): None}
