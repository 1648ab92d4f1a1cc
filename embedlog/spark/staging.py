"""Files in which tasks leave their rows until the job commits, outside of the log directory.

    <staging>/driver-<machine>-<boot>-<processes>-<pid>-<started>/<who>/b<batch>-t<task>-<chance>.arrow

SPARKSTAGING-1  an attempt writes one file, under a name that nobody else has, and gives it its final name when it is whole
SPARKSTAGING-2  what lies below a driver's name is of use to that driver alone: nothing refers to it when the driver is dead, and
    everybody who sees that may remove it. A driver on another machine, or in another container, is never found to be dead
SPARKSTAGING-3  of a stream, files up to the batch that is committed are of no use; of a job, all of them when it has ended
SPARKSTAGING-4  a file is not on stable storage: behind a power loss there is no driver who would ask for it
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import shutil
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import embedlog

SUFFIX, UNFINISHED = ".arrow", ".tmp"
READABLE_BYTES = 100  # of a name that is its own directory's name; longer ones are given by their digest
UNKNOWN = 0
_DRIVER = re.compile(r"driver-([0-9a-f]+)-([0-9a-f]+)-(\d+)-(\d+)-(\d+)")
_FILE = re.compile(r"b(\d+)-t\d+-[0-9a-f]+\.(?:arrow|tmp)")


# ---- what a task tells -----------------------------------------------------------------------------------------------


@dataclass
class Facts:
    """What rows for one topic ask of it; rows are counted from the task's first."""

    rows: int = 0
    size: int = 0  # bytes
    largest: int = 0  # bytes that a record has at most
    largest_row: int = -1
    partition: int = -1  # the largest number that the column names
    partition_row: int = -1
    keyless_row: int = -1  # the first


@dataclass(frozen=True)
class Staged:
    """What one task has left: nothing, or a file. Travels from the task to who commits."""

    path: str
    size: int
    rows: int
    task: int
    host: str
    query: str = ""  # the stream's id
    batch: int = -1
    topics: dict[str, Facts] = field(default_factory=dict)


# ---- places ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StagingArea:
    """Where one job, or one stream, of one driver stages."""

    staging: str
    driver: str
    who: str

    @property
    def path(self) -> str:
        return os.path.join(self.staging, self.driver, self.who)

    @contextlib.contextmanager
    def file(self, batch: int, task: int) -> Iterator[tuple[Any, str]]:
        """A new file, open, and the name that it has behind the block. Raises StorageError."""
        final = os.path.join(self.path, f"b{max(batch, 0)}-t{task}-{secrets.token_hex(8)}{SUFFIX}")
        unfinished = final.removesuffix(SUFFIX) + UNFINISHED
        try:
            with _made(unfinished) as opened:
                yield opened, final
            os.rename(unfinished, final)
        except OSError as problem:
            _remove(unfinished)
            raise embedlog.StorageError(f"rows cannot be staged: {problem}", path=unfinished) from problem
        except BaseException:
            _remove(unfinished)
            raise

    def clear(self, up_to: int | None = None) -> None:
        """Remove all files of batches up to this one, or all there are; and the directory, if nothing is left."""
        for name in _names(self.path):
            match = _FILE.fullmatch(name)
            if up_to is None or (match is not None and int(match[1]) <= up_to):
                _remove(os.path.join(self.path, name))
        _leave(self.path)


def staging_area(staging: str, who: str, driver: str = "") -> StagingArea:
    """The room of this name, of a driver; without one of that which this process belongs to: only where the driver runs."""
    name = quote(who, safe="")
    if len(name) > READABLE_BYTES or name in (".", ".."):
        name = hashlib.sha256(who.encode()).hexdigest()
    return StagingArea(staging, driver or driver_name(), name)


def discard(paths: Iterable[str]) -> None:
    """Remove these files, and the directories above that are empty then. What is not there is no matter."""
    above = set()
    for path in paths:
        _remove(path)
        above.add(os.path.dirname(path))
    for each in above:
        _leave(each)


def _made(path: str) -> Any:
    """A new file; its directories are made, against somebody who removes empty ones at the same time."""
    for _ in range(10):
        try:
            return open(path, "xb")
        except FileNotFoundError:
            with contextlib.suppress(FileNotFoundError):
                os.makedirs(os.path.dirname(path), exist_ok=True)
    return open(path, "xb")


def _names(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        os.unlink(path)


def _leave(path: str) -> None:
    """Remove a area, its driver's directory and the staging directory, as far as they are empty."""
    for each in (path, os.path.dirname(path), os.path.dirname(os.path.dirname(path))):
        try:
            os.rmdir(each)
        except OSError:  # not empty, or gone: either is as it should be
            return


# ---- drivers ---------------------------------------------------------------------------------------------------------


def driver_name() -> str:
    """The name of the driver that this process belongs to, by its JVM; without one it is nobody's, and nobody finds it dead."""
    return name_of(next((pid for pid in _ancestors(os.getpid()) if _read(f"/proc/{pid}/comm") == "java"), UNKNOWN))


def name_of(pid: int) -> str:
    """A process as a driver."""
    return f"driver-{_machine()}-{_boot()}-{_processes()}-{pid}-{_started(pid) or 0}"


def remove_dead(staging: str) -> list[str]:
    """Remove what drivers have left that are provably dead; their names. What cannot be removed is left to the next one."""
    dead = [name for name in _names(staging) if _is_dead(name)]
    for name in dead:
        shutil.rmtree(os.path.join(staging, name), ignore_errors=True)
    if dead:
        with contextlib.suppress(OSError):
            os.rmdir(staging)
    return dead


def _is_dead(name: str) -> bool:
    match = _DRIVER.fullmatch(name)
    if match is None:
        return False
    machine, boot, processes, pid, started = match.groups()
    if boot != _boot():  # another machine, or this one before it was started anew, if its id tells it from all others
        return machine == _machine() and bool(_read("/etc/machine-id"))
    return processes == _processes() and int(pid) != UNKNOWN and _started(int(pid)) != started


def _ancestors(pid: int) -> Iterator[int]:
    while pid > 0:
        yield pid
        fields = _stat(pid)
        pid = int(fields[1]) if fields else 0


def _stat(pid: int) -> list[str]:
    """The fields of a process behind its name, which may hold anything; empty if there is no such process."""
    return _read(f"/proc/{pid}/stat").rpartition(")")[2].split()


def _started(pid: int) -> str:
    """When a process was started, in ticks since the boot; empty if there is none, or nothing but its exit code is left."""
    fields = _stat(pid)
    return "" if not fields or (fields[0] in "ZX" and len(_names(f"/proc/{pid}/task")) <= 1) else fields[19]


@cache
def _machine() -> str:
    told = f"{_read('/etc/machine-id')} {socket.gethostname()}"
    return hashlib.sha256(told.encode()).hexdigest()[:12]


def _boot() -> str:
    return _read("/proc/sys/kernel/random/boot_id").replace("-", "")[:16]


def _processes() -> str:
    """The number of the space of process ids: in another container the same number is another process."""
    return str(os.stat("/proc/self/ns/pid").st_ino)


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return ""
