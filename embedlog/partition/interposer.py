"""The seam of fault injection in an ordinary build: an object that is asked before and after each
append and commit of one log.

- Without an interposer nothing is asked: one attribute is read when a writer is made, and in each
  commit.
- A refusal enters where the system call would fail: the caller sees the same code, and runs the
  same error handling.
- No append of this process passes it by: with an interposer no caller appends in C alone
  (`direct_append.c`).
- Copies in the other directories of a set are not asked for: they follow the append, as later
  writes.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol

from embedlog._native import system
from embedlog.errors import EmbedlogError, LockTimeoutError, StorageError

APPEND: Final = "append"  # of a batch; the name is a topic
MARKER: Final = "marker"  # of a transaction, in a topic that it wrote to
COMMIT: Final = "commit"  # the name is a group, or a transactional id


class Interposer(Protocol):
    """Decides about the appends and commits of this process in one open log;
    `embedlog.testing.faults` has one. Threads: any.
    """

    def before(self, step: str, name: str, number: int, deadline_ns: int) -> bool:
        """Whether the step may begin; False at the deadline (boot clock), which is then a timeout.
        May wait until then.

        `number`: of the partition, -1 for a commit. An OSError is the failure of the system call;
        other errors are raised.
        """

    def after(self, step: str, name: str, number: int) -> None:
        """Called when the step has succeeded, before its caller learns that."""


class InterposedWriter(system.Writer):
    """A writer that asks the interposer before each append. Threads: as for `Writer`."""

    def __init__(
        self, interposer: Interposer, topic: str, number: int, lock_timeout_ms: int, *writer: Any
    ) -> None:
        super().__init__(*writer)
        self._interposer = interposer
        self._partition = (topic, number)
        self._timeout_ns = lock_timeout_ms * 1_000_000
        # the last run, if its append asked for another try: the interposer was asked already
        self._run: object = None

    def append(
        self, run: Any, start: int, rows: Any, deadline_ns: int, known: Any = system.NULL
    ) -> int:
        append = partial(super().append, run, start, rows, deadline_ns, known)
        return self._ask(APPEND, run, append, deadline_ns)

    def append_locked(self, run: Any, start: int, rows: Any = None) -> int:
        append = partial(super().append_locked, run, start, rows)
        return self._ask(APPEND, run, append, system.boot_ns() + self._timeout_ns)

    def append_marker(
        self, batch: Any, first_unstable: int, entry: bytes | None, index_fd: int
    ) -> int:
        marker = partial(super().append_marker, batch, first_unstable, entry, index_fd)
        return self._ask(MARKER, batch, marker, system.boot_ns() + self._timeout_ns)

    def _ask(self, step: str, run: object, append: Callable[[], int], deadline_ns: int) -> int:
        """Ask the interposer, unless it was asked for this run before; then append."""
        if self._run is not run:
            try:
                if not self._interposer.before(step, *self._partition, deadline_ns):
                    return system.TIMED_OUT
            except OSError as problem:
                if isinstance(problem, EmbedlogError):
                    raise
                return -1000 - (problem.errno or errno.EIO)  # as the C core
        code = append()
        is_done = code == system.APPENDED or system.errno_of(code) != 0
        self._run = None if is_done else run
        if code == system.APPENDED:
            self._interposer.after(step, *self._partition)
        return code


def ask_before_commit(interposer: Interposer | None, name: str, deadline_ns: int) -> None:
    """Ask before a commit of a group or a transaction. Raises LockTimeoutError, StorageError, and
    the interposer's errors.
    """
    if interposer is None:
        return
    try:
        if interposer.before(COMMIT, name, -1, deadline_ns):
            return
    except OSError as problem:
        if isinstance(problem, EmbedlogError):
            raise
        raise StorageError(f"cannot commit {name!r}", errno=problem.errno) from problem
    raise LockTimeoutError(f"the commit of {name!r} could not begin before the deadline")


def report_commit(interposer: Interposer | None, name: str) -> None:
    """Tell the interposer that a commit is in the log, before its caller learns that."""
    if interposer is not None:
        interposer.after(COMMIT, name, -1)
