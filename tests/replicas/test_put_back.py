"""Registrations with an unknown outcome, and of killed processes, make no stranger of a
directory.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog._native import system
from embedlog.errors import NotEnoughDirectoriesError
from embedlog.replicas.decisions import copies
from embedlog.replicas.decisions.decision_log import DecisionLog
from embedlog.replicas.members import membership, registration
from tests.support.put_back_directories import (
    NODES,
    killed,
    killed_after,
    level,
    opened,
    send,
    values,
)
from tests.support.replica_directories import CHANGES, take_for_originals


def test_every_orderly_opening_has_new_broker_epochs(tmp_path: Path) -> None:
    before = [-1, -1, -1]
    for _ in range(3):
        with opened(tmp_path), opened(tmp_path):  # the second one registers nothing
            after = recorded(tmp_path)
        assert all(one < other for one, other in zip(before, after, strict=True))
        assert recorded(tmp_path) == after
        before = after


def recorded(root: Path) -> list[int]:
    found = [membership.read(root / f"d{node}") for node in NODES]
    return [each.broker_epoch for each in found if each is not None]


def check_none_is_a_stranger(
    root: Path, expected: list[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "embedlog"), opened(root) as log:
        assert values(log) == expected
        level(log)
    assert not [line for line in caplog.messages if "not the registered one" in line]


@pytest.mark.parametrize(
    "fault", [KeyboardInterrupt, NotEnoughDirectoriesError("unknown outcome", undecided=True)]
)
def test_a_registration_with_an_unknown_outcome_makes_no_stranger(
    tmp_path: Path,
    fault: BaseException,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The records of the registration are written; its process gets an error, and closes in
    order.
    """
    with opened(tmp_path) as log:
        log.create_topic("t", assignment={0: [2, 1, 3]})
        send(log, b"before")
    decided = DecisionLog.decide_all

    def failing(log: DecisionLog, *given: object, **options: object) -> None:
        decided(log, *given, **options)  # type: ignore[arg-type]
        raise fault

    with monkeypatch.context() as patch:
        patch.setattr(DecisionLog, "decide_all", failing)
        if isinstance(fault, NotEnoughDirectoriesError):
            opened(tmp_path).close()
        else:
            with pytest.raises(KeyboardInterrupt):
                opened(tmp_path)
    check_none_is_a_stranger(tmp_path, [b"before"], caplog)


