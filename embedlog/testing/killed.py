"""A function that runs in a forked child, and the end of that child by SIGKILL.

- No statement of the child runs after the kill: no `finally`, no destructor, no flush.
- A child that ends in another way fails the test, with its exception; it never returns into the
  code of the parent.
- A child that does not end before the deadline is killed, and fails the test.
"""

from __future__ import annotations

import os
import select
import signal
import traceback
import warnings
from collections.abc import Callable
from typing import Final, NoReturn

__all__ = ["run_killed"]

REPORT_BYTES_MAX: Final = 60_000  # less than a pipe takes without a reader


def run_killed(work: Callable[[], object], timeout_s: float, title: str) -> None:
    """Run `work` in a forked child until SIGKILL ends it. Raises AssertionError if it ends
    otherwise, or not in time.
    """
    __tracebackhide__ = True
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    with warnings.catch_warnings():
        # of a fork beside threads: the child uses nothing of theirs
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        _run_child(work, writing)
    os.close(writing)
    try:
        in_time, status = _await_end(pid, timeout_s)
        report = _read(reading)
    finally:
        os.close(reading)
    if not in_time:
        raise AssertionError(f"{title}: the function did not end within {timeout_s:g} s")
    if report or not (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL):
        raise AssertionError(
            f"{title}: the function ended without reaching this point: "
            f"{report or f'wait status {status}'}"
        )


def _run_child(work: Callable[[], object], writing: int) -> NoReturn:
    try:
        work()
        report = "it returned"
    except BaseException:  # noqa: BLE001  (the top of the child: nothing may leave it)
        report = traceback.format_exc()
    try:
        os.write(writing, report.encode()[-REPORT_BYTES_MAX:])
    finally:
        os._exit(1)


def _await_end(pid: int, timeout_s: float) -> tuple[bool, int]:
    """Whether the child ended in time, and its status. Afterwards it has ended, also after an
    interrupt of the wait.
    """
    in_time = False
    ending = os.pidfd_open(pid)
    try:
        in_time = bool(select.select([ending], [], [], timeout_s)[0])
    finally:
        os.close(ending)
        if not in_time:
            os.kill(pid, signal.SIGKILL)  # it is not reaped yet, so the id is still its own
        status = os.waitpid(pid, 0)[1]
    return in_time, status


def _read(reading: int) -> str:
    try:
        return os.read(reading, REPORT_BYTES_MAX).decode(errors="replace")
    except BlockingIOError:
        # a process that the child started has the pipe, and the child wrote nothing
        return ""
