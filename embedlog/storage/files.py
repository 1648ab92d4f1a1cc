"""Opens, reads, writes, syncs and renames files; each call that reads or changes a file goes through
the C table with its fault hooks. Only listings, positions and modes do not.

- Every failure is a `StorageError` with errno and path. No other module calls Python's own functions
  on files (`tests/project/test_raw_calls.py`). A failed sync is never retried here.
- A small file changes by temporary, fsync, rename, fsync of the directory: after a crash it is the
  old or the new one.
- This module does not know what the bytes mean.
- A descriptor is owned by exactly one object.
- A log directory is untrusted input (`docs/layout.md`, security). Only a regular file that is not a
  link is opened, and the name of a temporary cannot be predicted. No file is read whole that is
  larger than its kind can be.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from embedlog._native import system
from embedlog._native.scope import Guard, scope
from embedlog.errors import CorruptRecordError, StorageError
from embedlog.storage import file_names

if TYPE_CHECKING:
    from typing_extensions import Buffer

READ: Final = os.O_RDONLY
WRITE: Final = os.O_RDWR
CREATE: Final = os.O_RDWR | os.O_CREAT
# also on a network, others see each write once the call returns
THROUGH: Final = CREATE | os.O_DSYNC
EXCLUSIVE: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL
TEMPORARY: Final = ".tmp"
SYNCS_MAX: Final = 64  # as in api/system.h
INTERRUPTS_MAX: Final = 1000  # of one call in a row; then the file system is considered broken
# limit for a file that is read whole: checkpoints of 100,000 partitions use a third of it
WHOLE_BYTES_MAX: Final = 64 << 20


def check(code: int, path: str | os.PathLike[str], verb: str) -> int:
    """The result of a call of the core. Raises StorageError for a negative code."""
    if code >= 0:
        return code
    number = system.errno_of(code) or errno.EIO
    raise StorageError(f"cannot {verb}", errno=number, path=path)


def open_file(path: str | os.PathLike[str], flags: int, mode: int = 0o666) -> int:
    """A descriptor of a regular file, or with O_DIRECTORY of a directory; closed on exec. Raises
    StorageError.
    """
    name = os.fspath(path)
    code = system.open_file(name, flags, mode)
    if code >= 0:
        return code
    if system.errno_of(code) == errno.EINTR:
        code = _repeat_interrupted(system.open_file, name, flags, mode)
    if code < 0:
        _raise_not_opened(code, path)
    return code


def _repeat_interrupted(call: Callable[..., int], *arguments: object) -> int:
    """Repeat a call that a signal interrupted. The signal handler has run by then; its exception
    ends this call.
    """
    for _ in range(INTERRUPTS_MAX):
        code = call(*arguments)
        if code >= 0 or system.errno_of(code) != errno.EINTR:
            break
    return code


def _raise_not_opened(code: int, path: str | os.PathLike[str]) -> None:
    """Raises StorageError, which names the kind of a file that is no regular one."""
    number = system.errno_of(code)
    if number in _NOT_REGULAR:
        current_facts = lstat(path)
        if current_facts is not None:
            _check_regular(current_facts, number, path)
    check(code, path, "open")


def _check_regular(current_facts: system.Facts, number: int, path: str | os.PathLike[str]) -> None:
    if stat.S_ISREG(current_facts.mode):
        return
    kind = next(
        (name for is_kind, name in _KINDS.items() if is_kind(current_facts.mode)), "something else"
    )
    raise StorageError("cannot open", errno=number, path=path, expected=_EXPECTED, found=kind)


_EXPECTED: Final = "a regular file: put it back, or remove this name if it is not of your log"
_NOT_REGULAR: Final = (
    errno.ELOOP,
    errno.EISDIR,
    errno.EINVAL,
    errno.ENXIO,
    errno.ENODEV,
    errno.EEXIST,
)
_KINDS: Final[dict[Callable[[int], bool], str]] = {
    stat.S_ISLNK: "a symbolic link",
    stat.S_ISDIR: "a directory",
    stat.S_ISFIFO: "a named pipe",
    stat.S_ISSOCK: "a socket",
    stat.S_ISCHR: "a device",
    stat.S_ISBLK: "a device",
}


# Close a descriptor, if it is one. Errors are ignored: an earlier sync reported them, or the data
# is lost anyway (close(2)). One call of C: who takes a descriptor out of its field, and closes it
# then, is not interrupted between both.
close: Callable[[int], int] = system.close_at_once


@scope
def opened(path: str | os.PathLike[str], flags: int = READ, mode: int = 0o666) -> Iterator[int]:
    """A descriptor that is closed on every exit of the block."""
    fd = open_file(path, flags, mode)
    with Guard(partial(close, fd)):
        yield fd


def pread_into(fd: int, buffer: Buffer, position: int, path: str | os.PathLike[str] = "") -> int:
    """Bytes read; fewer than the size of the buffer only at the end of the file."""
    return check(system.pread_into(fd, buffer, position), path, "read")


def pread(fd: int, size: int, position: int, path: str | os.PathLike[str] = "") -> bytes:
    buffer = bytearray(size)
    return bytes(memoryview(buffer)[: pread_into(fd, buffer, position, path)])


def write_all(fd: int, data: Buffer, position: int, path: str | os.PathLike[str] = "") -> None:
    """All of `data` at `position`, or StorageError."""
    check(system.pwrite(fd, data, position), path, "write")


def data_ranges(
    fd: int, start: int, end: int, path: str | os.PathLike[str] = ""
) -> Iterator[tuple[int, int]]:
    """Written ranges between `start` and `end`, as (first byte, end of the range); the gaps are
    holes.

    If the file system cannot report holes, everything counts as written. Raises StorageError.
    """
    while start < end:
        try:
            first = os.lseek(fd, start, os.SEEK_DATA)
            range_end = os.lseek(fd, first, os.SEEK_HOLE)
        except OSError as problem:
            if problem.errno == errno.ENXIO:
                return  # only a hole up to the end of the file
            if problem.errno != errno.EINVAL:
                raise StorageError(
                    "cannot search for holes", errno=problem.errno, path=path
                ) from problem
            first = start
            range_end = end
        if first >= end:
            return
        yield first, min(range_end, end)
        start = range_end


def sync(fd: int, path: str | os.PathLike[str] = "") -> None:
    check(system.sync(fd, False), path, "fsync")


def datasync(fd: int, path: str | os.PathLike[str] = "") -> None:
    check(system.sync(fd, True), path, "fdatasync")


def sync_directory(path: str | os.PathLike[str]) -> None:
    """Sync a directory: names created, renamed or removed in it are on disk afterwards."""
    fd = open_file(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        sync(fd, path)
    finally:
        close(fd)


def truncate(fd: int, size: int, path: str | os.PathLike[str] = "") -> None:
    check(system.truncate(fd, size), path, "truncate")


def allocate(fd: int, size: int, path: str | os.PathLike[str] = "") -> None:
    """Reserve blocks, so that a store into a mapping of the file cannot fail because the disk is
    full.
    """
    check(_repeat_interrupted(system.allocate, fd, size), path, "allocate")


def rename(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    check(
        system.rename(os.fspath(source), os.fspath(target)),
        source,
        f"rename to {os.path.basename(os.fspath(target))}",
    )


def set_damaged_aside(path: str | os.PathLike[str]) -> str:
    """Rename a file that cannot be read, so that it counts as absent; its name now. The caller
    syncs the directory.
    """
    aside = os.fspath(path) + file_names.DAMAGED
    rename(path, aside)
    return os.path.basename(aside)


def link(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    check(system.link(os.fspath(source), os.fspath(target)), target, "link")


def unlink(path: str | os.PathLike[str], missing_ok: bool = False) -> bool:
    """True if the file existed."""
    code = system.unlink(os.fspath(path))
    if missing_ok and system.errno_of(code) == errno.ENOENT:
        return False
    check(code, path, "remove")
    return True


def directory_mode(file_mode: int) -> int:
    """Permissions of a directory whose files have `file_mode`: a read permission includes the
    permission to enter.
    """
    return file_mode | (file_mode & 0o444) >> 2


def mkdir(path: str | os.PathLike[str], mode: int = 0o777, exist_ok: bool = False) -> bool:
    """True if this call created the directory."""
    code = system.mkdir(os.fspath(path), mode)
    if exist_ok and system.errno_of(code) == errno.EEXIST:
        return False
    check(code, path, "make directory")
    return True


def rmdir(path: str | os.PathLike[str]) -> None:
    check(system.rmdir(os.fspath(path)), path, "remove directory")


def facts(fd: int, path: str | os.PathLike[str] = "") -> system.Facts:
    answer = system.facts(fd)
    if isinstance(answer, system.Facts):
        return answer
    return _raise_no_facts(answer, path)


def created_ns(fd: int, path: str | os.PathLike[str] = "") -> int | None:
    """The birth time of an open file, comparable for equality only; None if the file system has
    none. A copy has a later one.
    """
    return check(system.created_ns(fd), path, "stat") or None


def _raise_no_facts(code: int, path: str | os.PathLike[str]) -> NoReturn:
    check(code, path, "stat")
    raise AssertionError(code)


def facts_of(path: str | os.PathLike[str]) -> system.Facts | None:
    """Facts of a file by its name; None if it is absent. Raises StorageError for a name that
    `open_file` would refuse.
    """
    current_facts = lstat(path)
    if current_facts is not None:
        _check_regular(current_facts, errno.EINVAL, path)
    return current_facts


def lstat(path: str | os.PathLike[str]) -> system.Facts | None:
    """The result of lstat, so of a link itself; None if the name does not exist."""
    answer = system.facts_of(os.fspath(path))
    if isinstance(answer, system.Facts):
        return answer
    if system.errno_of(answer) in (errno.ENOENT, errno.ENOTDIR):
        return None
    return _raise_no_facts(answer, path)


def exists(path: str | os.PathLike[str]) -> bool:
    """Whether the name exists, as any kind of file."""
    return lstat(path) is not None


def is_link(path: str | os.PathLike[str]) -> bool:
    """Whether the name itself is a symbolic link."""
    current_facts = lstat(path)
    return current_facts is not None and stat.S_ISLNK(current_facts.mode)


def is_directory(path: str | os.PathLike[str]) -> bool:
    """Whether the name is a directory or a symbolic link to one."""
    current_facts = lstat(path)
    if current_facts is None:
        return False
    if not stat.S_ISLNK(current_facts.mode):
        return stat.S_ISDIR(current_facts.mode)
    try:
        with opened(path, os.O_RDONLY | os.O_DIRECTORY):
            return True
    except StorageError as problem:
        if problem.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return False
        raise


@scope
def _convert_errors(path: str | os.PathLike[str], verb: str) -> Iterator[None]:
    """Convert an OSError of Python's own calls into StorageError."""
    try:
        yield
    except OSError as problem:
        raise StorageError(
            f"cannot {verb}", errno=problem.errno or errno.EIO, path=path
        ) from problem


