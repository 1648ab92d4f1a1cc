"""This module completes the deletion of topics in the directories of a set (`docs/protocol.md`,
DIR-3 and REPLICA-23).

A decision deletes a topic. Then its committed offsets are deleted, and after them its entry and its
partitions in each directory. A directory that was away loses them after its return. The offsets of
a newer topic of that name are kept.

The process that decided may end before the offsets are deleted. The entries of the topic show the
housekeeper that they may remain. But all directories with an entry may be away: before a creation,
the offsets of each name that no topic has are deleted. A commit that has read the topics before the
deletion ends before that. Records that are not committed are waited for: they may be such offsets,
or delete them, and a later leader may lack them.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from typing import TYPE_CHECKING, Final
from uuid import UUID

from embedlog.errors import NotEnoughDirectoriesError, NotEnoughReplicasError
from embedlog.storage import files
from embedlog.storage.call_deadline import bound_waits

if TYPE_CHECKING:
    from embedlog.replica import ReplicatedEngine


OFFSETS: Final = "__consumer_offsets"  # here, because a creation need not import the code of groups


class DeletedTopics:
    """The deleted topics of an open set. Threads: any."""

    def __init__(self, engine: ReplicatedEngine) -> None:
        self._engine = engine
        self._finished_versions: tuple[int, int] | None = None

    def finish(self, names: Collection[str]) -> None:
        """Complete the deletion of topics with these names, before they are created again.

        Raises LeaderNotAvailableError, NotEnoughReplicasError or LockTimeoutError for a partition
        that may have their offsets.
        """
        if not names:
            return
        if self._engine.set.topics.get(OFFSETS) is not None:
            try:
                self._forget(names)
            except NotEnoughReplicasError as problem:  # whose message is about records
                named = ", ".join(map(repr, sorted(names)))
                text = (
                    f"{named} not created: too few replicas of "
                    f"{problem.topic}-{problem.partition} are in sync to show that no"
                    " offset of a deleted topic with such a name remains"
                )
                raise NotEnoughReplicasError(
                    text,
                    topic=problem.topic,
                    partition=problem.partition,
                    isr=problem.isr,
                    required=problem.required,
                    away=problem.away,
                    retriable=problem.retriable,
                ) from problem
        for name, topic_uuid in self._engine.set.deleted_topics(names):
            self._engine.set.retire(name, topic_uuid)

    def tend(self) -> None:
        """Complete each deletion, if a decision was made or a directory returned since the last
        time. For the housekeeper.
        """
        directories = self._engine.set.directories
        versions = directories.version(), directories.changes
        if versions == self._finished_versions:
            return
        with suppress(NotEnoughDirectoriesError):
            for name, topic_uuid in self._engine.set.deleted_topics():
                self.delete(name, topic_uuid)
            self._finished_versions = versions

    def delete(self, name: str, topic_uuid: UUID) -> None:
        """Delete the offsets of a deleted topic, then what the directories have of it."""
        self._forget((name,))
        self._engine.set.retire(name, topic_uuid)

    def _forget(self, names: Collection[str]) -> None:
        """Delete the committed offsets of topics that no decision has."""
        deadline_ns = files.deadline_after(self._engine.config.lock_timeout_ms / 1000)
        with bound_waits(deadline_ns):
            self._engine.groups.forget_topics(names, deadline_ns, self._is_deleted)

    def _is_deleted(self, name: str) -> bool:
        """Whether no topic has this name now."""
        self._engine.refresh_topics()
        return self._engine.set.topics.get(name) is None
