"""This module moves all replicas off a directory before it is retired, and gives partitions more
replicas.

- The directory takes no new replicas first. Then one decision reassigns its partitions.
- Each replica is replaced by one in the usable directory with the fewest of them. A partition keeps
  the number of its replicas.
- Only internal topics get fewer replicas, if too few directories remain: their number follows that
  of the directories.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from embedlog._native import system
from embedlog.errors import (
    InvalidReplicationFactorError,
    LeaderNotAvailableError,
    ReplicaSetError,
    UnknownTopicOrPartitionError,
)
from embedlog.replicas.rules.events import Retire
from embedlog.topic import is_internal
from embedlog.types import TopicPartition

if TYPE_CHECKING:
    from embedlog.replicas.assignments import Assignments
    from embedlog.replicas.decisions.decision_log import DecisionLog
    from embedlog.replicas.rules.records import Partition
    from embedlog.replicas.rules.state import State


def targets(state: State, node: int, usable: Collection[int]) -> dict[TopicPartition, list[int]]:
    """The replicas of each partition without a node. Raises ReplicaSetError if too few directories
    remain.
    """
    held = Counter(other for each in state.partitions.values() for other in each.replicas)
    found: dict[TopicPartition, list[int]] = {}
    for place, each in sorted(state.partitions.items()):
        wanted = [other for other in each.replicas if other not in each.removing]
        if node not in wanted:
            continue
        name = state.topics[place[0]].name
        free = [other for other in usable if other != node and other not in wanted]
        if not free and (len(wanted) == 1 or not is_internal(name)):
            raise ReplicaSetError(
                f"too few directories would remain for the replicas of {name}: add one, or "
                "reassign the topic to fewer",
                expected=f"more than {len(wanted) - 1} directories",
                found=len(usable),
                paths=[state.nodes[node].path],
            )
        new = [min(free, key=lambda other: (held[other], other))] if free else []
        held.update(new)
        at = wanted.index(node)
        found[TopicPartition(name, place[1])] = [*wanted[:at], *new, *wanted[at + 1 :]]
    return found


def growing_targets(state: State, factor: int) -> dict[TopicPartition, list[int]]:
    """The replicas of the partitions that have fewer than `factor`; the present ones first.

    Raises InvalidReplicationFactorError if fewer directories take replicas.
    """
    racks = {
        node: each.rack for node, each in state.nodes.items() if each.replicas and not each.leaving
    }
    if factor > len(racks):
        raise InvalidReplicationFactorError(
            "fewer directories take replicas: add one by add_directory(path)",
            expected=f"1 to {len(racks)}",
            found=factor,
        )
    held = Counter(node for each in state.partitions.values() for node in each.replicas)
    found: dict[TopicPartition, list[int]] = {}
    for place, each in sorted(state.partitions.items()):
        wanted = [node for node in each.replicas if node not in each.removing]
        missing = factor - len(wanted)
        for _ in range(missing):
            new = _next_replica(racks, wanted, held)
            held[new] += 1
            wanted.append(new)
        if missing > 0:
            found[TopicPartition(state.topics[place[0]].name, place[1])] = wanted
    return found


def _next_replica(
    racks: Mapping[int, str | None], present: Collection[int], held: Counter[int]
) -> int:
    """A further node for a partition: on a rack that it does not have, else with the fewest
    replicas.
    """
    used_racks = {racks.get(node) for node in present} - {None}
    free = [node for node in racks if node not in present]
    return min(free, key=lambda node: (racks[node] in used_racks, held[node], node))


def move_off(
    decisions: DecisionLog,
    assignments: Assignments,
    node: int,
    usable: Collection[int],
    deadline_ns: int,
) -> None:
    """Move all replicas off a directory. Raises ReplicaSetError if that is impossible, or not done
    before the deadline.
    """
    state = decisions.settle(deadline_ns)
    if not _held(state, node):
        return
    wanted = targets(state, node, usable)
    if not state.nodes[node].leaving:
        decisions.decide(lambda state: Retire(node), deadline_ns)
    while wanted:
        try:
            assignments.reassign(wanted)
            break
        except UnknownTopicOrPartitionError:  # one of the topics was deleted meanwhile
            if (left := targets(decisions.settle(deadline_ns), node, usable)) == wanted:
                raise
            wanted = left
    while remaining := _held(state := decisions.hint(), node):
        for each in remaining:
            name = state.topics[each.topic_id].name
            place = (each.topic_id, each.number)
            try:
                assignments.tend(place, name, lambda: system.boot_ns() >= deadline_ns)
            except (LeaderNotAvailableError, UnknownTopicOrPartitionError):
                if place in decisions.hint().partitions:
                    raise
        if system.boot_ns() >= deadline_ns:
            names = sorted({state.topics[each.topic_id].name for each in remaining})
            raise ReplicaSetError(
                "the replicas of the directory are still being moved: the housekeeper continues, "
                "call this again later",
                expected="no partition",
                found=f"{len(remaining)} partitions of {', '.join(names[:5])}",
                paths=[state.nodes[node].path],
            )
    assignments.clear()


def _held(state: State, node: int) -> list[Partition]:
    return [each for each in state.partitions.values() if node in each.replicas]
