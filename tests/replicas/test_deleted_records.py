"""Log start and compaction over replicas (REPLICA-20): a follower never keeps a value whose
tombstone the leader has removed.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import embedlog
from embedlog import TopicPartition
from embedlog._native import system
from embedlog._native.replication import ROLE_FOLLOWER, ROLE_LEADER, Replica
from embedlog._native.system import Published
from embedlog.partition.compaction import swap
from embedlog.partition.partition import Partition
from embedlog.partition.recovery import loader as loader_module
from embedlog.partition.replication.deleted_records import lacks_deleted, source_of
from embedlog.partition.replication.locked_replica import LockedReplica
from embedlog.partition.replication.replica_log import Fenced, LeaderDecision, NotLeader
from embedlog.replicas.partition import copying
from embedlog.replicas.partition.copying import copy
from embedlog.storage import checkpoints, file_names
from tests.support.deleted_records import (
    COMPACT,
    MEMORY,
    keyed,
    own,
    partition,
    put,
    records,
    values,
)
from tests.support.opened_sets import QUIET, made, paths, send
from tests.support.replica_partitions import Process, a_set


def far() -> int:
    return system.boot_ns() + 30_000_000_000


def clean(process: Process, found: Partition) -> None:
    """Compact until the tombstone of `a` is removed: the first pass that meets it keeps it."""
    known = -1
    for _ in range(2):
        known = max(known, found.compact(known, MEMORY, system.wall_ms() + 1000))
        put(process, b"fill", b"x" * 400, 6)
    found.compact(known, MEMORY, system.wall_ms() + 10_000)
    assert (b"a", None) not in records(found)


@contextlib.contextmanager
def a_compacted_set(root: Path, keys: int = 30) -> Iterator[Process]:
    """Nodes 1 to 3; node 3 has the value of a key, and left the ISR before its tombstone, which
    node 1 has compacted.
    """
    with a_set(root) as (_, [process]):
        for disk in process.disks.values():
            disk.log.alter_topic("t", COMPACT)
        put(process, b"a", b"1")
        put(process, b"b", b"1")
        process.disks[3].broken = True
        put(process, b"a", None)
        for number in range(30):
            put(process, b"%d" % (number % keys), b"x" * 400)
        process.disks[3].broken = False
        process.forgive()
        yield process


def test_a_follower_begins_again_if_it_may_lack_a_removed_tombstone(tmp_path: Path) -> None:
    with a_compacted_set(tmp_path) as process:
        clean(process, partition(process, 1))
        assert values(partition(process, 1)) == {b"b": b"1"}
        assert values(partition(process, 3)) == {b"a": b"1", b"b": b"1"}
        assert process.replicas.in_sync.add_to_isr(
            process.replicas.leaders.find_leader(far()), 3, far()
        )
        assert values(partition(process, 3)) == {b"b": b"1"}
        assert (
            partition(process, 3).published().purged_to
            >= partition(process, 1).published().purged_to
        )


def test_a_follower_above_the_compacted_part_is_not_copied_again(tmp_path: Path) -> None:
    with a_compacted_set(tmp_path) as process:
        leader = process.replicas.leaders.find_leader(far())
        copy(leader, partition(process, 3), partition(process, 1).published().log_end, far())
        before = partition(process, 3).published()
        partition(process, 1).compact(-1, MEMORY, system.wall_ms() + 1000)
        put(process, b"c", b"1")
        assert process.replicas.in_sync.add_to_isr(leader, 3, far())
        after = partition(process, 3).published()
        assert (after.log_start, after.generation) == (before.log_start, before.generation)
        assert values(partition(process, 3)) == {b"b": b"1", b"c": b"1"}, "it has the tombstone"


def test_a_copy_that_began_again_is_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "CHUNK_BYTES", 600)
    monkeypatch.setattr(copying, "LARGE_CHUNK_BYTES", 600)
    with a_compacted_set(tmp_path) as process:
        clean(process, partition(process, 1))
        leader = process.replicas.leaders.find_leader(far())
        follower = partition(process, 3)
        ends = list[int]()
        while not ends or ends[-1] < leader.partition.published().log_end:
            # each step may be made by another process
            ends.append(copy(leader, follower, (ends or [0])[-1] + 1, far()))
        assert ends == sorted(ends)
        assert len(ends) > 2
        assert values(follower) == {b"b": b"1"}


def test_a_compaction_during_a_copy_begins_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "CHUNK_BYTES", 600)
    monkeypatch.setattr(copying, "LARGE_CHUNK_BYTES", 600)
    with a_set(tmp_path) as (_, [process]):
        for disk in process.disks.values():
            disk.log.alter_topic("t", COMPACT)
        put(process, b"b", b"1", all_in_sync=False)
        put(process, b"a", b"1", all_in_sync=False)
        put(process, b"fill", b"x" * 400, 4, all_in_sync=False)
        put(process, b"a", None, all_in_sync=False)
        put(process, b"fill", b"x" * 400, 8, all_in_sync=False)
        leader = process.replicas.leaders.find_leader(far())
        follower = partition(process, 3)
        cleaned = list[int]()
        end = leader.partition.published().log_end
        copy(leader, partition(process, 2), end, far())
        process.disks[3].broken = True
        process.replicas.in_sync.commit(leader, end, far())
        process.disks[3].broken = False
        process.forgive()
        take = follower.replica.take

        def taken(fetched: Any, *rest: Any) -> int:
            if follower.published().log_end >= 2 and not cleaned:
                cleaned.append(follower.published().log_end)
                clean(process, leader.partition)
            return take(fetched, *rest)

        monkeypatch.setattr(follower.replica, "take", taken)
        assert copy(leader, follower, end, far()) >= end
        assert cleaned
        assert cleaned[0] < 6
        assert values(follower) == values(leader.partition) == {b"b": b"1"}


def test_a_chunk_that_was_read_after_a_compaction_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chunk reaches over the compacted part: the log end of the follower would show nothing
    after it.
    """
    with a_compacted_set(tmp_path, keys=1) as process:
        leader = process.replicas.leaders.find_leader(far())
        follower = partition(process, 3)
        read = copying._read_chunk
        end = leader.partition.published().log_end
        cleaned = list[int]()

        def compacted_before(*arguments: Any) -> Any:
            if not cleaned:
                cleaned.append(1)
                clean(process, leader.partition)
            return read(*arguments)

        monkeypatch.setattr(copying, "_read_chunk", compacted_before)
        assert copy(leader, follower, end, far()) >= end
        assert values(follower) == {b"b": b"1"}


