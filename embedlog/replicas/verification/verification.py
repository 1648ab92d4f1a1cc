"""This module compares and repairs the replicas of the partitions of an open set.

VERIFICATION-1  only records below the high watermark are compared; later ones may differ until the
    next copy
VERIFICATION-2  a partition that cannot be repaired changes nothing; the others are repaired, and
    the report names it
VERIFICATION-3  the copies of the decision log come first: the repair of a replica needs decisions
VERIFICATION-4  after the wait for a leader that does not come, the wait for the next ones is short:
    there may be many
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
    from embedlog.replicas.rules.events import Place

logger = logging.getLogger("embedlog")


NEXT_NS: Final = 1_000_000_000
Progress = Callable[[int], object]  # gets the bytes that were compared so far


class OpenSet(Protocol):
    """The open set, as far as a comparison needs it."""

    members: SetMembers

    def deadline(self) -> int: ...
    def replicas(self, place: Place, topic: str) -> PartitionReplicas: ...


class Verification:
    """The comparisons of an open set. Threads: any."""

    def __init__(self, replica_set: OpenSet) -> None:
        self._set = replica_set
        self._copies = DecisionCopies(replica_set.members)

    def differences(
        self,
        places: Mapping[TopicPartition, Place],
        progress: Progress | None = None,
        *,
        decisions: bool = False,
        unled: dict[TopicPartition, LeaderNotAvailableError] | None = None,
    ) -> list[ReplicaDifference]:
        """The first difference of each replica in the ISR from its leader; with `decisions` also
        the damage in the copies of the decision log. Raises LeaderNotAvailableError, or adds it to
        `unled` and continues (VERIFICATION-4).
        """
        count = _Count(progress)
        found = self._copies.differences() if decisions else []
        for tp, place in places.items():
            repair = (
                PartitionRepair(self._set.replicas(place, tp.topic), _soon)
                if unled
                else self._repair_of(tp, place)
            )
            try:
                found += repair.differences(count.add)
            except (LeaderNotAvailableError, UnknownTopicOrPartitionError) as problem:
                if decisions and self._set.replicas(place, tp.topic).members.is_deleted():
                    continue  # one of all topics was deleted meanwhile
                if unled is None or not isinstance(problem, LeaderNotAvailableError):
                    raise
                unled[tp] = problem
        return found

    def repair(
        self, found: list[ReplicaDifference], places: Mapping[TopicPartition, Place]
    ) -> RepairReport:
        """Repair replicas with a difference (VERIFICATION-2)."""
        repaired = list[RepairedReplica]()
        left = dict[ReplicaDifference, str]()
        waiting = list(found)
        while waiting:
            each = waiting.pop(0)
            try:
                done, others = self._repaired(each, places)
                if done is not None:
                    repaired.append(done)
                known = {
                    (other.topic, other.partition, other.node) for other in (*waiting, *left, each)
                }
                waiting += [
                    other
                    for other in others
                    if (other.topic, other.partition, other.node) not in known
                ]
            except EmbedlogError as problem:
                logger.warning(
                    "%s-%d: node %d is not repaired: %s",
                    each.topic,
                    each.partition,
                    each.node,
                    problem,
                )
                left[each] = str(problem)
        return RepairReport(tuple(repaired), left)

    def _repaired(
        self, each: ReplicaDifference, places: Mapping[TopicPartition, Place]
    ) -> tuple[RepairedReplica | None, list[ReplicaDifference]]:
        """What was repaired, and the differences that the partition has after that."""
        if each.topic == LOG:
            return self._copies.repair(each), []
        tp = TopicPartition(each.topic, each.partition)
        repair = self._repair_of(tp, places[tp])
        done = repair.repair(each.node)
        return done, [] if done is None else repair.differences(lambda size: None)

    def _repair_of(self, tp: TopicPartition, place: Place) -> PartitionRepair:
        return PartitionRepair(self._set.replicas(place, tp.topic), self._set.deadline)


def _soon() -> int:
    """The deadline of a wait for a further leader (VERIFICATION-4)."""
    return system.boot_ns() + NEXT_NS


class _Count:
    """The bytes of one call."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._done = 0

    def add(self, size: int) -> None:
        self._done += size
        if self._progress is not None:
            self._progress(self._done)
