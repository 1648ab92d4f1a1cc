"""What happens between two steps of a call: a directory disappears, is added by another process, or
the topic is deleted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import embedlog
from embedlog import TopicPartition
from embedlog._native import system
from embedlog.errors import NotEnoughReplicasAfterAppendError, UnknownTopicOrPartitionError
from embedlog.partition import append_lock
from embedlog.partition.replication.replica_log import ReplicaLog
from embedlog.replicas.assignments import Assignments
from embedlog.replicas.partition import parallel_sync
from embedlog.replicas.partition.leader import Leader, LeaderChanged
from embedlog.replicas.partition.partition_replicas import PartitionReplicas
from embedlog.replicas.partition.record_deletion import RecordDeletion
from tests.support.replica_moves import WAIT_S, moved, opened, partition_of, values
from tests.support.replica_partitions import a_set
from tests.support.stamped_batches import run_of

T0 = TopicPartition("t", 0)


@contextlib.contextmanager
def written(
    root: Path, count: int = 3, assignment: tuple[int, ...] = (1, 2, 3), **settings: Any
) -> Iterator[embedlog.Log]:
    with opened(root, count, **settings) as log:
        log.create_topic("t", assignment={0: list(assignment)})
        send(log, b"a")
        yield log


def send(log: embedlog.Log, value: bytes) -> int:
    with log.producer() as producer:
        return producer.send("t", value).result(30).offset


def lose(root: Path, node: int) -> None:
    (root / f"d{node}").rename(root / f"gone{node}")


# ---- a directory disappears ------------------------------------------------------------------------------------------


def test_a_follower_that_disappears_after_its_copy_leaves_the_isr(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The C core counts it as one that has nothing, without an error: the commit was repeated until
    the deadline.
    """
    commit = ReplicaLog.commit
    lost = list[int]()

    def losing(self: ReplicaLog, *arguments: Any, **rest: Any) -> int:
        if self._state.path == tmp_path / "d2" / "t-0" and not lost:
            lost.append(3)
            lose(tmp_path, 3)
        return commit(self, *arguments, **rest)

    with written(tmp_path, 5, (1, 2, 3, 4, 5)) as log:
        log.housekeep()
        monkeypatch.setattr(ReplicaLog, "commit", losing)
        lose(tmp_path, 1)
        assert [send(log, b"%d" % number) for number in range(2)] == [1, 2]
        assert lost == [3]
        assert partition_of(log, T0).isr == (2, 4, 5)


@pytest.mark.parametrize("read_only", [True, False])
def test_a_reader_sees_what_another_process_appends_after_a_failover(
    tmp_path: Path, read_only: bool
) -> None:
    """The page of the earlier leader stays as it was: no process writes to the directory that was
    removed.
    """
    with written(tmp_path):
        pass
    paths = [tmp_path / f"d{node}" for node in (1, 2, 3)]
    with (
        embedlog.open(paths, read_only=read_only, config={"housekeeping": False}) as reader,
        opened(tmp_path) as writer,
    ):
        assert values(reader) == [b"a"]
        lose(tmp_path, 1)
        for number in range(3):
            send(writer, b"b%d" % number)
            assert values(reader) == [b"a", *(b"b%d" % each for each in range(number + 1))]
            with reader.consumer() as consumer:
                assert consumer.end_offsets([T0]) == {T0: number + 2}


def test_a_directory_that_fails_before_its_replica_is_removed_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with written(tmp_path) as log:
        assignments: Assignments = log._engine.set.assignments  # type: ignore[attr-defined]
        partition_id = log._engine.partition("t", 0).partition_id  # type: ignore[attr-defined]
        monkeypatch.setattr(assignments, "_usable_directories", list)
        monkeypatch.setattr(
            log._engine.set.decisions, "settle", lambda until: without(log, partition_id)
        )  # type: ignore[attr-defined]
        assert assignments._remove(partition_id, "t", 3) is False


def without(log: embedlog.Log, partition_id: Any) -> Any:
    """The state in which node 3 has no replica of the partition."""
    decided = log._engine.set.decisions.counted_state().partitions[partition_id]  # type: ignore[attr-defined]
    return SimpleNamespace(partitions={partition_id: replace(decided, replicas=(1, 2))})


# ---- another process adds one ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("read_only", [True, False])
def test_a_partition_that_moved_to_an_added_directory_is_read(
    tmp_path: Path, read_only: bool
) -> None:
    with written(tmp_path, assignment=(1, 2)):
        pass
    paths = [tmp_path / f"d{node}" for node in (1, 2, 3)]
    with (
        embedlog.open(paths, read_only=read_only, config={"housekeeping": False}) as other,
        opened(tmp_path) as log,
    ):
        assert values(other) == [b"a"]
        added = log.add_directory(tmp_path / "d4")
        moved(log, {T0: [added]})
        send(log, b"b")
        assert values(other) == [b"a", b"b"]


@pytest.mark.parametrize("lost", [None, 1, 2])
def test_a_producer_copies_to_an_added_directory(tmp_path: Path, lost: int | None) -> None:
    """Its node was looked up among those that this process had opened."""
    with written(tmp_path, 5) as other, opened(tmp_path, 5) as log:
        added = log.add_directory(tmp_path / "d6")
        moved(log, {T0: [1, 2, added]})
        if lost is not None:
            lose(tmp_path, lost)
        assert [send(other, b"b%d" % number) for number in range(3)] == [1, 2, 3]
        assert set(partition_of(other, T0).isr) == {1, 2, added} - {lost}


