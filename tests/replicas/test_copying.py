"""Copies of a leader's log to a follower that lacks a large part: the same bytes, checked, whatever
happens meanwhile.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from embedlog._native import system
from embedlog.config.options import parse
from embedlog.config.topic import TopicConfig
from embedlog.errors import CorruptRecordError, StorageError
from embedlog.partition.partition import Partition
from embedlog.partition.replication.replica_log import NotLeader
from embedlog.replicas.partition import copying
from embedlog.replicas.partition.copying import copy
from tests.support.replica_partitions import Process, a_set
from tests.support.stamped_batches import run_of


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "CHUNK_BYTES", 700)
    monkeypatch.setattr(copying, "LARGE_CHUNK_BYTES", 2000)


def far() -> int:
    return system.boot_ns() + 30_000_000_000


def partition(process: Process, node: int) -> Partition:
    return process.disks[node].log._engine.partition("t", 0)


def with_one_segment(process: Process) -> None:
    for node in (1, 2, 3):
        each = partition(process, node)
        each.apply_config(parse(TopicConfig, {"index.interval.bytes": 300}))


def filled(process: Process, rng: random.Random, count: int = 200) -> int:
    """Records of the leader only; the log end."""
    for _ in range(count):
        process.partition.append(run_of(rng.randbytes(rng.randint(1, 300))), all_in_sync=False)
    return process.partition.published().log_end


@pytest.mark.parametrize("count", [3, 200], ids=["near", "far"])
def test_a_follower_gets_every_byte(tmp_path: Path, rng: random.Random, count: int) -> None:
    with a_set(tmp_path) as (_, [process]):
        end = filled(process, rng, count)
        leader = process.replicas.leaders.find_leader(far())
        for node in {1, 2, 3} - {leader.node}:
            assert copy(leader, partition(process, node), end, far()) == end
            assert process.data(node) == process.data(leader.node)
            assert copy(leader, partition(process, node), end, far()) == end, "nothing is left"


@pytest.mark.parametrize("size", [1, 5000], ids=["little", "much"])
def test_the_next_chunk_is_read_ahead_if_much_is_to_be_copied(
    tmp_path: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Little is to be copied to a follower that lacks the end of a large segment, also if no reader
    was there.
    """
    with a_set(tmp_path) as (_, [process]):
        leader = process.replicas.leaders.find_leader(far())
        with_one_segment(process)
        end = filled(process, rng)
        followers = {1, 2, 3} - {leader.node}
        for node in followers:
            copy(leader, partition(process, node), end, far())
        process.partition.append(run_of(bytes(size)), all_in_sync=False)
        leader.partition._forget_caches()
        begun: list[int] = []
        monkeypatch.setattr(copying, "_read_ahead", recording(copying._read_ahead, begun))
        for node in followers:
            copy(leader, partition(process, node), end + 1, far())
            assert process.data(node) == process.data(leader.node)
        assert begun == [size > 2000] * 2


def recording(reading: Callable[..., object], begun: list[int]) -> Callable[..., object]:
    def recorded(partition: Partition, *, much: bool) -> object:
        begun.append(much)
        return reading(partition, much=much)

    return recorded


def test_the_bytes_from_an_offset_are_those_of_its_batches(
    tmp_path: Path, rng: random.Random
) -> None:
    with a_set(tmp_path) as (_, [process]):
        leader = process.replicas.leaders.find_leader(far()).partition
        with_one_segment(process)
        end = filled(process, rng)
        now = leader.published()
        positions = dict[int, int]()
        at = now.segment_base
        while at < end:
            found = leader.replica.read(at, 1)
            positions[at] = found.position + int(found.batches["position"][0])
            at = found.next_offset
        leader._forget_caches()
        for offset, position in rng.sample(sorted(positions.items()), 50):
            found_bytes = leader.replica.bytes_from(offset) - (now.segment_size - position)
            assert 0 <= found_bytes <= leader.config.index_interval_bytes + 2 * 400


