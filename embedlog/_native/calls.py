"""System calls, fault injection, locks on files and heartbeats of the C core; `system` exports the
same names.

- Results are numbers; a negative code below -1000 is a system error: ``errno_of`` returns its errno.
- Every wait that may be long is divided into slices of at most 50 ms, so that Ctrl-C and SIGTERM are
  handled.
"""

from __future__ import annotations

import errno
import os
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from embedlog._native import _core
from embedlog._native.clock import advanced_ns, freeze_wall, shift_wall
from embedlog.errors import CorruptRecordError, StorageError

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = [
    "ACTIONS",
    "CALLS",
    "EAGAIN",
    "Facts",
    "Heartbeat",
    "PAGE_BYTES",
    "PAGE_VERSION",
    "SLICE_NS",
    "SLOT_BYTES",
    "SLOT_ENTRY",
    "TEST_BUILD",
    "TIMED_OUT",
    "advanced_ns",
    "allocate",
    "boot_ns",
    "byte_lock_probe",
    "byte_lock_try",
    "byte_unlock",
    "close",
    "close_at_once",
    "crash_now",
    "created_ns",
    "errno_of",
    "facts",
    "facts_of",
    "failed_syncs",
    "sync_all",
    "fault_arm",
    "fault_counters",
    "fault_off",
    "fault_trace",
    "ffi",
    "kernel_ms",
    "filesystem",
    "freeze_wall",
    "guard",
    "lib",
    "link",
    "list_hook",
    "lock_probe",
    "lock_try",
    "lock_until",
    "lost_pages",
    "mkdir",
    "mount_id",
    "open_file",
    "point",
    "pread_into",
    "pwrite",
    "read_slot",
    "record_to",
    "rename",
    "rmdir",
    "shift_wall",
    "sync",
    "truncate",
    "unlink",
    "unlock",
    "walk_headers",
    "wall_ms",
]

ffi: Any = _core.ffi
lib: Any = _core.lib

# Fault injection is compiled only into the test build: EMBEDLOG_TEST_BUILD=1 (build.py).
TEST_BUILD: Final = hasattr(lib, "el_mutants")

PAGE_BYTES: Final[int] = lib.EL_PAGE_BYTES
PAGE_VERSION: Final[int] = lib.EL_PAGE_VERSION
SLICE_NS: Final = 50_000_000

CALLS: Final = (
    "open",
    "close",
    "pread",
    "pwrite",
    "fsync",
    "fdatasync",
    "ftruncate",
    "rename",
    "unlink",
    "link",
    "mkdir",
    "rmdir",
    "fallocate",
    "stat",
    "lock",
    "mmap",
    "list",
    "point",
)
_ACTIONS_OF_C: Final[Mapping[str, int]] = (
    ffi.typeof("enum el_action").relements if TEST_BUILD else {}
)
# the numbers of the enumeration `el_action`, by name
ACTIONS: Final[Mapping[str, int]] = {
    name.removeprefix("EL_FAULT_").lower(): number for name, number in _ACTIONS_OF_C.items()
}


def errno_of(code: int) -> int:
    """The errno in a negative code of the core, 0 if there is none."""
    if code > -1000:
        return 0
    return -code - 1000


# ---- faults --------------------------------------------------------------------------------------


def fault_arm(
    kinds: Sequence[str],
    nth: int = 1,
    action: str = "fail",
    error: int = errno.EIO,
    *,
    sticky: bool = False,
    name: str = "",
) -> None:
    """Subject the nth call of these kinds whose path (or point) contains `name` to `action`; no
    kinds: off.
    """
    mask = 0
    for kind in kinds:
        mask |= 1 << CALLS.index(kind)
    lib.el_fault_arm(mask, nth, ACTIONS[action], error, sticky, os.fsencode(name))


def fault_off() -> None:
    lib.el_fault_arm(0, 0, 0, 0, 0, b"")


def fault_counters(reset: bool = False) -> tuple[dict[str, int], int]:
    """Calls so far by kind, and how often the armed fault was applied."""
    counts = ffi.new("int64_t[]", len(CALLS))
    hit_count = lib.el_fault_counts(counts, reset)
    return dict(zip(CALLS, counts, strict=True)), hit_count


def fault_trace(fd: int) -> None:
    """Write a line per call to `fd`; -1 ends it."""
    lib.el_fault_trace(fd)


def record_to(fd: int) -> None:
    """Write each successful change of files, with its bytes, to `fd`; -1 ends it. `api/testing.h`
    describes the format.
    """
    lib.el_fault_record(fd)


def point(name: str) -> int:
    """A named place where a fault can be injected; 0 outside the test build."""
    if not TEST_BUILD:
        return 0
    return int(lib.el_point(name.encode()))


# ---- calls ---------------------------------------------------------------------------------------


# as `os.fsencode`, for what is called often
_ENCODING: Final = sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()


