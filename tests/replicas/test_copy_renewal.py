"""Copies of the decision log that are damaged or missing: they begin again from a majority of the
others.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import embedlog
from embedlog._native import system
from embedlog.errors import StorageError
from embedlog.replicas.decisions import promise
from embedlog.storage import file_names
from tests.support.killed_processes import killed_during
from tests.support.replica_moves import opened

LOG = file_names.partition_name("__replica_state", 0)


def segment_of(root: Path, node: int) -> Path:
    return file_names.segment_path(root / f"d{node}" / LOG, 0)


def without_directory(segment: Path) -> None:
    shutil.rmtree(segment.parent)


def truncated(segment: Path) -> None:
    os.truncate(segment, segment.stat().st_size // 2)


def changed(segment: Path) -> None:
    data = bytearray(segment.read_bytes())
    data[len(data) // 3] ^= 4
    segment.write_bytes(data)


DAMAGES = [without_directory, Path.unlink, truncated, changed]


def made(root: Path) -> None:
    with opened(root) as log:
        log.create_topic("first", replication_factor=3)


def are_equal(root: Path) -> bool:
    """Whether all copies have the same batches. A copy whose sync was interrupted has rolled, so
    its segments may begin elsewhere.
    """
    copies = set()
    for node in (1, 2, 3):
        segments = sorted(segment_of(root, node).parent.glob("*.log"))
        batches = b"".join(segment.read_bytes() for segment in segments)
        copies.add(batches.rstrip(b"\0"))  # the reserve of the last segment
    return len(copies) == 1


@pytest.mark.sample(0.3)
@pytest.mark.parametrize("node", [1, 2])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_copy_of_a_closed_set_is_copied_again(
    tmp_path: Path, damage: Callable[[Path], None], node: int
) -> None:
    made(tmp_path)
    damage(segment_of(tmp_path, node))
    with opened(tmp_path) as log:
        log.create_topic("second", replication_factor=3)
        log.housekeep()
        assert promise.read(segment_of(tmp_path, node).parent).incomplete is False
    assert are_equal(tmp_path)
    # the copy counts again: the other one is not needed
    (tmp_path / f"d{3 - node}").rename(tmp_path / "away")
    with opened(tmp_path) as log:
        assert log.topics() == ["first", "second"]
        log.create_topic("third", replication_factor=2)


def test_a_copy_that_is_removed_while_the_log_is_open_is_made_again(tmp_path: Path) -> None:
    with opened(tmp_path) as log, opened(tmp_path) as other:
        without_directory(segment_of(tmp_path, 2))
        log.create_topic("first", replication_factor=3)
        log.housekeep()
        other.create_topic("second", replication_factor=3)
        log.create_topic("third", replication_factor=3)
    assert are_equal(tmp_path)


@pytest.mark.sample(0.3)
@pytest.mark.parametrize("node", [1, 2])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_in_an_open_copy_is_found_and_copied_again(
    tmp_path: Path, damage: Callable[[Path], None], node: int
) -> None:
    """Also for processes that have its page and its descriptors."""
    with opened(tmp_path) as log, opened(tmp_path) as other:
        log.create_topic("first", replication_factor=3)
        assert log.verify_replicas() == other.verify_replicas() == []
        damage(segment := segment_of(tmp_path, node))
        found = other.verify_replicas()
        assert [(each.topic, each.node, each.kind) for each in found] == [
            ("__replica_state", node, "damaged")
        ]
        assert Path(found[0].path).name in (segment.name, segment.parent.name)
        assert log.verify_replicas("first") == []
        report = other.repair()
        assert [(each.topic, each.node, each.source) for each in report.repaired] == [
            ("__replica_state", node, 3 - node)
        ]
        assert not report.left
        assert log.verify_replicas() == other.verify_replicas() == []
        log.create_topic("second", replication_factor=3)
        other.create_topic("third", replication_factor=3)
        assert log.topics() == other.topics() == ["first", "second", "third"]
    assert are_equal(tmp_path)
    (tmp_path / f"d{3 - node}").rename(tmp_path / "away")  # the copy counts again
    with opened(tmp_path) as log:
        assert log.topics() == ["first", "second", "third"]
        log.create_topic("fourth", replication_factor=2)


def test_a_repair_names_a_source_that_answers(tmp_path: Path) -> None:
    """The first directory is lost: the copy is made from another one."""
    directories = [tmp_path / f"d{node}" for node in range(1, 6)]
    with embedlog.open(directories, config={"housekeeping": False}) as log:
        log.create_topic("first", replication_factor=3)
        directories[0].rename(tmp_path / "away")
        truncated(segment_of(tmp_path, 5))
        report = log.repair()
        sources = [(copy.node, copy.source) for copy in report.repaired if copy.node == 5]
        assert sources == [(5, 2)]


def test_a_copy_whose_directory_leaves_before_its_repair_is_not_repaired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, the report had it as repaired."""
    directories = [tmp_path / f"d{node}" for node in range(1, 4)]
    with embedlog.open(directories, config={"housekeeping": False}) as log:
        log.create_topic("first", replication_factor=3)
        truncated(segment_of(tmp_path, 3))
        members = log._engine.set.members  # type: ignore[attr-defined]
        monkeypatch.setattr(members._states, "open_member", lambda node: None)
        assert not members.renew_copy(3, StorageError("damaged"))
        monkeypatch.setattr(members, "renew_copy", lambda node, problem: False)
        report = log.repair()
        assert [copy.node for copy in report.repaired] == []
        assert [difference.node for difference in report.left] == [3]


