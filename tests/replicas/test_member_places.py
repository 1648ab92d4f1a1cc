"""Copies of a set beside it, and sets that were moved: which directories are used that were not
given.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import embedlog
from embedlog.errors import EmbedlogError
from embedlog.replicas.members import membership
from tests.support.growing_sets import nodes
from tests.support.opened_sets import QUIET, content, isr, send, values

NODES = (1, 2, 3)
LIMITED = {**QUIET, "lock_timeout_ms": 300}


def opened(root: Path, *names: str, read_only: bool = False) -> embedlog.Log:
    return embedlog.open([root / name for name in names], config=LIMITED, read_only=read_only)


def made(root: Path, count: int = 3) -> None:
    """A set with one record in every directory."""
    with opened(root, *(f"d{node}" for node in range(1, count + 1))) as log:
        log.create_topic("t", assignment={0: list(range(1, count + 1))})
        send(log, b"first")


def copied(root: Path, *numbers: int) -> None:
    for node in numbers:
        shutil.copytree(root / f"d{node}", root / f"c{node}")


def used(log: embedlog.Log) -> list[str]:
    """The names of the directories that the log uses, after it looked for those that are away."""
    found = log._engine.set.members
    found.tend(by_hand=True)
    return [Path(each.path).name for each in log.replicas().directories if each.reason is None]


def reason(log: embedlog.Log, node: int) -> str:
    return next(str(each.reason) for each in log.replicas().directories if each.node == node)


# ---- a copy of the set -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("read_only", [False, True])
def test_a_copy_of_two_directories_does_not_use_the_third_one_of_the_original(
    tmp_path: Path, *, read_only: bool
) -> None:
    """Neither at its opening, nor later, nor after the copy has registered its own paths."""
    made(tmp_path)
    copied(tmp_path, 1, 2)
    before = content(tmp_path / "d3")
    for _ in range(2):
        with opened(tmp_path, "c1", "c2", read_only=read_only) as log:
            assert used(log) == ["c1", "c2"]
            assert "recorded beside others" in reason(log, 3)
            if not read_only:
                send(log, b"in the copy")
                assert isr(log) == [1, 2]
            assert used(log) == ["c1", "c2"]
    assert content(tmp_path / "d3") == before
    with opened(tmp_path, "d1", "d2", "d3") as log:
        assert (isr(log), values(log)) == ([1, 2, 3], [b"first"])


def test_a_copy_does_not_use_the_original_whose_other_directories_are_absent(
    tmp_path: Path,
) -> None:
    made(tmp_path)
    copied(tmp_path, 1, 2)
    for node in (1, 2):
        (tmp_path / f"d{node}").rename(tmp_path / f"removed{node}")
    before = content(tmp_path / "d3")
    with opened(tmp_path, "c1", "c2") as log:
        assert used(log) == ["c1", "c2"]
    assert content(tmp_path / "d3") == before


def test_a_witness_of_the_original_does_not_vote_in_a_copy(tmp_path: Path) -> None:
    made(tmp_path, 2)
    with opened(tmp_path, "d1", "d2") as log:
        log.add_directory(tmp_path / "d3", replicas=False)
    copied(tmp_path, 1)
    before = content(tmp_path / "d3")
    with opened(tmp_path, "c1", "absent") as log:
        assert used(log) == ["c1"]
        with pytest.raises(EmbedlogError):
            log.create_topic("u")
    assert content(tmp_path / "d3") == before


def test_a_directory_of_the_copy_that_comes_later_is_used(tmp_path: Path) -> None:
    """It was given, and is found there although the decision log has the path of the original."""
    made(tmp_path)
    copied(tmp_path, 1, 2, 3)
    (tmp_path / "c3").rename(tmp_path / "later")
    before = content(tmp_path / "d3")
    with opened(tmp_path, "c1", "c2", "c3") as log:
        assert used(log) == ["c1", "c2"]
        send(log, b"in the copy")
        (tmp_path / "later").rename(tmp_path / "c3")
        assert used(log) == ["c1", "c2", "c3"]
        log.housekeep()
        assert isr(log) == [1, 2, 3]
    assert content(tmp_path / "d3") == before


@pytest.mark.parametrize("all_at_once", [False, True])
def test_a_copy_of_all_directories_is_used_beside_the_original(
    tmp_path: Path, *, all_at_once: bool
) -> None:
    """Also if one of them is restored after the others, while a process uses the original."""
    made(tmp_path)
    copied(tmp_path, *NODES)
    with opened(tmp_path, "d1", "d2", "d3") as original:
        if not all_at_once:
            (tmp_path / "c3").rename(tmp_path / "later")
            with opened(tmp_path, "c1", "c2", "c3") as log:
                assert used(log) == ["c1", "c2"]
            (tmp_path / "later").rename(tmp_path / "c3")
        with opened(tmp_path, "c1", "c2", "c3") as log:
            send(log, b"in the copy")
            assert used(log) == ["c1", "c2", "c3"]
        send(original, b"in the original")
        assert (isr(original), values(original)) == ([1, 2, 3], [b"first", b"in the original"])


def test_a_given_directory_of_the_original_is_used_by_a_copy(tmp_path: Path) -> None:
    """The list of the caller has more weight than what the files have."""
    made(tmp_path)
    copied(tmp_path, 1, 2)
    with opened(tmp_path, "c1", "c2", "d3") as log:
        assert used(log) == ["c1", "c2", "d3"]


# ---- a set that was moved --------------------------------------------------------------------------------------


def by_rename(root: Path, node: int) -> str:
    (root / f"d{node}").rename(root / f"m{node}")
    return f"m{node}"


def by_link(root: Path, node: int) -> str:
    (root / f"m{node}").symlink_to(root / f"d{node}")
    return f"m{node}"


def by_rename_with_a_link(root: Path, node: int) -> str:
    (root / f"d{node}").rename(root / f"m{node}")
    (root / f"d{node}").symlink_to(root / f"m{node}")
    return f"m{node}"


@pytest.mark.parametrize("move", [by_rename, by_link, by_rename_with_a_link])
def test_a_directory_that_was_not_given_is_used_beside_a_moved_one(
    tmp_path: Path, move: Callable[[Path, int], str]
) -> None:
    made(tmp_path)
    given = [move(tmp_path, 1), "d2"]
    for _ in range(2):
        with opened(tmp_path, *given) as log:
            assert used(log) == [given[0], "d2", "d3"]
            assert isr(log) == [1, 2, 3]


@pytest.mark.parametrize("move", [by_link, by_rename_with_a_link])
def test_other_paths_to_all_given_directories_are_no_other_places(
    tmp_path: Path, move: Callable[[Path, int], str]
) -> None:
    made(tmp_path)
    given = [move(tmp_path, node) for node in (1, 2)]
    for _ in range(2):
        with opened(tmp_path, *given) as log:
            assert used(log) == [*given, "d3"]


def test_the_rest_of_a_moved_set_is_given_once(tmp_path: Path) -> None:
    """Nothing distinguishes such directories from a copy whose original is absent."""
    made(tmp_path)
    given = [by_rename(tmp_path, node) for node in (1, 2)]
    with opened(tmp_path, *given) as log:
        assert used(log) == given
    with opened(tmp_path, *given, "d3") as log:
        assert used(log) == [*given, "d3"]
    with opened(tmp_path, *given) as log:
        assert used(log) == [*given, "d3"]


@contextlib.contextmanager
def returned_elsewhere(root: Path) -> Iterator[embedlog.Log]:
    """The directory d1 is absent at the opening, and returns at the given path m1."""
    (root / "d1").rename(root / "absent")
    with opened(root, "m1", "d2") as log:
        (root / "absent").rename(root / "m1")
        assert used(log) == ["m1", "d2", "d3"]
        yield log


def test_all_directories_record_the_place_to_which_one_returned(tmp_path: Path) -> None:
    made(tmp_path)
    with returned_elsewhere(tmp_path):
        pass
    (tmp_path / "d2").rename(tmp_path / "lost")
    with opened(tmp_path, "m1", "d2") as log:
        assert used(log) == ["m1", "d3"]
        send(log, b"second")


def test_a_copy_of_a_directory_in_use_is_not_used_beside_one_that_returned_elsewhere(
    tmp_path: Path,
) -> None:
    made(tmp_path)
    with returned_elsewhere(tmp_path) as log:
        copied(tmp_path, 2)
        with opened(tmp_path, "m1", "c2") as other:
            assert "not the registered one" in (other.replicas().directories[1].reason or "")
            other.housekeep()
            assert used(other) == ["m1", "d2", "d3"]
        send(log, b"second")
        assert values(log) == [b"first", b"second"]


def test_a_set_that_was_moved_as_a_whole_opens(tmp_path: Path) -> None:
    made(tmp_path)
    given = [by_rename(tmp_path, node) for node in NODES]
    (tmp_path / given[2]).rename(tmp_path / "later")
    with opened(tmp_path, *given) as log:
        assert used(log) == given[:2]
        (tmp_path / "later").rename(tmp_path / given[2])
        assert used(log) == given
    with opened(tmp_path, *given) as log:
        assert (isr(log), values(log)) == ([1, 2, 3], [b"first"])


# ---- members that were added, and that return ------------------------------------------------------------------


def test_a_process_follows_to_directories_of_which_none_was_open(tmp_path: Path) -> None:
    """All directories that it has open leave the set before it looks again."""
    made(tmp_path, 1)
    with opened(tmp_path, "d1") as log, opened(tmp_path, "d1") as other:
        node = other.add_directory(tmp_path / "d2")
        other.reassign({embedlog.TopicPartition("t", 0): [node]})
        other.retire_directory(1)
        assert used(log) == ["d2"]
        assert (nodes(log), values(log)) == ([2], [b"first"])


def test_a_member_of_another_generation_does_not_return(tmp_path: Path) -> None:
    """It has retired the open directory by force: the process does not go over to its side."""
    made(tmp_path, 2)
    (tmp_path / "d2").rename(tmp_path / "side")
    with opened(tmp_path, "d1", "d2") as log:
        assert used(log) == ["d1"]
        with opened(tmp_path, "side", "absent") as other:
            other.retire_directory(1, force=True)
            send(other, b"without d1")
        (tmp_path / "side").rename(tmp_path / "d2")
        found = membership.read(tmp_path / "d2")
        assert found is not None
        assert found.cluster_generation == 1
        before = content(tmp_path / "d2")
        assert used(log) == ["d1"]
        assert "generation" in reason(log, 2)
        assert (nodes(log), values(log)) == ([1, 2], [b"first"])
        assert content(tmp_path / "d2") == before
