"""Replicas whose leader has deleted the records that both could have shared: nothing else of them
stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from embedlog._native import system
from embedlog._native.replication import ROLE_FOLLOWER, ROLE_NONE
from embedlog.format.record_batch import Stamp
from embedlog.partition.partition import Partition
from embedlog.partition.replication.locked_replica import LockedReplica
from embedlog.storage import file_names
from tests.support.replica_logs import lead, replica
from tests.support.replica_partitions import Process, a_set
from tests.support.stamped_batches import run_of, stamped

TXN = Stamp(7, 0, True, True)


def far() -> int:
    return system.boot_ns() + 30_000_000_000


def own(process: Process, node: int) -> Partition:
    return cast("Partition", process.disks[node].log._engine.partition("t", 0))


def opened_in(found: Partition, count: int = 4) -> None:
    """An open transaction with a batch for each record."""
    for sequence in range(count):
        found.append(stamped(TXN, sequence, b"open"), stamp=TXN)


def cut_bytes(found: Partition) -> int:
    return sum(path.stat().st_size for path in found.path.glob(f"{file_names.CUT}*"))


def without_role(found: Partition) -> None:
    """Its page is as one that was made from the files."""
    with found.replica.exclusive() as held:
        held.publish(
            held.published, held.replica._replace(role=ROLE_NONE, maximal_isr=0, decided_isr=0)
        )


def with_role(found: Partition) -> None:
    """Its page is that of the last leader."""


@pytest.mark.parametrize("shown", [with_role, without_role])
@pytest.mark.parametrize(
    "kept", [0, 6], ids=["all other records are deleted", "the first ones, too"]
)
def test_an_open_transaction_that_the_leader_never_had_does_not_stay_below_its_log_start(
    tmp_path: Path, shown: Callable[[Partition], None], kept: int
) -> None:
    """The last stable offset stayed there, and readers of committed records got nothing more."""
    with a_set(tmp_path, processes=2) as (decisions, [process, other]):
        for _ in range(3):
            process.partition.append(run_of(b"shared"))
        assert process.replicas.leaders.find_leader(far()).node == 1
        opened_in(own(process, 1))
        process.disks[1].broken = True
        for _ in range(3 + kept):
            process.partition.append(run_of(b"other"))
        assert process.replicas.leaders.find_leader(far()).node == 2
        assert process.partition.delete_records(6) == 6
        shown(own(process, 1))
        # this process knows no epoch below the log start
        leader = other.replicas.leaders.find_leader(far())
        returned = own(other, 1)
        assert returned.open_transactions() == [(7, 0, 3)]
        assert other.replicas.in_sync.add_to_isr(leader, 1, far())
        assert 1 in decisions.partition.isr
        assert returned.open_transactions() == []
        now = returned.published()
        theirs = leader.partition.published()
        assert (now.log_start, now.log_end, now.first_unstable) == (6, theirs.log_end, -1)
        assert cut_bytes(returned) > 0, (
            "its record at the leader's log start is kept in another file"
        )


@pytest.fixture
def written_alone(tmp_path: Path) -> Iterator[Partition]:
    """Eight records, of which the last four are an open transaction; all are deleted."""
    with replica(tmp_path / "one") as found:
        lead(found, 1)
        for _ in range(4):
            found.append(run_of(b"a"))
        opened_in(found)
        found.replica.commit([], 1)
        yield found


@pytest.mark.parametrize("deleted", [5, 8], ids=["a part", "all"])
def test_a_replica_with_the_log_start_of_its_leader_and_other_records_keeps_no_producer(
    written_alone: Partition, deleted: int
) -> None:
    found = written_alone
    found.delete_records(deleted)
    assert found.replica.follow(2, 3, lambda epoch: (-1, -1), start=deleted) == deleted
    now, page = found.replica.published()
    assert (now.log_start, now.log_end, now.first_unstable, now.epoch, page.role) == (
        deleted,
        deleted,
        -1,
        3,
        ROLE_FOLLOWER,
    )
    assert found.open_transactions() == []
    assert (cut_bytes(found) > 0) == (deleted < 8)


@pytest.mark.parametrize("step", ["cut-intent", "cut-done", "follow-restart", "cut-begun"])
@pytest.mark.parametrize("last", [False, True], ids=["the cut", "the begin"])
def test_an_interrupted_begin_is_repeated(
    written_alone: Partition, monkeypatch: pytest.MonkeyPatch, step: str, last: bool
) -> None:
    found = written_alone
    point = system.point
    seen = list[str]()
    found.delete_records(5)

    def stopped(name: str) -> None:
        seen.append(name)
        if name == step and (not last or "follow-restart" in seen):
            raise KeyboardInterrupt
        point(name)

    with monkeypatch.context() as stopping:
        stopping.setattr(system, "point", stopped)
        with pytest.raises(KeyboardInterrupt):
            found.replica.follow(2, 3, lambda epoch: (-1, -1), start=5)
    _, page = found.replica.published()
    assert page.role != ROLE_FOLLOWER
    assert found.replica.follow(2, 3, lambda epoch: (-1, -1), start=5) == 5
    now, page = found.replica.published()
    assert (now.log_start, now.log_end, now.epoch, page.role) == (5, 5, 3, ROLE_FOLLOWER)
    assert found.open_transactions() == []


def test_a_replica_that_has_begun_there_does_not_begin_again(tmp_path: Path) -> None:
    with replica(tmp_path / "new") as found:
        before = found.published().generation
        assert found.replica.follow(2, 3, lambda epoch: (-1, -1), start=0) == 0
        now, page = found.replica.published()
        assert (now.generation, now.epoch, page.role) == (before, 3, ROLE_FOLLOWER)
        assert found.replica.follow(2, 4, lambda epoch: (-1, -1), start=9) == 9
        before = found.published().generation
        assert found.replica.follow(2, 5, lambda epoch: (-1, -1), start=9) == 9
        assert found.published().generation == before


def test_a_replica_that_ends_at_its_leaders_log_start_keeps_its_producers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last epoch is one of the leader: all that it has is the leader's."""
    with a_set(tmp_path) as (_, [process]):
        process.partition.append(run_of(b"first"))
        process.partition.append(stamped(TXN, 0, b"open"), stamp=TXN)
        own(process, 3).replica.learn(process.replicas.leaders.find_leader(far()).epoch, 2)
        process.disks[1].broken = process.disks[3].broken = True
        process.partition.append(run_of(b"second leader"))
        assert process.replicas.leaders.find_leader(far()).node == 2
        process.disks[3].broken = False
        process.forgive()
        leader = process.replicas.leaders.find_leader(far())
        leader.partition.delete_records(1, leader.epoch)
        begun = list[int]()
        monkeypatch.setattr(
            LockedReplica, "restart", lambda held, *_: begun.append(held.published.log_end)
        )
        assert process.replicas.in_sync.add_to_isr(leader, 3, far())
        assert begun == []
        assert own(process, 3).open_transactions() == [(7, 0, 1)]
