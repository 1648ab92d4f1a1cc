"""Calls that wait while more than one leader is lost: each next leader is asked whether it has what
the call wrote.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

import embedlog
from embedlog import StorageError, TopicPartition
from embedlog.partition.partition import Partition
from embedlog.partition.replication.replica_log import ReplicaLog
from embedlog.replicas.partition import in_sync_replicas
from embedlog.replicas.partition.in_sync_replicas import InSyncReplicas
from embedlog.replicas.partition.leader import Leader
from embedlog.replicas.partition.partition_replicas import PartitionReplicas
from embedlog.replicas.partition.record_deletion import RecordDeletion
from embedlog.replicas.partition.replicated_partition import ReplicatedPartition

PARTITION = TopicPartition("t", 0)
OFFSETS = TopicPartition("__consumer_offsets", 0)
DEADLINE_S = 60.0


class FiveDirectories:
    """A set of five directories, of which three have the replicas; and a second process's view of
    it, with short waits.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        quiet = {
            "housekeeping": False,
            "auto.leader.rebalance.enable": False,
            "offsets.topic.num.partitions": 1,
        }
        paths = [root / f"d{node}" for node in range(1, 6)]
        self.log = embedlog.open(paths, config=quiet | {"lock.timeout.ms": 60_000})
        self.other = embedlog.open(paths, config=quiet | {"lock.timeout.ms": 1000})

    def lose(self, node: int) -> None:
        (self.root / f"d{node}").rename(self.root / f"lost-{node}")

    def bring_back(self, node: int) -> None:
        (self.root / f"lost-{node}").rename(self.root / f"d{node}")

    def until(
        self, topic: str, holds: Callable[[embedlog.ReplicatedPartitionDescription], bool]
    ) -> None:
        """Run the housekeeping of the second view until the partition 0 of a topic is so."""
        deadline = time.monotonic() + DEADLINE_S
        while not holds(found := self.other.replicas(topic).partitions[0]):
            assert time.monotonic() < deadline, found
            self.other.housekeep()


@contextmanager
def five(root: Path) -> Iterator[FiveDirectories]:
    found = FiveDirectories(root)
    with found.log, found.other:
        yield found


def commit(log: embedlog.Log, group: str, offset: int) -> None:
    with log.consumer(group_id=group, enable_auto_commit=False) as consumer:
        consumer.assign([PARTITION])
        consumer.commit({PARTITION: offset})


def committed(log: embedlog.Log, group: str) -> int:
    with log.consumer(group_id=group, enable_auto_commit=False) as consumer:
        found = consumer.committed(PARTITION)[PARTITION]
        assert found is not None
        return found.offset


