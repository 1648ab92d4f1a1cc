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
- The records of the settings of a new topic show that it was created with them. Those of a change
  do not, nor those of a topic of the first directory: that one may have been changed before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from embedlog.config.options import parse
from embedlog.config.topic import TopicConfig
from embedlog.errors import (
    ConfigError,
    InvalidPartitionsError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
)
from embedlog.replicas.rules.elections import Decision, changed
from embedlog.replicas.rules.events import (
    CreatePartitions,
    CreateTopic,
    DeleteTopic,
    HeldTopic,
    Refusal,
    SetConfig,
)
from embedlog.replicas.rules.placement import Assignment, Racks, Shape, extend, place
from embedlog.replicas.rules.records import (
    NODE,
    ORIGINAL,
    TOPIC,
    Config,
    Partition,
    Record,
    RegisterBroker,
    RemoveTopic,
    Tombstone,
    Topic,
    key_of,
)
from embedlog.replicas.rules.state import State, apply_all, serves


def create_topic(state: State, event: CreateTopic) -> Decision:
    """A topic with its settings and partitions."""
    folded = {each.name.replace(".", "_") for each in state.topics.values()}
    if event.topic_id in state.topics or event.name.replace(".", "_") in folded:
        return Refusal.TOPIC_ALREADY_EXISTS
    if not _is_allowed(event.config):
        return Refusal.INVALID_CONFIG
    assignment = event.assignment
    if assignment is None:
        try:
            targets = _targets(state, event.live, event.factor)
            assignment = place(
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
    topic = Topic(event.name, event.topic_id)
    configs = [
        Config(TOPIC, event.name, name, value, (ORIGINAL,))
        for name, value in sorted(event.config.items())
    ]
    partitions = _new(state, topic, assignment, event.live)
    return partitions if isinstance(partitions, Refusal) else (topic, *configs, *partitions)


def held_records(directory: RegisterBroker, held: Iterable[HeldTopic]) -> Iterator[Record]:
    """The topics of the first directory of a set."""
    node = directory.node
    for each in held:
        yield Topic(each.name, each.topic_id)
        yield from (
            Config(TOPIC, each.name, name, value) for name, value in sorted(each.config.items())
        )
        for number, epoch in enumerate(each.epochs):
            yield Partition(
                each.topic_id,
                number,
                (node,),
                (node,),
                node,
                epoch,
                0,
                (directory.directory,),
                leader_incarnation=directory.incarnation,
            )


def create_partitions(state: State, event: CreatePartitions) -> Decision:
    """More partitions of a topic."""
    topic = state.topics.get(event.topic_id)
    present = state.partitions_of(event.topic_id)
    if topic is None or not present:
        return Refusal.UNKNOWN_TOPIC_OR_PARTITION
    if event.total <= len(present):
        return Refusal.INVALID_PARTITIONS
    existing = [[node for node in each.replicas if node not in each.removing] for each in present]
    assignment = event.assignment
    if assignment is None:
        try:
            assignment = extend(
                _targets(state, event.live, len(existing[0])), existing, event.total
            )
        except (InvalidReplicationFactorError, InvalidReplicaAssignmentError) as problem:
            return _REFUSALS[type(problem)]
    if len(assignment) != event.total - len(present):
        return Refusal.INVALID_REPLICA_ASSIGNMENT
    return _new(state, topic, assignment, event.live, first=len(present), factor=len(existing[0]))


def delete_topic(state: State, event: DeleteTopic) -> Decision:
    """No topic."""
    topic = state.topics.get(event.topic_id)
    if topic is None:
        return Refusal.UNKNOWN_TOPIC_OR_PARTITION
    gone: list[Record] = [topic, *state.partitions_of(event.topic_id)]
    names = sorted(
        name for kind, resource, name in state.settings if (kind, resource) == (TOPIC, topic.name)
    )
    gone += [Config(TOPIC, topic.name, name, None) for name in names]
    return RemoveTopic(event.topic_id), *(Tombstone(key_of(each)) for each in gone)


def set_config(state: State, event: SetConfig) -> Decision:
    """Other settings, and the ends of ELRs that follow from them."""
    if event.kind == TOPIC:
        if event.resource not in {each.name for each in state.topics.values()}:
            return Refusal.UNKNOWN_TOPIC_OR_PARTITION
    elif (event.kind, event.resource) != (NODE, ""):
        return Refusal.INVALID_REQUEST
    if not _is_allowed({name: value for name, value in event.changes.items() if value is not None}):
        return Refusal.INVALID_CONFIG
    records: list[Record] = []
    for name, value in sorted(event.changes.items()):
        if state.settings.get((event.kind, event.resource, name)) != value:
            records.append(Config(event.kind, event.resource, name, value))
    after = apply_all(state, records)
    ended = _ended(after)
    if not all(
        serves(state, each, event.seen.get((each.topic_id, each.number), {})) for each in ended
    ):
        return Refusal.LEADER_NOT_AVAILABLE
    others = _affected(state, after)
    return (
        *records,
        *(changed(after, each, isr=each.isr, recovering=each.recovering) for each in ended),
        *(
            changed(after, each, isr=each.isr, eligible=each.elr, recovering=each.recovering)
            for each in others
        ),
    )


def _targets(state: State, live: Iterable[int], least: int) -> Racks:
    """The directories for new replicas: those that answer; all of them if fewer than `least`
    answer.
    """
    usable = state.usable()
    found = {node: rack for node, rack in usable.items() if node in live}
    return found if len(found) >= least else usable


def _new(
    state: State,
    topic: Topic,
    assignment: Assignment,
    live: Iterable[int],
    first: int = 0,
    factor: int | None = None,
) -> tuple[Partition, ...] | Refusal:
    """New partitions."""
    usable = state.usable()
    factor = len(assignment[0]) if factor is None else factor
    found = []
    for number, replicas in enumerate(assignment, first):
        isr = tuple(node for node in replicas if node in live)
        even = len(replicas) == len(set(replicas)) == factor
        if not even or not isr or not usable.keys() >= set(replicas):
            return Refusal.INVALID_REPLICA_ASSIGNMENT
        directories = tuple(state.nodes[node].directory for node in replicas)
        incarnation = state.nodes[isr[0]].incarnation
        found.append(
            Partition(
                topic.topic_id,
                number,
                replicas,
                isr,
                isr[0],
                0,
                0,
                directories,
                leader_incarnation=incarnation,
            )
        )
    return tuple(found)


def _ended(state: State) -> list[Partition]:
    """The partitions whose ISR is large enough, although they have an ELR."""
    return [
        each
        for each in state.partitions.values()
        if each.elr and len(each.isr) >= state.required(each)
    ]


def _affected(state: State, after: State) -> list[Partition]:
    """The partitions whose ISR is large enough in one of the two states only, without those whose
    ELR ends.
    """
    found = []
    for each in after.partitions.values():
        was_small, is_small = (len(each.isr) < one.required(each) for one in (state, after))
        if was_small != is_small and (is_small or not each.elr):
            found.append(each)
    return found


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
