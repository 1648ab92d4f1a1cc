"""Runs the reads of the console on a thread of its own, so that a slow disk never stops the
keyboard.

- One thread does one task at a time; a new task replaces a waiting one of the same name.
- After an error, and when the directory was replaced, the next task opens the log again.
- The end of the application waits for a thread at most `CLOSE_S`; a daemon thread does not keep the
  process.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import embedlog
from embedlog import EmbedlogError, Log, StorageError
from embedlog.tools.console.model.text import line_of

CLOSE_S = 2.0
WAIT_S = 1.0  # between two looks at the end of the application, if no notification arrives


@dataclass(eq=False)
class Task:
    """A read that may be cancelled and reports its progress."""

    name: str
    work: Callable[[Task], Any]
    reader: LogReader
    cancelled: threading.Event = field(default_factory=threading.Event)
    progress: tuple[int, int, int] | None = None  # bytes done, bytes in total, records found

    @property
    def log(self) -> Log:
        """The log, open read-only."""
        return self.reader.log()


@dataclass(frozen=True, slots=True)
class TaskOutcome:
    """The result of a task, or its error in one line."""

    task: Task
    value: Any = None
    error: str | None = None


class LogReader:
    """A thread with a log that it opens read-only at its first use."""

    def __init__(
        self, name: str, paths: Sequence[str], deliver: Callable[[TaskOutcome], object]
    ) -> None:
        self._paths = list(paths)
        self._deliver = deliver
        self._changed = threading.Condition()
        self._waiting: dict[str, Task] = {}
        self._running: Task | None = None
        self._since_s = 0.0
        self._closed = False
        self._log: Log | None = None
        self._identity: object = None
        self._thread = threading.Thread(
            target=self._run, name=f"embedlog-console-{name}", daemon=True
        )
        self._thread.start()

    def submit(self, name: str, work: Callable[[Task], Any]) -> Task:
        """Do this work after the running one. Threads: any."""
        task = Task(name, work, self)
        with self._changed:
            self._waiting[name] = task
            self._changed.notify()
        return task

    def busy_s(self) -> float | None:
        """For how long the current task has been running; None without one. Threads: any."""
        with self._changed:
            return None if self._running is None else time.monotonic() - self._since_s

    def is_idle(self) -> bool:
        """Whether nothing runs or waits. Threads: any."""
        with self._changed:
            return self._running is None and not self._waiting

    def close(self) -> bool:
        """Cancel everything; returns whether the thread ended in time."""
        with self._changed:
            self._closed = True
            for task in self._waiting.values():
                task.cancelled.set()
            if self._running is not None:
                self._running.cancelled.set()
            self._changed.notify()
        self._thread.join(CLOSE_S)
        return not self._thread.is_alive()

    def log(self) -> Log:
        """The open log. For the thread. Raises EmbedlogError if it cannot be opened."""
        identity = [_identity_of(path) for path in self._paths]
        if self._log is not None and identity != self._identity:
            self._forget()
        if self._log is None:
            if len(self._paths) == 1 and identity == [None]:
                raise StorageError("the log directory does not exist", path=self._paths[0])
            path = self._paths[0] if len(self._paths) == 1 else self._paths
            self._log = embedlog.open(path, read_only=True)
            self._identity = identity
        return self._log

    # ---- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        while (task := self._take_next()) is not None:
            outcome = self._run_task(task)
            with self._changed:
                self._running = None
            self._deliver(outcome)
        self._forget()

    def _take_next(self) -> Task | None:
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait(WAIT_S)
            if self._closed:
                return None
            self._running = self._waiting.pop(next(iter(self._waiting)))
            self._since_s = time.monotonic()
            return self._running

    def _run_task(self, task: Task) -> TaskOutcome:
        try:
            return TaskOutcome(task, task.work(task))
        except (EmbedlogError, OSError) as error:
            self._forget()
            return TaskOutcome(task, error=line_of(error))
        except Exception as error:  # noqa: BLE001  the edge of the thread: the screen has to show what is wrong
            self._forget()
            return TaskOutcome(
                task, error=f"internal error: {type(error).__name__}: {line_of(error)}"
            )

    def _forget(self) -> None:
        log = self._log
        self._log = None
        if log is not None:
            log.close()


def _identity_of(path: str) -> tuple[int, int] | None:
    """What distinguishes a directory from a later one of the same name; None if it is absent."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino
