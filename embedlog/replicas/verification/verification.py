"""This module compares and repairs the replicas of the partitions of an open set.

- Only records below the high watermark are compared; later ones may differ until the next copy.
- A partition that cannot be repaired changes nothing; the others are repaired, and the report names
  it.
- The copies of the decision log come first: the repair of a replica needs decisions.
- After the wait for a leader that does not come, the wait for the next ones is short: there may be
  many.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, Protocol

from embedlog._native import system
from embedlog.descriptions.replicas import RepairedReplica, RepairReport, ReplicaDifference
from embedlog.errors import EmbedlogError, LeaderNotAvailableError, UnknownTopicOrPartitionError
from embedlog.replicas.rules.records import LOG
from embedlog.replicas.verification.decision_copies import DecisionCopies
from embedlog.replicas.verification.partition_repair import PartitionRepair
from embedlog.types import TopicPartition

if TYPE_CHECKING:
    from embedlog.replicas.members.set_members import SetMembers
    from embedlog.replicas.partition.partition_replicas import PartitionReplicas
    from embedlog.replicas.rules.events import PartitionId

logger = logging.getLogger("embedlog")


NEXT_NS: Final = 1_000_000_000
Progress = Callable[[int], object]  # gets the bytes that were compared so far


class ComparedSet(Protocol):
    """The open set, as far as a comparison needs it."""

    members: SetMembers

    def deadline(self) -> int: ...
    def replicas(self, partition_id: PartitionId, topic: str) -> PartitionReplicas: ...


class Verification:
    """The comparisons of an open set. Threads: any."""

    def __init__(self, replica_set: ComparedSet) -> None:
        self._set = replica_set
        self._copies = DecisionCopies(replica_set.members)

    def find_differences(
        self,
        partition_ids: Mapping[TopicPartition, PartitionId],
        progress: Progress | None = None,
        *,
        decisions: bool = False,
        unled: dict[TopicPartition, LeaderNotAvailableError] | None = None,
    ) -> list[ReplicaDifference]:
        """The first difference of each replica in the ISR from its leader; with `decisions` also
        the damage in the copies of the decision log. Raises LeaderNotAvailableError, or adds it to
        `unled` and continues.
        """
        count = _Count(progress)
        differences = list[ReplicaDifference]()
        if decisions:
            differences += self._copies.find_differences()
        for tp, partition_id in partition_ids.items():
            deadline = _next_deadline if unled else self._set.deadline
            repair = PartitionRepair(self._set.replicas(partition_id, tp.topic), deadline)
            try:
                differences += repair.find_differences(count.add)
            except (LeaderNotAvailableError, UnknownTopicOrPartitionError) as problem:
                if decisions and self._set.replicas(partition_id, tp.topic).members.is_deleted():
                    continue  # one of all topics was deleted meanwhile
                if unled is None or not isinstance(problem, LeaderNotAvailableError):
                    raise
                unled[tp] = problem
        return differences

    def repair(
        self,
        differences: list[ReplicaDifference],
        partition_ids: Mapping[TopicPartition, PartitionId],
    ) -> RepairReport:
        """Repair replicas with a difference."""
        repaired = list[RepairedReplica]()
        unrepaired = dict[ReplicaDifference, str]()
        waiting = list(differences)
        while waiting:
            difference = waiting.pop(0)
            try:
                replica, new_differences = self._repair_one(difference, partition_ids)
            except EmbedlogError as problem:
                logger.warning(
                    "%s-%d: node %d is not repaired: %s",
                    difference.topic,
                    difference.partition,
                    difference.node,
                    problem,
                )
                unrepaired[difference] = str(problem)
                continue
            if replica is not None:
                repaired.append(replica)
            noted = {_replica_of(one) for one in (*waiting, *unrepaired, difference)}
            waiting += [new for new in new_differences if _replica_of(new) not in noted]
        return RepairReport(tuple(repaired), unrepaired)

    def _repair_one(
        self, difference: ReplicaDifference, partition_ids: Mapping[TopicPartition, PartitionId]
    ) -> tuple[RepairedReplica | None, list[ReplicaDifference]]:
        """What was repaired, and the differences that the partition has after that."""
        if difference.topic == LOG:
            return self._copies.repair(difference), []
        partition_id = partition_ids[TopicPartition(difference.topic, difference.partition)]
        repair = PartitionRepair(
            self._set.replicas(partition_id, difference.topic), self._set.deadline
        )
        replica = repair.repair(difference.node)
        if replica is None:
            return None, []
        return replica, repair.find_differences(lambda size: None)


def _replica_of(difference: ReplicaDifference) -> tuple[str, int, int]:
    return difference.topic, difference.partition, difference.node


def _next_deadline() -> int:
    """The deadline of a wait for a further leader."""
    return system.boot_ns() + NEXT_NS


class _Count:
    """The bytes of one call."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._total = 0

    def add(self, size: int) -> None:
        self._total += size
        if self._progress is not None:
            self._progress(self._total)