class Facts(NamedTuple):
    """The fields of fstat that embedlog uses."""

    size: int
    device: int
    inode: int
    modified_ns: int
    links: int
    mode: int
    changed_ns: int = 0

    @property
    def changed_ms(self) -> int:
        """Time of the last change, comparable with `system.wall_ms`."""
        return self.changed_ns // 1_000_000


_FACTS: Final = struct.Struct("=7q")  # el_file_facts
assert _FACTS.size == ffi.sizeof("el_file_facts")
_as_facts: Final[Callable[[tuple[int, ...]], Facts]] = partial(tuple.__new__, Facts)


def _decode_facts(code: int, raw: Any) -> Facts | int:
    return code if code < 0 else _as_facts(_FACTS.unpack(ffi.buffer(raw)))


def facts(fd: int) -> Facts | int:
    """Facts of an open file, or a negative code."""
    raw = ffi.new("el_file_facts *")
    return _decode_facts(lib.el_facts(fd, raw), raw)


def facts_of(path: str) -> Facts | int:
    """Facts of a file by its name, of a link itself, or a negative code."""
    raw = ffi.new("el_file_facts *")
    return _decode_facts(lib.el_facts_of(path.encode(*_ENCODING), raw), raw)


def open_file(path: str, flags: int, mode: int) -> int:
    return int(lib.el_open(path.encode(*_ENCODING), flags, mode))


def close(fd: int) -> int:
    return int(lib.el_close(fd))


# `close` in C alone: no instruction of Python, at which an interrupt could come, is before the call
# of the system
close_at_once: Callable[[int], int] = lib.el_close


def pread_into(fd: int, buffer: Buffer, position: int) -> int:
    with ffi.from_buffer("uint8_t[]", buffer, require_writable=True) as out:
        return int(lib.el_pread(fd, out, len(out), position))


def pwrite(fd: int, data: Buffer, position: int) -> int:
    with ffi.from_buffer("uint8_t[]", data) as view:
        return int(lib.el_pwrite(fd, view, len(view), position))


def sync(fd: int, data_only: bool) -> int:
    return int(lib.el_sync(fd, data_only))


def sync_all(fds: list[int]) -> list[int]:
    """The results of `sync` for each descriptor, at most SYNCS_MAX; they are synced at the same
    time.
    """
    results = ffi.new("int32_t[]", len(fds))
    code = int(lib.el_sync_all(ffi.new("int32_t[]", fds), len(fds), results))
    return list(results) if code >= 0 else [code] * len(fds)


def failed_syncs() -> int:
    """Count of failed syncs in this process. Counted in C: an interrupt after the call cannot hide
    a failure.
    """
    return int(lib.el_failed_syncs())


def truncate(fd: int, size: int) -> int:
    return int(lib.el_truncate(fd, size))


def allocate(fd: int, size: int) -> int:
    return int(lib.el_allocate(fd, size))


def rename(source: str, target: str) -> int:
    return int(lib.el_rename(os.fsencode(source), os.fsencode(target)))


def link(source: str, target: str) -> int:
    return int(lib.el_link(os.fsencode(source), os.fsencode(target)))


def unlink(path: str) -> int:
    return int(lib.el_unlink(os.fsencode(path)))


def mkdir(path: str, mode: int) -> int:
    return int(lib.el_mkdir(os.fsencode(path), mode))


def rmdir(path: str) -> int:
    return int(lib.el_rmdir(os.fsencode(path)))


def list_hook(path: str) -> int:
    """A place where a fault of a listing can be injected; 0 outside the test build."""
    if not TEST_BUILD:
        return 0
    return int(lib.el_list_hook(os.fsencode(path)))


def filesystem(path: str) -> int:
    return int(lib.el_filesystem(os.fsencode(path)))


def mount_id(path: str) -> int:
    """The id of the mount of a path, unique in a boot; 0 before Linux 6.8, which has none; or a
    negative code.
    """
    mount = ffi.new("uint64_t *")
    code = int(lib.el_mount(os.fsencode(path), mount))
    return int(mount[0]) if code > 0 else code


def created_ns(fd: int) -> int:
    """The birth time of a file, comparable for equality only; 0 if the file system has none; or a
    negative code.
    """
    return int(lib.el_created_ns(fd))


def boot_ns() -> int:
    """The clock of deadlines and leases: monotonic, the same in every process, including
    suspends.
    """
    # as `el_boot_ns`, without a call into C that releases the GIL
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def wall_ms() -> int:
    """The clock of timestamps and retention."""
    return int(lib.el_wall_ms())


def kernel_ms() -> int:
    """The clock of the times of files: as `wall_ms`, but no test moves it."""
    return int(lib.el_kernel_ms())


# ---- locks ---------------------------------------------------------------------------------------

EAGAIN: Final = -1000 - errno.EAGAIN
TIMED_OUT: Final = -1000 - errno.ETIMEDOUT


def lock_try(fd: int, exclusive: bool) -> int:
    return int(lib.el_lock_try(fd, exclusive))