def test_a_copy_of_a_closed_set_whose_first_process_was_killed_in_its_opening_has_no_strangers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The directories were moved to other disks by a copy. The process is killed before the
    registration.
    """
    moved = tmp_path / "moved"
    with opened(tmp_path) as log:
        log.create_topic("t", assignment={0: [2, 1, 3]})
        send(log, b"before")
    for node in NODES:
        shutil.copytree(tmp_path / f"d{node}", moved / f"d{node}")
        shutil.rmtree(tmp_path / f"d{node}")
    with monkeypatch.context() as patch:
        patch.setattr(
            DecisionLog,
            "decide_all",
            lambda *given, **options: os.kill(os.getpid(), signal.SIGKILL),
        )
        killed_after(moved, lambda log: None)
    check_none_is_a_stranger(moved, [b"before"], caplog)


def test_a_registration_that_a_killed_process_did_not_record_makes_no_stranger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A second process opens between entry and decision of the first one, outlives it, and closes
    in order.
    """
    with opened(tmp_path) as log:
        log.create_topic("t", assignment={0: [2, 1, 3]})
        send(log, b"before")
    entered, enter_done = os.pipe()
    may_decide, go = os.pipe()
    child = os.fork()
    if child == 0:
        register = registration.register

        def late(*given: object, **options: object) -> object:
            os.write(enter_done, b"x")
            os.read(may_decide, 1)
            return register(*given, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(registration, "register", late)
        monkeypatch.setattr(
            registration, "record", lambda *given, **options: os.kill(os.getpid(), signal.SIGKILL)
        )
        try:
            opened(tmp_path)
        finally:
            os._exit(1)
    os.close(enter_done)
    assert os.read(entered, 1) == b"x"
    second = opened(tmp_path)
    os.write(go, b"x")
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
    second.close()
    for fd in (entered, may_decide, go):
        os.close(fd)
    check_none_is_a_stranger(tmp_path, [b"before"], caplog)


# ---- the first process in the directories is killed at any step of its registration --------------


def registering(
    root: Path, arm: Callable[[], None], patch: pytest.MonkeyPatch
) -> Callable[[], bool]:
    """A process that is the first one in all directories waits before its decision.

    The result lets it continue, and returns whether it was killed.
    """
    entered, enter_done = os.pipe()
    may_decide, go = os.pipe()
    child = os.fork()
    if child == 0:
        register = registration.register

        def late(*given: Any, **options: Any) -> object:
            os.write(enter_done, b"x")
            os.read(may_decide, 1)
            arm()
            return register(*given, **options)

        patch.setattr(registration, "register", late)
        try:
            opened(root)
        finally:
            system.fault_off()
            os._exit(1)  # without an orderly close
    os.close(enter_done)
    assert os.read(entered, 1) == b"x"

    def proceed() -> bool:
        os.write(go, b"x")
        status = os.waitpid(child, 0)[1]
        for fd in (entered, may_decide, go):
            os.close(fd)
        return os.WIFSIGNALED(status)

    return proceed


def outlived(
    root: Path, arm: Callable[[], None], patch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another process enters before that decision, registers after the first one was killed, and
    closes in order.
    """
    assert ended_before(root, arm, patch)
    check_none_is_a_stranger(root, [b"before"], caplog)


def ended_before(root: Path, arm: Callable[[], None], patch: pytest.MonkeyPatch) -> bool:
    """Whether the first process was killed. A second one enters before its decision, and closes in
    order.
    """
    proceed = registering(root, arm, patch)
    ends = list[bool]()
    register = registration.register

    def after_the_first_one(*given: Any, **options: Any) -> object:
        if not ends:
            ends.append(proceed())
        return register(*given, **options)

    with patch.context() as patched:
        patched.setattr(registration, "register", after_the_first_one)
        opened(root).close()
    return ends[0]


def killed_at(method: str, call: int) -> Callable[[], None]:
    """Kill the process at this call of a method of the copies of the decision log."""

    def arm() -> None:
        original = getattr(copies.LockedCopy, method)
        calls = [0]

        def counting(*given: Any) -> object:
            calls[0] += 1
            if calls[0] == call:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*given)

        setattr(copies.LockedCopy, method, counting)

    return arm


@pytest.mark.sample(0.3)
@pytest.mark.parametrize(
    ("method", "call"),
    [("append", 2), ("append", 3), ("sync", 3), ("settle", 1), ("settle", 2), ("announce", 1)],
)
def test_a_registration_whose_process_was_killed_makes_no_stranger(
    tmp_path: Path,
    method: str,
    call: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its records may count or not: no other process can know that before the next decision."""
    with opened(tmp_path) as log:
        log.create_topic("t", assignment={0: [2, 1, 3]})
        send(log, b"before")
    outlived(tmp_path, killed_at(method, call), monkeypatch, caplog)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("before", ["closed", "killed"])
def test_a_registration_can_be_killed_before_every_system_call(
    tmp_path: Path, before: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "set").mkdir()
    with opened(tmp_path / "set") as log:
        log.create_topic("t", assignment={0: [2, 1, 3]})
        send(log, b"before")
    if before == "killed":
        killed(tmp_path / "set")
    for nth in range(1, 1000):
        shutil.copytree(tmp_path / "set", tmp_path / str(nth))
        take_for_originals(tmp_path / str(nth))
        arm = partial(system.fault_arm, CHANGES, nth, "kill_before")
        ended = ended_before(tmp_path / str(nth), arm, monkeypatch)
        check_none_is_a_stranger(tmp_path / str(nth), [b"before"], caplog)
        shutil.rmtree(tmp_path / str(nth))
        if not ended:
            assert nth > 3
            return
    raise AssertionError("the process is always killed")


def test_another_path_to_a_directory_in_use_is_no_copy(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        log.create_topic("t", assignment={0: [1, 2, 3]})
        (tmp_path / "link").symlink_to(tmp_path / "d1")
        with embedlog.open(
            [tmp_path / name for name in ("link", "d2", "d3")], housekeeping=False
        ) as other:
            send(other, b"value")
        assert [record.value for record in log.scan("t").records()] == [b"value"]


# ---- kills within an opening or a close ----------------------------------------------------------


def check_after_kill(
    root: Path, action: str, kinds: Sequence[str], nth: int, name: str = ""
) -> bool:
    """Every directory continues after a kill before the nth of these calls of an opening or a
    close; False if there is none.
    """
    child = os.fork()
    if child == 0:
        try:
            log = opened(root) if action == "close" else None
            system.fault_arm(tuple(kinds), nth, "kill_before", name=name)
            log = log or opened(root)
            if action == "close":
                log.close()
            system.fault_off()
            os._exit(0)
        finally:
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL), code
    with opened(root) as log:
        found = [(each.state, each.reason) for each in log.replicas().directories]
        assert found == [("live", None)] * len(NODES), (action, nth)
    return code != 0


@pytest.mark.sample(0.3)
@pytest.mark.parametrize(
    ("action", "kind", "name"),
    [
        ("open", "fsync", "d2/embedlog.control"),
        ("open", "unlink", "d2/.kafka_cleanshutdown"),
        ("open", "pwrite", "d2/embedlog.replicas"),
        ("close", "pwrite", "d2/.kafka_cleanshutdown"),
        ("close", "rename", "d2/.kafka_cleanshutdown"),
    ],
)
def test_a_kill_within_an_opening_or_a_close_is_no_visit_of_a_broker(
    tmp_path: Path, action: str, kind: str, name: str
) -> None:
    with opened(tmp_path) as log:
        log.create_topic("t", replication_factor=3)
    assert check_after_kill(tmp_path, action, [kind], 1, name)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("action", ["open", "close"])
def test_no_kill_within_an_opening_or_a_close_makes_a_stranger(tmp_path: Path, action: str) -> None:
    with opened(tmp_path) as log:
        log.create_topic("t", replication_factor=3)
    nth = 1
    while check_after_kill(tmp_path, action, CHANGES, nth):
        nth += 1
    assert nth > 20
