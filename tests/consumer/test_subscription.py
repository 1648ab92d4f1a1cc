"""The partitions of a consumer: topics, patterns, assigned partitions, and later ones."""

from __future__ import annotations

from typing import Any

import pytest

from embedlog.errors import (
    InvalidTopicError,
    StateError,
    UnknownTopicOrPartitionError,
)
from embedlog.types import TopicPartition
from tests.support.fake_engine import FakeEngine, fill
from tests.support.fake_engine import consumer as consumer

A0, A1, A2 = (TopicPartition("a", number) for number in range(3))


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(a=3, b=1)


# ---- subscriptions --------------------------------------------------------------------------------------------------


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


def test_a_pattern_matches_whole_names_and_no_internal_topic(
    engine: FakeEngine, consumer: Any
) -> None:
    engine.grow("ab", 1)
    engine.grow("__a", 1)
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


def test_reassigning_keeps_the_positions_of_those_that_stay(
    engine: FakeEngine, consumer: Any
) -> None:
    fill(engine.partition("a", 0), 10)
    reader = consumer()
    reader.assign([A0, A1])
    reader.poll(max_records=4)
    reader.pause(A0)
    reader.assign([A0, A2])
    assert reader.position(A0) == 4
    assert reader.paused() == {A0}


def test_a_partition_added_later_is_read_from_its_start(engine: FakeEngine, consumer: Any) -> None:
    reader = consumer("b", auto_offset_reset="latest")
    assert reader.poll() == []
    engine.grow("b", 2)
    engine.partition("b", 1).append([b"first"])
    assert [record.value for record in reader.poll()] == [b"first"]


def test_latest_means_from_the_making_on(engine: FakeEngine, consumer: Any) -> None:
    fill(engine.partition("b", 0), 3)
    reader = consumer("b", auto_offset_reset="latest")
    engine.partition("b", 0).append([b"new"])
    assert [record.value for record in reader.poll()] == [b"new"]
