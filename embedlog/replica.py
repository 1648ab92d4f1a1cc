"""This module is the open log of several directories: a set with leaders and followers.

REPLICAENGINE-1  the engine of a set gives `ReplicatedPartition`s; everything above it works as with one directory
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from embedlog.config.topic import LogConfig
from embedlog.engine import Engine
from embedlog.errors import ReadOnlyError, TopicExistsError, UnknownTopicOrPartitionError
from embedlog.replica_set import set_up
from embedlog.replica_set.replica_set import ReplicaSet
from embedlog.storage import files
from embedlog.storage.identity import new_id
from embedlog.topic import Topic

if TYPE_CHECKING:
    from embedlog.partition.partition import Partition

INTERNAL_FACTOR = 3  # of internal topics, at most the number of directories


class ReplicatedEngine(Engine):
    """The engine of a set. Threads: every method may be called from any thread."""

    set: ReplicaSet

    def __init__(self, paths: Sequence[Path], *, read_only: bool, create: bool, config: LogConfig) -> None:
        deadline_ns = files.deadline_after(config.lock_timeout_ms / 1000)
        set_up.prepare_set(paths, deadline_ns=deadline_ns, create=create, mode=config.file_mode)
        super().__init__(paths, read_only=read_only, create=create, config=config)

    def _prepare(self) -> None:
        self.set = ReplicaSet(self.directories, self.config, self.check_open)

    def _begin(self) -> None:
        self.set.begin()
        self.registry = cast("Any", self.set.topics)
        self.set.topics.refresh()

    def check_writable(self) -> None:
        """Raises ReadOnlyError, ClosedError. A directory that was replaced is a failed one (REPLICA-18)."""
        self.check_open()
        if self.read_only:
            raise ReadOnlyError("the log was opened read-only; without read_only=True it can be changed", path=self.path)

    # ---- topics and partitions -------------------------------------------------------------------

    def topic(self, name: str) -> Topic:
        """The topic, with changes of other processes. Raises UnknownTopicOrPartitionError."""
        self.set.topics.refresh()
        return self.set.topics.live(name)

    def refresh_topics(self) -> None:
        """Apply changes of other processes. Raises ClosedError."""
        self.check_open()
        self.set.topics.refresh()

    def topics_version(self) -> int:
        """A number that changes with each decision."""
        return 2 * self.set.decisions.version()

    def mapped_topics_version(self) -> int:
        return self.topics_version()

    def partition(self, name: str, number: int) -> Partition:
        self.refresh_topics()
        return cast("Partition", self.set.partition(name, number))

    def partition_of(self, topic: Topic, number: int) -> Partition:
        self.check_open()
        return cast("Partition", self.set.partition(topic.name, number))

    def existing(self, places: Iterable[tuple[str, int]]) -> list[Partition]:
        self.refresh_topics()
        found = []
        for name, number in places:
            try:
                found.append(cast("Partition", self.set.partition(name, number)))
            except UnknownTopicOrPartitionError:
                continue
        return found

    def all_partitions(self, *, loaded_only: bool) -> list[Partition]:
        self.refresh_topics()
        return [self.partition_of(topic, number) for topic in self.set.topics.all() for number in range(topic.partitions)]

    def make_internal_topic(self, name: str, partitions: int, config: Mapping[str, str]) -> None:
        if self.set.topics.get(name) is None:
            topic = Topic(name, new_id(), partitions, dict(config))
            with contextlib.suppress(TopicExistsError):  # another process was faster
                self.set.create_topic(topic, factor=min(INTERNAL_FACTOR, len(self.directories)))
