"""Kafka's consumer, row by row: the part of its tables that concerns a consumer without a group.

The names say the table (configuration, subscribing, poll) and the row; test_positions has the other
tables. What makes no sense without a broker is listed in docs/differences.md.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog.consumer.consumer import Consumer
from embedlog.errors import (
    ConcurrentUseError,
    ConfigError,
    CorruptRecordError,
    InvalidTopicError,
    LogTruncationError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    SerializationError,
    StateError,
    UnknownTopicOrPartitionError,
    WakeupError,
)
from embedlog.types import OffsetAndMetadata, TopicPartition
from tests.support.fake_engine import ABORT, COMMIT, FakeEngine, Row, fill, mixed, on, places
from tests.support.fake_engine import consumer as consumer

A0 = TopicPartition("a", 0)
A1 = TopicPartition("a", 1)
B0 = TopicPartition("b", 0)


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(a=2, b=1)


def refused(option: str, **config: Any) -> str:
    with pytest.raises(ConfigError, match=option.replace(".", r"\.")) as caught:
        Consumer(FakeEngine(a=1), ["a"], **config)
    return str(caught.value)


# ---- configuration ----------------------------------------------------------------------------------------------------


def test_configuration_group_id_without_one_auto_commit_is_off_by_itself(consumer: Any) -> None:
    assert consumer("a")._config.enable_auto_commit is False
    assert "there is no group.id" in refused("enable.auto.commit", enable_auto_commit=True)


def test_configuration_group_protocol_is_classic() -> None:
    assert "partition.assignment.strategy" in refused(
        "group_remote_assignor", group_remote_assignor="range"
    )
    refused("group.protocol", group_protocol="modern")


def test_configuration_heartbeat_interval_is_below_the_session_timeout() -> None:
    assert "below session.timeout.ms (5000)" in refused(
        "heartbeat.interval.ms", session_timeout_ms=5000, heartbeat_interval_ms=5000
    )


def test_configuration_max_poll_records_caps_a_poll_and_does_not_change_fetching(
    engine: FakeEngine, consumer: Any
) -> None:
    fill(engine.partition("b", 0), 30)
    reader = consumer("b", max_poll_records=7)
    assert [len(reader.poll()) for _ in range(5)] == [7, 7, 7, 7, 2]
    assert engine.partition("b", 0).fetches == 1


@pytest.mark.parametrize(
    "policy", ["Earliest", "smallest", "", "by_duration:", "by_duration:-P1D", "by_duration:P"]
)
def test_configuration_auto_offset_reset_refuses_what_is_no_policy(policy: str) -> None:
    assert "by_duration" in refused("auto.offset.reset", auto_offset_reset=policy)


def test_configuration_fetch_min_bytes_and_fetch_max_wait_hold_a_fetch_back(
    engine: FakeEngine, consumer: Any
) -> None:
    fill(engine.partition("b", 0), 1)
    reader = on(B0, using=consumer, fetch_min_bytes=1 << 20, fetch_max_wait_ms=30)
    reader.seek(B0, 0)
    assert len(reader.poll(timeout=30)) == 1
    assert engine.waits == 1  # it waited for more, and was content when the time was up


def test_configuration_fetch_max_bytes_bounds_what_one_poll_fetches(
    engine: FakeEngine, consumer: Any
) -> None:
    for number in range(2):
        fill(engine.partition("a", number), 100)
    reader = consumer("a", fetch_max_bytes=1)
    assert {record.partition for record in reader.poll()} == {0}
    assert consumer("a").poll()[-1].partition == 1


def test_configuration_max_partition_fetch_bytes_bounds_one_fetch_of_a_partition(
    engine: FakeEngine, consumer: Any
) -> None:
    for number in range(2):
        fill(engine.partition("a", number), 100)
    reader = consumer("a", max_partition_fetch_bytes=600)
    assert {record.partition for record in reader.poll()} == {0, 1}
    assert 0 < reader.position(A0) < 100


def test_configuration_check_crcs_a_damaged_batch_is_an_error_and_never_a_record(
    tmp_path: Path,
) -> None:
    assert "every batch is checked" in refused("check.crcs", check_crcs=False)
    with (
        embedlog.open(tmp_path / "log", config={"housekeeping": False}) as real,
        real.producer(linger_ms=0) as producer,
    ):
        # the records of one interval are returned together, or not
        real.create_topic("a", config={"index.interval.bytes": 1})
        producer.send("a", b"whole").result(10)
        producer.send("a", b"damaged").result(10)
        path = real.path / "a-0" / f"{0:020d}.log"
        path.write_bytes(path.read_bytes().replace(b"damaged", b"dAmaged"))
        with real.consumer("a", auto_offset_reset="earliest", check_crcs=True) as reader:
            assert [record.value for record in reader.poll()] == [b"whole"]
            for _ in range(2):
                with pytest.raises(CorruptRecordError, match=r"at byte \d+"):
                    reader.poll()
            assert reader.position(A0) == 1


def test_configuration_isolation_level_decides_which_transactions_are_seen(
    engine: FakeEngine, consumer: Any
) -> None:
    mixed(engine.partition("b", 0))
    committed = [record.value for record in consumer("b", isolation_level="read_committed").poll()]
    everything = [record.value for record in consumer("b").poll()]
    assert committed == [b"plain", b"kept", b"again"]
    assert everything == [b"plain", b"gone", b"gone too", b"kept", b"again", b"open", b"after"]


def test_configuration_exclude_internal_topics_is_about_patterns(
    engine: FakeEngine, consumer: Any
) -> None:
    engine.grow("__internal", 1)
    plain = consumer()
    all_of_them = consumer(exclude_internal_topics=False)
    by_name = consumer("__internal")
    plain.subscribe(pattern=".*")
    all_of_them.subscribe(pattern=".*")
    assert plain.subscription() == {"a", "b"}
    assert all_of_them.subscription() == {"a", "b", "__internal"}
    assert by_name.subscription() == {"__internal"}


def test_configuration_allow_auto_create_topics_nothing_is_made_by_a_misspelling(
    consumer: Any,
) -> None:
    assert "create_topic" in refused("allow.auto.create.topics", allow_auto_create_topics=True)
    with pytest.raises(UnknownTopicOrPartitionError):
        consumer("c")


def test_configuration_client_id_names_the_consumer(consumer: Any) -> None:
    assert "reader-7" in repr(consumer("a", client_id="reader-7"))
    assert repr(consumer("a")) != repr(consumer("a"))


def test_configuration_metadata_max_age_bounds_how_late_a_partition_is_noticed(
    engine: FakeEngine, consumer: Any
) -> None:
    reader = consumer("b", metadata_max_age_ms=0)
    reader.poll()
    engine.grow("b", 2)
    engine.word = 0  # without notices: only the longest wait ends it
    engine.partition("b", 1).append([b"x"])
    assert places(reader.poll()) == [(1, 0)]


# ---- subscribing ------------------------------------------------------------------------------------------------------


def test_subscribing_replaces_and_an_empty_list_is_unsubscribe(consumer: Any) -> None:
    reader = consumer("a")
    reader.subscribe(["b"])
    assert reader.subscription() == {"b"}
    reader.subscribe([])
    assert (reader.subscription(), reader.assignment()) == (set(), set())


@pytest.mark.parametrize("topics", [None, "a", [None], [" "], [""]])
def test_subscribing_to_no_name_is_refused(consumer: Any, topics: Any) -> None:
    with pytest.raises((TypeError, InvalidTopicError)):
        consumer().subscribe(topics)


def test_subscribing_by_pattern_matches_whole_names_and_takes_new_ones_in(
    engine: FakeEngine, consumer: Any
) -> None:
    reader = consumer()
    reader.subscribe(pattern="a|new-.")
    reader.poll()
    engine.grow("new-1", 1)
    engine.grow("new-10", 1)
    engine.partition("new-1", 0).append([b"x"])
    assert [record.topic for record in reader.poll()] == ["new-1"]
    assert reader.subscription() == {"a", "new-1"}


def test_assigning_replaces_keeps_positions_and_an_empty_list_is_unsubscribe(
    engine: FakeEngine, consumer: Any
) -> None:
    fill(engine.partition("a", 0), 10)
    reader = on(A0, A1, using=consumer)
    reader.poll(max_records=4)
    reader.assign([A0, B0])
    assert (reader.assignment(), reader.position(A0)) == ({A0, B0}, 4)
    reader.assign([])
    with pytest.raises(StateError):
        reader.poll()


def test_mixing_topics_patterns_and_partitions_needs_unsubscribe(consumer: Any) -> None:
    reader = consumer("a")
    for call in (lambda: reader.assign([A0]), lambda: on(A0, using=consumer).subscribe(["a"])):
        with pytest.raises(StateError, match=r"unsubscribe\(\) first"):
            call()
    reader.unsubscribe()
    reader.assign([A0])


def test_unsubscribing_forgets_positions(engine: FakeEngine, consumer: Any) -> None:
    fill(engine.partition("b", 0), 10)
    reader = consumer("b")
    reader.poll(max_records=4)
    reader.unsubscribe()
    reader.subscribe(["b"])
    assert reader.position(B0) == 0


def test_subscription_assignment_and_paused_are_copies(consumer: Any) -> None:
    reader = consumer("a")
    for copy in (reader.subscription(), reader.assignment(), reader.paused()):
        copy.add("mine")
    assert (reader.subscription(), reader.assignment(), reader.paused()) == ({"a"}, {A0, A1}, set())


def test_changing_the_subscription_discards_what_was_fetched_of_dropped_topics(
    engine: FakeEngine, consumer: Any
) -> None:
    fill(engine.partition("a", 0), 10)
    fill(engine.partition("b", 0), 2)
    reader = consumer("a", "b", max_poll_records=3)
    assert {record.topic for record in reader.poll()} == {"a"}
    reader.subscribe(["b"])
    assert {record.topic for record in reader.poll()} == {"b"}


def test_the_thread_rule_any_concurrent_use_is_refused_but_wakeup(
    engine: FakeEngine, consumer: Any
) -> None:
    reader = consumer("a")
    raised: list[type[BaseException]] = []

    def poll() -> None:
        with pytest.raises(WakeupError) as caught:
            reader.poll(timeout=60)
        raised.append(caught.type)

    thread = threading.Thread(target=poll)
    thread.start()
    assert engine.sleeping.wait(10)
    for call in (
        reader.poll,
        reader.unsubscribe,
        lambda: reader.pause(A0),
        lambda: reader.position(A0),
        reader.metrics,
    ):
        with pytest.raises(ConcurrentUseError):
            call()
    reader.wakeup()
    thread.join(10)
    assert raised == [WakeupError]


# ---- poll -------------------------------------------------------------------------------------------------------------


def test_poll_neither_subscribed_nor_assigned(consumer: Any) -> None:
    reader = consumer()
    for call in (reader.poll, lambda: next(iter(reader)), lambda: next(reader.batches())):
        with pytest.raises(StateError):
            call()


def test_poll_data_is_returned_at_once_and_nothing_after_the_timeout(
    engine: FakeEngine, consumer: Any
) -> None:
    fill(engine.partition("b", 0), 1)
    reader = consumer("b")
    assert len(reader.poll(timeout=60)) == 1
    assert engine.waits == 0
    assert reader.poll(timeout=0.01) == []
    assert engine.waits == 1
    assert reader.poll() == []
    assert engine.waits == 1


def test_poll_over_control_and_aborted_records_moves_the_position_and_goes_on_waiting(
    engine: FakeEngine, consumer: Any
) -> None:
    """Kafka may return early with nothing; here the rest of the timeout is waited for records."""
    partition = engine.partition("b", 0)
    partition.append([b"gone"], producer=1)
    partition.end(1, ABORT)
    reader = consumer("b", isolation_level="read_committed")
    assert reader.poll(timeout=0.2) == []
    assert engine.waits == 1
    assert reader.position(B0) == 2


def test_poll_order_is_by_offset_and_a_drained_partition_goes_to_the_back(
    engine: FakeEngine, consumer: Any
) -> None:
    for number in range(2):
        fill(engine.partition("a", number), 40)
    reader = consumer("a", max_partition_fetch_bytes=1, max_poll_records=10)
    polls = [places(reader.poll()) for _ in range(8)]
    assert [{partition for partition, _ in poll} for poll in polls] == [{0}, {1}] * 4
    assert [offset for poll in polls[::2] for _, offset in poll] == list(range(40))


def test_poll_a_busy_partition_starves_nobody(engine: FakeEngine, consumer: Any) -> None:
    """As much as a poll takes, and more, is appended to one partition before each poll; the others
    wait for one turn at most.
    """
    engine.grow("a", 5)
    reader = consumer("a", max_poll_records=10, max_partition_fetch_bytes=500)
    seen_in: dict[int, list[int]] = {number: [] for number in range(5)}
    for turn in range(60):
        fill(engine.partition("a", 0), 30)
        if turn % 3 == 0:
            engine.partition("a", 1 + turn // 3 % 4).append([b"quiet"])
        for record in reader.poll():
            if record.partition:
                seen_in[record.partition].append(turn)
    for number in range(1, 5):
        came = [turn for turn in range(60) if turn % 3 == 0 and 1 + turn // 3 % 4 == number]
        assert len(seen_in[number]) == len(came)
        assert max(late - early for early, late in zip(came, seen_in[number], strict=True)) <= 2


def test_poll_a_busy_partition_starves_nobody_in_columns_and_loops(
    engine: FakeEngine, consumer: Any
) -> None:
    fill(engine.partition("a", 0), 400)
    fill(engine.partition("a", 1), 5)
    by_batch = consumer("a", max_partition_fetch_bytes=500)
    assert {next(by_batch.batches()).partition for _ in range(2)} == {0, 1}
    by_loop = iter(consumer("a", max_partition_fetch_bytes=500))
    assert {next(by_loop).partition for _ in range(40)} == {0, 1}


def test_poll_soft_limits_let_the_first_batch_through(engine: FakeEngine, consumer: Any) -> None:
    engine.partition("b", 0).append([Row(b"x" * 50_000)])
    assert len(consumer("b", max_partition_fetch_bytes=0, fetch_max_bytes=0).poll()) == 1


def test_poll_a_paused_partition_is_not_fetched_and_keeps_its_buffer(
    engine: FakeEngine, consumer: Any
) -> None:
    fill(engine.partition("b", 0), 10)
    reader = consumer("b")
    reader.poll(max_records=3)
    reader.pause(B0)
    assert reader.poll() == []
    fill(engine.partition("b", 0), 10)
    assert reader.poll() == []
    assert engine.partition("b", 0).fetches == 1
    reader.resume(B0)
    assert [len(reader.poll()), len(reader.poll())] == [7, 10]


def test_poll_a_poison_record_comes_behind_those_before_it_and_stays(
    engine: FakeEngine, consumer: Any
) -> None:
    engine.partition("b", 0).append([b"1", b"poison", b"3"])
    reader = consumer("b", value_deserializer=int)
    assert [record.value for record in reader.poll()] == [1]
    for _ in range(2):
        with pytest.raises(SerializationError) as caught:
            reader.poll()
        assert (caught.value.topic, caught.value.partition, caught.value.offset) == ("b", 0, 1)
        assert isinstance(caught.value.__cause__, ValueError)
        assert reader.position(B0) == 1
    reader.seek(B0, caught.value.offset + 1)
    assert [record.value for record in reader.poll()] == [3]


def test_poll_gaps_leave_the_position_behind_the_last_record_or_beyond(
    engine: FakeEngine, consumer: Any
) -> None:
    partition = engine.partition("b", 0)
    partition.append([b"x"], producer=1)
    partition.end(1, COMMIT)
    partition.skip(3)
    partition.append([b"y"])
    reader = consumer("b")
    assert places(reader.poll()) == [(0, 0), (0, 5)]
    assert reader.position(B0) == 6


@pytest.mark.parametrize(
    ("policy", "offset"), [("earliest", 4), ("latest", 30), ("by_duration:P40000D", 4)]
)
def test_poll_a_position_out_of_range_follows_the_policy(
    engine: FakeEngine, consumer: Any, policy: str, offset: int
) -> None:
    fill(engine.partition("b", 0), 30)
    engine.partition("b", 0).log_start = 4
    reader = consumer("b", auto_offset_reset=policy)
    for nowhere in (2, 31):
        reader.seek(B0, nowhere)
        reader.poll(max_records=1)
        assert reader.position(B0) == min(offset + 1, 30)


def test_poll_a_position_out_of_range_without_a_policy_is_an_error(
    engine: FakeEngine, consumer: Any
) -> None:
    reader = on(B0, using=consumer, auto_offset_reset="none")
    reader.seek(B0, 5)
    with pytest.raises(OffsetOutOfRangeError) as caught:
        reader.poll()
    assert (caught.value.topic, caught.value.partition, caught.value.offset) == ("b", 0, 5)


def test_poll_no_position_without_a_policy_is_an_error(consumer: Any) -> None:
    reader = on(B0, using=consumer, auto_offset_reset="none")
    with pytest.raises(NoOffsetForPartitionError) as caught:
        reader.poll()
    assert (caught.value.topic, caught.value.partition) == ("b", 0)


def test_poll_a_truncation_is_an_error_with_none_and_a_seek_with_any_other_policy(
    engine: FakeEngine, consumer: Any
) -> None:
    partition = engine.partition("b", 0)
    fill(partition, 5)
    partition.epochs.append((1, 3))
    strict = on(B0, using=consumer, auto_offset_reset="none")
    lenient = consumer("b", auto_offset_reset="latest")
    for reader in (strict, lenient):
        reader.seek(B0, OffsetAndMetadata(5, leader_epoch=0))
    with pytest.raises(LogTruncationError):
        strict.poll()
    assert places(lenient.poll()) == [(0, 3), (0, 4)]


def test_poll_a_record_has_all_fields(engine: FakeEngine, consumer: Any) -> None:
    engine.partition("b", 0).append([Row(None, b"", [("name", b"1"), ("name", None)], 7)])
    (record,) = consumer("b").poll()
    assert (record.topic, record.partition, record.offset, record.leader_epoch) == ("b", 0, 0, 0)
    assert (record.timestamp_ms, record.timestamp_type) == (7, 0)
    assert (record.key, record.value, record.headers) == (
        b"",
        None,
        (("name", b"1"), ("name", None)),
    )


def test_poll_a_reader_ends_at_the_high_watermark_or_the_last_stable_offset(
    engine: FakeEngine, consumer: Any
) -> None:
    partition = engine.partition("b", 0)
    partition.append([b"stable"])
    partition.append([b"open"], producer=1)
    assert len(consumer("b").poll()) == 2
    assert len(consumer("b", isolation_level="read_committed").poll()) == 1


def test_poll_and_batches_and_loops_share_the_position(engine: FakeEngine, consumer: Any) -> None:
    fill(engine.partition("b", 0), 30)
    reader = consumer("b", consumer_timeout_ms=0)
    got = [record.offset for record in reader.poll(max_records=3)]
    got += [next(iter(reader)).offset for _ in range(3)]
    got += [int(offset) for offset in next(reader.batches()).offsets]
    assert got == list(range(30))
