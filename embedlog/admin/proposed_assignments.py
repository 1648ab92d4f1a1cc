"""This module proposes nodes for existing partitions by Kafka's formula (AdminUtils)."""

from __future__ import annotations

from collections.abc import Iterable
from random import randrange

from embedlog.descriptions.directories import ReplicasDescription
from embedlog.errors import InvalidReplicaAssignmentError, UnknownTopicOrPartitionError
from embedlog.replicas.rules.placement import Shape, place_replicas
from embedlog.types import TopicPartition


def propose(
    description: ReplicasDescription, topics: Iterable[str], nodes: Iterable[int] | None
) -> dict[TopicPartition, list[int]]:
    """Nodes for all partitions of the topics, with the current replication factors. Raises as
    `Log.proposed_assignment`.
    """
    usable = {
        directory.node: directory.rack
        for directory in description.directories
        if directory.state != "witness"
    }
    selected = list(usable if nodes is None else dict.fromkeys(nodes))
    unknown = [node for node in selected if node not in usable]
    if unknown:
        raise InvalidReplicaAssignmentError(
            "not nodes of directories for replicas", expected=list(usable), found=unknown
        )
    racks = {node: usable[node] for node in selected}
    if None in racks.values():
        racks = dict.fromkeys(racks)
    assignment: dict[TopicPartition, list[int]] = {}
    for name in dict.fromkeys(topics):
        current_replicas = [
            partition.replicas for partition in description.partitions if partition.topic == name
        ]
        if not current_replicas:
            raise UnknownTopicOrPartitionError(f"no topic {name!r}")
        start = randrange(len(racks) or 1)
        shift = randrange(len(racks) or 1)
        placements = place_replicas(
            racks, Shape(len(current_replicas), len(current_replicas[0])), start=start, shift=shift
        )
        for number, replicas in enumerate(placements):
            assignment[TopicPartition(name, number)] = list(replicas)
    return assignment
