"""The consumer over a log in memory: positions, fairness, limits, errors, threads. Over real ones: test_consumer_live."""

from __future__ import annotations

import os
import pickle
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from embedlog.consumer import Consumer
from embedlog.errors import (
    ClosedError,
    ConcurrentUseError,
    ConfigError,
    CorruptRecordError,
    ForkedError,
    InvalidGroupIdError,
    InvalidTimestampError,
    InvalidTopicError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    SerializationError,
    StateError,
    UnknownTopicOrPartitionError,
    WakeupError,
)
from embedlog.values import OffsetAndTimestamp, TopicPartition
from tests.batches import batch, crc32c
from tests.fake_log import ABORT, COMMIT, FakeLog, FakePartition, Row

A0, A1, A2 = (TopicPartition("a", number) for number in range(3))


@pytest.fixture
def log() -> FakeLog:
    return FakeLog(a=3, b=1)


@pytest.fixture
def consumer(log: FakeLog) -> Iterator[Callable[..., Consumer]]:
    """`consumer("a", max_poll_records=5)`: reads from the start unless told otherwise; closed behind the test."""
    made: list[Consumer] = []

    def make(*topics: str, **config: Any) -> Consumer:
        made.append(Consumer(log, topics, **{"auto_offset_reset": "earliest", **config}))
        return made[-1]

    yield make
    for each in made:
        each.close()


def fill(partition: FakePartition, count: int, *, per_batch: int = 10, tag: str = "") -> None:
    rows = [Row(b"%s%d" % (tag.encode(), n), b"k%d" % n, timestamp_ms=1000 * n) for n in range(count)]
    for begin in range(0, count, per_batch):
        partition.append(rows[begin : begin + per_batch])


def places(records: list[Any]) -> list[tuple[int, int]]:
    return [(record.partition, record.offset) for record in records]


# ---- what is read ----------------------------------------------------------------------------------------------------


def test_polling_nothing_is_a_state_error(consumer: Any) -> None:
    with pytest.raises(StateError, match="nothing is subscribed"):
        consumer().poll()


def test_topics_without_a_group_are_all_their_partitions(consumer: Any) -> None:
    reader = consumer("a", "b")
    assert reader.assignment() == {A0, A1, A2, TopicPartition("b", 0)}
    assert reader.subscription() == {"a", "b"}


def test_an_unknown_topic_or_partition_is_refused_and_nothing_changes(consumer: Any) -> None:
    with pytest.raises(UnknownTopicOrPartitionError):
        consumer("missing")
    reader = consumer()
    reader.assign([A0])
    with pytest.raises(UnknownTopicOrPartitionError):
        reader.assign([A1, ("a", 9)])
    assert reader.assignment() == {A0}


def test_assigned_partitions_and_topics_exclude_one_another(consumer: Any) -> None:
    reader = consumer("a")
    with pytest.raises(StateError, match="unsubscribe"):
        reader.assign([A0])
    reader.unsubscribe()
    reader.assign([A0])
    with pytest.raises(StateError, match="unsubscribe"):
        reader.subscribe(["b"])
    assert reader.assignment() == {A0}


def test_an_empty_list_is_unsubscribe(consumer: Any) -> None:
    reader = consumer("a")
    reader.subscribe([])
    assert reader.assignment() == set()
    reader.assign([A0])
    reader.assign([])
    assert reader.assignment() == set()
    reader.subscribe(["b"])


def test_a_pattern_matches_whole_names_and_no_internal_topic(log: FakeLog, consumer: Any) -> None:
    log.grow("ab", 1)
    log.grow("__a", 1)
    reader = consumer()
    reader.subscribe(pattern="_*a.?")
    assert reader.subscription() == {"a", "ab"}
    everything = consumer(exclude_internal_topics=False)
    everything.subscribe(pattern="_*a.?")
    assert everything.subscription() == {"a", "ab", "__a"}


@pytest.mark.parametrize("topics", ["a", 5, [1]])
def test_topics_are_a_list_of_names(consumer: Any, topics: Any) -> None:
    with pytest.raises(TypeError):
        consumer().subscribe(topics)


