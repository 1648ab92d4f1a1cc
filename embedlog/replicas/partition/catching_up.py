"""This module copies to replicas far from the log end, in steps, before they join the ISR.

CATCHUP-1  each step has a deadline of its own: the length of a log is no failure of a directory
CATCHUP-2  the throttle of a reassignment limits the bytes per second that all processes copy to the
    added replicas. The rate belongs to the leader's directory (COPYRATE-1). A step may exceed it,
    and the next one waits
CATCHUP-3  a replica with a throttle joins when the rest is one step at most
CATCHUP-4  a replica that is slower than its leader is written gets a chunk in each call, and stops
    no other one
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from embedlog._native import system
from embedlog.errors import EmbedlogError
from embedlog.partition.replication.replica_log import Fenced, NotLeader
from embedlog.replicas.partition.copying import copy
from embedlog.replicas.partition.leaders import LeaderChanged
from embedlog.replicas.partition.partition_replicas import PartitionReplicas
from embedlog.replicas.rules.state import throttle_of

if TYPE_CHECKING:
    from embedlog.partition.partition import Partition
    from embedlog.replicas.rules.records import Partition as Decided


class CatchUp:
    """The copies of one partition to replicas outside the ISR. Threads: one at a time."""

    def __init__(self, replicas: PartitionReplicas, deadline: Callable[[], int]) -> None:
        self._replicas = replicas
        self._deadline = deadline

    def waiting(
        self, decided: Decided, ending: Callable[[], bool], until_ns: int | None = None
    ) -> frozenset[int]:
        """Copy to the replicas outside the ISR; the nodes that must not join yet. Raises
        LeaderChanged, EmbedlogError.

        After `until_ns` each replica gets one more chunk, and the rest in a later call (CATCHUP-4).
        """
        left = set()
        for node in decided.replicas:
            if node in decided.isr:
                continue
            follower = self._replicas.reached(node)
            if follower is not None and not self._bring(node, follower, decided, ending, until_ns):
                left.add(node)
        return frozenset(left)

    def _bring(
        self,
        node: int,
        follower: Partition,
        decided: Decided,
        ending: Callable[[], bool],
        until_ns: int | None,
    ) -> bool:
        """Whether the replica may join now."""
        leader = self._replicas.leader(self._deadline())
        try:
            if self._replicas.rise_to(follower, leader.epoch, self._deadline()):
                raise LeaderChanged
            throttle = self._replicas.throttle(
                leader.partition.config,
                leader.node,
                node,
                throttle_of(decided) if node in decided.adding else None,
            )
            at = follower.published().log_end
            last = -1
            while (
                not ending()
                and (last < 0 or until_ns is None or system.boot_ns() < until_ns)
                and throttle.claim()
            ):
                end = leader.partition.published().log_end
                before = follower.size_bytes()
                try:
                    complete = node in decided.elr
                    at, last = (
                        copy(
                            leader,
                            follower,
                            min(at + 1, end),
                            self._deadline(),
                            compared=True,
                            complete=complete,
                        ),
                        at,
                    )
                finally:
                    throttle.pay(max(0, follower.size_bytes() - before))
                if at >= end or at == last:
                    return True
        except EmbedlogError as problem:
            if self._replicas.blame(problem) == leader.node:
                raise LeaderChanged from problem
        except (Fenced, NotLeader) as changed:
            raise LeaderChanged from changed
        return False
