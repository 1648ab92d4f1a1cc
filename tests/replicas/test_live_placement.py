"""New partitions while a directory is away: their replicas are in directories that answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import embedlog
from embedlog.errors import InvalidReplicationFactorError
from tests.support.opened_sets import opened, paths


@pytest.fixture
def log(tmp_path: Path) -> Iterator[embedlog.Log]:
    """A set of three directories, of which the first one is away."""
    with opened(tmp_path) as whole:
        whole.create_topic("grows", assignment={0: [2, 3]})
        whole.create_topic("three", replication_factor=3)
    paths(tmp_path)[0].rename(tmp_path / "away")
    with opened(tmp_path) as made:
        yield made


def placed(log: embedlog.Log, topic: str) -> set[tuple[int, ...]]:
    found = log.replicas(topic).partitions
    assert all(each.isr == each.replicas and each.leader == each.replicas[0] for each in found)
    return {tuple(sorted(each.replicas)) for each in found}


def test_topics_are_placed_on_directories_that_answer(log: embedlog.Log) -> None:
    for number in range(20):
        log.create_topic(f"single{number}")
        assert placed(log, f"single{number}") <= {(2,), (3,)}
    log.create_topic("pairs", 6, replication_factor=2, min_insync_replicas=2)
    assert placed(log, "pairs") == {(2, 3)}
    with log.producer(delivery_timeout_ms=5000, request_timeout_ms=1000, linger_ms=0) as producer:
        for number in range(6):
            producer.send("pairs", b"v", partition=number).result(10)


def test_added_partitions_are_placed_on_directories_that_answer(log: embedlog.Log) -> None:
    log.create_partitions("grows", 6)
    assert placed(log, "grows") == {(2, 3)}


def test_a_directory_that_is_away_gets_a_replica_if_the_others_are_too_few(
    log: embedlog.Log,
) -> None:
    log.create_topic("u", replication_factor=3)
    log.create_partitions("three", 2)
    for topic, isr in (("u", {2, 3}), ("three", {2, 3})):
        last = log.replicas(topic).partitions[-1]
        assert (set(last.replicas), set(last.isr)) == ({1, 2, 3}, isr)
        assert last.leader in isr
    with pytest.raises(InvalidReplicationFactorError):
        log.create_topic("v", replication_factor=4)
    assert log.topics() == ["grows", "three", "u"]


def test_groups_begin_while_a_directory_is_away(log: embedlog.Log, tmp_path: Path) -> None:
    """Internal topics have all copies in the end: the directory that is away gets its one when it
    returns.
    """
    with log.consumer("grows", group_id="g", auto_offset_reset="earliest") as consumer:
        consumer.poll(timeout=0.1)
        consumer.commit()
    internal = log.replicas("__consumer_offsets").partitions
    assert {tuple(sorted(each.replicas)) for each in internal} == {(1, 2, 3)}
    assert {tuple(sorted(each.isr)) for each in internal} == {(2, 3)}