def test_a_blank_name_is_refused(consumer: Any) -> None:
    with pytest.raises(InvalidTopicError):
        consumer().subscribe(["a", " "])


@pytest.mark.parametrize("tps", [A0, "a", [("a",)], ["a"], [("a", "0")], [("a", True)]])
def test_partitions_are_pairs(consumer: Any, tps: Any) -> None:
    with pytest.raises(TypeError, match="TopicPartition"):
        consumer().assign(tps)


def test_reassigning_keeps_the_positions_of_those_that_stay(log: FakeLog, consumer: Any) -> None:
    fill(log._partition("a", 0), 10)
    reader = consumer()
    reader.assign([A0, A1])
    reader.poll(max_records=4)
    reader.pause(A0)
    reader.assign([A0, A2])
    assert reader.position(A0) == 4
    assert reader.paused() == {A0}


def test_a_partition_added_later_is_read_from_its_start(log: FakeLog, consumer: Any) -> None:
    reader = consumer("b", auto_offset_reset="latest")
    assert reader.poll() == []
    log.grow("b", 2)
    log._partition("b", 1).append([b"first"])
    assert [record.value for record in reader.poll()] == [b"first"]


def test_latest_means_from_the_making_on(log: FakeLog, consumer: Any) -> None:
    fill(log._partition("b", 0), 3)
    reader = consumer("b", auto_offset_reset="latest")
    log._partition("b", 0).append([b"new"])
    assert [record.value for record in reader.poll()] == [b"new"]


# ---- poll ------------------------------------------------------------------------------------------------------------


def test_records_have_all_their_fields(log: FakeLog, consumer: Any) -> None:
    log._partition("b", 0).append([Row(b"v", b"k", [("h", b"1"), ("h", None)], 77)])
    (record,) = consumer("b").poll()
    assert (record.topic, record.partition, record.offset, record.timestamp_ms, record.timestamp_type) == ("b", 0, 0, 77, 0)
    assert (record.key, record.value, record.headers, record.leader_epoch) == (b"k", b"v", (("h", b"1"), ("h", None)), 0)


def test_a_poll_is_cut_at_max_poll_records_and_the_rest_stays_buffered(log: FakeLog, consumer: Any) -> None:
    fill(log._partition("b", 0), 25)
    reader = consumer("b", max_poll_records=10)
    assert [len(reader.poll()) for _ in range(4)] == [10, 10, 5, 0]
    reader.seek(TopicPartition("b", 0), 0)
    before = log._partition("b", 0).fetches
    assert places(reader.poll(max_records=2)) == [(0, 0), (0, 1)]
    assert places(reader.poll(max_records=2)) == [(0, 2), (0, 3)]
    assert log._partition("b", 0).fetches == before + 1


@pytest.mark.parametrize("count", [0, -1])
def test_fewer_than_one_record_is_refused(consumer: Any, count: int) -> None:
    with pytest.raises(ConfigError, match="max_records"):
        consumer("b").poll(max_records=count)


def test_partitions_take_turns(log: FakeLog, consumer: Any) -> None:
    for number in range(3):
        fill(log._partition("a", number), 40)
    reader = consumer("a", max_partition_fetch_bytes=1, max_poll_records=10)
    polls = [places(reader.poll()) for _ in range(12)]
    assert [poll[0][0] for poll in polls] == [0, 1, 2] * 4
    assert sorted(place for poll in polls for place in poll) == [(p, o) for p in range(3) for o in range(40)]


def test_one_poll_drains_a_partition_and_goes_on_with_the_next(log: FakeLog, consumer: Any) -> None:
    fill(log._partition("a", 0), 4)
    fill(log._partition("a", 2), 4)
    assert places(consumer("a", max_poll_records=6).poll()) == [(0, 0), (0, 1), (0, 2), (0, 3), (2, 0), (2, 1)]


def test_a_batch_larger_than_every_limit_is_read(log: FakeLog, consumer: Any) -> None:
    log._partition("b", 0).append([Row(b"x" * 5000)])
    assert len(consumer("b", max_partition_fetch_bytes=1).poll()) == 1


