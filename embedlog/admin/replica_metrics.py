"""Metrics of an open log with the names of Kafka's broker and controller (`log.metrics()`).

REPLICAMETRICS-1  gauges are counted in one description of all directories; each directory has those
    of a broker
REPLICAMETRICS-2  meters and timers count the events of this process: the decisions that it made,
    and the bytes that it copied
REPLICAMETRICS-3  `ActiveControllerCount` does not exist: any process decides, on a majority of the
    directories
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from embedlog.replica_description import (
    DirectoryDescription,
    ReplicaDescription,
    ReplicasDescription,
    ReplicatedPartitionDescription,
)
from embedlog.replica_set.observation.replica_events import Meter, ReplicaEvents, Timer
from embedlog.types import TopicPartition


def report(found: ReplicasDescription, events: ReplicaEvents) -> dict[str, Any]:
    """All metrics of the log: of the controller, of the brokers together, and by directory and
    partition.
    """
    meters: dict[str, Meter | Timer] = events.report()
    return {
        **_of_controller(found),
        **_of_partitions(found.partitions),
        **_of_replicas(found, found.directories),
        **meters,
        "directories": {each.node: _of_directory(found, each) for each in found.directories},
        "partitions": {
            TopicPartition(each.topic, each.partition): _of_partition(each)
            for each in found.partitions
        },
    }


def _of_controller(found: ReplicasDescription) -> dict[str, int]:
    preferred = [
        each for each in found.partitions if each.replicas and each.leader != each.replicas[0]
    ]
    answering = sum(each.answers for each in found.directories)
    return {
        "ActiveBrokerCount": answering,
        "FencedBrokerCount": len(found.directories) - answering,
        "GlobalTopicCount": len({each.topic for each in found.partitions}),
        "GlobalPartitionCount": len(found.partitions),
        "OfflinePartitionsCount": sum(each.offline for each in found.partitions),
        "PreferredReplicaImbalanceCount": len(preferred),
    }


def _of_partitions(partitions: Iterable[ReplicatedPartitionDescription]) -> dict[str, int]:
    """The gauges that a broker has for the partitions that it leads."""
    every = list(partitions)
    return {
        "UnderReplicatedPartitions": sum(each.under_replicated for each in every),
        "UnderMinIsrPartitionCount": sum(each.under_min_isr for each in every),
        "AtMinIsrPartitionCount": sum(each.at_min_isr for each in every),
        "ReassigningPartitions": sum(each.reassigning for each in every),
    }


def _of_replicas(
    found: ReplicasDescription, directories: Iterable[DirectoryDescription]
) -> dict[str, int]:
    """The gauges that a broker has for its replicas."""
    nodes = {each.node: each.answers for each in directories}
    held = [node for each in found.partitions for node in each.replicas if node in nodes]
    return {
        "PartitionCount": len(held),
        "LeaderCount": sum(each.leader in nodes for each in found.partitions),
        "OfflineReplicaCount": sum(not nodes[node] for node in held),
    }


def _of_directory(found: ReplicasDescription, directory: DirectoryDescription) -> dict[str, Any]:
    node = directory.node
    led = [each for each in found.partitions if each.leader == node]
    lags = [
        copy.lag
        for each in found.partitions
        for copy in each.copies
        if copy.node == node and copy.lag is not None
    ]
    return {
        **_of_partitions(led),
        **_of_replicas(found, [directory]),
        "MaxLag": max(lags, default=0),
    }


def _of_partition(each: ReplicatedPartitionDescription) -> dict[str, Any]:
    return {
        "UnderReplicated": int(each.under_replicated),
        "UnderMinIsr": int(each.under_min_isr),
        "AtMinIsr": int(each.at_min_isr),
        "InSyncReplicasCount": len(each.isr),
        "ReplicasCount": len(each.replicas),
        "replicas": {copy.node: _of_replica(copy) for copy in each.copies},
    }


def _of_replica(copy: ReplicaDescription) -> dict[str, int | float | None]:
    return {"ConsumerLag": copy.lag, "lag-bytes": copy.lag_bytes, "lag-seconds": copy.lag_seconds}
