"""Replicas that cannot be loaded, or whose directory or segment is missing: they begin again, and
are copied from another one.
"""

from __future__ import annotations

import logging
import os
import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import embedlog
from embedlog._native import system
from embedlog.storage import file_names
from tests.support.renewed_replicas import (
    NODES,
    truncated,
    until_in_sync,
    without_directory,
    without_segment,
)
from tests.support.verified_sets import (
    QUIET,
    WANTED,
    assert_equal_copies,
    filled,
    flip,
    isr,
    leader,
    opened,
    segment_of,
    values,
)

DAMAGES: list[Callable[[Path, int], None]] = [without_directory, without_segment, truncated]


@pytest.mark.sample(0.3)
@pytest.mark.parametrize("node", [1, 2])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_of_a_closed_directory_is_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[Path, int], None], node: int
) -> None:
    tmp_path /= f"{damage.__name__}-{node}"  # a repeated message about one path is not logged
    with filled(tmp_path):
        pass
    damage(tmp_path, node)
    with caplog.at_level(logging.WARNING, "embedlog"), opened(tmp_path) as log:
        assert values(log) == WANTED
        with log.producer() as producer:
            producer.send("t", b"more", key=b"k").result(20)
        until_in_sync(log)
        assert log.verify_replicas() == []
        assert values(log) == [*WANTED, b"more"]
        assert leader(log) in NODES
    assert_equal_copies(tmp_path)
    lines = [
        record.getMessage() for record in caplog.records if record.getMessage().startswith("t-0: ")
    ]
    assert len([line for line in lines if f"the replica of node {node} is damaged" in line]) == 1
    assert len([line for line in lines if f"node {node} is copied again from node" in line]) == 1


@pytest.mark.parametrize("node", [1, 2])
@pytest.mark.parametrize("damage", [without_directory, without_segment])
def test_files_that_are_removed_while_the_log_is_open_are_replaced(
    tmp_path: Path, damage: Callable[[Path, int], None], node: int
) -> None:
    with filled(tmp_path) as log:
        damage(tmp_path, node)
        with log.producer() as producer:
            producer.send("t", b"more", key=b"k").result(20)
        assert values(log) == [*WANTED, b"more"]
    with opened(tmp_path) as log:
        assert values(log) == [*WANTED, b"more"]
        log.housekeep()
        until_in_sync(log)
        assert log.verify_replicas() == []
    assert_equal_copies(tmp_path)


def test_damage_in_two_directories_is_replaced(tmp_path: Path) -> None:
    with filled(tmp_path):
        pass
    truncated(tmp_path, 1)
    without_directory(tmp_path, 3)
    with opened(tmp_path) as log:
        assert values(log) == WANTED
        log.housekeep()
        until_in_sync(log)
    assert_equal_copies(tmp_path)


def test_without_a_good_copy_nothing_is_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with filled(tmp_path):
        pass
    for node in NODES:
        truncated(tmp_path, node)
    before = {node: segment_of(tmp_path, node).read_bytes() for node in NODES}
    paths = [tmp_path / f"d{n}" for n in NODES]
    brief = {**QUIET, "lock_timeout_ms": 300}
    with caplog.at_level(logging.WARNING, "embedlog"), embedlog.open(paths, config=brief) as log:
        for _ in range(3):
            with pytest.raises(
                (embedlog.errors.LeaderNotAvailableError, embedlog.errors.CorruptRecordError)
            ):
                values(log)
            log.housekeep()
        lines = [record.getMessage() for record in caplog.records]
        assert len(lines) == len(set(lines)), "no line is repeated"
    assert {node: segment_of(tmp_path, node).read_bytes() for node in NODES} == before
    assert not any(
        each.name.endswith("-delete")
        for node in NODES
        for each in (tmp_path / f"d{node}").iterdir()
    )