def test_the_first_batch_may_hold_records_before_the_position(log: FakeLog, consumer: Any) -> None:
    fill(log._partition("b", 0), 20)
    reader = consumer("b")
    reader.seek(TopicPartition("b", 0), 7)
    assert places(reader.poll(max_records=4)) == [(0, 7), (0, 8), (0, 9), (0, 10)]


def test_gaps_are_stepped_over(log: FakeLog, consumer: Any) -> None:
    partition = log._partition("b", 0)
    fill(partition, 2)
    partition.skip(5)
    fill(partition, 1)
    partition.append([b"gone"], data=batch(8, [], last_offset_delta=0))
    reader = consumer("b")
    assert places(reader.poll()) == [(0, 0), (0, 1), (0, 7)]
    assert reader.poll() == []
    assert reader.position(TopicPartition("b", 0)) == 9


def test_a_paused_partition_keeps_what_was_fetched(log: FakeLog, consumer: Any) -> None:
    fill(log._partition("a", 0), 10)
    reader = consumer("a")
    reader.poll(max_records=3)
    fetches = log._partition("a", 0).fetches
    reader.pause(A0)
    assert reader.poll() == []
    reader.resume(A0)
    assert places(reader.poll())[0] == (0, 3)
    assert log._partition("a", 0).fetches == fetches


def test_an_empty_poll_returns_after_its_timeout(log: FakeLog, consumer: Any) -> None:
    assert consumer("a").poll(timeout=0.01) == []
    assert log.waits == 1


def test_a_waiting_poll_returns_when_something_comes(log: FakeLog, consumer: Any) -> None:
    reader = consumer("a")

    def append() -> None:
        assert log.sleeping.wait(10)
        log._partition("a", 2).append([b"x"])

    thread = threading.Thread(target=append)
    thread.start()
    assert places(reader.poll(timeout=30)) == [(2, 0)]
    thread.join()


def test_a_committed_reader_sleeps_while_a_transaction_is_open(log: FakeLog, consumer: Any) -> None:
    """It must not spin because the log is longer than what it may see."""
    log._partition("b", 0).append([b"x"], producer=7)
    reader = consumer("b", isolation_level="read_committed")
    assert reader.poll(timeout=0.02) == []
    assert log.waits == 1


# ---- isolation -------------------------------------------------------------------------------------------------------


def mixed(partition: FakePartition) -> None:
    partition.append([b"plain"])
    partition.append([b"gone", b"gone too"], producer=1)
    partition.append([b"kept"], producer=2)
    partition.end(1, ABORT)
    partition.append([b"again"], producer=1)
    partition.end(2, COMMIT)
    partition.end(1, COMMIT)
    partition.append([b"open"], producer=3)
    partition.append([b"behind"])


def test_read_committed_sees_what_was_committed_below_the_stable_offset(log: FakeLog, consumer: Any) -> None:
    mixed(log._partition("b", 0))
    reader = consumer("b", isolation_level="read_committed")
    assert [record.value for record in reader.poll()] == [b"plain", b"kept", b"again"]
    assert reader.end_offsets([TopicPartition("b", 0)]) == {("b", 0): 8}
    assert reader.current_lag(TopicPartition("b", 0)) == 0
    log._partition("b", 0).end(3, COMMIT)
    assert [record.value for record in reader.poll()] == [b"open", b"behind"]


def test_read_uncommitted_sees_all_but_markers(log: FakeLog, consumer: Any) -> None:
    mixed(log._partition("b", 0))
    values = [record.value for record in consumer("b").poll()]
    assert values == [b"plain", b"gone", b"gone too", b"kept", b"again", b"open", b"behind"]


