"""QUORUM-8: copies of the decision log that differ. What counts nowhere is cut, and nothing else."""

from __future__ import annotations

import contextlib
import errno
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from embedlog._native import system
from embedlog.config.topic import TopicConfig
from embedlog.errors import NotEnoughDirectoriesError, StorageError
from embedlog.partition.replication.replica_log import ReplicaLog
from embedlog.replicas.decisions import promise
from embedlog.replicas.decisions.copies import Copy, LockedCopy
from embedlog.storage import checkpoints
from embedlog.storage.file_names import EPOCHS
from tests.support import decision_logs
from tests.support.decision_logs import (
    NODES,
    Process,
    batches_of,
    begun,
    copy_path,
    killed_with,
    made,
    numbers_of,
)


def test_a_tail_that_counts_nowhere_is_cut_although_its_terms_are_those_of_others(
    tmp_path: Path,
) -> None:
    root = begun(tmp_path / "set")
    killed_with(root, NODES, lambda process: process.decide(2), 2)
    with Process(root, (2, 3)) as process:
        process.decide(3)
    with Process(root) as process:
        process.decide(4)
    assert [numbers_of(root, node) for node in NODES] == [[1, 3, 4]] * 3


def test_another_directory_under_a_planned_number_is_no_vote(tmp_path: Path) -> None:
    """A process adds a directory with a number that another process has given to another one."""
    root = made(begun(tmp_path / "set", (1, 2)), (3,))
    other = made(tmp_path / "other", (3,))
    with Process(root, voters=(1, 2)) as process, Process(other, (3,)) as adding:
        process.add(3)
        process.detach(2)
        process.detach(3)
        process.log.attach(Copy(3, adding.partitions[3], directory=UUID(int=1)))
        before = [batches_of(root, node) for node in (1, 2)]
        with pytest.raises(NotEnoughDirectoriesError):
            process.decide(2)
        assert "another directory is node 3" in str(process.log.failures()[3])
        assert [batches_of(root, node) for node in (1, 2)] == before
        assert batches_of(other, 3) == []
        process.log.attach(Copy(3, adding.partitions[3], directory=UUID(int=10**6 + 3)))
        process.decide(3)


# ---- compacted copies ----------------------------------------------------------------------------


@contextlib.contextmanager
def renewed_from_a_compacted_copy(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Process]:
    """A process of a set whose copy 3 was made from copy 1 after a compaction: its terms have other
    starts.
    """
    small = TopicConfig(
        cleanup_policy=("compact",),
        segment_bytes=400,
        min_cleanable_dirty_ratio=0.0,
        delete_retention_ms=0,
    )
    monkeypatch.setattr(decision_logs, "COMPACTED", small)
    begun(root)
    for number in range(2, 12):
        with Process(root) as process:  # each one has another term
            process.decide(number)
    with Process(root) as process:
        process.log.settle()
        process.partitions[1].compact(0, 1 << 26, system.wall_ms() + 10**9)
    shutil.rmtree(root / "d3")
    made(root, (3,))
    promise.write(copy_path(root, 3), promise.Promise(incomplete=True))
    with Process(root) as process:
        process.decide(12)
    starts = [checkpoints.read_epochs(copy_path(root, node) / EPOCHS).entries for node in (1, 3)]
    assert starts[0] != starts[1]
    with Process(root) as process:
        yield process


def test_a_copy_of_a_compacted_log_is_of_its_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with renewed_from_a_compacted_copy(tmp_path, monkeypatch) as process:
        process.decide(13)
    assert {numbers_of(tmp_path, node)[-1] for node in NODES} == {13}


def test_a_decision_cuts_no_copy_of_a_compacted_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records are compared where the starts of the terms differ: they are equal."""
    with renewed_from_a_compacted_copy(tmp_path, monkeypatch) as process:
        for way in ("_can_be_cut", "_begin_again"):
            monkeypatch.setattr(LockedCopy, way, lambda *_: pytest.fail("a copy is cut"))
        process.decide(13)
    assert {numbers_of(tmp_path, node)[-1] for node in NODES} == {13}


def test_an_error_of_the_best_copy_leaves_that_copy_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the one that is copied from it."""
    begun(tmp_path)
    read = ReplicaLog.read
    bring_to = LockedCopy.bring_to
    failed = list[Path]()

    def failing(self: ReplicaLog, *args: Any) -> Any:
        if not failed:
            failed.append(self._state.path)
            raise StorageError("no read", path=self._state.path, errno=errno.EIO)
        return read(self, *args)

    def brought(self: LockedCopy, best: LockedCopy, term: int) -> None:
        if self.end < best.end:
            monkeypatch.setattr(ReplicaLog, "read", failing)
        bring_to(self, best, term)

    with Process(tmp_path) as process:
        process.detach(3)
        process.decide(2)
        process.attach(tmp_path, 3)
        monkeypatch.setattr(LockedCopy, "bring_to", brought)
        process.decide(3)
    assert len(failed) == 1
    left_out = {"d1": 1, "d2": 2}[failed[0].parent.name]
    assert [numbers_of(tmp_path, node)[-1] for node in NODES if node != left_out] == [3, 3]
