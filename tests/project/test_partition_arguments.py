"""Every public method that takes partitions, as a mapping's keys or in a list: an unknown partition
is an error.
"""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import embedlog
import embedlog.duckdb
import embedlog.polars
from embedlog import OffsetAndMetadata, TopicPartition
from embedlog.aio.consumer import AsyncConsumer
from embedlog.aio.producer import AsyncProducer
from embedlog.errors import ConfigError, StateError, UnknownTopicOrPartitionError
from embedlog.types import by_partition, topic_partition, topic_partitions

Verb = Callable[[embedlog.Log, Any], Any]

HERE = TopicPartition("t", 0)
PAIRS: list[Any] = [("t", "0"), ("t", 0.0), (0, "t"), ("t", True), ("t", None)]
NO_PLACES: list[Any] = [*PAIRS, "t", "0", b"t", None, 1.5, True, ("t",), ("t", 0, 0)]
NOT_THERE = [TopicPartition("t", 2), TopicPartition("t", -1), TopicPartition("other", 0), ("t", 7)]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[embedlog.Log]:
    """Topic `t` of two partitions with three records each, and topic `u`; group `g` has committed
    in `t`.
    """
    with embedlog.open(tmp_path / "log", config={"housekeeping": False}) as opened:
        opened.create_topic("t", partitions=2)
        opened.create_topic("u")
        with opened.producer() as producer:
            for number in range(6):
                producer.send("t", b"%d" % number, partition=number % 2)
        opened.reset_group_offsets("g", to={HERE: 1})
        yield opened


def assigned(log: embedlog.Log, use: Callable[[embedlog.Consumer], Any]) -> Any:
    with log.consumer(group_id="h") as consumer:
        consumer.assign([HERE])
        return use(consumer)


def in_transaction(log: embedlog.Log, offsets: Any) -> Any:
    with log.producer(transactional_id="x") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        try:
            producer.send_offsets_to_transaction(offsets, embedlog.GroupMetadata("h"))
        finally:
            producer.abort_transaction()


def framed(log: embedlog.Log, topic: str, **bounds: Any) -> Any:
    """`embedlog.polars.scan`, where polars is installed."""
    pytest.importorskip("polars", reason="needs polars")
    return embedlog.polars.scan(log, topic, **bounds)


# Methods that take a mapping: called with {key: 1}.
MAPPINGS: dict[str, Verb] = {
    "scan(start_offset)": lambda log, given: log.scan("t", start_offset=given),
    "scan(end_offset)": lambda log, given: log.scan("t", end_offset=given),
    "narrowed(start_offset)": lambda log, given: log.scan("t").narrowed(start_offset=given),
    "narrowed(end_offset)": lambda log, given: log.scan("t").narrowed(end_offset=given),
    "polars.scan": lambda log, given: framed(log, "t", start_offset=given),
    "duckdb.table": lambda log, given: embedlog.duckdb.table(log, "t", start_offset=given),
    "duckdb.register": lambda log, given: embedlog.duckdb.register(
        log, topics=["t"], end_offset=given
    ),
    "offsets_for_times": lambda log, given: assigned(
        log, lambda consumer: consumer.offsets_for_times(given)
    ),
    "commit": lambda log, given: assigned(log, lambda consumer: consumer.commit(given)),
    "send_offsets_to_transaction": in_transaction,
    "delete_records": lambda log, given: log.delete_records(given),
    "reset_group_offsets": lambda log, given: log.reset_group_offsets("g", to=given),
}
# Methods that take a list, or the partitions one by one.
LISTS: dict[str, Verb] = {
    "assign": lambda log, given: assigned(log, lambda consumer: consumer.assign(given)),
    "beginning_offsets": lambda log, given: assigned(
        log, lambda consumer: consumer.beginning_offsets(given)
    ),
    "end_offsets": lambda log, given: assigned(log, lambda consumer: consumer.end_offsets(given)),
    "seek_to_beginning": lambda log, given: assigned(
        log, lambda consumer: consumer.seek_to_beginning(*given)
    ),
    "seek_to_end": lambda log, given: assigned(log, lambda consumer: consumer.seek_to_end(*given)),
    "pause": lambda log, given: assigned(log, lambda consumer: consumer.pause(*given)),
    "resume": lambda log, given: assigned(log, lambda consumer: consumer.resume(*given)),
    "position": lambda log, given: assigned(
        log, lambda consumer: [consumer.position(each) for each in given]
    ),
    "current_lag": lambda log, given: assigned(
        log, lambda consumer: [consumer.current_lag(each) for each in given]
    ),
    "seek": lambda log, given: assigned(
        log, lambda consumer: [consumer.seek(each, 0) for each in given]
    ),
}
# A group may still have offsets of deleted partitions: these read and delete the present ones.
FORGIVING: dict[str, Verb] = {
    "committed": lambda log, given: assigned(log, lambda consumer: consumer.committed(*given)),
    "delete_group_offsets": lambda log, given: log.delete_group_offsets("g", given),
}
TIMES = {"offsets_for_times"}
NUMBERS = {name for name in MAPPINGS if name.startswith(("scan", "narrowed", "polars", "duckdb"))}
PLAIN_TEXT = {"reset_group_offsets"}  # where a text names a topic, or the manner of the reset


