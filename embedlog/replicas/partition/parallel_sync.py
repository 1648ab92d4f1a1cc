"""This module puts several replicas of one partition on stable storage at the same time.

PARALLELSYNC-1  the slowest directory determines the time (REPLICA-14); an error belongs to one
    directory (`storage/parallel_syncs`)
PARALLELSYNC-2  a member that fails between the commit and the sync leaves the ISR before the others
    are enough
PARALLELSYNC-3  the durable offset of an ISR comes from one reading of the leader's page, and one
    look at each member
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from embedlog._native import system
from embedlog.errors import EmbedlogError
from embedlog.replicas.partition.leaders import Leader, LeaderChanged
from embedlog.storage.parallel_syncs import sync_together

if TYPE_CHECKING:
    from embedlog.partition.partition import Partition
    from embedlog.replicas.partition.partition_replicas import PartitionReplicas

NEVER: Final = 2**63 - 1  # flush.messages when no append waits for a sync


def durable_offset(replicas: PartitionReplicas, leader: Leader) -> int:
    """The smallest durable offset of the maximal ISR; 0 if a member is not reached or known. Raises
    LeaderChanged.
    """
    if replicas.read_only:
        return min(each.durable_offset for _, each in replicas.in_sync(leader))
    nodes, unknown = replicas.maximal_isr(leader)
    # once: a member that returns now may have synced nothing
    members = [replicas.reached(node) for node in nodes]
    return 0 if unknown else min(0 if each is None else each.durable_offset for each in members)


def sync_all(
    replicas: Sequence[tuple[int, Partition]], end: int, deadline_ns: int
) -> dict[int, EmbedlogError]:
    """Put the records below `end` on stable storage in all replicas, the first one in this thread.
    The errors by node.

    Errors that belong to no directory are raised after every sync has ended.
    """
    due = [(node, each) for node, each in replicas if each.durable_offset < end]
    if not due:
        return {}
    problems = sync_together([(each, end) for _, each in due], deadline_ns)
    found = {node: problem for (node, _), problem in zip(due, problems, strict=True)}
    for problem in found.values():
        if problem is not None and not isinstance(problem, EmbedlogError):
            raise problem
    return {node: problem for node, problem in found.items() if isinstance(problem, EmbedlogError)}


def commit_and_sync(
    replicas: PartitionReplicas, leader: Leader, end: int, deadline_ns: int
) -> None:
    """Commit, then sync the directories of the ISR. One with a failed sync leaves the ISR; then the
    others are enough.

    Raises LeaderChanged if that of the leader fails, and the errors of a commit. It ends at the
    deadline.
    """
    while True:
        replicas.commit(leader, end, deadline_ns)
        failed = sync_all(
            replicas.in_sync(leader, deadline_ns), end, replicas.lock_deadline(deadline_ns)
        )
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
