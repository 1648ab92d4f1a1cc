"""Describes the directories, partitions and replicas of an open log (`log.replicas()`).

REPLICADESCRIBER-1  nothing is locked, decided, or changed: one copy of the decision log has the
    decisions, and the control pages have the offsets
REPLICADESCRIBER-2  a directory that fails or hangs is described as failed, and the other ones as
    usual
REPLICADESCRIBER-3  the states of Kafka's controller are computed from decisions and observations,
    never stored
REPLICADESCRIBER-4  a log of one directory has one replica of each partition, which leads, and no
    decisions
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final
from uuid import UUID

from embedlog._native import system
from embedlog.errors import EmbedlogError, UnknownTopicOrPartitionError
from embedlog.partition.replication.replica_position import Place, Position
from embedlog.replica_description import (
    DecisionDescription,
    DirectoryDescription,
    ReplicaDescription,
    ReplicasDescription,
    ReplicatedPartitionDescription,
)
from embedlog.replica_set.observation import decision_words, directory_view
from embedlog.replica_set.observation.answers import Answers
from embedlog.replica_set.observation.directory_view import Missing, Observation
from embedlog.replication import state as states
from embedlog.replication.events import Found, Seen
from embedlog.replication.records import LOG
from embedlog.replication.state import State
from embedlog.storage import checkpoints, file_names
from embedlog.storage.identity import read_meta
from embedlog.topic import is_internal

if TYPE_CHECKING:
    from embedlog.engine import Engine
    from embedlog.replica import ReplicatedEngine
    from embedlog.replica_set.membership import Membership
    from embedlog.replica_set.open_directories import OpenDirectory
    from embedlog.replication.records import RegisterBroker

DECISIONS: Final = -1  # the key of the decision log among the answers of directories
MEASURED_MAX: Final = 200  # replicas that lack records, of which bytes and time are read


@dataclass
class _Observed:
    """The answers of the directories of a set: an observation, or the reason for which there is
    none.
    """

    state: State
    answers: dict[int, Observation | EmbedlogError]
    places: dict[tuple[UUID, int], Place] = field(default_factory=dict)
    missing: dict[tuple[Place, int], Missing] = field(default_factory=dict)

    def of(self, node: int) -> Observation | None:
        """What a directory shows, None if it does not answer, or is foreign."""
        found = self.answers.get(node)
        return found if isinstance(found, Observation) and not self.foreign(node) else None

    def foreign(self, node: int) -> bool:
        """Whether the directory was written without the set since its registration."""
        own, registered = self._members(node)
        if own is None or registered is None or own.cluster_id != self.state.cluster_id:
            return own is not None
        crashed = own.registered_id == registered.incarnation and not own.alone
        return own.registration_id != registered.incarnation and not crashed

    def unregistered(self, node: int) -> bool:
        """Whether the directory was not closed in order, and has not been registered since."""
        own, registered = self._members(node)
        return (
            own is not None
            and registered is not None
            and own.registration_id != registered.incarnation
        )

    def seen(self, node: int) -> Seen:
        """A directory that answers, as the views of Kafka's states take it."""
        own, _ = self._members(node)
        return Seen(
            Found.COMPLETE,
            own.registration_id if own is not None else self.state.nodes[node].incarnation,
        )

    def _members(self, node: int) -> tuple[Membership | None, RegisterBroker | None]:
        found = self.answers.get(node)
        return found.membership if isinstance(found, Observation) else None, self.state.nodes.get(
            node
        )


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
        seen = self._answers.collect({DECISIONS: self._set.decisions.view})[DECISIONS]
        view = self._set.decisions.last_view() if isinstance(seen, EmbedlogError) else seen
        observed = self._observed(view.state, topic)
        directories = self._directories(observed)
        answering = {each.node for each in directories if each.answers}
        voters = view.state.voters
        return ReplicasDescription(
            directories,
            tuple(
                _partition(observed, key, answering, self._set.least_default)
                for key in _sorted(observed.places)
            ),
            term=view.term,
            voters=voters,
            can_decide=2 * len(answering.intersection(voters)) > len(voters),
            decisions=self._decisions(answering, view.state) if decisions else (),
            observed_ms=system.wall_ms(),
        )

    # ---- observations ----------------------------------------------------------------------------

    def _observed(self, state: State, topic: str | None) -> _Observed:
        names = {topic_id: each.name for topic_id, each in state.topics.items()}
        if topic is not None and topic not in names.values():
            raise UnknownTopicOrPartitionError(f"topic {topic!r} is unknown")
        places = {
            key: Place(names[key[0]], key[1], key[0].bytes)
            for key in state.partitions
            if topic is None or names[key[0]] == topic
        }
        calls = {}
        for opened in self._set.members.opened():
            own = [
                place
                for key, place in places.items()
                if opened.node in state.partitions[key].replicas
            ]
            calls[opened.node] = partial(
                directory_view.observe, opened.directory.log_directory, own
            )
        observed = _Observed(state, self._answers.collect(calls), places)
        observed.missing = self._missing(observed)
        return observed

    def _missing(self, observed: _Observed) -> dict[tuple[Place, int], Missing]:
        """The bytes and times of missing records (DIRECTORYVIEW-3), at most of MEASURED_MAX
        replicas.
        """
        wanted: dict[int, list[tuple[Place, int]]] = {}
        for key, place in list(observed.places.items()):
            decided = observed.state.partitions[key]
            leader = _position(observed, decided.leader, place)
            ends = [
                found.log_end
                for node in decided.replicas
                if (found := _position(observed, node, place)) is not None
            ]
            for end in sorted(set(ends)):
                if (
                    leader is not None
                    and end < leader.log_end
                    and sum(map(len, wanted.values())) < MEASURED_MAX
                ):
                    wanted.setdefault(decided.leader, []).append((place, end))
        opened = {each.node: each.directory.log_directory for each in self._set.members.opened()}
        calls = {
            node: partial(directory_view.missing, opened[node], own)
            for node, own in wanted.items()
            if node in opened
        }
        missing: dict[tuple[Place, int], Missing] = {}
        for answer in self._answers.collect(calls).values():
            if not isinstance(answer, EmbedlogError):
                missing |= answer
        return missing

    def _decisions(self, answering: Iterable[int], state: State) -> tuple[DecisionDescription, ...]:
        """The recent decisions of the first copy that can be read."""
        for node in sorted(answering):
            copy = self._set.decisions.copy(node)
            if copy is None:
                continue
            answer = self._answers.collect(
                {node: partial(decision_words.recent, copy.partition.replica, state.cluster_id)}
            )[node]
            if not isinstance(answer, EmbedlogError):
                return tuple(DecisionDescription(*each) for each in answer)
        return ()

    # ---- directories -----------------------------------------------------------------------------

    def _directories(self, observed: _Observed) -> tuple[DirectoryDescription, ...]:
        state = observed.state
        leads = Counter(each.leader for each in state.partitions.values())
        holds = Counter(node for each in state.partitions.values() for node in each.replicas)
        members = {each.node: each for each in self._set.directories}
        devices = {
            node: answer.device
            for node, answer in observed.answers.items()
            if isinstance(answer, Observation)
        }
        paths = {each.node: str(each.path) for each in self._set.members.opened()}
        found = []
        for node, registered in sorted(state.nodes.items()):
            kind, reason, since_ms = self._state(members.get(node), node, observed)
            device = devices.get(node)
            same = tuple(
                other for other, own in sorted(devices.items()) if other != node and own == device
            )
            found.append(
                DirectoryDescription(
                    node,
                    paths.get(node, registered.path),
                    kind,
                    reason,
                    since_ms,
                    registered.rack,
                    registered.voter,
                    str(registered.incarnation),
                    holds[node],
                    leads[node],
                    same,
                )
            )
        return tuple(found)

    def _state(
        self, member: OpenDirectory | None, node: int, observed: _Observed
    ) -> tuple[str, str | None, int | None]:
        """State, reason, and begin."""
        answer = observed.answers.get(node)
        if isinstance(answer, EmbedlogError):
            known_ms = member.since_ms if member is not None and member.problem is not None else 0
            since_ms = known_ms or self._failing_since.setdefault(node, system.wall_ms())
            return "failed", str(answer), since_ms
        self._failing_since.pop(node, None)
        if member is None or member.directory is None or answer is None:
            reason = member.problem if member is not None else None
            return (
                "away",
                reason or "not opened",
                (member.since_ms or None) if member is not None else None,
            )
        if observed.foreign(node):
            return (
                "foreign",
                "it was written without the set, or another copy of it is in its place",
                None,
            )
        if not member.usable(system.boot_ns()):
            return "failed", member.problem, member.since_ms or None
        reason = (
            "it was not closed in order, and a majority has not registered it since"
            if observed.unregistered(node)
            else None
        )
        return (
            ("live" if observed.state.nodes[node].replicas else "witness"),
            reason or self._set.directories.damage(node),
            None,
        )


