"""Faults of the test build: each action has its effect on a call, one experiment for each name."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from embedlog._native import system
from tests.support.producer_helpers import wait_until

DATA = b"12345678"
DELAY_US = 50_000

pytestmark = pytest.mark.skipif(not system.TEST_BUILD, reason="not the test build")


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    number = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT, 0o600)
    yield number
    system.fault_off()
    os.close(number)


def ends(
    how: str, result: int | None, size: int, *, error: int = errno.EIO, attempts: int = 1
) -> Callable[..., None]:
    """In a child, the call returns `result` after so many attempts, or it ends or stops the child.
    `size` bytes are written.
    """

    def experiment(fd: int, action: str) -> None:
        out, into = os.pipe()
        pid = os.fork()
        if pid == 0:
            system.fault_counters(reset=True)
            system.fault_arm(["pwrite"], 1, action, error)
            returned = system.pwrite(fd, DATA, 0)
            os.write(into, b"%d %d" % (returned, system.fault_counters()[0]["pwrite"]))
            os._exit(0)
        os.close(into)
        _, status = os.waitpid(pid, os.WUNTRACED)
        found = "exited"
        if os.WIFSTOPPED(status):
            found = "stopped"
            written = os.fstat(fd).st_size
            os.kill(pid, 9)
            os.waitpid(pid, 0)
        else:
            written = os.fstat(fd).st_size
            if os.WIFSIGNALED(status):
                found = "killed"
        with os.fdopen(out, "rb") as answers:
            answer = [int(word) for word in answers.read().split()]
        assert (found, written) == (how, size)
        assert answer == ([] if result is None else [result, attempts])

    return experiment


def delays(fd: int, action: str) -> None:
    system.fault_arm(["pwrite"], 1, action, DELAY_US)
    began = time.monotonic()
    assert system.pwrite(fd, DATA, 0) == len(DATA)
    assert time.monotonic() - began >= DELAY_US / 1e6


def hangs(fd: int, action: str) -> None:
    """The call returns after the hook is disarmed."""
    system.fault_counters(reset=True)
    system.fault_arm(["pwrite"], 1, action)
    results: list[int] = []
    thread = threading.Thread(target=lambda: results.append(system.pwrite(fd, DATA, 0)))
    thread.start()
    wait_until(lambda: system.fault_counters()[1] == 1)
    assert (results, os.fstat(fd).st_size) == ([], 0)
    system.fault_off()
    thread.join(60)
    assert results == [len(DATA)]


EXPERIMENTS: dict[str, Callable[[int, str], None]] = {
    "none": ends("exited", len(DATA), len(DATA)),
    "fail": ends("exited", -1000 - errno.ENOSPC, 0, error=errno.ENOSPC),
    "short": ends("exited", len(DATA), len(DATA), attempts=2),
    "torn_kill": ends("killed", None, len(DATA) // 2),
    "kill_before": ends("killed", None, 0),
    "kill_after": ends("killed", None, len(DATA)),
    "stop_before": ends("stopped", None, 0),
    "stop_after": ends("stopped", None, len(DATA)),
    "delay": delays,
    "hang": hangs,
}


def test_every_action_has_an_experiment() -> None:
    assert sorted(system.ACTIONS) == sorted(EXPERIMENTS)


@pytest.mark.parametrize("action", EXPERIMENTS)
def test_an_action_has_its_effect(fd: int, action: str) -> None:
    EXPERIMENTS[action](fd, action)
