"""What readers of a replicated partition get after failovers, and the log start in all directories."""

from __future__ import annotations

from pathlib import Path

import pytest

import embedlog
from embedlog.errors import LeaderNotAvailableError
from tests.support.replica_moves import opened, values
from tests.support.replica_partitions import Process, a_set
from tests.support.stamped_batches import run_of


def read(process: Process) -> int:
    """The position of a reader that has read everything."""
    offset = 0
    while len((found := process.partition.fetch(offset)).batches):
        offset = found.next_offset
    return offset


def test_a_leader_returns_nothing_before_the_start_of_its_epoch_is_committed(tmp_path: Path) -> None:
    with a_set(tmp_path, min_insync_replicas="2") as (decisions, [process]):
        process.partition.append(run_of(b"first"))
        assert read(process) == 1
        assert process.published(2).high_watermark == process.published(3).high_watermark == 0  # one append late
        process.disks[1].broken = process.disks[3].broken = True
        within_ms, process.partition._timeout_ms = process.partition._timeout_ms, 500
        for call in (process.partition.bounds, lambda: read(process)):
            with pytest.raises(LeaderNotAvailableError, match="start of its epoch"):
                call()
        process.partition._timeout_ms = within_ms
        assert decisions.partition.leader == 2
        process.disks[3].broken = False
        process.forgive()
        process.disks[1].broken = True
        process.replicas.join(process.replicas.leader(process.partition.deadline()), 3, process.partition.deadline())
        assert process.partition.bounds().high_watermark == read(process) == 1


def test_a_reader_never_returns_to_a_lower_leader_epoch(tmp_path: Path) -> None:
    with a_set(tmp_path, processes=2) as (decisions, [process, other]):
        process.partition.append(run_of(b"first"))
        before = decisions.state
        other.disks[1].broken = True
        other.partition.append(run_of(b"second"))
        process.partition.append(run_of(b"third"))
        assert (read(process), decisions.partition.leader_epoch) == (3, 1)
        second = decisions.partition.leader
        process.disks[second].broken = True
        newest = lambda: before if decisions.partition.leader_epoch == 1 else decisions.state  # noqa: E731
        decisions.hint = newest  # type: ignore[method-assign]  # the reached copies are old until the next decision
        assert read(process) == 3
        assert process.partition.node not in (1, second)


def test_deleted_records_are_deleted_in_all_directories(tmp_path: Path) -> None:
    with a_set(tmp_path) as (decisions, [process]):
        for number in range(4):
            process.partition.append(run_of(b"%d" % number))
        assert process.partition.delete_records(-1) == 4
        assert [process.published(node).log_start for node in (1, 2, 3)] == [4, 4, 4]
        process.partition.append(run_of(b"later"))
        process.disks[2].broken = True
        assert process.partition.delete_records(5) == 5
        assert [process.published(node).log_start for node in (1, 3)] == [5, 5]
        assert decisions.partition.isr == (1, 3)


@pytest.mark.parametrize("acks", [0, 1])
def test_a_close_commits_what_only_the_leader_has(tmp_path: Path, acks: int) -> None:
    with opened(tmp_path) as log:
        log.create_topic("t", replication_factor=3)
        with log.producer(acks=acks) as producer:
            producer.send("t", b"v")
    paths = [tmp_path / f"d{node}" for node in (1, 2, 3)]
    with embedlog.open(paths, read_only=True) as log:
        assert values(log) == [b"v"]
    for path in paths:
        with embedlog.open(path, read_only=True) as copy:
            assert values(copy) == [b"v"]