# ---- partitions ----------------------------------------------------------------------------------


def _sorted(places: Mapping[tuple[UUID, int], Place]) -> list[tuple[UUID, int]]:
    return sorted(places, key=lambda key: places[key][:2])


def _position(observed: _Observed, node: int, place: Place) -> Position | None:
    found = observed.of(node)
    return None if found is None else found.positions.get(place)


def _partition(
    observed: _Observed, key: tuple[UUID, int], answering: set[int], least_default: int
) -> ReplicatedPartitionDescription:
    state = observed.state
    place = observed.places[key]
    decided = state.partitions[key]
    held = {node for node in state.nodes if _holds(observed, node, place)}
    present = {node: observed.seen(node) for node in answering}
    installed = bool(held) or decided.leader_epoch > 0 or not answering.issuperset(decided.replicas)
    leader = _position(observed, decided.leader, place)
    ends = [
        found.high_watermark
        for node in decided.isr
        if (found := _position(observed, node, place)) is not None
    ]
    copies = []
    for node in (*decided.replicas, *sorted(held.difference(decided.replicas))):
        kind = states.replica_state(
            state, key, node, live=node in answering, held=node in held
        ).value
        known = node in decided.replicas
        copy = ReplicaDescription(
            node, kind, in_sync=node in decided.isr, leads=known and node == decided.leader
        )
        copies.append(
            _with_offsets(
                copy,
                _position(observed, node, place) if known else None,
                leader,
                observed.missing,
                place,
            )
        )
    return ReplicatedPartitionDescription(
        place.topic,
        decided.number,
        states.partition_state(state, key, installed=installed, seen=present).value,
        decided.leader,
        decided.leader_epoch,
        decided.partition_epoch,
        decided.replicas,
        decided.isr,
        decided.elr,
        decided.adding,
        decided.removing,
        state.required(decided, least_default),
        leader.high_watermark if leader is not None else max(ends, default=None),
        tuple(copies),
        is_internal(place.topic),
    )


