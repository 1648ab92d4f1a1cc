"""This module gives the partitions of a set's topics in one of its directories, and makes them
there as the decisions ask.

SETDIRECTORY-1  the decision log has the topics; `embedlog.topics` of a directory has what this
    directory holds (REPLICA-23)
SETDIRECTORY-2  a partition's directory is made when it is first used here. A topic of another id
    with the same name is retired first
SETDIRECTORY-3  the copy of the decision log is a topic of this directory, which no decision names
SETDIRECTORY-4  a partition is made only for a replica that the decisions assign to this node, and
    removed after they do not
SETDIRECTORY-5  a replica that begins again has the DIRTY mark from its begin: records of it were
    lost, so it is not complete
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
    from embedlog.log_directory import LogDirectory
    from embedlog.partition.partition import Partition
    from embedlog.replicas.rules.events import Place
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

    def replica(self, place: Place, name: str, hint: Callable[[], State]) -> Partition:
        """The open partition, made if it is decided and absent here. Raises
        UnknownTopicOrPartitionError, StorageError.

        An open one needs no look at the decisions: the process that retires it marks its page.
        """
        found = self.present(place, name)
        return found if found is not None and not found.deleted else self._opened(place, hint())

    def _opened(self, place: Place, state: State) -> Partition:
        topic_id, number = place
        decided = state.topics.get(topic_id)
        if decided is None:
            raise UnknownTopicOrPartitionError(f"no topic has the id {topic_id}", path=self.path)
        found = self.log_directory.partitions.get((decided.name, number))
        assigned = state.partitions.get((topic_id, number))
        if assigned is None or self.node not in assigned.replicas:
            raise UnknownTopicOrPartitionError(
                f"no replica of {decided.name}-{number} is here", path=self.path
            )
        # nothing is made in another directory in this place
        self.log_directory.directory.check_lock()
        self.log_directory.refresh_topics()
        topic = self.log_directory.registry.get(decided.name)
        if retired := found is not None and found.deleted:  # it was moved away, and is added again
            self.log_directory.forget_partition(decided.name, number)
        if (
            retired
            or topic is None
            or not topic.finished
            or topic.id_bytes != topic_id.bytes
            or number not in topic.here
        ):
            if self.log_directory.read_only:
                name = file_names.partition_name(decided.name, number)
                raise UnknownTopicOrPartitionError(
                    f"no replica of {name} is here", path=self.path / name
                )
            topic = self._bring(topic_of(state, topic_id, self.node))
        return self.log_directory.partition_of(topic, number)

    def is_present(self, place: Place, name: str) -> bool:
        """Whether the partition is open here, so that nothing is made or read for it."""
        found = self.present(place, name)
        return found is not None and not found.deleted

    def is_loaded(self, topic: str, number: int) -> bool:
        """Whether the partition may have records since its orderly close: it is open here, or not
        closed in order.
        """
        directory = self.log_directory
        marked = directory.path / file_names.partition_name(topic, number) / file_names.DIRTY
        return (topic, number) in directory.partitions or files.exists(marked)

    def _bring(self, wanted: Topic) -> Topic:
        """Make the directories of a topic's partitions here (SETDIRECTORY-2)."""
        changes = self.log_directory.topic_changes
        registry = self.log_directory.registry
        with changes.begin():
            found = registry.get(wanted.name)
            if found is not None and found.topic_id != wanted.topic_id:
                self._delete(found)
            changes.finish_drops(wanted)
            registry.put(wanted)
            return changes.finish_creation(wanted)

    def retire(self, name: str, topic_id: UUID) -> None:
        """Retire the partitions of a topic that a decision deleted."""
        changes = self.log_directory.topic_changes
        registry = self.log_directory.registry
        with changes.begin():
            found = registry.get(name)
            if found is not None and found.id_bytes == topic_id.bytes:
                self._delete(found)

    def undecided(self, state: State, names: Collection[str] | None) -> set[tuple[str, UUID]]:
        """The topics, or those with these names, that this directory has although the state does
        not.
        """
        self.log_directory.refresh_topics()
        present = {
            topic.name: UUID(bytes=topic.id_bytes)
            for topic in self.log_directory.registry.all()
            if topic.name != LOG
        }
        return {
            each
            for each in present.items()
            if each[1] not in state.topics and (names is None or each[0] in names)
        }

    def note_settings(self, state: State) -> None:
        """Write the decided settings of the topics here to the file of topics, for a later use
        without the set.
        """
        registry = self.log_directory.registry
        ids = {id_text(each.bytes): each for each in state.topics}
        found = [each for each in registry.all() if each.finished and each.topic_id in ids]
        decided = [(each, topic_of(state, ids[each.topic_id]).config) for each in found]
        if any(each.config != config for each, config in decided):
            with self.log_directory.topic_changes.begin():
                for each, config in decided:
                    now = registry.get(each.name)
                    if (
                        now is not None
                        and now.topic_id == each.topic_id
                        and now.finished
                        and now.config != config
                    ):
                        registry.put(now._replace(config=config))

    def unassigned(self, state: State) -> list[tuple[UUID, int]]:
        """The partitions of decided topics that have a directory here, although no decision assigns
        them to this node.
        """
        changes = self.log_directory.topic_changes
        return [
            (topic_id, number)
            for topic_id in state.topics
            for number in changes.numbers_of(topic_of(state, topic_id))
            if (each := state.partitions.get((topic_id, number))) is not None
            and self.node not in each.replicas
        ]

    def drop(self, place: tuple[UUID, int], state: State) -> bool:
        """Remove a partition that the settled state does not assign to this node (REPLICA-24);
        False if it stays.
        """
        changes = self.log_directory.topic_changes
        with changes.begin():
            return changes.drop_partition(
                topic_of(state, place[0]), place[1], state.partitions[place].leader_epoch
            )

    def check_place(self) -> None:
        """Raises StorageError if the directory or its lock file was removed or replaced."""
        self.log_directory.directory.check_lock()

    def renew(self, place: tuple[UUID, int], state: State) -> bool:
        """Set a replica aside that cannot be loaded, and make an empty one; False if it was loaded
        meanwhile (SETDIRECTORY-5).

        REQUIRES that a settled decision removed it from ISR and ELR. Raises LockTimeoutError,
        StorageError.
        """
        changes = self.log_directory.topic_changes
        topic = topic_of(state, place[0])
        mode = self.log_directory.config.file_mode
        with changes.begin():
            renewed = changes.renew_partition(topic, place[1], partial(dirty_mark.put, mode=mode))
        self.log_directory.forget_partition(topic.name, place[1])
        return renewed

    def renew_decision_log(self) -> bool:
        """Set the copy of the decision log aside, and make an incomplete one; False if
        it was loaded meanwhile.
        """
        changes = self.log_directory.topic_changes
        mode = self.log_directory.config.file_mode
        with changes.begin():
            topic = self.log_directory.registry.live(LOG)
            renewed = changes.renew_partition(
                topic, 0, lambda path: promise.write(path, Promise(incomplete=True), mode)
            )
        self.log_directory.forget_partition(LOG, 0)
        return renewed

    def present(self, place: Place, name: str) -> Partition | None:
        """The partition if it is open here."""
        found = self.log_directory.partitions.get((name, place[1]))
        return (
            found
            if found is not None and found.topic_id == place[0].bytes and not found.closed
            else None
        )

    def note_starts(self, wanted: Iterable[TopicPartition]) -> None:
        """Write the log starts of these partitions here to the checkpoint, under the directory
        lock. Raises StorageError.
        """
        found = self.log_directory.partitions
        held = [
            each
            for tp in wanted
            if (each := found.get((tp.topic, tp.partition))) is not None and not each.closed
        ]
        if held:
            with self.log_directory.topic_changes.directory_lock():
                starts = {
                    (each.topic, each.number): each.bounds().log_start or None for each in held
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

    def present_decision_log(self) -> Partition:
        """The open copy of the decision log: one that is closed since its directory was missing is
        opened again.
        """
        found = self.log_directory.partitions.get((LOG, 0))
        if found is None or found.closed:
            self.log_directory.refresh_topics()
            topic = self.log_directory.registry.live(LOG)
            found = self.log_directory.partition_of(topic, 0)
        return found

    def decision_log(self, *, is_new_member: bool) -> Partition:
        """The copy of the decision log here (SETDIRECTORY-3).

        One that is empty is incomplete, unless the directory is new to its set: it had records,
        which are lost.
        """
        topic = self.log_directory.registry.get(LOG)
        if topic is None or not topic.finished:
            topic = self._bring(
                Topic(LOG, id_of_name(LOG), 1, {"cleanup.policy": "compact"}, "creating")
            )
        found = self.log_directory.partition_of(topic, 0)
        if not is_new_member and not self.log_directory.read_only and _is_empty(found):
            config = self.log_directory.config
            with found.replica.exclusive(files.deadline_after(config.lock_timeout_ms / 1000)):
                known = promise.read(found.path)
                promise.write(found.path, known._replace(incomplete=True), config.file_mode)
        return found


def _is_empty(copy: Partition) -> bool:
    """Whether a copy of the decision log has no record. One that cannot be loaded begins again
    later.
    """
    try:
        return copy.replica.published()[0].log_end == 0
    except (CorruptRecordError, ForeignDirectoryError, UnknownTopicOrPartitionError):
        return False


def topic_of(state: State, topic_id: UUID, node: int | None = None) -> Topic:
    """A decided topic; with a node, as the directory of this node holds it: to be made, and with
    its numbers only.
    """
    decided = state.topics[topic_id]
    partitions = state.partitions_of(topic_id)
    config = {
        name: text
        for (kind, resource, name), text in state.settings.items()
        if (kind, resource) == (TOPIC, decided.name)
    }
    if node is None:
        return Topic(decided.name, id_text(topic_id.bytes), len(partitions), config)
    here = tuple(each.number for each in partitions if node in each.replicas)
    only = () if len(here) == len(partitions) else here
    return Topic(
        decided.name, id_text(topic_id.bytes), len(partitions), config, "creating", only=only
    )
