"""A member of the ISR whose directory answers, but does not catch up: it leaves after
`replica.lag.time.max.ms`, and returns.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

import embedlog
from embedlog._native import system
from embedlog.admin.replica_housekeeper import ReplicaHousekeeper
from embedlog.errors import NotEnoughReplicasAfterAppendError
from embedlog.partition.replication.replica_log import ReplicaLog
from embedlog.replicas.partition import copying, follower_lags
from embedlog.replicas.partition.catching_up import CatchUp
from embedlog.replicas.partition.follower_lags import FollowerLags, LateFollower
from embedlog.storage.call_deadline import Slice
from tests.faults.harness.processes import until
from tests.support.opened_sets import QUIET, isr, made, paths, send
from tests.support.replica_partitions import Process, a_set
from tests.support.returning_directories import replica
from tests.support.stamped_batches import run_of

SECOND_NS = 1_000_000_000


class Clock:
    """A clock that a test advances."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns = 1
        monkeypatch.setattr(follower_lags, "clock_ns", lambda: self.now_ns)

    def advance(self, seconds: float) -> None:
        self.now_ns += int(seconds * SECOND_NS)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(copying, "CHUNK_BYTES", 1)
    monkeypatch.setattr(copying, "LARGE_CHUNK_BYTES", 1)
    return Clock(monkeypatch)


def slow(
    monkeypatch: pytest.MonkeyPatch,
    clock: Clock,
    node: int,
    seconds: float,
    meanwhile: Callable[[], None],
) -> None:
    """Each chunk that this node takes needs this time, in which something else happens."""
    take = ReplicaLog.take

    def taken(self: ReplicaLog, *arguments: Any) -> int:
        end = take(self, *arguments)
        if f"/d{node}/" in str(self._state.path):
            clock.advance(seconds)
            meanwhile()
        return end

    monkeypatch.setattr(ReplicaLog, "take", taken)


def filled(process: Process, count: int) -> None:
    for number in range(count):
        process.partition.append(run_of(b"%d" % number * 700), all_in_sync=False)


def test_a_slow_member_leaves_and_the_others_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    with a_set(tmp_path) as (decisions, [process]):
        filled(process, 6)
        slow(monkeypatch, clock, 3, 20.0, lambda: filled(process, 1))
        process.partition.append(run_of(b"waits for all"))
        assert decisions.partition.isr == (1, 2)
        assert process.published(1).high_watermark >= 7
        assert process.published(3).log_end < process.published(1).log_end, "it was not waited for"


def test_a_member_that_catches_up_in_time_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    with a_set(tmp_path) as (decisions, [process]):
        filled(process, 6)
        slow(monkeypatch, clock, 3, 3.0, lambda: None)
        process.partition.append(run_of(b"waits for all"))
        assert decisions.partition.isr == (1, 2, 3)
        assert process.published(3).log_end == 7


def test_a_slow_member_returns_when_it_catches_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    with a_set(tmp_path) as (decisions, [process]):
        filled(process, 6)
        with monkeypatch.context() as patched:
            slow(patched, clock, 3, 40.0, lambda: None)
            process.partition.append(run_of(b"waits for all"))
            assert decisions.partition.isr == (1, 2)
        process.replicas.tend(process.partition.deadline())
        assert decisions.partition.isr == (1, 2, 3)
        filled(process, 3)
        process.partition.append(run_of(b"in time again"))
        assert decisions.partition.isr == (1, 2, 3)


def test_a_pause_of_the_copying_process_is_no_lag(clock: Clock) -> None:
    lags = FollowerLags(30 * SECOND_NS)
    leader_end = 5

    def watched() -> follower_lags.Step:
        return lags.watch(2, lambda: leader_end, 1 << 62)

    assert watched()(3)
    clock.advance(1000)
    leader_end = 9
    step = watched()
    assert step(4), "nothing was copied for 1000 s"
    clock.advance(29)
    assert step(5)
    clock.advance(2)
    with pytest.raises(LateFollower):
        step(6)
    lags.forget(2)
    assert watched()(6)