def refused(verb: Verb, log: embedlog.Log, given: Any, kinds: tuple[type[Exception], ...]) -> None:
    with pytest.raises(kinds) as caught:
        verb(log, given)
    assert str(caught.value)


@pytest.mark.parametrize("name", MAPPINGS)
def test_a_key_that_is_no_partition_is_refused(log: embedlog.Log, name: str) -> None:
    for key in NO_PLACES:
        refused(
            MAPPINGS[name],
            log,
            {key: 1},
            (TypeError, ConfigError) if name in PLAIN_TEXT else (TypeError,),
        )


@pytest.mark.parametrize("name", MAPPINGS)
def test_a_key_that_is_not_there_is_refused(log: embedlog.Log, name: str) -> None:
    before = {
        place: found
        for place in (HERE, TopicPartition("t", 1))
        for found in [log.group_offsets("g").get(place)]
    }
    for key in [*NOT_THERE, *([2, -1] if name in NUMBERS else [])]:
        refused(MAPPINGS[name], log, {HERE: 1, key: 1}, (UnknownTopicOrPartitionError,))
    assert sum(1 for _ in log.scan("t").records()) == 6, "nothing was deleted for the good half"
    assert all(log.group_offsets("g").get(place) == found for place, found in before.items())
    assert not log.group_offsets("h")


@pytest.mark.parametrize("name", MAPPINGS)
def test_the_keys_of_every_other_verb_are_taken(log: embedlog.Log, name: str) -> None:
    given = {HERE: 1, ("t", 1): 2}
    MAPPINGS[name](log, given)


@pytest.mark.parametrize("name", MAPPINGS)
def test_what_is_no_mapping_is_refused(log: embedlog.Log, name: str) -> None:
    for given in ([HERE], [(HERE, 1)], {HERE}):
        refused(MAPPINGS[name], log, given, (TypeError,))


@pytest.mark.parametrize("name", LISTS)
def test_a_list_with_what_is_not_there_is_refused(log: embedlog.Log, name: str) -> None:
    for key in NO_PLACES:
        refused(LISTS[name], log, [key], (TypeError,))
    for key in NOT_THERE:
        refused(LISTS[name], log, [HERE, key], (UnknownTopicOrPartitionError, StateError))


@pytest.mark.parametrize("name", FORGIVING)
def test_a_list_of_what_is_no_partition_is_refused(log: embedlog.Log, name: str) -> None:
    for key in NO_PLACES:
        refused(FORGIVING[name], log, [key], (TypeError,))
    FORGIVING[name](log, [HERE, *NOT_THERE])


def test_a_partition_alone_is_no_list_of_partitions(log: embedlog.Log) -> None:
    for name in ("assign", "beginning_offsets", "end_offsets"):
        refused(LISTS[name], log, HERE, (TypeError,))
    refused(FORGIVING["delete_group_offsets"], log, HERE, (TypeError,))


def test_offsets_for_a_reset_are_those_of_the_partitions_that_are_named(log: embedlog.Log) -> None:
    """Neither half may name a method that the other does not."""
    for topics in (HERE, [HERE], "u"):
        with pytest.raises(ConfigError, match="no match for"):
            log.reset_group_offsets("g", topics, to={HERE: 1, ("t", 1): 1})
    assert log.reset_group_offsets("g", "t", to={HERE: 2, ("t", 1): 1}).keys() == {HERE, ("t", 1)}


def test_of_bounds_for_several_views_each_takes_its_own(log: embedlog.Log) -> None:
    bounds = {HERE: 2, TopicPartition("u", 0): 0}
    with embedlog.duckdb.register(log, start_offset=bounds) as connection:
        assert connection.sql("select count(*) from t").fetchall() == [(4,)]
    with pytest.raises(UnknownTopicOrPartitionError, match="names a partition that is not read"):
        embedlog.duckdb.register(log, topics=["t"], start_offset=bounds)
    with pytest.raises(TypeError, match="a list of names"):
        embedlog.duckdb.register(log, topics="t")


