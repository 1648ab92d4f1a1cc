"""Describes the directories, partitions and replicas of an open log (`log.replicas()`).

- Nothing is locked, decided, or changed: one copy of the decision log has the decisions, and the
  control pages have the offsets.
- A directory that fails or hangs is described as failed, and the other ones as usual.
- The states of Kafka's controller are computed from decisions and observations, never stored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final
from uuid import UUID

from embedlog._native import system
from embedlog.descriptions.directories import (
    DecisionDescription,
    DirectoryDescription,
    ReplicaDescription,
    ReplicasDescription,
    ReplicatedPartitionDescription,
)
from embedlog.errors import EmbedlogError, UnknownTopicOrPartitionError
from embedlog.partition.replication.replica_position import Position, TopicIdPartition
from embedlog.replicas.observation import decision_words, directory_view
from embedlog.replicas.observation.answers import Answers
from embedlog.replicas.observation.directory_view import DirectoryObservation, Missing
from embedlog.replicas.rules import state as states
from embedlog.replicas.rules.events import Condition, Seen
from embedlog.replicas.rules.records import LOG
from embedlog.replicas.rules.state import State
from embedlog.storage import checkpoints, file_names
from embedlog.storage.identity import read_meta
from embedlog.topic import is_internal

if TYPE_CHECKING:
    from embedlog.engine.engine import Engine
    from embedlog.replica import ReplicatedEngine
    from embedlog.replicas.members.membership import Membership
    from embedlog.replicas.members.open_directories import OpenDirectory
    from embedlog.replicas.rules.records import RegisterBroker

DECISIONS: Final = -1  # the key of the decision log among the answers of directories
MEASURED_MAX: Final = 200  # replicas that lack records, of which bytes and time are read


@dataclass
class _SetObservation:
    """The answers of the directories of a set: an observation, or the reason for which there is
    none.
    """

    state: State
    answers: dict[int, DirectoryObservation | EmbedlogError]
    topic_partitions: dict[tuple[UUID, int], TopicIdPartition] = field(default_factory=dict)
    missing: dict[tuple[TopicIdPartition, int], Missing] = field(default_factory=dict)

    def observation_of(self, node: int) -> DirectoryObservation | None:
        """What a directory shows, None if it does not answer, or is a stranger."""
        answer = self.answers.get(node)
        return (
            answer
            if isinstance(answer, DirectoryObservation) and not self.is_stranger(node)
            else None
        )

    def is_stranger(self, node: int) -> bool:
        """Whether the directory was written without the set since its registration."""
        own, registered = self._members(node)
        if own is None or registered is None or own.cluster_id != self.state.cluster_id:
            return own is not None
        crashed = own.registered_id == registered.registration_id and not own.alone
        return own.registration_id != registered.registration_id and not crashed

    def is_unregistered(self, node: int) -> bool:
        """Whether the directory was not closed in order, and has not been registered since."""
        own, registered = self._members(node)
        return (
            own is not None
            and registered is not None
            and own.registration_id != registered.registration_id
        )

    def seen_of(self, node: int) -> Seen:
        """A directory that answers, as the views of Kafka's states take it."""
        own, _ = self._members(node)
        return Seen(
            Condition.COMPLETE,
            own.registration_id if own is not None else self.state.nodes[node].registration_id,
        )

    def _members(self, node: int) -> tuple[Membership | None, RegisterBroker | None]:
        """What a directory says of itself, and its registration."""
        answer = self.answers.get(node)
        membership = answer.membership if isinstance(answer, DirectoryObservation) else None
        return membership, self.state.nodes.get(node)


