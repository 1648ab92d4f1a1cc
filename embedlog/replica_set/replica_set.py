"""This module opens the directories of a set together: their copies of the decision log, their registration, their partitions.

REPLICASET-1  a directory is entered before its copy of the decision log is used; all of them are registered by one decision
REPLICASET-2  a directory that is missing or fails is away; the others open if they are a majority
REPLICASET-3  the clean mark of a directory has the broker epoch of its registration (REPLICA-12)
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from uuid import UUID

from embedlog._native import system
from embedlog.config.topic import LogConfig, TopicConfig
from embedlog.errors import EmbedlogError, UnknownTopicOrPartitionError
from embedlog.log_directory import LogDirectory
from embedlog.replica_set import registration
from embedlog.replica_set.copies import Copy
from embedlog.replica_set.decision_log import DecisionLog
from embedlog.replica_set.open_directories import OpenDirectories, OpenDirectory
from embedlog.replica_set.partition_replicas import PartitionReplicas
from embedlog.replica_set.registration import Entered, Opening
from embedlog.replica_set.replicated_partition import ReplicatedPartition
from embedlog.replica_set.set_directory import SetDirectory
from embedlog.replica_set.set_topics import SetTopics
from embedlog.replication.events import CreateTopic, Event, Observed, Place
from embedlog.replication.state import State
from embedlog.storage.identity import read_clean_mark
from embedlog.topic import Topic

logger = logging.getLogger("embedlog")


class ReplicaSet:
    """The open directories of one set, and what they decide. Threads: any."""

    def __init__(self, directories: Sequence[LogDirectory], config: LogConfig, check_open: Callable[[], None]) -> None:
        """The set has prepared these directories. `begin` follows after they were entered."""
        self._config, self._check_open = config, check_open
        self._mutex = threading.Lock()
        self._replicas: dict[Place, PartitionReplicas] = {}
        self._partitions: dict[Place, ReplicatedPartition] = {}
        self._given = list(directories)
        self._entered: dict[LogDirectory, Entered] = {}
        self._opened: dict[int, SetDirectory] = {}
        for each in directories:
            self._prepare(each)

    def _prepare(self, directory: LogDirectory) -> None:
        """Register for the steps of the opening that REGISTRATION-1 needs."""
        marks: list[int] = []

        def beginning() -> None:
            marks.append(epoch if (epoch := read_clean_mark(directory.path)) is not None else -1)

        def preparing(first: bool) -> None:
            opened = directory.directory
            opening = Opening(directory.path, first, opened.clean, marks[-1] if marks else -1, opened.foreign)
            entered = registration.enter(opening, self._config.file_mode)
            if entered is not None:
                self._entered[directory] = entered

        directory.directory.beginning, directory.preparing = beginning, preparing

    def begin(self) -> None:
        """Register the directories, and read the decisions. Raises NotEnoughDirectoriesError, ReplicaSetError."""
        config, entered = self._config, list(self._entered.values())
        first = entered[0].membership
        voters = [member.node for member in first.members if member.voter]
        self.decisions = DecisionLog(first.cluster_id, voters, lock_timeout_ms=config.lock_timeout_ms)
        for directory, found in self._entered.items():
            node = found.membership.node
            directory.context.node_slot = 0  # it belongs to a set; the registration names the slot
            self._opened[node] = SetDirectory(node, directory)
            self.decisions.attach(Copy(node, self._opened[node].decision_log(), config.file_mode))
        self.directories = OpenDirectories(self._found(self.decisions.hint()))
        state = registration.register(
            self.decisions, entered, observe=self._observed, deadline_ns=self.deadline(), mode=config.file_mode
        )
        self.directories = OpenDirectories(self._found(state))
        self.topics = SetTopics(self.decisions.hint)
        for node, opened in self._opened.items():
            opened.log_directory.context.node_slot = state.nodes[node].slot
            opened.log_directory.directory.broker_epoch = state.nodes[node].broker_epoch

    def _found(self, state: State) -> list[OpenDirectory]:
        """All registered directories; those that this process has not opened are away."""
        found = []
        for entered in self._entered.values():
            own = entered.membership
            registered = state.nodes.get(own.node)
            slot = registered.slot if registered is not None else 0
            known = registered is not None and registered.incarnation == own.registration_id
            found.append(OpenDirectory(own.node, slot, own.registration_id, known, self._opened[own.node]))
        here = {each.node for each in found}
        away = [each for node, each in state.nodes.items() if node not in here]
        return found + [OpenDirectory(each.node, each.slot, each.incarnation, False, None, "not opened") for each in away]

    def deadline(self) -> int:
        """The deadline (boot clock, ns) of work that begins at this call."""
        return system.boot_ns() + self._config.lock_timeout_ms * 1_000_000

    def _observed(self, state: State) -> Mapping[Place, Observed]:
        """The replicas of all partitions that this process reaches."""
        return {
            place: PartitionReplicas(self.directories, self.decisions, place, state.topics[place[0]].name).observed(each)
            for place, each in state.partitions.items()
        }

    # ---- partitions ------------------------------------------------------------------------------

    def replicas(self, place: Place, topic: str) -> PartitionReplicas:
        """The replicas of one partition."""
        with self._mutex:
            found = self._replicas.get(place)
            if found is None:
                found = self._replicas[place] = PartitionReplicas(self.directories, self.decisions, place, topic)
            return found

    def partition(self, name: str, number: int) -> ReplicatedPartition:
        """The partition of a topic that `topics` has. Raises UnknownTopicOrPartitionError."""
        topic = self.topics.live(name)
        if type(number) is not int:
            raise TypeError(f"a partition's number is an int, not {type(number).__name__}")
        if not 0 <= number < topic.partitions:
            raise UnknownTopicOrPartitionError(
                f"topic {name!r} has no partition {number}", expected=f"0 to {topic.partitions - 1}", found=number
            )
        place = self.topics.topic_id(name), number
        found = self._partitions.get(place)
        if found is None:
            replicas = self.replicas(place, name)
            made = ReplicatedPartition(replicas, lambda: self._topic_config(name), self._config.lock_timeout_ms, self._check_open)
            found = self._partitions.setdefault(place, made)
        return found

    def _topic_config(self, name: str) -> TopicConfig:
        return self._config.topic_config(self.topics.live(name).config)

    # ---- decisions -------------------------------------------------------------------------------

    def decide(self, make_event: Callable[[State], Event]) -> State:
        """The state after a decision. Raises the error of a refusal, NotEnoughDirectoriesError."""
        state = self.decisions.decide(make_event, self.deadline()).state
        self.topics.refresh()
        return state

    def create_topic(self, topic: Topic, *, factor: int, assignment: Mapping[int, Sequence[int]] | None = None) -> None:
        """Create a topic. Raises TopicExistsError, InvalidReplicationFactorError, InvalidReplicaAssignmentError."""
        topic_id = UUID(bytes=topic.id_bytes)
        given = None if assignment is None else tuple(tuple(assignment[number]) for number in sorted(assignment))
        start, shift = random.randrange(1 << 16), random.randrange(1 << 16)

        def event(state: State) -> Event:
            return CreateTopic(
                topic.name, topic_id, self.live(), topic.partitions, factor, start, shift, assignment=given, config=topic.config
            )

        self.decide(event)

    def retire(self, name: str, topic_id: UUID) -> None:
        """Retire the partitions of a deleted topic in the directories that this process uses; others do so when they see it."""
        for each in self._opened.values():
            try:
                each.retire(name, topic_id)
            except EmbedlogError as problem:
                logger.warning("the partitions of the deleted topic %s stay in %s: %s", name, each.path, problem)

    def observed(self, state: State) -> Mapping[Place, Observed]:
        """The replicas of all partitions with an ELR."""
        return {place: each for place, each in self._observed(state).items() if state.partitions[place].elr}

    def live(self) -> frozenset[int]:
        """The nodes whose directories this process uses."""
        return frozenset(each.node for each in self.directories if each.usable(system.boot_ns()))

    def close(self) -> None:
        """Forget the partitions; the directories close their own."""
        with self._mutex:
            self._partitions.clear()
            self._replicas.clear()
