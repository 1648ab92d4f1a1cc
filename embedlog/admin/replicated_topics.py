"""This module administers the topics of a set: every change is a decision (`docs/protocol.md`,
REPLICA-23).

- Arguments are checked as for one directory, before the decision; the decision checks what depends
  on the state.
- A deletion of records is in the manifests of the ISR when it returns. The housekeeper writes a
  checkpoint that could not be written.
- A topic is created only if its name was free before the completion of deletions began, and if no
  topic was deleted since then. Otherwise the completion is repeated.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Unpack, cast
from uuid import UUID

from embedlog._native import system
from embedlog.admin import topics
from embedlog.admin.deleted_topics import DeletedTopics
from embedlog.admin.topics import TopicAdmin
from embedlog.config.options import by_field, dotted
from embedlog.config.topic import TopicConfig, parse
from embedlog.errors import (
    EmbedlogError,
    InvalidReplicaAssignmentError,
    LockTimeoutError,
    StorageError,
    TopicExistsError,
)
from embedlog.replicas.members.set_directory import topic_of
from embedlog.replicas.rules.events import CreatePartitions, DeleteTopic, Event, SetConfig
from embedlog.replicas.rules.state import State
from embedlog.telemetry import log_messages
from embedlog.topic import Topic, check_name
from embedlog.types import NewTopic, TopicPartition

if TYPE_CHECKING:
    from embedlog.config.typed_options import TopicOptions
    from embedlog.partition.interfaces import LogPartition
    from embedlog.replica import ReplicatedEngine

logger = logging.getLogger("embedlog")


class Replicas(NamedTuple):
    """The replicas of a topic that is being created: their number, or their nodes by partition."""

    factor: int
    assignment: Mapping[int, Sequence[int]] | None


ONE_COPY: Final = Replicas(1, None)


class Planned(Topic):
    """A topic that is being created, with its replicas."""

    replicas: Replicas = ONE_COPY


class ReplicatedTopicAdmin(TopicAdmin):
    """The administration of topics of a set. **Threads**: any; **processes**: decisions order
    them.
    """

    def __init__(self, engine: ReplicatedEngine) -> None:
        super().__init__(engine)
        self._set = engine.set
        self._deleted = DeletedTopics(engine)
        self._registry = cast("Any", engine.set.topics)

    def _check_replicas(self, new: NewTopic, count: int) -> int:
        """The number of partitions, and the replicas for `_create`."""
        factor = new.replication_factor
        assignment = new.assignment
        if factor is not None and type(factor) is not int:
            raise TypeError(f"a replication factor is an int, not {type(factor).__name__}")
        if assignment is not None:
            if factor is not None or new.partitions not in (None, len(assignment)):
                raise InvalidReplicaAssignmentError(
                    f"the assignment of {new.name!r} has the number of partitions and of "
                    "replicas: give it alone",
                    expected=len(assignment),
                    found=(new.partitions, factor),
                )
            if sorted(assignment) != list(range(len(assignment))):
                raise InvalidReplicaAssignmentError(
                    f"the assignment of {new.name!r}",
                    expected=f"partitions 0 to {len(assignment) - 1}",
                    found=sorted(assignment),
                )
            count = len(assignment)
        return count

    def _plan(self, new: NewTopic, settings: Mapping[str, Any]) -> Topic:
        topic = super()._plan(new, settings)
        factor = new.replication_factor
        default = self._engine.config.default_replication_factor
        replicas = Replicas(default if factor in (None, -1) else factor, new.assignment)
        planned = Planned(*topic)
        planned.replicas = replicas
        return planned

    def _create(self, planned: list[Topic], exist_ok: bool) -> list[str]:
        created_names = set[str]()
        until_ns = 0  # from the first time that the completion is repeated
        self._registry.refresh()  # an earlier topic of the name may be deleted
        while True:
            due = []
            for topic in planned:
                is_there = exist_ok and self._is_live(topic.name)
                if topic.name not in created_names and not is_there:
                    due.append(topic)
            if not due:
                return [topic.name for topic in planned if topic.name in created_names]
            before = self._set.decisions.last_decided_state()
            for topic in due:
                self._check_free(topic.name)
            self._deleted.finish({topic.name for topic in due})
            # no other one, also if it was deleted meanwhile
            for topic in due:
                factor, assignment = topic.replicas if isinstance(topic, Planned) else ONE_COPY
                try:
                    created = self._set.create_topic(
                        topic, factor=factor, assignment=assignment, before=before
                    )
                except TopicExistsError:  # another process was faster
                    if not (exist_ok and self._is_live(topic.name)):
                        self._check_free(topic.name)
                        raise
                    continue
                if not created:
                    until_ns = until_ns or self._set.deadline()
                    if system.boot_ns() >= until_ns:
                        raise LockTimeoutError(
                            f"topics were deleted all the time: {topic.name!r} is not created"
                        )
                    self._registry.refresh()
                    break
                created_names.add(topic.name)

    def grow(self, name: str, total_count: int) -> None:
        """As `Log.create_partitions`."""
        self._engine.check_writable()
        check_name(name)
        topic_uuid = self._topic_uuid(name)
        count = topics._check_count(total_count)
        self._set.decide(lambda state: CreatePartitions(topic_uuid, count, self._set.live_nodes()))

    def alter(
        self, name: str, config: Mapping[str, Any] | None = None, **settings: Unpack[TopicOptions]
    ) -> None:
        """As `Log.alter_topic`."""
        self._engine.check_writable()
        check_name(name)
        if config is None and not settings:
            raise TypeError(
                "settings of a topic are given as a mapping or as keywords, not NoneType"
            )
        values = by_field(TopicConfig, config, settings)
        new_values = {field: value for field, value in values.items() if value is not None}
        changes: dict[str, str | None] = {
            dotted(field): None for field, value in values.items() if value is None
        }
        changes.update(parse(TopicConfig, new_values).overrides())

        topic_uuid = self._topic_uuid(name)

        def make_event(state: State) -> Event:
            if topic_uuid in state.topics:
                self._check_settings_after(topic_of(state, topic_uuid), changes)
            return SetConfig(name, changes, seen=self._set.observe_replicas(state))

        state = self._set.decide(make_event)
        partitions = state.partitions_of(topic_uuid)
        for partition in partitions:
            # its leader may accept more or less from now on
            if len(partition.isr) < len(partition.replicas):
                replicas = self._set.replicas((topic_uuid, partition.number), name)
                replicas.leaders.begin(self._set.deadline())
        self._set.assignments.clear()  # the directories note the settings
        for opened in self._set.members.open_members():
            led = [partition.number for partition in partitions if partition.leader == opened.node]
            with suppress(StorageError):  # a directory that fails takes no append, either
                opened.directory.log_directory.topic_changes.await_appends(name, led)

    def _check_settings_after(self, topic: Topic, changes: Mapping[str, str | None]) -> None:
        """Raises ConfigError if the changed settings and the others are not valid together, also
        with the defaults of this log.
        """
        settings = {**topic.config, **changes}
        self._engine.config.check_topic_config(
            {key: value for key, value in settings.items() if value is not None}
        )

    def delete(self, name: str) -> None:
        """As `Log.delete_topic`."""
        self._engine.check_writable()
        check_name(name)
        topics._refuse_internal(name)
        topic_uuid = self._topic_uuid(name)
        self._set.decide(lambda state: DeleteTopic(topic_uuid))
        self._deleted.delete(name, topic_uuid)

    def _raise_starts(
        self, targets: Mapping[TopicPartition, tuple[LogPartition, int]]
    ) -> dict[TopicPartition, int]:
        """The checkpoint of each directory is for brokers: it is written under the lock of that
        directory.
        """
        starts = {
            tp: partition.delete_records(offset) for tp, (partition, offset) in targets.items()
        }
        for opened in self._set.members.open_members():
            write_starts = partial(opened.directory.write_starts, starts)
            try:
                self._set.members.workers.run_at(opened.path, write_starts)
            except EmbedlogError as problem:
                text = f"the log starts of {opened.path} are not in its checkpoint yet"
                log_messages.report(logger, logging.WARNING, (opened.path, "starts"), text, problem)
        return starts

    def _topic_uuid(self, name: str) -> UUID:
        self._set.topics.refresh()
        return self._set.topics.topic_with_id(name)[1]
