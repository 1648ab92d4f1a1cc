"""Changes of topics: the directory lock, and completion of changes whose process has ended.

- A change of topics holds the directory lock, reads the file of topics again, and first finishes
  interrupted changes.
- A partition is retired under its append lock: a process with open descriptors finds DELETED before
  it can append.
- A partition that another directory of a set took over is retired in the order DELETED, file of
  topics, checkpoints, name. It stays if its page is in the epoch of that decision or a later one:
  it was added again (REPLICA-24).
- A partition that no process can load is set aside under its append lock, if no process has
  published a page of it.

A record is judged by the settings that its topic has at the moment of the append, also if another
process changed them. The topics word of the directory's control page changes before the file of
topics is written, to an odd value, and after it, to an even one. An append compares this word under
its lock with the value that was read before the settings: while nothing changes, this needs no
system call. After the second change of the word, a change of settings takes the append lock of each
partition once. So every append that was judged by the old settings has ended when `alter_topic`
returns, and each later one finds another word. A process may be killed between the two changes of
the word: while it is odd, the settings are read for each append, and the next holder of the
directory lock makes it even. In a set the decision counts first, and then the words of all
directories that took part in it change. A killed process may leave them unchanged: then appends
notice the decision within 100 ms.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from embedlog._native import system
from embedlog._native.scope import Guard, scope, stack
from embedlog.config.topic import TopicConfig, parse
from embedlog.coordination import topic_directories
from embedlog.errors import (
    EmbedlogError,
    LockTimeoutError,
    ReadOnlyError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from embedlog.storage import file_names, files, locks
from embedlog.storage.control_page import check, map_page
from embedlog.storage.identity import new_id, read_topic_id
from embedlog.telemetry import log_messages
from embedlog.topic import Topic

if TYPE_CHECKING:
    from embedlog.coordination.host import DirectoryHost

_logger = logging.getLogger("embedlog")

# a change of one topic waits this long for locks of another topic with an incomplete deletion
OTHER_TOPIC_S: Final = 0.1


class TopicChanges:
    """Creates, completes and deletes topics of one open directory. Threads: any; processes: the
    directory lock orders them.
    """

    def __init__(self, host: DirectoryHost) -> None:
        self._host = host
        self._lock: locks.LockFile | None = None
        if not host.read_only:
            path = host.path / file_names.DIRECTORY_LOCK
            self._lock = locks.LockFile(path, host.config.file_mode)

    def close(self) -> None:
        """Close the lock file. Idempotent."""
        if self._lock is not None:
            self._lock.close()

    @scope
    def directory_lock(self) -> Iterator[None]:
        """The lock for changes of topics and of the directory's checkpoints. Raises
        LockTimeoutError, ReadOnlyError.
        """
        if self._lock is None:
            raise ReadOnlyError(
                "the log was opened read-only; without read_only=True it can be changed",
                path=self._host.path,
            )
        with self._lock.hold(files.deadline_after(self._host.config.lock_timeout_ms / 1000)):
            self._end_interrupted_locked()
            yield

    def _end_interrupted_locked(self) -> None:
        """End a change of the file of topics whose process was killed."""
        page = self._host.context.directory_page
        if page is not None and page.writable and page.topics() & 1:
            page.move_topics(True)

    def await_appends(self, topic: str, numbers: Iterable[int]) -> None:
        """Wait until every append to these partitions has ended that began before this call.

        Records of a killed process, which a repair will publish, are published here. Raises
        LockTimeoutError, StorageError, and the errors of a repair.
        """
        host = self._host
        deadline_ns = files.deadline_after(host.config.lock_timeout_ms / 1000)
        for number in numbers:
            path = host.path / file_names.partition_name(topic, number)
            if not files.exists(path / file_names.LOCK):
                continue  # no process has opened the partition yet
            try:
                lock_file = locks.LockFile(path / file_names.LOCK, host.config.file_mode)
                with Guard(lock_file.close):  # which gives the lock back
                    lock_file.lock(deadline_ns)
                    is_broken = _is_broken(path / file_names.PAGE, host.context.locked)
                if is_broken:
                    with host.partition(topic, number).exclusive(deadline_ns):
                        pass
            except LockTimeoutError as problem:
                text = (
                    f"the settings of {topic} are changed, but an append that began before has "
                    "not ended"
                )
                raise LockTimeoutError(text, path=path) from problem
            except (StorageError, UnknownTopicOrPartitionError):
                if files.is_directory(path):
                    raise  # else the topic was deleted meanwhile

    @scope
    def begin(self, wait_s: float = OTHER_TOPIC_S) -> Iterator[None]:
        """The directory lock, with the file of topics read and interrupted changes completed."""
        with self.directory_lock():
            try:
                self._host.registry.refresh()
                self._finish_changes_locked(wait_s)
                yield
            finally:
                self._host.refresh_partitions()

    def _finish_changes_locked(self, wait_s: float) -> None:
        """Finish creations, growths and deletions whose process has ended. REQUIRES the directory
        lock.

        A topic that cannot be finished now, such as a deletion that waits for a frozen appender,
        does not stop other topics.
        """
        for topic in self._host.registry.list_unfinished():
            try:
                if topic.state == "deleting":
                    self.finish_deletion(topic, wait_s)
                else:
                    self.finish_creation(topic)
            except EmbedlogError as problem:
                message = f"topic {topic.name} is still {topic.state}"
                log_messages.report(
                    _logger,
                    logging.WARNING,
                    (self._host.path, "unfinished", topic.name),
                    message,
                    problem,
                )

    def finish_creation(self, topic: Topic) -> Topic:
        """As `finish_creations`, of one topic."""
        return self.finish_creations([topic])[0]

    def finish_creations(self, topics: Sequence[Topic]) -> list[Topic]:
        """Create the directories of topics and make them live. REQUIRES the directory lock, or the
        only process.
        """
        host = self._host
        mode = host.config.file_mode
        links = host.config.follow_links
        return topic_directories.finish_creations(
            host.path, host.registry, topics, mode, follow_links=links
        )

    def finish_deletion(self, topic: Topic, timeout_s: float) -> None:
        """Retire the partitions of a topic, and delete it with its committed offsets. REQUIRES the
        directory lock.
        """
        host = self._host
        deadline_ns = files.deadline_after(timeout_s)

        def retire(number: int, path: Path) -> None:
            mark_deleted(
                path,
                host.context.directory_page,
                deadline_ns,
                host.config.file_mode,
                host.context.locked,
            )

        def forget() -> None:
            host.forget_topic(topic.name, deadline_ns)

        topic_directories.finish_deletion(
            host.path, host.registry, topic, retire, host.config.file_mode, forget
        )

    def numbers_of(self, topic: Topic) -> list[int]:
        """The partitions of a topic that have a directory here."""
        path = self._host.path
        numbers = topic_directories.find_partition_numbers(path, topic.name)
        return [
            number
            for number in numbers
            if read_topic_id(path / file_names.partition_name(topic.name, number)) == topic.topic_id
        ]

    def drop_partition(self, topic: Topic, number: int, epoch: int) -> bool:
        """Retire one partition, unless its page is in this epoch or a later one. REQUIRES the
        directory lock.
        """
        host = self._host
        path = self._host.path / file_names.partition_name(topic.name, number)
        if number not in self.numbers_of(topic):
            return True
        deadline_ns = files.deadline_after(host.config.lock_timeout_ms / 1000)
        page = host.context.directory_page
        mode = host.config.file_mode
        if not mark_deleted(path, page, deadline_ns, mode, host.context.locked, epoch):
            return False
        system.point("drop-marked")
        registered = host.registry.get(topic.name)
        if (
            registered is not None
            and registered.topic_id == topic.topic_id
            and number in registered.numbers
        ):
            remaining = tuple(other for other in registered.numbers if other != number)
            if remaining:
                host.registry.put(registered._replace(only=remaining))
            else:
                host.registry.remove(topic.name)
            system.point("drop-entry")
        topic_directories.set_aside(host.path, topic, number, mode)
        return True

    def renew_partition(
        self, topic: Topic, number: int, prepare: Callable[[Path], object] | None = None
    ) -> bool:
        """Set aside a partition that is missing or cannot be loaded, and make it again, empty.
        REQUIRES the directory lock.

        `prepare` writes to the new directory before it has its name. False if another process
        loaded the partition meanwhile, or made another topic of this name. An
        interruption leaves it missing or empty.
        """
        host = self._host
        path = self._host.path / file_names.partition_name(topic.name, number)
        registered = host.registry.get(topic.name)
        if registered is not None and registered.topic_id != topic.topic_id:
            return False
        with stack() as held:
            if files.is_directory(path):
                lock_file = locks.LockFile(path / file_names.LOCK, host.config.file_mode)
                held.enter(Guard(lock_file.close))
                lock_file.lock(files.deadline_after(host.config.lock_timeout_ms / 1000))
                if self._is_published(path, topic, number):
                    return False
            topic_directories.set_aside(
                host.path, topic, number, host.config.file_mode, damaged=True
            )
        system.point("renew-aside")
        topic_directories.make_prepared(host.path, topic, number, prepare, host.config.file_mode)
        system.point("renew-made")
        files.sync_directory(host.path)
        return True

    def _is_published(self, path: Path, topic: Topic, number: int) -> bool:
        """Whether a page of this incarnation is there. REQUIRES the append lock of the
        partition.
        """
        context = self._host.context
        mapped = map_page(path / file_names.PAGE, writable=False, locked=context.locked)
        if mapped is None:
            return False
        try:
            file_identity = mapped.identity_device, mapped.inode
            return check(
                mapped, system.identity(context.incarnation, topic.id_bytes, number, *file_identity)
            )
        finally:
            mapped.close()

    def finish_drops(self, topic: Topic) -> None:
        """Complete interrupted calls of `drop_partition`. REQUIRES the directory lock."""
        for number in self.numbers_of(topic):
            mapped = map_page(
                self._host.path / file_names.partition_name(topic.name, number) / file_names.PAGE,
                writable=False,
            )
            if mapped is None:
                continue
            try:
                is_dropped = mapped.page.word(system.WORD_FLAGS) & system.FLAG_DELETED
            finally:
                mapped.close()
            if is_dropped:
                topic_directories.set_aside(
                    self._host.path, topic, number, self._host.config.file_mode
                )

    def make_internal(self, name: str, partitions: int, config: Mapping[str, str]) -> None:
        """Create an internal topic, unless another process has created it meanwhile."""
        self._host.check_writable()
        overrides = parse(TopicConfig, config).overrides()
        with self.begin():
            registry = self._host.registry
            if registry.get(name) is None:
                topic = Topic(name, new_id(), partitions, overrides, "creating")
                registry.put(topic)
                self.finish_creation(topic)


def _is_broken(path: Path, locked: bool) -> bool:
    """Whether a control page shows an append that was not finished. REQUIRES the append lock."""
    mapped = map_page(path, writable=False, locked=locked)
    if mapped is None:
        return False
    try:
        return bool(mapped.page.word(system.WORD_OWNER))
    finally:
        mapped.close()


def mark_deleted(
    path: Path,
    directory_page: system.Page | None,
    deadline_ns: int,
    mode: int = 0o666,
    locked: bool = False,
    epoch: int | None = None,
) -> bool:
    """Set DELETED on a partition's page, under its append lock, and wake the processes that wait
    for records there.

    With an epoch only if the page is in an older one; whether it was set.
    """
    lock_file = locks.LockFile(path / file_names.LOCK, mode)
    with Guard(lock_file.close):  # which gives the lock back
        lock_file.lock(deadline_ns)
        is_deleted = _set_deleted_locked(path, directory_page, locked, epoch)
    return is_deleted


def _set_deleted_locked(
    path: Path, directory_page: system.Page | None, locked: bool, epoch: int | None
) -> bool:
    mapped = map_page(path / file_names.PAGE, writable=True, locked=locked)
    if mapped is None:  # never opened since its creation, or since a broker's visit
        return True
    try:
        published = mapped.page.read()
        if epoch is not None and published is not None and published.epoch >= epoch:
            return False
        mapped.page.set(
            system.WORD_FLAGS, mapped.page.word(system.WORD_FLAGS) | system.FLAG_DELETED
        )
        if published is not None:
            mapped.page.publish(
                published._replace(generation=(published.generation + 2) % 2**32), directory_page
            )
        return True
    finally:
        mapped.close()