def test_the_copy_of_another_leader_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first leader estimates what it has compacted, and still has the value. The second one has
    removed the tombstone.
    """
    with a_compacted_set(tmp_path) as process:
        follower = partition(process, 3)
        clean(process, partition(process, 2))
        leader = process.replicas.leaders.find_leader(far())
        purged = partition(process, 2).published().purged_to
        with partition(process, 1).replica.exclusive() as held:
            held.publish(held.published._replace(purged_to=purged), held.replica)
        monkeypatch.setattr(copying, "CHUNK_BYTES", 1)
        monkeypatch.setattr(copying, "LARGE_CHUNK_BYTES", 1)
        assert 2 < copy(leader, follower, 3, far()) < follower.published().purged_to == purged
        monkeypatch.undo()
        assert (b"a", b"1") in records(follower)
        follower_end = follower.published().log_end
        with follower.replica.exclusive() as held:
            held.truncate(2)  # it has the value, and not the tombstone
        assert follower.published().log_end == 2 < follower_end
        process.disks[1].broken = True
        second = process.replicas.leaders.find_leader(far())
        assert second.node == 2
        assert process.replicas.in_sync.add_to_isr(second, 3, far())
        assert values(follower) == {b"b": b"1"}


def test_an_interrupted_begin_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with a_compacted_set(tmp_path) as process:
        clean(process, partition(process, 1))
        leader = process.replicas.leaders.find_leader(far())
        point = system.point

        def stopped(name: str) -> None:
            if name == "begin-again":
                raise KeyboardInterrupt
            point(name)

        with monkeypatch.context() as stopping, pytest.raises(KeyboardInterrupt):
            stopping.setattr(system, "point", stopped)
            copy(leader, partition(process, 3), 3, far())
        assert process.replicas.in_sync.add_to_isr(leader, 3, far())
        assert values(partition(process, 3)) == {b"b": b"1"}


def test_a_page_that_is_made_again_has_no_lower_purged_to(tmp_path: Path) -> None:
    with a_compacted_set(tmp_path) as process:
        clean(process, partition(process, 1))
        before = partition(process, 1).published().purged_to
        assert before > 2
    for name in (file_names.PAGE, file_names.DIRTY):
        (tmp_path / "d1" / "t-0" / name).unlink(missing_ok=True)
    with embedlog.open(tmp_path / "d1", config=QUIET) as log:
        log._engine.home.context.node_slot = 0
        found = own(log)
        now = found.published()
        assert now.purged_to >= before
        found.replica.lead(LeaderDecision(0, 9, 9, 1, 1))
        found.replica.require(9, all_in_sync=False)
        for _ in range(12):
            found.append(keyed(b"fill", b"x" * 400))
            found.replica.commit([], 9)
        with found.replica.exclusive() as held:  # as an estimate of a load
            held.publish(
                held.published._replace(purged_to=held.published.segment_base), held.replica
            )
        estimated = found.published().purged_to
        found.compact(-1, MEMORY, system.wall_ms() + 1000)
        assert found.published().purged_to > estimated, "each pass is seen, also below an estimate"


def test_a_level_follower_takes_the_log_start(tmp_path: Path) -> None:
    with a_set(tmp_path) as (decisions, [process]):
        put(process, b"a", b"1", 4)
        process.disks[3].broken = True
        assert process.partition.delete_records(3) == 3
        assert 3 not in decisions.partition.isr
        process.disks[3].broken = False
        process.forgive()
        assert process.published(3).log_end == process.published(1).log_end
        assert process.replicas.in_sync.add_to_isr(
            process.replicas.leaders.find_leader(far()), 3, far()
        )
        assert process.published(3).log_start == 3
        assert 3 in decisions.partition.isr


def test_a_copy_from_a_page_that_does_not_lead_any_more_is_not_taken(tmp_path: Path) -> None:
    with a_set(tmp_path) as (_, [process]):
        put(process, b"a", b"1", 3, all_in_sync=False)
        leader = process.replicas.leaders.find_leader(far())
        follower = partition(process, 3)
        copy(leader, follower, 3, far())
        put(process, b"a", b"1", 3, all_in_sync=False)
        with leader.partition.replica.exclusive() as held:
            held.publish(held.published._replace(epoch=leader.epoch + 1), held.replica)
        with pytest.raises(NotLeader):
            copy(leader, follower, 6, far())


def test_the_checkpoint_of_each_directory_is_written_under_its_own_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path)
    with embedlog.open(paths(tmp_path), config=QUIET) as log:
        send(log, b"second")
        update = checkpoints.update
        seen = list[tuple[str, int]]()

        def updated(path: Path, *rest: Any) -> None:
            seen.append((path.parent.name, path.parent in held))
            update(path, *rest)

        held = set[Path]()
        for each in log._engine.directories:
            lock = each.topic_changes.directory_lock

            @contextlib.contextmanager
            def noted(own: Path = each.path, lock: Any = lock) -> Iterator[None]:
                with lock():
                    held.add(own)
                    yield
                    held.discard(own)

            monkeypatch.setattr(each.topic_changes, "directory_lock", noted)
        monkeypatch.setattr(checkpoints, "update", updated)
        assert log.delete_records({TopicPartition("t", 0): -1}) == {TopicPartition("t", 0): 2}
        monkeypatch.undo()
        assert seen == [("d1", True), ("d2", True), ("d3", True)]
        for root in paths(tmp_path):
            found = checkpoints.read_offsets(Path(root) / file_names.LOG_STARTS)
            assert found["t", 0] == 2


def test_a_follower_with_all_records_takes_the_log_start_although_it_knows_no_high_watermark(
    tmp_path: Path,
) -> None:
    """It learns the high watermark one copy late, and nothing is left to be copied."""
    with embedlog.open(paths(tmp_path), config=QUIET) as log:
        log.create_topic("t", assignment={0: [1, 2]}, config={"min.insync.replicas": 1})
        with log.producer(acks="all", linger_ms=100) as producer:
            futures = [producer.send("t", b"%d" % number, partition=0) for number in range(6)]
            assert futures[-1].result(60).offset == 5
            (tmp_path / "d2").rename(tmp_path / "lost")
            assert log.delete_records({TopicPartition("t", 0): 4}) == {TopicPartition("t", 0): 4}
            assert log.replicas("t").partitions[0].isr == (1,)
            (tmp_path / "lost").rename(tmp_path / "d2")
            deadline = time.monotonic() + 60
            while len(log.replicas("t").partitions[0].isr) < 2:
                assert time.monotonic() < deadline
                log.housekeep()
            assert producer.send("t", b"6", partition=0).result(60).offset == 6
        assert [copy.log_start for copy in log.replicas("t").partitions[0].copies] == [4, 4]


def test_a_member_of_the_isr_never_begins_again_for_an_estimate_above_the_log_end(
    tmp_path: Path,
) -> None:
    """`purged_to` counts the groups that were compacted. Members of the ISR have everything that
    was committed (REPLICA-20).
    """
    with embedlog.open(
        paths(tmp_path), config=QUIET | {"auto.leader.rebalance.enable": False}
    ) as log:
        config = COMPACT | {"segment.bytes": 4000, "min.insync.replicas": 1}
        log.create_topic("t", assignment={0: [1, 2]}, config=config)

        def until_in_sync() -> None:
            deadline = time.monotonic() + 60
            while len(log.replicas("t").partitions[0].isr) < 2:
                assert time.monotonic() < deadline
                log.housekeep()

        (tmp_path / "d2").rename(tmp_path / "lost")
        with log.producer(acks="all", linger_ms=0) as producer:
            for number in range(600):
                producer.send("t", b"v" * 100, key=b"k%05d" % number, partition=0).result(60)
        for _ in range(4):
            log.housekeep()
        (tmp_path / "lost").rename(tmp_path / "d2")
        until_in_sync()
        for _ in range(3):
            log.housekeep()
        replicas = log._engine.set.replicas(log._engine.partition("t", 0).partition_id, "t")  # type: ignore[attr-defined]
        log.reassign({TopicPartition("t", 0): [2, 1]})
        log.elect("t")
        assert log.replicas("t").partitions[0].leader == 2
        with replicas.members.find_replica(2).replica.exclusive() as held:  # as after as many swaps
            held.publish(held.published._replace(purged_to=650), held.replica)
        with log.producer(acks=1, enable_idempotence=False) as producer:
            producer.send("t", b"1", key=b"x", partition=0).result(60)
        begun = list[int]()
        restart = LockedReplica.restart
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                LockedReplica,
                "restart",
                lambda held, *more: (begun.append(held.published.log_end), restart(held, *more)),
            )
            log.housekeep()
        assert begun == []
        assert len(list(log.scan("t").records())) == 601


@pytest.mark.parametrize(
    ("high_watermark", "epoch_start", "complete", "removed_to"),
    [
        pytest.param(70, 60, False, 70, id="a leader has committed the start of its epoch"),
        pytest.param(
            50, 60, False, 100, id="it has not: its high watermark is that of another time"
        ),
        pytest.param(50, 60, True, 0, id="a complete follower lacks nothing"),
    ],
)
def test_what_a_leader_may_have_removed(
    high_watermark: int, epoch_start: int, complete: bool, removed_to: int
) -> None:
    leader = Published(log_end=100, segment_base=10, high_watermark=high_watermark, purged_to=120)
    found = source_of(leader, Replica(epoch_start=epoch_start), complete=complete)
    assert found.removed_to == removed_to
    for end in range(0, 101, 5):
        assert lacks_deleted(Published(log_end=end), found) == (end < removed_to)
        assert not lacks_deleted(Published(log_end=end, purged_to=120), found), (
            "it has begun again for that"
        )


def until_isr(log: embedlog.Log, size: int) -> None:
    deadline = time.monotonic() + 60
    while len(found := log.replicas("t").partitions[0].isr) < size:
        assert time.monotonic() < deadline, found
        log.housekeep()


def test_a_log_start_of_an_earlier_epoch_deletes_nothing(tmp_path: Path) -> None:
    """A process that was stopped continues: the log was cut meanwhile, and has other records at
    these offsets.
    """
    with a_set(tmp_path) as (_, [process]):
        for number in range(8):
            process.partition.append(keyed(b"k", b"%d" % number))
        found = partition(process, 2)
        now, _ = found.replica.published()
        with pytest.raises(Fenced):
            found.delete_records(4, now.epoch - 1)
        assert found.published().log_start == 0


@pytest.mark.parametrize(
    ("role", "before", "after"),
    [
        (ROLE_LEADER, 500, 501),  # an estimate: a copy that began with it must notice the swap
        (ROLE_LEADER, 3, 400),
        (ROLE_FOLLOWER, 500, 500),  # shows with which value its copy began
        (ROLE_FOLLOWER, 3, 400),
    ],
)
def test_an_interrupted_swap_of_a_leader_is_seen_also_below_an_estimate(
    tmp_path: Path, role: int, before: int, after: int
) -> None:
    locked: Any = SimpleNamespace(
        path=tmp_path,
        published=Published(generation=7, segment_base=400, log_end=600, purged_to=before),
        replica_at_begin=Replica(role=role),
    )
    finished = swap.finish(locked)
    assert (finished.generation, finished.purged_to) == (8, after)


@pytest.mark.parametrize(("generation", "purged_to"), [(7, 500), (8, 500)])
def test_a_page_that_is_made_again_after_an_interrupted_swap_has_no_lower_purged_to(
    generation: int, purged_to: int
) -> None:
    earlier = Published(generation=generation, segment_base=400, log_end=600, purged_to=500)
    loading = SimpleNamespace(in_set=True, gaps_allowed=True, earlier_publication=earlier)
    loader: Any = SimpleNamespace(loading=loading)
    active = Published(segment_base=400, log_end=600)
    assert loader_module._Loader._purged_to(loader, active) == purged_to
