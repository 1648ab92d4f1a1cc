"""Locks between processes, and the mutex in front of each: who waits does so until a deadline, whose error names the holder.

LOCKFILE-1  an OFD lock dies with its descriptor: in a forked child those are closed, so that the parent's locks die with the
    parent
LOCKFILE-2  a lock file is never unlinked and never renamed over, and only who may write beside it can open it (`docs/layout.md`)
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import weakref
from collections.abc import Callable, Iterator

from embedlog._native import system
from embedlog.errors import LockTimeoutError, StateError, StorageError
from embedlog.storage import files, lock_holders, lock_order

_fork_closes: weakref.WeakSet[LockFile] = weakref.WeakSet()


def owned(mutex: threading.RLock) -> bool:
    """Whether this thread has it: the lock knows, where an interrupt may have come before a variable was set."""
    return bool(mutex._is_owned())  # type: ignore[attr-defined]


@contextlib.contextmanager
def holding(mutex: threading.RLock, deadline_ns: int, path: str | os.PathLike[str]) -> Iterator[None]:
    """A mutex until a deadline, never twice by one thread; an interrupt at any point leaves it free. Raises LockTimeoutError."""
    if owned(mutex):
        raise StateError("this thread holds the lock already", path=path)
    try:
        if not mutex.acquire(timeout=max(0.0, (deadline_ns - system.boot_ns()) / 1e9)):
            raise LockTimeoutError("lock held by another thread of this process until the deadline", path=path)
        yield
    finally:
        try:
            mutex.release()  # in one step: between a question and the release an interrupt could come
        except RuntimeError:
            pass  # it was never taken


def open_lock(path: str | os.PathLike[str], mode: int = 0o666) -> int:
    """A descriptor of a file that is locked; made if need be. Raises StorageError.

    Whoever can open a file can lock it. So only they may read it who may write in its directory: from all others the file's
    owner takes the permission away, also where an older version left it.
    """
    room = files.look(os.path.join(os.path.dirname(path), os.curdir))
    for whose in (0o060, 0o006):
        if room is not None and not room.mode & mode & whose & 0o222:
            mode &= ~whose
    fd = files.open_file(path, files.CREATE, mode)
    found = files.facts(fd, path)
    if found.mode & 0o666 & ~mode:
        files.restrict(fd, found.mode & 0o777 & mode)  # another user's is his to restrict
    return fd


class LockFile:
    """An OFD lock on a file that is never unlinked and never renamed over (`docs/protocol.md`, locks).

    Threads: one mutex in front of the descriptor; `hold` may be called from any thread, never nested.
    """

    def __init__(self, path: str | os.PathLike[str], mode: int = 0o666) -> None:
        self.path = os.fspath(path)
        self.fd = open_lock(path, mode)
        self.mutex = threading.RLock()
        _fork_closes.add(self)

    def try_lock(self, exclusive: bool = True) -> bool:
        """Take the lock now, or tell that somebody else holds it."""
        code = system.lock_try(self.fd, exclusive)
        if code == system.EAGAIN:
            return False
        files.checked(code, self.path, "lock")
        lock_order.taken(self.path)
        return True

    def lock(self, deadline_ns: int, exclusive: bool = True) -> None:
        """Wait for the lock. Raises LockTimeoutError, which says who holds it as far as the file tells."""
        lock_order.taken(self.path)
        code = system.lock_until(self.fd, exclusive, deadline_ns)
        if code == system.TIMED_OUT:
            raise LockTimeoutError(f"lock not free before the deadline; held by {self.owner()}", path=self.path)
        files.checked(code, self.path, "lock")

    def unlock(self) -> None:
        system.unlock(self.fd)
        lock_order.left(self.path)

    @contextlib.contextmanager
    def hold(self, deadline_ns: int) -> Iterator[None]:
        """The lock, exclusively, with the mutex in front: threads that share a descriptor do not exclude each other."""
        with holding(self.mutex, deadline_ns, self.path), self._held():
            self.lock(deadline_ns)
            self.sign()
            yield

    @contextlib.contextmanager
    def hold_while(self, needed: Callable[[], bool], nap: Callable[[], None], deadline_ns: int) -> Iterator[bool]:
        """As `hold`, but False, without the lock, as soon as it is no longer `needed`; `nap` is called while others have it."""
        with holding(self.mutex, deadline_ns, self.path), self._held():
            while wanted := needed():
                if self.try_lock():
                    self.sign()
                    break
                if system.boot_ns() >= deadline_ns:
                    self.lock(deadline_ns)  # once more, for its message
                nap()
            yield wanted

    @contextlib.contextmanager
    def _held(self) -> Iterator[None]:
        """What is locked inside is unlocked on every way out."""
        try:
            yield
        finally:
            try:
                self.unlock()
            except BaseException:  # an interrupt before it had done its work: again, which does no harm
                self.unlock()
                raise

    def sign(self) -> None:
        """Leave a note who holds it: for messages only, nothing is decided by it."""
        note = f"pid {os.getpid()} on {socket.gethostname()}\n".ljust(96).encode()[:96]
        system.pwrite(self.fd, note, 0)

    def owner(self) -> str:
        """Who holds it, in words: what the kernel tells, else the note of whoever had it last."""
        if seen := lock_holders.held_by(self.path):
            return seen
        try:
            note = files.pread(self.fd, 96, 0, self.path).decode(errors="replace").strip()
        except StorageError:
            note = ""
        return note or "an unknown process"

    def close(self) -> None:
        lock_order.left(self.path)
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            files.close(fd)


def _after_fork() -> None:
    """In a child: give the inherited descriptors up, or the parent's locks would outlive the parent."""
    for held in list(_fork_closes):
        fd, held.fd = held.fd, -1
        files.close_inherited(fd)


os.register_at_fork(after_in_child=_after_fork)