def lock_until(fd: int, exclusive: bool, deadline_ns: int) -> int:
    """As `lock_try` until the deadline on `boot_ns`; TIMED_OUT then."""
    while True:
        until = min(deadline_ns, boot_ns() + SLICE_NS)
        code = int(lib.el_lock_until(fd, exclusive, ffi.NULL, until))
        if code != TIMED_OUT or until >= deadline_ns:
            return code


def unlock(fd: int) -> int:
    return int(lib.el_unlock(fd))


def lock_probe(fd: int) -> int:
    """0 free, 1 held shared, 2 held exclusively, by others."""
    return int(lib.el_lock_probe(fd))


def byte_lock_try(fd: int, position: int) -> int:
    """Lock one byte of a file exclusively: 0, or EAGAIN if another descriptor has locked it."""
    return int(lib.el_byte_lock_try(fd, position))


def byte_unlock(fd: int, position: int) -> int:
    return int(lib.el_byte_unlock(fd, position))


def byte_lock_probe(fd: int, position: int) -> int:
    """As `lock_probe`, of one byte."""
    return int(lib.el_byte_lock_probe(fd, position))


def guard() -> None:
    """Install the SIGBUS handler for mapped pages, again if it was replaced."""
    lib.el_install_handler()


def lost_pages() -> int:
    return int(lib.el_lost_pages())


def crash_now() -> None:
    """End this process like a power loss: no further code runs. For tests."""
    import signal  # late: it makes enumerations

    os.kill(os.getpid(), signal.SIGKILL)


# ---- heartbeats ----------------------------------------------------------------------------------

SLOT_BYTES: Final[int] = lib.EL_SLOT_BYTES
SLOT_ENTRY: Final = struct.Struct(
    ">Q"  # nonce: identifies the process
    "Q"  # heartbeat: changes with every heartbeat
    "Q"  # 1: the lease was left, as its polls stopped
    "Q"  # reserved
)
assert SLOT_ENTRY.size == SLOT_BYTES


class Heartbeat:
    """A native thread that writes the heartbeats of a process slot. `code` is below 0 if it could
    not start. Threads: any.

    The thread ends before its memory is freed: with `end`, or with the last reference.
    `is_expired` reads memory and clock without a call into the core, as it is checked for every record.
    """

    def __init__(
        self,
        fd: int,
        position: int,
        guard_at: int,
        session_ms: int,
        heartbeat_ms: int,
        poll_ms: int,
    ) -> None:
        self._raw: Any = ffi.gc(ffi.new("el_lease *"), lib.el_lease_end)
        self._mutex = threading.Lock()
        million = 1_000_000
        self.code = int(
            lib.el_lease_start(
                self._raw,
                fd,
                position,
                guard_at,
                session_ms * million,
                heartbeat_ms * million,
                poll_ms * million,
            )
        )

    @property
    def good_until_ns(self) -> int:
        return int(self._raw.good_until_ns)

    @property
    def is_expired(self) -> bool:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) >= int(self._raw.good_until_ns)

    @property
    def has_left(self) -> bool:
        return bool(lib.el_lease_left(self._raw))

    def age(self, ns: int) -> bool:
        """Count `ns` more since the last poll, and act on it before this returns; False during a
        poll. For tests.
        """
        with self._mutex:
            return bool(lib.el_lease_age(self._raw, ns))

    def begin_poll(self) -> bool:
        return bool(lib.el_lease_polling(self._raw))

    def end_poll(self) -> bool:
        return bool(lib.el_lease_polled(self._raw))

    def renew(self) -> int:
        with self._mutex:
            return int(lib.el_lease_renew(self._raw))

    def end(self) -> None:
        with self._mutex:
            lib.el_lease_end(self._raw)

    def abandon(self) -> None:
        """In a forked child: the thread and the file are the parent's."""
        lib.el_lease_abandon(self._raw)
        self._mutex = threading.Lock()  # the parent may have held it during the fork


def read_slot(fd: int, lock_at: int, position: int, guard_at: int) -> tuple[int, bytes]:
    """Result code (0: free, above 0: held, below 0: error) and the bytes of the entry."""
    entry = ffi.new(f"uint8_t[{SLOT_BYTES}]")
    code = int(lib.el_slot_read(fd, lock_at, position, guard_at, entry))
    return code, bytes(ffi.buffer(entry))


def walk_headers(
    fd: int, position: int, size: int, batches: Any, base: int = -1
) -> tuple[int, int]:
    """batch rows of [position, size) of the log file of segment `base` (-1: unknown): (count, first
    byte after them).

    Bodies are not read. Raises CorruptRecordError if they are no chain of batches of magic 2, and
    StorageError.
    """
    end = ffi.new("int64_t *")
    rows = ffi.from_buffer("el_batch[]", batches)
    count = int(lib.el_walk_headers(fd, base, position, size, rows, len(rows), end))
    if count == lib.EL_ECORRUPT:
        raise CorruptRecordError("batch headers do not form a chain", position=position)
    if count < 0:
        raise StorageError("cannot read a segment", errno=errno_of(count))
    return count, int(end[0])
