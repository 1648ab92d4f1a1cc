"""Computes the state of a set from the records of its decision log, and the views of partitions and
replicas.

- A state is immutable; `apply` returns another one and leaves the old one unchanged.
- A state depends only on the newest record of every key in the order of the log, so compaction does
  not change it. A tombstone changes nothing itself: the decision that appended it also has the
  record that removes the key, such as `RemoveTopic`.
- The states of partitions and replicas are views with the names of Kafka's controller: computed,
  not stored.
- A setting of a topic is its own, else the one of the resource "" of kind NODE, else the default of
  its option.
- No decision depends on the settings of a log: those of two processes may differ.
- A setting of a topic is original while its newest record is that of the topic's creation. Each
  process that knows the topic has always known this value. A later value may be unknown to a
  process for any time, and earlier records lack it.
- `removed` is the topic of the last deletion that the records of the log show. Compaction may
  remove its record, so it is compared only with that of an earlier state: if both are equal, no
  topic was deleted between them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import lru_cache
from types import MappingProxyType
from typing import Final, TypeAlias
from uuid import UUID

from embedlog.config.options import parse
from embedlog.config.topic import TopicConfig
from embedlog.replicas.rules.events import Condition, Observed, PartitionId
from embedlog.replicas.rules.records import (
    NODE,
    ORIGINAL,
    TOPIC,
    DecidedConfig,
    DecidedPartition,
    DecidedTopic,
    NoOp,
    Record,
    RegisterBroker,
    RemoveTopic,
    Tombstone,
    UnregisterBroker,
)

Setting: TypeAlias = tuple[int, str, str]  # kind, resource, name
# tag of a DecidedPartition: bytes per second for the copies of its reassignment
_THROTTLE: Final = 10001
_RATE: Final = struct.Struct(">q")
LEAST: Final = "min.insync.replicas"
UNCLEAN: Final = "unclean.leader.election.enable"
_FLUSH: Final = "flush.messages"
_DECISIVE: Final = (LEAST, _FLUSH, UNCLEAN)


@dataclass(frozen=True, slots=True)
class State:
    """Directories, topics, partitions and settings after a number of decisions. `highest_node` was
    ever registered.
    """

    cluster_id: str
    nodes: Mapping[int, RegisterBroker] = field(default_factory=lambda: MappingProxyType({}))
    topics: Mapping[UUID, DecidedTopic] = field(default_factory=lambda: MappingProxyType({}))
    partitions: Mapping[PartitionId, DecidedPartition] = field(
        default_factory=lambda: MappingProxyType({})
    )
    settings: Mapping[Setting, str] = field(default_factory=lambda: MappingProxyType({}))
    original: frozenset[Setting] = frozenset()  # of the settings
    highest_node: int = -1
    removed: UUID | None = field(default=None, compare=False)  # see the module

    @property
    def voters(self) -> tuple[int, ...]:
        """The nodes of which a majority decides."""
        return tuple(sorted(node for node, member in self.nodes.items() if member.voter))

    @property
    def generation(self) -> int:
        """The generation of the set."""
        return max((member.generation for member in self.nodes.values()), default=0)

    def usable_racks(self) -> dict[int, str | None]:
        """The nodes that take replicas, with their racks."""
        return {
            node: member.rack
            for node, member in sorted(self.nodes.items())
            if member.replicas and not member.leaving
        }

    def partitions_of(self, topic_uuid: UUID) -> list[DecidedPartition]:
        """The partitions of a topic by number."""
        partitions = [
            partition
            for partition in self.partitions.values()
            if partition.topic_uuid == topic_uuid
        ]
        return sorted(partitions, key=lambda partition: partition.number)

    def config(self, topic: str) -> TopicConfig:
        """The settings of a topic that decisions depend on. Raises ConfigError for a stored value
        out of range.
        """
        decided = list[tuple[str, str]]()
        for name in _DECISIVE:
            value = self.settings.get((TOPIC, topic, name), self.settings.get((NODE, "", name)))
            if value is not None:
                decided.append((name, value))
        return _parse(tuple(decided))

    def required_size(self, partition: DecidedPartition, default: int = 1) -> int:
        """The size of the ISR from which records are committed: `min.insync.replicas`, at most the
        number of replicas.

        `default`: that of a process, for its own appends to a topic without a decided value.
        """
        topic = self.topics.get(partition.topic_uuid)
        least = default
        if topic is not None and self._has_decision(topic.name, LEAST):
            least = self.config(topic.name).min_insync_replicas
        return min(least, len(partition.replicas))

    def allows_unclean(self, topic: str) -> bool | None:
        """Whether a replica outside the ISR may lead without a request, as decided for the topic;
        None without a decision.
        """
        if not self._has_decision(topic, UNCLEAN):
            return None
        return self.config(topic).unclean_leader_election_enable

    def _has_decision(self, topic: str, name: str) -> bool:
        """Whether there is a decision about a setting of a topic, or about that of all topics."""
        return (TOPIC, topic, name) in self.settings or (NODE, "", name) in self.settings

    def is_durable(self, partition: DecidedPartition) -> bool:
        """Whether every record of the topic was synced before its acknowledgement, in each
        process.
        """
        topic = self.topics.get(partition.topic_uuid)
        if topic is None or (TOPIC, topic.name, _FLUSH) not in self.original:
            return False
        return self.config(topic.name).durable


@lru_cache(maxsize=256)
def _parse(settings: tuple[tuple[str, str], ...]) -> TopicConfig:
    return parse(TopicConfig, dict(settings))


def apply(state: State, record: Record) -> State:
    """The state after one more record."""
    return apply_all(state, (record,))


def apply_all(state: State, records: Iterable[Record]) -> State:
    """The state after more records, in the order of the log."""
    draft = Draft(state)
    for record in records:
        draft.apply(record)
    return draft.state()


class Draft:
    """A state that is being changed. Threads: one."""

    def __init__(self, state: State) -> None:
        self._old = state
        self._nodes = dict(state.nodes)
        self._topics = dict(state.topics)
        self._partitions = dict(state.partitions)
        self._settings = dict(state.settings)
        self._original = set(state.original)
        self._highest = state.highest_node
        self._removed = state.removed

    def apply(self, record: Record) -> None:
        """Apply one more record."""
        match record:
            case RegisterBroker():
                self._nodes[record.node] = record
                self._highest = max(self._highest, record.node)
            case UnregisterBroker():
                self._nodes.pop(record.node, None)
                self._highest = max(self._highest, record.node)
            case DecidedTopic():
                self._topics[record.topic_uuid] = record
            case DecidedPartition():
                self._partitions[record.topic_uuid, record.number] = record
            case DecidedConfig():
                self._set(record)
            case RemoveTopic():
                self._remove(record.topic_uuid)
            case NoOp() | Tombstone():
                pass

    def _set(self, record: DecidedConfig) -> None:
        key = (record.kind, record.resource, record.name)
        self._original.discard(key)
        if record.value is None:
            self._settings.pop(key, None)
            return
        self._settings[key] = record.value
        if ORIGINAL in record.others:
            self._original.add(key)

    def _remove(self, topic_uuid: UUID) -> None:
        self._removed = topic_uuid
        topic = self._topics.pop(topic_uuid, None)
        self._partitions = {
            partition_id: partition
            for partition_id, partition in self._partitions.items()
            if partition.topic_uuid != topic_uuid
        }
        if topic is not None:
            resource = (TOPIC, topic.name)
            self._settings = {
                key: value for key, value in self._settings.items() if key[:2] != resource
            }
            self._original = {key for key in self._original if key[:2] != resource}

    def state(self) -> State:
        """The state now. It must not be used after the next `apply`: both have the same
        mappings.
        """
        return replace(
            self._old,
            nodes=MappingProxyType(self._nodes),
            topics=MappingProxyType(self._topics),
            partitions=MappingProxyType(self._partitions),
            settings=MappingProxyType(self._settings),
            original=frozenset(self._original),
            highest_node=self._highest,
            removed=self._removed,
        )


# ---- views ---------------------------------------------------------------------------------------


class PartitionState(Enum):
    """The state of a partition, with the names of Kafka's controller."""

    NON_EXISTENT = "NonExistentPartition"
    NEW = "NewPartition"
    ONLINE = "OnlinePartition"
    OFFLINE = "OfflinePartition"


