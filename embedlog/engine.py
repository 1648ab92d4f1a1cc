"""One open log directory: topics by name, partitions by number, and the way in and out.

G1  opening reads one file of topics; a partition is looked at when it is first used
G2  a handle belongs to the process that opened it: in a forked child it refuses
G3  closing is idempotent; the last process out leaves the directory as Kafka leaves it after an orderly shutdown
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, NoReturn, Self, Unpack

from embedlog._native import system
from embedlog.admin.groups import GroupAdmin
from embedlog.admin.housekeeper import Housekeeper
from embedlog.admin.topics import Admin
from embedlog.clients import Children
from embedlog.config import keywords
from embedlog.config.topic import LogConfig, TopicConfig, parse
from embedlog.config.typed_options import LogOptions
from embedlog.coordination import topic_directories
from embedlog.coordination.directory import Directory
from embedlog.coordination.groups.group_coordinator import Groups
from embedlog.coordination.transactions.transaction_coordinator import Transactions
from embedlog.errors import (
    ClosedError,
    EmbedlogError,
    ForkedError,
    ReadOnlyError,
    UnknownTopicOrPartitionError,
)
from embedlog.partition import leftovers, shutdown
from embedlog.partition.context import Checkpointed, Home, Keepers, Shares
from embedlog.partition.partition import Partition
from embedlog.storage import file_names, files, location, locks
from embedlog.storage.descriptors import Handles
from embedlog.topic import Topic, TopicRegistry

logger = logging.getLogger("embedlog")

_open_logs: weakref.WeakSet[Log] = weakref.WeakSet()
STATIC_LOOK_S: Final = 0.1  # how often a reader of a directory that nobody writes looks whether somebody does


@keywords.checked
class Log(Admin, GroupAdmin):
    """An open log directory. Threads: every method may be called from any thread. Pickling is refused: open it in the worker."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        read_only: bool = False,
        create: bool = True,
        config: Mapping[str, Any] | None = None,
        **settings: Unpack[LogOptions],
    ) -> None:
        self.path = location.checked(path)
        self.read_only = read_only
        self.config = parse(LogConfig, config, **settings)
        self._pid = os.getpid()
        self._closed = False
        self._half_deleted = False  # whether a topic was when this process came in first
        self._closer: int | None = None
        self._mutex = threading.RLock()
        self._partitions: dict[tuple[str, int], Partition] = {}
        self._waiters: weakref.WeakKeyDictionary[object, system.Waiter] = weakref.WeakKeyDictionary()
        self._children = Children()
        system.guard()
        mode = self.config.file_mode
        location.enter(self.path, read_only=read_only, create=create, mode=mode)
        self._registry = TopicRegistry(self.path, mode)
        self._registry.moving = self._topics_moving
        self._registry.word = self._topics_told
        self._dir_lock = None if read_only else locks.LockFile(self.path / file_names.DIRECTORY_LOCK, mode)
        self._directory = Directory(
            self.path, read_only=read_only, mode=mode, lock_timeout_ms=self.config.lock_timeout_ms, shared=self.config.shared
        )
        try:
            self._directory.enter(self._prepare)
        except BaseException:
            if self._dir_lock is not None:
                self._dir_lock.close()
            raise
        self._home = self._make_home()
        self._transactions = Transactions(self)
        self._groups = Groups(self)
        if self._half_deleted:
            self._finish_deletions()
        self._housekeeper = None if read_only else Housekeeper(self)
        if self._housekeeper is not None and self.config.housekeeping:
            self._housekeeper.start()
        _open_logs.add(self)

    # ---- opening ---------------------------------------------------------------------------------

    def _prepare(self, first: bool) -> None:
        """Inside the door: know the topics, and finish what a crash left half done if we are alone."""
        if first:
            leftovers.sweep_temporaries(self.path, files.listing(self.path))
        self._registry.load()
        if not (first or self.read_only):
            return
        found = topic_directories.scan_directories(self.path)
        linked = files.links(self.path)
        for path in (path for numbers in found.live.values() for path in numbers.values() if path.name in linked):
            topic_directories.check_link(path, self.config.follow_links)
        if self.read_only:
            adoption = topic_directories.adopt(self._known(), found, foreign=True, reading=True)
            self._registry.adopt_in_memory(adoption.topics, adoption.gone)
            return
        adoption = topic_directories.adopt(self._known(), found, foreign=self._directory.foreign)
        if adoption.topics or adoption.gone:
            self._registry.change(adoption.topics, adoption.gone)
        for topic in self._registry.unfinished():
            if topic.state == "deleting":
                self._half_deleted = True
            else:
                self._finish_creation(topic)
        if self._directory.foreign:
            self._forget_marks(found)

    def _finish_creation(self, topic: Topic) -> Topic:
        mode, links = self.config.file_mode, self.config.follow_links
        return topic_directories.finish_creation(self.path, self._registry, topic, mode, follow_links=links)

    def _finish_deletions(self) -> None:
        """What somebody died at; not before partitions can be opened, as what groups have committed there goes, too."""
        try:
            with self._changing(self.config.lock_timeout_ms / 1000):
                pass
        except EmbedlogError as problem:  # the topic stays out of use, and the next change tries again
            logger.warning("a topic stays half deleted: %s", problem)

    def _known(self) -> dict[str, Topic]:
        return {topic.name: topic for topic in self._registry.all()}

    @staticmethod
    def _forget_marks(found: topic_directories.Directories) -> None:
        """Behind foreign use our DIRTY marks tell nothing."""
        for numbers in found.live.values():
            for path in numbers.values():
                files.unlink(path / file_names.DIRTY, missing_ok=True)

    def _make_home(self) -> Home:
        directory, shares = self._directory, Shares.of(self.config.max_open_files)
        return Home(
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
            recovery_points=Checkpointed(self.path / file_names.RECOVERY_POINTS),
            log_starts=Checkpointed(self.path / file_names.LOG_STARTS),
            cleaned=Checkpointed(self.path / file_names.CLEANER),
            check_open=self._check_open,
            handles=Handles(shares.handles, fresh=self.config.shared == "locks"),
            writers=Keepers(shares.writers, lambda partition: partition.release()),
            syncers=Keepers(shares.syncers, lambda partition: partition.syncer.release()),
            refresh=self._refresh_live if self.read_only else None,
            held_lock=None if self.read_only else directory.held_lock,
            retake=directory.retake,
        )

    def _refresh_live(self) -> bool:
        """For a reader: is somebody writing here now, and in which incarnation?"""
        live = self._directory.refresh()
        self._home.incarnation, self._home.directory_page = self._directory.incarnation, self._directory.page
        self._home.clean, self._home.foreign = self._directory.clean, self._directory.foreign
        self._home.seen, self._home.visit = self._directory.seen, self._directory.visit
        return live

    # ---- what the other rooms ask ----------------------------------------------------------------

    def _check_open(self) -> None:
        """Raises ClosedError after close, ForkedError in a forked child."""
        if self._pid != os.getpid():
            raise ForkedError("this log was opened in the parent process; open it again here", path=self.path)
        if self._closed and self._closer != threading.get_ident():
            raise ClosedError("the log was closed; embedlog.open(path) opens it again", path=self.path)

    def _check_writable(self) -> None:
        self._check_open()
        if self.read_only:
            raise ReadOnlyError("the log was opened read-only; without read_only=True it can be changed", path=self.path)
        self._directory.check_still_in()

    def _topics_moving(self, done: bool) -> None:
        """Wakes who follows the topics."""
        page = self._directory.page
        if page is not None and page.writable:
            page.move_topics(done)

    def _topics_word(self) -> int:
        """Moves with the topics; odd while nothing can be told from it: they are being changed, or nobody can tell of it."""
        page = self._home.directory_page
        return 1 if page is None else page.topics()

    def _topics_told(self) -> int:
        """The same where a look at it costs less than a `stat`."""
        page = self._directory.page
        return 1 if page is None or page.locked else page.topics()

    def _topic(self, name: str) -> Topic:
        if self._registry.refresh():
            self._refresh_partitions()
        return self._registry.live(name)

    def _topics(self) -> list[str]:
        if self._registry.refresh():
            self._refresh_partitions()
        return self._registry.names()

    def _refresh_partitions(self) -> None:
        """Another process changed topics: take over new settings, let go of what is no longer there."""
        with self._mutex:
            for (name, number), partition in list(self._partitions.items()):
                topic = self._registry.get(name)
                if topic is None or topic.state == "deleting" or topic.id_bytes != partition.topic_id:
                    del self._partitions[name, number]
                    partition.close()
                else:
                    partition.apply_config(self.config.topic_config(topic.config))
        if self.read_only:
            self._adopt_again()

    def _adopt_again(self) -> None:
        found = topic_directories.scan_directories(self.path)
        adoption = topic_directories.adopt(self._known(), found, foreign=True, reading=True)
        self._registry.adopt_in_memory(adoption.topics, adoption.gone)

    def _topic_config(self, name: str) -> TopicConfig:
        return self.config.topic_config(self._topic(name).config)

    def _partition_count(self, name: str) -> int:
        return self._topic(name).partitions

    def _partition(self, name: str, number: int) -> Partition:
        """The open partition. Raises UnknownTopicOrPartitionError."""
        self._check_open()
        topic = self._topic(name)
        found = self._partitions.get((name, number))
        if found is not None:
            return found
        if type(number) is not int:
            raise TypeError(f"a partition's number is an int, not {type(number).__name__}")
        if number not in topic.here:
            expected = f"one of {_few(topic.here)}" if topic.only else f"0 to {topic.partitions - 1}"
            raise UnknownTopicOrPartitionError(
                f"topic {name!r} has no partition {number}", path=self.path, expected=expected, found=number
            )
        with self._mutex:
            found = self._partitions.get((name, number))
            if found is None:
                path = self.path / topic_directories.partition_name(name, number)
                topic_directories.check_link(path, self.config.follow_links)
                found = Partition(self._home, name, number, path, topic.id_bytes, self.config.topic_config(topic.config))
                self._partitions[name, number] = found
        return found

    def _all_partitions(self, *, loaded_only: bool) -> list[Partition]:
        """Every partition here; `loaded_only`: those that have a page of this incarnation, or are open already."""
        found = []
        for name in self._topics():
            for number in self._registry.live(name).numbers:
                if (
                    not loaded_only
                    or (name, number) in self._partitions
                    or files.exists(self.path / topic_directories.partition_name(name, number) / file_names.DIRTY)
                ):
                    with contextlib.suppress(UnknownTopicOrPartitionError):
                        found.append(self._partition(name, number))
        return found

    @contextlib.contextmanager
    def _directory_lock(self) -> Iterator[None]:
        """What changes topics or the directory's checkpoints holds this."""
        if self._dir_lock is None:
            raise ReadOnlyError("the log was opened read-only; without read_only=True it can be changed", path=self.path)
        with self._dir_lock.hold(files.deadline_after(self.config.lock_timeout_ms / 1000)):
            yield

    # ---- waiting ---------------------------------------------------------------------------------

    def _waiter(self, owner: object) -> system.Waiter:
        found = self._waiters.get(owner)  # without the mutex, if it is there: who wakes must not wait
        if found is None:
            with self._mutex:
                found = self._waiters.setdefault(owner, system.Waiter())
        return found

    def _wait(
        self,
        tails: Sequence[tuple[Partition, int]],
        timeout_s: float | None,
        owner: object,
        committed: bool = False,
        topics: int = system.NOT_FOLLOWED,
        notices: Sequence[tuple[Partition, int]] = (),
        brief: bool = False,
    ) -> bool:
        """Sleep until one of the partitions can be read beyond its offset (then True), until `_wake(owner)`, or for `timeout_s`.

        `topics`: what `_topics_word` was when the caller looked at the topics; a change of it ends the sleep, too. So does a
        move of one of the `notices` from what it was before the caller looked (`InternalTopic.notice`). `brief`: the caller goes
        on waiting for the same soon, and not for more than a second or so in this way.
        """
        self._check_open()
        waiter = self._waiter(owner)
        deadline = files.deadline_after(timeout_s)
        pages = [(partition.page_file, offset) for partition, offset in tails]
        live = [(mapped.page, offset) for mapped, offset in pages if mapped is not None]
        words = [(mapped.page, seen) for partition, seen in notices if (mapped := partition.page_file) is not None]
        if len(live) == len(tails):
            told = waiter.wait(live, committed, self._home.directory_page, deadline, topics, words)
        else:
            told = waiter.wait(live, committed, None, min(deadline, files.deadline_after(STATIC_LOOK_S)), topics, words)
        if 0 <= told < len(live):
            return True  # at once: who waits for records is behind this line
        waiter.reset()
        if not brief:
            for partition, _ in (*tails, *notices):  # nothing came: is it still the page that others publish on?
                partition.look_again()
        self._check_open()
        return False

    def _wake(self, owner: object) -> None:
        self._waiter(owner).wake()

    # ---- the public verbs ------------------------------------------------------------------------

    def flush(self, topic: str | None = None) -> None:
        """Put everything that is published now on stable storage. Raises DurabilityError."""
        self._check_writable()
        names = self._topics() if topic is None else [self._topic(topic).name]
        for name in names:
            for number in self._registry.live(name).numbers:
                partition = self._partition(name, number)
                if partition.durable_offset < partition.bounds().log_end:
                    partition.sync()

    def durable_offset(self, topic: str, partition: int) -> int:
        """Records below this offset are on stable storage."""
        return self._partition(topic, partition).durable_offset

    def housekeep(self, *, due_only: bool = False) -> None:
        """One round of retention, expiry and removal of old files, now, in this thread.

        `due_only`: what is due and nobody else is at, which mostly is nothing; for programs that are never open for long.
        """
        self._check_writable()
        if self._housekeeper is not None and due_only:
            self._housekeeper.tick()
        elif self._housekeeper is not None:
            self._housekeeper.by_hand(files.deadline_after(self.config.lock_timeout_ms / 1000))

    def close(self) -> None:
        """Leave the directory; the last process out closes it in order. Idempotent.

        Raises DurabilityError if that sync fails, and in the end DeliveryError if producers that it closed have lost records.
        """
        if self._pid != os.getpid():
            return
        with self._children.closed():  # outside the mutex: a producer that sends its last records looks partitions up
            self._leave()

    def _leave(self) -> None:
        with self._mutex:
            if self._closed:
                return
            self._closed = True
        if self._housekeeper is not None:
            self._housekeeper.stop()
        self._closer = threading.get_ident()  # who still has to reach the partitions, and nobody else
        try:
            self._directory.leave(self._close_all)
        finally:
            self._closer = None
            for partition in self._partitions.values():
                partition.close()
            self._home.handles.forget()
            self._transactions.close()
            if self._dir_lock is not None:
                self._dir_lock.close()

    def _close_all(self) -> None:
        """The last one out: bring every partition to rest that anybody left dirty."""
        every = self._directory.foreign and not self._directory.clean
        dirty = [
            partition
            for partition in self._all_partitions(loaded_only=not every)
            if every or files.exists(partition.path / file_names.DIRTY)
        ]
        problems: list[EmbedlogError] = []
        for partition in dirty:
            try:
                shutdown.close_in_order(partition)
            except EmbedlogError as problem:  # the others are put on stable storage all the same
                problems.append(problem)
        if problems:
            raise problems[0]
        shutdown.write_checkpoints(dirty, closing=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with self._children.heard(kind):
            self.close()

    def __repr__(self) -> str:
        return f"<embedlog.Log {str(self.path)!r}{' read-only' if self.read_only else ''}{' closed' if self._closed else ''}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Log cannot be pickled: call embedlog.open(path) in the worker")


def _few(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:8])) + (", …" if len(numbers) > 8 else "")


def _after_fork() -> None:
    """In a child: handles refuse; what was inherited is given up so that the parent's locks die with the parent."""
    for log in list(_open_logs):
        log._directory.abandon()
        if log._housekeeper is not None:
            log._housekeeper.abandon()


os.register_at_fork(after_in_child=_after_fork)
