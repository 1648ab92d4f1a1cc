"""Locks between processes, each with a mutex between threads. A wait has a deadline; its error
names the holder.

- An OFD lock ends with its descriptor: a forked child closes inherited ones, so that locks end with
  the parent.
- A lock file is never unlinked and never renamed over; only users with write permission in its
  directory can open it (`docs/layout.md`).
- The order is: open lock, directory, housekeeper, partitions (those of `__transaction_state`, then
  of `__consumer_offsets`, then of data, in the order of their paths), sync. A thread that takes a
  lock out of order can deadlock with another process, and OFD locks report no deadlock.
- With EMBEDLOG_DEBUG_LOCKS=1 every thread records the locks that it holds, and a lock out of order
  is an error. Otherwise that check costs one comparison per lock.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Final

from embedlog._native import system
from embedlog._native.scope import Guard, scope
from embedlog.errors import LockTimeoutError, StateError, StorageError
from embedlog.storage import files, lock_holders

# of the lock files, in the order in which a thread may take them
RANKS: Final = {
    "embedlog.door": 0,
    "embedlog.directory": 1,
    "embedlog.housekeeper": 2,
    "embedlog.lock": 5,
    "embedlog.sync": 6,
}
# these come before other partitions
INTERNAL_RANKS: Final = {"__transaction_state": -2, "__consumer_offsets": -1}

checks_order: bool = os.environ.get("EMBEDLOG_DEBUG_LOCKS") == "1"
_thread = threading.local()

_fork_closes: weakref.WeakSet[LockFile] = weakref.WeakSet()


class LoadPendingError(LockTimeoutError):
    """Another thread of this process loads the files of a partition until the deadline: no failure
    of the directory.
    """


def is_owned(mutex: threading.RLock) -> bool:
    """Whether this thread holds the mutex. The mutex itself is tested: an interrupt could prevent
    the update of a variable.
    """
    return bool(mutex._is_owned())  # type: ignore[attr-defined]


@scope
def holding(
    mutex: threading.RLock,
    deadline_ns: int,
    path: str | os.PathLike[str],
    late: type[LockTimeoutError] = LockTimeoutError,
) -> Iterator[None]:
    """Hold a mutex, taken before a deadline, never twice by one thread; an interrupt at any point
    leaves it free.

    Raises `late`, and StateError if this thread holds it already.
    """
    if is_owned(mutex):
        raise StateError("this thread holds the lock already", path=path)
    remaining_s = max(0.0, (deadline_ns - system.boot_ns()) / 1e9)
    timeout_s = min(remaining_s, threading.TIMEOUT_MAX)
    acquire = functools.partial(mutex.acquire, timeout=timeout_s)
    with Guard(mutex.release, acquire) as is_acquired:
        if not is_acquired:
            raise late("lock held by another thread of this process until the deadline", path=path)
        yield


@scope
def entering(
    mutex: threading.RLock,
    deadline_ns: int,
    path: str | os.PathLike[str],
    late: type[LockTimeoutError],
) -> Iterator[None]:
    """As `holding`, also for a thread that holds the mutex already. Raises `late`."""
    if is_owned(mutex):
        yield
        return
    with holding(mutex, deadline_ns, path, late):
        yield


def open_lock(path: str | os.PathLike[str], mode: int = 0o666) -> int:
    """A descriptor of a lock file; the file is created if it is absent. Raises StorageError.

    A process that can open a file can lock it. So only users with write access to its directory may
    read it. The owner of the file removes the permission of all others, also from a file of an
    older version.
    """
    mode = _reduce_mode(path, mode)
    fd = files.open_file(path, files.CREATE, mode)
    try:
        _restrict(fd, path, mode)
    except BaseException:
        files.close(fd)
        raise
    return fd


def _reduce_mode(path: str | os.PathLike[str], mode: int) -> int:
    """The permissions of a new lock file."""
    parent = files.lstat(f"{os.path.dirname(path) or os.curdir}/.")
    for users in (0o060, 0o006):
        if parent is not None and not parent.mode & mode & users & 0o222:
            mode &= ~users
    return mode


def _restrict(fd: int, path: str | os.PathLike[str], mode: int) -> None:
    """Remove other permissions than these from an open lock file."""
    facts = files.facts(fd, path)
    if facts.mode & 0o666 & ~mode:
        files.restrict(fd, facts.mode & 0o777 & mode)  # only the file's owner can restrict it


class LockFile:
    """An OFD lock on a file that is never unlinked and never renamed over (`docs/protocol.md`,
    locks).

    Threads: a mutex protects the descriptor; `hold` may be called from any thread, never nested.
    `try_lock`, `lock` and `unlock` REQUIRE the mutex, or an object that only one thread uses.
    """

    def __init__(self, path: str | os.PathLike[str], mode: int = 0o666) -> None:
        self.path = os.fspath(path)
        self.fd = -1
        self.mutex = threading.RLock()
        _fork_closes.add(self)  # before it is open: another thread may fork at any point
        mode = _reduce_mode(path, mode)
        self.fd = files.open_file(path, files.CREATE, mode)
        try:
            _restrict(self.fd, path, mode)
        except BaseException:
            self.close()
            raise

    def try_lock(self, exclusive: bool = True) -> bool:
        """Take the lock now; False if another process holds it."""
        code = system.lock_try(self.fd, exclusive)
        if code == system.EAGAIN:
            return False
        files.check(code, self.path, "lock")
        record_lock(self.path)
        return True

    def lock(self, deadline_ns: int, exclusive: bool = True) -> None:
        """Wait for the lock. Raises LockTimeoutError, which names the holder as far as it is
        known. After an error, too, the caller calls `unlock`, or closes the file.
        """
        record_lock(self.path)
        code = system.lock_until(self.fd, exclusive, deadline_ns)
        if code == system.TIMED_OUT:
            raise LockTimeoutError(
                f"lock not free before the deadline; held by {self.owner()}", path=self.path
            )
        files.check(code, self.path, "lock")

    def unlock(self) -> None:
        """Give the lock back. Idempotent."""
        system.unlock(self.fd)
        record_unlock(self.path)

    def is_in_place(self) -> bool:
        """Whether the path still names this file: a directory that was renamed takes its lock file
        with it.
        """
        own = files.facts(self.fd, self.path)
        facts = files.facts_of(self.path)
        return facts is not None and (facts.device, facts.inode) == (own.device, own.inode)

    @scope
    def hold(self, deadline_ns: int) -> Iterator[None]:
        """Hold the mutex and the exclusive lock: threads that share a descriptor do not exclude
        each other by the lock alone.
        """
        with holding(self.mutex, deadline_ns, self.path), Guard(self.unlock):
            self.lock(deadline_ns)
            self.sign()
            yield

    @scope
    def hold_while(
        self, is_needed: Callable[[], bool], sleep: Callable[[], None], deadline_ns: int
    ) -> Iterator[bool]:
        """As `hold`, but yields False, without the lock, once it is not needed any more; calls
        `sleep` while another process holds it.
        """
        with holding(self.mutex, deadline_ns, self.path), Guard(self.unlock):
            has_lock = False
            while is_needed():
                if self.try_lock():
                    self.sign()
                    has_lock = True
                    break
                if system.boot_ns() >= deadline_ns:
                    self.lock(deadline_ns)  # fails, unless the lock became free just now
                    self.sign()
                    has_lock = True
                    break
                sleep()
            yield has_lock

    def sign(self) -> None:
        """Write the holder's process id into the file: for messages only."""
        holder = f"pid {os.getpid()} on {os.uname().nodename}\n".ljust(96).encode()[:96]
        system.pwrite(self.fd, holder, 0)

    def owner(self) -> str:
        """The holder, as text for a message: from the kernel, else from the note of the last
        holder.
        """
        holders = lock_holders.name_holders(self.path)
        if holders:
            return holders
        try:
            holder = files.pread(self.fd, 96, 0, self.path).decode(errors="replace").strip()
        except StorageError:
            holder = ""
        return holder or "an unknown process"

    def close(self) -> None:
        """Close the file, which gives the lock back. Idempotent."""
        record_unlock(self.path)
        if self.fd >= 0:
            fd = self.fd
            self.fd = -1
            files.close(fd)


