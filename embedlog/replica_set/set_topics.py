"""This module shows the decided topics of a set to the engine, as `TopicRegistry` shows those of a directory.

SETTOPICS-1  the topics are those of the newest state that one copy of the decision log shows (QUORUM-7)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING
from uuid import UUID

from embedlog.config.options import nearest
from embedlog.errors import UnknownTopicOrPartitionError
from embedlog.replica_set.set_directory import topic_of
from embedlog.topic import Topic

if TYPE_CHECKING:
    from embedlog.replication.state import State


class SetTopics:
    """The topics of an open set. Threads: any."""

    def __init__(self, hint: Callable[[], State]) -> None:
        self._hint = hint
        self.settings_changed: Callable[[], None] = lambda: None  # called after the settings of a topic changed
        self._state: State | None = None
        self._topics: dict[str, Topic] = {}
        self._ids: dict[str, UUID] = {}

    def has_changed(self) -> bool:
        """Whether a decision changed a topic since the last `refresh`."""
        return self._hint() is not self._state

    def refresh(self) -> bool:
        """Take the newest state over; True if it is another one."""
        state = self._hint()
        if state is self._state:
            return False
        found = {topic.name: topic_id for topic_id, topic in state.topics.items()}
        before = self._topics
        self._topics = {name: topic_of(state, topic_id) for name, topic_id in found.items()}
        self._ids, self._state = found, state
        if {name: topic.config for name, topic in before.items()} != {name: topic.config for name, topic in self._topics.items()}:
            self.settings_changed()
        return True

    def topic_id(self, name: str) -> UUID:
        """The id of a topic that `live` returned."""
        return self._ids[name]

    def get(self, name: str) -> Topic | None:
        """The topic; None if there is none with this name."""
        return self._topics.get(name)

    def live(self, name: str) -> Topic:
        """The topic. Raises UnknownTopicOrPartitionError, with similar names."""
        found = self._topics.get(name)
        if found is None:
            near = nearest(name, list(self._topics))
            hint = f"did you mean {near[0]!r}?" if near else "create_topic() creates it"
            raise UnknownTopicOrPartitionError(f"topic {name!r} is unknown; {hint}")
        return found

    def every_name(self) -> Iterable[str]:
        """Names of all topics, without an order."""
        return self._topics.keys()

    def names(self) -> list[str]:
        """Names of all topics, sorted, including internal ones."""
        return sorted(self._topics)

    def all(self) -> list[Topic]:
        """Every topic by name."""
        return [topic for _, topic in sorted(self._topics.items())]
