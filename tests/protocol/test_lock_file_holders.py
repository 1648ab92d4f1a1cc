"""OPEN-1, OPEN-2 and OPEN-7 beside other holders of `.lock`: processes that are not embedlog; and
OPEN-8 beside embedlog processes that leave.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

import embedlog
from embedlog.coordination.directory import Directory
from embedlog.errors import DirectoryInUseError
from tests.faults.harness.processes import Nursery
from tests.faults.harness.stage import MARK, FakeBroker, Play


def test_a_bystander_who_holds_the_lock_file_shared_hides_no_clean_mark(
    nursery: Nursery, tmp_path: Path
) -> None:
    """Any process with read access can hold `.lock` shared. Joining it without an open log would
    keep the mark during writes.
    """
    play = Play(nursery, tmp_path / "log")
    bystander = nursery.spawn()
    assert bystander.call("lock_shared", str(tmp_path / "log" / ".lock"))
    one = play.enter()
    assert not (tmp_path / "log" / MARK).exists()
    play.append(one)
    other = play.enter()  # is not the first one
    play.append(other)
    one.kill()
    other.kill()
    third = play.enter()
    assert len(third.call("read")[0]) == 2
    play.append(third)


def test_a_bystander_after_a_restart_makes_nobody_join_who_is_not_there(
    nursery: Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = Play(nursery, tmp_path / "log")
    one = play.enter()
    play.append(one)
    one.kill()
    bystander = nursery.spawn()
    assert bystander.call("lock_shared", str(tmp_path / "log" / ".lock"))
    with embedlog.open(tmp_path / "log", config={"housekeeping": False}) as log:
        same = log._engine.home.directory.incarnation
    monkeypatch.setattr("embedlog.coordination.directory.boot_number", lambda: 12345)
    with embedlog.open(tmp_path / "log", config={"housekeeping": False}) as log:
        assert log._engine.home.directory.incarnation != same
        assert sum(1 for _ in log.scan("t").records()) == 1


def test_behind_a_brokers_visit_a_bystander_makes_nobody_join(
    nursery: Nursery, tmp_path: Path
) -> None:
    play = Play(nursery, tmp_path / "log")
    mark = tmp_path / "log" / MARK
    mark.unlink()
    mark.touch()
    bystander = nursery.spawn()
    assert bystander.call("lock_shared", str(tmp_path / "log" / ".lock"))
    with pytest.raises(
        DirectoryInUseError, match=rf"other than embedlog.*found pid {bystander.pid}"
    ):
        embedlog.open(tmp_path / "log")
    nursery.end(bystander)
    play.append(play.enter())


@pytest.mark.parametrize(("killed", "marked"), [(False, False), (False, True), (True, True)])
def test_what_a_broker_appended_is_not_written_over_beside_a_bystander(
    nursery: Nursery, tmp_path: Path, killed: bool, marked: bool
) -> None:
    """The control page is older than the broker's run: a process that joined it would publish its
    old end.
    """
    play = Play(nursery, tmp_path / "log")
    one = play.enter()
    play.append(one)
    one.kill() if killed else play.leave(one)
    broker = FakeBroker(tmp_path / "log")
    assert broker.start()
    broker.append(b"the broker's")
    if marked:
        broker.mark_and_unlock()
    else:
        broker.die()
    bystander = nursery.spawn()
    assert bystander.call("lock_shared", str(tmp_path / "log" / ".lock"))
    with pytest.raises(
        DirectoryInUseError, match=rf"other than embedlog.*found pid {bystander.pid}"
    ):
        embedlog.open(tmp_path / "log")
    with (
        contextlib.suppress(DirectoryInUseError),
        embedlog.open(tmp_path / "log", read_only=True) as log,
    ):
        assert sum(1 for _ in log.scan("t").records()) == 2
    nursery.end(bystander)
    with embedlog.open(tmp_path / "log") as log:
        assert sum(1 for _ in log.scan("t").records()) == 2


@pytest.fixture
def opened_before_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], list[Directory]]:
    """Start: the first process that releases its locks is delayed until another open has ended; the
    delayed ones are listed.
    """

    def start() -> list[Directory]:
        real = Directory.release
        seen = []

        def late(self: Directory) -> None:
            if not seen:
                seen.append(self)
                with embedlog.open(
                    tmp_path / "log", config={"housekeeping": False, "lock.timeout.ms": 500}
                ):
                    pass
            real(self)

        monkeypatch.setattr(Directory, "release", late)
        return seen

    return start


def test_who_leaves_is_taken_for_no_broker_by_who_comes_in_next(
    tmp_path: Path, opened_before_release: Callable[[], list[Directory]]
) -> None:
    """The last process holds `.lock` exclusively. It releases `.lock` before the open lock."""
    log = embedlog.open(tmp_path / "log", config={"housekeeping": False})
    seen = opened_before_release()
    log.close()
    assert seen


def test_who_fails_to_come_in_is_taken_for_no_broker_either(
    tmp_path: Path, opened_before_release: Callable[[], list[Directory]]
) -> None:
    def fails(first: bool) -> None:
        raise KeyError(first)

    seen = opened_before_release()
    tmp_path.joinpath("log").mkdir()
    directory = Directory(
        tmp_path / "log", read_only=False, mode=0o666, lock_timeout_ms=1000, shared="mapped"
    )
    with pytest.raises(KeyError):
        directory.enter(fails)
    assert seen