def listing(path: str | os.PathLike[str]) -> list[str]:
    """Names in a directory, sorted. Raises StorageError."""
    check(system.list_hook(os.fspath(path)), path, "list")
    with _convert_errors(path, "list"):
        return sorted(os.listdir(path))


def directories(path: str | os.PathLike[str]) -> list[str]:
    """Names of the directories in a directory, sorted; links to directories are included. Raises
    StorageError.
    """
    check(system.list_hook(os.fspath(path)), path, "list")
    with _convert_errors(path, "list"), os.scandir(path) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir())


def links(path: str | os.PathLike[str]) -> set[str]:
    """Names of the symbolic links in a directory, read with one listing. Raises StorageError."""
    check(system.list_hook(os.fspath(path)), path, "list")
    with _convert_errors(path, "list"), os.scandir(path) as entries:
        return {entry.name for entry in entries if entry.is_symlink()}


def set_modified(path: str | os.PathLike[str], time_ns: int) -> None:
    """Set the modification time of a file. Raises StorageError."""
    with _convert_errors(path, "set the time of"):
        os.utime(path, ns=(time_ns, time_ns))


def absolute(path: str | os.PathLike[str]) -> Path:
    """The absolute path. Raises StorageError if the current directory was removed."""
    with _convert_errors(path, "find the current directory for"):
        return Path(path).absolute()


