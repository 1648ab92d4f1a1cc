"""Lists the processes that have log directories open, with their locks and waits, from the kernel's
information.

PROCESSLIST-1  nothing of a process is changed or stopped, and no file of the directory is opened
PROCESSLIST-2  the list is a sample: a process may end, or take a lock, while it is made
PROCESSLIST-3  files of other users' processes are readable for root only. A lock that no visible
    process holds is listed without a process id
PROCESSLIST-4  no process waits for a lock in the kernel (LOCK-2). A wait is seen by the futex on
    which a thread sleeps
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
    given = path if isinstance(path, Sequence) and not isinstance(path, str | bytes) else [path]
    places = [place for each in given if (place := _place(each, required=len(given) == 1))]
    pids = sorted(int(name) for name in _names(PROC) if name.isdecimal())
    found = [each for each in (_process(pid, places) for pid in pids) if each is not None]
    hidden = list(
        (
            Counter(_all_locks(places)) - Counter(lock for each in found for lock in each.locks)
        ).elements()
    )
    if hidden:
        found.append(ProcessDescription(None, None, "", _mode(hidden), tuple(hidden), None, 0))
    return found


def _place(path: str | os.PathLike[str], *, required: bool) -> str:
    """The directory without links; "" if it is absent, as one of a set may be."""
    place = location.checked(path)
    try:
        location.enter(place, read_only=True, create=False, mode=0)
    except StorageError as error:
        if required or error.errno != errno.ENOENT:
            raise
        return ""
    return os.path.realpath(place)


def _process(pid: int, places: list[str]) -> ProcessDescription | None:
    """One process; None if it has no file of the directories open, or is not visible."""
    descriptors = [
        (fd, target)
        for fd in _names(f"{PROC}/{pid}/fd")
        if (target := _within(_link(f"{PROC}/{pid}/fd/{fd}"), places))
    ]
    mappings = list(_mappings(pid, places))
    if not descriptors and not mappings:
        return None
    locks = [
        LockDescription(target, PURPOSES[name], _KINDS[kind], int(start))
        for fd, target in descriptors
        if (name := os.path.basename(target)) in PURPOSES
        for kind, _, _, _, start in _LOCK.findall(_text(f"{PROC}/{pid}/fdinfo/{fd}"))
    ]
    return ProcessDescription(
        pid,
        _user(pid),
        _command(pid),
        _mode(locks),
        tuple(locks),
        _waits(pid, mappings),
        len(descriptors) + len(mappings),
    )


def _mode(locks: Iterable[LockDescription]) -> str:
    kinds = {lock.kind for lock in locks if os.path.basename(lock.path) == file_names.BROKER_LOCK}
    return "broker" if "exclusive" in kinds else "write" if kinds else "read"


def _user(pid: int) -> str | None:
    try:
        number = os.stat(f"{PROC}/{pid}").st_uid
    except OSError:
        return None
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _command(pid: int) -> str:
    """The command line, or the name of the process if it has none."""
    words = _text(f"{PROC}/{pid}/cmdline").split("\0")
    return " ".join(word for word in words if word) or _text(f"{PROC}/{pid}/comm").strip()


# ---- waits ---------------------------------------------------------------------------------------


def _mappings(pid: int, places: list[str]) -> Iterator[_Mapping]:
    for line in _text(f"{PROC}/{pid}/maps").splitlines():
        match = _MAPPING.fullmatch(line)
        if match and (path := _within(match[4], places)):
            yield _Mapping(int(match[1], 16), int(match[2], 16), int(match[3], 16), path)


def _waits(pid: int, mappings: list[_Mapping]) -> tuple[WaitDescription, ...] | None:
    """The waits of all threads, each once; None if they are not visible."""
    seen: dict[WaitDescription, None] = {}
    visible = False
    for thread in _names(f"{PROC}/{pid}/task"):
        text = _text(f"{PROC}/{pid}/task/{thread}/syscall")
        visible = visible or bool(text)
        for address in _sleeps_on(pid, text):
            for each in mappings:
                name = os.path.basename(each.path)
                if name in _PAGES and each.start <= address < each.end:
                    purpose = _purpose(name, address - each.start + each.position)
                    seen[WaitDescription(each.path, purpose)] = None
    return tuple(seen) if visible else None


def _purpose(name: str, position: int) -> str:
    word = waits.page_word_kind(position)
    if word == waits.LOCK_WORD:
        return "topics" if name == file_names.CONTROL else "append"
    return {waits.DATA_WORD: "records", waits.NOTICE_WORD: "group"}.get(word, "another change")


def _sleeps_on(pid: int, text: str) -> list[int]:
    """The addresses of the words on which a thread sleeps, by the line of its system call."""
    try:
        number, *arguments = (int(word, 0) for word in text.split())
    except ValueError:  # "running", or a thread that has ended
        return []
    if number == _FUTEX and len(arguments) > 1 and arguments[1] & _OPERATION in _WAITS:
        return arguments[:1]
    if number == _FUTEX_WAITV and len(arguments) > 1:
        return _words(pid, arguments[0], min(arguments[1], _WAITV_MAX))
    return []


def _words(pid: int, start: int, count: int) -> list[int]:
    """The addresses in an array of the process."""
    try:
        with open(f"{PROC}/{pid}/mem", "rb", buffering=0) as file:
            data = os.pread(file.fileno(), count * _WAITV.size, start)
    except (OSError, OverflowError):
        return []
    whole = len(data) // _WAITV.size * _WAITV.size
    return [address for _, address, _, _ in _WAITV.iter_unpack(data[:whole])]


# ---- locks of processes that are not visible ------------------------------------------------------


def _all_locks(places: list[str]) -> list[LockDescription]:
    """The locks on the lock files of the directories, whichever process holds them."""
    files: dict[tuple[int, int, int], str] = {}
    for place in places:
        parts = (name for name in _names(place) if file_names.parse_partition_name(name))
        inner = (
            f"{place}/{part}/{name}"
            for part in parts
            for name in (file_names.LOCK, file_names.SYNC_LOCK)
        )
        for path in (*(f"{place}/{name}" for name in PURPOSES), *inner):
            try:
                status = os.stat(path)
            except OSError:
                continue
            files[os.major(status.st_dev), os.minor(status.st_dev), status.st_ino] = path
    found = []
    for kind, major, minor, inode, start in _LOCK.findall(_text(f"{PROC}/locks")):
        path = files.get((int(major, 16), int(minor, 16), int(inode)), "")
        if path:
            found.append(
                LockDescription(path, PURPOSES[os.path.basename(path)], _KINDS[kind], int(start))
            )
    return found


# ---- files of the kernel -------------------------------------------------------------------------


def _within(target: str, places: list[str]) -> str:
    """The path, if it is inside of one of the directories; otherwise ""."""
    plain = target.removesuffix(_DELETED)
    return plain if any(plain.startswith(f"{place}/") for place in places) else ""


def _names(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
