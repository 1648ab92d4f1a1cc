"""A set shrinks to one directory, which opens by its path, and grows again."""

from __future__ import annotations

import errno
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog._native import system
from embedlog.errors import ReplicaSetError, StorageError
from embedlog.replicas.decisions import copies
from embedlog.replicas.members.growth import SetGrowth
from embedlog.storage import file_names
from tests.support.adopted_logs import (
    QUIET,
    check_everything,
    filled,
    moved,
    opened,
    send,
    together,
    use,
    values,
)
from tests.support.opened_sets import content
from tests.support.replica_directories import CHANGES


def test_a_set_shrinks_to_one_directory_that_opens_by_its_path(tmp_path: Path) -> None:
    with together(tmp_path, 1, 2) as log:
        log.add_directory(tmp_path / "witness", replicas=False)
        log.create_topic("t", config={"retention.ms": "-1"}, assignment={0: [2, 1]})
        send(log, b"first")
        moved(log, [1])
        log.retire_directory(2)
        log.retire_directory(3)
        send(log, b"second")
    for path in (tmp_path / "d2", tmp_path / "witness"):
        before = content(path)
        with opened(tmp_path / "d1") as log, pytest.raises(ReplicaSetError):
            log.add_directory(path)
        with embedlog.open([tmp_path / "d1", path], config=QUIET) as log:
            assert [each.node for each in log.replicas().directories] == [1], (
                "what was retired is not used"
            )
        assert content(path) == before
    with opened(tmp_path / "d1") as log, opened(tmp_path / "d1") as other:
        send(other, b"third")
        send(log, b"fourth")
        assert values(log) == [b"first", b"second", b"third", b"fourth"]
    with (
        embedlog.open(tmp_path / "d1", alone=True, config=QUIET) as log,
        together(tmp_path, 1) as other,
    ):
        send(other, b"fifth")
        send(log, b"sixth")
        assert log.add_directory(tmp_path / "d4") == 4
        assert values(log)[-2:] == [b"fifth", b"sixth"]


@pytest.mark.slow
def test_groups_and_transactions_continue_in_a_set_that_shrank(tmp_path: Path) -> None:
    filled(tmp_path / "d1")
    with opened(tmp_path / "d1") as log:
        log.add_directory(tmp_path / "d2")
        log.add_directory(tmp_path / "d3")
        moved(log, [2, 3])
        use(log, b"in the set")
        moved(log, [1])
        log.retire_directory(2)
        log.retire_directory(3)
    with opened(tmp_path / "d1") as log:
        check_everything(log, b"in the set")
        use(log, b"after it")
        check_everything(log, b"in the set", b"after it")


def test_a_retired_directory_forgets_the_decisions_of_its_set_when_it_grows(tmp_path: Path) -> None:
    with together(tmp_path, 1, 2) as log:
        log.create_topic("former", assignment={0: [1]})
        log.retire_directory(2)
    with opened(tmp_path / "d2") as log:
        assert log.topics() == []
        log.create_topic("t")
        send(log, b"first")
        assert log.add_directory(tmp_path / "d5") == 3
        assert log.topics() == ["t"]
        moved(log, [3])
        assert values(log) == [b"first"]


