"""One open log: its topics by name, its partitions by number, and the lifetime of everything opened
in it.

- An engine has at least one directory. With one, its topics and partitions are those of that
  directory, `home`. The engine of a set (`replica`) overrides what depends on that: how directories
  are entered and left, what serves a partition, and who changes and watches the topics.
- An engine belongs to the process that opened it: in a forked child it refuses.
- The order of a close, and what an interrupt, a second close and a fork do, are in `closing`. An
  error in one directory does not keep the others open.
- An exception at any step of an opening, also an interrupt, releases everything that was acquired.

A topics word is a number in the control page of a directory, odd during a change of topics:

| call | result | for |
| --- | --- | --- |
| `topics_version` | the topics word; 1, which is odd, without a page | waits for a change |
| `mapped_topics_version` | the same, but 1 also where it is not read from memory | looks before each call |
| `topic_pages` | the pages of which that reads the words | looks from C |

The page is `home.directory.page`; `home.context.directory_page` is the same one, as the partitions
have it.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn, Protocol, TypeVar

from embedlog._native import waits
from embedlog.engine.clients import Children
from embedlog.engine.closing import CloseStage, Closing
from embedlog.engine.log_directory import LogDirectory
from embedlog.errors import (
    ClosedError,
    ForkedError,
    StateError,
    UnknownTopicOrPartitionError,
)
from embedlog.hooks.callbacks import Work
from embedlog.partition.log_context import Traffic
from embedlog.storage import files
from embedlog.storage.call_deadline import acting_thread
from embedlog.telemetry.metrics import Metrics
from embedlog.topic import is_internal

if TYPE_CHECKING:
    from embedlog._native import system
    from embedlog.config.topic import LogConfig, TopicConfig
    from embedlog.coordination.groups.group_coordinator import Groups
    from embedlog.coordination.transactions.transaction_coordinator import Transactions
    from embedlog.hooks.callbacks import Progress
    from embedlog.partition.interfaces import LogPartition, ReadableLog, WatchedLog
    from embedlog.partition.interposer import Interposer
    from embedlog.partition.partition import Partition
    from embedlog.storage.liveness import Liveness
    from embedlog.topic import Topic

T = TypeVar("T")

_open_engines: weakref.WeakSet[Engine] = weakref.WeakSet()
STATIC_CHECK_S: Final = 0.1  # between two checks for a writer, in a directory without one
OPEN: Final = CloseStage.OPEN  # a name of its own, since each call compares it


class SetOfOne(Exception):
    """The directory is the only member of a set, and is opened as a set. Never leaves the
    package.
    """


class Service(Protocol):
    """A part with its own thread, such as the housekeeper. It is stopped before the partitions are
    closed.
    """

    def stop(self) -> None: ...
    def abandon(self) -> None:
        """Forget the thread in a forked child, where it does not exist."""


class Engine:
    """An open log. Threads: every method may be called from any thread. Pickling is refused: open
    it in the worker.
    """

    replicated = False  # whether partitions have leaders, which can change or be absent

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        read_only: bool,
        create: bool,
        config: LogConfig,
        alone: bool = False,
        progress: Progress | None = None,
    ) -> None:
        self.path = paths[0] if paths else Path()
        self.read_only = read_only
        self.config = config
        self.children = Children()
        # what this process does with the log
        self.metrics = Metrics()
        self.traffic = dict[str, Traffic]()
        self.loads = Work(progress)  # the loads of partitions, as `progress` shows them
        self._pid = os.getpid()
        self._mutex = threading.RLock()
        self._closing = Closing(self.path, self._mutex)
        self.interposer: Interposer | None = None
        self._waiters: weakref.WeakKeyDictionary[object, waits.Waiter] = weakref.WeakKeyDictionary()
        self._services: list[Service] = []
        self._groups: Groups | None = None  # before the first use
        self._transactions: Transactions | None = None  # as _groups
        with contextlib.ExitStack() as undo:
            self._enter(paths, undo, create=create, alone=alone)
            undo.callback(self.close)
            for directory in self.directories:
                directory.finish_deletions()
            _open_engines.add(self)
            undo.pop_all()

    @property
    def groups(self) -> Groups:
        """The consumer groups. Their modules are imported at the first use: an opening does not
        need them.
        """
        if self._groups is None:
            from embedlog.coordination.groups.group_coordinator import Groups

            groups = Groups(self, self.transactions)
            with self._mutex:
                if self._groups is None:  # else another thread was faster, and its object counts
                    self._groups = groups
        return self._groups

    @property
    def transactions(self) -> Transactions:
        """The transactions. Their modules are imported at the first use, as those of groups."""
        if self._transactions is None:
            from embedlog.coordination.transactions.transaction_coordinator import Transactions

            transactions = Transactions(self, self._make_liveness())
            with self._mutex:
                if self._transactions is None:
                    self._transactions = transactions
        return self._transactions

    def _enter(
        self, paths: Sequence[Path], undo: contextlib.ExitStack, *, create: bool, alone: bool
    ) -> None:
        """Open the directories. `undo` closes them after an error."""
        home = LogDirectory(
            self, self.path, read_only=self.read_only, create=create, config=self.config
        )
        self._serve([home])
        if home.in_set and not self.read_only:
            from embedlog.replicas.members import set_up  # late: few directories belong to a set

            deadline_ns = files.deadline_after(self.config.lock_timeout_ms / 1000)
            if not set_up.enter_alone(
                self.path, alone=alone, deadline_ns=deadline_ns, mode=self.config.file_mode
            ):
                raise SetOfOne
        undo.callback(home.release)
        home.enter()

    def _make_liveness(self) -> Liveness | None:
        """The process slots, if they are not those of the only directory."""
        return None

    def _serve(self, directories: Sequence[LogDirectory]) -> None:
        """Use these open directories from now on; at least one."""
        self.directories = list(directories)
        self.home = self.directories[0]  # the only one of a log without replicas
        self.registry = self.home.registry
        self._partitions: Mapping[tuple[str, int], LogPartition] = self.home.partitions

    def attach(self, service: Service) -> None:
        """Stop this service when the engine is closed."""
        self._services.append(service)

    def interpose(self, interposer: Interposer | None) -> None:
        """Ask `interposer` before each append and commit of this process from now on, or none; for
        tests of applications.

        Raises StateError while there is another one, LockTimeoutError, ClosedError.
        """
        self.check_open()
        with self._mutex:
            if interposer is not None and self.interposer is not None:
                raise StateError("the log has an interposer already", path=self.path)
            self.interposer = interposer
        for directory in self.directories:
            directory.interpose(interposer)

    # ---- topics and partitions -------------------------------------------------------------------

    def check_open(self) -> None:
        """Raises ClosedError after close, ForkedError in a forked child."""
        if self._pid != os.getpid():
            raise ForkedError(
                "this log was opened in the parent process; open it again here", path=self.path
            )
        closing = self._closing
        if closing.stage is not OPEN and closing.closer != acting_thread():
            raise ClosedError(
                "the log was closed; open it again with embedlog.open(path)", path=self.path
            )

    def check_writable(self) -> None:
        """Raises ReadOnlyError, ClosedError, and StorageError if the directory or its lock file was
        replaced.
        """
        self.home.check_writable()

    def topics_version(self) -> int:
        """A number that changes with each change of topics; odd during a change, or if no page
        reports changes.
        """
        page = self.home.context.directory_page
        return 1 if page is None else page.topics()

    def mapped_topics_version(self) -> int:
        """`topics_version` where reading it costs less than a `stat`, otherwise 1."""
        page = self.home.directory.page
        return 1 if page is None or page.locked else page.topics()

    def topic_pages(self) -> Sequence[system.Page]:
        """The pages whose topics words change with the topics of the log, where reading them costs
        nothing.
        """
        page = self.home.directory.page
        return () if page is None or page.locked else (page,)

    def _watched_pages(self, topics: int) -> Sequence[tuple[system.Page, int]]:
        """The pages of the directories, each with its topics word in a `topics_version`."""
        page = self.home.context.directory_page
        return () if page is None else ((page, topics),)

    def is_led(self, partition: WatchedLog) -> bool:
        """Whether a partition can be read now: always, without replicas."""
        return True

    def await_topics(self, version: int, deadline_ns: int) -> None:
        """Sleep until the `topics_version` has changed, at most until the deadline."""
        waits.Waiter().wait((), False, self._watched_pages(version), deadline_ns)

    def topic(self, name: str) -> Topic:
        """The topic, with changes of other processes. Raises UnknownTopicOrPartitionError."""
        self.home.follow_topics()
        return self.registry.live(name)

    def topic_names(self, include_internal: bool = True) -> list[str]:
        """Names of all topics, sorted. Raises ClosedError."""
        self.refresh_topics()
        return [name for name in self.registry.names() if include_internal or not is_internal(name)]

    def refresh_topics(self) -> None:
        """Apply changes of other processes; partitions of deleted topics are closed. Raises
        ClosedError.
        """
        self.home.refresh_topics()

    def make_internal_topic(self, name: str, partitions: int, config: Mapping[str, str]) -> None:
        """Create an internal topic, unless another process has created it meanwhile."""
        self.home.topic_changes.make_internal(name, partitions, config)

    def forget_topic(self, topic: str, deadline_ns: int) -> None:
        """Delete the committed offsets of every group for a topic that is being deleted."""
        self.groups.forget_topics((topic,), deadline_ns)

    def topic_config(self, name: str) -> TopicConfig:
        """The settings of a topic. Raises UnknownTopicOrPartitionError."""
        return self.config.topic_config(self.topic(name).config)

    def partition_count(self, name: str) -> int:
        """The number of partitions of a topic. Raises UnknownTopicOrPartitionError."""
        return self.topic(name).partitions

    def partition(self, name: str, number: int) -> LogPartition:
        """The open partition. Raises UnknownTopicOrPartitionError."""
        self.check_open()
        topic = self.topic(name)
        partition = self._partitions.get((name, number))
        return self._open_partition(topic, number) if partition is None else partition

    def partition_of(self, topic: Topic, number: int) -> LogPartition:
        """As `partition`, for a topic that was just read: several partitions of it need one read of
        the topics.
        """
        self.check_open()
        partition = self._partitions.get((topic.name, number))
        return self._open_partition(topic, number) if partition is None else partition

    def near(self, partition: LogPartition, rack: str | None) -> ReadableLog:
        """The partition for a reader in a rack (`client.rack`): one directory has one place to read
        from.
        """
        return partition

    def at_files(self, topic: Topic, number: int, call: Callable[[Partition], T]) -> T:
        """The result of a call that reads the files of a partition, for a copy of them."""
        return call(self.home.partition_of(topic, number))

    def still_lead(self, name: str, epochs: Mapping[int, int]) -> bool:
        """Whether the newest decisions have these leader epochs, by the numbers of partitions: one
        directory has no others.
        """
        return True

    def directory_paths(self) -> list[Path]:
        """The paths of all directories of the log, also of those that are away."""
        return [self.path]

    def existing(self, topic_partitions: Iterable[tuple[str, int]]) -> Sequence[LogPartition]:
        """The open partitions of these topics and numbers, without those that do not exist, after
        one read of the topics.
        """
        self.refresh_topics()
        partitions = []
        for name, number in topic_partitions:
            try:
                topic = self.registry.live(name)
                partition = self._partitions.get((name, number))
                if partition is None:
                    partition = self._open_partition(topic, number)
            except UnknownTopicOrPartitionError:
                continue
            partitions.append(partition)
        return partitions

    def _open_partition(self, topic: Topic, number: int) -> LogPartition:
        """The partition that serves this number."""
        return self.home.open_partition(topic, number)

    def all_partitions(self, *, loaded_only: bool) -> Sequence[LogPartition]:
        """Every local partition; `loaded_only`: those that have a page of this incarnation, or are
        open already.
        """
        return self.home.all_partitions(loaded_only=loaded_only)

    # ---- waits -----------------------------------------------------------------------------------

    def waiter(self, owner: object) -> waits.Waiter:
        """What `wake(owner)` wakes: one for each owner, as long as that exists."""
        waiter = self._waiters.get(owner)  # without the mutex if it exists: a wake-up must not wait
        if waiter is None:
            with self._mutex:
                waiter = self._waiters.setdefault(owner, waits.Waiter())
        return waiter

    def wait(
        self,
        tails: Sequence[tuple[WatchedLog, int]],
        timeout_s: float | None,
        owner: object,
        committed: bool = False,
        topics: int = waits.NOT_FOLLOWED,
        notices: Sequence[tuple[WatchedLog, int]] = (),
        brief: bool = False,
    ) -> bool:
        """Sleep until a partition has records at its offset (then True), until `wake(owner)`, or
        for `timeout_s`.

        `topics`: the `topics_version` before the caller's check of the topics; a change of it ends
        the sleep, too. So does a change of one of the `notices` from its value before the caller's
        read (`InternalTopic.notice_word`). `brief`: the caller will continue the same wait soon, and not
        for more than about a second in this way.
        """
        self.check_open()
        waiter = self.waiter(owner)
        deadline_ns = files.deadline_after(timeout_s)
        page_tails = _with_pages(tails)
        page_notices = _with_pages(notices)
        if len(page_tails) < len(tails):
            deadline_ns = min(deadline_ns, files.deadline_after(STATIC_CHECK_S))
            watched: Sequence[tuple[system.Page, int]] = ()
        else:
            watched = self._watched_pages(topics)
        ready = waiter.wait(page_tails, committed, watched, deadline_ns, page_notices)
        if 0 <= ready < len(page_tails):
            return True  # at once: the path to a waiting reader is latency critical
        waiter.reset()
        if not brief:
            # no record: check that the page is still the current one
            for partition, _ in (*tails, *notices):
                partition.check_page()
        self.check_open()
        return False

    def wake(self, owner: object) -> None:
        """End the current wait of this owner, or the next one. For any thread."""
        self.waiter(owner).wake()

    # ---- durability and close --------------------------------------------------------------------

    def flush(self, topic: str | None = None) -> None:
        """Sync all published records to stable storage. Raises DurabilityError."""
        self.check_writable()
        names = self.topic_names() if topic is None else [self.topic(topic).name]
        for directory in self.directories:
            directory.flush(names)

    def close(self) -> None:
        """Close the directories; the last process of each shuts it down cleanly, with a sync.
        Idempotent: after an interrupt the next call goes on.

        Threads: each call returns after the log is closed, also by another thread. Only a callback
        or a signal handler inside of a close returns at once. Raises DurabilityError if that sync
        fails, in the end DeliveryError if producers that it closed have lost records, and
        LockTimeoutError if the close of another thread takes longer than `lock.timeout.ms`.
        """
        if self._pid != os.getpid():
            return
        # a producer that sends its last records needs the open log
        with self.children.close_first():
            self._closing.run(
                self.config.lock_timeout_ms / 1000,
                stop=self._stop_services,
                finish=self._finish,
                leave=self._leave_directories,
                release=self._release_directories,
            )

    def _stop_services(self) -> None:
        # an error or an interrupt of one does not keep the others running
        with contextlib.ExitStack() as stops:
            for service in reversed(self._services):
                stops.callback(service.stop)
            stops.callback(self.loads.end)

    def _finish(self) -> None:
        """Work before the directories are left: none for one directory."""

    def _leave_directories(self) -> None:
        with contextlib.ExitStack() as leaving:
            for directory in reversed(self.directories):
                leaving.callback(self._leave_directory, directory)

    def _leave_directory(self, directory: LogDirectory) -> None:
        directory.leave()

    def _release_directories(self) -> None:
        with contextlib.ExitStack() as leaving:
            if self._transactions is not None:
                leaving.callback(self._transactions.close)
            for directory in reversed(self.directories):
                # one that was not left, after an interrupt, stays open for the next close
                if directory.is_left:
                    leaving.callback(directory.close)

    @property
    def closed(self) -> bool:
        """Whether the close has begun."""
        return self._closing.stage is not OPEN

    def abandon(self) -> None:
        """Forget the threads of the services in a forked child. Descriptors are closed there by
        their owners.
        """
        for service in self._services:
            service.abandon()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Log cannot be pickled: call embedlog.open(path) in the worker")


def open_engines() -> list[Engine]:
    """The open logs of this process."""
    return [engine for engine in list(_open_engines) if not engine.closed]


def _with_pages(values: Iterable[tuple[WatchedLog, int]]) -> list[tuple[system.Page, int]]:
    """The mapped pages of partitions, each with its value; without those that have none."""
    pages = []
    for partition, value in values:
        page = partition.mapped_page
        if page is not None:
            pages.append((page, value))
    return pages


def _after_fork() -> None:
    for engine in list(_open_engines):
        engine.abandon()


os.register_at_fork(after_in_child=_after_fork)
