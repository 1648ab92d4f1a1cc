"""Lists the processes that have log directories open, with their locks and waits, from the kernel's
information.

- Nothing of a process is changed or stopped, and no file of the directory is opened.
- The list is a sample: a process may end, or take a lock, while it is made.
- Files of other users' processes are readable for root only. A lock that no visible process holds is
  listed without a process id.
- No process waits for a lock in the kernel (LOCK-2). A wait is seen by the futex on which a thread
  sleeps.
"""

from __future__ import annotations

import errno
import os
import pwd
import re
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from embedlog._native import waits
from embedlog.errors import StorageError
from embedlog.storage import file_names, location

PROC = "/proc"

PURPOSES = {
    file_names.BROKER_LOCK: "directory in use",
    file_names.OPEN_LOCK: "open or close",
    file_names.DIRECTORY_LOCK: "topics",
    file_names.HOUSEKEEPER: "housekeeping",
    file_names.SLOTS: "group member or transactional id",
    file_names.LOCK: "append",
    file_names.SYNC_LOCK: "sync",
}
_PAGES = (file_names.PAGE, file_names.CONTROL)
_KINDS = {"READ": "shared", "WRITE": "exclusive"}
_FUTEX = {"x86_64": 202, "aarch64": 98}.get(os.uname().machine, -1)
_FUTEX_WAITV = 449  # on every architecture
_WAITS = (0, 9)  # FUTEX_WAIT, FUTEX_WAIT_BITSET
_OPERATION = 0x7F
_WAITV = struct.Struct("=QQII")  # struct futex_waitv: value, address, flags, reserved
_WAITV_MAX = 128
_LOCK = re.compile(
    r"\b(?:OFDLCK|POSIX|FLOCK) +[A-Z]+ +(READ|WRITE) +-?[0-9]+ ([0-9a-f]+):([0-9a-f]+):([0-9]+) "
    r"([0-9]+) "
)
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) \S+ ([0-9a-f]+) \S+ [0-9]+ +(/.*)")
_DELETED = " (deleted)"


@dataclass(frozen=True)
class LockDescription:
    """One lock: its file, its purpose, "shared" or "exclusive", and the first locked byte (slots
    have one byte each).
    """

    path: str
    purpose: str
    kind: str
    position: int = 0


@dataclass(frozen=True)
class WaitDescription:
    """One wait: the control page of the word on which a thread sleeps, and the event that ends
    it.
    """

    path: str
    purpose: str


@dataclass(frozen=True)
class ProcessDescription:
    """One process that has a log directory open.

    `pid`: None if the process is not visible; then only its locks are known. `mode`: "write",
    "read", or "broker", which holds the directory alone. `waits`: None if the kernel does not
    permit to see them. `open_files`: descriptors and mappings.
    """

    pid: int | None
    user: str | None
    command: str
    mode: str
    locks: tuple[LockDescription, ...]
    waits: tuple[WaitDescription, ...] | None
    open_files: int


class _Mapping(NamedTuple):
    start: int
    end: int
    position: int
    path: str


def processes(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
) -> list[ProcessDescription]:
    """The processes of this machine that have a log directory open, or one of several directories
    of a set.

    This process is listed, too. Processes in other containers are not. An absent directory of
    several has no processes. Raises ForeignDirectoryError, and StorageError for a single directory
    that is absent.
    """
    paths = path if isinstance(path, Sequence) and not isinstance(path, str | bytes) else [path]
    directories = []
    for path_of_one in paths:
        directory = _find_directory(path_of_one, is_required=len(paths) == 1)
        if directory:
            directories.append(directory)
    descriptions = []
    visible_locks: Counter[LockDescription] = Counter()
    for pid in sorted(int(name) for name in _list_names(PROC) if name.isdecimal()):
        description = _describe(pid, directories)
        if description is not None:
            descriptions.append(description)
            visible_locks.update(description.locks)
    other_locks = Counter(_list_locks(directories)) - visible_locks
    if other_locks:
        locks = tuple(other_locks.elements())
        descriptions.append(
            ProcessDescription(
                pid=None,
                user=None,
                command="",
                mode=_mode_of(locks),
                locks=locks,
                waits=None,
                open_files=0,
            )
        )
    return descriptions


def _find_directory(path: str | os.PathLike[str], *, is_required: bool) -> str:
    """The directory without links; "" if it is absent, as one of a set may be."""
    directory = location.check_path(path)
    try:
        location.enter(directory, read_only=True, create=False, mode=0)
    except StorageError as error:
        if is_required or error.errno != errno.ENOENT:
            raise
        return ""
    return os.path.realpath(directory)


def _describe(pid: int, directories: list[str]) -> ProcessDescription | None:
    """One process; None if it has no file of the directories open, or is not visible."""
    targets: dict[str, str] = {}  # the path of the open file, by descriptor
    for fd in _list_names(f"{PROC}/{pid}/fd"):
        target = _path_within(_read_link(f"{PROC}/{pid}/fd/{fd}"), directories)
        if target:
            targets[fd] = target
    mappings = list(_read_mappings(pid, directories))
    if not targets and not mappings:
        return None
    locks = []
    for fd, target in targets.items():
        name = os.path.basename(target)
        if name not in PURPOSES:
            continue
        for kind, _, _, _, start in _LOCK.findall(_read_text(f"{PROC}/{pid}/fdinfo/{fd}")):
            locks.append(LockDescription(target, PURPOSES[name], _KINDS[kind], int(start)))
    return ProcessDescription(
        pid=pid,
        user=_user_of(pid),
        command=_command_of(pid),
        mode=_mode_of(locks),
        locks=tuple(locks),
        waits=_find_waits(pid, mappings),
        open_files=len(targets) + len(mappings),
    )


