"""Calls at a leader that fails until their deadline: they end, the error has the cause, and records
that were written are not said to be missing.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest

from embedlog._native import system
from embedlog.errors import (
    DurabilityError,
    EmbedlogError,
    LeaderNotAvailableError,
    NotEnoughReplicasAfterAppendError,
    StorageError,
)
from embedlog.partition.replication.replica_log import NotLeader
from embedlog.replicas.partition.copied_partition import CopiedPartition
from embedlog.replicas.partition.leader import Leader, LeaderChanged
from embedlog.replicas.verification.partition_repair import PartitionRepair
from tests.support.replica_partitions import Process, a_set
from tests.support.stamped_batches import run_of

LOCK_MS = 400


def soon() -> int:
    return system.boot_ns() + LOCK_MS * 1_000_000


def far() -> int:
    return system.boot_ns() + 20_000_000_000


def causes(problem: BaseException | None) -> Iterator[BaseException]:
    """An error with what it was raised from, the first cause last."""
    while problem is not None:
        yield problem
        problem = problem.__cause__


@contextmanager
def failing_syncs() -> Iterator[None]:
    system.fault_arm(["fdatasync"], 1, "fail", errno.EIO, name="t-0", sticky=True)
    try:
        yield
    finally:
        system.fault_off()


def test_a_sync_that_fails_at_every_leader_ends_with_the_error_of_the_sync(tmp_path: Path) -> None:
    with a_set(tmp_path, nodes=(1,)) as (_, [process]):
        process.partition.append(run_of(b"first"))
        with failing_syncs(), pytest.raises(DurabilityError):
            process.partition.sync(soon())


def test_an_attempt_that_fails_until_the_deadline_ends_with_its_cause(tmp_path: Path) -> None:
    with a_set(tmp_path) as (_, [process]):
        process.partition.append(run_of(b"first"))

        def fail(leader: Leader) -> NoReturn:
            problem = StorageError("the disk is gone", errno=errno.EIO, path="/elsewhere")
            raise LeaderChanged from problem

        with pytest.raises(LeaderNotAvailableError, match="changed until the deadline") as caught:
            process.partition._calls.retry(fail, soon())
        assert isinstance(list(causes(caught.value))[-1], StorageError)
        assert "the disk is gone" in str(caught.value)


def test_an_attempt_that_fails_again_waits_for_a_decision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the attempts to the deadline are thousands, with one processor in use."""
    with a_set(tmp_path) as (_, [process]):
        process.partition.append(run_of(b"first"))
        attempts = list[int]()
        waits = list[int]()

        def fail(leader: Leader) -> NoReturn:
            attempts.append(leader.node)
            raise NotLeader

        def wait(version: int, deadline_ns: int) -> bool:
            waits.append(version)
            return len(waits) < 3

        monkeypatch.setattr(process.replicas.members, "wait", wait)
        with pytest.raises(LeaderNotAvailableError):
            process.partition._calls.retry(fail, far())
        assert (len(attempts), len(waits)) == (4, 3)


def break_all(process: Process) -> None:
    for disk in process.disks.values():
        disk.broken = True


def hold(process: Process) -> None:
    """Append a decision, after which all directories fail before its commit."""
    with process.partition.exclusive(soon()):
        process.partition.append_held(bytes(run_of(b"held").buffer))
        break_all(process)


def test_a_decision_whose_leader_is_lost_before_its_commit_may_count(tmp_path: Path) -> None:
    """It is in the log of a directory that may return. A caller that repeats what did not count
    would write it twice.
    """
    with a_set(tmp_path) as (_, [process]):
        process.partition.append(run_of(b"first"))
        with pytest.raises(NotEnoughReplicasAfterAppendError) as caught:
            hold(process)
        assert caught.value.offset == 1
        assert "the disk is gone" in str(caught.value)
        for disk in process.disks.values():
            disk.broken = False
        process.forgive()
        assert process.partition.bounds().high_watermark >= 1
        assert process.published(1).log_end == 2


