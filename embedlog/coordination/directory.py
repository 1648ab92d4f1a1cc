"""Opens and closes a log directory: the open lock, `.lock`, incarnations, the clean mark
(`docs/protocol.md`, opening and closing).

- The open lock serializes openers and closers, during all of their work.
- A broker holds `.lock` exclusively, each embedlog process holds it shared; a process that gets it
  exclusively is the first one.
- After locking, and again after a broker wrote, the name must still lead to the locked file: a
  broker unlinks it late.
- The first process removes the clean mark, durably, before anything is written; the last one writes
  it after the syncs.
- The clean mark is signed with the incarnation: a signed mark proves, in a copy too, that no broker
  used the directory since. An unsigned mark is identified by inode and time. If the mark is missing
  or replaced, a broker used the directory. The number of that visit is recorded first: the manifest
  of a partition that was not loaded since describes a time before the visit.
- The control page shows whether the processes in the directory use it as a part of a set. Others
  are refused.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Final

from embedlog._native import system
from embedlog.coordination.transactions import recovery_due
from embedlog.errors import (
    DirectoryInUseError,
    ForeignDirectoryError,
    StateError,
    StorageError,
    UnsupportedFormatError,
)
from embedlog.storage import dirty_mark, file_names, files, lock_holders, locks
from embedlog.storage.control_page import (
    boot_and_mount_number,
    boot_number,
    exact_boot_and_mount_number,
)
from embedlog.storage.file_systems import check_filesystem
from embedlog.storage.identity import (
    ensure_meta,
    mark_owner,
    read_visit,
    remove_clean_mark,
    write_clean_mark,
    write_visit,
)

UNLINK_DELAY_S: Final = 0.05  # a broker unlinks `.lock` some time after the unlock

# Words of the directory's control page.
MARK_INODE = 0
MARK_NS = 1
WAS_CLEAN = 2
BROKER_WROTE = 3
BY_LOCKS = 12
BOOT = 15
IN_SET = 16
REGISTERED = 19


_fork_closes: weakref.WeakSet[Directory] = weakref.WeakSet()


class Directory:
    """The state of one process in a log directory. Threads: `enter` and `leave` once each; the rest
    may be read from any.
    """

    def __init__(
        self, path: Path, *, read_only: bool, mode: int, lock_timeout_ms: int, shared: str
    ) -> None:
        self.path = path
        self.read_only = read_only
        self._mode = mode
        self._timeout_ms = lock_timeout_ms
        self._shared = shared
        self._open_lock: locks.LockFile | None = None
        self._lock_fd = -1
        self._lock_name = os.fspath(path / file_names.BROKER_LOCK)
        self._held_lock: tuple[str, int, int, int] | None = None  # of `held_lock`
        self.page: system.Page | None = None
        self.incarnation = os.urandom(16)
        self.clean = False
        self.broker_wrote = False
        self.last_broker_visit = 0
        # for a reader, from its last refresh: another one after each open or close
        self.directory_change: object = None
        self.broker_epoch = -1  # for the clean mark
        self.in_set = False  # whether this process uses it as a part of a set
        # called by the first process, before it removes the clean mark
        self.beginning: Callable[[], None] | None = None
        _fork_closes.add(self)  # before it is open: another thread may fork at any point

    def _deadline(self) -> int:
        return system.boot_ns() + self._timeout_ms * 1_000_000

    # ---- open ------------------------------------------------------------------------------------

    def enter(self, prepare: Callable[[bool], None]) -> None:
        """Open the directory; `prepare(first)` runs under the open lock, with `.lock` held
        exclusively if first.

        Raises DirectoryInUseError, UnsupportedFilesystemError, ForeignDirectoryError,
        LockTimeoutError.
        """
        check_filesystem(self.path, self._shared)
        if files.exists(self.path / file_names.UNFINISHED):
            raise ForeignDirectoryError(
                "an incomplete backup, which was interrupted: delete it and make it again",
                path=self.path / file_names.UNFINISHED,
            )
        if self.read_only:
            self._enter_read_only()
            prepare(False)
            return
        self._open_lock = locks.LockFile(self.path / file_names.OPEN_LOCK, self._mode)
        try:
            with self._open_lock.hold(self._deadline()):
                if not self._open_lock.is_in_place():
                    raise StorageError(
                        "the directory was replaced while it was being opened", path=self.path
                    )
                try:
                    self._join(prepare)
                except BaseException:
                    self._unlock()
                    raise
        except BaseException:
            self.release()
            raise

    def _join(self, prepare: Callable[[bool], None]) -> None:
        first = self._take_lock()
        if first:
            self._begin_incarnation()
        else:
            self._join_incarnation()
        prepare(first)
        if first:
            system.lock_try(self._lock_fd, False)

    def _enter_read_only(self) -> None:
        self.refresh()

    def refresh(self) -> bool:
        """Whether an embedlog process is writing here; adopts its incarnation. Refuses a broker.
        Read-only use.
        """
        state = self._probe()
        if state == 2:
            raise DirectoryInUseError(
                "the directory is held exclusively: a Kafka broker is running on it",
                path=self.path / file_names.BROKER_LOCK,
            )
        path = self.path / file_names.CONTROL
        page_facts = files.facts_of(path)
        mark = files.facts_of(self.path / file_names.CLEAN_MARK)
        if self.page is None and page_facts is not None and page_facts.size >= system.PAGE_BYTES:
            with files.opened(path, files.READ) as fd:
                self.page = system.Page(fd, False, self._by_locks)
        if self.page is not None:
            self.incarnation = self.page.incarnation()
            if state == 1:
                self._check_access_mode(self.page)
        directory_change = ((mark.inode, mark.modified_ns) if mark else None, self.incarnation)
        if directory_change != self.directory_change:
            self._classify(mark, self.page)
        self.directory_change = directory_change
        if state != 1 or self.page is None or self._is_unused(self.page):
            return False
        if self.clean and self.broker_wrote:
            raise self._other_holder_error()
        return True

    def _probe(self) -> int:
        """State of `.lock`; an exclusive holder is probed until an opener or closer of embedlog
        would be done.
        """
        try:
            fd = files.open_file(self.path / file_names.BROKER_LOCK, files.READ)
        except StorageError as problem:
            if problem.errno in (errno.ENOENT, errno.EACCES):
                return 0
            raise
        try:
            deadline = system.boot_ns() + min(self._timeout_ms, 2000) * 1_000_000
            state = system.lock_probe(fd)
            while state == 2 and system.boot_ns() < deadline:
                time.sleep(0.005)
                state = system.lock_probe(fd)
            return max(state, 0)
        finally:
            files.close(fd)

    def _take_lock(self) -> bool:
        """Hold `.lock`: True if exclusively, as the first process."""
        path = self.path / file_names.BROKER_LOCK
        deadline = self._deadline()
        while True:
            fd = self._lock_fd = files.open_file(path, files.CREATE, self._mode)
            first = system.lock_try(fd, True) == 0
            if not first and system.lock_try(fd, False) < 0:
                raise DirectoryInUseError(
                    "the directory is held exclusively: a Kafka broker is running on it", path=path
                )
            # the others may have ended, and a broker come, between both tries
            first = first or system.lock_try(fd, True) == 0
            self._read_mark()
            if self._is_current(fd, path, after_delay=first and self.broker_wrote):
                return first or self._has_no_process(path)
            self._unlock()
            if system.boot_ns() > deadline:
                raise DirectoryInUseError(
                    "another process keeps replacing the lock file", path=path
                )

    def _has_no_process(self, path: Path) -> bool:
        """Whether none of the shared holders of `.lock` is an embedlog process: any reader of the
        file can hold it. REQUIRES the open lock.

        Raises DirectoryInUseError after a broker's visit, also if the broker was killed and left no
        mark. The control page's information about the time before must not be used.
        """
        if self.broker_wrote and self.page is not None:
            raise self._other_holder_error()
        return self.clean or (self.page is not None and self._is_unused(self.page))

    def _other_holder_error(self) -> DirectoryInUseError:
        path = self.path / file_names.BROKER_LOCK
        return lock_holders.in_use_error(
            "a program other than embedlog holds a shared lock on the lock file, or the control "
            "page is damaged",
            path,
            own=int(self._lock_fd >= 0),
        )

    def _is_unused(self, page: system.Page) -> bool:
        """Whether the page proves that no embedlog process is in: an open clears the mark's words,
        and processes end with the boot.
        """
        if page.word(MARK_INODE) != 0:
            return True
        boot = boot_number()
        page_boot = page.word(BOOT)
        return not self._by_locks and 0 not in (boot, page_boot) and boot != page_boot

    def _is_current(self, fd: int, path: str | Path, after_delay: bool) -> bool:
        if after_delay:
            time.sleep(UNLINK_DELAY_S)
        locked = files.facts(fd, path)
        named = files.facts_of(path)
        return named is not None and (named.device, named.inode) == (locked.device, locked.inode)

    def held_lock(self) -> tuple[str, int, int, int]:
        """Path, device, inode and descriptor of the held `.lock`, for the check before every
        append.
        """
        fd = self._lock_fd
        held_lock = self._held_lock
        if (
            held_lock is None or held_lock[3] != fd
        ):  # another file is opened before this one is closed
            facts = files.facts(fd)
            held_lock = self._held_lock = self._lock_name, facts.device, facts.inode, fd
        return held_lock

    def check_lock(self) -> None:
        """Raises StorageError if the directory or its lock file was replaced since the open."""
        if self.holds_lock():
            return
        self._check_exists()
        path = self.path / file_names.BROKER_LOCK
        change = "replaced" if files.exists(path) else "removed"
        raise StorageError(
            f"the lock file of this directory was {change}; a broker may be using it: open the "
            "directory again",
            path=path,
        )

    def _check_exists(self) -> None:
        if not files.is_directory(self.path):
            raise StorageError(
                "the log directory does not exist any more: it was removed or renamed",
                errno=errno.ENOENT,
                path=self.path,
            )

    def reacquire(self) -> None:
        """Hold `.lock` again after its removal or replacement.

        Raises DirectoryInUseError if another process uses or used the directory.
        """
        if self.holds_lock():
            return
        self._check_exists()
        path = self.path / file_names.BROKER_LOCK
        fd, created = self._reopen_lock(path)
        try:
            is_current = system.lock_try(fd, False) == 0 and self._is_current(
                fd, path, after_delay=False
            )
            if (
                not is_current
                or files.exists(self.path / file_names.CLEAN_MARK)
                or not (created or self._is_held_by_incarnation(fd))
            ):
                raise DirectoryInUseError(
                    "the lock file was removed, and another process uses or used the directory: "
                    "open it again",
                    path=path,
                )
        except BaseException:
            files.close(fd)
            raise
        previous_fd = self._lock_fd
        self._lock_fd = fd
        files.close(previous_fd)

    def _reopen_lock(self, path: Path) -> tuple[int, bool]:
        """A descriptor of `.lock`, and whether this process has created it: then no broker has used
        the directory meanwhile.
        """
        try:
            return files.open_file(path, files.EXCLUSIVE, self._mode), True
        except StorageError as problem:
            if problem.errno != errno.EEXIST:
                raise
        return files.open_file(path, files.CREATE, self._mode), False

    def _is_held_by_incarnation(self, fd: int) -> bool:
        """Whether a process of this incarnation seems to hold `.lock`, too; its creator may be
        about to lock it.

        A lock file without a holder may be that of a killed broker.
        """
        deadline = system.boot_ns() + int(UNLINK_DELAY_S * 1e9)
        while system.lock_probe(fd) != 1:
            if system.boot_ns() >= deadline:
                return False
            time.sleep(0.005)
        return self.page is not None and self.page.incarnation() == self.incarnation

    def holds_lock(self) -> bool:
        """Whether `.lock` is still the locked file: if not, a broker may have started, and writing
        must stop.
        """
        if self.read_only:
            return True
        return self._lock_fd >= 0 and self._is_current(
            self._lock_fd, self._lock_name, after_delay=False
        )

    def created_ns(self) -> int | None:
        """The birth time of the directory's own lock file, which nothing replaces; None if the file
        system has none.

        REQUIRES the open lock.
        """
        if self._open_lock is None:
            return None
        return files.created_ns(self._open_lock.fd, self._open_lock.path)

    # ---- incarnations ----------------------------------------------------------------------------

    def _read_mark(self) -> None:
        self._classify(files.facts_of(self.path / file_names.CLEAN_MARK), self._map_page())

    def _classify(self, mark: system.Facts | None, page: system.Page | None) -> None:
        """Decide whether the directory was closed cleanly, and by embedlog."""
        self.last_broker_visit = read_visit(self.path)
        owner = mark_owner(self.path) if mark is not None else None
        self.clean = mark is not None
        # a copy that was made during an open has embedlog's mark beside a later page
        if owner is not None:
            self.broker_wrote = False
            self.clean = page is None or page.version() < 0 or page.incarnation() == owner
        elif page is None:
            self.broker_wrote = self.clean or self._has_broker_content()
        elif mark is not None:
            self.broker_wrote = (page.word(MARK_INODE), page.word(MARK_NS)) != (
                mark.inode,
                mark.modified_ns,
            )
        else:
            # the mark was removed: a broker removes it when it starts
            self.broker_wrote = page.word(MARK_INODE) != 0

    def _has_broker_content(self) -> bool:
        """Whether a directory without a control page has checkpoints of a broker, or partitions
        that nobody registered.
        """
        names = files.listing(self.path)
        if any(name.endswith("-checkpoint") for name in names):
            return True
        folders = () if file_names.TOPICS in names else files.directories(self.path)
        return any(file_names.parse_partition_name(name) is not None for name in folders)

    def _map_page(self) -> system.Page | None:
        path = self.path / file_names.CONTROL
        page_facts = files.facts_of(path)
        if self.page is None and page_facts is not None and page_facts.size >= system.PAGE_BYTES:
            with files.opened(path, files.WRITE) as fd:
                self.page = system.Page(fd, True, self._by_locks)
        return self.page

    def _begin_incarnation(self) -> None:
        path = self.path / file_names.CONTROL
        page = self._map_page()
        if page is not None and page.version() > system.PAGE_VERSION:
            raise UnsupportedFormatError(
                "the control page was written by a newer embedlog",
                path=path,
                expected=system.PAGE_VERSION,
                found=page.version(),
            )
        if self.beginning is not None:
            self.beginning()
        if self.broker_wrote or self.last_broker_visit < 0:
            # before the evidence of the visit is removed
            self.last_broker_visit = write_visit(self.path, self._mode)
        self._keep_marks(page)
        self._forget_mark()
        remove_clean_mark(self.path)
        ensure_meta(self.path, self._mode)
        is_new = page is None
        if page is None:
            with files.opened(path, files.CREATE, self._mode) as fd:
                files.allocate(fd, system.PAGE_BYTES, path)
            page = self._map_page()
        page_facts = files.facts_of(path)
        if page is None or page_facts is None:
            raise StorageError("the control page disappeared while it was created", path=path)
        page.write_directory(
            system.identity(self.incarnation, bytes(16), -1, page_facts.device, page_facts.inode)
        )
        page.set(BOOT, boot_number())
        state = {
            WAS_CLEAN: self.clean,
            BROKER_WROTE: self.broker_wrote,
            BY_LOCKS: self._by_locks,
            IN_SET: self.in_set,
            REGISTERED: 0,
        }
        for word, value in ({MARK_INODE: 0, MARK_NS: 0} | state).items():
            page.set(word, int(value))
        recovery_due.record_opening(
            page, self.clean or is_new, self.broker_wrote, boot_and_mount_number(self.path)
        )
        with files.opened(path, files.WRITE) as fd:
            # otherwise a power loss could restore or lose the words of a mark: both would mean
            # that a broker wrote
            files.sync(fd, path)
        if is_new:
            files.sync_directory(self.path)

    def _keep_marks(self, page: system.Page | None) -> None:
        """Let the DIRTY marks of a set's directory show what was written since its last orderly
        close, also after a kill (REPLICA-13).

        They do so in the page cache of the last opening, which the control page names. In another
        one all partitions are marked first: a mark can be lost with the records that it is for.
        REQUIRES the open lock, and that the clean mark is not removed yet.
        """
        is_kept = self.clean
        page_facts = files.facts_of(self.path / file_names.CONTROL)
        if page is not None and page_facts is not None:
            own = system.identity(
                page.incarnation(), bytes(16), -1, page_facts.device, page_facts.inode
            )
            is_in_place = page.check(own) == system.VALID
            is_last = recovery_due.is_last_cache(page, exact_boot_and_mount_number(self.path))
            is_kept = self.clean or (is_in_place and is_last)
            if self.clean and not is_in_place:
                page.write_directory(own)
            if self.clean:
                recovery_due.record_cache(page, boot_and_mount_number(self.path))
        if not is_kept and files.exists(self.path / file_names.REPLICAS):
            dirty_mark.put_in_all(self.path, self._mode)

    def _forget_mark(self) -> None:
        """Clear the words of a signed mark before it is removed: without it, they would show the
        visit of a broker.

        In a set they are on disk first: a directory that a broker visited is away until it is
        replaced.
        """
        if self.page is None or mark_owner(self.path) is None:
            return
        self.page.set(MARK_INODE, 0)
        self.page.set(MARK_NS, 0)
        if self.in_set:
            path = self.path / file_names.CONTROL
            with files.opened(path, files.WRITE) as fd:
                files.sync(fd, path)

    def _join_incarnation(self) -> None:
        page = self._map_page()
        if page is None or page.version() < 0:
            raise ForeignDirectoryError(
                "other processes hold this directory, but their control page is missing or damaged",
                path=self.path / file_names.CONTROL,
            )
        if page.version() != system.PAGE_VERSION:
            raise UnsupportedFormatError(
                "the directory is in use by another version of embedlog",
                path=self.path / file_names.CONTROL,
                expected=system.PAGE_VERSION,
                found=page.version(),
            )
        self._check_access_mode(page)
        if bool(page.word(IN_SET)) != self.in_set:
            use = "without its set" if self.in_set else "as a part of a set"
            lock = self.path / file_names.BROKER_LOCK
            raise lock_holders.in_use_error(f"other processes use the directory {use}", lock)
        self.incarnation = page.incarnation()
        self.last_broker_visit = read_visit(self.path)
        self.clean = bool(page.word(WAS_CLEAN))
        self.broker_wrote = bool(page.word(BROKER_WROTE))

    def _check_access_mode(self, page: system.Page) -> None:
        """Raises StateError: processes that map pages and processes that copy them under locks
        would undo each other's changes.
        """
        if bool(page.word(BY_LOCKS)) != self._by_locks:
            raise StateError(
                "other processes have this directory open with another setting of `shared`",
                path=self.path,
                expected='shared="no"' if self._by_locks else 'shared="locks"',
                found=f'shared="{self._shared}"',
            )

    @property
    def _by_locks(self) -> bool:
        return self._shared == "locks"

    @property
    def is_registration_known(self) -> bool:
        """Whether the first process of this incarnation knows, and has recorded, the outcome of its
        registration in a set.
        """
        return self.page is not None and bool(self.page.word(REGISTERED))

    def know_registration(self, known: bool) -> None:
        """Show other processes the value of `is_registration_known`, also after a kill."""
        if self.page is not None:
            self.page.set(REGISTERED, int(known))

    def check_only_process(self) -> None:
        """Raises DirectoryInUseError if another opening holds `.lock`, also one of this process."""
        context: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
        if self._open_lock is not None:
            context = self._open_lock.hold(self._deadline())
        with context:
            if system.lock_try(self._lock_fd, True) < 0:
                path = self.path / file_names.BROKER_LOCK
                raise lock_holders.in_use_error(
                    "the log is open elsewhere: close it there first", path, own=1
                )
            system.lock_try(self._lock_fd, False)

    # ---- close -----------------------------------------------------------------------------------

    def leave(self, close_all: Callable[[], None]) -> None:
        """Close the directory; the last process runs `close_all` and, if that succeeds, writes the
        clean mark.
        """
        if self._open_lock is None:
            self.release()
            return
        try:
            with self._open_lock.hold(self._deadline()):
                try:
                    last = system.lock_try(self._lock_fd, True) == 0 and self.holds_lock()
                    if last:
                        close_all()
                        self._write_mark()
                finally:
                    self._unlock()
        finally:
            self.release()

    @property
    def is_left(self) -> bool:
        """Whether this process holds no lock of the directory: after `leave` or `release`, and if
        it only reads.
        """
        return self._open_lock is None

    def _write_mark(self) -> None:
        write_clean_mark(self.path, self.broker_epoch, self._mode, incarnation=self.incarnation)
        mark = files.facts_of(self.path / file_names.CLEAN_MARK)
        if self.page is not None and mark is not None:
            self.page.set(MARK_INODE, mark.inode)
            self.page.set(MARK_NS, mark.modified_ns)
            path = self.path / file_names.CONTROL
            with files.opened(path, files.WRITE) as fd:
                # otherwise a later power loss would make embedlog's own mark that of a broker
                files.sync(fd, path)

    def _unlock(self) -> None:
        """Release `.lock`. An exclusive holder does so under the open lock: the next opener would
        consider it a broker.
        """
        fd = self._lock_fd
        self._lock_fd = -1
        files.close(fd)

    def release(self) -> None:
        """Give everything back without an orderly close. Idempotent."""
        self._unlock()
        if self._open_lock is not None:
            self._open_lock.close()
            self._open_lock = None
        if self.page is not None:
            self.page.close()
            self.page = None

    def abandon(self) -> None:
        """Close inherited descriptors in a forked child, without effect on the parent."""
        fd = self._lock_fd
        self._lock_fd = -1
        files.close_inherited(fd)


def _after_fork() -> None:
    """Close the inherited descriptors in a child, or the parent's locks would outlive the
    parent.
    """
    for directory in list(_fork_closes):
        directory.abandon()


os.register_at_fork(after_in_child=_after_fork)
