"""This module puts several replicas of one partition on stable storage at the same time.

PARALLELSYNC-1  each further directory is synced by a thread of its own, so the slowest one determines the time (REPLICA-14)
PARALLELSYNC-2  the caller waits until the deadline. A directory that is not synced then has failed, even if its sync ends later
PARALLELSYNC-3  an error belongs to one directory: the others are synced all the same
PARALLELSYNC-4  a member that fails between the commit and the sync leaves the ISR before the others are enough
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from embedlog._native import system
from embedlog.errors import EmbedlogError, LockTimeoutError
from embedlog.replica_set.leaders import Leader, LeaderChanged

if TYPE_CHECKING:
    from embedlog.partition.partition import Partition
    from embedlog.replica_set.partition_replicas import PartitionReplicas

NEVER: Final = 2**63 - 1  # flush.messages when no append waits for a sync


class _Sync(threading.Thread):
    """The sync of one replica."""

    def __init__(self, partition: Partition, end: int, deadline_ns: int) -> None:
        super().__init__(name="embedlog-sync", daemon=True)
        self._partition, self._end, self._deadline_ns = partition, end, deadline_ns
        self.problem: BaseException | None = None

    def run(self) -> None:
        """Sync; an error is kept for the caller."""
        try:
            self._partition.sync_to(self._end, self._deadline_ns)
        except BaseException as problem:  # noqa: BLE001  (the caller raises it)
            self.problem = problem

    def result(self) -> BaseException | None:
        """The error of a sync that has ended or is late, else None."""
        self.join(max(0.0, (self._deadline_ns - system.boot_ns()) / 1e9))
        if self.is_alive():
            return LockTimeoutError("not durable before the deadline", path=self._partition.path, expected=self._end)
        return self.problem


def sync_all(replicas: Sequence[tuple[int, Partition]], end: int, deadline_ns: int) -> dict[int, EmbedlogError]:
    """Put the records below `end` on stable storage in all replicas, the first one in this thread. The errors by node.

    Errors that belong to no directory are raised after every sync has ended.
    """
    due = [(node, each) for node, each in replicas if each.durable_offset < end]
    if not due:
        return {}
    syncs = [(node, _Sync(each, end, deadline_ns)) for node, each in due]
    for _, sync in syncs[1:]:
        sync.start()
    syncs[0][1].run()
    found = {node: sync.result() if at else sync.problem for at, (node, sync) in enumerate(syncs)}
    for problem in found.values():
        if problem is not None and not isinstance(problem, EmbedlogError):
            raise problem
    return {node: problem for node, problem in found.items() if isinstance(problem, EmbedlogError)}


def commit_and_sync(replicas: PartitionReplicas, leader: Leader, end: int, deadline_ns: int) -> None:
    """Commit, then sync the directories of the ISR. One with a failed sync leaves the ISR; then the others are enough.

    Raises LeaderChanged if that of the leader fails, and the errors of a commit. It ends at the deadline (PARALLELSYNC-2).
    """
    while True:
        replicas.commit(leader, end, deadline_ns)
        failed = sync_all(replicas.in_sync(leader, deadline_ns), end, replicas.lock_deadline(deadline_ns))
        for problem in failed.values():
            replicas.blame(problem, deadline_ns)
        if leader.node in failed:
            raise LeaderChanged
        if not failed:
            return
        if system.boot_ns() >= deadline_ns:
            raise next(iter(failed.values()))


def sync_if_due(replicas: PartitionReplicas, leader: Leader, end: int, deadline_ns: int) -> None:
    """As `commit_and_sync`, if `flush.messages` requires it in a directory of the ISR."""
    durable = min(each.durable_offset for _, each in replicas.in_sync(leader, deadline_ns))
    if end - durable >= leader.partition.config.flush_messages:
        commit_and_sync(replicas, leader, end, deadline_ns)
