"""Commits and additions beside decisions and threads that come between: none waits without an end or
without a pause.
"""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog._native import system
from embedlog.errors import (
    EmbedlogError,
    NotEnoughReplicasAfterAppendError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from tests.support.replica_partitions import a_set
from tests.support.replica_sets import having
from tests.support.stamped_batches import run_of


def after_ms(milliseconds: int) -> int:
    return system.boot_ns() + milliseconds * 1_000_000


def test_a_failing_replica_that_was_moved_away_costs_a_commit_one_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page of the leader still has it in the ISR: the process that decided ended before it
    changed the page. The commit copied to it again and again until its deadline.
    """
    with a_set(tmp_path) as (decisions, [process]):
        process.partition.append(run_of(b"first"))
        decided = decisions.partition
        decisions.state = having(
            decisions.state,
            replicas=(1, 2),
            isr=(1, 2),
            partition_epoch=decided.partition_epoch + 1,
        )
        process.disks[3].broken = True
        problems = list[EmbedlogError]()
        blame = process.replicas.members.blame

        def count(problem: EmbedlogError, *arguments: Any) -> int:
            problems.append(problem)
            return blame(problem, *arguments)

        monkeypatch.setattr(process.replicas.members, "blame", count)
        assert process.partition.append(run_of(b"second")).base_offset == 1
        assert process.partition.bounds().high_watermark == 2
        assert len(problems) <= 2


def test_an_addition_beside_a_long_copy_ends_at_its_deadline(tmp_path: Path) -> None:
    """A copy that is throttled takes hours."""
    with a_set(tmp_path) as (_, [process]):
        process.partition.append(run_of(b"first"))
        leader = process.replicas.leaders.find_leader(after_ms(10_000))
        in_sync = process.replicas.in_sync
        in_sync.remove_from_isr(leader, 3, after_ms(10_000), "it is late")
        results = list[bool]()

        def add() -> None:
            results.append(in_sync.add_to_isr(leader, 3, after_ms(100)))

        thread = threading.Thread(target=add, daemon=True)
        with in_sync._adding:
            thread.start()
            thread.join(20)
            assert results == [False]
        assert in_sync.add_to_isr(leader, 3, after_ms(10_000))


def test_a_commit_with_an_unknown_member_waits_and_says_that_the_records_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory of a member cannot be opened. Before, the attempts to the deadline used a
    processor, and the error said that no replica leads.
    """
    with a_set(tmp_path) as (_, [process]):
        process.partition.append(run_of(b"first"))
        leader = process.replicas.leaders.find_leader(after_ms(20_000))
        in_sync = process.replicas.in_sync
        attempts = list[int]()

        def commit_less(leader: object, end: int, deadline_ns: int) -> int:
            attempts.append(end)
            return end - 1

        waits = list[int]()
        wait = process.replicas.members.wait

        def count(version: int, deadline_ns: int) -> bool:
            waits.append(version)
            return wait(version, deadline_ns)

        monkeypatch.setattr(process.replicas.members, "wait", count)
        monkeypatch.setattr(in_sync, "_commit_once", commit_less)
        monkeypatch.setattr(in_sync, "maximal_isr", lambda leader: ([1, 2], 1))
        with pytest.raises(NotEnoughReplicasAfterAppendError) as caught:
            in_sync.commit(leader, 2, after_ms(300))
        assert caught.value.offset == 1
        assert len(waits) == len(attempts) - 1 > 0


def test_a_directory_that_is_back_when_its_absence_is_judged_has_lost_no_replica(
    tmp_path: Path,
) -> None:
    """It was renamed for a moment. The only replica of the ISR was taken for lost, and the producer
    got UnknownTopicOrPartitionError for its record.
    """
    paths = [tmp_path / f"d{node}" for node in (1, 2, 3)]
    with embedlog.open(paths, config={"housekeeping": False}) as log:
        log.create_topic("t", assignment={0: [1]})
        members = log._engine.partition("t", 0)._replicas.members  # type: ignore[attr-defined]
        problem = UnknownTopicOrPartitionError("t-0 has no directory", path=paths[0] / "t-0")
        problem.__cause__ = StorageError(
            "cannot open", errno=errno.ENOENT, path=paths[0] / "t-0" / "lock"
        )
        assert members.blame(problem) == 1
        (paths[0] / "t-0").rename(tmp_path / "lost")
        with pytest.raises(UnknownTopicOrPartitionError):
            members.blame(problem)
        (tmp_path / "lost").rename(paths[0] / "t-0")