def _holds(observed: _Observed, node: int, place: Place) -> bool:
    found = observed.of(node)
    return found is not None and file_names.partition_name(place.topic, place.number) in found.held


def _with_offsets(
    copy: ReplicaDescription,
    found: Position | None,
    leader: Position | None,
    missing: Mapping[tuple[Place, int], Missing],
    place: Place,
) -> ReplicaDescription:
    """The description with the offsets of a position, and its lag to the leader's."""
    if found is None:
        return copy
    copy = replace(
        copy,
        log_start=found.log_start,
        log_end=found.log_end,
        high_watermark=found.high_watermark,
        durable_offset=found.durable_offset,
    )
    if leader is None:
        return copy
    now_ms = system.wall_ms()
    lag = max(0, leader.log_end - found.log_end)
    if lag == 0:
        return replace(copy, lag=0, lag_bytes=0, lag_seconds=0.0, last_caught_up_ms=now_ms)
    lacks = missing.get((place, found.log_end))
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
    """The description of a log of one directory (REPLICADESCRIBER-4). Raises
    UnknownTopicOrPartitionError, StorageError.
    """
    home = engine.home
    meta = read_meta(engine.path)
    node = meta.node_id if meta is not None else 0
    names = (
        [name for name in engine.topic_names() if name != LOG]
        if topic is None
        else [engine.topic(topic).name]
    )
    topics = {name: engine.topic(name) for name in names}
    places = [
        Place(name, number, each.id_bytes)
        for name, each in topics.items()
        for number in each.numbers
    ]
    found = directory_view.observe(home, places)
    partitions = [
        _only(node, place, found.positions.get(place), _epoch(engine, place)) for place in places
    ]
    own = DirectoryDescription(node, str(engine.path), "live", holds=len(places), leads=len(places))
    return ReplicasDescription(
        (own,), tuple(partitions), voters=(node,), observed_ms=system.wall_ms()
    )


def _epoch(engine: Engine, place: Place) -> int:
    path = engine.path / file_names.partition_name(place.topic, place.number) / file_names.EPOCHS
    return max(0, checkpoints.read_epochs(path).latest_epoch)


def _only(
    node: int, place: Place, found: Position | None, epoch: int
) -> ReplicatedPartitionDescription:
    online = states.PartitionState.ONLINE.value
    copy = ReplicaDescription(node, states.ReplicaState.ONLINE.value, in_sync=True, leads=True)
    return ReplicatedPartitionDescription(
        place.topic,
        place.number,
        online,
        node,
        max(epoch, found.epoch if found is not None else 0),
        0,
        (node,),
        (node,),
        high_watermark=None if found is None else found.high_watermark,
        copies=(_with_offsets(copy, found, found, {}, place),),
        internal=is_internal(place.topic),
    )