def test_the_only_replica_stays_as_it_is(tmp_path: Path) -> None:
    with filled(tmp_path, factor=1):
        pass
    truncated(tmp_path, 1)
    before = segment_of(tmp_path, 1).read_bytes()
    with opened(tmp_path) as log:
        with pytest.raises(embedlog.errors.CorruptRecordError):
            values(log)
        log.housekeep()
        with pytest.raises(embedlog.errors.CorruptRecordError):
            values(log)
    assert segment_of(tmp_path, 1).read_bytes() == before


def test_damage_of_one_partition_leaves_the_others_of_its_directory_in_sync(tmp_path: Path) -> None:
    with filled(tmp_path) as log:
        log.create_topic("u", assignment={0: [2, 1, 3]})
    truncated(tmp_path, 2)
    with opened(tmp_path) as log:
        assert values(log) == WANTED
        with log.producer() as producer:
            producer.send("u", b"u").result(20)
            producer.send("t", b"more", key=b"k").result(20)
        found = log.replicas("u").partitions[0]
        assert (found.leader, sorted(found.isr)) == (2, [1, 2, 3])
        assert 2 not in isr(log)
        assert log.replicas().directories[1].state == "live"
        log.housekeep()
        until_in_sync(log)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["__consumer_offsets", "__transaction_state", file_names.partition_name("__replica_state", 0)],
)
@pytest.mark.parametrize("how", ["changed", "removed"])
def test_damage_of_internal_topics_is_replaced(
    tmp_path: Path, rng: random.Random, name: str, how: str
) -> None:
    def consumed(log: embedlog.Log) -> list[bytes]:
        with log.consumer(
            "t", group_id="g", auto_offset_reset="earliest", consumer_timeout_ms=500
        ) as consumer:
            return [record.value for record in consumer]

    with opened(tmp_path) as log:
        log.create_topic("t", replication_factor=3)
        with log.producer(transactional_id="x") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("t", b"first").result(20)
            producer.commit_transaction()
        assert consumed(log) == [b"first"]
    node = rng.choice(NODES)
    damaged = 0
    for path in (tmp_path / f"d{node}").glob(f"{name}*"):
        segment = file_names.segment_path(path, 0)
        if how == "removed":
            shutil.rmtree(path)
            damaged += 1
        elif segment.stat().st_size > 100:
            flip(segment, 0.4)
            damaged += 1
    assert damaged
    with opened(tmp_path) as log:
        with log.producer(transactional_id="x") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("t", b"second").result(20)
            producer.commit_transaction()
        assert consumed(log) == [b"second"]
        for _ in range(4):
            log.housekeep()
        assert log.metrics()["UnderReplicatedPartitions"] == 0
        log.verify_replicas(repair=True)  # a load does not read all of the decision log
        assert log.verify_replicas() == []


@pytest.mark.parametrize("point", ["renew-left", "renew-aside"])
def test_a_process_that_is_killed_while_a_replica_begins_again(tmp_path: Path, point: str) -> None:
    """The replica is outside of ISR and ELR then: the other directories alone elect a leader with
    all records.
    """
    with filled(tmp_path):
        pass
    truncated(tmp_path, 2)
    # its close is in order: the kill of one process crashes no directory
    with opened(tmp_path) as log:
        child = os.fork()
        if child == 0:
            try:
                with opened(tmp_path) as other:
                    assert values(other) == WANTED
                    with other.producer() as producer:
                        producer.send("t", b"more", key=b"k").result(20)
                    system.fault_arm(["point"], 1, "kill_before", name=point)
                    other.housekeep()
                    other.housekeep()
            finally:
                os._exit(0)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL, "it was killed"
        assert leader(log) in (1, 3)
        assert values(log) == [*WANTED, b"more"]
    away = (tmp_path / "d1").rename(tmp_path / "away")
    with embedlog.open([tmp_path / f"d{n}" for n in NODES], config=QUIET) as log:
        assert leader(log) in (1, 3)
        assert values(log) == [*WANTED, b"more"]
    away.rename(tmp_path / "d1")
    with opened(tmp_path) as log:
        assert values(log) == [*WANTED, b"more"]
        log.housekeep()
        until_in_sync(log)
        assert log.verify_replicas() == []
    assert_equal_copies(tmp_path)
