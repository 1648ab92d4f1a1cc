"""This module shows the decided topics of a set to the engine, as `TopicRegistry` shows those of a
directory.

- The topics are those of the counted state that one copy of the decision log shows (QUORUM-7).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING
from uuid import UUID

from embedlog.config.options import nearest
from embedlog.errors import UnknownTopicOrPartitionError
from embedlog.replicas.members.set_directory import topic_of
from embedlog.topic import Topic

if TYPE_CHECKING:
    from embedlog.replicas.rules.state import State


class SetTopics:
    """The topics of an open set. Threads: any."""

    def __init__(self, counted_state: Callable[[], State]) -> None:
        self._counted_state = counted_state
        # called after the settings of a topic changed
        self.settings_changed: Callable[[], None] = lambda: None
        self._state: State | None = None
        # replaced as a whole, so that both are of one state
        self._topics: dict[str, tuple[Topic, UUID]] = {}

    def has_changed(self) -> bool:
        """Whether a decision changed a topic since the last `refresh`."""
        return self._counted_state() is not self._state

    def refresh(self) -> bool:
        """Take the counted state over; True if it is another one."""
        state = self._counted_state()
        if state is self._state:
            return False
        while True:
            before = self._topics
            topics = {
                decided.name: (topic_of(state, topic_uuid), topic_uuid)
                for topic_uuid, decided in state.topics.items()
            }
            self._topics = topics
            self._state = state
            if _settings_of(before) != _settings_of(topics):
                self.settings_changed()
            newest = self._counted_state()
            if newest is state:
                return True
            # another thread may have taken it over meanwhile, and this one the older state after it
            state = newest

    def get(self, name: str) -> Topic | None:
        """The topic; None if there is none with this name."""
        entry = self._topics.get(name)
        if entry is None:
            return None
        topic, _ = entry
        return topic

    def live(self, name: str) -> Topic:
        """The topic. Raises UnknownTopicOrPartitionError, with similar names."""
        topic, _ = self.topic_with_id(name)
        return topic

    def topic_with_id(self, name: str) -> tuple[Topic, UUID]:
        """As `live`, with its id."""
        entry = self._topics.get(name)
        if entry is None:
            near = nearest(name, list(self._topics))
            hint = f"did you mean {near[0]!r}?" if near else "create_topic() creates it"
            raise UnknownTopicOrPartitionError(f"topic {name!r} is unknown; {hint}")
        return entry

    def every_name(self) -> Iterable[str]:
        """Names of all topics, without an order."""
        return self._topics.keys()

    def names(self) -> list[str]:
        """Names of all topics, sorted, including internal ones."""
        return sorted(self._topics)

    def all(self) -> list[Topic]:
        """Every topic by name."""
        return [topic for _, (topic, _) in sorted(self._topics.items())]


def _settings_of(topics: Mapping[str, tuple[Topic, UUID]]) -> dict[str, Mapping[str, str]]:
    return {name: topic.config for name, (topic, _) in topics.items()}
