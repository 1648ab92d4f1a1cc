"""This module administers the topics of a set: every change is a decision (`docs/protocol.md`,
REPLICA-23).

REPLICATEDTOPIC-1  arguments are checked as for one directory, before the decision; the decision
    checks what depends on the state
REPLICATEDTOPIC-2  a deletion of records is in the manifests of the ISR when it returns. The
    housekeeper writes a checkpoint that could not be written
REPLICATEDTOPIC-3  a topic is created only if its name was free before the completion of deletions
    began. One that another process deletes during that has its own completion,
    after which it is created
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Unpack, cast
from uuid import UUID

from embedlog import _logging
from embedlog.admin import topics
from embedlog.admin.deleted_topics import DeletedTopics
from embedlog.admin.topics import TopicAdmin
from embedlog.config.options import by_field, dotted
from embedlog.config.topic import TopicConfig, parse
from embedlog.errors import (
    EmbedlogError,
    InvalidReplicaAssignmentError,
    StorageError,
    TopicExistsError,
)
from embedlog.replicas.rules.events import CreatePartitions, DeleteTopic, Event, SetConfig
from embedlog.replicas.rules.state import State
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
        made = set[str]()
        self._registry.refresh()  # an earlier topic of the name may be deleted
        while topics := [
            each
            for each in planned
            if each.name not in made and not (exist_ok and self._is_live(each.name))
        ]:
            for topic in topics:
                self._check_free(topic.name)
            self._deleted.finish({topic.name for topic in topics})
            # no other one, also if it was deleted meanwhile (REPLICATEDTOPIC-3)
            for topic in topics:
                factor, assignment = topic.replicas if isinstance(topic, Planned) else ONE_COPY
                try:
                    self._set.create_topic(topic, factor=factor, assignment=assignment)
                except TopicExistsError:  # another process was faster
                    if not (exist_ok and self._is_live(topic.name)):
                        self._check_free(topic.name)
                        raise
                    continue
                made.add(topic.name)
        return [topic.name for topic in planned if topic.name in made]

    def grow(self, name: str, total_count: int) -> None:
        """As `Log.create_partitions`."""
        self._engine.check_writable()
        check_name(name)
        topic_id = self._topic_id(name)
        count = topics._check_count(total_count)
        self._set.decide(lambda state: CreatePartitions(topic_id, count, self._set.live()))

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
        given = by_field(TopicConfig, config, settings)
        new = parse(
            TopicConfig, {key: value for key, value in given.items() if value is not None}
        ).overrides()
        changes: dict[str, str | None] = {
            dotted(key): None for key, value in given.items() if value is None
        } | dict(new)

        def event(state: State) -> Event:
            return SetConfig(name, changes, seen=self._set.observed(state))

        topic_id = self._topic_id(name)
        state = self._set.decide(event)
        for each in state.partitions_of(topic_id):
            # its leader may accept more or less from now on (TOPICS-6)
            if len(each.isr) < len(each.replicas):
                self._set.replicas((topic_id, each.number), name).leaders.begin(
                    self._set.deadline()
                )
        self._set.assignments.clear()  # the directories note the settings
        for opened in self._set.members.opened():
            led = [
                each.number for each in state.partitions_of(topic_id) if each.leader == opened.node
            ]
            with suppress(StorageError):  # a directory that fails takes no append, either
                opened.directory.log_directory.topic_changes.await_appends(name, led)

    def delete(self, name: str) -> None:
        """As `Log.delete_topic`."""
        self._engine.check_writable()
        check_name(name)
        topics._refuse_internal(name)
        topic_id = self._topic_id(name)
        self._set.decide(lambda state: DeleteTopic(topic_id))
        self._deleted.delete(name, topic_id)

    def _raise_starts(
        self, targets: Mapping[TopicPartition, tuple[LogPartition, int]]
    ) -> dict[TopicPartition, int]:
        """The checkpoint of each directory is for brokers: it is written under the lock of that
        directory (REPLICATEDTOPIC-2).
        """
        starts = {
            tp: partition.delete_records(offset) for tp, (partition, offset) in targets.items()
        }
        for opened in self._set.members.opened():
            try:
                self._set.members.workers.at(
                    opened.path, partial(opened.directory.note_starts, starts)
                )
            except EmbedlogError as problem:
                what = f"the log starts of {opened.path} are not in its checkpoint yet"
                _logging.report(logger, logging.WARNING, (opened.path, "starts"), what, problem)
        return starts

    def _topic_id(self, name: str) -> UUID:
        self._set.topics.refresh()
        return self._set.topics.identified(name)[1]