def test_a_commit_of_offsets_is_looked_for_at_every_next_leader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It survives the first failover, waits for the ISR, and is not in the log of the second next
    leader.
    """
    with five(tmp_path) as found:
        found.log.create_topic("t", assignment={0: [4, 5]})
        with found.log.producer() as producer:
            for number in range(100):
                producer.send("t", b"%d" % number, partition=0)
        commit(found.log, "g", 1)
        found.log.reassign({OFFSETS: [1, 2, 3]})
        found.until(
            OFFSETS.topic,
            lambda each: each.replicas == (1, 2, 3) and not each.removing and len(each.isr) == 3,
        )
        if found.other.replicas(OFFSETS.topic).partitions[0].leader != 1:
            found.other.elect(OFFSETS.topic)
        for log, group in ((found.log, "g"), (found.other, "h")):
            commit(log, group, 2)
        found.until(OFFSETS.topic, lambda each: each.leader == 1 and len(each.isr) == 3)
        copy = in_sync_replicas.copy
        wait_for_commit = ReplicatedPartition._wait_for_commit
        lost = threading.Event()
        waiting = threading.Event()
        result = list[object]()

        def copied(
            leader: Leader, follower: Partition, end: int, deadline_ns: int, **more: object
        ) -> int:
            at = copy(leader, follower, end, deadline_ns, **more)  # type: ignore[arg-type]
            first = (
                threading.current_thread() is worker
                and tmp_path / "d2" in follower.path.parents
                and not lost.is_set()
            )
            if first:
                lost.set()
                found.lose(1)
                found.lose(3)
                found.until(OFFSETS.topic, lambda each: each.leader == 2)
            return at

        def waits(
            partition: ReplicatedPartition, leader: Leader, end: int, until: int, *, written: bool
        ) -> None:
            if leader.node == 2 and lost.is_set():
                waiting.set()
            wait_for_commit(partition, leader, end, until, written=written)

        def work() -> None:
            commit(found.log, "g", 77)
            result.append("acknowledged")

        monkeypatch.setattr(in_sync_replicas, "copy", copied)
        monkeypatch.setattr(ReplicatedPartition, "_wait_for_commit", waits)
        worker = threading.Thread(target=work)
        worker.start()
        assert waiting.wait(DEADLINE_S)
        found.lose(2)
        found.bring_back(3)
        found.until(OFFSETS.topic, lambda each: each.leader == 3)
        found.bring_back(1)
        found.until(OFFSETS.topic, lambda each: set(each.isr) == {1, 3})
        commit(found.other, "h", 55)
        worker.join(DEADLINE_S)
        assert result == ["acknowledged"]
        assert (committed(found.other, "g"), committed(found.other, "h")) == (77, 55)


def test_an_append_without_idempotence_is_found_by_the_epoch_in_which_it_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second leader is lost before it writes anything in its epoch: the third one does not know
    that epoch.
    """
    with five(tmp_path) as found:
        found.log.create_topic("t", assignment={0: [1, 2, 3]}, config={"min.insync.replicas": "1"})
        raise_mark = ReplicaLog.commit
        commit_at = InSyncReplicas.commit
        lost = list[int]()

        def raised(
            log: ReplicaLog,
            followers: Sequence[tuple[int, ReplicaLog]],
            epoch: int,
            deadline_ns: int | None = None,
        ) -> int:
            # all followers have the record
            if log._state.path == tmp_path / "d1" / "t-0" and not lost:
                lost.append(1)
                found.lose(1)
                raise StorageError("the directory is lost", path=log._state.path, errno=5)
            return raise_mark(log, followers, epoch, deadline_ns)

        def commits(
            replicas: PartitionReplicas,
            leader: Leader,
            end: int,
            deadline_ns: int,
            *,
            wait: bool = True,
        ) -> int:
            if leader.node == 2 and lost == [1]:
                lost.append(2)
                found.lose(2)
                found.until("t", lambda each: each.leader == 3)
            return commit_at(replicas, leader, end, deadline_ns, wait=wait)

        with (
            found.log.producer(acks="all", enable_idempotence=False) as producer,
            found.other.producer(acks="all") as another,
        ):
            producer.send("t", b"a", partition=0).result(DEADLINE_S)
            another.send("t", b"b", partition=0).result(DEADLINE_S)
            # as after a slow follower
            monkeypatch.setattr(
                ReplicatedPartition, "_prepare_followers", lambda partition, leader: None
            )
            monkeypatch.setattr(ReplicaLog, "commit", raised)
            monkeypatch.setattr(InSyncReplicas, "commit", commits)
            assert producer.send("t", b"X", partition=0).result(DEADLINE_S).offset == 2
        assert lost == [1, 2]
        assert [record.value for record in found.other.scan("t").records()] == [b"a", b"b", b"X"]


def test_a_deletion_of_records_is_repeated_at_the_next_leader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader is lost between its own deletion and those of its followers."""
    with five(tmp_path) as found:
        found.log.create_topic("t", assignment={0: [1, 2, 3]})
        with (
            found.log.producer(acks="all") as producer,
            found.other.producer(acks="all") as another,
        ):
            for number in range(10):
                producer.send("t", b"%d" % number, partition=0)
            producer.flush()
            another.send("t", b"10", partition=0).result(DEADLINE_S)
            in_followers = RecordDeletion.delete_in_followers
            lost = list[int]()

            def raised(deletion: RecordDeletion, leader: Leader) -> None:
                if not lost:
                    lost.append(leader.node)
                    found.lose(leader.node)
                    # its process elects the next leader
                    another.send("t", b"11", partition=0).result(DEADLINE_S)
                in_followers(deletion, leader)

            monkeypatch.setattr(RecordDeletion, "delete_in_followers", raised)
            assert found.log.delete_records({PARTITION: 8}) == {PARTITION: 8}
        assert lost == [1]
        found.bring_back(1)
        found.until("t", lambda each: len(each.isr) == 3)
        for log in (found.log, found.other):
            assert [record.value for record in log.scan("t").records()] == [
                b"8",
                b"9",
                b"10",
                b"11",
            ]
