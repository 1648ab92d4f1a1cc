"""Directories of two sets with one history are distinguished by the members that each of them
names.
"""

from __future__ import annotations

import contextlib
import errno
from pathlib import Path

import pytest

import embedlog
from embedlog.errors import ReplicaSetError
from embedlog.replicas.members import growth, membership
from embedlog.storage import file_names
from tests.support.growing_sets import nodes, recorded
from tests.support.opened_sets import QUIET, content, made, send, values
from tests.support.replica_directories import failing

LIMITED = {**QUIET, "lock_timeout_ms": 300}


def opened(root: Path, *names: str) -> embedlog.Log:
    return embedlog.open([root / name for name in names], config=LIMITED)


def check_refused(root: Path, *names: str) -> None:
    """The list is refused in each order, also for reading, and nothing is changed."""
    before = content(root)
    for order in (names, names[::-1]):
        for read_only in (False, True):
            with pytest.raises(ReplicaSetError, match="two sets: "):
                embedlog.open([root / name for name in order], config=LIMITED, read_only=read_only)
    assert content(root) == before


# ---- a retired directory that is the first of another set ------------------------------------------------------


def grown_elsewhere(root: Path) -> None:
    """The directory d2, which left its set, becomes a set with `other`."""
    with embedlog.open(root / "d2", config=QUIET) as log:
        log.create_topic("u")
        log.add_directory(root / "other")
        for number in range(3):
            log.create_topic(f"later{number}")


def test_a_retired_directory_that_became_a_set_is_not_opened_with_its_earlier_set(
    tmp_path: Path,
) -> None:
    with opened(tmp_path, "d1", "d2") as log:
        log.create_topic("t", assignment={0: [1]})
        send(log, b"first")
        log.retire_directory(2)
    grown_elsewhere(tmp_path)
    check_refused(tmp_path, "d1", "d2")
    with opened(tmp_path, "d1") as log:
        assert (nodes(log), log.topics(), values(log)) == ([1], ["t"], [b"first"])
    with opened(tmp_path, "d2", "other") as log:
        assert (nodes(log), log.topics()) == ([2, 3], ["later0", "later1", "later2", "u"])


@pytest.mark.parametrize("stopped", [False, True])
def test_a_directory_that_was_away_does_not_connect_two_sets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, stopped: bool
) -> None:
    """Its file names the retired directory, which another set has now. `stopped`: within the
    release of that directory.
    """

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with opened(tmp_path, "d1", "d2", "d3", "d4") as log:
        log.create_topic("t", assignment={0: [3]})
        send(log, b"first")
    (tmp_path / "d1").rename(tmp_path / "removed")
    with opened(tmp_path, "d1", "d2", "d3", "d4") as log, monkeypatch.context() as patch:
        if stopped:
            patch.setattr(growth, "write_meta", stop)
        with pytest.raises(KeyboardInterrupt) if stopped else contextlib.nullcontext():
            log.retire_directory(2)
    (tmp_path / "removed").rename(tmp_path / "d1")
    assert [recorded(tmp_path / name) for name in ("d1", "d3")] == [[1, 2, 3, 4], [1, 3, 4]]
    assert not (tmp_path / "d2" / file_names.REPLICAS).exists()
    grown_elsewhere(tmp_path)
    check_refused(tmp_path, "d1", "d2", "d3", "d4")
    with opened(tmp_path, "d1", "d3", "d4") as log:
        assert (nodes(log), values(log)) == ([1, 3, 4], [b"first"])


def test_a_retired_directory_of_the_set_is_away_until_it_is_another_one(tmp_path: Path) -> None:
    with opened(tmp_path, "d1", "d2") as log:
        log.create_topic("t", assignment={0: [1]})
        send(log, b"first")
        log.retire_directory(2)
    with embedlog.open(tmp_path / "d2", config=QUIET) as log:
        log.create_topic("u")
    with opened(tmp_path, "d1", "d2") as log:
        assert (nodes(log), log.topics(), values(log)) == ([1], ["t"], [b"first"])


def test_a_directory_that_left_while_it_was_away_is_away_with_later_members(tmp_path: Path) -> None:
    """It names the members of its time, and the directory that was added after it left does not
    name it.
    """
    made(tmp_path)
    (tmp_path / "d3").rename(tmp_path / "removed")
    with opened(tmp_path, "d1", "d2", "d3") as log:
        log.reassign({embedlog.TopicPartition("t", 0): [1, 2]})
        log.retire_directory(3)
        log.add_directory(tmp_path / "d4")
    (tmp_path / "removed").rename(tmp_path / "d3")
    with opened(tmp_path, "d1", "d2", "d3", "d4") as log:
        assert (nodes(log), values(log)) == ([1, 2, 4], [b"first"])
        assert [directory.path.name for directory in log._engine.directories] == ["d1", "d2", "d4"]


# ---- retirements by force --------------------------------------------------------------------------------------


def forced_out(root: Path, name: str, *others: str) -> None:
    """The process sees the other directories only."""
    (root / name).rename(root / "away")
    with opened(root, name, *others) as log:
        log.retire_directory(int(name[1:]), force=True)
        send(log, b"without " + name.encode())
    (root / "away").rename(root / name)


def test_two_directories_that_retired_each_other_are_two_sets(tmp_path: Path) -> None:
    made(tmp_path, 2)
    forced_out(tmp_path, "d2", "d1")
    forced_out(tmp_path, "d1", "d2")
    check_refused(tmp_path, "d1", "d2")
    for name, others in (("d1", b"without d2"), ("d2", b"without d1")):
        with opened(tmp_path, name) as log:
            assert values(log) == [b"first", others]


def test_a_member_that_was_away_during_a_retirement_by_force_is_a_member(tmp_path: Path) -> None:
    """It has the earlier generation; a directory of the present one names it."""
    made(tmp_path, 4)
    (tmp_path / "d3").rename(tmp_path / "removed")
    forced_out(tmp_path, "d4", "d1", "d2", "d3")
    (tmp_path / "removed").rename(tmp_path / "d3")
    found = membership.read(tmp_path / "d3")
    assert found is not None
    assert found.cluster_generation == 0
    with pytest.raises(ReplicaSetError, match="generation") as refused:
        opened(tmp_path, "d1", "d2", "d3", "d4")
    assert refused.value.paths == [str(tmp_path / "d4")]
    with opened(tmp_path, "d1", "d2", "d3") as log:
        assert values(log) == [b"first", b"without d4"]
        assert [directory.path.name for directory in log._engine.directories] == ["d1", "d2", "d3"]


def test_a_stop_between_the_records_of_a_forced_decision_is_completed(tmp_path: Path) -> None:
    """One of the directories that remain has the earlier generation then."""
    made(tmp_path)
    (tmp_path / "d3").rename(tmp_path / "lost")
    with (
        opened(tmp_path, "d1", "d2", "d3") as log,
        failing(("rename",), name=f"d2/{file_names.REPLICAS}", error=errno.EIO) as struck,
    ):
        log.retire_directory(3, force=True)
    assert struck.count
    assert [recorded(tmp_path / name) for name in ("d1", "d2")] == [[1, 2], [1, 2, 3]]
    with opened(tmp_path, "d1", "d2") as log:
        assert (nodes(log), values(log)) == ([1, 2], [b"first"])
    assert recorded(tmp_path / "d2") == [1, 2]
