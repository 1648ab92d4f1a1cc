"""Puts several partitions, or replicas of one partition, on stable storage at the same time.

- Each further one is synced by a thread of its own, so the slowest one determines the time.
- The caller waits until the deadline. One that is not synced then has failed, even if its sync ends
  later.
- An error belongs to one of them: the others are synced all the same.
- Where syncs are fast, threads cost more than they save: partitions of one transaction are then
  synced one by one.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

from embedlog._native import system
from embedlog._native.threads import start
from embedlog.errors import LockTimeoutError

THREADS_FROM_NS: Final = 2_000_000  # the shortest sync for which a thread is worth its start


class Syncable(Protocol):
    """A partition, or a replica of one."""

    @property
    def path(self) -> Path: ...
    def sync_to(self, end: int, deadline_ns: int) -> None: ...


class _Sync(threading.Thread):
    """The sync of one partition."""

    def __init__(self, partition: Syncable, end: int, deadline_ns: int) -> None:
        super().__init__(name="embedlog-sync", daemon=True)
        self._partition = partition
        self._end = end
        self._deadline_ns = deadline_ns
        self.problem: BaseException | None = None
        self.spent_ns = 0

    def run(self) -> None:
        """Sync; an error is kept for the caller."""
        began_ns = system.boot_ns()
        try:
            self._partition.sync_to(self._end, self._deadline_ns)
        except BaseException as problem:  # noqa: BLE001  (the caller raises it)
            self.problem = problem
        self.spent_ns = system.boot_ns() - began_ns

    def result(self) -> BaseException | None:
        """The error of a sync that has ended or is late, else None."""
        self.join(max(0.0, (self._deadline_ns - system.boot_ns()) / 1e9))
        if self.is_alive():
            return LockTimeoutError(
                "not durable before the deadline", path=self._partition.path, expected=self._end
            )
        return self.problem


def sync_together(
    due: Sequence[tuple[Syncable, int]], deadline_ns: int
) -> list[BaseException | None]:
    """Put the records below the given ends on stable storage, the first partition in this thread.
    Errors in the same order.
    """
    return _results_of(_begin_syncs(due, deadline_ns))


def _begin_syncs(due: Sequence[tuple[Syncable, int]], deadline_ns: int) -> list[_Sync]:
    """The syncs: the first one has ended, the others run."""
    syncs = [_Sync(partition, end, deadline_ns) for partition, end in due]
    for sync in syncs[1:]:
        start(sync)
    if syncs:
        syncs[0].run()
    return syncs


def _results_of(syncs: list[_Sync]) -> list[BaseException | None]:
    """The errors of the syncs. The first one ended in this thread, the others are waited for."""
    problems = [sync.problem for sync in syncs[:1]]
    problems.extend(sync.result() for sync in syncs[1:])
    return problems


class TransactionSyncs:
    """Syncs the partitions of transactions: together where a sync takes long, else one by one.
    Threads: any.
    """

    def __init__(self) -> None:
        # of the last syncs: a thread that waits for another one makes its own longer
        self._shortest_ns = 0

    def sync(self, due: Sequence[tuple[Syncable, int]], deadline_ns: int) -> None:
        """Put the records below the given ends on stable storage. Raises the first error, after all
        syncs.
        """
        if self._shortest_ns < THREADS_FROM_NS or len(due) == 1:
            syncs = [_Sync(partition, end, deadline_ns) for partition, end in due]
            for sync in syncs:
                sync.run()
            problems = [sync.problem for sync in syncs]
        else:
            syncs = _begin_syncs(due, deadline_ns)
            problems = _results_of(syncs)
        self._shortest_ns = min((sync.spent_ns for sync in syncs), default=0)
        for problem in problems:
            if problem is not None:
                raise problem
