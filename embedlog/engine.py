"""One open log directory: its topics by name, its partitions by number, and the lifetime of everything opened in it.

ENGINE-1  opening reads one file of topics; a partition is opened when it is first used
ENGINE-2  an engine belongs to the process that opened it: in a forked child it refuses
ENGINE-3  closing is idempotent; the last process out leaves the directory as Kafka leaves it after an orderly shutdown
ENGINE-4  closing order: producers and consumers, services, dirty partitions (by the last process), handles of this process
ENGINE-5  an exception at any step of an opening, also an interrupt, releases everything that was acquired
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NoReturn, Protocol

from embedlog._native import system
from embedlog.clients import Children
from embedlog.config.topic import LogConfig, TopicConfig
from embedlog.coordination import topic_directories
from embedlog.coordination.directory import Directory
from embedlog.coordination.groups.group_coordinator import Groups
from embedlog.coordination.topic_changes import TopicChanges
from embedlog.coordination.transactions.transaction_coordinator import Transactions
from embedlog.errors import (
    ClosedError,
    EmbedlogError,
    ForkedError,
    ReadOnlyError,
    UnknownTopicOrPartitionError,
)
from embedlog.partition.log_context import CheckpointedOffsets, Context, KeptDescriptors, Shares, write_checkpoints
from embedlog.partition.partition import Partition
from embedlog.storage import file_names, files, location
from embedlog.storage.descriptors import Handles
from embedlog.topic import Topic, TopicRegistry, is_internal

logger = logging.getLogger("embedlog")

_open_engines: weakref.WeakSet[Engine] = weakref.WeakSet()
STATIC_CHECK_S: Final = 0.1  # between two checks for a writer, in a directory without one


class Service(Protocol):
    """A part with its own thread, such as the housekeeper. It is stopped before the partitions are closed."""

    def stop(self) -> None: ...
    def abandon(self) -> None:
        """Forget the thread in a forked child, where it does not exist."""


class Engine:
    """An open log directory. Threads: every method may be called from any thread. Pickling is refused: open it in the worker."""

    def __init__(self, path: Path, *, read_only: bool, create: bool, config: LogConfig) -> None:
        self.path = path
        self.read_only = read_only
        self.config = config
        self.children = Children()
        self._pid = os.getpid()
        self._closed = False
        self._half_deleted = False  # whether the first process found an interrupted deletion
        self._closer: int | None = None
        self._mutex = threading.RLock()
        self._partitions: dict[tuple[str, int], Partition] = {}
        self._waiters: weakref.WeakKeyDictionary[object, system.Waiter] = weakref.WeakKeyDictionary()
        self._services: list[Service] = []
        system.guard()
        mode = self.config.file_mode
        location.enter(self.path, read_only=read_only, create=create, mode=mode)
        self.registry = TopicRegistry(self.path, mode)
        self.registry.moving = self._topics_moving
        self.registry.word = self.mapped_topics_version
        self.directory = Directory(
            self.path, read_only=read_only, mode=mode, lock_timeout_ms=self.config.lock_timeout_ms, shared=self.config.shared
        )
        with contextlib.ExitStack() as undo:
            self.topic_changes = TopicChanges(self)
            undo.callback(self.topic_changes.close)
            undo.callback(self.directory.release)
            self.directory.enter(self._prepare)
            self.context = self._make_context()
            self.transactions: Transactions = Transactions(self)
            undo.callback(self.transactions.close)
            self.groups: Groups = Groups(self, self.transactions)
            undo.callback(self.close)
            if self._half_deleted:
                self._finish_deletions()
            _open_engines.add(self)
            undo.pop_all()

    def attach(self, service: Service) -> None:
        """Stop this service when the engine is closed."""
        self._services.append(service)

    # ---- open ------------------------------------------------------------------------------------

    def _prepare(self, first: bool) -> None:
        """Under the open lock: read the topics, and as the first process complete interrupted changes."""
        if first:
            files.remove_temporaries(self.path, files.listing(self.path))
        self.registry.load()
        if not (first or self.read_only):
            return
        found = topic_directories.scan_directories(self.path)
        linked = files.links(self.path)
        for path in (path for numbers in found.live.values() for path in numbers.values() if path.name in linked):
            topic_directories.check_link(path, self.config.follow_links)
        if self.read_only:
            changes = topic_directories.registry_changes(self._known(), found, foreign=True, reading=True)
            self.registry.change_in_memory(changes.topics, changes.removed)
            return
        changes = topic_directories.registry_changes(self._known(), found, foreign=self.directory.foreign)
        if changes.topics or changes.removed:
            self.registry.change(changes.topics, changes.removed)
        for topic in self.registry.unfinished():
            if topic.state == "deleting":
                self._half_deleted = True
            else:
                self.topic_changes.finish_creation(topic)
        if self.directory.foreign:
            self._forget_marks(found)

    def _finish_deletions(self) -> None:
        """Complete interrupted deletions. Needs open partitions, because committed offsets of groups are deleted too."""
        try:
            with self.topic_changes.begin(self.config.lock_timeout_ms / 1000):
                pass
        except EmbedlogError as problem:  # the topic stays unusable, and the next change tries again
            logger.warning("the deletion of a topic is incomplete: %s", problem)

    def _known(self) -> dict[str, Topic]:
        return {topic.name: topic for topic in self.registry.all()}

    @staticmethod
    def _forget_marks(found: topic_directories.Directories) -> None:
        """Remove DIRTY marks, which are invalid after foreign use."""
        for numbers in found.live.values():
            for path in numbers.values():
                files.unlink(path / file_names.DIRTY, missing_ok=True)

    def _make_context(self) -> Context:
        directory, shares = self.directory, Shares.of(self.config.max_open_files)
        return Context(
            self.path,
            directory.incarnation,
            directory.page,
            read_only=self.read_only,
            clean=directory.clean,
            foreign=directory.foreign,
            visit=directory.visit,
            locked=self.config.shared == "locks",
            mode=self.config.file_mode,
            lock_timeout_ms=self.config.lock_timeout_ms,
            producer_expiration_ms=self.config.producer_id_expiration_ms,
            decompressed_max=self.config.max_decompressed_batch_bytes,
            seen=directory.seen,
            recovery_points=CheckpointedOffsets(self.path / file_names.RECOVERY_POINTS),
            log_starts=CheckpointedOffsets(self.path / file_names.LOG_STARTS),
            cleaned=CheckpointedOffsets(self.path / file_names.CLEANER),
            check_open=self.check_open,
            handles=Handles(shares.handles, fresh=self.config.shared == "locks"),
            writers=KeptDescriptors(shares.writers),
            syncers=KeptDescriptors(shares.syncers),
            refresh=self._refresh_live if self.read_only else None,
            held_lock=None if self.read_only else directory.held_lock,
            reacquire=directory.reacquire,
        )

    def _refresh_live(self) -> bool:
        """For a reader: whether a process writes here now, and its incarnation."""
        live = self.directory.refresh()
        self.context.incarnation, self.context.directory_page = self.directory.incarnation, self.directory.page
        self.context.clean, self.context.foreign = self.directory.clean, self.directory.foreign
        self.context.seen, self.context.visit = self.directory.seen, self.directory.visit
        return live

    # ---- topics and partitions -------------------------------------------------------------------

    def check_open(self) -> None:
        """Raises ClosedError after close, ForkedError in a forked child."""
        if self._pid != os.getpid():
            raise ForkedError("this log was opened in the parent process; open it again here", path=self.path)
        if self._closed and self._closer != threading.get_ident():
            raise ClosedError("the log was closed; open it again with embedlog.open(path)", path=self.path)

    def check_writable(self) -> None:
        self.check_open()
        if self.read_only:
            raise ReadOnlyError("the log was opened read-only; without read_only=True it can be changed", path=self.path)
        self.directory.check_lock()

    def _topics_moving(self, done: bool) -> None:
        """Wake the processes that follow the topics."""
        page = self.directory.page
        if page is not None and page.writable:
            page.move_topics(done)

    def topics_version(self) -> int:
        """A number that changes with each change of topics; odd during a change, or if no page reports changes."""
        page = self.context.directory_page
        return 1 if page is None else page.topics()

    def mapped_topics_version(self) -> int:
        """`topics_version` where reading it costs less than a `stat`, otherwise 1."""
        page = self.directory.page
        return 1 if page is None or page.locked else page.topics()

    def topic(self, name: str) -> Topic:
        """The topic, with changes of other processes. Raises UnknownTopicOrPartitionError."""
        if self.registry.refresh():
            self.refresh_partitions()
        return self.registry.live(name)

    def topic_names(self, include_internal: bool = True) -> list[str]:
        """Names of all topics, sorted. Raises ClosedError."""
        self.refresh_topics()
        return [name for name in self.registry.names() if include_internal or not is_internal(name)]

    def refresh_topics(self) -> None:
        """Apply changes of other processes; partitions of deleted topics are closed. Raises ClosedError."""
        self.check_open()
        if self.registry.refresh():
            self.refresh_partitions()

    def make_internal_topic(self, name: str, partitions: int, config: Mapping[str, str]) -> None:
        """Create an internal topic, unless another process has created it meanwhile."""
        self.topic_changes.make_internal(name, partitions, config)

    def refresh_partitions(self) -> None:
        """Apply changed settings of topics, and close partitions of deleted topics."""
        with self._mutex:
            for (name, number), partition in list(self._partitions.items()):
                topic = self.registry.get(name)
                if topic is None or topic.state == "deleting" or topic.id_bytes != partition.topic_id:
                    del self._partitions[name, number]
                    partition.close()
                else:
                    partition.apply_config(self.config.topic_config(topic.config))
        if self.read_only:
            self._reload_topics()

    def _reload_topics(self) -> None:
        found = topic_directories.scan_directories(self.path)
        changes = topic_directories.registry_changes(self._known(), found, foreign=True, reading=True)
        self.registry.change_in_memory(changes.topics, changes.removed)

    def topic_config(self, name: str) -> TopicConfig:
        return self.config.topic_config(self.topic(name).config)

    def partition_count(self, name: str) -> int:
        return self.topic(name).partitions

    def partition(self, name: str, number: int) -> Partition:
        """The open partition. Raises UnknownTopicOrPartitionError."""
        self.check_open()
        topic = self.topic(name)
        found = self._partitions.get((name, number))
        return self._opened(topic, number) if found is None else found

    def partition_of(self, topic: Topic, number: int) -> Partition:
        """As `partition`, for a topic that was just read: several partitions of it need one read of the topics."""
        self.check_open()
        found = self._partitions.get((topic.name, number))
        return self._opened(topic, number) if found is None else found

    def existing(self, places: Iterable[tuple[str, int]]) -> list[Partition]:
        """The open partitions of these places, without those that do not exist, after one read of the topics."""
        self.refresh_topics()
        found = []
        for name, number in places:
            try:
                topic = self.registry.live(name)
                partition = self._partitions.get((name, number))
                found.append(self._opened(topic, number) if partition is None else partition)
            except UnknownTopicOrPartitionError:
                continue
        return found

    def _opened(self, topic: Topic, number: int) -> Partition:
        name = topic.name
        if type(number) is not int:
            raise TypeError(f"a partition's number is an int, not {type(number).__name__}")
        if number not in topic.here:
            expected = f"one of {_number_list(topic.here)}" if topic.only else f"0 to {topic.partitions - 1}"
            raise UnknownTopicOrPartitionError(
                f"topic {name!r} has no partition {number}", path=self.path, expected=expected, found=number
            )
        with self._mutex:
            found = self._partitions.get((name, number))
            if found is None:
                now = self.registry.live(name)  # another thread may have read the topics after `topic` was read
                if now.id_bytes != topic.id_bytes:
                    raise UnknownTopicOrPartitionError(f"topic {name!r} was deleted and created again", path=self.path)
                path = self.path / file_names.partition_name(name, number)
                topic_directories.check_link(path, self.config.follow_links)
                found = Partition(self.context, name, number, path, now.id_bytes, self.config.topic_config(now.config))
                self._partitions[name, number] = found
        return found

    def all_partitions(self, *, loaded_only: bool) -> list[Partition]:
        """Every local partition; `loaded_only`: those that have a page of this incarnation, or are open already."""
        found = []
        for topic in map(self.registry.live, self.topic_names()):
            for number in topic.numbers:
                if (
                    not loaded_only
                    or (topic.name, number) in self._partitions
                    or files.exists(self.path / file_names.partition_name(topic.name, number) / file_names.DIRTY)
                ):
                    with contextlib.suppress(UnknownTopicOrPartitionError):
                        found.append(self.partition_of(topic, number))
        return found

    # ---- waits -----------------------------------------------------------------------------------

    def waiter(self, owner: object) -> system.Waiter:
        found = self._waiters.get(owner)  # without the mutex if it exists: a wake-up must not wait
        if found is None:
            with self._mutex:
                found = self._waiters.setdefault(owner, system.Waiter())
        return found

    def wait(
        self,
        tails: Sequence[tuple[Partition, int]],
        timeout_s: float | None,
        owner: object,
        committed: bool = False,
        topics: int = system.NOT_FOLLOWED,
        notices: Sequence[tuple[Partition, int]] = (),
        brief: bool = False,
    ) -> bool:
        """Sleep until a partition has records at its offset (then True), until `wake(owner)`, or for `timeout_s`.

        `topics`: the `topics_version` before the caller's check of the topics; a change of it ends the sleep, too. So does a
        change of one of the `notices` from its value before the caller's read (`InternalTopic.notice`). `brief`: the caller will
        continue the same wait soon, and not for more than about a second in this way.
        """
        self.check_open()
        waiter = self.waiter(owner)
        deadline = files.deadline_after(timeout_s)
        live = [(page, offset) for partition, offset in tails if (page := partition.mapped_page) is not None]
        words = [(page, seen) for partition, seen in notices if (page := partition.mapped_page) is not None]
        if len(live) == len(tails):
            ready = waiter.wait(live, committed, self.context.directory_page, deadline, topics, words)
        else:
            ready = waiter.wait(live, committed, None, min(deadline, files.deadline_after(STATIC_CHECK_S)), topics, words)
        if 0 <= ready < len(live):
            return True  # at once: the path to a waiting reader is latency critical
        waiter.reset()
        if not brief:
            for partition, _ in (*tails, *notices):  # no record: check that the page is still the present one
                partition.check_page()
        self.check_open()
        return False

    def wake(self, owner: object) -> None:
        self.waiter(owner).wake()

    # ---- durability and close --------------------------------------------------------------------

    def flush(self, topic: str | None = None) -> None:
        """Sync all published records to stable storage. Raises DurabilityError."""
        self.check_writable()
        names = self.topic_names() if topic is None else [self.topic(topic).name]
        for name in names:
            found = self.registry.live(name)
            for number in found.numbers:
                partition = self.partition_of(found, number)
                if partition.durable_offset < partition.bounds().log_end:
                    partition.sync()

    def close(self) -> None:
        """Close the directory; the last process shuts it down cleanly. Idempotent.

        Raises DurabilityError if that sync fails, and in the end DeliveryError if producers that it closed have lost records.
        """
        if self._pid != os.getpid():
            return
        with self.children.closed():  # outside the mutex: a producer that sends its last records needs partitions
            self._leave()

    def _leave(self) -> None:
        with self._mutex:
            if self._closed:
                return
            self._closed = True
        for service in self._services:
            service.stop()
        self._closer = threading.get_ident()  # the only thread that may still use the partitions
        try:
            self.directory.leave(self._close_all)
        finally:
            self._closer = None
            for partition in self._partitions.values():
                partition.close()
            self.context.handles.close()
            self.transactions.close()
            self.topic_changes.close()

    def _close_all(self) -> None:
        """As the last process: close every dirty partition cleanly."""
        every = self.directory.foreign and not self.directory.clean
        dirty = [
            partition
            for partition in self.all_partitions(loaded_only=not every)
            if every or files.exists(partition.path / file_names.DIRTY)
        ]
        problems: list[EmbedlogError] = []
        for partition in dirty:
            try:
                partition.close_in_order()
            except EmbedlogError as problem:  # the others must still be synced
                problems.append(problem)
        if problems:
            raise problems[0]
        if dirty:
            found = {(each.topic, each.number): each.checkpoint(closing=True) for each in dirty}
            write_checkpoints(self.path, found, self.config.file_mode)

    @property
    def closed(self) -> bool:
        """Whether the close has begun."""
        return self._closed

    def abandon(self) -> None:
        """Close inherited descriptors in a forked child, so that the parent's locks end with the parent."""
        self.directory.abandon()
        for service in self._services:
            service.abandon()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Log cannot be pickled: call embedlog.open(path) in the worker")


def _number_list(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:8])) + (", …" if len(numbers) > 8 else "")


def _after_fork() -> None:
    for engine in list(_open_engines):
        engine.abandon()


os.register_at_fork(after_in_child=_after_fork)
