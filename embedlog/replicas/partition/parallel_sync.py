"""This module puts several replicas of one partition on stable storage at the same time.

The slowest directory determines the time (REPLICA-14), and an error belongs to one directory. A
member that fails between the commit and the sync leaves the ISR before the others are enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from embedlog._native import system
from embedlog.errors import EmbedlogError
from embedlog.replicas.partition.leader import Leader, LeaderChanged
from embedlog.storage.parallel_syncs import sync_together

if TYPE_CHECKING:
    from embedlog.partition.partition import Partition
    from embedlog.replicas.partition.partition_replicas import PartitionReplicas

FLUSH_NEVER: Final = 2**63 - 1  # flush.messages when no append waits for a sync


def durable_offset(replicas: PartitionReplicas, leader: Leader) -> int:
    """The smallest durable offset of the maximal ISR; 0 if a member is not reached or known. A reader
    leaves out those that it does not reach. Raises LeaderChanged.

    The leader's page is read once, and each member is looked for once: one that returns meanwhile
    may have synced nothing.
    """
    if replicas.members.read_only:
        return min(replica.durable_offset for _, replica in replicas.in_sync.find_replicas(leader))
    nodes, unknown_count = replicas.in_sync.maximal_isr(leader)
    in_sync = [replicas.members.find_replica(node) for node in nodes]
    if unknown_count or None in in_sync:
        return 0
    return min(replica.durable_offset for replica in in_sync if replica is not None)


def sync_all(
    in_sync: Sequence[tuple[int, Partition]], end: int, deadline_ns: int
) -> dict[int, EmbedlogError]:
    """Put the records below `end` on stable storage in all replicas, the first one in this thread.
    The errors by node.

    What is no EmbedlogError is raised after every sync has ended. The caller decides which of the
    others belong to a directory.
    """
    due = [(node, replica) for node, replica in in_sync if replica.durable_offset < end]
    if not due:
        return {}
    problems = sync_together([(replica, end) for _, replica in due], deadline_ns)
    failures: dict[int, EmbedlogError] = {}
    for (node, _), problem in zip(due, problems, strict=True):
        if isinstance(problem, EmbedlogError):
            failures[node] = problem
        elif problem is not None:
            raise problem
    return failures


def commit_and_sync(
    replicas: PartitionReplicas, leader: Leader, end: int, deadline_ns: int
) -> None:
    """Commit, then sync the directories of the ISR. One with a failed sync leaves the ISR; then the
    others are enough.

    Raises LeaderChanged if that of the leader fails, the errors of a commit, and a failed sync's error
    that belongs to no directory: `blame` raises that, and fails the directory or replica of any other.
    So the next turn commits without it. The call ends at the deadline, although a sync may go on.
    """
    while True:
        replicas.in_sync.commit(leader, end, deadline_ns)
        in_sync = replicas.in_sync.shrink_to_reached(leader, deadline_ns)
        failures = sync_all(in_sync, end, replicas.members.lock_deadline(deadline_ns))
        for problem in failures.values():
            replicas.members.blame(problem, deadline_ns)
        if leader.node in failures:
            raise LeaderChanged from failures[leader.node]
        if not failures:
            return
        if system.boot_ns() >= deadline_ns:
            raise next(iter(failures.values()))


def sync_if_due(replicas: PartitionReplicas, leader: Leader, end: int, deadline_ns: int) -> None:
    """As `commit_and_sync`, if `flush.messages` requires it in a directory of the ISR."""
    in_sync = replicas.in_sync.shrink_to_reached(leader, deadline_ns)
    durable = min(replica.durable_offset for _, replica in in_sync)
    if end - durable >= leader.partition.config.flush_messages:
        commit_and_sync(replicas, leader, end, deadline_ns)
