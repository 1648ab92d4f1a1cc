"""This module opens the directories of a set together: their copies of the decision log, their
registration, their partitions.

- A set opens with the directories that answer (`set_members`); what needs a majority fails without
  one.
- A partition has one object for this process, whichever directory leads; a consumer with a rack has
  its own one, to read.
- The decided settings of a topic apply to its partitions in each directory, whatever the file of
  topics there has.
- A topic is created with the `min.insync.replicas` of the log, unless it has its own. Only a
  decided value applies to the high watermark, to the ELR, and to all processes.
"""

from __future__ import annotations

import errno
import logging
import random
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from uuid import UUID

from embedlog._native import system
from embedlog.config.topic import LogConfig, TopicConfig
from embedlog.errors import EmbedlogError, StorageError, UnknownTopicOrPartitionError
from embedlog.replicas.assignments import Assignments
from embedlog.replicas.decisions.refusals import TopicDeleted
from embedlog.replicas.members.growth import SetGrowth
from embedlog.replicas.members.member_directories import MakeDirectory
from embedlog.replicas.members.membership import CheckedSet
from embedlog.replicas.members.open_directories import LOAD_ERRORS
from embedlog.replicas.members.set_members import SetMembers
from embedlog.replicas.observation.replica_events import ReplicaEvents
from embedlog.replicas.partition.copied_partition import CopiedPartition
from embedlog.replicas.partition.leaders import Leaders
from embedlog.replicas.partition.nearby_partition import NearbyPartition
from embedlog.replicas.partition.partition_replicas import PartitionReplicas
from embedlog.replicas.partition.replicated_partition import ReplicatedPartition
from embedlog.replicas.rules.events import CreateTopic, Event, Observed, PartitionId
from embedlog.replicas.rules.records import LOG
from embedlog.replicas.rules.state import LEAST, State
from embedlog.replicas.set_topics import SetTopics
from embedlog.replicas.verification.verification import Verification
from embedlog.storage.file_names import partition_name
from embedlog.topic import Topic

logger = logging.getLogger("embedlog")