class ReplicaDescriber:
    """Describes the replicas of a set. Threads: any."""

    def __init__(self, engine: ReplicatedEngine) -> None:
        self._set = engine.set
        self._read_only = engine.read_only
        self._answers = Answers()
        # of directories that failed in an observation only
        self._failing_since: dict[int, int] = {}

    def describe(self, topic: str | None = None, *, decisions: bool = True) -> ReplicasDescription:
        """As `Log.replicas`. Raises UnknownTopicOrPartitionError."""
        answer = self._answers.collect({DECISIONS: self._set.decisions.view})[DECISIONS]
        view = self._set.decisions.last_view() if isinstance(answer, EmbedlogError) else answer
        observed = self._observe(view.state, topic)
        directories = self._describe_directories(observed)
        answering = {directory.node for directory in directories if directory.answers}
        voters = view.state.voters
        return ReplicasDescription(
            directories,
            tuple(
                _describe_partition(observed, key, answering, self._set.least_default)
                for key in _sort_keys(observed.topic_partitions)
            ),
            term=view.term,
            voters=voters,
            can_decide=2 * len(answering.intersection(voters)) > len(voters),
            decisions=self._read_decisions(answering, view.state) if decisions else (),
            observed_ms=system.wall_ms(),
        )

    # ---- observations ----------------------------------------------------------------------------

    def _observe(self, state: State, topic: str | None) -> _SetObservation:
        names = {topic_uuid: entry.name for topic_uuid, entry in state.topics.items()}
        if topic is not None and topic not in names.values():
            raise UnknownTopicOrPartitionError(f"topic {topic!r} is unknown")
        topic_partitions = {
            key: TopicIdPartition(names[key[0]], key[1], key[0].bytes)
            for key in state.partitions
            if topic is None or names[key[0]] == topic
        }
        calls = {}
        for opened in self._set.members.open_members():
            own = [
                topic_partition
                for key, topic_partition in topic_partitions.items()
                if opened.node in state.partitions[key].replicas
            ]
            calls[opened.node] = partial(
                directory_view.observe, opened.directory.log_directory, own
            )
        observed = _SetObservation(state, self._answers.collect(calls), topic_partitions)
        observed.missing = self._find_missing(observed)
        return observed

    def _find_missing(
        self, observed: _SetObservation
    ) -> dict[tuple[TopicIdPartition, int], Missing]:
        """The bytes and times of the records that replicas lack, as the directories of the leaders
        show them, at most of MEASURED_MAX replicas.
        """
        short_replicas: dict[int, list[tuple[TopicIdPartition, int]]] = {}
        measured = 0
        for key, topic_partition in list(observed.topic_partitions.items()):
            decided = observed.state.partitions[key]
            leader = _position_of(observed, decided.leader, topic_partition)
            if leader is None:
                continue
            positions = [_position_of(observed, node, topic_partition) for node in decided.replicas]
            ends = {position.log_end for position in positions if position is not None}
            for end in sorted(ends):
                if end < leader.log_end and measured < MEASURED_MAX:
                    measured += 1
                    short_replicas.setdefault(decided.leader, []).append((topic_partition, end))
        opened = {
            opened.node: opened.directory.log_directory
            for opened in self._set.members.open_members()
        }
        calls = {
            node: partial(directory_view.measure_missing, opened[node], own)
            for node, own in short_replicas.items()
            if node in opened
        }
        missing: dict[tuple[TopicIdPartition, int], Missing] = {}
        for answer in self._answers.collect(calls).values():
            if not isinstance(answer, EmbedlogError):
                missing |= answer
        return missing

    def _read_decisions(
        self, answering: Iterable[int], state: State
    ) -> tuple[DecisionDescription, ...]:
        """The recent decisions of the first copy that can be read."""
        for node in sorted(answering):
            copy = self._set.decisions.attached_copy(node)
            if copy is None:
                continue
            answer = self._answers.collect(
                {node: partial(decision_words.recent, copy.partition.replica, state.cluster_id)}
            )[node]
            if not isinstance(answer, EmbedlogError):
                return tuple(DecisionDescription(*decision) for decision in answer)
        return ()

    # ---- directories -----------------------------------------------------------------------------

    def _describe_directories(self, observed: _SetObservation) -> tuple[DirectoryDescription, ...]:
        state = observed.state
        leads = Counter(partition.leader for partition in state.partitions.values())
        holds = Counter(
            node for partition in state.partitions.values() for node in partition.replicas
        )
        members = {directory.node: directory for directory in self._set.directories}
        devices = {
            node: answer.device
            for node, answer in observed.answers.items()
            if isinstance(answer, DirectoryObservation)
        }
        paths = {opened.node: str(opened.path) for opened in self._set.members.open_members()}
        descriptions = []
        for node, registered in sorted(state.nodes.items()):
            kind, reason, since_ms = self._state_of(members.get(node), node, observed)
            nodes_of_device = [
                other for other in sorted(devices) if devices[other] == devices.get(node)
            ]
            same_device = tuple(other for other in nodes_of_device if other != node)
            descriptions.append(
                DirectoryDescription(
                    node,
                    paths.get(node, registered.path),
                    kind,
                    reason,
                    since_ms,
                    registered.rack,
                    registered.voter,
                    str(registered.registration_id),
                    holds[node],
                    leads[node],
                    same_device,
                )
            )
        return tuple(descriptions)

    def _state_of(
        self, member: OpenDirectory | None, node: int, observed: _SetObservation
    ) -> tuple[str, str | None, int | None]:
        """State, reason, and begin."""
        answer = observed.answers.get(node)
        if isinstance(answer, EmbedlogError):
            since_ms = 0
            if member is not None and member.problem is not None:
                since_ms = member.since_ms
            if not since_ms:
                since_ms = self._failing_since.setdefault(node, system.wall_ms())
            return "failed", str(answer), since_ms
        self._failing_since.pop(node, None)
        if member is None:
            return "away", "not opened", None
        if member.directory is None or answer is None:
            return "away", member.problem or "not opened", member.since_ms or None
        if observed.is_stranger(node):
            reason = "it was written without the set, or another copy of it is in its place"
            return "foreign", reason, None
        if not member.is_usable(system.boot_ns()):
            return "failed", member.problem, member.since_ms or None
        kind = "live" if observed.state.nodes[node].replicas else "witness"
        if observed.is_unregistered(node):
            reason = "it was not closed in order, and a majority has not registered it since"
            return kind, reason, None
        return kind, self._set.directories.damage_of(node), None


