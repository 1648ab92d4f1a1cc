"""Transactions whose first records are deleted: they continue at a replica that began again above
these.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import embedlog
from embedlog import TopicPartition
from embedlog.errors import FencedError
from tests.support.opened_sets import QUIET, paths, send
from tests.support.transactional_producers import Writer, begun, committed

TP = TopicPartition("t", 0)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[embedlog.Log]:
    with embedlog.open(
        paths(tmp_path), config=QUIET | {"auto.leader.rebalance.enable": False}
    ) as opened:
        opened.create_topic("t", assignment={0: [3, 1, 2]}, config={"min.insync.replicas": 2})
        opened.create_topic("u", assignment={0: [1, 2]}, config={"min.insync.replicas": 2})
        send(opened, *(b"%d" % number for number in range(5)))
        yield opened


@pytest.fixture
def writer(log: embedlog.Log, tmp_path: Path) -> Writer:
    """In a transaction whose first record is deleted; node 3 leads, which began again above it."""
    (tmp_path / "d3").rename(tmp_path / "away")
    found = begun(log)
    assert found.write(b"first").base_offset == 5
    assert log.delete_records({TP: -1}) == {TP: 6}
    (tmp_path / "away").rename(tmp_path / "d3")
    deadline = time.monotonic() + 60
    while len(log.replicas("t").partitions[0].isr) < 3:
        assert time.monotonic() < deadline
        log.housekeep()
    log.elect("t")
    assert log.replicas("t").partitions[0].leader == 3
    return found


def test_a_transaction_continues_at_a_replica_that_began_above_its_first_records(
    log: embedlog.Log, writer: Writer
) -> None:
    """The replica does not know it, and its producer was refused as fenced."""
    assert writer.write(b"second").base_offset == 6
    assert writer.write(b"third").base_offset == 7
    writer.write(b"other", topic="u")
    assert committed(log) == committed(log, "u") == []
    writer.commit()
    assert committed(log) == [b"second", b"third"]
    assert committed(log, "u") == [b"other"]
    writer.write(b"next")
    writer.abort()
    assert committed(log) == [b"second", b"third"]


def test_a_transaction_that_ended_there_does_not_continue(
    log: embedlog.Log, writer: Writer
) -> None:
    begun(log)
    with pytest.raises(FencedError):
        writer.write(b"late")
    assert committed(log) == []
    send(log, b"after")
    assert committed(log) == [b"after"]


def test_a_transaction_with_a_record_that_is_not_deleted_does_not_continue_without_it(
    log: embedlog.Log, writer: Writer
) -> None:
    """An unclean leader has lost a record of it: the rest is not committed."""
    assert writer.write(b"second").base_offset == 6
    replicas = log._engine.set.replicas(log._engine.partition("t", 0).partition_id, "t")  # type: ignore[attr-defined]
    for node in (1, 2, 3):  # as after the election of a replica that lacks it
        with replicas.members.find_replica(node).replica.exclusive() as held:
            held.truncate(6)
    with pytest.raises(FencedError):
        writer.write(b"third")