def test_a_log_end_that_moves_meanwhile_costs_a_read_only(
    tmp_path: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    with a_set(tmp_path) as (_, [process]):
        end = filled(process, rng)
        leader = process.replicas.leaders.find_leader(far())
        node = min({1, 2, 3} - {leader.node})
        follower = partition(process, node)
        take = follower.replica.take
        others = []

        def taken(fetched, epoch, mark, deadline_ns, start):  # type: ignore[no-untyped-def]
            if not others and follower.published().log_end > 20:  # another process copies a part
                found = leader.partition.replica.read(fetched.offset, 300)
                others.append(take(found, epoch, mark, deadline_ns))
            return take(fetched, epoch, mark, deadline_ns, start)

        monkeypatch.setattr(follower.replica, "take", taken)
        assert copy(leader, follower, end, far()) == end
        assert others
        assert process.data(node) == process.data(leader.node)


def test_damage_in_the_leader_is_not_copied(tmp_path: Path, rng: random.Random) -> None:
    with a_set(tmp_path) as (_, [process]):
        end = filled(process, rng)
        leader = process.replicas.leaders.find_leader(far())
        segment = sorted((process.disks[leader.node].path / "t-0").glob("*.log"))[3]
        whole = process.data(leader.node)
        original = segment.read_bytes()
        damaged = bytearray(original)
        damaged[len(damaged) // 2] ^= 4
        segment.write_bytes(damaged)
        node = min({1, 2, 3} - {leader.node})
        with pytest.raises(CorruptRecordError) as problem:
            copy(leader, partition(process, node), end, far())
        assert Path(str(problem.value.path)) == segment
        copied = process.data(node)
        assert whole.startswith(copied)
        assert len(copied) > 3000, "everything before the damage is taken"
        segment.write_bytes(original)
        assert copy(leader, partition(process, node), end, far()) == end
        assert process.data(node) == whole


# ---- a log start inside a batch --------------------------------------------------------------------------


def with_a_log_start_inside(process: Process) -> int:
    """A leader with two batches of ten records, whose log starts in the first one; the log end."""
    for _ in range(2):
        process.partition.append(run_of(*[b"value"] * 10))
    process.partition.delete_records(5)
    return process.partition.published().log_end


@pytest.mark.parametrize(
    "at", [None, 0, 5, 7], ids=["lost", "empty", "at the log start", "in the batch"]
)
def test_a_follower_begins_at_the_batch_in_which_the_log_starts(
    tmp_path: Path, at: int | None
) -> None:
    with a_set(tmp_path) as (_, [process]):
        end = with_a_log_start_inside(process)
        leader = process.replicas.leaders.find_leader(far())
        follower = partition(process, min({1, 2, 3} - {leader.node}))
        if at is not None:
            with follower.replica.exclusive() as held:
                held.restart(at)
        assert copy(leader, follower, end, far()) == end
        assert follower.published().log_end == end
        assert process.data(leader.node) == b"".join(
            path.read_bytes() for path in sorted(follower.path.glob("*.log"))
        )
        follower.replica.learn(leader.epoch, end)
        assert copy(leader, follower, end, far()) == end
        assert follower.published().log_start == 5


def test_batches_that_do_not_continue_the_log_end_the_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with a_set(tmp_path) as (_, [process]):
        process.partition.append(run_of(b"value"), all_in_sync=False)
        leader = process.replicas.leaders.find_leader(far())
        follower = partition(process, min({1, 2, 3} - {leader.node}))
        monkeypatch.setattr(follower.replica, "take", lambda *given: follower.published().log_end)
        with pytest.raises(StorageError, match="do not continue"):
            copy(leader, follower, leader.partition.published().log_end, far())


def test_a_leader_that_is_replaced_and_cut_during_a_copy_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its log ends below the offset that is read next: no error of the caller, which asks the new
    leader.
    """
    with a_set(tmp_path) as (_, [process]):
        process.partition.append(run_of(b"committed"))
        process.partition.append(run_of(b"cut"), all_in_sync=False)
        leader = process.replicas.leaders.find_leader(far())
        follower = partition(process, min({1, 2, 3} - {leader.node}))

        @contextlib.contextmanager
        def replaced(source: Partition, *, much: bool) -> Iterator[Callable[[int], object]]:
            leader.partition.replica.follow(3, leader.epoch + 1, lambda epoch: (-1, 0))
            assert source.published().log_end == 0
            yield lambda offset: source.replica.read(offset)

        monkeypatch.setattr(copying, "_read_ahead", replaced)
        with pytest.raises(NotLeader):
            copy(leader, follower, 2, far())
