"""Copies of the decision log that are damaged or missing: they begin again from a majority of the others."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import embedlog
from embedlog._native import system
from embedlog.replica_set.decisions import promise
from embedlog.storage import file_names
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
    return len({segment_of(root, node).read_bytes().rstrip(b"\0") for node in (1, 2, 3)}) == 1


@pytest.mark.parametrize("node", [1, 2])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_copy_of_a_closed_set_is_copied_again(tmp_path: Path, damage: Callable[[Path], None], node: int) -> None:
    made(tmp_path)
    damage(segment_of(tmp_path, node))
    with opened(tmp_path) as log:
        log.create_topic("second", replication_factor=3)
        log.housekeep()
        assert promise.read(segment_of(tmp_path, node).parent).incomplete is False
    assert are_equal(tmp_path)
    (tmp_path / f"d{3 - node}").rename(tmp_path / "away")  # the copy counts again: the other one is not needed
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
    with opened(tmp_path, lock_timeout_ms=300) as log, pytest.raises(embedlog.errors.NotEnoughDirectoriesError):
        log.create_topic("second")
    away.rename(tmp_path / "d3")
    with opened(tmp_path) as log:
        log.housekeep()
        assert log.topics() == ["first", "second"]
        log.create_topic("third")
    assert are_equal(tmp_path)
