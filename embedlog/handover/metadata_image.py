"""Contains `Image`, the state of a cluster that results from its metadata records.

METADATAIMAGE-1  records that concern neither topics nor settings are kept in their order, so that a
    new snapshot repeats them
METADATAIMAGE-2  a record about an unknown topic or partition is damage, as it is for a broker
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from embedlog.errors import CorruptRecordError
from embedlog.handover import metadata_log
from embedlog.handover import metadata_records as records
from embedlog.handover.metadata_log import MetadataLog
from embedlog.handover.metadata_records import (
    Config,
    FeatureLevel,
    Partition,
    ProducerIds,
    RegisterBroker,
)

_DROPPED: Final = (records.NO_OP, records.CLEAR_ELR)


@dataclass(slots=True)
class TopicState:
    """One topic of the cluster."""

    name: str
    topic_id: str
    partitions: dict[int, Partition] = field(default_factory=dict)


@dataclass(slots=True)
class Image:
    """The state of a cluster. `settings` are by kind and resource."""

    topics: dict[str, TopicState] = field(default_factory=dict)  # by topic id
    settings: dict[tuple[int, str], dict[str, str]] = field(default_factory=dict)
    features: dict[str, int] = field(default_factory=dict)
    brokers: dict[int, RegisterBroker] = field(default_factory=dict)
    producer_ids: ProducerIds | None = None
    others: list[bytes] = field(default_factory=list)

    def settings_of(self, topic: str) -> dict[str, str]:
        """The settings of a topic itself."""
        return self.settings.get((records.TOPIC_SETTINGS, topic), {})

    def values(self, partition_version: int) -> Iterator[bytes]:
        """The records of a snapshot of this state (METADATAIMAGE-1)."""
        first = sorted(
            self.features.items(), key=lambda each: each[0] != "metadata.version"
        )  # it determines how the rest is read
        yield from (records.feature_record(FeatureLevel(name, level)) for name, level in first)
        yield from self.others
        for topic in self.topics.values():
            yield records.topic_record(records.Topic(topic.name, topic.topic_id))
            for _, partition in sorted(topic.partitions.items()):
                yield records.partition_record(partition, partition_version)
        for (kind, resource), settings in sorted(self.settings.items()):
            yield from (
                records.config_record(Config(kind, resource, name, value))
                for name, value in sorted(settings.items())
            )
        if self.producer_ids is not None:
            yield records.producer_ids_record(self.producer_ids)

    # ---- records ---------------------------------------------------------------------------------

    def apply(self, value: bytes, record: records.Record) -> None:
        """Change the state by one record. Raises CorruptRecordError (METADATAIMAGE-2)."""
        match record:
            case records.Topic(name, topic_id):
                self.topics[topic_id] = TopicState(name, topic_id)
            case records.RemoveTopic(topic_id):
                self.settings.pop((records.TOPIC_SETTINGS, self._topic(topic_id).name), None)
                del self.topics[topic_id]
            case records.Partition(topic_id, number):
                self._topic(topic_id).partitions[number] = record
            case records.PartitionChange():
                self._change(record)
            case records.Config(kind, resource, name, setting):
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
            case records.RegisterBroker(node):
                self.brokers[node] = record
            case records.UnregisterBroker(node):
                self.brokers.pop(node, None)
            case records.RegistrationChange(node, directories) if (
                directories is not None and node in self.brokers
            ):
                self.brokers[node] = replace(self.brokers[node], directories=directories)
            case records.Other(kind) if kind in _DROPPED:
                return
        self.others.append(value)

    def _topic(self, topic_id: str) -> TopicState:
        found = self.topics.get(topic_id)
        if found is None:
            raise CorruptRecordError("a metadata record about an unknown topic", found=topic_id)
        return found

    def _change(self, change: records.PartitionChange) -> None:
        partitions = self._topic(change.topic_id).partitions
        before = partitions.get(change.number)
        if before is None:
            raise CorruptRecordError(
                "a metadata record about an unknown partition",
                found=f"{change.topic_id} {change.number}",
            )
        partitions[change.number] = replace(
            before,
            replicas=before.replicas if change.replicas is None else change.replicas,
            isr=before.isr if change.isr is None else change.isr,
            directories=before.directories if change.directories is None else change.directories,
            leader=before.leader if change.leader is None else change.leader,
            leader_epoch=before.leader_epoch + (change.leader is not None),
            partition_epoch=before.partition_epoch + 1,
        )


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