class ReplicaState(Enum):
    """The state of a replica, with the names of Kafka's controller."""

    NON_EXISTENT = "NonExistentReplica"
    NEW = "NewReplica"
    ONLINE = "OnlineReplica"
    OFFLINE = "OfflineReplica"
    DELETION_STARTED = "ReplicaDeletionStarted"
    DELETION_SUCCESSFUL = "ReplicaDeletionSuccessful"
    DELETION_INELIGIBLE = "ReplicaDeletionIneligible"


def partition_state(
    state: State, partition_id: PartitionId, *, installed: bool, seen: Observed
) -> PartitionState:
    """The state of a partition. `installed`: a decision about it was stored in a leader's page at
    any time.
    """
    partition = state.partitions.get(partition_id)
    if partition is None:
        return PartitionState.NON_EXISTENT
    if not installed:
        return PartitionState.NEW
    if serves(state, partition, seen):
        return PartitionState.ONLINE
    return PartitionState.OFFLINE


def replica_state(
    state: State,
    partition_id: PartitionId,
    node: int,
    *,
    live: bool,
    held: bool,
    known: bool = True,
) -> ReplicaState:
    """The state of a replica. `live`: its directory answers; `held`: it has the partition's
    directory.

    `known`: the replica was assigned before. It separates a finished deletion from a replica that
    never was.
    """
    partition = state.partitions.get(partition_id)
    if partition is not None and node in partition.replicas:
        if not live:
            return ReplicaState.OFFLINE
        return ReplicaState.ONLINE if held else ReplicaState.NEW
    if held:
        return ReplicaState.DELETION_STARTED if live else ReplicaState.DELETION_INELIGIBLE
    return ReplicaState.DELETION_SUCCESSFUL if known else ReplicaState.NON_EXISTENT


def serves(state: State, partition: DecidedPartition, seen: Observed) -> bool:
    """Whether the leader is complete, and its directory has the registration id with which it was
    elected.
    """
    is_complete = condition_of(state, seen, partition.leader) is Condition.COMPLETE
    return (
        is_complete
        and state.nodes[partition.leader].registration_id == partition.leader_registration_id
    )


def condition_of(state: State, seen: Observed, node: int) -> Condition:
    """The observed state of a node's replica, away if observed with another registration id."""
    registered = state.nodes.get(node)
    replica = seen.get(node)
    if (
        registered is None
        or replica is None
        or replica.registration_id != registered.registration_id
    ):
        return Condition.AWAY
    return replica.condition


def throttle_of(partition: DecidedPartition) -> int | None:
    """Bytes per second for the copies of a reassignment; None without a limit."""
    data = dict(partition.others).get(_THROTTLE)
    if data is None or len(data) != _RATE.size:
        return None
    return int(_RATE.unpack(data)[0])


def with_throttle(partition: DecidedPartition, throttle: int | None) -> DecidedPartition:
    """The partition with another limit."""
    fields = [(tag, data) for tag, data in partition.others if tag != _THROTTLE]
    if throttle is not None:
        fields.append((_THROTTLE, _RATE.pack(throttle)))
        fields.sort()
    return replace(partition, others=tuple(fields))