def test_a_copy_ends_early_for_other_work(clock: Clock) -> None:
    """A chunk is copied in each part, so the copy goes on."""
    step = FollowerLags(30 * SECOND_NS).watch(2, lambda: 9, 1 << 62)
    with Slice(lambda: True, 0).begin() as part:
        assert step(3)
        assert not part.ended
        assert not step(4)
        assert part.ended


def test_a_copy_ends_at_its_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    with a_set(tmp_path) as (decisions, [process]):
        filled(process, 40)
        leader = process.replicas.leaders.find_leader(process.partition.deadline())
        with pytest.raises(NotEnoughReplicasAfterAppendError, match="not committed"):
            process.replicas.in_sync.commit(leader, 40, system.boot_ns())
        assert 0 < process.published(2).log_end < 40, "one chunk"
        assert decisions.partition.isr == (1, 2, 3)


def test_a_lock_of_a_member_is_not_awaited_longer_than_the_limit(tmp_path: Path) -> None:
    """Another process is frozen in the section of a follower: `acks=all` continues without this
    follower.
    """
    made(tmp_path)
    settings = {
        **QUIET,
        "lock_timeout_ms": 60_000,
        "replica.lag.time.max.ms": 100,
        "replica.fetch.wait.max.ms": 100,
    }
    with (
        embedlog.open(paths(tmp_path), config=settings) as log,
        embedlog.open(paths(tmp_path), config=settings) as other,
    ):
        send(log, b"second")
        entered = threading.Event()
        leave = threading.Event()

        def frozen() -> None:
            with replica(other, 3).exclusive():
                entered.set()
                leave.wait(60)

        thread = threading.Thread(target=frozen)
        thread.start()
        assert entered.wait(20)
        began_ns = system.boot_ns()
        send(log, b"third")
        assert system.boot_ns() - began_ns < 19 * SECOND_NS, "a third of lock.timeout.ms is 20 s"
        assert isr(log) == [1, 2]
        leave.set()
        thread.join()

        def joined() -> bool:
            log.housekeep()
            return isr(log) == [1, 2, 3]

        until(joined, "the directory to join")


def test_records_of_a_killed_process_are_copied_within_the_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path)
    with embedlog.open(paths(tmp_path), config={**QUIET, "replica.fetch.wait.max.ms": 700}) as log:
        keeper = cast("ReplicaHousekeeper", log._housekeeper)
        now_ns = system.boot_ns()
        keeper.tick()
        monkeypatch.setattr("embedlog.admin.replica_housekeeper.system.boot_ns", lambda: now_ns)
        keeper.tend()
        leader = replica(log, 1)
        send(log, b"second")
        keeper.tend()
        leader.append(run_of(b"killed after this"))
        for time_ms, end in ((699, 2), (701, 3)):
            monkeypatch.setattr(
                "embedlog.admin.replica_housekeeper.system.boot_ns",
                lambda ms=time_ms: now_ns + ms * 1_000_000,
            )
            keeper.tick()
            assert leader.published().high_watermark == end


def test_a_replica_that_is_far_behind_stops_no_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    """The time of a round is over at once: each replica outside the ISR gets a chunk all the
    same.
    """
    with a_set(tmp_path) as (decisions, [process]):
        process.disks[2].broken = process.disks[3].broken = True
        process.partition.append(run_of(b"alone"))
        assert decisions.partition.isr == (1,)
        process.disks[2].broken = process.disks[3].broken = False
        process.forgive()
        filled(process, 40)
        copies = CatchUp(process.replicas, process.partition.deadline)
        ends = [0, 0]
        while decisions.partition.isr != (1, 2, 3):
            waiting = copies.catch_up(decisions.partition, lambda: False, system.boot_ns())
            now = [process.published(node).log_end for node in (2, 3)]
            assert all(
                after > before or after == 41 for before, after in zip(ends, now, strict=True)
            )
            assert max(after - before for before, after in zip(ends, now, strict=True)) < 20, (
                "a chunk"
            )
            ends = now
            process.replicas.tend(process.partition.deadline(), waiting)
        assert ends == [41, 41]
