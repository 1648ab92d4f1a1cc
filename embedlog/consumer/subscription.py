"""The subscription of a consumer: named partitions, or all partitions of some topics.

- One kind at a time: to change the kind, unsubscribe first.
- Topics are checked before each wait. Without a group, a partition that was added later is read
  from its start, whatever `auto.offset.reset` is: all its records are later than the subscription.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from embedlog.errors import InvalidTopicError, StateError, UnknownTopicOrPartitionError
from embedlog.types import TopicPartition

if TYPE_CHECKING:
    from embedlog.engine.engine import Engine


class Subscription:
    """The kind and the names; the current partitions are read from the log."""

    def __init__(self, engine: Engine, *, exclude_internal: bool) -> None:
        self._engine = engine
        self._exclude_internal = exclude_internal
        self._pattern: re.Pattern[str] | None = None
        self.topics: frozenset[str] = frozenset()
        self.kind: str = ""  # "", "assigned", "topics", "pattern"

    def clear(self) -> None:
        self.kind = ""
        self.topics = frozenset()
        self._pattern = None

    def assign(self) -> None:
        self._set_kind("assigned")

    def subscribe(
        self, topics: Iterable[str] | None, pattern: str | re.Pattern[str] | None
    ) -> None:
        """Subscribe to topics by name, or by a pattern that the whole name matches; replaces the
        previous subscription.
        """
        if (topics is None) == (pattern is None):
            raise TypeError("subscribe() takes either topics or a pattern")
        if pattern is not None:
            self._set_kind("pattern")
            self._pattern = re.compile(pattern)
            return
        names = _check_names(topics)
        self._set_kind("topics")
        self.topics = names

    def with_selection(
        self, topics: Iterable[str] | None, pattern: str | re.Pattern[str] | None
    ) -> Subscription:
        """A subscription to other topics; this one does not change. Raises as `subscribe` does, and
        for unknown names.
        """
        subscription = Subscription(self._engine, exclude_internal=self._exclude_internal)
        subscription.kind = self.kind
        subscription.subscribe(topics, pattern)
        for name in sorted(subscription.topics):
            self._engine.topic(name)
        subscription.refresh()
        return subscription

    def become(self, other: Subscription) -> None:
        self.kind = other.kind
        self.topics = other.topics
        self._pattern = other._pattern

    def refresh(self) -> None:
        """Update the topics that match the pattern, if there is one."""
        if self._pattern is not None:
            names = self._engine.topic_names(include_internal=not self._exclude_internal)
            self.topics = frozenset(name for name in names if self._pattern.fullmatch(name))

    def find_topic(self, name: str) -> tuple[str, Sequence[int]] | None:
        """Identity and partitions of any topic; None if it does not exist now."""
        try:
            topic = self._engine.topic(name)
        except UnknownTopicOrPartitionError:
            return None
        return topic.topic_id, topic.usable_numbers

    def partitions(self) -> list[TopicPartition]:
        """The partitions to read now. Raises UnknownTopicOrPartitionError."""
        self.refresh()
        return [
            TopicPartition(name, number)
            for name in sorted(self.topics)
            for number in self._engine.topic(name).usable_numbers
        ]

    def _set_kind(self, kind: str) -> None:
        by_topic = {"topics", "pattern"}
        if self.kind and self.kind != kind and not {self.kind, kind} <= by_topic:
            raise StateError(
                "topics, patterns and assigned partitions exclude one another: unsubscribe() first"
            )
        self.clear()
        self.kind = kind


def _check_names(topics: Iterable[str] | None) -> frozenset[str]:
    if topics is None or isinstance(topics, str):
        raise TypeError(f"topics: a list of names, not {topics!r}")
    names = frozenset(topics)
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"topics: names are str, not {type(name).__name__}")
        if not name.strip():
            raise InvalidTopicError("the name of a topic must not be blank", found=repr(name))
    return names