def _locks_of_thread() -> list[tuple[int, str]]:
    """Rank and path of each lock that this thread holds, in the order in which it took them."""
    locks: list[tuple[int, str]] | None = getattr(_thread, "locks", None)
    if locks is None:
        locks = _thread.locks = []
    return locks


def _rank_of(path: str) -> int | None:
    rank = RANKS.get(os.path.basename(path))
    if rank != RANKS["embedlog.lock"]:
        return rank
    topic = os.path.basename(os.path.dirname(path)).rpartition("-")[0]
    return rank + INTERNAL_RANKS.get(topic, 0)


def record_lock(path: str) -> None:
    """Record that this thread takes the lock of this file.

    Raises RuntimeError if it holds a lock that comes later in the order.
    """
    if not checks_order:
        return
    rank = _rank_of(path)
    if rank is None:
        return
    locks = _locks_of_thread()
    last = max(locks, default=(-1, ""))
    if (rank, path) <= last:
        raise RuntimeError(f"locks out of order: {path} after {last[1]}")
    locks.append((rank, path))


def record_unlock(path: str) -> None:
    """Record that this thread has released the lock; no effect if it did not hold it."""
    if checks_order:
        _thread.locks = [lock for lock in _locks_of_thread() if lock[1] != path]


def _after_fork() -> None:
    """Close the inherited descriptors in a child, or the parent's locks would outlive the
    parent.
    """
    for lock_file in list(_fork_closes):
        fd = lock_file.fd
        lock_file.fd = -1
        files.close_inherited(fd)


os.register_at_fork(after_in_child=_after_fork)
