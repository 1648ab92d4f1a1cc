"""Processes under remote control: they run tasks, stop at chosen calls, are killed, and every wait
for them has a deadline.

P1  no code here sleeps: every wait is for a condition, with a deadline whose error names the
condition P2  an error inside a victim is raised as `RemoteError` with the class's name; a victim's
death as `Died`
"""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent.parent
DEADLINE_S = 30.0
ATTEMPTS = 20  # more than a process makes at a lock before it sleeps
# `make test-sanitize`: limits of memory and fatal signals are ASan's own there
SANITIZED = "EMBEDLOG_SANITIZE" in os.environ


class Died(AssertionError):
    """A victim ended while something was expected of it."""


class RemoteError(Exception):
    """An error of a task inside a victim: `kind` names the class and those above it, `args[0]` is
    the text.
    """

    def __init__(self, kinds: tuple[str, ...], text: str, trace: str) -> None:
        super().__init__(text)
        self.kinds = kinds
        self.trace = trace
        self.add_note(trace)

    @property
    def kind(self) -> str:
        return self.kinds[0]

    def __str__(self) -> str:
        return f"{self.kind}: {self.args[0]}"


def until(condition: Callable[[], bool], what: str, deadline_s: float = DEADLINE_S) -> None:
    """Wait until a condition holds; looks about every half millisecond."""
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"waited {deadline_s:g} s without success: {what}")
        select.select([], [], [], 0.0005)


def state_of(pid: int) -> str:
    """The kernel's letter for a process: R, S, D, T (stopped), Z; "" if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def is_dead(pid: int) -> bool:
    """Gone, or a corpse that holds nothing any more: a first thread may be one while another still
    has the descriptors.
    """
    try:
        return state_of(pid) in ("", "Z") and len(os.listdir(f"/proc/{pid}/task")) <= 1
    except (FileNotFoundError, ProcessLookupError):
        return True


class Victim:
    """One process of ours: `call` runs a task of `tests.faults.harness.tasks` in it and gives its
    result.
    """

    def __init__(self, pid: int, line: Connection) -> None:
        self.pid = pid
        self._line = line
        self._last: Any = None
        self.ended = False  # the task whose notes were taken came to its end

    def start(self, task: str, *arguments: Any, **keywords: Any) -> None:
        """Tell it to run a task and do not wait; `result` gives the outcome."""
        try:
            self._line.send((task, arguments, keywords))
        except (BrokenPipeError, ConnectionResetError) as gone:
            raise Died(f"process {self.pid} was dead before {task}") from gone

    def result(self, deadline_s: float = DEADLINE_S) -> Any:
        kind, content = self._next(deadline_s)
        assert kind != "note", f"a note came where a result was due: {content}"
        if kind == "error":
            raise RemoteError(*content)
        return content

    def call(
        self, task: str, *arguments: Any, deadline_s: float = DEADLINE_S, **keywords: Any
    ) -> Any:
        self.start(task, *arguments, **keywords)
        return self.result(deadline_s)

    def _next(self, deadline_s: float) -> tuple[str, Any]:
        if not self._line.poll(deadline_s):
            raise AssertionError(
                f"process {self.pid} ({state_of(self.pid)!r}) sent nothing for {deadline_s:g} s"
            )
        try:
            answer: tuple[str, Any] = self._line.recv()
        except (EOFError, OSError) as gone:  # also in the middle of a message
            raise Died(f"process {self.pid} died") from gone
        return answer

    def notes(self, deadline_s: float = DEADLINE_S) -> Iterable[Any]:
        """The notes of a task while it runs, until it ends or the process dies."""
        self.ended = False
        while True:
            try:
                kind, content = self._next(deadline_s)
            except Died:
                return
            if kind == "error":
                raise RemoteError(*content)
            if kind == "done":
                self._last = content
                self.ended = True
                return
            yield content

    def result_after(self, notes: Iterable[Any]) -> Any:
        """The result of a task whose notes were being taken."""
        for note in notes:
            raise AssertionError(f"a note came where a result was due: {note}")
        return self._last

    def note_waiting(self) -> bool:
        return self._line.poll(0)

    def fileno(self) -> int:
        return self._line.fileno()

    def arm(
        self,
        kinds: Iterable[str],
        action: str,
        *,
        nth: int = 1,
        error: int = errno.EIO,
        sticky: bool = False,
        name: str = "",
    ) -> None:
        self.call("arm", tuple(kinds), nth, action, error, sticky, name)

    def mutate(self, names: Iterable[str]) -> None:
        """Switch rules off, if there are any to switch off."""
        if names := tuple(names):
            self.call("mutants", *names)

    def arm_refused(self, lock: str) -> None:
        """Freeze when it has tried a lock in vain many times; `is_refused` waits for that."""
        self.arm(["lock"], "stop_before", name=lock, nth=ATTEMPTS)

    def is_refused(self, deadline_s: float = DEADLINE_S) -> bool:
        """Whether its task waits for the lock, in contrast to one that ends. A process that waits
        goes on when it is resumed.
        """
        until(
            lambda: self.note_waiting() or state_of(self.pid) == "T",
            f"process {self.pid} to wait or to end",
            deadline_s,
        )
        return not self.note_waiting()

    def wait_stopped(self, deadline_s: float = DEADLINE_S) -> None:
        until(
            lambda: state_of(self.pid) in ("T", ""),
            f"process {self.pid} to stop at its hook",
            deadline_s,
        )
        if state_of(self.pid) == "":
            raise Died(f"process {self.pid} died instead of stopping")

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def stop(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)
        self.wait_stopped()

    def kill(self) -> None:
        """SIGKILL, and wait until the kernel has released all its resources."""
        try:
            os.kill(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.wait_dead()

    def wait_dead(self, deadline_s: float = DEADLINE_S) -> None:
        until(lambda: is_dead(self.pid), f"process {self.pid} to die", deadline_s)

    @property
    def alive(self) -> bool:
        return state_of(self.pid) not in ("", "Z")


class Nursery:
    """Starts victims out of one zygote and ends them all on leaving."""

    def __init__(
        self,
        zygote: str = "tests.faults.harness.zygote",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._control, theirs = socket.socketpair()
        environment = (
            os.environ
            | {"PYTHONPATH": str(ROOT), "PYTHONFAULTHANDLER": "1"}
            | dict(environment or {})
        )
        command = [sys.executable, "-m", zygote, str(theirs.fileno())]
        self._zygote = subprocess.Popen(
            command, cwd=ROOT, pass_fds=[theirs.fileno()], env=environment
        )
        theirs.close()
        self._victims: list[Victim] = []

    def spawn(self) -> Victim:
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._control, [b"f"], [theirs.fileno()])
        pid = int.from_bytes(self._control.recv(8, socket.MSG_WAITALL), "little")
        victim = Victim(pid, Connection(ours.detach()))
        self._victims.append(victim)
        return victim

    def end(self, *victims: Victim) -> None:
        for victim in victims or tuple(self._victims):
            victim.kill()
            victim._line.close()
            self._victims.remove(victim)

    def close(self) -> None:
        self.end()
        self._control.close()
        self._zygote.wait(timeout=DEADLINE_S)

    def __enter__(self) -> Nursery:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
