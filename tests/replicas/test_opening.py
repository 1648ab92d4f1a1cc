"""A set opens with missing and failing directories, and refuses what is no set without a change of
any byte.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import embedlog
from embedlog._native import system, waits
from embedlog.errors import (
    DirectoryInUseError,
    NotEnoughDirectoriesError,
    NotEnoughReplicasError,
    ReplicaSetError,
    StorageError,
)
from embedlog.replicas.members import membership
from embedlog.storage import file_names, files, locks
from tests.support.opened_sets import QUIET, content, isr, made, opened, paths, send, values
from tests.support.replica_directories import failing
from tests.support.stamped_batches import run_of


def recorded(path: Path) -> tuple[membership.Member, ...]:
    """The members that a directory has recorded."""
    found = membership.read(path)
    assert found is not None
    return found.members


# ---- directories that are away -------------------------------------------------------------------


def removed(path: Path) -> None:
    path.rename(path.with_name("removed"))


def emptied(path: Path) -> None:
    """As a mount point whose disk is not mounted."""
    removed(path)
    path.mkdir()


def of_damaged_identity(path: Path) -> None:
    (path / file_names.META_PROPERTIES).write_bytes(b"\xff no properties")


def of_damaged_members(path: Path) -> None:
    (path / file_names.REPLICAS).write_bytes(b"{")


@pytest.mark.sample(0.25)
@pytest.mark.parametrize("node", [1, 2, 3])
@pytest.mark.parametrize("fault", [removed, emptied, of_damaged_identity, of_damaged_members])
def test_a_set_opens_without_one_of_three_directories(
    tmp_path: Path, node: int, fault: Callable[[Path], None]
) -> None:
    made(tmp_path)
    fault(tmp_path / f"d{node}")
    with opened(tmp_path) as log:
        assert values(log) == [b"first"]
        send(log, b"second")
        log.create_topic("u", replication_factor=2)
        with log.consumer("t", group_id="g", auto_offset_reset="earliest") as consumer:
            assert (
                len([record for _ in range(2) for record in consumer.poll(5, max_records=1)]) == 2
            )
            consumer.commit()
        log.housekeep()
        assert values(log) == [b"first", b"second"]
        assert node not in isr(log)
    if fault is emptied:
        assert not list((tmp_path / f"d{node}").iterdir()), (
            "an empty directory in the place of a member is not prepared again"
        )


@pytest.mark.parametrize("error", [errno.EIO, errno.EROFS, errno.ENOSPC])
def test_a_directory_that_fails_during_the_opening_is_away(tmp_path: Path, error: int) -> None:
    made(tmp_path)
    with failing(("unlink",), name="d2/", error=error) as struck, opened(tmp_path) as log:
        assert struck.count == 0
        assert [
            each.problem is None
            for each in sorted(log._engine.set.directories, key=lambda each: each.node)
        ] == [
            True,
            False,
            True,
        ]
        send(log, b"second")
        assert values(log) == [b"first", b"second"]


def test_an_error_of_the_process_is_raised_by_the_opening(tmp_path: Path) -> None:
    made(tmp_path)
    for error in (errno.EACCES, errno.EMFILE, errno.ENOMEM):
        with failing(("unlink",), name="d2/", error=error), pytest.raises(StorageError) as raised:
            opened(tmp_path)
        assert raised.value.errno == error
    with opened(tmp_path) as log:
        assert isr(log) == [1, 2, 3]


def test_a_lock_that_is_not_had_in_time_is_a_failure(tmp_path: Path) -> None:
    made(tmp_path)
    held = locks.LockFile(tmp_path / "d3" / file_names.OPEN_LOCK, 0o666)
    try:
        with held.hold(files.deadline_after(60)), opened(tmp_path) as log:
            send(log, b"second")
            assert isr(log) == [1, 2]
    finally:
        held.close()


def test_a_directory_that_was_away_returns_with_the_next_opening(tmp_path: Path) -> None:
    made(tmp_path)
    removed(tmp_path / "d1")
    with opened(tmp_path) as log:
        send(log, b"second")
    (tmp_path / "removed").rename(tmp_path / "d1")
    with opened(tmp_path) as log:
        log.housekeep()
        assert isr(log) == [1, 2, 3]
        assert values(log) == [b"first", b"second"]


def test_directories_that_have_exchanged_their_paths_are_found_by_their_files(
    tmp_path: Path,
) -> None:
    made(tmp_path)
    for old, new in (("d1", "x"), ("d2", "d1"), ("x", "d2")):
        (tmp_path / old).rename(tmp_path / new)
    with embedlog.open(paths(tmp_path), read_only=True) as log:
        assert values(log) == [b"first"]
    for value in (b"second", b"third"):
        with opened(tmp_path) as log:
            assert [Path(each.path).name for each in log.replicas().directories] == [
                "d2",
                "d1",
                "d3",
            ]
            send(log, value)
            assert isr(log) == [1, 2, 3]
    assert [member.path for member in recorded(tmp_path / "d1")] == [
        str(tmp_path / name) for name in ("d2", "d1", "d3")
    ]


@pytest.mark.parametrize("given", [("d1", "d3"), ("d1", "d2", "d3")])
def test_a_directory_at_the_path_of_a_lost_one_is_used(
    tmp_path: Path, given: tuple[str, ...]
) -> None:
    made(tmp_path)
    removed(tmp_path / "d1")
    (tmp_path / "d2").rename(tmp_path / "d1")
    for _ in range(2):
        with embedlog.open([tmp_path / name for name in given], config=QUIET) as log:
            log.housekeep()
            send(log, b"second")
            found = {each.node: each for each in log.replicas().directories}
            assert [each.answers for each in found.values()] == [False, True, True]
            assert found[2].path == str(tmp_path / "d1")
            assert isr(log) == [2, 3]
    (tmp_path / "removed").rename(tmp_path / "d2")
    with opened(tmp_path) as log:
        log.housekeep()
        assert isr(log) == [1, 2, 3]
        assert values(log) == [b"first", b"second", b"second"]
    assert [member.path for member in recorded(tmp_path / "d3")] == [
        str(tmp_path / name) for name in ("d2", "d1", "d3")
    ]


def test_directories_that_were_not_given_are_opened_by_their_recorded_paths(tmp_path: Path) -> None:
    made(tmp_path)
    with embedlog.open(paths(tmp_path)[:2], config=QUIET) as log:
        send(log, b"second")
        assert isr(log) == [1, 2, 3]


def test_a_copy_of_a_whole_set_does_not_use_directories_of_the_first_one(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    made(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    before = content(tmp_path / "a")
    with embedlog.open(paths(tmp_path / "b")[:2], config=QUIET) as log:
        send(log, b"second")
        assert isr(log) == [1, 2]
    assert content(tmp_path / "a") == before


# ---- without a majority --------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 3])
def test_without_a_majority_it_opens_for_reading_and_acks_1(tmp_path: Path, count: int) -> None:
    made(tmp_path, count)
    for node in range(2, count + 1):
        (tmp_path / f"d{node}").rename(tmp_path / f"away{node}")
    with opened(tmp_path, count) as log:
        assert values(log) == [b"first"]
        send(log, b"second", acks=1, enable_idempotence=False)
        assert values(log) == [b"first"], "nothing is committed"
        with pytest.raises(NotEnoughReplicasError) as refused:
            log._engine.partition("t", 0).append(run_of(b"third"))
        assert refused.value.required < 64
        assert set(refused.value.away) == set(range(2, count + 1))
        with pytest.raises(NotEnoughDirectoriesError):
            log.create_topic("u")
        for node in range(2, count + 1):
            (tmp_path / f"away{node}").rename(tmp_path / f"d{node}")
        log.housekeep()
        send(log, b"fourth")
        assert values(log) == [b"first", b"fourth", b"second"]
    with opened(tmp_path, count) as log:
        log.housekeep()
        assert isr(log) == list(range(1, count + 1))
        assert values(log) == [b"first", b"fourth", b"second"]


def test_a_new_set_begins_with_all_of_its_directories(tmp_path: Path) -> None:
    (tmp_path / "d2").write_bytes(b"a file")
    with pytest.raises(embedlog.EmbedlogError):
        opened(tmp_path)


# ---- read-only -----------------------------------------------------------------------------------


def test_a_set_opens_read_only_without_a_change(tmp_path: Path) -> None:
    made(tmp_path)
    before = content(tmp_path)
    with embedlog.open(paths(tmp_path), read_only=True) as log:
        assert log.topics() == ["t"]
        assert values(log) == [b"first"]
        with pytest.raises(embedlog.ReadOnlyError):
            log.producer()
    assert content(tmp_path) == before
    removed(tmp_path / "d1")
    with embedlog.open(paths(tmp_path), read_only=True) as log:
        assert values(log) == [b"first"]


def test_a_read_only_set_follows_its_writers(tmp_path: Path) -> None:
    made(tmp_path)
    with opened(tmp_path) as log, embedlog.open(paths(tmp_path), read_only=True) as reader:
        assert values(reader) == [b"first"]
        send(log, b"second")
        assert values(reader) == [b"first", b"second"]


# ---- what is no set ------------------------------------------------------------------------------


def given_twice(root: Path) -> list[Path]:
    return [*paths(root), root / "d1"]


def given_twice_by_a_link(root: Path) -> list[Path]:
    (root / "link").symlink_to(root / "d2")
    return [root / "d1", root / "d2", root / "link"]


def of_another_cluster(root: Path) -> list[Path]:
    with embedlog.open([root / "other"], config=QUIET):
        pass
    return [root / "d1", root / "d2", root / "other"]


def with_a_clone(root: Path) -> list[Path]:
    shutil.copytree(root / "d3", root / "clone")
    return [*paths(root), root / "clone"]


def with_a_log_of_its_own(root: Path) -> list[Path]:
    with embedlog.open(root / "alone", config=QUIET) as log:
        log.create_topic("x")
    return [root / "d1", root / "alone"]


@pytest.mark.parametrize(
    "wrong",
    [given_twice, given_twice_by_a_link, of_another_cluster, with_a_clone, with_a_log_of_its_own],
)
def test_a_wrong_list_of_directories_is_refused_and_changes_nothing(
    tmp_path: Path, wrong: Callable[[Path], list[Path]]
) -> None:
    made(tmp_path)
    given = wrong(tmp_path)
    before = content(tmp_path)
    with pytest.raises(ReplicaSetError) as refused:
        embedlog.open(given, config=QUIET)
    assert refused.value.paths
    assert all(os.fspath(tmp_path) in path for path in refused.value.paths)
    assert content(tmp_path) == before


def test_one_directory_of_a_set_is_not_written_alone(tmp_path: Path) -> None:
    made(tmp_path)
    before = content(tmp_path)
    with pytest.raises(ReplicaSetError) as refused:
        embedlog.open(tmp_path / "d2", config=QUIET)
    assert refused.value.paths == [os.fspath(tmp_path / f"d{node}") for node in (2, 1, 3)]
    assert content(tmp_path) == before
    with embedlog.open(tmp_path / "d2", read_only=True) as alone:
        assert values(alone) == [b"first"]


def test_a_directory_that_a_broker_holds_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    made(tmp_path)
    before = content(tmp_path)
    with open(tmp_path / "d3" / file_names.BROKER_LOCK, "rb+") as held:
        assert system.lock_try(held.fileno(), True) == 0
        with pytest.raises(DirectoryInUseError) as refused:
            opened(tmp_path)
    assert refused.value.path == tmp_path / "d3" / file_names.BROKER_LOCK or "d3" in str(
        refused.value.path
    )
    assert content(tmp_path) == before


def test_more_directories_than_a_wait_follows_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ReplicaSetError, match="number of directories"):
        opened(tmp_path, waits.DIRECTORIES_MAX + 1)
    with pytest.raises(ReplicaSetError, match="number of directories"):
        embedlog.open([], config=QUIET)
    assert not list(tmp_path.iterdir())


def test_a_list_of_one_is_a_set_of_one(tmp_path: Path) -> None:
    with embedlog.open([tmp_path / "d1"], config=QUIET) as log:
        log.create_topic("t")
        send(log, b"first")
        with pytest.raises(embedlog.InvalidReplicationFactorError):
            log.create_topic("u", replication_factor=2)
        assert log.topics() == ["t"]
    with embedlog.open([tmp_path / "d1"], config=QUIET) as log:
        assert values(log) == [b"first"]


# ---- racks and advice ----------------------------------------------------------------------------


def racks(log: embedlog.Log) -> list[str | None]:
    return [
        each.rack for _, each in sorted(log._engine.set.decisions.counted_state().nodes.items())
    ]


def test_racks_are_given_at_the_opening_and_remembered(tmp_path: Path) -> None:
    with embedlog.open(paths(tmp_path), racks=["a", "b", "a"], config=QUIET) as log:
        assert racks(log) == ["a", "b", "a"]
        log.create_topic("t", 4, replication_factor=2)
        state = log._engine.set.decisions.counted_state()
        assert all(2 in each.replicas for each in state.partitions.values()), (
            "each partition is in both racks"
        )
    with opened(tmp_path) as log:
        assert racks(log) == ["a", "b", "a"]
    with embedlog.open(paths(tmp_path), racks=["x", "y", "z"], config=QUIET) as log:
        assert racks(log) == ["x", "y", "z"]
    with opened(tmp_path) as log:
        assert racks(log) == ["x", "y", "z"]


@pytest.mark.parametrize("wrong", [["a"], ["a", None, "b"], ["a", "", "b"], [1, 2, 3]])
def test_wrong_racks_change_nothing(tmp_path: Path, wrong: list[str | None]) -> None:
    with pytest.raises((ReplicaSetError, TypeError)):
        embedlog.open(paths(tmp_path), racks=wrong, config=QUIET)
    assert not list(tmp_path.iterdir())
    with pytest.raises(TypeError, match="list of directories"):
        embedlog.open(tmp_path / "d1", racks=["a"], config=QUIET)


def test_racks_of_some_directories_are_refused_if_others_have_none(tmp_path: Path) -> None:
    """Otherwise no topic could be placed from then on."""
    made(tmp_path)
    with pytest.raises(ReplicaSetError, match="give racks for all"):
        embedlog.open(paths(tmp_path, 2), racks=["a", "b"], config=QUIET)
    with opened(tmp_path, 2) as log:
        assert racks(log) == [None, None, None]
        log.create_topic("u", replication_factor=2)
    removed(tmp_path / "d2")
    (tmp_path / "d1").rename(tmp_path / "d2")
    for _ in range(2):  # the path of node 2 has another directory, which is node 1
        with pytest.raises(ReplicaSetError, match="give racks for all"):
            embedlog.open([tmp_path / "d2", tmp_path / "d3"], racks=["a", "b"], config=QUIET)
        with embedlog.open([tmp_path / "d2", tmp_path / "d3"], config=QUIET) as log:
            assert racks(log) == [None, None, None]


def test_a_rack_that_no_file_can_have_is_refused_before_the_set_up(tmp_path: Path) -> None:
    with pytest.raises(ReplicaSetError, match="UTF-8"):
        embedlog.open(paths(tmp_path, 2), racks=["\ud800", "b"], config=QUIET)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_new_set_of_two_recommends_a_witness_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, count: int
) -> None:
    for _ in range(2):
        with caplog.at_level("INFO", "embedlog"), opened(tmp_path, count):
            pass
    assert caplog.text.count("add_directory") == (count == 2)