class ReplicaSet:
    """The open directories of one set, and what they decide. Threads: any."""

    def __init__(
        self,
        make: MakeDirectory,
        config: LogConfig,
        check_open: Callable[[], None],
        *,
        read_only: bool = False,
        restored: bool = False,
    ) -> None:
        self._config = config
        self._check_open = check_open
        self._read_only = read_only
        self._mutex = threading.Lock()
        self._replicas: dict[PartitionId, PartitionReplicas] = {}
        self._partitions: dict[PartitionId, ReplicatedPartition] = {}
        self._topics: SetTopics | None = None  # as `topics`, once the set is open
        self.events = ReplicaEvents(lambda: self.members.log_directories())
        self.members = SetMembers(
            make, config, read_only=read_only, restored=restored, observer=self.events.observe
        )

    def open(self, checked: CheckedSet, racks: Mapping[str, str | None] | None = None) -> None:
        """Open the directories, register them, and read the decisions. Raises the errors of
        `SetMembers.open`.

        `racks`: those that were given, by path; others are as they were registered.
        """
        self.members.open(checked, racks or {})
        self.directories = self.members.directories
        self.decisions = self.members.decisions
        self.topics = SetTopics(self.decisions.counted_state)
        self._topics = self.topics
        self.topics.settings_changed = self._apply_settings
        self.assignments = Assignments(self)
        self.verification = Verification(self)
        self.growth = SetGrowth(self.members, self.assignments, self._config)
        voters = self.decisions.counted_state().voters
        if not checked.is_registered and len(voters) == 2:
            logger.info(
                "a set of two directories needs both for each decision: a third one on another "
                "disk lets either fail, also a"
                " small one without replicas: add_directory(path, replicas=False)"
            )

    @property
    def least_default(self) -> int:
        """`min.insync.replicas` of a topic without a decided value, for this process."""
        return self._config.min_insync_replicas

    def deadline(self) -> int:
        """The deadline (boot clock, ns) of work that begins at this call."""
        return system.boot_ns() + self._config.lock_timeout_ms * 1_000_000

    # ---- partitions ------------------------------------------------------------------------------

    def replicas(self, partition_id: PartitionId, topic: str) -> PartitionReplicas:
        """The replicas of one partition."""
        with self._mutex:
            replicas = self._replicas.get(partition_id)
            if replicas is None:
                replicas = PartitionReplicas(self.directories, self.decisions, partition_id, topic)
                self._replicas[partition_id] = replicas
                replicas.leaders.peers = self._used_leaders
                replicas.leaders.unclean_default = self._config.unclean_leader_election_enable
                replicas.in_sync.least_default = self.least_default
            return replicas

    def used_replicas(self) -> list[PartitionReplicas]:
        """The replicas of all partitions that this process uses."""
        with self._mutex:
            return list(self._replicas.values())

    def _used_leaders(self) -> list[Leaders]:
        """The leaders of all partitions that this process uses."""
        return [replicas.leaders for replicas in self.used_replicas()]

    def is_damaged(self, problem: EmbedlogError) -> bool:
        """Whether an error is damage of a replica, or of the decision log, whose records another
        directory has.
        """
        node = self.directories.find_failed_node(problem, missing=True)
        is_missing = isinstance(problem, StorageError) and problem.errno == errno.ENOENT
        if node is None or not (is_missing or isinstance(problem, LOAD_ERRORS)):
            return False
        parts = () if problem.path is None else Path(problem.path).parts
        if partition_name(LOG, 0) in parts:
            return len(self.decisions.nodes) > 1
        state = self.decisions.counted_state()
        for (topic_uuid, number), partition in state.partitions.items():
            is_its_path = partition_name(state.topics[topic_uuid].name, number) in parts
            if is_its_path and set(partition.isr) - {node}:
                return True
        return False

    def partition(self, name: str, number: int) -> ReplicatedPartition:
        """The partition of a topic that `topics` has. Raises UnknownTopicOrPartitionError."""
        topic, topic_uuid = self.topics.topic_with_id(name)
        if type(number) is not int:
            raise TypeError(f"a partition's number is an int, not {type(number).__name__}")
        if not 0 <= number < topic.partitions:
            raise UnknownTopicOrPartitionError(
                f"topic {name!r} has no partition {number}",
                expected=f"0 to {topic.partitions - 1}",
                found=number,
            )
        partition_id = topic_uuid, number
        partition = self._partitions.get(partition_id)
        if partition is None:
            partition = ReplicatedPartition(
                self.replicas(partition_id, name),
                lambda: self._topic_config(name),
                self._config.lock_timeout_ms,
                self._check_open,
            )
            # of two threads, one result counts
            partition = self._partitions.setdefault(partition_id, partition)
        return partition

    def nearby_partition(self, name: str, number: int, rack: str) -> NearbyPartition:
        """The partition for one consumer in a rack. Raises UnknownTopicOrPartitionError."""
        replicas = self.replicas(self.partition(name, number).partition_id, name)
        return NearbyPartition(
            replicas,
            lambda: self._topic_config(name),
            self._config.lock_timeout_ms,
            self._check_open,
            rack,
        )

    def copied_partition(self, name: str, number: int) -> CopiedPartition:
        """The partition for a copy of its files. Raises UnknownTopicOrPartitionError."""
        replicas = self.replicas(self.partition(name, number).partition_id, name)
        return CopiedPartition(replicas, self._config.lock_timeout_ms, self._check_open)

    def settings_of(self, topic: Topic) -> Mapping[str, str]:
        """The decided settings of a topic of a directory; its own ones if no decision has it."""
        decided = None if self._topics is None else self._topics.get(topic.name)
        if decided is None or decided.topic_id != topic.topic_id:
            return topic.config
        return decided.config

    def _apply_settings(self) -> None:
        """Apply changed settings to the partitions of all directories in this process."""
        for opened in self.members.open_members():
            opened.directory.log_directory.apply_settings()

    def _topic_config(self, name: str) -> TopicConfig:
        return self._config.topic_config(self.topics.live(name).config)

    # ---- decisions -------------------------------------------------------------------------------

    def decide(self, make_event: Callable[[State], Event], *, reason: str = "") -> State:
        """The state after a decision. `reason` is for the log. Raises the error of a refusal,
        NotEnoughDirectoriesError.
        """
        state = self.decisions.decide(make_event, self.deadline(), reason=reason).state
        self.topics.refresh()
        return state

    def create_topic(
        self,
        topic: Topic,
        *,
        factor: int,
        assignment: Mapping[int, Sequence[int]] | None = None,
        before: State | None = None,
    ) -> bool:
        """Create a topic. `before`: a state from before the offsets of its name were deleted; False
        if a topic was deleted since then. Raises TopicExistsError, InvalidReplicationFactorError,
        InvalidReplicaAssignmentError.
        """
        topic_uuid = UUID(bytes=topic.id_bytes)
        replicas: tuple[tuple[int, ...], ...] | None = None
        if assignment is not None:
            replicas = tuple(tuple(assignment[number]) for number in sorted(assignment))
        start = random.randrange(1 << 16)
        shift = random.randrange(1 << 16)
        least = {LEAST: str(self.least_default)} if self.least_default > 1 else {}
        config = {**least, **topic.config}

        def make_event(state: State) -> Event:
            return CreateTopic(
                topic.name,
                topic_uuid,
                self.live_nodes(),
                topic.partitions,
                factor,
                start=start,
                shift=shift,
                assignment=replicas,
                config=config,
                removed=(before or state).removed,
            )

        try:
            state = self.decide(make_event)
        except TopicDeleted:
            return False
        for number in range(len(state.partitions_of(topic_uuid))):
            self.replicas((topic_uuid, number), topic.name).leaders.begin(self.deadline())
        return True

    def retire(self, name: str, topic_uuid: UUID) -> None:
        """Retire the partitions of a deleted topic in the directories that this process uses;
        others do so when they see it.
        """
        for opened in self.members.open_members():
            try:
                self.members.workers.run_at(
                    opened.path, partial(opened.directory.retire, name, topic_uuid)
                )
            except EmbedlogError as problem:
                logger.warning(
                    "the partitions of the deleted topic %s stay in %s: %s",
                    name,
                    opened.path,
                    problem,
                )

    def deleted_topics(self, names: Collection[str] | None = None) -> list[tuple[str, UUID]]:
        """The topics, or those with these names, that a directory of this process has although no
        decision does.

        Raises NotEnoughDirectoriesError.
        """
        if not self._undecided_topics(self.decisions.counted_state(), names):
            return []
        return sorted(self._undecided_topics(self.decisions.settle(self.deadline()), names))

    def _undecided_topics(
        self, state: State, names: Collection[str] | None
    ) -> set[tuple[str, UUID]]:
        topics = set[tuple[str, UUID]]()
        for opened in self.members.open_members():
            if opened.node not in state.nodes:
                continue  # its topics are those of a log that becomes a set, or of another set
            with suppress(EmbedlogError):  # of a directory that fails: it is asked after its return
                topics |= self.members.workers.run_at(
                    opened.path, partial(opened.directory.undecided_topics, state, names)
                )
        return topics

    def observe_replicas(self, state: State) -> Mapping[PartitionId, Observed]:
        """The replicas of all partitions with an ELR."""
        return {
            partition_id: observed
            for partition_id, observed in self.members.observe_replicas(state).items()
            if state.partitions[partition_id].elr
        }

    def replica_directory_count(self) -> int:
        """The number of directories that take replicas."""
        return sum(member.replicas for member in self.decisions.counted_state().nodes.values())

    def live_nodes(self) -> frozenset[int]:
        """The nodes whose directories this process uses."""
        return frozenset(
            member.node for member in self.directories if member.is_usable(system.boot_ns())
        )

    def close(self) -> None:
        """Before the directories are left: bring the high watermarks of the partitions that were
        used here to their followers.
        """
        if self._read_only:
            return
        for replicas in self.used_replicas():
            replicas.close(self.deadline())
