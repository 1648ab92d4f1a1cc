"""Durable appends: every directory of the ISR has synced a record before it is acknowledged; all of
them at the same time.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog._native import system
from embedlog.errors import DurabilityError, EmbedlogError, StorageError
from embedlog.replicas.members.open_directories import OpenDirectory
from embedlog.replicas.partition.parallel_sync import sync_all, sync_if_due
from tests.support.replica_partitions import Process, a_set
from tests.support.stamped_batches import run_of


class Replica:
    """A replica with a sync of its own."""

    def __init__(self, sync: Callable[[], object] = lambda: None, durable: int = 0) -> None:
        self.sync = sync
        self.durable_offset = durable
        self.path = Path("/disk/t-0")

    def sync_to(self, end: int, deadline_ns: int) -> None:
        self.sync()
        self.durable_offset = end


def after(seconds: float) -> int:
    return system.boot_ns() + int(seconds * 1e9)


def synced(*replicas: Any, deadline_ns: int | None = None) -> dict[int, EmbedlogError]:
    return sync_all(list(enumerate(replicas)), 5, after(30) if deadline_ns is None else deadline_ns)


def test_the_directories_are_synced_at_the_same_time() -> None:
    barrier = threading.Barrier(3, timeout=30)
    replicas = [Replica(barrier.wait) for _ in range(3)]
    assert synced(*replicas) == {}
    assert [each.durable_offset for each in replicas] == [5, 5, 5]


def test_what_is_durable_is_not_synced_again() -> None:
    def never() -> None:
        raise AssertionError("it is durable")

    assert synced(Replica(never, durable=5), Replica(), Replica(never, durable=7)) == {}


@pytest.mark.parametrize("failing", [0, 1])
def test_an_error_belongs_to_one_directory(failing: int) -> None:
    def fail() -> None:
        raise DurabilityError("a sync failed", path="/disk/t-0")

    replicas = [Replica(), Replica()]
    replicas[failing].sync = fail
    problems = synced(*replicas)
    assert list(problems) == [failing]
    assert isinstance(problems[failing], DurabilityError)
    assert replicas[1 - failing].durable_offset == 5


def test_an_error_of_the_process_is_raised() -> None:
    def fail() -> None:
        raise MemoryError

    with pytest.raises(MemoryError):
        synced(Replica(), Replica(fail))


def test_a_directory_that_is_late_has_failed() -> None:
    released = threading.Event()
    try:
        problems = synced(Replica(), Replica(lambda: released.wait(30)), deadline_ns=after(0.05))
        assert list(problems) == [1]
        assert isinstance(problems[1], embedlog.LockTimeoutError)
        assert problems[1].path
    finally:
        released.set()


def durable(process: Process, nodes: tuple[int, ...] = (1, 2, 3)) -> list[int]:
    return [process.disks[node].log._engine.partition("t", 0).durable_offset for node in nodes]


def make_durable(process: Process) -> None:
    for disk in process.disks.values():
        disk.log.alter_topic("t", {"flush.messages": 1})


def test_a_record_is_acknowledged_when_all_directories_have_synced_it(tmp_path: Path) -> None:
    with a_set(tmp_path) as (_, [process]):
        make_durable(process)
        for number in range(1, 6):
            process.partition.append(run_of(b"value"))
            assert durable(process) == [number] * 3


def test_a_follower_with_a_failed_sync_leaves_the_isr(tmp_path: Path) -> None:
    with a_set(tmp_path) as (decisions, [process]):
        make_durable(process)
        process.partition.append(run_of(b"first"))
        leader = process.partition.node
        process.partition.append(run_of(b"second"))
        follower = next(node for node in (1, 2, 3) if node != leader)
        system.fault_arm(["fdatasync"], 1, "fail", errno.EIO, name=f"d{follower}/t-0")
        try:
            process.partition.append(run_of(b"third"))
        finally:
            hits = system.fault_counters()[1]
            system.fault_off()
        assert hits
        assert (process.partition.node, follower in decisions.partition.isr) == (leader, False)
        assert durable(process, decisions.partition.isr) == [3, 3]


def test_a_member_that_fails_between_commit_and_sync_leaves_the_isr(tmp_path: Path) -> None:
    """A member that fails before its sync leaves the ISR: else it leads after a power loss, without the acknowledged record."""
    with a_set(tmp_path) as (decisions, [process]):
        make_durable(process)
        process.partition.append(run_of(b"first"))
        leader = process.replicas.leaders.find_leader(after(30))
        process.partition.append(run_of(b"second"), flush=False)
        for node in (1, 3):  # as by another thread
            process.disks[node].log._engine.partition("t", 0).sync()
        assert durable(process) == [2, 1, 2]
        process.directories.fail(
            2, StorageError("gone", errno=errno.EIO, path=process.disks[2].path)
        )
        sync_if_due(process.replicas, leader, 2, after(30))
        assert decisions.partition.isr == (1, 3)


def test_a_leader_with_a_failed_sync_hands_over(tmp_path: Path) -> None:
    with a_set(tmp_path) as (decisions, [process]):
        make_durable(process)
        process.partition.append(run_of(b"first"))
        process.partition.append(run_of(b"second"))
        leader = process.partition.node
        system.fault_arm(["fdatasync"], 1, "fail", errno.EIO, name=f"d{leader}/t-0")
        try:
            appended = process.partition.append(run_of(b"third"))
        finally:
            hits = system.fault_counters()[1]
            system.fault_off()
        assert hits
        assert appended.base_offset == 2, "it is not appended twice"
        assert leader not in decisions.partition.isr
        assert decisions.partition.leader != leader
        assert durable(process, decisions.partition.isr) == [3, 3]


# ---- the durable offset of the ISR -----------------------------------------------------------------------------------


def one_has_not_synced(process: Process) -> None:
    """Records 0 and 1; the second directory has synced the first one only."""
    process.partition.append(run_of(b"first"), flush=False)
    process.partition.sync()
    process.partition.append(run_of(b"second"), flush=False)
    for node in (1, 3):
        process.disks[node].log._engine.partition("t", 0).sync()
    assert (durable(process), process.partition.durable_offset) == ([2, 1, 2], 1)


@pytest.mark.parametrize("looks", [0, 1])
def test_a_member_that_returns_between_two_looks_is_not_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looks: int
) -> None:
    """It was not listed, and reached then: a transaction was decided before its data was synced
    there.
    """
    with a_set(tmp_path) as (_, [process]):
        one_has_not_synced(process)
        usable = process.replicas.members.usable_directory
        seen = list[int]()

        def returning(node: int) -> OpenDirectory | None:
            seen.extend([node] if node == 2 else [])
            return None if node == 2 and len(seen) <= looks else usable(node)

        monkeypatch.setattr(process.replicas.members, "usable_directory", returning)
        assert process.partition.durable_offset == (0 if looks else 1)
        assert len(seen) == 1


def test_a_member_that_another_process_added_is_not_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This process does not know its node yet."""
    with a_set(tmp_path) as (_, [process]):
        one_has_not_synced(process)
        slots = {node: slot for node, slot in process.directories.slots().items() if node != 2}
        monkeypatch.setattr(process.directories, "slots", lambda: slots)
        assert process.partition.durable_offset == 0