@pytest.mark.parametrize("damage", [Path.unlink, truncated])
def test_damage_after_a_killed_decision_is_copied_again(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    """The repair of the append finds the damage."""
    with opened(tmp_path) as log:
        log.create_topic("first", replication_factor=3)
        name = f"/d2/{LOG}/00000000000000000000.log"
        lost = partial(embedlog.Log.create_topic, name="lost", replication_factor=3)
        killed_during(lost, partial(opened, tmp_path), "pwrite", "kill_after", name)
        damage(segment_of(tmp_path, 2))
        log.create_topic("second", replication_factor=3)
        log.housekeep()
        assert log.verify_replicas() == []
        assert {"first", "second"} <= set(log.topics())
        away = (tmp_path / "d1").rename(tmp_path / "away")
        log.create_topic("third", replication_factor=2)  # by the copies of nodes 2 and 3
        away.rename(tmp_path / "d1")
        log.housekeep()
        log.create_topic("fourth", replication_factor=3)
    assert are_equal(tmp_path)


@pytest.mark.sample(0.3)
@pytest.mark.parametrize(
    "point",
    ["renew-noted", "cut-intent", "cut-begun", "cut-manifest", "cut-segment", "cut-published"],
)
def test_a_process_that_is_killed_while_an_open_copy_begins_again(
    tmp_path: Path, point: str
) -> None:
    """The copy is incomplete from before the cut until it is level: with an older copy it is no
    majority.
    """
    with opened(tmp_path) as log:
        log.create_topic("first", replication_factor=3)
        truncated(segment_of(tmp_path, 2))
        killed_during(embedlog.Log.repair, partial(opened, tmp_path), "point", "kill_before", point)
        assert promise.read(segment_of(tmp_path, 2).parent).incomplete
        away = (tmp_path / "d3").rename(tmp_path / "away")
        with pytest.raises(embedlog.errors.NotEnoughDirectoriesError):
            log.create_topic("second", replication_factor=2)
        away.rename(tmp_path / "d3")
        log.housekeep()
        log.create_topic("second", replication_factor=3)
        log.repair()
        assert log.verify_replicas() == []
        assert not promise.read(segment_of(tmp_path, 2).parent).incomplete
    assert are_equal(tmp_path)


@pytest.mark.parametrize("damage", [Path.unlink, truncated, changed])
def test_a_copy_that_is_damaged_while_the_log_is_open_is_copied_again_later(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    with opened(tmp_path) as log:
        log.create_topic("first", replication_factor=3)
        damage(segment_of(tmp_path, 2))
        log.create_topic("second", replication_factor=3)
    with opened(tmp_path) as log:
        log.housekeep()
        assert log.topics() == ["first", "second"]
    assert are_equal(tmp_path)


def test_without_a_majority_of_the_others_a_damaged_copy_stays(tmp_path: Path) -> None:
    made(tmp_path)
    truncated(segment_of(tmp_path, 2))
    before = segment_of(tmp_path, 2).read_bytes()
    away = (tmp_path / "d3").rename(tmp_path / "away")
    with opened(tmp_path, lock_timeout_ms=300) as log:
        for _ in range(2):
            log.housekeep()
            with pytest.raises(embedlog.errors.NotEnoughDirectoriesError):
                log.create_topic("second")
    assert segment_of(tmp_path, 2).read_bytes() == before
    away.rename(tmp_path / "d3")
    with opened(tmp_path) as log:
        log.housekeep()
        log.create_topic("second")
    assert are_equal(tmp_path)


def test_without_a_majority_of_the_others_an_open_damaged_copy_stays(tmp_path: Path) -> None:
    """It may be the only one with the newest record."""
    with opened(tmp_path, lock_timeout_ms=300) as log:
        log.create_topic("first", replication_factor=3)
        truncated(segment := segment_of(tmp_path, 2))
        before = segment.read_bytes()
        away = (tmp_path / "d3").rename(tmp_path / "away")
        assert [each.node for each in log.repair().left] == [2]
        assert segment.read_bytes().startswith(before), (
            "a decision may follow, through an open descriptor"
        )
        assert not promise.read(segment.parent).incomplete
        away.rename(tmp_path / "d3")
        log.housekeep()
        assert not log.repair().left
        assert log.verify_replicas() == []


@pytest.mark.parametrize("point", ["renew-aside", "renew-made"])
def test_a_new_copy_counts_for_no_majority_before_it_is_level(tmp_path: Path, point: str) -> None:
    """Killed in the middle: the new copy and an older one are no majority."""
    made(tmp_path)
    shutil.copytree(tmp_path / "d1" / LOG, tmp_path / "older")
    with opened(tmp_path) as log:
        log.create_topic("second", replication_factor=3)
    truncated(segment_of(tmp_path, 2))
    child = os.fork()
    if child == 0:
        try:
            with opened(tmp_path) as log:
                system.fault_arm(["point"], 1, "kill_before", name=point)
                log.housekeep()
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL, "it was killed"
    shutil.rmtree(tmp_path / "d1" / LOG)
    (tmp_path / "older").rename(tmp_path / "d1" / LOG)
    away = (tmp_path / "d3").rename(tmp_path / "away")
    with pytest.raises(embedlog.errors.ReplicaSetError, match="no directory is the registered one"):
        # the older copy has openings that are none of its directory any more
        opened(tmp_path, lock_timeout_ms=300)
    away.rename(tmp_path / "d3")
    with opened(tmp_path) as log:
        log.housekeep()
        assert log.topics() == ["first", "second"]
        log.create_topic("third")
    assert are_equal(tmp_path)


@pytest.mark.parametrize(
    ("partition", "name"),
    [
        (LOG, "partition.metadata"),
        (LOG, "leader-epoch-checkpoint"),
        (LOG, promise.PROMISE),
        ("first-0", "partition.metadata"),
        ("first-0", "leader-epoch-checkpoint"),
    ],
)
def test_a_malformed_file_of_a_closed_partition_is_damage_of_one_replica(
    tmp_path: Path, name: str, partition: str
) -> None:
    """Its directory stays in use, and the replica or copy begins again."""
    made(tmp_path)
    path = tmp_path / "d2" / partition / name
    os.truncate(path, path.stat().st_size // 2)
    with opened(tmp_path) as log:
        log.create_topic("second", replication_factor=3)
        for _ in range(3):
            log.housekeep()
        log.repair()
        assert [each.state for each in log.replicas().directories] == ["live"] * 3
        assert sorted(log.replicas("first").partitions[0].isr) == [1, 2, 3]
        assert log.verify_replicas() == []
    assert are_equal(tmp_path)


@pytest.mark.parametrize("partition", [LOG, "first-0"])
def test_a_malformed_file_that_a_close_finds_is_damage_of_one_replica(
    tmp_path: Path, partition: str
) -> None:
    """The close loads what is not in order. It reports such a file, and does not fail, if another
    directory has the records.
    """
    with opened(tmp_path) as log:
        log.create_topic("first", replication_factor=3)
        path = tmp_path / "d2" / partition / "partition.metadata"
        malformed = embedlog.errors.ForeignDirectoryError("malformed line 2", path=path)
        assert log._engine.set.is_damaged(malformed)  # type: ignore[attr-defined]
        malformed = embedlog.errors.ForeignDirectoryError(
            "malformed line 2", path=tmp_path / "d2" / "embedlog.topics"
        )
        assert not log._engine.set.is_damaged(malformed)  # type: ignore[attr-defined]
