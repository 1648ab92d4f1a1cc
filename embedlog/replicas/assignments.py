"""This module moves leaders and replicas between the directories of a set, as callers and settings
ask.

- A reassignment is decided, then the added replicas copy and join as every replica outside the ISR
  does.
- After the whole target has joined, one decision finishes it. It is installed before a replica is
  removed (REPLICA-24).
- Every step is found again in the decisions and the directories: any process continues after a
  stop.
- Before the leader changes on request, its ISR copies what it has: an election loses no record of
  `acks=1` that was there before. So do the end and the cancellation of a reassignment that take the
  leader away.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Protocol

from embedlog.descriptions.replicas import Reassignment
from embedlog.errors import (
    ElectionNotNeededError,
    EligibleLeadersNotAvailableError,
    EmbedlogError,
    LeaderNotAvailableError,
    PreferredLeaderNotAvailableError,
    UnknownTopicOrPartitionError,
)
from embedlog.replicas.decisions.proposals import MakeEvent, Steps
from embedlog.replicas.decisions.refusals import error_of
from embedlog.replicas.partition.catching_up import CatchUp
from embedlog.replicas.partition.leader import LeaderChanged
from embedlog.replicas.partition.partition_replicas import PartitionReplicas
from embedlog.replicas.rules.events import (
    CancelReassignment,
    Elect,
    Election,
    Event,
    FinishReassignment,
    PartitionId,
    Reassign,
    Refusal,
)
from embedlog.replicas.rules.records import NO_LEADER, DecidedPartition
from embedlog.replicas.verification.partition_repair import repair_damaged
from embedlog.telemetry import log_messages
from embedlog.types import TopicPartition

if TYPE_CHECKING:
    from embedlog.replicas.decisions.decision_log import DecisionLog
    from embedlog.replicas.members.set_directory import SetDirectory
    from embedlog.replicas.members.set_members import SetMembers
    from embedlog.replicas.rules.state import State
    from embedlog.replicas.set_topics import SetTopics

logger = logging.getLogger("embedlog")


SUPERSEDED = frozenset(
    {
        Refusal.INVALID_UPDATE_VERSION,
        Refusal.NO_REASSIGNMENT_IN_PROGRESS,
        Refusal.UNKNOWN_TOPIC_OR_PARTITION,
    }
)


class OpenSet(Protocol):
    """The open set, as far as assignments need it."""

    members: SetMembers
    decisions: DecisionLog
    topics: SetTopics

    def deadline(self) -> int: ...
    def live_nodes(self) -> frozenset[int]: ...
    def replicas(self, partition_id: PartitionId, topic: str) -> PartitionReplicas: ...
    def decide(self, make_event: Callable[[State], Event], *, reason: str = "") -> State: ...


class Assignments:
    """The leaders and replicas of an open set. Threads: any."""

    def __init__(self, replica_set: OpenSet) -> None:
        self._set = replica_set
        self._catching_up: dict[PartitionId, CatchUp] = {}
        # the state for which no directory had a replica too many
        self._cleared: State | None = None

    def _usable_directories(self) -> list[SetDirectory]:
        """The directories that this process has open and that do not fail."""
        live_nodes = self._set.live_nodes()
        return [
            opened.directory
            for opened in self._set.members.open_members()
            if opened.node in live_nodes
        ]

    # ---- elections -------------------------------------------------------------------------------

    def elect(
        self, topic: str | None, number: int | None, kind: Election, node: int | None = None
    ) -> dict[TopicPartition, int]:
        """Elect leaders of these partitions; the nodes of those that changed.

        For one partition a refusal is an error; of several, those that need no election are left
        out. An error of one of them is raised after the others were elected. Raises
        UnknownTopicOrPartitionError, ElectionNotNeededError, PreferredLeaderNotAvailableError,
        EligibleLeadersNotAvailableError, LeaderNotAvailableError, NotEnoughDirectoriesError.
        """
        leaders = dict[TopicPartition, int]()
        problems = list[EmbedlogError]()
        if kind is Election.UNCLEAN:
            # a directory that was just brought back is meant, not the one before it
            self._set.members.tend(by_hand=True)
        partition_ids = self.find_partition_ids(topic, number)
        for tp, partition_id in partition_ids.items():
            try:
                leaders[tp] = self._elect(partition_id, tp, kind, node)
            except (ElectionNotNeededError, UnknownTopicOrPartitionError):
                if len(partition_ids) == 1:
                    raise
            except LeaderNotAvailableError as problem:
                problems.append(problem)
            except (PreferredLeaderNotAvailableError, EligibleLeadersNotAvailableError) as problem:
                problems.append(type(problem)(f"{tp.topic}-{tp.partition}: {problem.message}"))
        if problems:
            raise problems[0]
        return leaders

    def _elect(
        self, partition_id: PartitionId, tp: TopicPartition, kind: Election, node: int | None
    ) -> int:
        replicas = self._set.replicas(partition_id, tp.topic)
        if kind is Election.PREFERRED:
            self._commit(replicas)

        def make_event(state: State) -> Event:
            decided = replicas.members.find_decision(state)
            return Elect(
                partition_id,
                kind,
                decided.partition_epoch,
                replicas.leaders.observe_replicas(decided),
                node,
            )

        state = self._set.decide(make_event, reason=f"{kind.value} election")
        if replicas.members.find_decision(state).leader == NO_LEADER:
            raise error_of(Refusal.ELIGIBLE_LEADERS_NOT_AVAILABLE)
        return replicas.leaders.find_leader(self._set.deadline()).node

    def _commit(self, replicas: PartitionReplicas) -> None:
        """Copy the records of the leader to its ISR, and commit them, before the leader changes: an
        election loses no record of `acks=1` that was there before.
        """
        with suppress(LeaderChanged, EmbedlogError):
            leader = replicas.leaders.find_leader(self._set.deadline())
            replicas.in_sync.commit(
                leader, leader.partition.published().log_end, self._set.deadline()
            )

    def rebalance(self, percentage: int) -> dict[TopicPartition, int]:
        """Return leaders to the first replicas of their partitions, for each node that leads too
        few of its own.

        `percentage`: of the partitions with this node as the first replica, the share that other
        nodes may lead.
        """
        state = self._set.decisions.counted_state()
        leaders: dict[TopicPartition, int] = {}
        for node in self._set.live_nodes():
            own = [
                partition
                for partition in state.partitions.values()
                if partition.replicas[0] == node
            ]
            led_by_others = [partition for partition in own if partition.leader != node]
            if not own or 100 * len(led_by_others) <= percentage * len(own):
                continue
            for partition in led_by_others:
                if node not in partition.isr or partition.adding or partition.removing:
                    continue
                topic = state.topics[partition.topic_uuid].name
                tp = TopicPartition(topic, partition.number)
                partition_id = (partition.topic_uuid, partition.number)
                with suppress(
                    ElectionNotNeededError,
                    PreferredLeaderNotAvailableError,
                    UnknownTopicOrPartitionError,
                ):
                    leaders[tp] = self._elect(partition_id, tp, Election.PREFERRED, None)
        return leaders

    def find_partition_ids(
        self, topic: str | None, number: int | None
    ) -> dict[TopicPartition, PartitionId]:
        """The partitions that the arguments select. Raises UnknownTopicOrPartitionError."""
        if topic is None and number is not None:
            raise TypeError("a partition is given with its topic")
        self._set.topics.refresh()
        state = self._set.decisions.counted_state()
        if topic is not None:
            self._set.topics.live(topic)
        partition_ids = dict[TopicPartition, PartitionId]()
        for partition_id in sorted(state.partitions):
            topic_uuid, partition_number = partition_id
            name = state.topics[topic_uuid].name
            if topic in (None, name) and number in (None, partition_number):
                partition_ids[TopicPartition(name, partition_number)] = partition_id
        if not partition_ids and number is not None:
            raise UnknownTopicOrPartitionError(
                f"topic {topic!r} has no partition {number}", found=number
            )
        return partition_ids

    # ---- reassignments ---------------------------------------------------------------------------

    def reassign(
        self, targets: Mapping[TopicPartition, Sequence[int] | None], throttle: int | None = None
    ) -> None:
        """Begin reassignments, replace their targets, or cancel them (None), all by one decision.

        Raises UnknownTopicOrPartitionError, InvalidReplicaAssignmentError,
        NoReassignmentInProgressError, NotEnoughDirectoriesError.
        """
        partition_ids = {tp: self.find_partition_ids(tp.topic, tp.partition)[tp] for tp in targets}

        def make_step(
            partition_id: PartitionId, topic: str, target: Sequence[int] | None
        ) -> MakeEvent:
            def make_event(state: State, offset: int) -> Event:
                decided = state.partitions.get(partition_id)
                change = -1 if decided is None else decided.partition_epoch
                if target is not None:
                    return Reassign(partition_id, change, tuple(target), throttle)
                seen = (
                    {}
                    if decided is None
                    else self._set.replicas(partition_id, topic).leaders.observe_replicas(decided)
                )
                return CancelReassignment(partition_id, change, seen)

            return make_event

        for tp, target in targets.items():
            if target is not None:
                continue
            decided = self._set.decisions.counted_state().partitions.get(partition_ids[tp])
            if decided is not None and decided.leader in decided.adding:
                self._commit(self._set.replicas(partition_ids[tp], tp.topic))
        steps = [make_step(partition_ids[tp], tp.topic, target) for tp, target in targets.items()]
        self._set.decisions.decide_all(steps, self._set.deadline(), reason="reassignment")
        for tp, partition_id in partition_ids.items():
            if not self.advance(partition_id, tp.topic):
                self._set.replicas(partition_id, tp.topic).leaders.find_leader(self._set.deadline())
        self.clear()

    def in_progress(self) -> dict[TopicPartition, Reassignment]:
        """The reassignments that are not finished."""
        state = self._set.decisions.counted_state()
        reassignments = dict[TopicPartition, Reassignment]()
        for partition_id, partition in sorted(state.partitions.items()):
            if partition.adding or partition.removing:
                topic_uuid, number = partition_id
                tp = TopicPartition(state.topics[topic_uuid].name, number)
                reassignments[tp] = self._describe(partition_id, partition, state)
        return reassignments

    def _describe(
        self, partition_id: PartitionId, decided: DecidedPartition, state: State
    ) -> Reassignment:
        target = tuple(node for node in decided.replicas if node not in decided.removing)
        records_left: int | None = None
        bytes_left: int | None = None
        with suppress(EmbedlogError):
            topic = state.topics[decided.topic_uuid].name
            leader = (
                self._set.replicas(partition_id, topic)
                .leaders.find_leader(self._set.deadline())
                .partition
            )
            copies = [
                directory.find_open(partition_id, topic)
                for directory in self._usable_directories()
                if directory.node in target and directory.node not in decided.isr
            ]
            now = leader.published()
            sizes = [0 if copy is None else copy.size_bytes() for copy in copies]
            ends = [now.log_start if copy is None else copy.published().log_end for copy in copies]
            records_left = now.log_end - min([now.log_end, *ends])
            bytes_left = max([0, *(leader.size_bytes() - size for size in sizes)])
        return Reassignment(target, decided.adding, decided.removing, records_left, bytes_left)

    def tend(
        self,
        partition_id: PartitionId,
        topic: str,
        ending: Callable[[], bool],
        until_ns: int | None = None,
    ) -> None:
        """Copy, commit, let replicas join, and finish a reassignment, as far as each is possible
        now. For the housekeeper.

        `until_ns`: a copy to a replica outside the ISR ends after the chunk in progress, and a
        later call continues it.
        """
        replicas = self._set.replicas(partition_id, topic)
        waiting = frozenset[int]()
        # without a leader it raises at once: the other partitions do not wait
        replicas.leaders.find_leader(self._set.deadline(), wait=False)
        if replicas.members.damaged:
            repair_damaged(replicas, self._set.deadline, ending)
        decided = self._set.decisions.counted_state().partitions.get(partition_id)
        if decided is None or set(decided.replicas) <= set(decided.isr):
            self._catching_up.pop(partition_id, None)
        else:
            copies = self._catching_up.get(partition_id)
            if copies is None:
                copies = CatchUp(replicas, self._set.deadline)
                self._catching_up[partition_id] = copies
            try:
                waiting = copies.catch_up(decided, ending, until_ns)
            except LeaderChanged:
                return
        replicas.tend(self._set.deadline(), waiting)
        self.advance(partition_id, topic)

    def advance(self, partition_id: PartitionId, topic: str) -> bool:
        """Finish the reassignment of a partition if its target is in the ISR; True if it is
        finished now.
        """
        decided = self._set.decisions.counted_state().partitions.get(partition_id)
        if decided is None or not (decided.adding or decided.removing):
            return False
        target = [node for node in decided.replicas if node not in decided.removing]
        if not set(target) <= set(decided.isr):
            return False
        replicas = self._set.replicas(partition_id, topic)
        if decided.leader not in target:
            self._commit(replicas)

        def make_event(state: State, offset: int) -> Event:
            current = state.partitions.get(partition_id, decided)
            return FinishReassignment(
                partition_id, decided.partition_epoch, replicas.leaders.observe_replicas(current)
            )

        result = self._set.decisions.propose(
            Steps([make_event]),
            self._set.deadline(),
            reason="all replicas of the reassignment are in sync",
        )
        if isinstance(result, Refusal):
            if result not in SUPERSEDED:
                logger.info("%s: the reassignment is not finished: %s", replicas.name, result.value)
            return False
        replicas.leaders.find_leader(self._set.deadline())
        return True

    def clear(self) -> None:
        """Remove the replicas of this set's topics that no decision names, in the directories of
        this process.

        Their files of topics get the decided settings.
        """
        state = self._set.decisions.counted_state()
        if state is self._cleared:
            return
        is_clear = True
        run_at = self._set.members.workers.run_at
        for directory in self._usable_directories():
            path = directory.path
            try:
                run_at(path, partial(directory.write_settings, state))
                partition_ids = run_at(path, partial(directory.unassigned_partitions, state))
                for partition_id in partition_ids:
                    topic_uuid, _ = partition_id
                    topic = state.topics[topic_uuid].name
                    if not self._remove(partition_id, topic, directory.node):
                        is_clear = False
            except EmbedlogError as problem:
                text = f"settings, or replicas that were moved away, stay in {path}"
                log_messages.report(logger, logging.WARNING, (path, "clear"), text, problem)
                is_clear = False
        self._cleared = state if is_clear else None

    def _remove(self, partition_id: PartitionId, topic: str, node: int) -> bool:
        """Remove one replica. The decision without it counts and is installed before."""
        state = self._set.decisions.settle(self._set.deadline())
        decided = state.partitions.get(partition_id)
        if decided is None or node in decided.replicas:
            return False
        leader = self._set.replicas(partition_id, topic).leaders.find_leader(self._set.deadline())
        # it may fail meanwhile
        directories = [
            directory for directory in self._usable_directories() if directory.node == node
        ]
        if not directories or leader.epoch < decided.leader_epoch:
            return False
        (directory,) = directories
        return self._set.members.workers.run_at(
            directory.path, partial(directory.drop, partition_id, state)
        )