@pytest.mark.parametrize("size", [1, 100, 1 << 20])
def test_a_fetch_that_begins_inside_an_aborted_transaction(log: FakeLog, consumer: Any, size: int) -> None:
    partition = log._partition("b", 0)
    for _ in range(5):
        partition.append([b"gone"], producer=1)
    partition.append([b"stays"])
    partition.end(1, ABORT)
    reader = consumer("b", isolation_level="read_committed", max_partition_fetch_bytes=size)
    reader.seek(TopicPartition("b", 0), 2)
    assert [record.value for record in reader.poll()] == [b"stays"]
    assert reader.poll() == []
    assert reader.position(TopicPartition("b", 0)) == 7


# ---- positions -------------------------------------------------------------------------------------------------------


def test_seeking(log: FakeLog, consumer: Any) -> None:
    fill(log._partition("a", 0), 30)
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
    ("offset", "error"), [(-1, OffsetOutOfRangeError), ("3", TypeError), (True, TypeError), (1.0, TypeError)]
)
def test_wrong_offsets_are_refused(consumer: Any, offset: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        consumer("a").seek(A0, offset)


@pytest.mark.parametrize("verb", ["position", "pause", "resume", "current_lag", "seek_to_end", "seek_to_beginning"])
def test_positions_of_what_is_not_assigned_are_a_state_error(consumer: Any, verb: str) -> None:
    with pytest.raises(StateError, match="b-0 is not assigned"):
        getattr(consumer("a"), verb)(TopicPartition("b", 0))


def test_a_position_out_of_range_follows_the_reset_policy(log: FakeLog, consumer: Any) -> None:
    fill(log._partition("b", 0), 10)
    log._partition("b", 0).log_start = 4
    reader = consumer("b")
    reader.seek(TopicPartition("b", 0), 99)
    assert places(reader.poll(max_records=1)) == [(0, 4)]
    reader.seek(TopicPartition("b", 0), 0)
    assert places(reader.poll(max_records=1)) == [(0, 4)]


def test_a_position_out_of_range_without_a_policy_is_an_error(log: FakeLog, consumer: Any) -> None:
    fill(log._partition("b", 0), 10)
    reader = consumer("b", auto_offset_reset="none")
    with pytest.raises(NoOffsetForPartitionError, match="b-0"):
        reader.poll()
    reader.seek(TopicPartition("b", 0), 99)
    with pytest.raises(OffsetOutOfRangeError, match="99"):
        reader.poll()
    reader.seek(TopicPartition("b", 0), 9)
    assert places(reader.poll()) == [(0, 9)]


def test_lag_is_none_before_there_is_a_position(log: FakeLog, consumer: Any) -> None:
    fill(log._partition("a", 0), 10)
    reader = consumer("a")
    assert reader.current_lag(A0) is None
    reader.poll(max_records=4)
    assert reader.current_lag(A0) == 6


def test_beginnings_ends_and_times_need_no_assignment(log: FakeLog, consumer: Any) -> None:
    fill(log._partition("a", 1), 10)
    log._partition("a", 1).log_start = 3
    reader = consumer()
    assert reader.beginning_offsets([A0, A1]) == {A0: 0, A1: 3}
    assert reader.end_offsets([A0, A1]) == {A0: 0, A1: 10}
    assert reader.offsets_for_times({A1: 4500, A0: 1}) == {A1: OffsetAndTimestamp(5, 5000, 0), A0: None}
    assert reader.offsets_for_times({A1: 99_000}) == {A1: None}
    with pytest.raises(InvalidTimestampError, match="a-1"):
        reader.offsets_for_times({A1: -1})
    with pytest.raises(UnknownTopicOrPartitionError):
        reader.end_offsets([("a", 3)])


def test_a_time_behind_the_stable_offset_finds_nothing(log: FakeLog, consumer: Any) -> None:
    log._partition("b", 0).append([Row(b"x", timestamp_ms=5)], producer=1)
    reader = consumer("b", isolation_level="read_committed")
    assert reader.offsets_for_times({("b", 0): 5}) == {("b", 0): None}


# ---- iteration -------------------------------------------------------------------------------------------------------


def test_iteration_ends_after_consumer_timeout_and_goes_on_where_it_was(log: FakeLog, consumer: Any) -> None:
    fill(log._partition("a", 0), 15)
    fill(log._partition("a", 1), 15)
    reader = consumer("a", consumer_timeout_ms=0)
    assert sorted(places(list(reader))) == [(p, o) for p in range(2) for o in range(15)]
    assert list(reader) == []
    log._partition("a", 2).append([b"x"])
    assert places(list(reader)) == [(2, 0)]


def test_the_position_follows_the_loop(log: FakeLog, consumer: Any) -> None:
    fill(log._partition("b", 0), 10)
    reader = consumer("b", consumer_timeout_ms=0)
    for record in reader:
        assert reader.position(TopicPartition("b", 0)) == record.offset + 1


def test_a_broken_off_loop_loses_nothing(log: FakeLog, consumer: Any, rng: random.Random) -> None:
    for number in range(3):
        fill(log._partition("a", number), 50)
    reader = consumer("a", consumer_timeout_ms=0, max_partition_fetch_bytes=300)
    got = []
    while len(got) < 150:
        ways = rng.randrange(3)
        if ways == 0:
            got += places(reader.poll(max_records=rng.randrange(1, 9)))
        elif ways == 1:
            got += [(each.partition, int(offset)) for each in [next(reader.batches(timeout=0))] for offset in each.offsets]
        else:
            for record in reader:
                got.append((record.partition, record.offset))
                if rng.random() < 0.3:
                    break
    assert len(got) == 150
    for number in range(3):
        assert [offset for partition, offset in got if partition == number] == list(range(50))


def test_a_seek_inside_the_loop_takes_effect_at_once(log: FakeLog, consumer: Any) -> None:
    fill(log._partition("b", 0), 10)
    reader = consumer("b", consumer_timeout_ms=0)
    seen = []
    for record in reader:
        seen.append(record.offset)
        if len(seen) == 3:
            reader.seek(TopicPartition("b", 0), 8)
    assert seen == [0, 1, 2, 8, 9]


def test_a_pause_inside_the_loop_takes_effect_at_once(log: FakeLog, consumer: Any) -> None:
    fill(log._partition("a", 0), 10)
    fill(log._partition("a", 1), 10)
    reader = consumer("a", consumer_timeout_ms=0)
    seen = []
    for record in reader:
        seen.append((record.partition, record.offset))
        if len(seen) == 2:
            reader.pause(TopicPartition("a", record.partition))
    assert seen == [(0, 0), (0, 1)] + [(1, offset) for offset in range(10)]
    assert reader.position(A0) == 2


def test_closing_inside_the_loop_ends_it(log: FakeLog, consumer: Any) -> None:
    fill(log._partition("b", 0), 10)
    reader = consumer("b")
    seen = []
    for record in reader:
        seen.append(record.offset)
        reader.close()
    assert seen == [0]


def test_an_iterator_that_lost_its_loop_gives_nothing_twice(log: FakeLog, consumer: Any) -> None:
    fill(log._partition("b", 0), 10)
    reader = consumer("b", consumer_timeout_ms=0)
    first, second = iter(reader), iter(reader)
    got = [next(first).offset, next(second).offset, next(first).offset, next(second).offset]
    assert got == [0, 1, 2, 3]


# ---- batches ---------------------------------------------------------------------------------------------------------


def test_batches_move_the_same_positions(log: FakeLog, consumer: Any) -> None:
    fill(log._partition("a", 0), 30)
    fill(log._partition("a", 1), 5)
    reader = consumer("a")
    reader.poll(max_records=3)
    got = list(reader.batches(timeout=0))
    assert [(each.topic, each.partition, each.base_offset, each.num_rows) for each in got] == [("a", 0, 3, 27), ("a", 1, 0, 5)]
    assert reader.position(A0) == 30
    assert [row.value for row in got[1].records()] == [b"%d" % n for n in range(5)]


def test_batches_step_over_markers(log: FakeLog, consumer: Any) -> None:
    mixed(log._partition("b", 0))
    reader = consumer("b", isolation_level="read_committed")
    assert [list(each.values) for each in reader.batches(timeout=0)] == [[b"plain", b"kept", b"again"]]
    assert reader.position(TopicPartition("b", 0)) == 8


# ---- what cannot be handed out ---------------------------------------------------------------------------------------


def test_a_poison_record_waits_for_those_before_it_and_stays(log: FakeLog, consumer: Any) -> None:
    log._partition("b", 0).append([b"1", b"2", b"poison", b"4"])
    reader = consumer("b", value_deserializer=int)
    assert [record.value for record in reader.poll()] == [1, 2]
    for _ in range(2):
        with pytest.raises(SerializationError, match="b-0 at offset 2") as caught:
            reader.poll()
        assert isinstance(caught.value.__cause__, ValueError)
        assert reader.position(TopicPartition("b", 0)) == 2
    reader.seek(TopicPartition("b", 0), 3)
    assert [record.value for record in reader.poll()] == [4]


def test_the_loop_meets_a_poison_record_too(log: FakeLog, consumer: Any) -> None:
    log._partition("b", 0).append([b"1", b"poison", b"3"])
    reader = consumer("b", value_deserializer=int, consumer_timeout_ms=0)
    seen = []
    with pytest.raises(SerializationError):
        seen += [record.value for record in reader]
    assert reader.position(TopicPartition("b", 0)) == 1
    reader.seek(TopicPartition("b", 0), 2)
    assert [record.value for record in reader] == [3]


def test_a_null_is_not_deserialized(log: FakeLog, consumer: Any) -> None:
    log._partition("b", 0).append([Row(None, None), Row(b"7", b"8")])
    got = consumer("b", value_deserializer=int, key_deserializer=int).poll()
    assert [(record.key, record.value) for record in got] == [(None, None), (8, 7)]


def damaged(base: int) -> bytes:
    """A batch whose second record claims to be longer than it is: its CRC is right, its content is not."""
    broken = batch(base, [Row(b"good"), Row(b"bad")]).replace(b"\x06bad", b"\x7ebad")
    return broken[:17] + crc32c(broken[21:]).to_bytes(4, "big") + broken[21:]


def test_a_damaged_batch_waits_for_those_before_it(log: FakeLog, consumer: Any) -> None:
    partition = log._partition("b", 0)
    fill(partition, 3)
    partition.append([b"", b""], data=damaged(3))
    reader = consumer("b")
    assert len(reader.poll()) == 3
    with pytest.raises(CorruptRecordError):
        reader.poll()
    with pytest.raises(CorruptRecordError):
        next(reader.batches(timeout=0))
    assert reader.position(TopicPartition("b", 0)) == 3


def test_records_collected_before_another_partitions_error_go_out_first(log: FakeLog, consumer: Any) -> None:
    log._partition("a", 0).append([b"1"])
    log._partition("a", 1).append([b"poison"])
    reader = consumer("a", value_deserializer=int)
    assert places(reader.poll()) == [(0, 0)]
    with pytest.raises(SerializationError):
        reader.poll()


def test_an_interrupt_while_collecting_gives_everything_back(
    log: FakeLog, consumer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(log._partition("a", 0), 5)
    fill(log._partition("a", 1), 5)
    reader = consumer("a")
    partition = log._partition("a", 1)
    whole = partition.fetch

    def interrupted(*args: Any, **keywords: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(partition, "fetch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        reader.poll()
    monkeypatch.setattr(partition, "fetch", whole)
    assert len(reader.poll()) == 10


# ---- threads, life ---------------------------------------------------------------------------------------------------


def test_wakeup_ends_a_waiting_poll_once(log: FakeLog, consumer: Any) -> None:
    reader = consumer("a")

    def wake() -> None:
        assert log.sleeping.wait(10)
        reader.wakeup()

    thread = threading.Thread(target=wake)
    thread.start()
    with pytest.raises(WakeupError):
        reader.poll(timeout=30)
    thread.join()
    assert reader.poll() == []


def test_wakeup_before_the_call_is_remembered(consumer: Any) -> None:
    reader = consumer("a")
    reader.wakeup()
    with pytest.raises(WakeupError):
        reader.poll(timeout=30)
    assert reader.poll() == []


def test_a_second_thread_is_refused(log: FakeLog, consumer: Any) -> None:
    reader = consumer("a")
    problems: list[BaseException] = []

    def poll() -> None:
        try:
            reader.poll(timeout=30)
        except WakeupError as problem:
            problems.append(problem)

    thread = threading.Thread(target=poll)
    thread.start()
    assert log.sleeping.wait(10)
    for call in (reader.poll, reader.metrics, lambda: reader.seek(A0, 1), lambda: next(iter(reader))):
        with pytest.raises(ConcurrentUseError, match="wakeup"):
            call()
    reader.wakeup()
    thread.join()
    assert [type(problem) for problem in problems] == [WakeupError]
    assert reader.poll() == []


def test_closing_ends_a_poll_in_another_thread(log: FakeLog, consumer: Any) -> None:
    reader = consumer("a")

    def close() -> None:
        assert log.sleeping.wait(10)
        reader.close()

    thread = threading.Thread(target=close)
    thread.start()
    with pytest.raises(ClosedError):
        reader.poll(timeout=30)
    thread.join()


def test_another_thread_may_use_it_afterwards(log: FakeLog, consumer: Any) -> None:
    fill(log._partition("b", 0), 3)
    reader = consumer("b")
    reader.poll(max_records=1)
    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.extend(reader.poll()))
    thread.start()
    thread.join()
    assert places(got) == [(0, 1), (0, 2)]


def test_closed_is_closed_and_closing_twice_is_nothing(consumer: Any) -> None:
    reader = consumer("a")
    reader.close()
    reader.close()
    for call in (reader.poll, reader.metrics, lambda: iter(reader), lambda: reader.assign([A0]), lambda: reader.position(A0)):
        with pytest.raises(ClosedError):
            call()
    assert list(reader.batches()) == []


def test_it_closes_behind_a_with_block(log: FakeLog) -> None:
    with Consumer(log, ["a"]) as reader:
        pass
    with pytest.raises(ClosedError):
        reader.poll()


def test_a_closed_or_forked_log_shows_in_every_call(log: FakeLog, consumer: Any) -> None:
    reader = consumer("a")
    log.problem = ForkedError("opened in another process")
    with pytest.raises(ForkedError):
        reader.poll()
    log.problem = None


def test_pickling_is_refused_with_the_way_to_do_it(consumer: Any) -> None:
    with pytest.raises(TypeError, match="in the worker"):
        pickle.dumps(consumer("a"))


def test_what_needs_a_group_says_so(consumer: Any) -> None:
    reader = consumer("a")
    calls = [reader.commit, reader.commit_async, reader.committed, reader.group_metadata, reader.enforce_rebalance]
    for call in [*calls, lambda: reader.subscribe(["a"], on_assigned=print)]:
        with pytest.raises(InvalidGroupIdError, match="group id"):
            call()


def test_an_unknown_option_is_refused_with_a_suggestion(log: FakeLog) -> None:
    with pytest.raises(ConfigError, match="max_poll_records"):
        Consumer(log, ["a"], max_pol_records=5)


def test_metrics_count_what_was_handed_out(log: FakeLog, consumer: Any) -> None:
    fill(log._partition("a", 0), 10)
    reader = consumer("a")
    reader.poll(max_records=4)
    metrics = reader.metrics()
    assert (metrics["records-consumed-total"], metrics["records-lag-max"], metrics["records-lead-min"]) == (4, 6, 4)
    assert metrics["partitions"][A0] == {"position": 4, "records-lag": 6, "records-lead": 4}
    assert metrics["assigned-partitions"] == 3
    assert metrics["bytes-consumed-total"] > 0


def test_a_child_of_this_process_is_not_hindered_by_the_guard(consumer: Any) -> None:
    """The guard holds thread identities, which a forked child may repeat: it must refuse by the log's check, not hang."""
    reader = consumer("a")
    child = os.fork()
    if child == 0:
        os._exit(0 if reader.poll() == [] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
