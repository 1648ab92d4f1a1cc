"""Decides about topics and settings.

- Partitions are placed on the usable directories that answer, by the formulas of `placement`; on
  all usable ones if too few answer.
- In a new partition all live replicas are in the ISR, and the first one leads.
- A deletion removes the topic, its partitions and its settings in one decision; the keys of them
  become tombstones.
- A change of `min.insync.replicas` ends the ELR of each partition whose ISR is now large enough.
  From then on records are committed that the members of the ELR do not have. The change is refused
  while such a partition has no complete leader. Until then a member of the ELR may have the only
  copy of a committed record.
- A topic of the first directory keeps its id and its settings; that directory is the only replica
  and leads.
- A change of `min.insync.replicas` that makes an ISR large enough, or too small, is a decision
  about its partition, too. Only a decision brings the setting into the page of the leader.
- The settings of a topic parse together after a change, not each changed one alone: otherwise no
  process could apply them.
- The records of the settings of a new topic show that it was created with them. Those of a change
  do not, nor those of a topic of the first directory: that one may have been changed before.
- A topic is created only if no topic was deleted since the creating process began to delete the
  offsets of its name. One of this name that was created and deleted meanwhile can have committed
  offsets, which its own deletion would leave to the new topic.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from embedlog.config.options import known_only, parse
from embedlog.config.topic import TopicConfig
from embedlog.errors import (
    ConfigError,
    InvalidPartitionsError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
)
from embedlog.replicas.rules.elections import Ruling, change_partition
from embedlog.replicas.rules.events import (
    CreatePartitions,
    CreateTopic,
    DeleteTopic,
    HeldTopic,
    Refusal,
    SetConfig,
)
from embedlog.replicas.rules.placement import Assignment, Racks, Shape, extend, place_replicas
from embedlog.replicas.rules.records import (
    NODE,
    ORIGINAL,
    TOPIC,
    DecidedConfig,
    DecidedPartition,
    DecidedTopic,
    Record,
    RegisterBroker,
    RemoveTopic,
    Tombstone,
    key_of,
)
from embedlog.replicas.rules.state import State, apply_all, serves


def create_topic(state: State, event: CreateTopic) -> Ruling:
    """A topic with its settings and partitions."""
    folded = {topic.name.replace(".", "_") for topic in state.topics.values()}
    if event.topic_uuid in state.topics or event.name.replace(".", "_") in folded:
        return Refusal.TOPIC_ALREADY_EXISTS
    if event.removed != state.removed:
        return Refusal.TOPIC_DELETED
    if not _is_allowed(event.config):
        return Refusal.INVALID_CONFIG
    assignment = event.assignment
    if assignment is None:
        try:
            targets = _targets(state, event.live, event.factor)
            assignment = place_replicas(
                targets, Shape(event.partitions, event.factor), start=event.start, shift=event.shift
            )
        except (
            InvalidPartitionsError,
            InvalidReplicationFactorError,
            InvalidReplicaAssignmentError,
        ) as problem:
            return _REFUSALS[type(problem)]
    if not assignment:
        return Refusal.INVALID_PARTITIONS
    topic = DecidedTopic(event.name, event.topic_uuid)
    configs = [
        DecidedConfig(TOPIC, event.name, name, value, (ORIGINAL,))
        for name, value in sorted(event.config.items())
    ]
    partitions = _new_partitions(state, topic, assignment, event.live)
    if isinstance(partitions, Refusal):
        return partitions
    return (topic, *configs, *partitions)


def held_records(directory: RegisterBroker, held: Iterable[HeldTopic]) -> Iterator[Record]:
    """The topics of the first directory of a set."""
    node = directory.node
    for topic in held:
        yield DecidedTopic(topic.name, topic.topic_uuid)
        for name, value in sorted(topic.config.items()):
            yield DecidedConfig(TOPIC, topic.name, name, value)
        for number, epoch in enumerate(topic.epochs):
            yield DecidedPartition(
                topic_uuid=topic.topic_uuid,
                number=number,
                replicas=(node,),
                isr=(node,),
                leader=node,
                leader_epoch=epoch,
                partition_epoch=0,
                directories=(directory.directory,),
                leader_registration_id=directory.registration_id,
            )


def create_partitions(state: State, event: CreatePartitions) -> Ruling:
    """More partitions of a topic."""
    topic = state.topics.get(event.topic_uuid)
    existing_partitions = state.partitions_of(event.topic_uuid)
    if topic is None or not existing_partitions:
        return Refusal.UNKNOWN_TOPIC_OR_PARTITION
    if event.total <= len(existing_partitions):
        return Refusal.INVALID_PARTITIONS
    existing = [
        [node for node in partition.replicas if node not in partition.removing]
        for partition in existing_partitions
    ]
    factor = len(existing[0])
    assignment = event.assignment
    if assignment is None:
        try:
            assignment = extend(_targets(state, event.live, factor), existing, event.total)
        except (InvalidReplicationFactorError, InvalidReplicaAssignmentError) as problem:
            return _REFUSALS[type(problem)]
    if len(assignment) != event.total - len(existing_partitions):
        return Refusal.INVALID_REPLICA_ASSIGNMENT
    return _new_partitions(
        state, topic, assignment, event.live, first=len(existing_partitions), factor=factor
    )


def delete_topic(state: State, event: DeleteTopic) -> Ruling:
    """Remove a topic, its partitions and its settings in one decision."""
    topic = state.topics.get(event.topic_uuid)
    if topic is None:
        return Refusal.UNKNOWN_TOPIC_OR_PARTITION
    removed: list[Record] = [topic, *state.partitions_of(event.topic_uuid)]
    names = sorted(
        name for kind, resource, name in state.settings if (kind, resource) == (TOPIC, topic.name)
    )
    removed += [DecidedConfig(TOPIC, topic.name, name, None) for name in names]
    return (RemoveTopic(event.topic_uuid), *(Tombstone(key_of(record)) for record in removed))


def set_config(state: State, event: SetConfig) -> Ruling:
    """Other settings, and the ends of ELRs that follow from them."""
    if event.kind == TOPIC:
        if event.resource not in {topic.name for topic in state.topics.values()}:
            return Refusal.UNKNOWN_TOPIC_OR_PARTITION
    elif (event.kind, event.resource) != (NODE, ""):
        return Refusal.INVALID_REQUEST
    new_values = {name: value for name, value in event.changes.items() if value is not None}
    if not _is_allowed(new_values) or not _is_allowed(_known_settings_after(state, event)):
        return Refusal.INVALID_CONFIG
    records: list[Record] = []
    for name, value in sorted(event.changes.items()):
        if state.settings.get((event.kind, event.resource, name)) != value:
            records.append(DecidedConfig(event.kind, event.resource, name, value))
    after = apply_all(state, records)
    ended = _with_needless_elr(after)
    # who leads after the end of an ELR must have everything, by what the deciding process has observed
    for partition in ended:
        seen = event.seen.get((partition.topic_uuid, partition.number), {})
        if not serves(state, partition, seen):
            return Refusal.LEADER_NOT_AVAILABLE
    # without `eligible`, so that the ELR ends
    records += [
        change_partition(after, partition, isr=partition.isr, recovering=partition.recovering)
        for partition in ended
    ]
    records += [
        change_partition(
            after,
            partition,
            isr=partition.isr,
            eligible=partition.elr,
            recovering=partition.recovering,
        )
        for partition in _with_changed_sufficiency(state, after)
    ]
    return tuple(records)


def _targets(state: State, live: Iterable[int], least: int) -> Racks:
    """The directories for new replicas: those that answer; all of them if fewer than `least`
    answer. Then a partition can get only silent ones, and `_new_partitions` refuses it.
    """
    usable = state.usable_racks()
    answering = {node: rack for node, rack in usable.items() if node in live}
    if len(answering) < least:
        return usable
    return answering


def _new_partitions(
    state: State,
    topic: DecidedTopic,
    assignment: Assignment,
    live: Iterable[int],
    first: int = 0,
    factor: int | None = None,
) -> tuple[DecidedPartition, ...] | Refusal:
    """The partitions of an assignment, from the number `first` on; the first live replica of each leads.
    Refused unless each has `factor` replicas (as many as the first one, if not given), all of them
    different and usable, and one of them live.
    """
    usable = state.usable_racks()
    if factor is None:
        factor = len(assignment[0])
    partitions = []
    for number, replicas in enumerate(assignment, first):
        isr = tuple(node for node in replicas if node in live)
        is_regular = len(replicas) == len(set(replicas)) == factor
        if not is_regular or not isr or not usable.keys() >= set(replicas):
            return Refusal.INVALID_REPLICA_ASSIGNMENT
        directories = tuple(state.nodes[node].directory for node in replicas)
        leader = isr[0]
        partitions.append(
            DecidedPartition(
                topic_uuid=topic.topic_uuid,
                number=number,
                replicas=replicas,
                isr=isr,
                leader=leader,
                leader_epoch=0,
                partition_epoch=0,
                directories=directories,
                leader_registration_id=state.nodes[leader].registration_id,
            )
        )
    return tuple(partitions)


def _with_needless_elr(state: State) -> list[DecidedPartition]:
    """The partitions whose ISR is large enough, although they have an ELR."""
    return [
        partition
        for partition in state.partitions.values()
        if partition.elr and len(partition.isr) >= state.required_size(partition)
    ]


def _with_changed_sufficiency(state: State, after: State) -> list[DecidedPartition]:
    """The partitions whose ISR is large enough in one of the two states only, without those whose
    ELR ends.
    """
    affected = []
    for partition in after.partitions.values():
        was_small = len(partition.isr) < state.required_size(partition)
        is_small = len(partition.isr) < after.required_size(partition)
        if was_small != is_small and (is_small or not partition.elr):
            affected.append(partition)
    return affected


def _known_settings_after(state: State, event: SetConfig) -> dict[str, Any]:
    """The settings of the resource after the change: two values that are valid alone may not be
    valid together. Those of a newer version are left out.
    """
    settings = {
        name: value
        for (kind, resource, name), value in state.settings.items()
        if (kind, resource) == (event.kind, event.resource) and name not in event.changes
    }
    settings.update((name, value) for name, value in event.changes.items() if value is not None)
    return known_only(TopicConfig, settings)


def _is_allowed(config: Mapping[str, str]) -> bool:
    try:
        parse(TopicConfig, config)
    except ConfigError:
        return False
    return True


_REFUSALS = {
    InvalidPartitionsError: Refusal.INVALID_PARTITIONS,
    InvalidReplicationFactorError: Refusal.INVALID_REPLICATION_FACTOR,
    InvalidReplicaAssignmentError: Refusal.INVALID_REPLICA_ASSIGNMENT,
}
