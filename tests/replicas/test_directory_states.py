"""The standing of each directory of a set in a process: from its opening to its end."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog.errors import StorageError
from embedlog.replicas.members import member_directories
from embedlog.replicas.members.directory_states import DirectoryStanding
from embedlog.replicas.members.set_members import SetMembers
from tests.support.opened_sets import QUIET, made, opened, paths

ATTACHED = DirectoryStanding.ATTACHED
REGISTERED = DirectoryStanding.REGISTERED
AWAY = DirectoryStanding.AWAY


def members_of(log: embedlog.Log) -> SetMembers:
    return log._engine.set.members  # type: ignore[attr-defined, no-any-return]


def standings(log: embedlog.Log) -> dict[int, DirectoryStanding]:
    return {node: members_of(log)._states.standing(node) for node in (1, 2, 3)}


def remove_others(root: Path) -> None:
    """Without a majority: d2 and d3 are absent."""
    for name in ("d2", "d3"):
        (root / name).rename(root / f"absent-{name}")


def return_others(root: Path) -> None:
    for name in ("d2", "d3"):
        (root / f"absent-{name}").rename(root / name)


def test_the_directories_of_an_open_set_are_registered(tmp_path: Path) -> None:
    made(tmp_path)
    with opened(tmp_path) as log:
        assert standings(log) == {1: REGISTERED, 2: REGISTERED, 3: REGISTERED}
        with embedlog.open(paths(tmp_path), read_only=True, config=QUIET) as reader:
            assert standings(reader) == {1: ATTACHED, 2: ATTACHED, 3: ATTACHED}


def test_without_a_majority_a_directory_stays_attached_until_the_others_return(
    tmp_path: Path,
) -> None:
    made(tmp_path)
    remove_others(tmp_path)
    with opened(tmp_path) as log:
        assert standings(log) == {1: ATTACHED, 2: AWAY, 3: AWAY}
        return_others(tmp_path)
        members_of(log).tend(by_hand=True)
        assert standings(log) == {1: REGISTERED, 2: REGISTERED, 3: REGISTERED}


def test_a_directory_that_waits_for_its_registration_and_fails_to_open_again_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was still to be registered, and the lookup of its opening raised KeyError."""
    made(tmp_path)
    remove_others(tmp_path)

    def fail(*arguments: Any, **keywords: Any) -> Any:
        raise StorageError("a lost disk", errno=errno.EIO, path=tmp_path / "d1")

    with opened(tmp_path) as log:
        members = members_of(log)
        members.directories.fail(1, StorageError("a lost disk", path=tmp_path / "d1"))
        with monkeypatch.context() as patched:
            patched.setattr(member_directories, "is_unchanged", lambda opened: False)
            patched.setattr(member_directories, "enter", fail)
            members.tend(by_hand=True)
        assert standings(log) == {1: AWAY, 2: AWAY, 3: AWAY}
        return_others(tmp_path)
        members.tend(by_hand=True)
        assert standings(log) == {1: REGISTERED, 2: REGISTERED, 3: REGISTERED}
