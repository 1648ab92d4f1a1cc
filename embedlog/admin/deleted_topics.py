"""This module completes the deletion of topics in the directories of a set (`docs/protocol.md`, DIR-3 and REPLICA-23).

DELETEDTOPIC-1  a decision deletes a topic. Then its committed offsets are deleted, and after them its entry and its partitions in
    each directory. A directory that was away loses them after its return
DELETEDTOPIC-2  an entry of a deleted topic shows that its offsets may remain. Without them a new topic of that name is created
DELETEDTOPIC-3  the offsets of a newer topic of that name are kept
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from typing import TYPE_CHECKING
from uuid import UUID

from embedlog.errors import NotEnoughDirectoriesError
from embedlog.storage import files

if TYPE_CHECKING:
    from embedlog.replica import ReplicatedEngine


class DeletedTopics:
    """The deleted topics of an open set. Threads: any."""

    def __init__(self, engine: ReplicatedEngine) -> None:
        self._engine = engine
        self._seen: tuple[int, int] | None = None

    def finish(self, names: Collection[str]) -> None:
        """Complete the deletion of topics with these names, before they are created again (DELETEDTOPIC-2)."""
        for name, topic_id in self._engine.set.deleted_topics(names):
            self.delete(name, topic_id)

    def tend(self) -> None:
        """Complete each deletion, if a decision was made or a directory returned since the last time. For the housekeeper."""
        directories = self._engine.set.directories
        seen = directories.version(), directories.changes
        if seen == self._seen:
            return
        with suppress(NotEnoughDirectoriesError):
            for name, topic_id in self._engine.set.deleted_topics():
                self.delete(name, topic_id)
            self._seen = seen

    def delete(self, name: str, topic_id: UUID) -> None:
        """Delete the offsets of a deleted topic, then what the directories have of it (DELETEDTOPIC-1)."""
        deadline_ns = files.deadline_after(self._engine.config.lock_timeout_ms / 1000)
        self._engine.groups.forget_topic(name, deadline_ns, self._is_deleted)
        self._engine.set.retire(name, topic_id)

    def _is_deleted(self, name: str) -> bool:
        """Whether no topic has this name now."""
        self._engine.refresh_topics()
        return self._engine.set.topics.get(name) is None
