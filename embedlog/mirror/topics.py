"""Selects the topics of a mirror, and prepares them at the target.

- A topic at the target that has records is refused, unless this mirror wrote them, or the user
  permits it.
- A topic that a mirror copied from this target is not copied back.
- A new topic gets the partitions and settings of the source; later partitions are added, settings
  are not changed.
- A topic that was created again at the source is refused; one that was created again at the target
  is copied again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from embedlog import (
    ConfigError,
    InvalidPartitionsError,
    StateError,
    TopicPartition,
    UnknownTopicOrPartitionError,
)
from embedlog.mirror.mirror_state import MirrorState, TopicPair, is_about, read_copies
from embedlog.mirror.sides import INTERNAL, MirrorSource, MirrorTarget, TopicFacts

# As in MirrorMaker 2: settings of replicas, and of timestamps, which the mirror keeps.
NOT_COPIED = frozenset(
    {
        "follower.replication.throttled.replicas",
        "leader.replication.throttled.replicas",
        "message.timestamp.difference.max.ms",
        "message.timestamp.type",
        "min.insync.replicas",
        "unclean.leader.election.enable",
    }
)


@dataclass(frozen=True)
class Selection:
    """The topics of a mirror: by name, and by a regular expression for whole names; all if neither
    is given.
    """

    names: tuple[str, ...] = ()
    pattern: str | None = None

    def __post_init__(self) -> None:
        for name in self.names:
            if name.startswith(INTERNAL):
                raise ConfigError(f"internal topics are not mirrored: {name}")
        try:
            re.compile(self.pattern or "")
        except re.error as problem:
            raise ConfigError(
                f"pattern of topics: {problem}", expected="a regular expression", found=self.pattern
            ) from None

    def check(self, source: MirrorSource) -> None:
        """Raises UnknownTopicOrPartitionError for a name without a topic."""
        source_names = source.topic_names()
        for name in self.names:
            if name not in source_names:
                raise UnknownTopicOrPartitionError(f"no topic {name!r} in {source.label}")

    def check_copies(self, source: MirrorSource, copies: set[str]) -> None:
        """Raises ConfigError for a name of a copy."""
        for name in self.names:
            if name in copies:
                raise ConfigError(
                    f"{name} in {source.label} is a copy from the target: its records would "
                    "circulate"
                )

    def select(self, source: MirrorSource) -> list[str]:
        """The selected topics that are present."""
        source_names = [name for name in source.topic_names() if not name.startswith(INTERNAL)]
        if self.pattern is None and not self.names:
            return source_names
        matches = re.compile(self.pattern or "").fullmatch  # without a pattern: no name
        return [name for name in source_names if name in self.names or matches(name)]


def find_copies(source: MirrorSource, target_identity: str) -> set[str]:
    """The topics of a source that mirrors from the target have written."""
    return {
        name
        for topic in source.topic_names()
        if is_about(topic, target_identity)
        for name in read_copies(source.lines(topic))
    }


@dataclass
class Preparation:
    """Prepares topics at the target."""

    target: MirrorTarget
    state: MirrorState
    notice: Callable[[str], object]
    prefix: str = ""
    append: bool = False
    replication_factor: int | None = None

    def prepare(self, topics: Iterable[TopicFacts]) -> None:
        """Make the topics ready for records. Raises StateError, ConfigError,
        InvalidPartitionsError.
        """
        source_topics = list(topics)
        target_topics = self.target.describe([self.prefix + topic.name for topic in source_topics])
        for topic in source_topics:
            self._prepare(topic, target_topics.get(self.prefix + topic.name))

    def _prepare(self, topic: TopicFacts, target_topic: TopicFacts | None) -> None:
        name = self.prefix + topic.name
        pair = self.state.topic_pairs.get(topic.name)
        if pair is not None and pair.target != name:
            raise ConfigError(
                f"this mirror copies {topic.name} to another topic: another prefix needs another "
                "name of the mirror",
                expected=pair.target,
                found=name,
            )
        is_own = (
            pair is not None
            and target_topic is not None
            and pair.target_id == target_topic.topic_id
        )
        if pair is not None and is_own and pair.source_id != topic.topic_id:
            raise StateError(
                f"the topic {topic.name} was created again at the source: delete {name} at the "
                "target to copy it again",
                expected=f"topic id {pair.source_id}",
                found=topic.topic_id,
            )
        if target_topic is None:
            target_topic = self._create(topic, name)
        elif not is_own:
            self._check_fit(topic, target_topic)
        if not is_own:
            lines = self.state.lines_of_registration(
                topic.name, TopicPair(topic.topic_id, name, target_topic.topic_id)
            )
            self.target.write([], lambda _: lines)  # no records, only these lines of the state
            self.state.apply(lines)
        elif target_topic.partition_count < topic.partition_count:
            self.target.grow(name, topic.partition_count)

    def _create(self, topic: TopicFacts, name: str) -> TopicFacts:
        config = {key: value for key, value in topic.config.items() if key not in NOT_COPIED}
        target_topic = topic._replace(name=name, config=config)
        not_copied = self.target.create(target_topic, self.replication_factor)
        not_copied += sorted(topic.config.keys() & NOT_COPIED)
        if not_copied:
            self.notice(f"topic {name}: settings that were not copied: {', '.join(not_copied)}")
        return self.target.describe([name])[name]

    def _check_fit(self, topic: TopicFacts, target_topic: TopicFacts) -> None:
        if target_topic.partition_count < topic.partition_count:
            raise InvalidPartitionsError(
                f"the topic {target_topic.name} in {self.target.label} has fewer partitions than "
                "at the source",
                expected=f"at least {topic.partition_count}",
                found=target_topic.partition_count,
            )
        partitions = [
            TopicPartition(target_topic.name, number)
            for number in range(target_topic.partition_count)
        ]
        if not self.append and any(end for _, end in self.target.bounds(partitions).values()):
            raise ConfigError(
                f"the topic {target_topic.name} in {self.target.label} has records that this "
                "mirror did not copy",
                expected="an empty topic, or --append",
                found="a topic with records",
            )