# ---- the topic is deleted --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", [False, True])
def test_a_producer_finds_a_topic_that_was_created_again(tmp_path: Path, lost: bool) -> None:
    """Without its leader's directory no page shows that the topic was deleted."""
    with written(tmp_path, **{"lock.timeout.ms": 2000}) as log, log.producer() as producer:
        producer.send("t", b"b").result(30)
        partition = log._engine.partition("t", 0)
        if lost:
            lose(tmp_path, 1)
        log.delete_topic("t")
        with pytest.raises(UnknownTopicOrPartitionError):
            partition.bounds()
        log.create_topic("t", assignment={0: [2, 3]})
        assert producer.send("t", b"c").result(30).offset == 0
        log.delete_topic("t")
        with pytest.raises(UnknownTopicOrPartitionError):
            producer.send("t", b"d").result(30)


def test_an_election_of_all_leaves_out_a_topic_that_is_deleted_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Assignments.find_partition_ids

    def deleting(self: Assignments, topic: str | None, number: int | None) -> Any:
        found = original(self, topic, number)
        log.delete_topic("t")
        return found

    with written(tmp_path) as log:
        log.create_topic("u", assignment={0: [1, 2, 3]})
        monkeypatch.setattr(Assignments, "find_partition_ids", deleting)
        assert log.elect() == {}
        log.create_topic("t", assignment={0: [1, 2, 3]})
        with pytest.raises(UnknownTopicOrPartitionError):
            log.elect("t", 0)


def test_a_partition_that_is_closed_while_a_thread_waits_for_it_was_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replica was moved away meanwhile: the log and the producer are open."""
    holding = append_lock.locks.holding
    with embedlog.open(tmp_path, config={"housekeeping": False}) as log:
        log.create_topic("t")
        partition = log._engine.partition("t", 0)
        partition.published()

        def closing(*arguments: Any) -> Any:
            partition.close()  # type: ignore[attr-defined]
            return holding(*arguments)

        with monkeypatch.context() as patched:
            patched.setattr(append_lock.locks, "holding", closing)
            with (
                pytest.raises(UnknownTopicOrPartitionError, match="topic t was deleted"),
                partition.exclusive(),
            ):
                pass
        log._engine.home.forget_partition("t", 0)  # type: ignore[attr-defined]


# ---- too few replicas are in sync ------------------------------------------------------------------------------------


def test_a_reader_of_decisions_waits_for_their_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with a_set(tmp_path, min_insync_replicas="2") as (_, [process]):
        process.partition.append(run_of(b"first"))
        process.disks[2].broken = process.disks[3].broken = True
        with pytest.raises(NotEnoughReplicasAfterAppendError):
            process.partition.append(run_of(b"second"))
        wait = process.replicas.members.wait
        waits = list[int]()

        def returning(version: int, deadline_ns: int) -> None:
            waits.append(version)
            process.disks[2].broken = process.disks[3].broken = False
            process.forgive()
            leader = process.replicas.leaders.find_leader(deadline_ns)
            for node in (2, 3):
                process.replicas.in_sync.add_to_isr(leader, node, deadline_ns)
            wait(version, min(deadline_ns, 1))

        monkeypatch.setattr(process.replicas.members, "wait", returning)
        assert process.partition.confirm(2, 0)
        assert waits
        assert process.partition.published().high_watermark == 2


# ---- another replica leads -------------------------------------------------------------------------------------------

BY_HAND = {"auto.leader.rebalance.enable": False, "lock.timeout.ms": 60_000}


def follow(root: Path, log: embedlog.Log) -> None:
    """The first directory, which leads, is lost and returns."""
    lose(root, 1)
    log.housekeep()
    assert partition_of(log, T0).leader == 2
    (root / "gone1").rename(root / "d1")
    until_ns = system.boot_ns() + WAIT_S * 1_000_000_000
    while sorted(partition_of(log, T0).isr) != [1, 2, 3]:
        assert system.boot_ns() < until_ns
        log.housekeep()


def test_records_stay_deleted_if_another_replica_leads_before_the_followers_delete_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page of a leader that follows by now names no member of the ISR: the followers were not
    asked to delete anything.
    """
    with written(tmp_path, **BY_HAND) as log:
        send(log, b"b")
        in_followers = RecordDeletion.delete_in_followers
        led = list[int]()

        def late(self: RecordDeletion, leader: Leader) -> None:
            if not led:
                led.append(leader.node)
                follow(tmp_path, log)
            in_followers(self, leader)

        monkeypatch.setattr(RecordDeletion, "delete_in_followers", late)
        assert log.delete_records({T0: 1}) == {T0: 1}
        assert led == [1]
        assert log.describe_topic("t").partitions[0].log_start_offset == 1
        assert values(log) == [b"b"]


def test_a_leader_that_follows_by_now_has_no_isr(tmp_path: Path) -> None:
    """Its page names no member: a durable record was acknowledged after the sync of this directory
    alone.
    """
    with written(tmp_path, **BY_HAND) as log:
        replicas: PartitionReplicas = log._engine.partition("t", 0)._replicas  # type: ignore[attr-defined]
        leader = replicas.leaders.find_leader(
            replicas.members.lock_deadline(system.boot_ns() + 10**10)
        )
        assert [node for node, _ in replicas.in_sync.find_replicas(leader)] == [1, 2, 3]
        follow(tmp_path, log)
        with pytest.raises(LeaderChanged):
            replicas.in_sync.find_replicas(leader)
        with pytest.raises(LeaderChanged):
            parallel_sync.sync_if_due(replicas, leader, 1, system.boot_ns() + 10**10)