@pytest.mark.parametrize("step", ["append", "sync"])
@pytest.mark.parametrize(
    ("node", "force", "again"),
    [(1, False, False), (2, False, False), (2, False, True), (1, True, True)],
)
def test_a_retirement_with_an_unknown_outcome_is_completed_by_the_same_call(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    node: int,
    *,
    force: bool,
    again: bool,
) -> None:
    """The decision fails in the copy of one of two directories: it is not known whether it
    counts.
    """
    real = getattr(copies.LockedCopy, step)

    def fails(copy: copies.LockedCopy, *args: Any) -> None:
        if copy.node == node:
            monkeypatch.setattr(copies.LockedCopy, step, real)
            raise StorageError("injected", errno=errno.EIO, path=copy.path)
        real(copy, *args)

    with together(tmp_path, 1, 2) as log:
        log.create_topic("t", assignment={0: [1]})
        send(log, b"first")
        monkeypatch.setattr(copies.LockedCopy, step, fails)
        with pytest.raises(embedlog.NotEnoughDirectoriesError, match="may count later"):
            log.retire_directory(2, force=force)
        log.retire_directory(2, force=again)
        with pytest.raises(ReplicaSetError, match="no directory of the set"):
            log.retire_directory(2)
    with opened(tmp_path / "d1") as log:
        assert values(log) == [b"first"]
    assert (tmp_path / "d2" / file_names.REPLICAS).exists() == force, (
        "only a directory that left in order is released"
    )


@pytest.mark.parametrize("step", ["record", "_release"])
@pytest.mark.parametrize("force", [False, True])
def test_a_retirement_that_was_interrupted_after_its_decision_is_completed_by_the_same_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, *, force: bool
) -> None:
    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    with together(tmp_path, 1, 2) as log:
        log.create_topic("t", assignment={0: [1]})
        send(log, b"first")
        real = getattr(SetGrowth, step)
        monkeypatch.setattr(SetGrowth, step, interrupted)
        with pytest.raises(KeyboardInterrupt):
            log.retire_directory(2)
        monkeypatch.setattr(SetGrowth, step, real)
    with together(tmp_path, 1, 2) as log:
        assert [each.node for each in log.replicas().directories] == [1]
        log.retire_directory(2, force=force)
    assert not (tmp_path / "d2" / file_names.REPLICAS).exists()
    for path, wanted in ((tmp_path / "d1", ["t"]), (tmp_path / "d2", [])):
        with opened(path) as log:
            assert log.topics() == wanted


def test_a_retirement_that_another_thread_notices_first_releases_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with together(tmp_path, 1, 2) as log:
        log.create_topic("t", assignment={0: [1]})
        members = log._engine.set.members  # type: ignore[attr-defined]
        decide = members.decisions.decide
        open_after = list[list[int]]()

        def noticed(make_event: Any, *args: Any, **options: Any) -> Any:
            found = decide(make_event, *args, **options)
            if 2 not in members.decisions.counted_state().nodes:
                members.tend(by_hand=True)
                open_after.append([each.node for each in members.open_members()])
            return found

        monkeypatch.setattr(members.decisions, "decide", noticed)
        log.retire_directory(2)
        assert open_after == [[1]]
    assert not (tmp_path / "d2" / file_names.REPLICAS).exists()
    with opened(tmp_path / "d2") as log:
        assert log.topics() == []


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_last_retirement_can_be_killed_before_every_system_call(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    with together(tmp_path / "set", 1, 2) as log:
        log.create_topic("t", assignment={0: [2, 1]})
        send(log, b"first", b"second")
    for nth in range(1, 1000):
        root = tmp_path / str(nth)
        shutil.copytree(tmp_path / "set", root)
        child = os.fork()
        if child == 0:
            try:
                with together(root, 1, 2) as log:
                    moved(log, [1])
                    system.fault_arm(CHANGES, nth, "kill_before")
                    log.retire_directory(2)
                    system.fault_off()
                os._exit(0)
            finally:
                os._exit(1)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code in (0, -signal.SIGKILL), code
        try:
            log = opened(root / "d1")
        except ReplicaSetError:
            log = together(root, 1, 2)
        with log:
            assert values(log) == [b"first", b"second"]
            send(log, b"third")
            if 2 in {each.node for each in log.replicas().directories}:
                log.retire_directory(2)
        shutil.rmtree(root / "d2")
        with opened(root / "d1") as log:
            assert values(log) == [b"first", b"second", b"third"]
            assert [each.node for each in log.replicas().directories] == [1]
        shutil.rmtree(root)
        if not code:
            assert nth > 10
            return
    raise AssertionError("the process is always killed")
