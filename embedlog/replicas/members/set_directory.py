"""This module gives the partitions of a set's topics in one of its directories, and makes them
there as the decisions ask.

- The decision log has the topics; `embedlog.topics` of a directory has what this directory holds
  (REPLICA-23).
- A partition's directory is made when it is first used here. A topic of another id with the same
  name is retired first.
- The copy of the decision log is a topic of this directory, which no decision names.
- A partition is made only for a replica that the decisions assign to this node, and removed after
  they do not.
- A replica that begins again has the DIRTY mark from its begin: records of it were lost, so it is
  not complete.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from embedlog.errors import CorruptRecordError, ForeignDirectoryError, UnknownTopicOrPartitionError
from embedlog.replicas.decisions import promise
from embedlog.replicas.decisions.promise import Promise
from embedlog.replicas.partition.copy_rate import COPIES_IN, COPIES_OUT, CopyRate
from embedlog.replicas.rules.records import LOG, TOPIC
from embedlog.storage import checkpoints, dirty_mark, file_names, files
from embedlog.storage.identity import id_of_name, id_text
from embedlog.topic import Topic

if TYPE_CHECKING:
    from embedlog.engine.log_directory import LogDirectory
    from embedlog.partition.partition import Partition
    from embedlog.replicas.rules.events import PartitionId
    from embedlog.replicas.rules.state import State
    from embedlog.types import TopicPartition


class SetDirectory:
    """One open directory of a set. Threads: any."""

    def __init__(self, node: int, directory: LogDirectory) -> None:
        self.node = node
        self.log_directory = directory
        self.copies_out = CopyRate(directory, COPIES_OUT)
        self.copies_in = CopyRate(directory, COPIES_IN)

    @property
    def path(self) -> Path:
        return self.log_directory.path

    def replica(
        self, partition_id: PartitionId, name: str, counted_state: Callable[[], State]
    ) -> Partition:
        """The open partition, made if it is decided and absent here. Raises
        UnknownTopicOrPartitionError, StorageError.

        An open one needs no look at the decisions: the process that retires it marks its page.
        """
        partition = self.find_open(partition_id, name)
        if partition is not None and not partition.deleted:
            return partition
        return self._open_decided(partition_id, counted_state())

    def _open_decided(self, partition_id: PartitionId, state: State) -> Partition:
        topic_uuid, number = partition_id
        decided = state.topics.get(topic_uuid)
        if decided is None:
            raise UnknownTopicOrPartitionError(f"no topic has the id {topic_uuid}", path=self.path)
        earlier = self.log_directory.partitions.get((decided.name, number))
        assigned = state.partitions.get((topic_uuid, number))
        if assigned is None or self.node not in assigned.replicas:
            raise UnknownTopicOrPartitionError(
                f"no replica of {decided.name}-{number} is here", path=self.path
            )
        # nothing is made in another directory in this place
        self.log_directory.directory.check_lock()
        self.log_directory.refresh_topics()
        topic = self.log_directory.registry.get(decided.name)
        is_retired = earlier is not None and earlier.deleted
        if is_retired:  # it was moved away, and is added again
            self.log_directory.forget_partition(decided.name, number)
        if (
            is_retired
            or topic is None
            or not topic.is_finished
            or topic.id_bytes != topic_uuid.bytes
            or number not in topic.usable_numbers
        ):
            if self.log_directory.read_only:
                name = file_names.partition_name(decided.name, number)
                raise UnknownTopicOrPartitionError(
                    f"no replica of {name} is here", path=self.path / name
                )
            topic = self._make_topic(topic_of(state, topic_uuid, self.node))
        return self.log_directory.partition_of(topic, number)

    def is_present(self, partition_id: PartitionId, name: str) -> bool:
        """Whether the partition is open here, so that nothing is made or read for it."""
        partition = self.find_open(partition_id, name)
        return partition is not None and not partition.deleted

    def is_loaded(self, topic: str, number: int) -> bool:
        """Whether the partition may have records since its orderly close: it is open here, or not
        closed in order.
        """
        directory = self.log_directory
        mark = directory.path / file_names.partition_name(topic, number) / file_names.DIRTY
        return (topic, number) in directory.partitions or files.exists(mark)

    def _make_topic(self, topic: Topic) -> Topic:
        """Make the directories of a topic's partitions here."""
        changes = self.log_directory.topic_changes
        registry = self.log_directory.registry
        with changes.begin():
            current_topic = registry.get(topic.name)
            if current_topic is not None and current_topic.topic_id != topic.topic_id:
                self._delete(current_topic)
            changes.finish_drops(topic)
            registry.put(topic)
            return changes.finish_creation(topic)

    def retire(self, name: str, topic_uuid: UUID) -> None:
        """Retire the partitions of a topic that a decision deleted."""
        changes = self.log_directory.topic_changes
        registry = self.log_directory.registry
        with changes.begin():
            topic = registry.get(name)
            if topic is not None and topic.id_bytes == topic_uuid.bytes:
                self._delete(topic)

    def undecided_topics(
        self, state: State, names: Collection[str] | None
    ) -> set[tuple[str, UUID]]:
        """The topics, or those with these names, that this directory has although the state does
        not.
        """
        self.log_directory.refresh_topics()
        undecided = set[tuple[str, UUID]]()
        for topic in self.log_directory.registry.all():
            if topic.name == LOG:
                continue
            topic_uuid = UUID(bytes=topic.id_bytes)
            if topic_uuid not in state.topics and (names is None or topic.name in names):
                undecided.add((topic.name, topic_uuid))
        return undecided

    def write_settings(self, state: State) -> None:
        """Write the decided settings of the topics here to the file of topics, for a later use
        without the set.
        """
        registry = self.log_directory.registry
        ids = {id_text(topic_uuid.bytes): topic_uuid for topic_uuid in state.topics}
        decided = [
            (topic, topic_of(state, ids[topic.topic_id]).config)
            for topic in registry.all()
            if topic.is_finished and topic.topic_id in ids
        ]
        if all(topic.config == config for topic, config in decided):
            return
        with self.log_directory.topic_changes.begin():
            for topic, config in decided:
                # another process may have changed the topic meanwhile
                current_topic = registry.get(topic.name)
                if (
                    current_topic is not None
                    and current_topic.topic_id == topic.topic_id
                    and current_topic.is_finished
                    and current_topic.config != config
                ):
                    registry.put(current_topic._replace(config=config))

    def unassigned_partitions(self, state: State) -> list[tuple[UUID, int]]:
        """The partitions of decided topics that have a directory here, although no decision assigns
        them to this node.
        """
        changes = self.log_directory.topic_changes
        unassigned = list[tuple[UUID, int]]()
        for topic_uuid in state.topics:
            for number in changes.numbers_of(topic_of(state, topic_uuid)):
                partition = state.partitions.get((topic_uuid, number))
                if partition is not None and self.node not in partition.replicas:
                    unassigned.append((topic_uuid, number))
        return unassigned

    def drop(self, partition_id: tuple[UUID, int], state: State) -> bool:
        """Remove a partition that the settled state does not assign to this node (REPLICA-24);
        False if it stays.
        """
        topic_uuid, number = partition_id
        changes = self.log_directory.topic_changes
        with changes.begin():
            return changes.drop_partition(
                topic_of(state, topic_uuid), number, state.partitions[partition_id].leader_epoch
            )

    def check_place(self) -> None:
        """Raises StorageError if the directory or its lock file was removed or replaced."""
        self.log_directory.directory.check_lock()

    def renew(self, partition_id: tuple[UUID, int], state: State) -> bool:
        """Set a replica aside that cannot be loaded, and make an empty one; False if it was loaded
        meanwhile.

        REQUIRES that a settled decision removed it from ISR and ELR. Raises LockTimeoutError,
        StorageError.
        """
        topic_uuid, number = partition_id
        changes = self.log_directory.topic_changes
        topic = topic_of(state, topic_uuid)
        mode = self.log_directory.config.file_mode
        with changes.begin():
            is_renewed = changes.renew_partition(topic, number, partial(dirty_mark.put, mode=mode))
        self.log_directory.forget_partition(topic.name, number)
        return is_renewed

    def renew_decision_log(self) -> bool:
        """Set the copy of the decision log aside, and make an incomplete one; False if it was
        loaded meanwhile.
        """
        changes = self.log_directory.topic_changes
        mode = self.log_directory.config.file_mode
        with changes.begin():
            topic = self.log_directory.registry.live(LOG)
            is_renewed = changes.renew_partition(
                topic, 0, lambda path: promise.write(path, Promise(incomplete=True), mode)
            )
        self.log_directory.forget_partition(LOG, 0)
        return is_renewed

    def find_open(self, partition_id: PartitionId, name: str) -> Partition | None:
        """The partition if it is open here."""
        topic_uuid, number = partition_id
        partition = self.log_directory.partitions.get((name, number))
        if partition is None or partition.topic_id_bytes != topic_uuid.bytes or partition.closed:
            return None
        return partition

    def write_starts(self, partitions: Iterable[TopicPartition]) -> None:
        """Write the log starts of these partitions here to the checkpoint, under the directory
        lock. Raises StorageError.
        """
        open_partitions: list[Partition] = []
        for tp in partitions:
            partition = self.log_directory.partitions.get((tp.topic, tp.partition))
            if partition is not None and not partition.closed:
                open_partitions.append(partition)
        if not open_partitions:
            return
        with self.log_directory.topic_changes.directory_lock():
            starts = {
                (partition.topic, partition.number): partition.bounds().log_start or None
                for partition in open_partitions
            }
            checkpoints.update(
                self.path / file_names.LOG_STARTS, starts, self.log_directory.config.file_mode
            )

    def _delete(self, topic: Topic) -> None:
        """Retire a topic here. REQUIRES the directory lock."""
        old = topic._replace(state="deleting", growing=0)
        self.log_directory.registry.put(old)
        self.log_directory.topic_changes.finish_deletion(
            old, self.log_directory.config.lock_timeout_ms / 1000
        )

    def reopen_decision_log(self) -> Partition:
        """The open copy of the decision log: one that is closed since its directory was missing is
        opened again.
        """
        copy = self.log_directory.partitions.get((LOG, 0))
        if copy is None or copy.closed:
            self.log_directory.refresh_topics()
            topic = self.log_directory.registry.live(LOG)
            copy = self.log_directory.partition_of(topic, 0)
        return copy

    def open_decision_log(self, *, is_new_member: bool) -> Partition:
        """The copy of the decision log here.

        One that is empty is incomplete, unless the directory is new to its set: it had records,
        which are lost.
        """
        topic = self.log_directory.registry.get(LOG)
        if topic is None or not topic.is_finished:
            topic = self._make_topic(
                Topic(LOG, id_of_name(LOG), 1, {"cleanup.policy": "compact"}, "creating")
            )
        copy = self.log_directory.partition_of(topic, 0)
        if not is_new_member and not self.log_directory.read_only and _is_empty(copy):
            config = self.log_directory.config
            with copy.replica.exclusive(files.deadline_after(config.lock_timeout_ms / 1000)):
                incomplete = promise.read(copy.path)._replace(incomplete=True)
                promise.write(copy.path, incomplete, config.file_mode)
        return copy


def _is_empty(copy: Partition) -> bool:
    """Whether a copy of the decision log has no record. One that cannot be loaded begins again
    later.
    """
    try:
        return copy.replica.published()[0].log_end == 0
    except (CorruptRecordError, ForeignDirectoryError, UnknownTopicOrPartitionError):
        return False


def topic_of(state: State, topic_uuid: UUID, node: int | None = None) -> Topic:
    """A decided topic; with a node, as the directory of this node holds it: to be made, and with
    its numbers only.
    """
    decided = state.topics[topic_uuid]
    partitions = state.partitions_of(topic_uuid)
    config = {
        name: text
        for (kind, resource, name), text in state.settings.items()
        if (kind, resource) == (TOPIC, decided.name)
    }
    if node is None:
        return Topic(decided.name, id_text(topic_uuid.bytes), len(partitions), config)
    numbers = tuple(partition.number for partition in partitions if node in partition.replicas)
    only = () if len(numbers) == len(partitions) else numbers
    return Topic(
        decided.name, id_text(topic_uuid.bytes), len(partitions), config, "creating", only=only
    )