# ---- partitions ----------------------------------------------------------------------------------


def _sort_keys(
    topic_partitions: Mapping[tuple[UUID, int], TopicIdPartition],
) -> list[tuple[UUID, int]]:
    return sorted(topic_partitions, key=lambda key: topic_partitions[key][:2])


def _position_of(
    observed: _SetObservation, node: int, topic_partition: TopicIdPartition
) -> Position | None:
    observation = observed.observation_of(node)
    return None if observation is None else observation.positions.get(topic_partition)


def _describe_partition(
    observed: _SetObservation, key: tuple[UUID, int], answering: set[int], least_default: int
) -> ReplicatedPartitionDescription:
    state = observed.state
    topic_partition = observed.topic_partitions[key]
    decided = state.partitions[key]
    holders = {node for node in state.nodes if _holds(observed, node, topic_partition)}
    observations = {node: observed.seen_of(node) for node in answering}
    installed = (
        bool(holders) or decided.leader_epoch > 0 or not answering.issuperset(decided.replicas)
    )
    leader = _position_of(observed, decided.leader, topic_partition)
    positions = [_position_of(observed, node, topic_partition) for node in decided.isr]
    high_watermarks = [position.high_watermark for position in positions if position is not None]
    copies = []
    for node in (*decided.replicas, *sorted(holders.difference(decided.replicas))):
        kind = states.replica_state(
            state, key, node, live=node in answering, held=node in holders
        ).value
        is_assigned = node in decided.replicas
        copy = ReplicaDescription(
            node, kind, in_sync=node in decided.isr, leads=is_assigned and node == decided.leader
        )
        copies.append(
            _add_offsets(
                copy,
                _position_of(observed, node, topic_partition) if is_assigned else None,
                leader,
                observed.missing,
                topic_partition,
            )
        )
    return ReplicatedPartitionDescription(
        topic_partition.topic,
        decided.number,
        states.partition_state(state, key, installed=installed, seen=observations).value,
        decided.leader,
        decided.leader_epoch,
        decided.partition_epoch,
        decided.replicas,
        decided.isr,
        decided.elr,
        decided.adding,
        decided.removing,
        state.required_size(decided, least_default),
        leader.high_watermark if leader is not None else max(high_watermarks, default=None),
        tuple(copies),
        is_internal(topic_partition.topic),
    )