def test_an_engine_takes_an_open_log_and_says_so(log: embedlog.Log, tmp_path: Path) -> None:
    for call in (
        lambda given: embedlog.polars.scan(given, "t"),
        lambda given: embedlog.duckdb.register(given),
        lambda given: embedlog.duckdb.table(given, "t"),
    ):
        for given in ("data", tmp_path):
            with pytest.raises(
                TypeError,
                match=rf"an open log, not \w+: embedlog.open\('{given}', read_only=True\)",
            ):
                call(given)


@pytest.mark.parametrize(
    "verb", [embedlog.Log.scan, embedlog.duckdb.table, framed], ids=["scan", "duckdb", "polars"]
)
def test_a_missing_topic_is_named_with_the_nearest(
    log: embedlog.Log, verb: Callable[[embedlog.Log, str], Any]
) -> None:
    log.create_topic("events")
    with pytest.raises(UnknownTopicOrPartitionError, match="did you mean 'events'"):
        verb(log, "event")


# ---- one partition ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong", [("t", "0"), ("t", 0.0), ("t", None), ("t", True), (b"t", 0), (None, 0), (0, "t")]
)
def test_a_partition_is_a_name_and_a_number(wrong: Any) -> None:
    with pytest.raises(TypeError, match="of a TopicPartition is "):
        TopicPartition(*wrong)


def test_a_partition_is_a_tuple() -> None:
    place = TopicPartition("t", 3)
    assert place == ("t", 3) == TopicPartition(partition=3, topic="t")
    assert hash(place) == hash(("t", 3))
    assert (place.topic, place.partition) == tuple(place)
    assert repr(place) == "TopicPartition(topic='t', partition=3)"
    assert place._replace(partition=4) == ("t", 4)
    assert type(place._replace(partition=4)) is TopicPartition
    for other in (pickle.loads(pickle.dumps(place)), copy.deepcopy(place)):
        assert other == place
        assert type(other) is TopicPartition
    assert not hasattr(place, "__dict__")
    topic, number = place
    assert [topic, number] == ["t", 3]


def test_numpys_numbers_are_numbers() -> None:
    numpy = pytest.importorskip("numpy")
    place = TopicPartition("t", numpy.int64(3))
    assert type(place.partition) is int
    assert place == ("t", 3)


def test_what_checks_places_gives_them() -> None:
    assert topic_partition(("t", 1)) == HERE._replace(partition=1)
    assert topic_partitions([HERE, ("t", 0), ("t", 1)]) == [HERE, ("t", 1)]
    assert topic_partitions(()) == []
    assert by_partition("x", {("t", 0): OffsetAndMetadata(1)}) == {HERE: OffsetAndMetadata(1)}


def test_every_verb_that_takes_partitions_is_tested_here() -> None:
    """By their annotations: a new one has to be written down above."""
    known = {name.split("(")[0].split(".")[-1] for name in (*MAPPINGS, *LISTS, *FORGIVING)}
    found = set()
    clients = (embedlog.Consumer, embedlog.Producer, AsyncConsumer, AsyncProducer)
    for owner in (embedlog.Log, embedlog.Scan, *clients):
        for name, verb in inspect.getmembers(owner, callable):
            if name.startswith("_"):
                continue
            given = {
                key: text
                for key, text in getattr(verb, "__annotations__", {}).items()
                if key != "return"
            }
            if any(
                "TopicPartition" in str(text) or "OffsetBound" in str(text)
                for text in given.values()
            ):
                found.add(name)
    assert {"seek", "commit", "scan"} <= found
    elsewhere = {"reassign"}  # it needs a set of directories: tests/replicas/test_assignments.py
    assert found - elsewhere - {"commit_async"} <= known, (
        "commit_async passes the error to its callback"
    )


def test_an_asynchronous_commit_checks_its_keys_at_once(log: embedlog.Log) -> None:
    for key in NO_PLACES:
        refused(
            lambda log, given: assigned(log, lambda consumer: consumer.commit_async(given)),
            log,
            {key: 1},
            (TypeError,),
        )
    told: list[Any] = []

    def later(consumer: embedlog.Consumer) -> None:
        consumer.commit_async(
            {TopicPartition("t", 9): 1}, lambda offsets, error: told.append(error)
        )
        consumer.poll(timeout=0)

    assigned(log, later)
    assert [type(error) for error in told] == [UnknownTopicOrPartitionError]
