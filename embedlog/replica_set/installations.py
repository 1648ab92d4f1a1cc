"""This module installs the leaders of many partitions at the same time, after one decision has elected all of them.

INSTALLATIONS-1  an installation waits for the disk: it syncs the start of an epoch. Those of several partitions share its writes
INSTALLATIONS-2  the call that elected the leaders does not wait. A use of a partition whose turn has not come installs its leader
INSTALLATIONS-3  a failed installation changes nothing and is left to the first use of its partition
INSTALLATIONS-4  a close drops the installations that have not begun, and waits for the others
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from embedlog._native import system

if TYPE_CHECKING:
    from embedlog.replica_set.leaders import Leaders

THREADS_MAX: Final = 8
WAIT_MS: Final = 3_000  # the longest wait of one installation for a lock


class Installations:
    """The installations of one open set. Threads: any."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._due: deque[Leaders] = deque()
        self._threads: set[threading.Thread] = set()
        self._closed = False

    def begin(self, elected: Iterable[Leaders]) -> None:
        """Install the leaders of these partitions in threads that end with the last one."""
        with self._mutex:
            if self._closed:
                return
            self._due.extend(elected)
            missing = min(len(self._due), THREADS_MAX) - len(self._threads)
            made = [threading.Thread(target=self._run, name="embedlog-leaders", daemon=True) for _ in range(missing)]
            self._threads.update(made)
            for thread in made:
                thread.start()

    def _run(self) -> None:
        while (each := self._next()) is not None:
            each.begin(system.boot_ns() + WAIT_MS * 1_000_000)

    def _next(self) -> Leaders | None:
        """The next partition; without one the thread ends. Both in one step: nothing is added for a thread that ends."""
        with self._mutex:
            if self._due:
                return self._due.popleft()
            self._threads.discard(threading.current_thread())
            return None

    def close(self, deadline_ns: int) -> None:
        """Begin no further installation, and wait for those in progress, at most until a deadline (INSTALLATIONS-4)."""
        with self._mutex:
            self._closed = True
            self._due.clear()
            threads = list(self._threads)
        for thread in threads:
            thread.join(max(0.0, (deadline_ns - system.boot_ns()) / 1e9))