def test_a_decision_with_an_unreadable_page_after_it_may_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with a_set(tmp_path) as (_, [process]):
        process.partition.append(run_of(b"first"))

        def fail(*arguments: Any) -> NoReturn:
            raise StorageError("the page is gone", errno=errno.EIO, path=process.disks[1].path)

        def hold_and_lose_the_page() -> None:
            with process.partition.exclusive(soon()) as held:
                process.partition.append_held(bytes(run_of(b"held").buffer))
                monkeypatch.setattr(type(held.state), "read_page", fail)

        with pytest.raises(NotEnoughReplicasAfterAppendError, match="the page is gone"):
            hold_and_lose_the_page()


def test_an_error_of_a_directory_during_the_wait_for_a_commit_is_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with a_set(tmp_path) as (_, [process]):
        process.partition.append(run_of(b"first"))
        problem = StorageError("a look failed", errno=errno.EIO, path=process.disks[1].path)

        def refuse(*arguments: Any, **options: Any) -> NoReturn:
            raise NotEnoughReplicasAfterAppendError("too few")

        def fail(leader: Leader) -> NoReturn:
            raise problem

        for name in ("commit", "commit_for_all"):
            monkeypatch.setattr(process.replicas.in_sync, name, refuse)
        monkeypatch.setattr(process.replicas.members, "is_leading", fail)
        monkeypatch.setattr(process.directories, "fail", lambda node, problem: None)
        monkeypatch.setattr(process.replicas.members, "wait", lambda version, deadline_ns: False)

        def hold_without_commit() -> None:
            with process.partition.exclusive(far()):
                process.partition.append_held(bytes(run_of(b"held").buffer))

        with pytest.raises(EmbedlogError) as caught:
            hold_without_commit()
        assert problem in causes(caught.value)


def test_a_repair_whose_leader_changes_again_and_again_ends_at_its_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with a_set(tmp_path) as (_, [process]):
        process.partition.append(run_of(b"first"))
        repair = PartitionRepair(process.replicas, soon)
        problem = StorageError("the disk is gone", errno=errno.EIO, path="/elsewhere")
        limit_ns = far()

        def change(*arguments: Any) -> NoReturn:
            assert system.boot_ns() < limit_ns
            raise LeaderChanged from problem

        monkeypatch.setattr(repair, "_repair", change)
        with pytest.raises(LeaderNotAvailableError, match="deadline of a repair") as caught:
            repair.repair(2)
        assert caught.value.__cause__ is problem


def test_copies_that_all_fail_end_with_their_cause(tmp_path: Path) -> None:
    with a_set(tmp_path) as (_, [process]):
        process.partition.append(run_of(b"first"))
        copied = CopiedPartition(process.replicas, LOCK_MS, lambda: None)
        problem = StorageError("the disk is gone", errno=errno.EIO, path="/elsewhere")

        def change(partition: Any) -> NoReturn:
            raise LeaderChanged from problem

        with pytest.raises(LeaderNotAvailableError, match="during each of 10 copies") as caught:
            copied.at_files(change)
        assert caught.value.__cause__ is problem


def test_a_leader_counts_as_checked_only_after_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, a leader whose check was interrupted was used until the next decision, although
    another one had replaced it.
    """
    with a_set(tmp_path) as (_, [process]):
        process.partition.append(run_of(b"first"))
        calls = process.partition._calls
        leader = calls.find(far())
        version = process.replicas.members.version()
        monkeypatch.setattr(process.replicas.members, "version", lambda: version + 2)

        def interrupt(leader: Leader) -> NoReturn:
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(process.replicas.members, "is_replaced", interrupt)
            with pytest.raises(KeyboardInterrupt):
                calls.check_leader()
        assert calls.leader is leader
        monkeypatch.setattr(process.replicas.members, "is_replaced", lambda leader: True)
        assert calls.watch_leader() is None
        assert calls.leader is None


def test_a_leader_is_not_watched_while_another_thread_checks_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with a_set(tmp_path) as (_, [process]):
        process.partition.append(run_of(b"first"))
        calls = process.partition._calls
        calls.find(far())
        version = process.replicas.members.version()
        watches = list[object]()

        def is_replaced(leader: Leader) -> bool:
            if not watches:
                watches.append(None)
                watches[0] = calls.watch_leader()  # as another thread would
            return True

        monkeypatch.setattr(process.replicas.members, "version", lambda: version + 2)
        monkeypatch.setattr(process.replicas.members, "is_replaced", is_replaced)
        calls.check_leader()
        assert watches == [None]
