"""Iteration, batches, errors and threads over a log in memory. Over real ones: test_live."""

from __future__ import annotations

import os
import pickle
import random
import threading
from typing import Any

import pytest

from embedlog.consumer.consumer import Consumer
from embedlog.errors import (
    ClosedError,
    ConcurrentUseError,
    ConfigError,
    CorruptRecordError,
    ForkedError,
    InvalidGroupIdError,
    SerializationError,
    WakeupError,
)
from embedlog.types import TopicPartition
from tests.support.batches import batch, crc32c
from tests.support.fake_engine import FakeEngine, Row, fill, mixed, places
from tests.support.fake_engine import consumer as consumer

A0, A1, A2 = (TopicPartition("a", number) for number in range(3))


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(a=3, b=1)


# ---- iteration ------------------------------------------------------------------------------------------------------


def test_iteration_ends_after_consumer_timeout_and_goes_on_where_it_was(
    engine: FakeEngine, consumer: Any
) -> None:
    fill(engine.partition("a", 0), 15)
    fill(engine.partition("a", 1), 15)
    reader = consumer("a", consumer_timeout_ms=0)
    assert sorted(places(list(reader))) == [(p, o) for p in range(2) for o in range(15)]
    assert list(reader) == []
    engine.partition("a", 2).append([b"x"])
    assert places(list(reader)) == [(2, 0)]


def test_the_position_follows_the_loop(engine: FakeEngine, consumer: Any) -> None:
    fill(engine.partition("b", 0), 10)
    reader = consumer("b", consumer_timeout_ms=0)
    for record in reader:
        assert reader.position(TopicPartition("b", 0)) == record.offset + 1


def test_a_broken_off_loop_loses_nothing(
    engine: FakeEngine, consumer: Any, rng: random.Random
) -> None:
    for number in range(3):
        fill(engine.partition("a", number), 50)
    reader = consumer("a", consumer_timeout_ms=0, max_partition_fetch_bytes=300)
    got = []
    while len(got) < 150:
        ways = rng.randrange(3)
        if ways == 0:
            got += places(reader.poll(max_records=rng.randrange(1, 9)))
        elif ways == 1:
            got += [
                (each.partition, int(offset))
                for each in [next(reader.batches(timeout=0))]
                for offset in each.offsets
            ]
        else:
            for record in reader:
                got.append((record.partition, record.offset))
                if rng.random() < 0.3:
                    break
    assert len(got) == 150
    for number in range(3):
        assert [offset for partition, offset in got if partition == number] == list(range(50))


def test_a_seek_inside_the_loop_takes_effect_at_once(engine: FakeEngine, consumer: Any) -> None:
    fill(engine.partition("b", 0), 10)
    reader = consumer("b", consumer_timeout_ms=0)
    seen = []
    for record in reader:
        seen.append(record.offset)
        if len(seen) == 3:
            reader.seek(TopicPartition("b", 0), 8)
    assert seen == [0, 1, 2, 8, 9]


def test_a_pause_inside_the_loop_takes_effect_at_once(engine: FakeEngine, consumer: Any) -> None:
    fill(engine.partition("a", 0), 10)
    fill(engine.partition("a", 1), 10)
    reader = consumer("a", consumer_timeout_ms=0)
    seen = []
    for record in reader:
        seen.append((record.partition, record.offset))
        if len(seen) == 2:
            reader.pause(TopicPartition("a", record.partition))
    assert seen == [(0, 0), (0, 1)] + [(1, offset) for offset in range(10)]
    assert reader.position(A0) == 2


def test_closing_inside_the_loop_ends_it(engine: FakeEngine, consumer: Any) -> None:
    fill(engine.partition("b", 0), 10)
    reader = consumer("b")
    seen = []
    for record in reader:
        seen.append(record.offset)
        reader.close()
    assert seen == [0]


def test_an_iterator_that_lost_its_loop_gives_nothing_twice(
    engine: FakeEngine, consumer: Any
) -> None:
    fill(engine.partition("b", 0), 10)
    reader = consumer("b", consumer_timeout_ms=0)
    first = iter(reader)
    second = iter(reader)
    got = [next(first).offset, next(second).offset, next(first).offset, next(second).offset]
    assert got == [0, 1, 2, 3]


# ---- batches --------------------------------------------------------------------------------------------------------


