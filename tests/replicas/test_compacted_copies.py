"""Compacted topics whose replicas come and go: no deleted value returns, and no complete replica is
emptied (REPLICA-20).
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import embedlog
from embedlog import StorageError, TopicPartition
from embedlog.replicas.partition import copying
from tests.support.opened_sets import QUIET, paths

PARTITION = TopicPartition("t", 0)
COMPACT = {
    "cleanup.policy": "compact",
    "segment.bytes": 4000,
    "min.cleanable.dirty.ratio": 0.0,
    "delete.retention.ms": 0,
    "min.insync.replicas": 1,
}
DEADLINE_S = 60.0
Pair = tuple[bytes, bytes | None]


class Set:
    """A set with a compacted topic; directories can be lost and returned."""

    def __init__(self, root: Path, count: int = 3) -> None:
        self.root = root
        self.log = opened(root, count)

    def create(self, replicas: list[int], **config: object) -> None:
        self.log.create_topic("t", assignment={0: replicas}, config=COMPACT | config)

    def lose(self, node: int) -> None:
        (self.root / f"d{node}").rename(self.root / f"lost-{node}")

    def bring_back(self, node: int) -> None:
        (self.root / f"lost-{node}").rename(self.root / f"d{node}")

    def put(self, *pairs: Pair, acks: str | int = "all") -> None:
        with self.log.producer(
            acks=acks, linger_ms=0, enable_idempotence=acks == "all"
        ) as producer:
            for key, value in pairs:
                producer.send("t", value, key=key, partition=0).result(DEADLINE_S)

    def housekeep(self, times: int) -> None:
        for _ in range(times):
            self.log.housekeep()

    def until(self, holds: Callable[[embedlog.ReplicatedPartitionDescription], object]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not holds(found := self.log.replicas("t").partitions[0]):
            assert time.monotonic() < deadline, found
            self.log.housekeep()

    def lead(self, replicas: list[int]) -> None:
        self.log.reassign({PARTITION: replicas})
        self.log.elect("t")
        self.until(lambda found: found.leader == replicas[0])

    def purged_to(self, node: int) -> int:
        replicas = self.log._engine.set.replicas(
            self.log._engine.partition("t", 0).partition_id, "t"
        )  # type: ignore[attr-defined]
        purged_to: int = replicas.members.find_replica(node).published().purged_to
        return purged_to

    def values(self, key: bytes) -> list[bytes | None]:
        return [record.value for record in self.log.scan("t").records() if record.key == key]


def opened(root: Path, count: int = 3) -> embedlog.Log:
    return embedlog.open(paths(root, count), config=QUIET | {"auto.leader.rebalance.enable": False})


def test_a_follower_with_an_estimate_of_its_own_gets_a_removed_tombstone(tmp_path: Path) -> None:
    """It compacts its copy, too. That does not show that it has what its leader removes
    later.
    """
    found = Set(tmp_path)
    with found.log:
        found.create([1, 2])
        found.lose(2)
        found.put(
            (b"k", b"deleted value"), *((b"k%05d" % number, b"v" * 100) for number in range(600))
        )
        found.housekeep(4)
        found.bring_back(2)
        found.until(lambda each: len(each.isr) == 2)
        found.housekeep(3)
        found.lose(2)
        found.put((b"k", None), *((b"x%d" % number, b"") for number in range(8)))
        for _ in range(6):
            found.put((b"big", b"y" * 3900))
            found.housekeep(2)
        assert found.values(b"k") == []
        assert found.purged_to(1) > 601, "the tombstone is compacted"
        found.bring_back(2)
        found.until(lambda each: len(each.isr) == 2)
        found.lead([2, 1])
        assert found.values(b"k") == []


def test_a_compacted_segment_that_a_cut_made_the_active_one_bounds_nothing(tmp_path: Path) -> None:
    """The tombstone that was removed from it is above its base offset."""
    found = Set(tmp_path, 5)
    with found.log:
        found.create([1, 2, 3], **{"segment.bytes": 6000})
        found.put(
            (b"k", b"deleted value"), *((b"a%d" % number, b"x" * 100) for number in range(20))
        )
        found.housekeep(1)
        found.lose(3)
        found.put((b"k", None), *((b"b", b"y" * 100) for _ in range(60)))
        found.until(lambda each: each.isr == (1, 2))
        found.lose(2)
        found.put(*((b"c", b"y" * 100) for _ in range(100)))
        found.until(lambda each: each.isr == (1,))
        found.housekeep(3)
        found.put(*((b"c", b"y" * 100) for _ in range(60)))
        found.housekeep(5)
        found.lose(1)
        found.bring_back(2)
        deadline = time.monotonic() + DEADLINE_S
        while found.log.replicas("t").partitions[0].leader != 2:
            assert time.monotonic() < deadline
            try:
                found.log.housekeep()
                found.log.elect("t", 0, unclean=True, node=2)
            except embedlog.EmbedlogError:
                continue  # d2 is not noticed yet
        found.bring_back(1)
        found.until(lambda each: set(each.isr) == {1, 2})
        found.lead([1, 2, 3])
        assert found.values(b"k") == []
        found.bring_back(3)
        found.until(lambda each: len(each.isr) == 3)
        found.lead([3, 1, 2])
        assert found.values(b"k") == []


def test_a_member_of_the_elr_is_not_emptied_because_its_leader_has_compacted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was closed in order, so its page has no role. Its leader is lost before the copy to it."""
    found = Set(tmp_path)
    with found.log:
        found.create([1, 2], **{"min.insync.replicas": 2})
        found.put(
            *((b"k%d" % (number % 150), b"v%d" % number + b"x" * 80) for number in range(300))
        )
        found.until(lambda each: each.isr == (1, 2))
    found.lose(2)
    found.log = opened(tmp_path)
    with found.log:
        found.put((b"z", b"z"), acks=1)
        found.until(lambda each: each.elr == (2,))
        found.housekeep(6)
    found.bring_back(2)
    copied = copying._LogCopy.copy_chunks
    armed = [True]

    def lost(work: copying._LogCopy, at: int, end: int, step: object) -> object:
        if armed and tmp_path / "d2" / "t-0" == work.follower.path:
            armed.clear()
            assert work.follower.published().log_end == 300
            found.lose(1)
            raise StorageError(
                "the directory is lost", path=tmp_path / "d1" / "t-0", errno=errno.EIO
            )
        return copied(work, at, end, step)  # type: ignore[arg-type]

    monkeypatch.setattr(copying._LogCopy, "copy_chunks", lost)
    found.log = opened(tmp_path)
    with found.log:
        found.until(lambda each: each.leader == 2)
        found.log.alter_topic("t", min_insync_replicas=1)
        found.until(lambda each: each.high_watermark == 300)
        found.bring_back(1)
        found.until(lambda each: len(each.isr) == 2)
        assert len({record.key for record in found.log.scan("t").records()}) == 150
    assert not armed
