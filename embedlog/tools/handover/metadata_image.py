"""Contains `Image`, the state of a cluster that results from its metadata records.

- Records that concern neither topics nor settings are kept in their order, so that a new snapshot
  repeats them.
- A record about an unknown topic or partition is damage, as it is for a broker.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from embedlog.errors import CorruptRecordError
from embedlog.tools.handover import metadata_log
from embedlog.tools.handover import metadata_records as records
from embedlog.tools.handover.metadata_log import MetadataLog
from embedlog.tools.handover.metadata_records import (
    ConfigRecord,
    FeatureLevel,
    PartitionRecord,
    ProducerIds,
    RegisterBrokerRecord,
)

_DROPPED: Final = (records.NO_OP, records.CLEAR_ELR)


@dataclass(slots=True)
class TopicState:
    """One topic of the cluster."""

    name: str
    topic_id: str
    partitions: dict[int, PartitionRecord] = field(default_factory=dict)


@dataclass(slots=True)
class Image:
    """The state of a cluster. `settings` are by kind and resource."""

    topics: dict[str, TopicState] = field(default_factory=dict)  # by topic id
    settings: dict[tuple[int, str], dict[str, str]] = field(default_factory=dict)
    features: dict[str, int] = field(default_factory=dict)
    brokers: dict[int, RegisterBrokerRecord] = field(default_factory=dict)
    producer_ids: ProducerIds | None = None
    others: list[bytes] = field(default_factory=list)

    def settings_of(self, topic: str) -> dict[str, str]:
        """The settings of a topic itself."""
        return self.settings.get((records.TOPIC_SETTINGS, topic), {})

    def values(self, partition_version: int) -> Iterator[bytes]:
        """The records of a snapshot of this state."""
        # metadata.version comes first: it determines how the other records are read
        names = sorted(self.features, key=lambda name: name != "metadata.version")
        for name in names:
            yield records.encode_feature(FeatureLevel(name, self.features[name]))
        yield from self.others
        for topic in self.topics.values():
            yield records.encode_topic(records.TopicRecord(topic.name, topic.topic_id))
            for _, partition in sorted(topic.partitions.items()):
                yield records.encode_partition(partition, partition_version)
        for (kind, resource), settings in sorted(self.settings.items()):
            for name, value in sorted(settings.items()):
                yield records.encode_config(ConfigRecord(kind, resource, name, value))
        if self.producer_ids is not None:
            yield records.encode_producer_ids(self.producer_ids)

    # ---- records ---------------------------------------------------------------------------------

    def apply(self, value: bytes, record: records.Record) -> None:
        """Change the state by one record. Raises CorruptRecordError."""
        match record:
            case records.TopicRecord(name, topic_id):
                self.topics[topic_id] = TopicState(name, topic_id)
            case records.RemoveTopicRecord(topic_id):
                self.settings.pop((records.TOPIC_SETTINGS, self._find_topic(topic_id).name), None)
                del self.topics[topic_id]
            case records.PartitionRecord(topic_id, number):
                self._find_topic(topic_id).partitions[number] = record
            case records.PartitionChange():
                self._apply_change(record)
            case records.ConfigRecord(kind, resource, name, setting):
                settings = self.settings.setdefault((kind, resource), {})
                settings.pop(name, None)
                if setting is not None:
                    settings[name] = setting
            case records.FeatureLevel(name, level):
                self.features.pop(name, None)
                if level:
                    self.features[name] = level
            case records.ProducerIds():
                self.producer_ids = record
            case _:
                self._keep(value, record)

    def _keep(self, value: bytes, record: records.Record) -> None:
        match record:
            case records.RegisterBrokerRecord(node):
                self.brokers[node] = record
            case records.UnregisterBrokerRecord(node):
                self.brokers.pop(node, None)
            case records.RegistrationChange(node, directories) if (
                directories is not None and node in self.brokers
            ):
                self.brokers[node] = replace(self.brokers[node], directories=directories)
            case records.Other(kind) if kind in _DROPPED:
                return
        self.others.append(value)

    def _find_topic(self, topic_id: str) -> TopicState:
        topic = self.topics.get(topic_id)
        if topic is None:
            raise CorruptRecordError("a metadata record about an unknown topic", found=topic_id)
        return topic

    def _apply_change(self, change: records.PartitionChange) -> None:
        partitions = self._find_topic(change.topic_id).partitions
        partition = partitions.get(change.number)
        if partition is None:
            raise CorruptRecordError(
                "a metadata record about an unknown partition",
                found=f"{change.topic_id} {change.number}",
            )
        partition = replace(partition, partition_epoch=partition.partition_epoch + 1)
        if change.replicas is not None:
            partition = replace(partition, replicas=change.replicas)
        if change.isr is not None:
            partition = replace(partition, isr=change.isr)
        if change.directories is not None:
            partition = replace(partition, directories=change.directories)
        if change.leader is not None:
            leader_epoch = partition.leader_epoch + 1
            partition = replace(partition, leader=change.leader, leader_epoch=leader_epoch)
        partitions[change.number] = partition


def read(directory: Path) -> tuple[Image, MetadataLog]:
    """The state of the cluster, and the log that it was read from. Raises CorruptRecordError,
    UnsupportedFormatError.
    """
    log = metadata_log.read(directory)
    image = Image()
    for entry in log.entries:
        if entry.record is not None:
            image.apply(entry.value, entry.record)
    return image, log