def test_batches_move_the_same_positions(engine: FakeEngine, consumer: Any) -> None:
    fill(engine.partition("a", 0), 30)
    fill(engine.partition("a", 1), 5)
    reader = consumer("a")
    reader.poll(max_records=3)
    got = list(reader.batches(timeout=0))
    assert [(each.topic, each.partition, each.base_offset, each.num_rows) for each in got] == [
        ("a", 0, 3, 27),
        ("a", 1, 0, 5),
    ]
    assert reader.position(A0) == 30
    assert [row.value for row in got[1].records()] == [b"%d" % n for n in range(5)]


def test_batches_step_over_markers(engine: FakeEngine, consumer: Any) -> None:
    mixed(engine.partition("b", 0))
    reader = consumer("b", isolation_level="read_committed")
    assert [list(each.values) for each in reader.batches(timeout=0)] == [
        [b"plain", b"kept", b"again"]
    ]
    assert reader.position(TopicPartition("b", 0)) == 8


# ---- records that cannot be returned --------------------------------------------------------------------------------


def test_a_poison_record_waits_for_those_before_it_and_stays(
    engine: FakeEngine, consumer: Any
) -> None:
    engine.partition("b", 0).append([b"1", b"2", b"poison", b"4"])
    reader = consumer("b", value_deserializer=int)
    assert [record.value for record in reader.poll()] == [1, 2]
    for _ in range(2):
        with pytest.raises(SerializationError, match="topic b, partition 0, offset 2") as caught:
            reader.poll()
        assert isinstance(caught.value.__cause__, ValueError)
        assert reader.position(TopicPartition("b", 0)) == 2
    reader.seek(TopicPartition("b", 0), 3)
    assert [record.value for record in reader.poll()] == [4]


def test_the_loop_meets_a_poison_record_too(engine: FakeEngine, consumer: Any) -> None:
    engine.partition("b", 0).append([b"1", b"poison", b"3"])
    reader = consumer("b", value_deserializer=int, consumer_timeout_ms=0)
    seen = []
    with pytest.raises(SerializationError):
        seen += [record.value for record in reader]
    assert reader.position(TopicPartition("b", 0)) == 1
    reader.seek(TopicPartition("b", 0), 2)
    assert [record.value for record in reader] == [3]


def test_a_null_is_not_deserialized(engine: FakeEngine, consumer: Any) -> None:
    engine.partition("b", 0).append([Row(None, None), Row(b"7", b"8")])
    got = consumer("b", value_deserializer=int, key_deserializer=int).poll()
    assert [(record.key, record.value) for record in got] == [(None, None), (8, 7)]


def damaged(base: int) -> bytes:
    """A batch whose second record claims to be longer than it is: its CRC is right, its content is
    not.
    """
    broken = batch(base, [Row(b"good"), Row(b"bad")]).replace(b"\x06bad", b"\x7ebad")
    return broken[:17] + crc32c(broken[21:]).to_bytes(4, "big") + broken[21:]


def test_a_damaged_batch_waits_for_those_before_it(engine: FakeEngine, consumer: Any) -> None:
    partition = engine.partition("b", 0)
    fill(partition, 3)
    partition.append([b"", b""], data=damaged(3))
    reader = consumer("b")
    assert len(reader.poll()) == 3
    with pytest.raises(CorruptRecordError):
        reader.poll()
    with pytest.raises(CorruptRecordError):
        next(reader.batches(timeout=0))
    assert reader.position(TopicPartition("b", 0)) == 3


def test_records_collected_before_another_partitions_error_go_out_first(
    engine: FakeEngine, consumer: Any
) -> None:
    engine.partition("a", 0).append([b"1"])
    engine.partition("a", 1).append([b"poison"])
    reader = consumer("a", value_deserializer=int)
    assert places(reader.poll()) == [(0, 0)]
    with pytest.raises(SerializationError):
        reader.poll()


