"""Ctrl-C while a set is closed, or while a directory leaves it: no lock and no descriptor of its
directories remains.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog.admin.housekeeper import Housekeeper
from embedlog.engine.log_directory import LogDirectory
from embedlog.partition.partition import Partition
from embedlog.replicas.members.directory_states import DirectoryStates
from embedlog.replicas.members.set_members import SetMembers
from embedlog.replicas.replica_set import ReplicaSet
from tests.support.opened_sets import QUIET, isr, made, opened, paths, send, values

PLACES = [
    (Housekeeper, "stop"),
    (SetMembers, "set_marked_epochs"),
    (ReplicaSet, "close"),
    (LogDirectory, "_close_all"),
    (Partition, "close"),
]


def held(root: Path) -> list[str]:
    """The files below a directory that this process has open."""
    found = []
    for each in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{each}"))
    return [each for each in found if each.startswith(str(root))]


def interrupted_once(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> list[str]:
    """The first call of a method ends by an interrupt."""
    before = getattr(owner, name)
    calls = list[str]()

    def call(self: Any, *args: Any, **named: Any) -> Any:
        found = before(self, *args, **named)
        calls.append(name)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(owner, name, call)
    return calls


@pytest.mark.parametrize(("owner", "name"), PLACES, ids=[name for _, name in PLACES])
def test_an_interrupt_of_a_close_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: type, name: str
) -> None:
    made(tmp_path)
    log = embedlog.open(paths(tmp_path), config=QUIET | {"housekeeping": True})
    send(log, b"second")
    calls = interrupted_once(monkeypatch, owner, name)
    with pytest.raises(KeyboardInterrupt):
        log.close()
    assert calls
    assert log._engine.closed
    assert held(tmp_path) == []
    with opened(tmp_path) as again:
        again.housekeep()
        assert values(again) == [b"first", b"second"]
        assert isr(again) == [1, 2, 3]
        assert [each.state for each in again.replicas().directories] == ["live"] * 3


@pytest.mark.parametrize(("owner", "name"), [(LogDirectory, "leave"), (Partition, "close")])
def test_an_interrupt_while_a_directory_leaves_a_set_gives_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: type, name: str
) -> None:
    made(tmp_path)
    with opened(tmp_path) as log:
        log.reassign({embedlog.TopicPartition("t", 0): [1, 2]})
        log.housekeep()
        with monkeypatch.context() as patched:
            interrupted_once(patched, owner, name)
            with pytest.raises(KeyboardInterrupt):
                log.retire_directory(3)
        log.housekeep()
        assert [each.node for each in log.replicas().directories] == [1, 2]
        assert held(tmp_path / "d3") == []
        send(log, b"second")


@pytest.mark.parametrize(
    ("owner", "name"), [(SetMembers, "_note_away"), (DirectoryStates, "leave")]
)
def test_an_interrupt_while_a_stranger_is_left_gives_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: type, name: str
) -> None:
    made(tmp_path)
    shutil.copytree(tmp_path / "d1", tmp_path / "copy")
    with opened(tmp_path) as log:
        send(log, b"second")
    shutil.rmtree(tmp_path / "d1")
    (tmp_path / "copy").rename(tmp_path / "d1")
    with monkeypatch.context() as patched:
        interrupted_once(patched, owner, name)
        with pytest.raises(KeyboardInterrupt):
            opened(tmp_path)
    assert held(tmp_path) == []
    with opened(tmp_path) as log:
        log.replace_directory(1, tmp_path / "d1")
        log.housekeep()
        assert values(log) == [b"first", b"second"]
        assert isr(log) == [1, 2, 3]
