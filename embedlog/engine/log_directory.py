"""One opened log directory: its locks, its topics by name, its partitions by number, and its
preparation and shutdown.

- Opening reads one file of topics; a partition is opened when it is first used.
- The first process completes interrupted creations before the open lock is released; deletions need
  the open log.
- The last process leaves the directory as Kafka leaves it after an orderly shutdown. If the close
  of a partition fails, the others are closed, and no checkpoint is written.
- A directory knows the open log only as its `Owner`; an open log of several directories has one
  object for each.

The life of a `LogDirectory`: it is made, then `enter`, `leave`, `close`, each once. After an error
in `enter`, `release` takes the place of the last two; in a forked child, `abandon` does.

Changes of topics by other processes come in by these calls:

| call | reads the topics | applies them to | called by |
| --- | --- | --- | --- |
| `refresh_topics` | if they changed | the open partitions | users of a log that may be closed |
| `follow_topics` | if they changed | the open partitions | users of a log that is open |
| `refresh_partitions` | no | the open partitions | the calls above, and the end of each change |
| `renew_settings` | if they changed | one open partition | an append that finds another topics word |
| `apply_settings` | no | the open partitions | a set, after a decision about settings |
| `reload_topics` | from the directories | the registry in memory | `refresh_partitions` of a reader |

An append notices a change by the topics word; `mapped_topics_version` is that word.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from embedlog._native import system
from embedlog.coordination import topic_directories
from embedlog.coordination.directory import Directory
from embedlog.coordination.topic_changes import TopicChanges
from embedlog.errors import (
    ConfigError,
    DirectoryInUseError,
    EmbedlogError,
    LockTimeoutError,
    ReadOnlyError,
    UnknownTopicOrPartitionError,
)
from embedlog.partition.log_context import (
    CheckpointedOffsets,
    Context,
    KeptDescriptors,
    Shares,
    write_checkpoints,
)
from embedlog.partition.partition import Partition
from embedlog.storage import file_names, files, location
from embedlog.storage.descriptors import Handles
from embedlog.topic import TopicRegistry

if TYPE_CHECKING:
    from embedlog.config.topic import LogConfig, TopicConfig
    from embedlog.hooks.callbacks import Work
    from embedlog.partition.interposer import Interposer
    from embedlog.partition.log_context import Traffic
    from embedlog.telemetry.metrics import Metrics
    from embedlog.topic import Topic

logger = logging.getLogger("embedlog")

NUMBERS_SHOWN: Final = 8  # of the partitions in a message


class Owner(Protocol):
    """The open log to which a directory belongs."""

    metrics: Metrics
    loads: Work
    traffic: dict[str, Traffic]

    def check_open(self) -> None:
        """Raises ClosedError after close, ForkedError in a forked child."""

    def refresh_topics(self) -> None:
        """Apply changes of topics by other processes. Raises ClosedError."""

    def forget_topic(self, topic: str, deadline_ns: int) -> None:
        """Delete the committed offsets of every group for a topic that is being deleted."""


class LogDirectory:
    """One log directory in one process. Threads: `enter`, `leave` and `close` once each; the rest
    may be called from any.
    """

    topic_changes: TopicChanges  # this and the next one after `enter`
    context: Context

    def __init__(
        self, owner: Owner, path: Path, *, read_only: bool, create: bool, config: LogConfig
    ) -> None:
        self.check_open = owner.check_open
        self._refresh_owner = owner.refresh_topics
        self.forget_topic = owner.forget_topic
        self.metrics = owner.metrics
        self.loads = owner.loads
        self.traffic = owner.traffic
        self.path = path
        self.read_only = read_only
        self.config = config
        # the open ones: anyone looks one up, only this object adds and removes, under the mutex
        self.partitions: dict[tuple[str, int], Partition] = {}
        # These two are assigned before `enter`. The first is called under the open lock, before
        # anything is written.
        self.preparing: Callable[[bool], None] | None = None
        # of a set: its decided settings
        self.settings_of: Callable[[Topic], Mapping[str, str]] = lambda topic: topic.config
        # settings of the open partitions
        self._applied: dict[tuple[str, int], Mapping[str, str]] = {}
        self._applied_content: object = None  # of the registry, at the last `refresh_partitions`
        # where a partition was closed here, and none is open since
        self._closed_places: set[tuple[str, int]] = set()
        self._half_deleted = False  # whether the first process found an interrupted deletion
        self._mutex = threading.RLock()
        self._acquired = contextlib.ExitStack()
        system.guard()
        mode = config.file_mode
        names = location.enter(path, read_only=read_only, create=create, mode=mode)
        self.in_set = file_names.REPLICAS in names
        self.registry = TopicRegistry(path, mode)
        self.registry.moving = self._topics_moving
        self.registry.word = self.mapped_topics_version
        self.directory = Directory(
            path,
            read_only=read_only,
            mode=mode,
            lock_timeout_ms=config.lock_timeout_ms,
            shared=config.shared,
        )

    # ---- open ------------------------------------------------------------------------------------

    def enter(self) -> None:
        """Take the locks and prepare the directory, so that partitions can be used. After an error,
        call `release`.
        """
        self.topic_changes = TopicChanges(self)
        self._acquired.callback(self.topic_changes.close)
        self._acquired.callback(self.directory.release)
        self.directory.enter(self._prepare)
        self._applied_content = self.registry.content
        self.context = self._make_context()
        if self.in_set and self.read_only:
            # any slot makes its partitions replicas: this reader shows committed records only
            self.context.node_slot = 0

    def _prepare(self, first: bool) -> None:
        """Under the open lock: read the topics, and as the first process complete interrupted
        changes.
        """
        if self.preparing is not None:
            self.preparing(first)
        if first:
            names = files.listing(self.path)
            if file_names.REPLICAS in names and not self.in_set:
                raise DirectoryInUseError(
                    "the directory became a member of a set during its opening: try again",
                    path=self.path,
                )
            files.remove_temporaries(self.path, names)
        self.registry.load()
        if not (first or self.read_only):
            return
        directories = self._scan()
        if first:
            topic_directories.warn_of_lookalikes(directories)
        linked = files.links(self.path)
        for numbers in directories.live.values():
            for path in numbers.values():
                if path.name in linked:
                    topic_directories.check_link(path, self.config.follow_links)
        if self.read_only:
            self._read_topics(directories)
            return
        changes = topic_directories.find_registry_changes(
            self._topics_by_name(), directories, broker_wrote=self.directory.broker_wrote
        )
        if changes.topics or changes.removed:
            self.registry.change(changes.topics, changes.removed)
        for topic in self.registry.list_unfinished():
            if topic.state == "deleting":
                self._half_deleted = True
            else:
                self.topic_changes.finish_creation(topic)
        if self.directory.broker_wrote:
            self._forget_marks(directories)

    def interpose(self, interposer: Interposer | None) -> None:
        """Ask `interposer` before each append of this process from now on, or none. Raises
        LockTimeoutError.
        """
        self.context.interposer = interposer
        if not self.context.writers.release_all(self.config.lock_timeout_ms / 1000):
            raise LockTimeoutError("a thread of this process appends for too long", path=self.path)

    def finish_deletions(self) -> None:
        """Complete deletions that the first process found interrupted. REQUIRES open groups: their
        offsets are deleted too.
        """
        if not self._half_deleted:
            return
        try:
            with self.topic_changes.begin(self.config.lock_timeout_ms / 1000):
                pass  # its beginning completes them
        except EmbedlogError as problem:
            # the topic stays unusable, and the next change tries again
            logger.warning("the deletion of a topic is incomplete: %s", problem)

    def _scan(self) -> topic_directories.Directories:
        return topic_directories.scan_directories(
            self.path, self._topics_by_name(), follow_links=self.config.follow_links
        )

    def _topics_by_name(self) -> dict[str, Topic]:
        return {topic.name: topic for topic in self.registry.all()}

    @staticmethod
    def _forget_marks(directories: topic_directories.Directories) -> None:
        """Remove DIRTY marks, which are invalid after a broker wrote."""
        for numbers in directories.live.values():
            for path in numbers.values():
                files.unlink(path / file_names.DIRTY, missing_ok=True)

    def _make_context(self) -> Context:
        directory = self.directory
        shares = Shares.of(self.config.max_open_files)
        return Context(
            self.path,
            directory.incarnation,
            directory.page,
            read_only=self.read_only,
            clean=directory.clean,
            broker_wrote=directory.broker_wrote,
            last_broker_visit=directory.last_broker_visit,
            locked=self.config.shared == "locks",
            mode=self.config.file_mode,
            lock_timeout_ms=self.config.lock_timeout_ms,
            producer_expiration_ms=self.config.producer_id_expiration_ms,
            decompressed_max=self.config.max_decompressed_batch_bytes,
            directory_change=directory.directory_change,
            recovery_points=CheckpointedOffsets(self.path / file_names.RECOVERY_POINTS),
            log_starts=CheckpointedOffsets(self.path / file_names.LOG_STARTS),
            high_watermarks=CheckpointedOffsets(self.path / file_names.HIGH_WATERMARKS),
            cleaned=CheckpointedOffsets(self.path / file_names.CLEANER),
            check_open=self.check_open,
            renew_settings=self.renew_settings,
            handles=Handles(shares.handles, fresh=self.config.shared == "locks"),
            writers=KeptDescriptors(shares.writers),
            syncers=KeptDescriptors(shares.syncers),
            refresh=self._refresh_live if self.read_only else None,
            held_lock=None if self.read_only else directory.held_lock,
            reacquire=directory.reacquire,
            traffic=self.traffic,
            metrics=self.metrics,
            loads=self.loads,
        )

    def _refresh_live(self) -> bool:
        """For a reader: whether a process writes here now, and its incarnation."""
        live = self.directory.refresh()
        self.context.incarnation = self.directory.incarnation
        self.context.directory_page = self.directory.page
        self.context.clean = self.directory.clean
        self.context.broker_wrote = self.directory.broker_wrote
        self.context.directory_change = self.directory.directory_change
        self.context.last_broker_visit = self.directory.last_broker_visit
        return live

    # ---- topics ----------------------------------------------------------------------------------

    def check_writable(self) -> None:
        """Raises ReadOnlyError, ClosedError, and StorageError if the directory or its lock file was
        replaced.
        """
        self.check_open()
        if self.read_only:
            raise ReadOnlyError(
                "the log was opened read-only; without read_only=True it can be changed",
                path=self.path,
            )
        self.directory.check_lock()

    def _topics_moving(self, done: bool) -> None:
        """Wake the processes that follow the topics."""
        page = self.directory.page
        if page is not None and page.writable:
            page.move_topics(done)

    def touch(self) -> None:
        """Wake the processes that follow the decisions of a set."""
        page = self.directory.page
        if page is not None and page.writable and not page.closed:
            page.touch_topics()

    def mapped_topics_version(self) -> int:
        """A number that changes with each change of topics; odd: a change may be in progress, so
        look at the topics. It is 1, odd, where reading it costs more than a `stat`.
        """
        page = self.directory.page
        return 1 if page is None or page.locked else page.topics()

    def refresh_topics(self) -> None:
        """Apply changes of other processes; partitions of deleted topics are closed. Raises
        ClosedError.
        """
        self.check_open()
        self.follow_topics()

    def follow_topics(self) -> None:
        """As `refresh_topics`, for callers that know that the log is open.

        It compares the contents: another call may have read the file and applied nothing.
        """
        self.registry.refresh()
        if self.registry.content is not self._applied_content:
            self.refresh_partitions()

    def reload_topics(self) -> None:
        """For a reader: add the topics whose directories exist without an entry, and remove those
        without directories.
        """
        self._read_topics(self._scan())

    def _read_topics(self, directories: topic_directories.Directories) -> None:
        """Take topics from the directories into memory. In a set the file of topics is the truth,
        unless a broker was there: a malformed or other topic id then concerns one partition.
        """
        directories_count = self.directory.broker_wrote or not self.in_set
        changes = topic_directories.find_registry_changes(
            self._topics_by_name(), directories, broker_wrote=directories_count, reading=True
        )
        self.registry.change_in_memory(changes.topics, changes.removed)

    # ---- partitions ------------------------------------------------------------------------------

    def refresh_partitions(self) -> None:
        """Apply changed settings of topics, and close partitions of deleted topics."""
        with self._mutex:
            content = self.registry.content
            for name, number in list(self.partitions):
                self._refresh_partition_locked(name, number)
            if self.read_only:
                self.reload_topics()
                content = self.registry.content
            self._applied_content = content

    def renew_settings(self, name: str, number: int) -> None:
        """Read the topics as they are now, and apply the settings of one open partition.

        Another thread may have read the topics, and not applied them yet: so this is done in any
        case. Raises ClosedError.
        """
        self._refresh_owner()
        with self._mutex:
            self._refresh_partition_locked(name, number)

    def _refresh_partition_locked(self, name: str, number: int) -> None:
        partition = self.partitions.get((name, number))
        topic = self.registry.get(name)
        if partition is None:
            return
        if (
            topic is None
            or topic.state == "deleting"
            or number not in topic.numbers
            or topic.id_bytes != partition.topic_id_bytes
        ):
            del self.partitions[name, number]
            self._applied.pop((name, number), None)
            self._closed_places.add((name, number))
            partition.close()
            return
        settings = self.settings_of(topic)
        if self._applied.get((name, number)) != settings:
            partition.apply_config(self._config_of(topic))
            self._applied[name, number] = dict(settings)

    def apply_settings(self) -> None:
        """Apply the current `settings_of` each topic to its open partitions."""
        with self._mutex:
            for (name, number), partition in self.partitions.items():
                topic = self.registry.get(name)
                if topic is not None and topic.id_bytes == partition.topic_id_bytes:
                    self._applied.pop((name, number), None)
                    partition.apply_config(self._config_of(topic))

    def _config_of(self, topic: Topic) -> TopicConfig:
        return self._parse_settings(topic, self.settings_of(topic))

    def _parse_settings(self, topic: Topic, settings: Mapping[str, str]) -> TopicConfig:
        try:
            return self.config.check_topic_config(settings)
        except ConfigError as problem:
            config = self.config.topic_config(settings)
            logger.warning(
                "max.compaction.lag.ms of topic %s does not apply until alter_topic() corrects the "
                "settings: %s",
                topic.name,
                problem,
            )
            return config

    def forget_partition(self, name: str, number: int) -> None:
        """Close a partition that was retired here, so that the next use opens its new directory."""
        with self._mutex:
            partition = self.partitions.pop((name, number), None)
            self._applied.pop((name, number), None)
            if partition is not None:
                self._closed_places.add((name, number))
                partition.close()

    def partition(self, name: str, number: int) -> Partition:
        """The open partition, with changes of topics by other processes. Raises
        UnknownTopicOrPartitionError.
        """
        self.refresh_topics()
        return self.partition_of(self.registry.live(name), number)

    def partition_of(self, topic: Topic, number: int) -> Partition:
        """The open partition of a topic that was just read. Raises UnknownTopicOrPartitionError."""
        self.check_open()
        partition = self.partitions.get((topic.name, number))
        if partition is None:
            return self.open_partition(topic, number)
        return partition

    def open_partition(self, topic: Topic, number: int) -> Partition:
        """The partition, opened unless it is open. Raises UnknownTopicOrPartitionError."""
        name = topic.name
        if type(number) is not int:
            raise TypeError(f"a partition's number is an int, not {type(number).__name__}")
        if number not in topic.usable_numbers:
            expected = f"0 to {topic.partitions - 1}"
            if topic.only:
                expected = f"one of {_list_numbers(topic.usable_numbers)}"
            raise UnknownTopicOrPartitionError(
                f"topic {name!r} has no partition {number}",
                path=self.path,
                expected=expected,
                found=number,
            )
        with self._mutex:
            partition = self.partitions.get((name, number))
            if partition is None:
                # another thread may have read the topics after `topic` was read
                current_topic = self.registry.live(name)
                if current_topic.id_bytes != topic.id_bytes:
                    raise UnknownTopicOrPartitionError(
                        f"topic {name!r} was deleted and created again", path=self.path
                    )
                path = self.path / file_names.partition_name(name, number)
                topic_directories.check_link(path, self.config.follow_links)
                settings = dict(self.settings_of(current_topic))
                # a late reader of the deleted topic may have opened its files again
                if (name, number) in self._closed_places:
                    self._closed_places.discard((name, number))
                    self.context.handles.forget(str(path))
                config = self._parse_settings(current_topic, settings)
                partition = Partition(
                    self.context, name, number, path, current_topic.id_bytes, config
                )
                self.partitions[name, number] = partition
                self._applied[name, number] = settings
        return partition

    def all_partitions(self, *, loaded_only: bool) -> list[Partition]:
        """Every local partition; `loaded_only`: those that have a page of this incarnation, or are
        open already.
        """
        partitions = []
        self.refresh_topics()
        # one reading of the topics: a topic that is deleted meanwhile is left out below
        live_topics = [topic for topic in self.registry.all() if topic.state == "live"]
        for topic in live_topics:
            for number in topic.numbers:
                path = self.path / file_names.partition_name(topic.name, number)
                if (
                    not loaded_only
                    or (topic.name, number) in self.partitions
                    or files.exists(path / file_names.DIRTY)
                ):
                    with contextlib.suppress(UnknownTopicOrPartitionError):
                        partitions.append(self.partition_of(topic, number))
        return partitions

    # ---- durability and close --------------------------------------------------------------------

    def flush(self, topics: Iterable[str]) -> None:
        """Sync the published records of these topics to stable storage; those that are deleted
        meanwhile are left out. Raises DurabilityError.
        """
        for name in topics:
            with contextlib.suppress(UnknownTopicOrPartitionError):
                topic = self.registry.live(name)
                for number in topic.numbers:
                    partition = self.partition_of(topic, number)
                    if partition.durable_offset < partition.bounds().log_end:
                        partition.sync()

    def release(self) -> None:
        """Give the locks back without a shutdown, after a failed opening. Idempotent."""
        self._acquired.close()

    def leave(self) -> None:
        """Leave the directory; the last process closes the dirty partitions in order. Raises
        DurabilityError.
        """
        self.directory.leave(self._close_all)

    @property
    def is_left(self) -> bool:
        """Whether this process is not in the directory any more."""
        return self.directory.is_left

    def _close_all(self) -> None:
        """As the last process: close every dirty partition cleanly."""
        # after a broker that was killed no mark shows what is dirty
        are_all_dirty = self.directory.broker_wrote and not self.directory.clean
        dirty = [
            partition
            for partition in self.all_partitions(loaded_only=not are_all_dirty)
            if are_all_dirty or files.exists(partition.path / file_names.DIRTY)
        ]
        problems: list[EmbedlogError] = []
        for partition in dirty:
            try:
                partition.close_in_order()
            except EmbedlogError as problem:  # the others must still be synced
                problems.append(problem)
        for later_problem in problems[1:]:
            logger.error("a partition was not closed in order: %s", later_problem)
        if problems:
            raise problems[0]
        if dirty:
            offsets = {
                (partition.topic, partition.number): partition.checkpoint(closing=True)
                for partition in dirty
            }
            write_checkpoints(self.path, offsets, self.config.file_mode)

    def close(self) -> None:
        """Release the descriptors and mappings of this process, after `leave`. Idempotent."""
        # an interrupt in one step does not keep the rest open
        with contextlib.ExitStack() as closing:
            closing.callback(self.topic_changes.close)
            closing.callback(self.context.handles.close)
            for partition in reversed(self.partitions.values()):
                closing.callback(partition.close)


def _list_numbers(numbers: Sequence[int]) -> str:
    text = ", ".join(map(str, numbers[:NUMBERS_SHOWN]))
    if len(numbers) > NUMBERS_SHOWN:
        text += ", …"
    return text