def real_path(path: str | os.PathLike[str]) -> str:
    """The absolute path; symbolic links are resolved as far as it exists. Raises StorageError."""
    with _convert_errors(path, "find the current directory for"):
        return os.path.realpath(path)


def check_size(size: int, size_max: int, path: str | os.PathLike[str]) -> int:
    """Check a size before memory is allocated; a sparse file may be larger than its disk. Raises
    CorruptRecordError.
    """
    if size > size_max:
        raise CorruptRecordError(
            "the file is too large for its kind",
            path=path,
            expected=f"at most {size_max} bytes",
            found=size,
        )
    return size


def read_bytes(path: str | os.PathLike[str], size_max: int = WHOLE_BYTES_MAX) -> bytes | None:
    """The whole of a small file; None if it is absent. Raises CorruptRecordError if it has more
    than `size_max` bytes.
    """
    try:
        with opened(path) as fd:
            return pread(fd, check_size(facts(fd, path).size, size_max, path), 0, path)
    except StorageError as problem:
        if problem.errno in (errno.ENOENT, errno.ENOTDIR):
            return None
        raise


def _temporary_of(target: str) -> str:
    return f"{target}.{os.urandom(8).hex()}{TEMPORARY}"


def write_atomically(
    path: str | os.PathLike[str],
    data: bytes,
    mode: int = 0o666,
    *,
    beside: Sequence[str | os.PathLike[str]] = (),
    named: bool = True,
) -> None:
    """Replace a small file: temporary, fsync, rename, fsync of the directory (Kafka's
    CheckpointFile does the same).

    The directories `beside` are on disk before the rename: they are synced at the same time as the
    temporary. With `named` false the caller syncs the directory. One writer at a time: the caller
    holds a lock that covers the file.
    """
    target = os.fspath(path)
    temporary = _temporary_of(target)
    with opened(temporary, EXCLUSIVE, mode) as fd:
        try:
            write_all(fd, data, 0, temporary)
            _sync_together(fd, temporary, beside)
            rename(temporary, target)
        except BaseException:
            with contextlib.suppress(StorageError):  # the next open removes it
                unlink(temporary, missing_ok=True)
            raise
    if named:
        sync_directory(os.path.dirname(target) or os.curdir)