def test_an_interrupt_while_collecting_gives_everything_back(
    engine: FakeEngine, consumer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(engine.partition("a", 0), 5)
    fill(engine.partition("a", 1), 5)
    reader = consumer("a")
    partition = engine.partition("a", 1)
    whole = partition.fetch

    def interrupted(*args: Any, **keywords: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(partition, "fetch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        reader.poll()
    monkeypatch.setattr(partition, "fetch", whole)
    assert len(reader.poll()) == 10


# ---- threads, life --------------------------------------------------------------------------------------------------


def test_wakeup_ends_a_waiting_poll_once(engine: FakeEngine, consumer: Any) -> None:
    reader = consumer("a")

    def wake() -> None:
        assert engine.sleeping.wait(10)
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


def test_a_second_thread_is_refused(engine: FakeEngine, consumer: Any) -> None:
    reader = consumer("a")
    problems: list[BaseException] = []

    def poll() -> None:
        try:
            reader.poll(timeout=30)
        except WakeupError as problem:
            problems.append(problem)

    thread = threading.Thread(target=poll)
    thread.start()
    assert engine.sleeping.wait(10)
    for call in (
        reader.poll,
        reader.metrics,
        lambda: reader.seek(A0, 1),
        lambda: next(iter(reader)),
    ):
        with pytest.raises(ConcurrentUseError, match="wakeup"):
            call()
    reader.wakeup()
    thread.join()
    assert [type(problem) for problem in problems] == [WakeupError]
    assert reader.poll() == []


def test_closing_ends_a_poll_in_another_thread(engine: FakeEngine, consumer: Any) -> None:
    reader = consumer("a")

    def close() -> None:
        assert engine.sleeping.wait(10)
        reader.close()

    thread = threading.Thread(target=close)
    thread.start()
    with pytest.raises(ClosedError):
        reader.poll(timeout=30)
    thread.join()


def test_another_thread_may_use_it_afterwards(engine: FakeEngine, consumer: Any) -> None:
    fill(engine.partition("b", 0), 3)
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
    calls = (
        reader.poll,
        reader.metrics,
        lambda: iter(reader),
        reader.batches,
        lambda: reader.assign([A0]),
    )
    for call in (*calls, lambda: reader.position(A0)):
        with pytest.raises(ClosedError):
            call()


def test_it_closes_behind_a_with_block(engine: FakeEngine) -> None:
    with Consumer(engine, ["a"]) as reader:
        pass
    with pytest.raises(ClosedError):
        reader.poll()


def test_a_closed_or_forked_log_shows_in_every_call(engine: FakeEngine, consumer: Any) -> None:
    reader = consumer("a")
    engine.problem = ForkedError("opened in another process")
    with pytest.raises(ForkedError):
        reader.poll()
    engine.problem = None


def test_pickling_is_refused_with_the_way_to_do_it(consumer: Any) -> None:
    with pytest.raises(TypeError, match="in the worker"):
        pickle.dumps(consumer("a"))


def test_what_needs_a_group_says_so(consumer: Any) -> None:
    reader = consumer("a")
    calls = [
        reader.commit,
        reader.commit_async,
        reader.committed,
        reader.group_metadata,
        reader.enforce_rebalance,
    ]
    for call in [*calls, lambda: reader.subscribe(["a"], on_assigned=print)]:
        with pytest.raises(InvalidGroupIdError, match="group id"):
            call()


def test_an_unknown_option_is_refused_with_a_suggestion(engine: FakeEngine) -> None:
    with pytest.raises(ConfigError, match="max_poll_records"):
        Consumer(engine, ["a"], max_pol_records=5)


def test_metrics_count_what_was_handed_out(engine: FakeEngine, consumer: Any) -> None:
    fill(engine.partition("a", 0), 10)
    reader = consumer("a")
    reader.poll(max_records=4)
    metrics = reader.metrics()
    assert (
        metrics["records-consumed-total"],
        metrics["records-lag-max"],
        metrics["records-lead-min"],
    ) == (4, 6, 4)
    known = metrics["partitions"][A0]
    assert {name: known[name] for name in ("position", "records-lag", "records-lead")} == {
        "position": 4,
        "records-lag": 6,
        "records-lead": 4,
    }
    assert metrics["assigned-partitions"] == 3
    assert metrics["bytes-consumed-total"] > 0


def test_a_child_of_this_process_is_not_hindered_by_the_guard(consumer: Any) -> None:
    """The guard holds thread identities, which a forked child may repeat: it must refuse by the
    log's check, not hang.
    """
    reader = consumer("a")
    child = os.fork()
    if child == 0:
        os._exit(0 if reader.poll() == [] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