def _mode_of(locks: Iterable[LockDescription]) -> str:
    kinds = {lock.kind for lock in locks if os.path.basename(lock.path) == file_names.BROKER_LOCK}
    if "exclusive" in kinds:
        return "broker"
    return "write" if kinds else "read"


def _user_of(pid: int) -> str | None:
    try:
        number = os.stat(f"{PROC}/{pid}").st_uid
    except OSError:
        return None
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _command_of(pid: int) -> str:
    """The command line, or the name of the process if it has none."""
    words = _read_text(f"{PROC}/{pid}/cmdline").split("\0")
    command = " ".join(word for word in words if word)
    return command or _read_text(f"{PROC}/{pid}/comm").strip()


# ---- waits ---------------------------------------------------------------------------------------


def _read_mappings(pid: int, directories: list[str]) -> Iterator[_Mapping]:
    for line in _read_text(f"{PROC}/{pid}/maps").splitlines():
        match = _MAPPING.fullmatch(line)
        if match is None:
            continue
        path = _path_within(match[4], directories)
        if path:
            yield _Mapping(int(match[1], 16), int(match[2], 16), int(match[3], 16), path)


def _find_waits(pid: int, mappings: list[_Mapping]) -> tuple[WaitDescription, ...] | None:
    """The waits of all threads, each once; None if they are not visible."""
    waits_in_order: dict[WaitDescription, None] = {}
    is_visible = False
    for thread in _list_names(f"{PROC}/{pid}/task"):
        text = _read_text(f"{PROC}/{pid}/task/{thread}/syscall")
        if text:
            is_visible = True
        for address in _find_futexes(pid, text):
            for mapping in mappings:
                name = os.path.basename(mapping.path)
                if name in _PAGES and mapping.start <= address < mapping.end:
                    purpose = _purpose_of(name, address - mapping.start + mapping.position)
                    waits_in_order[WaitDescription(mapping.path, purpose)] = None
    return tuple(waits_in_order) if is_visible else None


def _purpose_of(name: str, position: int) -> str:
    word = waits.page_word_kind(position)
    if word == waits.LOCK_WORD:
        return "topics" if name == file_names.CONTROL else "append"
    return {waits.DATA_WORD: "records", waits.NOTICE_WORD: "group"}.get(word, "another change")


def _find_futexes(pid: int, text: str) -> list[int]:
    """The addresses of the words on which a thread sleeps, by the line of its system call."""
    try:
        number, *arguments = (int(word, 0) for word in text.split())
    except ValueError:  # "running", or a thread that has ended
        return []
    if number == _FUTEX and len(arguments) > 1 and arguments[1] & _OPERATION in _WAITS:
        return arguments[:1]
    if number == _FUTEX_WAITV and len(arguments) > 1:
        return _read_addresses(pid, arguments[0], min(arguments[1], _WAITV_MAX))
    return []


def _read_addresses(pid: int, start: int, count: int) -> list[int]:
    """The addresses in an array of the process."""
    try:
        with open(f"{PROC}/{pid}/mem", "rb", buffering=0) as file:
            data = os.pread(file.fileno(), count * _WAITV.size, start)
    except (OSError, OverflowError):
        return []
    whole = len(data) // _WAITV.size * _WAITV.size
    return [address for _, address, _, _ in _WAITV.iter_unpack(data[:whole])]


# ---- locks of processes that are not visible ------------------------------------------------------


def _list_locks(directories: list[str]) -> list[LockDescription]:
    """The locks on the lock files of the directories, whichever process holds them."""
    files: dict[tuple[int, int, int], str] = {}  # by the numbers of device and inode
    for path in _lock_files_in(directories):
        try:
            status = os.stat(path)
        except OSError:
            continue
        files[os.major(status.st_dev), os.minor(status.st_dev), status.st_ino] = path
    locks = []
    for kind, major, minor, inode, start in _LOCK.findall(_read_text(f"{PROC}/locks")):
        path = files.get((int(major, 16), int(minor, 16), int(inode)), "")
        if path:
            purpose = PURPOSES[os.path.basename(path)]
            locks.append(LockDescription(path, purpose, _KINDS[kind], int(start)))
    return locks


def _lock_files_in(directories: list[str]) -> Iterator[str]:
    """The paths that lock files of the directories and of their partitions have."""
    for directory in directories:
        for name in PURPOSES:
            yield f"{directory}/{name}"
        for partition in _list_names(directory):
            if file_names.parse_partition_name(partition):
                yield f"{directory}/{partition}/{file_names.LOCK}"
                yield f"{directory}/{partition}/{file_names.SYNC_LOCK}"


# ---- files of the kernel -------------------------------------------------------------------------


def _path_within(target: str, directories: list[str]) -> str:
    """The path, if it is inside of one of the directories; otherwise ""."""
    path = target.removesuffix(_DELETED)
    if any(path.startswith(f"{directory}/") for directory in directories):
        return path
    return ""


def _list_names(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []


def _read_link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _read_text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
