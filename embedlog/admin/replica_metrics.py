"""Metrics of an open log with the names of Kafka's broker and controller (`log.metrics()`).

- Gauges are counted in one description of all directories; each directory has those of a broker.
- Meters and timers count the events of this process: the decisions that it made, and the bytes that
  it copied.
- `ActiveControllerCount` does not exist: any process decides, on a majority of the directories.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from embedlog.descriptions.directories import (
    DirectoryDescription,
    ReplicaDescription,
    ReplicasDescription,
    ReplicatedPartitionDescription,
)
from embedlog.replicas.observation.replica_events import Meter, ReplicaEvents, Timer
from embedlog.types import TopicPartition


def report(description: ReplicasDescription, events: ReplicaEvents) -> dict[str, Any]:
    """All metrics of the log: of the controller, of the brokers together, and by directory and
    partition.
    """
    meters: dict[str, Meter | Timer] = events.report()
    return {
        **_controller_metrics(description),
        **_partition_counts(description.partitions),
        **_replica_counts(description, description.directories),
        **meters,
        "directories": {
            directory.node: _directory_metrics(description, directory)
            for directory in description.directories
        },
        "partitions": {
            TopicPartition(partition.topic, partition.partition): _partition_metrics(partition)
            for partition in description.partitions
        },
    }


def _controller_metrics(description: ReplicasDescription) -> dict[str, int]:
    preferred = [
        partition
        for partition in description.partitions
        if partition.replicas and partition.leader != partition.replicas[0]
    ]
    answering = sum(directory.answers for directory in description.directories)
    return {
        "ActiveBrokerCount": answering,
        "FencedBrokerCount": len(description.directories) - answering,
        "GlobalTopicCount": len({partition.topic for partition in description.partitions}),
        "GlobalPartitionCount": len(description.partitions),
        "OfflinePartitionsCount": sum(partition.offline for partition in description.partitions),
        "PreferredReplicaImbalanceCount": len(preferred),
    }


def _partition_counts(partitions: Iterable[ReplicatedPartitionDescription]) -> dict[str, int]:
    """The gauges that a broker has for the partitions that it leads."""
    every = list(partitions)
    return {
        "UnderReplicatedPartitions": sum(partition.under_replicated for partition in every),
        "UnderMinIsrPartitionCount": sum(partition.under_min_isr for partition in every),
        "AtMinIsrPartitionCount": sum(partition.at_min_isr for partition in every),
        "ReassigningPartitions": sum(partition.reassigning for partition in every),
    }


def _replica_counts(
    description: ReplicasDescription, directories: Iterable[DirectoryDescription]
) -> dict[str, int]:
    """The gauges that a broker has for its replicas."""
    nodes = {directory.node: directory.answers for directory in directories}
    replica_nodes = [
        node for partition in description.partitions for node in partition.replicas if node in nodes
    ]
    return {
        "PartitionCount": len(replica_nodes),
        "LeaderCount": sum(partition.leader in nodes for partition in description.partitions),
        "OfflineReplicaCount": sum(not nodes[node] for node in replica_nodes),
    }


def _directory_metrics(
    description: ReplicasDescription, directory: DirectoryDescription
) -> dict[str, Any]:
    node = directory.node
    led = [partition for partition in description.partitions if partition.leader == node]
    lags = [
        copy.lag
        for partition in description.partitions
        for copy in partition.copies
        if copy.node == node and copy.lag is not None
    ]
    return {
        **_partition_counts(led),
        **_replica_counts(description, [directory]),
        "MaxLag": max(lags, default=0),
    }


def _partition_metrics(partition: ReplicatedPartitionDescription) -> dict[str, Any]:
    return {
        "UnderReplicated": int(partition.under_replicated),
        "UnderMinIsr": int(partition.under_min_isr),
        "AtMinIsr": int(partition.at_min_isr),
        "InSyncReplicasCount": len(partition.isr),
        "ReplicasCount": len(partition.replicas),
        "replicas": {copy.node: _replica_metrics(copy) for copy in partition.copies},
    }


def _replica_metrics(copy: ReplicaDescription) -> dict[str, int | float | None]:
    return {"ConsumerLag": copy.lag, "lag-bytes": copy.lag_bytes, "lag-seconds": copy.lag_seconds}
