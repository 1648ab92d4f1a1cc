"""This module calls several directories at the same time, with a deadline: one that hangs delays no
other.

- Each call has a thread of its own. After the deadline the caller gets an error for the directory,
  and the thread remains.
- A directory whose thread remains is not called again: the error is returned at once, with the time
  since the first call.
- An error of the process is raised to the caller; an error of a directory is its answer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Final, Generic, TypeVar

from embedlog._native import system
from embedlog._native.threads import start
from embedlog.errors import ClosedError, DeadlineError, EmbedlogError, ForkedError

ANSWER_S: Final = 5.0

T = TypeVar("T")


class _Call(Generic[T]):
    """One call in a thread of its own."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self.began_ns = system.boot_ns()
        self._result: list[T] = []
        self._problem: BaseException | None = None
        self._thread = threading.Thread(
            target=self._run, name="embedlog observation of a directory", daemon=True
        )
        start(self._thread)

    def _run(self) -> None:
        try:
            self._result.append(self._work())
        except BaseException as problem:  # noqa: BLE001 (it is raised in the caller's thread)
            self._problem = problem

    def wait_for_end(self, timeout_s: float) -> bool:
        """Wait for the end of the call; False after the timeout."""
        self._thread.join(max(0.0, timeout_s))
        return not self._thread.is_alive()

    def result(self) -> T | EmbedlogError:
        """The answer of an ended call."""
        problem = self._problem
        if isinstance(problem, EmbedlogError) and not isinstance(
            problem, (ClosedError, ForkedError)
        ):
            return problem
        if problem is not None:
            raise problem
        return self._result[0]


class Answers:
    """The calls of one open set. Threads: any."""

    def __init__(self, timeout_s: float = ANSWER_S) -> None:
        self._timeout_s = timeout_s
        self._mutex = threading.Lock()
        self._hanging: dict[int, _Call[object]] = {}

    def collect(self, calls: Mapping[int, Callable[[], T]]) -> dict[int, T | EmbedlogError]:
        """The answer of each node, or the error of its directory."""
        answers: dict[int, T | EmbedlogError] = {}
        begun: dict[int, _Call[T]] = {}
        for node, work in calls.items():
            hanging = self._find_hanging(node)
            if hanging is None:
                begun[node] = _Call(work)
            else:
                answers[node] = _silence_error(hanging)
        until_ns = system.boot_ns() + int(self._timeout_s * 1e9)
        for node, call in begun.items():
            if call.wait_for_end((until_ns - system.boot_ns()) / 1e9):
                answers[node] = call.result()
            else:
                answers[node] = _silence_error(call)
                with self._mutex:
                    self._hanging[node] = call  # type: ignore[assignment]
        return answers

    def _find_hanging(self, node: int) -> _Call[object] | None:
        """The call of this node that still hangs."""
        with self._mutex:
            call = self._hanging.get(node)
            if call is not None and call.wait_for_end(0):
                del self._hanging[node]
                return None
            return call


def _silence_error(call: _Call[T]) -> DeadlineError:
    spent_s = (system.boot_ns() - call.began_ns) / 1e9
    return DeadlineError(f"the directory has not answered for {spent_s:.1f} s")
