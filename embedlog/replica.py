"""This module is the open log of several directories: a set with leaders and followers.

- The engine of a set gives `ReplicatedPartition`s; everything above it works as with one directory.
- No directory of a set is special: `home` is the first one that is open now.
- A failed directory is not closed in order: its next opening registers it as crashed.
- One directory that is the only member of a set is opened as a set, by its path alone too.
- A topic that is retired in one directory keeps its committed offsets: a newer topic may have its
  name. The process that deletes a topic of the set deletes them.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from embedlog._native import system
from embedlog.config.topic import LogConfig
from embedlog.engine.engine import Engine
from embedlog.engine.log_directory import LogDirectory
from embedlog.errors import (
    EmbedlogError,
    LeaderNotAvailableError,
    NotEnoughDirectoriesError,
    ReadOnlyError,
    TopicExistsError,
    UnknownTopicOrPartitionError,
)
from embedlog.hooks.callbacks import Progress
from embedlog.replicas.members import set_up
from embedlog.replicas.replica_set import ReplicaSet
from embedlog.storage import files
from embedlog.storage.identity import new_id
from embedlog.storage.liveness import Liveness
from embedlog.storage.set_liveness import SetLiveness
from embedlog.topic import Topic, is_internal

if TYPE_CHECKING:
    from embedlog.partition.interfaces import LogPartition, ReadableLog, WatchedLog
    from embedlog.partition.partition import Partition

logger = logging.getLogger("embedlog")

T = TypeVar("T")

OFFSETS_MIN_IN_SYNC = 2  # of `__consumer_offsets`, at most one less than its copies


class _Led(Protocol):
    """A partition of a set."""

    def is_led(self) -> bool: ...


class ReplicatedEngine(Engine):
    """The engine of a set. Threads: every method may be called from any thread."""

    set: ReplicaSet
    replicated = True

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        read_only: bool,
        create: bool,
        config: LogConfig,
        racks: Sequence[str | None] | None = None,
        restored: bool = False,
        progress: Progress | None = None,
    ) -> None:
        self._racks = racks
        self._restored = restored
        super().__init__(
            paths, read_only=read_only, create=create, config=config, progress=progress
        )

    @property
    def _leave_timeout_ns(self) -> int:
        """The longest time for the orderly close of one directory: its partitions are synced."""
        return (self.config.lock_timeout_ms + self.config.replica_lag_time_max_ms) * 1_000_000

    def _enter(
        self, paths: Sequence[Path], undo: contextlib.ExitStack, *, create: bool, alone: bool
    ) -> None:
        config = self.config
        deadline_ns = files.deadline_after(config.lock_timeout_ms / 1000)
        self.set = ReplicaSet(
            self._make_directory,
            config,
            self.check_open,
            read_only=self.read_only,
            restored=self._restored,
        )
        workers = self.set.members.workers
        undo.callback(workers.close)
        if self.read_only:
            checked = set_up.check_to_read(paths, self._racks, workers.run_at)
        else:
            checked = set_up.prepare_set(
                paths,
                deadline_ns=deadline_ns,
                racks=self._racks,
                create=create,
                mode=config.file_mode,
                run_at=workers.run_at,
            )
        self.set.members.changed = self._serve
        undo.callback(self.set.members.release)
        self.set.open(checked, dict(zip(map(str, paths), self._racks or (), strict=False)))
        self.registry = cast("Any", self.set.topics)
        self.set.topics.refresh()

    def _make_liveness(self) -> Liveness:
        return SetLiveness(
            self.set.members.usable_paths,
            self.home.path,
            self.config.file_mode,
            self.config.shared == "locks",
        )

    def _make_directory(self, path: Path, *, reading: bool = False) -> LogDirectory:
        read_only = self.read_only or reading
        directory = LogDirectory(self, path, read_only=read_only, create=False, config=self.config)
        directory.settings_of = self.set.settings_of
        return directory

    def _serve(self, directories: Sequence[LogDirectory]) -> None:
        """Use these open directories from now on, by node. Without any, the last ones stay, to be
        named in errors. REQUIRES the mutex of `SetMembers`, or the opening of the set: other threads
        read each of the fields by itself.
        """
        self.directories = list(directories)
        if directories:
            self.home = self.directories[0]
            self._partitions = self.home.partitions

    def _finish(self) -> None:
        """Before the directories are left: give their clean marks the broker epochs, and end what the
        set does.
        """
        self.set.members.set_marked_epochs()
        self.set.close()

    def _release_directories(self) -> None:
        try:
            super()._release_directories()
        finally:
            self.set.members.workers.close()

    def _leave_directory(self, directory: LogDirectory) -> None:
        """As the last process, close it in order; a failed directory is left as it is."""
        members = self.set.members
        worker = members.workers.worker_of(directory.path)
        try:
            worker.run(directory.leave, limit_ns=self._leave_timeout_ns)
        except EmbedlogError as problem:
            has_failed = members.failure_of(directory) is not None or worker.is_hanging
            if worker.is_hanging:
                members.leave_later(directory)
            if not has_failed and not self.set.is_damaged(problem):
                raise
            logger.warning("the directory %s was not closed in order: %s", directory.path, problem)

    def check_writable(self) -> None:
        """Raises ReadOnlyError, ClosedError. A directory that was replaced is a failed one
        (REPLICA-18).
        """
        self.check_open()
        if self.read_only:
            raise ReadOnlyError(
                "the log was opened read-only; without read_only=True it can be changed",
                path=self.path,
            )

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
        """A number that changes with each decision; odd during a change of topics in a
        directory.
        """
        return self.set.members.version()

    def mapped_topics_version(self) -> int:
        # without mappings each look costs as much as a `stat`: 1, which counts as changed
        return 1 if self.config.shared == "locks" else self.topics_version()

    def topic_pages(self) -> Sequence[system.Page]:
        return () if self.config.shared == "locks" else self.set.members.pages()

    def _watched_pages(self, topics: int) -> Sequence[tuple[system.Page, int]]:
        return self.set.members.followed_pages(topics)

    def partition(self, name: str, number: int) -> Partition:
        self.refresh_topics()
        return cast("Partition", self.set.partition(name, number))

    def partition_of(self, topic: Topic, number: int) -> Partition:
        self.check_open()
        return cast("Partition", self.set.partition(topic.name, number))

    def is_led(self, partition: WatchedLog) -> bool:
        """Whether a partition has a leader now; nothing waits for one."""
        return cast("_Led", partition).is_led()

    def near(self, partition: LogPartition, rack: str | None) -> ReadableLog:
        if rack is None or not self.config.replica_selector_class.endswith(
            "RackAwareReplicaSelector"
        ):
            return partition
        return self.set.nearby_partition(partition.topic, partition.number, rack)

    def at_files(self, topic: Topic, number: int, call: Callable[[Partition], T]) -> T:
        """As for one directory, with the files of the leader; the call is repeated at the next
        leader if it fails.
        """
        self.check_open()
        replica = self.set.partition(topic.name, number).held_replica()
        if replica is None:
            return self.set.copied_partition(topic.name, number).at_files(call)
        return call(replica)

    def still_lead(self, name: str, epochs: Mapping[int, int]) -> bool:
        """As for one directory, by a settled decision: the pages of a directory that was away show
        nothing.

        Raises LeaderNotAvailableError without a majority.
        """
        try:
            decided = self.set.decisions.settle().partitions
        except NotEnoughDirectoriesError as problem:
            raise LeaderNotAvailableError(
                f"the leaders of {name} are not known: {problem}"
            ) from problem
        for number, epoch in epochs.items():
            partition = decided.get(self.set.partition(name, number).partition_id)
            if partition is None or partition.leader_epoch != epoch:
                return False
        return True

    def directory_paths(self) -> list[Path]:
        nodes = self.set.decisions.counted_state().nodes.values()
        return [
            *(directory.path for directory in self.directories),
            *(Path(node.path) for node in nodes),
        ]

    def existing(self, topic_partitions: Iterable[tuple[str, int]]) -> list[Partition]:
        self.refresh_topics()
        partitions = []
        for name, number in topic_partitions:
            try:
                partition = self.set.partition(name, number)
            except UnknownTopicOrPartitionError:
                continue
            partitions.append(cast("Partition", partition))
        return partitions

    def all_partitions(self, *, loaded_only: bool) -> list[Partition]:
        self.refresh_topics()
        return [
            self.partition_of(topic, number)
            for topic in self.set.topics.all()
            for number in range(topic.partitions)
        ]

    # ---- durability ------------------------------------------------------------------------------

    def flush(self, topic: str | None = None) -> None:
        """Put all published records on stable storage in all directories of each ISR. Raises
        DurabilityError.
        """
        self.check_writable()
        if topic is not None:
            self._flush_topic(topic)
            return
        for name in self.topic_names():
            try:
                self._flush_topic(name)
            except UnknownTopicOrPartitionError:
                if self.set.topics.get(name) is not None:
                    raise
                # it was deleted meanwhile: the others are still put on stable storage

    def _flush_topic(self, name: str) -> None:
        current_topic = self.topic(name)
        for number in range(current_topic.partitions):
            self.partition_of(current_topic, number).sync()

    def make_internal_topic(self, name: str, partitions: int, config: Mapping[str, str]) -> None:
        if self.set.topics.get(name) is None:
            factor, least = self._internal_replicas(name)
            topic = Topic(name, new_id(), partitions, {**config, "min.insync.replicas": str(least)})
            with contextlib.suppress(TopicExistsError):  # another process was faster
                self.set.create_topic(topic, factor=factor)

    def forget_topic(self, topic: str, deadline_ns: int) -> None:
        """Do nothing: a newer topic may have its name, and needs the committed offsets."""

    def undecided_least(self) -> dict[str, int]:
        """The `min.insync.replicas` for each topic that has no decided value, and would have one if
        this set had made it.
        """
        least_by_topic = {}
        for topic in self.set.topics.all():
            if "min.insync.replicas" in topic.config:
                continue
            if is_internal(topic.name):
                _, least = self._internal_replicas(topic.name)
            else:
                least = self.config.min_insync_replicas
            if least > 1:
                least_by_topic[topic.name] = least
        return least_by_topic

    def _internal_replicas(self, name: str) -> tuple[int, int]:
        """The copies of an internal topic, and its `min.insync.replicas`: with two copies or more it
        is below their number, so that one may be lost.
        """
        config = self.config
        copies = config.offsets_topic_replication_factor
        least = OFFSETS_MIN_IN_SYNC
        if name == "__transaction_state":
            copies = config.transaction_state_log_replication_factor
            least = config.transaction_state_log_min_isr
        factor = min(copies, self.set.replica_directory_count())
        return factor, min(least, max(1, factor - 1))