def _sync_together(fd: int, path: str, directories: Sequence[str | os.PathLike[str]]) -> None:
    """Sync a file and directories at the same time: a disk commits concurrent syncs together."""
    if not directories:
        sync(fd, path)
        return
    with contextlib.ExitStack() as stack:
        fds = [fd]
        for directory in directories:
            directory_fd = stack.enter_context(opened(directory, os.O_RDONLY | os.O_DIRECTORY))
            fds.append(directory_fd)
        for code, synced_path in zip(_sync_codes(fds), (path, *directories), strict=True):
            check(code, synced_path, "fsync")


def stage(path: str | os.PathLike[str], data: bytes, mode: int = 0o666) -> tuple[str, int]:
    """The first part of `write_atomically`: a temporary beside the file, and its descriptor, which
    the caller syncs and closes.

    A temporary that is not needed must be removed. `put_in_place` is the other part.
    """
    temporary = _temporary_of(os.fspath(path))
    fd = open_file(temporary, EXCLUSIVE, mode)
    try:
        write_all(fd, data, 0, temporary)
    except BaseException:
        close(fd)
        unlink(temporary, missing_ok=True)
        raise
    return temporary, fd


def put_in_place(temporary: str, path: str) -> bool:
    """Replace a file by a temporary of `stage` that was synced; the name is on disk when this
    returns.

    False if the temporary is not there any more: nothing was replaced then.
    """
    try:
        rename(temporary, path)
    except StorageError as problem:
        if problem.errno == errno.ENOENT:
            return False
        raise
    sync_directory(os.path.dirname(path))
    return True


def sync_all(fds: Sequence[int]) -> list[bool]:
    """Sync files at the same time; whether each is on disk."""
    return [code >= 0 for code in _sync_codes(fds)]


def _sync_codes(fds: Sequence[int]) -> list[int]:
    codes: list[int] = []
    for start in range(0, len(fds), SYNCS_MAX):
        codes.extend(system.sync_all(list(fds[start : start + SYNCS_MAX])))
    return codes


def remove_temporaries(directory: Path, names: Iterable[str]) -> None:
    """Remove the unfinished files of `write_atomically`. REQUIRES: no other process writes files in
    this directory.
    """
    for name in names:
        if file_names.target_of_temporary(name) is not None and not is_directory(directory / name):
            unlink(directory / name, missing_ok=True)


def close_inherited(fd: int) -> None:
    """Close in a forked child, without the fault hooks, which belong to the parent."""
    if fd >= 0:
        with contextlib.suppress(OSError):
            os.close(fd)


def restrict(fd: int, mode: int) -> None:
    """Set reduced permissions; ignored if this process is not allowed to."""
    with contextlib.suppress(OSError):
        os.fchmod(fd, mode)


def deadline_after(seconds: float | None) -> int:
    """A deadline on the boot clock; None means 95 years."""
    if seconds is None:
        seconds = 3_000_000_000.0
    return system.boot_ns() + int(seconds * 1e9)
