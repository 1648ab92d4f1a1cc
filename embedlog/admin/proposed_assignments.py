"""This module proposes nodes for existing partitions by Kafka's formula (AdminUtils)."""

from __future__ import annotations

from collections.abc import Iterable
from random import randrange

from embedlog.errors import InvalidReplicaAssignmentError, UnknownTopicOrPartitionError
from embedlog.replica_description import ReplicasDescription
from embedlog.replication.placement import Shape, place
from embedlog.types import TopicPartition


def proposed(
    found: ReplicasDescription, topics: Iterable[str], nodes: Iterable[int] | None
) -> dict[TopicPartition, list[int]]:
    """Nodes for all partitions of the topics, with the present replication factors. Raises as
    `Log.proposed_assignment`.
    """
    usable = {each.node: each.rack for each in found.directories if each.state != "witness"}
    wanted = list(usable if nodes is None else dict.fromkeys(nodes))
    if unknown := [node for node in wanted if node not in usable]:
        raise InvalidReplicaAssignmentError(
            "not nodes of directories for replicas", expected=list(usable), found=unknown
        )
    racks = {node: usable[node] for node in wanted}
    if None in racks.values():
        racks = dict.fromkeys(racks)
    made: dict[TopicPartition, list[int]] = {}
    for name in dict.fromkeys(topics):
        present = [each.replicas for each in found.partitions if each.topic == name]
        if not present:
            raise UnknownTopicOrPartitionError(f"no topic {name!r}")
        start, shift = (randrange(len(racks) or 1) for _ in range(2))
        placed = place(racks, Shape(len(present), len(present[0])), start=start, shift=shift)
        made |= {TopicPartition(name, number): list(each) for number, each in enumerate(placed)}
    return made
