"""This module holds the open directories of a set in this process: which of them answer, and the
partitions in them.

- A directory fails for this process on an error of its storage (REPLICA-18). Errors of the process
  itself, such as a lack of descriptors, are raised to the caller and change nothing.
- A failed directory is not used until `retry_ns`. The pause doubles with each failure, up to 30 s,
  and is the first one again after a minute without a failure.
- An error belongs to the directory that contains its path, to the inner one of two. An error
  without a path belongs to none.
- A directory that returns is another object; a change of `changes` shows its users that they must
  look again.
- A failed election is not tried again for 100 ms, unless a directory returns or a decision is made.
  Without a majority this is so for all partitions. Calls that wait need little processor time.
- A call that may last, as on a disk that hangs, is made by a thread of its directory. A directory
  that hangs is a failed one until the call returns.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar
from uuid import UUID

from embedlog._native import system, waits
from embedlog.errors import (
    CorruptRecordError,
    DirectoryInUseError,
    DurabilityError,
    EmbedlogError,
    ForeignDirectoryError,
    LockTimeoutError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from embedlog.replicas.members.directory_workers import CallRunner, run_here
from embedlog.storage import files
from embedlog.storage.locks import LoadPendingError

if TYPE_CHECKING:
    from embedlog.partition.partition import Partition
    from embedlog.replicas.members.directory_workers import DirectoryWorker, DirectoryWorkers
    from embedlog.replicas.partition.copy_rate import CopyRate
    from embedlog.replicas.rules.events import PartitionId
    from embedlog.replicas.rules.state import State

T = TypeVar("T")

PAUSES_NS: Final = tuple(seconds * 1_000_000_000 for seconds in (1, 2, 4, 8, 16, 30))
STORAGE: Final = frozenset(
    {
        errno.EIO,
        errno.ENODEV,
        errno.ENXIO,
        errno.EROFS,
        errno.ESTALE,
        errno.ENOSPC,
        errno.EDQUOT,
        errno.ENOENT,
        errno.ENOTDIR,
        errno.ETIMEDOUT,
    }
)
UNDECIDED_NS: Final = 100_000_000
# of what cannot be loaded
LOAD_ERRORS: Final = (CorruptRecordError, ForeignDirectoryError, UnknownTopicOrPartitionError)
QUIET_NS: Final = 60_000_000_000  # without a failure, after which the pauses begin again


class Limit:
    """Repetitions of one change, after pauses that double from 1 to 30 s: two processes must not
    undo each other for ever.

    The first one is free, and so is one after a minute without any.
    """

    def __init__(self) -> None:
        self._count = 0
        self._last_ns = 0

    def next_ns(self) -> int:
        """The time from which the change may be made again."""
        if not self._count or system.boot_ns() - self._last_ns > QUIET_NS:
            return 0
        return self._last_ns + PAUSES_NS[min(self._count, len(PAUSES_NS)) - 1]

    def count_change(self) -> None:
        """Count a change."""
        now_ns = system.boot_ns()
        self._count = self._count + 1 if now_ns - self._last_ns <= QUIET_NS else 1
        self._last_ns = now_ns


class DamagedReplica:
    """A replica that this process found damaged, or without its directory. `repair` limits the
    repairs.
    """

    def __init__(self) -> None:
        self._findings = Limit()
        self.repair = Limit()

    def begin_rest(self) -> None:
        """Do not use the replica for a while."""
        self._findings.count_change()

    def is_resting(self) -> bool:
        """Whether the replica is not used now: another one may have the records."""
        return system.boot_ns() < self._findings.next_ns()


class Words(Protocol):
    """The topics words of the directories, which every decision changes."""

    def version(self) -> int: ...
    def followed_pages(self, version: int) -> list[tuple[system.Page, int]]: ...


class ReopenedError(EmbedlogError):
    """The directory was opened again, and this object belongs to its earlier opening. Never leaves
    the package.
    """


class ReplicaDirectory(Protocol):
    """One open directory, as far as its replicas are concerned."""

    @property
    def path(self) -> Path: ...
    def replica(
        self, partition_id: PartitionId, name: str, counted_state: Callable[[], State]
    ) -> Partition:
        """The open partition of a topic of this name; `counted_state` is asked about one that is not
        open.

        Raises UnknownTopicOrPartitionError, StorageError.
        """

    def is_present(self, partition_id: PartitionId, name: str) -> bool:
        """Whether the partition is open here, so that nothing is made or read for it."""

    def is_loaded(self, topic: str, number: int) -> bool:
        """Whether the partition may have records since its orderly close: it is open here, or not
        closed in order.
        """

    @property
    def copies_out(self) -> CopyRate:
        """The throttled copies out of the directory, and with the next one those into it."""

    @property
    def copies_in(self) -> CopyRate: ...

    def check_place(self) -> None:
        """Raises StorageError if the directory was removed or replaced since it was opened."""

    def renew(self, partition_id: PartitionId, state: State) -> bool:
        """Set a partition aside that cannot be loaded, and make an empty one; False if it was
        loaded meanwhile.
        """


@dataclass
class OpenDirectory:
    """One directory of the set. `directory` is None while it is away; `problem` is the reason, None
    if it is usable.
    """

    node: int
    slot: int
    registration_id: UUID
    directory: ReplicaDirectory | None
    problem: str | None = None
    retry_ns: int = 0
    failures: int = 0
    since_ms: int = 0  # the time of the failure
    failed_ns: int = 0

    def is_usable(self, now_ns: int) -> bool:
        """Whether this process uses the directory now: a failed one after its pause."""
        return self.directory is not None and (self.problem is None or now_ns >= self.retry_ns)


class FailedElection(NamedTuple):
    """An election that failed: the directories and decisions of that moment, the time until which it
    is not tried again, and the reason.
    """

    change: tuple[int, int]  # `changes` and `version()` of the directories
    until_ns: int
    reason: str


class OpenDirectories:
    """The directories of one open set by node. Threads: any."""

    def __init__(
        self,
        members: Iterable[OpenDirectory],
        words: Words | None = None,
        *,
        read_only: bool = False,
        lock_wait_ms: int = 3000,
        lag_time_ms: int = 30_000,
        rates: tuple[int | None, int | None] = (None, None),
        workers: DirectoryWorkers | None = None,
    ) -> None:
        """`lock_wait_ms`: a lock that is not had in this time is a failure of its directory
        (REPLICA-18).

        `lag_time_ms`: `replica.lag.time.max.ms`, which is also the longest time for a lock.
        `rates`: of throttled copies out of a directory, and into it. `workers`: their threads.
        """
        self._workers = workers
        self._directories = {member.node: member for member in members}
        self._mutex = threading.Lock()
        self._words = words
        self.read_only = read_only
        # opens the directories that other processes have added
        self.follow: Callable[[], None] = lambda: None
        # called after an append with acks=1
        self.appended: Callable[[PartitionId, str], None] = lambda partition_id, topic: None
        self.rates = rates
        self.lag_ns = lag_time_ms * 1_000_000
        self._lock_wait_ns = min(lock_wait_ms, lag_time_ms) * 1_000_000
        self.changes = 0  # a change shows users that they must look again
        self._damaged: dict[tuple[int, str], str] = {}  # the problem by node and partition
        self._left: dict[Path, int] = {}  # the nodes of directories that have left the set
        # elections that failed a short time ago, by partition; None: there was no majority
        self._undecided: dict[PartitionId | None, FailedElection] = {}

    def __iter__(self) -> Iterator[OpenDirectory]:
        return iter(list(self._directories.values()))

    def undecided_reason(self, partition_id: PartitionId | None = None) -> str:
        """The reason why an election failed a short time ago, if nothing has changed since;
        otherwise empty.

        Without a partition: because there was no majority.
        """
        undecided = self._undecided.get(partition_id)
        if (
            undecided is None
            or undecided.change != (self.changes, self.version())
            or system.boot_ns() >= undecided.until_ns
        ):
            return ""
        return undecided.reason

    def note_undecided(self, partition_id: PartitionId | None, reason: str) -> None:
        """An election found no majority, or no replica for a partition."""
        self._undecided[partition_id] = FailedElection(
            (self.changes, self.version()), system.boot_ns() + UNDECIDED_NS, reason
        )

    def worker(self, node: int) -> DirectoryWorker | None:
        """The worker of the directory of a node; None if calls about it are made by the thread of
        the caller.
        """
        member = self._directories.get(node)
        if self._workers is None or member is None or member.directory is None:
            return None
        return self._workers.worker_of(member.directory.path)

    def run_at(self, node: int, call: Callable[[], T], *, slow: bool = False) -> T:
        """The result of a call in the directory of a node. `slow`: it may wait for a lock, or load
        files.
        """
        worker = self.worker(node)
        if worker is None:
            return call()
        return worker.run(call, limit_ns=worker.lock_ns if slow else None)

    def runner_of(self, node: int) -> CallRunner:
        """What runs short calls that change a replica of a node: a thread of its directory."""
        worker = self.worker(node)
        return run_here if worker is None else worker.make

    def note_return(self, path: Path) -> None:
        """A directory that hung answers again: it is tried at once."""
        with self._mutex:
            for member in self._directories.values():
                if (
                    member.directory is not None
                    and member.directory.path == path
                    and member.problem is not None
                ):
                    member.retry_ns = 0
            self.changes += 1

    def get(self, node: int) -> OpenDirectory | None:
        """The directory of a node if it is usable now, otherwise None."""
        member = self._directories.get(node)
        if member is None or (member.problem is None and member.directory is not None):
            return member
        if not member.is_usable(system.boot_ns()):
            return None
        return member

    def count(self) -> int:
        """The number of directories of the set."""
        return len(self._directories)

    def member(self, node: int) -> OpenDirectory | None:
        """The directory of a node, usable or not."""
        return self._directories.get(node)

    def put(self, members: Iterable[OpenDirectory]) -> None:
        """Use these directories instead of earlier ones of their nodes."""
        with self._mutex:
            self._directories = self._directories | {member.node: member for member in members}
            self.changes += 1

    def loss_of(self, node: int) -> EmbedlogError | None:
        """The error of a directory that was removed or replaced as a whole, otherwise None."""
        member = self._directories.get(node)
        if member is None or member.directory is None:
            return None
        try:
            self.run_at(node, member.directory.check_place)
        except EmbedlogError as problem:
            return problem
        return None

    def has_file(self, node: int, problem: EmbedlogError) -> bool:
        """Whether what was missing, by this error of the node's directory, is there now."""
        if problem.path is None:
            return False
        return self.run_at(node, partial(files.exists, Path(problem.path)))

    def note_damage(self, node: int, partition: str, problem: EmbedlogError) -> None:
        """A replica was found damaged: the users of its directory look again."""
        with self._mutex:
            self._damaged[node, partition] = str(problem)
            self.changes += 1

    def note_repair(self, node: int, partition: str) -> None:
        """A replica that was found damaged is in order."""
        with self._mutex:
            self._damaged.pop((node, partition), None)

    def damage_of(self, node: int) -> str | None:
        """The damaged replicas in a directory, as far as this process has found them; None without
        one.
        """
        damages = sorted(
            (name, text)
            for (damaged_node, name), text in list(self._damaged.items())
            if damaged_node == node
        )
        if not damages:
            return None
        return "; ".join(f"the replica of {name} is damaged: {text}" for name, text in damages)

    def remove(self, node: int) -> None:
        """Forget a directory that left the set."""
        with self._mutex:
            leaving = self._directories.get(node)
            if leaving is not None and leaving.directory is not None:
                self._left[leaving.directory.path] = node
            self._directories = {
                member.node: member
                for member in self._directories.values()
                if member is not leaving
            }
            self.changes += 1

    def left_paths(self, node: int) -> list[Path]:
        """The directories of a node that has left the set, as far as this process had opened
        them.
        """
        return [path for path, left_node in list(self._left.items()) if left_node == node]

    def slots(self) -> Mapping[int, int]:
        """The bit of each node in the ISR of control pages."""
        return {node: member.slot for node, member in self._directories.items()}

    # ---- waits -----------------------------------------------------------------------------------

    def version(self) -> int:
        """A number that changes with each decision. Order: read it, then the decisions, then `wait`
        for a change.
        """
        return self._words.version() if self._words is not None else 0

    def followed_pages(self, version: int) -> list[tuple[system.Page, int]]:
        """The page of each directory with its topics word in a version."""
        return [] if self._words is None else self._words.followed_pages(version)

    def lock_deadline(self, deadline_ns: int) -> int:
        """The time until which one lock is waited for: before the deadline, another directory may
        take over.
        """
        return min(deadline_ns, system.boot_ns() + self._lock_wait_ns)

    def wait(
        self, version: int, until_ns: int, tails: Sequence[tuple[system.Page, int]] = ()
    ) -> None:
        """Sleep until the next decision after `version` or a committed record at a tail, at most
        until a time.
        """
        if self._words is not None:
            waits.Waiter().wait(tails, False, self._words.followed_pages(version), until_ns)
        else:
            threading.Event().wait(max(0, min(1_000_000, until_ns - system.boot_ns())) / 1e9)

    # ---- failures --------------------------------------------------------------------------------

    def find_failed_node(self, problem: EmbedlogError, *, missing: bool = False) -> int | None:
        """The node whose directory fails with this error; None if the error belongs to the process
        or to no directory. Nothing is noted.

        `missing`: a partition that is not there is a failure, because the decision log has its
        topic. The node may have left the set: a call that began before goes on without it.
        """
        is_absent = missing and isinstance(problem, UnknownTopicOrPartitionError)
        if not (is_of_storage(problem) or is_absent) or problem.path is None:
            return None
        path = Path(problem.path)
        around = [
            (len(member.directory.path.parts), node)
            for node, member in self._directories.items()
            if member.directory is not None and path.is_relative_to(member.directory.path)
        ]
        if around:
            _, inner_node = max(around)
            return inner_node
        for left_path, node in self._left.items():
            if path.is_relative_to(left_path):
                return node
        return None

    def fail(self, node: int, problem: EmbedlogError) -> None:
        """Do not use a directory for a while. An object of an earlier opening fails nothing: it is
        replaced.
        """
        with self._mutex:
            member = self._directories.get(node)
            now_ns = system.boot_ns()
            if member is None or isinstance(problem, ReopenedError):
                self.changes += 1
                return
            failures = 0 if now_ns - member.failed_ns > QUIET_NS else member.failures
            if member.problem is None:
                member.since_ms = system.wall_ms()
            member.problem = str(problem)
            member.failures = failures + 1
            member.failed_ns = now_ns
            member.retry_ns = now_ns + PAUSES_NS[min(failures, len(PAUSES_NS) - 1)]
            self.changes += 1

    def fail_replaced(self) -> None:
        """Fail the directories that were removed or replaced since their opening."""
        for member in list(self):
            if member.directory is not None and member.problem is None:
                try:
                    self.run_at(member.node, member.directory.check_place)
                except EmbedlogError as problem:
                    self.fail(member.node, problem)

    def recover(self, node: int) -> None:
        """Use a directory again."""
        with self._mutex:
            self._directories[node].problem = None


def is_of_storage(problem: EmbedlogError) -> bool:
    """Whether an error belongs to the directory, and not to this process."""
    if isinstance(problem, StorageError):
        return problem.errno is None or problem.errno in STORAGE
    if isinstance(problem, LoadPendingError):
        return False
    return isinstance(
        problem,
        (
            CorruptRecordError,
            DirectoryInUseError,
            DurabilityError,
            ForeignDirectoryError,
            LockTimeoutError,
            ReopenedError,
        ),
    )
