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
    from embedlog.replicas.rules.records import DecidedPartition
    from embedlog.replicas.rules.state import State


def targets(state: State, node: int, usable: Collection[int]) -> dict[TopicPartition, list[int]]:
    """The replicas of each partition without a node. Raises ReplicaSetError if too few directories
    remain.
    """
    replica_counts = _count_replicas(state)
    new_targets: dict[TopicPartition, list[int]] = {}
    for (topic_uuid, number), partition in sorted(state.partitions.items()):
        target = _target_of(partition)
        if node not in target:
            continue
        name = state.topics[topic_uuid].name
        free = [candidate for candidate in usable if candidate != node and candidate not in target]
        if not free and (len(target) == 1 or not is_internal(name)):
            raise ReplicaSetError(
                f"too few directories would remain for the replicas of {name}: add one, or "
                "reassign the topic to fewer",
                expected=f"more than {len(target) - 1} directories",
                found=len(usable),
                paths=[state.nodes[node].path],
            )
        position = target.index(node)
        if free:
            successor = min(free, key=lambda candidate: (replica_counts[candidate], candidate))
            replica_counts[successor] += 1
            target[position] = successor
        else:
            del target[position]
        new_targets[TopicPartition(name, number)] = target
    return new_targets


def _count_replicas(state: State) -> Counter[int]:
    """The number of replicas of each node."""
    return Counter(node for partition in state.partitions.values() for node in partition.replicas)


def _target_of(partition: DecidedPartition) -> list[int]:
    """The replicas of a partition at the end of its reassignment."""
    return [node for node in partition.replicas if node not in partition.removing]


def growing_targets(state: State, factor: int) -> dict[TopicPartition, list[int]]:
    """The replicas of the partitions that have fewer than `factor`; the current ones first.

    Raises InvalidReplicationFactorError if fewer directories take replicas.
    """
    racks = state.usable_racks()
    if factor > len(racks):
        raise InvalidReplicationFactorError(
            "fewer directories take replicas: add one by add_directory(path)",
            expected=f"1 to {len(racks)}",
            found=factor,
        )
    replica_counts = _count_replicas(state)
    new_targets: dict[TopicPartition, list[int]] = {}
    for (topic_uuid, number), partition in sorted(state.partitions.items()):
        target = _target_of(partition)
        missing_count = factor - len(target)
        for _ in range(missing_count):
            node = _choose_node(racks, target, replica_counts)
            replica_counts[node] += 1
            target.append(node)
        if missing_count > 0:
            new_targets[TopicPartition(state.topics[topic_uuid].name, number)] = target
    return new_targets


def _choose_node(
    racks: Mapping[int, str | None], replicas: Collection[int], replica_counts: Counter[int]
) -> int:
    """A further node for a partition: on a rack that it does not have, else with the fewest
    replicas.
    """
    used_racks = {racks.get(node) for node in replicas} - {None}
    free = [node for node in racks if node not in replicas]
    return min(free, key=lambda node: (racks[node] in used_racks, replica_counts[node], node))


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
    if not _partitions_on(state, node):
        return
    new_targets = targets(state, node, usable)
    if not state.nodes[node].leaving:
        decisions.decide(lambda state: Retire(node), deadline_ns)
    while new_targets:
        try:
            assignments.reassign(new_targets)
            break
        except UnknownTopicOrPartitionError:  # one of the topics was deleted meanwhile
            current_targets = targets(decisions.settle(deadline_ns), node, usable)
            if current_targets == new_targets:
                raise
            new_targets = current_targets
    while True:
        state = decisions.counted_state()
        remaining = _partitions_on(state, node)
        if not remaining:
            break
        for partition in remaining:
            name = state.topics[partition.topic_uuid].name
            partition_id = (partition.topic_uuid, partition.number)
            try:
                assignments.tend(partition_id, name, lambda: system.boot_ns() >= deadline_ns)
            except (LeaderNotAvailableError, UnknownTopicOrPartitionError):
                if partition_id in decisions.counted_state().partitions:
                    raise
        if system.boot_ns() >= deadline_ns:
            names = sorted({state.topics[partition.topic_uuid].name for partition in remaining})
            raise ReplicaSetError(
                "the replicas of the directory are still being moved: the housekeeper continues, "
                "call this again later",
                expected="no partition",
                found=f"{len(remaining)} partitions of {', '.join(names[:5])}",
                paths=[state.nodes[node].path],
            )
    assignments.clear()


def _partitions_on(state: State, node: int) -> list[DecidedPartition]:
    """The partitions with a replica on a node."""
    return [partition for partition in state.partitions.values() if node in partition.replicas]