def _holds(observed: _SetObservation, node: int, topic_partition: TopicIdPartition) -> bool:
    observation = observed.observation_of(node)
    return (
        observation is not None
        and file_names.partition_name(topic_partition.topic, topic_partition.number)
        in observation.partition_names
    )


def _add_offsets(
    copy: ReplicaDescription,
    position: Position | None,
    leader: Position | None,
    missing: Mapping[tuple[TopicIdPartition, int], Missing],
    topic_partition: TopicIdPartition,
) -> ReplicaDescription:
    """The description with the offsets of a position, and its lag to the leader's."""
    if position is None:
        return copy
    copy = replace(
        copy,
        log_start=position.log_start,
        log_end=position.log_end,
        high_watermark=position.high_watermark,
        durable_offset=position.durable_offset,
    )
    if leader is None:
        return copy
    now_ms = system.wall_ms()
    lag = max(0, leader.log_end - position.log_end)
    if lag == 0:
        return replace(copy, lag=0, lag_bytes=0, lag_seconds=0.0, last_caught_up_ms=now_ms)
    lacks = missing.get((topic_partition, position.log_end))
    if lacks is None:
        return replace(copy, lag=lag)
    if lacks.first_ms < 0:
        return replace(copy, lag=lag, lag_bytes=lacks.size)
    first_ms = min(lacks.first_ms, now_ms)
    return replace(
        copy,
        lag=lag,
        lag_bytes=lacks.size,
        lag_seconds=(now_ms - first_ms) / 1000,
        last_caught_up_ms=first_ms,
    )


# ---- one directory -------------------------------------------------------------------------------


def describe_one(engine: Engine, topic: str | None = None) -> ReplicasDescription:
    """The description of a log of one directory: one replica of each partition, which leads, and no
    decisions. Raises UnknownTopicOrPartitionError, StorageError.
    """
    home = engine.home
    meta = read_meta(engine.path)
    node = meta.node_id if meta is not None else 0
    if topic is None:
        names = [name for name in engine.topic_names() if name != LOG]
    else:
        names = [engine.topic(topic).name]
    topic_partitions = []
    for name in names:
        entry = engine.topic(name)
        topic_partitions += [
            TopicIdPartition(name, number, entry.id_bytes) for number in entry.numbers
        ]
    observation = directory_view.observe(home, topic_partitions)
    partitions = [
        _describe_only_replica(
            node,
            topic_partition,
            observation.positions.get(topic_partition),
            _read_epoch(engine, topic_partition),
        )
        for topic_partition in topic_partitions
    ]
    own = DirectoryDescription(
        node, str(engine.path), "live", holds=len(topic_partitions), leads=len(topic_partitions)
    )
    return ReplicasDescription(
        (own,), tuple(partitions), voters=(node,), observed_ms=system.wall_ms()
    )


def _read_epoch(engine: Engine, topic_partition: TopicIdPartition) -> int:
    path = (
        engine.path
        / file_names.partition_name(topic_partition.topic, topic_partition.number)
        / file_names.EPOCHS
    )
    return max(0, checkpoints.read_epochs(path).latest_epoch)


def _describe_only_replica(
    node: int, topic_partition: TopicIdPartition, position: Position | None, epoch: int
) -> ReplicatedPartitionDescription:
    online = states.PartitionState.ONLINE.value
    copy = ReplicaDescription(node, states.ReplicaState.ONLINE.value, in_sync=True, leads=True)
    return ReplicatedPartitionDescription(
        topic_partition.topic,
        topic_partition.number,
        online,
        node,
        max(epoch, position.epoch if position is not None else 0),
        0,
        (node,),
        (node,),
        high_watermark=None if position is None else position.high_watermark,
        copies=(_add_offsets(copy, position, position, {}, topic_partition),),
        internal=is_internal(topic_partition.topic),
    )
