"""The close of one open log: its order, its stage, and who may call what in which stage.

The order is that of `Closing.run`. Producers and consumers are closed before it, since they still
need the open log.

| step | what it does | stage from here on |
| --- | --- | --- |
| – | the log is open | OPEN |
| `stop` | ends loads and services, such as the housekeeper | STOPPING |
| `finish` | last work in the directories, such as the marks of a set | STOPPING |
| `leave` | leaves each directory; the last process closes its partitions in order | LEAVING |
| `release` | closes descriptors and mappings of the directories that were left | LEAVING |
| – | every step was done, or one has raised an error | CLOSED |

- A call of the log is refused from STOPPING on. Only the thread that does the steps may use
  partitions in `finish` and `leave`: in these it is the `closer`.
- Each step may be repeated. An error or an interrupt in one of them does not prevent the later
  ones.
- An interrupt leaves the stage as it is, so the next close does the steps again: all from STOPPING,
  and all but `finish` from LEAVING, where the directories may not be written any more.
- An error is raised once: the stage is CLOSED, and the next close does nothing.
- A second close waits for the one of another thread, at most for the lock timeout, and does nothing
  after it. One inside of a step, by a callback or a signal handler in the thread of the close,
  returns at once.
- A forked child does none of this. A close there returns at once, and hooks of the fork have closed
  the descriptors of locks that the child inherited.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from enum import Enum
from functools import partial
from pathlib import Path

from embedlog._native.scope import Guard
from embedlog.errors import LockTimeoutError
from embedlog.storage.call_deadline import acting_thread
from embedlog.storage.locks import is_owned


class CloseStage(Enum):
    """How far the close of a log has come: the table of the module."""

    OPEN = "open"
    STOPPING = "stopping"
    LEAVING = "leaving"
    CLOSED = "closed"


class Closing:
    """The stage of one log. Threads: any reads; the holder of the lock changes it."""

    def __init__(self, path: Path, mutex: threading.RLock) -> None:
        """`mutex`: of the log. No close begins while another thread holds it."""
        self._path = path
        self._mutex = mutex
        self._lock = threading.RLock()  # held during the steps
        self.stage = CloseStage.OPEN
        self.closer: int | None = None  # the only thread that may still use the partitions

    def run(
        self,
        timeout_s: float,
        *,
        stop: Callable[[], None],
        finish: Callable[[], None],
        leave: Callable[[], None],
        release: Callable[[], None],
    ) -> None:
        """Do the steps that are not done yet. Raises their errors; LockTimeoutError if another
        thread does them for longer than `timeout_s`.
        """
        if is_owned(self._lock):
            return  # inside of a step
        acquire = partial(self._lock.acquire, timeout=timeout_s)
        with Guard(self._lock.release, acquire) as is_acquired:
            if not is_acquired:
                raise LockTimeoutError("another thread is closing the log", path=self._path)
            if self.stage is CloseStage.CLOSED:
                return
            if self.stage is CloseStage.OPEN:
                with self._mutex:
                    self.stage = CloseStage.STOPPING
            try:
                self._do_steps(stop, finish, leave, release)
            except Exception:
                self.stage = CloseStage.CLOSED
                raise
            self.stage = CloseStage.CLOSED  # last: after an interrupt the next close goes on

    def _do_steps(
        self,
        stop: Callable[[], None],
        finish: Callable[[], None],
        leave: Callable[[], None],
        release: Callable[[], None],
    ) -> None:
        try:
            stop()
        finally:
            # an error or an interrupt in one step does not keep the rest open
            with contextlib.ExitStack() as later_steps:
                later_steps.callback(self._release, release)
                later_steps.callback(self._leave, leave)
                self.closer = acting_thread()
                if self.stage is CloseStage.STOPPING:
                    finish()

    def _leave(self, leave: Callable[[], None]) -> None:
        self.stage = CloseStage.LEAVING
        leave()

    def _release(self, release: Callable[[], None]) -> None:
        self.closer = None
        release()
