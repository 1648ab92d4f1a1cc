"""This module copies to replicas far from the log end, in steps, before they join the ISR.

Each step has a deadline of its own: the length of a log is no failure of a directory. A replica
that is slower than its leader is written gets a chunk in each call, and stops no other one.

The throttle of a reassignment limits the bytes per second that all processes copy to the added
replicas. The rate belongs to the leader's directory. A step may exceed it, and the next one waits.
A replica with a throttle joins when the rest is one step at most.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from embedlog._native import system
from embedlog.errors import EmbedlogError
from embedlog.partition.replication.replica_log import Fenced, NotLeader
from embedlog.replicas.partition.copying import copy
from embedlog.replicas.partition.leader import LeaderChanged
from embedlog.replicas.partition.partition_replicas import PartitionReplicas
from embedlog.replicas.rules.state import throttle_of

if TYPE_CHECKING:
    from embedlog.partition.partition import Partition
    from embedlog.replicas.rules.records import DecidedPartition


class CatchUp:
    """The copies of one partition to replicas outside the ISR. Threads: one at a time."""

    def __init__(self, replicas: PartitionReplicas, deadline: Callable[[], int]) -> None:
        self._replicas = replicas
        self._deadline = deadline

    def catch_up(
        self, decided: DecidedPartition, ending: Callable[[], bool], until_ns: int | None = None
    ) -> frozenset[int]:
        """Copy to the replicas outside the ISR; the nodes that must not join yet. Raises
        LeaderChanged, EmbedlogError.

        After `until_ns` each replica gets one more chunk, and the rest in a later call.
        """
        waiting_nodes = set[int]()
        for node in decided.replicas:
            if node in decided.isr:
                continue
            follower = self._replicas.members.find_replica(node)
            if follower is None:
                continue
            if not self._copy_to_replica(node, follower, decided, ending, until_ns):
                waiting_nodes.add(node)
        return frozenset(waiting_nodes)

    def _copy_to_replica(
        self,
        node: int,
        follower: Partition,
        decided: DecidedPartition,
        ending: Callable[[], bool],
        until_ns: int | None,
    ) -> bool:
        """Copy chunks to one replica; whether it may join now."""
        leader = self._replicas.leaders.find_leader(self._deadline())
        try:
            if self._replicas.members.raise_epoch_above(follower, leader.epoch, self._deadline()):
                raise LeaderChanged
            rate = throttle_of(decided) if node in decided.adding else None
            throttle = self._replicas.members.make_throttle(
                leader.partition.config, leader.node, node, rate
            )
            offset = follower.published().log_end
            is_first = True
            while not ending():
                is_late = until_ns is not None and system.boot_ns() >= until_ns
                if is_late and not is_first:
                    break
                if not throttle.claim():
                    break
                start = offset
                end = leader.partition.published().log_end
                size_before = follower.size_bytes()
                try:
                    offset = copy(
                        leader,
                        follower,
                        min(start + 1, end),
                        self._deadline(),
                        compared=True,
                        eligible=node in decided.elr,
                    )
                finally:
                    throttle.pay(max(0, follower.size_bytes() - size_before))
                is_first = False
                if offset >= end or offset == start:
                    return True
        except EmbedlogError as problem:
            if self._replicas.members.blame(problem) == leader.node:
                raise LeaderChanged from problem
        except (Fenced, NotLeader) as changed:
            raise LeaderChanged from changed
        return False
