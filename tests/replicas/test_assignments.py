"""Elections on request, and reassignments of partitions between the directories of a set."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog import TopicPartition
from embedlog._native import system
from tests.support.replica_moves import WAIT_S, failing, moved, opened, partition_of, values

T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)


def filled(log: embedlog.Log, count: int = 20, topic: str = "t") -> list[bytes]:
    wanted = [b"%04d" % number for number in range(count)]
    with log.producer() as producer:
        for number, value in enumerate(wanted):
            producer.send(
                topic, value, partition=number % len(log.describe_topic(topic).partitions)
            )
    return wanted


def test_a_partition_without_copies_moves_to_another_directory(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        log.create_topic("t", assignment={0: [1], 1: [2]})
        wanted = filled(log)
        log.reassign({T0: [3]})
        found = log.reassignments()[T0]
        assert (found.target, found.adding, found.removing, found.records_left) == (
            (3,),
            (3,),
            (1,),
            10,
        )
        assert found.bytes_left
        log.housekeep()
        assert log.reassignments() == {}
        decided = partition_of(log, T0)
        assert (decided.replicas, decided.isr, decided.leader) == ((3,), (3,), 3)
        assert not (tmp_path / "d1" / "t-0").exists()
        assert [path.name for path in (tmp_path / "d1").glob("t-0.*-delete")]
        assert values(log) == wanted
        with log.producer() as producer:
            assert producer.send("t", b"later", partition=0).result(WAIT_S).offset == 10
    with embedlog.open(tmp_path / "d1", read_only=True) as alone:
        assert alone.topics() == []
    with opened(tmp_path) as log:
        assert values(log) == sorted([*wanted, b"later"])


def test_a_reassignment_changes_the_number_of_replicas(tmp_path: Path) -> None:
    with opened(tmp_path, auto_leader_rebalance_enable=False) as log:
        log.create_topic("t", assignment={0: [1]})
        wanted = filled(log)
        moved(log, {T0: [2, 3, 1]})
        assert sorted(partition_of(log, T0).isr) == [1, 2, 3]
        assert partition_of(log, T0).leader == 1
        moved(log, {T0: [3]})
        assert (partition_of(log, T0).replicas, partition_of(log, T0).leader) == ((3,), 3)
        assert [node for node in (1, 2, 3) if (tmp_path / f"d{node}" / "t-0").exists()] == [3]
        assert values(log) == wanted
        moved(log, {T0: [1, 2, 3]})
        assert values(log) == wanted


def test_a_reassignment_can_be_cancelled_and_replaced(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        log.create_topic("t", assignment={0: [1], 1: [1]})
        wanted = filled(log)
        log.reassign({T0: [2], T1: [2]})
        log.reassign({T0: None, T1: [3]})
        assert partition_of(log, T0).replicas == (1,)
        with pytest.raises(embedlog.NoReassignmentInProgressError):
            log.reassign({T0: None})
        moved(log, {})
        assert (partition_of(log, T0).replicas, partition_of(log, T1).replicas) == ((1,), (3,))
        assert not list((tmp_path / "d2").glob("t-?"))
        assert values(log) == wanted
        wrong: Any
        for wrong in ([], [1, 1], [9], 1, "12", [None], [True]):
            with pytest.raises(embedlog.InvalidReplicaAssignmentError):
                log.reassign({T0: wrong})
        for wrong in ([T0], {"t": [1]}, {("t",): [1]}, None):
            with pytest.raises(TypeError):
                log.reassign(wrong)
        for wrong in (0, -1, 1.5, True, 1 << 63):
            with pytest.raises(ValueError, match="throttle"):
                log.reassign({T0: [2]}, throttle=wrong)
        assert log.reassignments() == {}
        with pytest.raises(embedlog.UnknownTopicOrPartitionError):
            log.reassign({TopicPartition("t", 7): [1]})


def test_a_cancellation_that_takes_the_leader_away_loses_no_record_of_acks_1(
    tmp_path: Path,
) -> None:
    with opened(tmp_path) as log:
        log.create_topic("t", assignment={0: [1]})
        wanted = filled(log)
        log.reassign({T0: [2, 3]})
        replicas = log._engine.set.replicas(partition_id_of(log, T0), "t")  # type: ignore[attr-defined]
        until_ns = system.boot_ns() + WAIT_S * 1_000_000_000
        assert replicas.in_sync.add_to_isr(replicas.leaders.find_leader(until_ns), 2, until_ns)
        assert log.elect("t", 0) == {T0: 2}
        with log.producer(acks=1, enable_idempotence=False, linger_ms=0) as producer:
            assert producer.send("t", b"by two", partition=0).result(WAIT_S).offset == len(wanted)
        log.reassign({T0: None})
        assert (partition_of(log, T0).replicas, partition_of(log, T0).leader) == ((1,), 1)
        assert values(log) == [*wanted, b"by two"]


def test_nothing_is_lost_while_partitions_move_under_producers_and_consumers(
    tmp_path: Path,
) -> None:
    with opened(tmp_path) as log, opened(tmp_path) as other:
        log.create_topic("t", assignment={0: [1], 1: [2]})
        done = threading.Event()
        sent = list[bytes]()
        failed = list[BaseException]()

        def produce() -> None:
            try:
                with other.producer(linger_ms=0) as producer:
                    while not done.is_set():
                        value = b"%09d" % len(sent)  # a fast machine sends more than 100,000
                        producer.send("t", value, partition=len(sent) % 2).result(WAIT_S)
                        sent.append(value)
            except BaseException as problem:  # noqa: BLE001
                failed.append(problem)

        thread = threading.Thread(target=produce)
        thread.start()
        read = list[bytes]()
        try:
            with other.consumer("t", group_id="g", auto_offset_reset="earliest") as consumer:
                for targets in (
                    {T0: [3], T1: [1]},
                    {T0: [2, 1], T1: [3, 2, 1]},
                    {T0: [1], T1: [2]},
                ):
                    moved(log, targets)
                    for _ in range(3):
                        read += [record.value for record in consumer.poll(1)]
                done.set()
                thread.join(WAIT_S)
                while len(read) < len(sent) and (records := consumer.poll(5)):
                    read += [record.value for record in records]
        finally:
            done.set()
            thread.join(WAIT_S)
        assert not failed
        assert len(sent) > 10
        assert sorted(read) == sent == values(log)
        assert [partition_of(log, tp).replicas for tp in (T0, T1)] == [(1,), (2,)]


def test_a_throttle_limits_the_copies_of_a_reassignment(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        log.create_topic("t", assignment={0: [1]}, segment_bytes=1 << 20)
        with log.producer(compression_type="none") as producer:
            for _ in range(40):
                producer.send("t", os_random(100_000), partition=0)
        log.reassign({T0: [2]}, throttle=1)
        for _ in range(3):
            log.housekeep()
        left = log.reassignments()[T0]
        assert 0 < (left.records_left or 0) < 40
        moved(log, {T0: [2]})
        assert partition_of(log, T0).replicas == (2,)


def os_random(size: int) -> bytes:
    """Bytes that differ from record to record."""
    return bytes(number * 7 % 251 for number in range(size))


def test_leaders_are_elected_on_request(tmp_path: Path) -> None:
    with opened(tmp_path, auto_leader_rebalance_enable=False) as log:
        log.create_topic("t", assignment={0: [1, 2, 3], 1: [2, 3, 1]})
        wanted = filled(log)
        with pytest.raises(embedlog.ElectionNotNeededError):
            log.elect("t", 0)
        assert log.elect() == {}
        assert log.elect("t", 0, unclean=True, node=3) == {T0: 3}
        assert partition_of(log, T0).isr == (3,)
        log.housekeep()
        assert log.elect("t") == {T0: 1}
        with log.producer(acks=1, enable_idempotence=False, linger_ms=0) as producer:
            log.elect("t", 1, unclean=True, node=1)
            log.housekeep()
            producer.send("t", b"by one", partition=1).result(WAIT_S)
            assert log.elect("t", 1) == {T1: 2}
        assert values(log) == sorted([*wanted, b"by one"])
        with pytest.raises(embedlog.UnknownTopicOrPartitionError):
            log.elect("u")
        with pytest.raises(embedlog.UnknownTopicOrPartitionError):
            log.elect("t", 5)
        with pytest.raises(TypeError):
            log.elect(partition=1)


def test_a_partition_that_cannot_have_its_leader_does_not_stop_the_others(tmp_path: Path) -> None:
    with opened(tmp_path, auto_leader_rebalance_enable=False) as log:
        log.create_topic("t", assignment={0: [1, 2], 1: [1, 2]})
        filled(log)
        for number in (0, 1):
            log.elect("t", number, unclean=True, node=2)
        log._engine.set.replicas(partition_id_of(log, T1), "t").tend(system.boot_ns() + 30 * 10**9)  # type: ignore[attr-defined]
        assert (partition_of(log, T0).isr, sorted(partition_of(log, T1).isr)) == ((2,), [1, 2])
        with pytest.raises(embedlog.PreferredLeaderNotAvailableError, match="t-0"):
            log.elect("t")
        assert [partition_of(log, tp).leader for tp in (T0, T1)] == [2, 1]


def partition_id_of(log: embedlog.Log, tp: TopicPartition) -> Any:
    return log._engine.set.assignments.find_partition_ids(tp.topic, tp.partition)[tp]  # type: ignore[attr-defined]


def test_leaders_return_to_the_preferred_directories(tmp_path: Path) -> None:
    with opened(tmp_path, auto_leader_rebalance_enable=False) as log:
        log.create_topic("t", assignment={0: [1, 2, 3], 1: [2, 3, 1]})
        filled(log)
        log.elect("t", 0, unclean=True, node=3)
        log.housekeep()
        assignments = log._engine.set.assignments  # type: ignore[attr-defined]
        assert assignments.rebalance(100) == {}
        assert assignments.rebalance(10) == {T0: 1}
        assert assignments.rebalance(0) == {}


def test_a_replica_that_was_added_again_is_not_removed(tmp_path: Path) -> None:
    """Its page has the epoch of the decision, or a later one (REPLICA-24)."""
    with opened(tmp_path) as log:
        log.create_topic("t", assignment={0: [1]})
        filled(log)
        members = log._engine.set.members  # type: ignore[attr-defined]
        (directory,) = [each.directory for each in members.open_members() if each.node == 1]
        state = log._engine.set.decisions.counted_state()  # type: ignore[attr-defined]
        ((partition_id, decided),) = state.partitions.items()
        assert not directory.drop(partition_id, state)
        assert (tmp_path / "d1" / "t-0").exists()
        later = replace(decided, leader_epoch=decided.leader_epoch + 1)
        assert directory.drop(partition_id, replace(state, partitions={partition_id: later}))
        assert not (tmp_path / "d1" / "t-0").exists()


@pytest.mark.slow
def test_a_removal_that_was_interrupted_is_completed(tmp_path: Path) -> None:
    nth = struck = 1
    while struck and nth < 20:  # later calls belong to the rest of the round
        root = tmp_path / f"{nth}"
        with opened(root) as log:
            log.create_topic("t", assignment={0: [1], 1: [1]})
            wanted = filled(log)
            log.reassign({T0: [2]})
            log.housekeep()  # copies, joins, finishes, and removes
        with opened(root) as log:
            log.reassign({T0: [1]})
            changes = ("rename", "pwrite", "fsync", "unlink")
            with (
                failing(changes, nth=nth, name="/d2/") as found,
                contextlib.suppress(embedlog.StorageError),
            ):
                log.housekeep()
            struck = found.count
        with opened(root) as log:
            moved(log, {})
            assert partition_of(log, T0).replicas == (1,)
            assert not (root / "d2" / "t-0").exists()
            assert values(log) == wanted
        with embedlog.open(root / "d2", read_only=True) as alone:
            assert alone.topics() == []
        with opened(root) as log:
            moved(log, {T0: [2]})
            assert values(log) == wanted
        nth += 1
    assert nth > 12
