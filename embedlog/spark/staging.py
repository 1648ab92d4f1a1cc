"""Manages the files in which tasks stage their rows until the job commits, outside of the log directory.

    <staging>/driver-<machine>-<boot>-<processes>-<pid>-<started>/<write>/b<batch>-t<task>-<chance>.arrow

SPARKSTAGING-1  each attempt writes one file with a unique name and renames it to its final name when it is complete
SPARKSTAGING-2  files below a driver's name serve that driver only. After its death no process refers to them, and any process
    that detects the death may remove them. A driver on another machine or in another container is never considered dead
SPARKSTAGING-3  a stream's files up to the committed batch are obsolete; a job's files are obsolete when it has ended
SPARKSTAGING-4  a file is not synced: after a power loss no driver is left that would read it
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
READABLE_BYTES = 100  # of a name that is used as directory name; a longer one is replaced by its digest
UNKNOWN = 0
_DRIVER = re.compile(r"driver-([0-9a-f]+)-([0-9a-f]+)-(\d+)-(\d+)-(\d+)")
_FILE = re.compile(r"b(\d+)-t\d+-[0-9a-f]+\.(?:arrow|tmp)")


# ---- reports of tasks ------------------------------------------------------------------------------------------------


@dataclass
class Facts:
    """Limits that the rows for one topic require; rows are counted from the task's first."""

    rows: int = 0
    size: int = 0  # bytes
    largest: int = 0  # upper bound of a record's bytes
    largest_row: int = -1
    partition: int = -1  # the largest partition number in the column
    partition_row: int = -1
    keyless_row: int = -1  # the first one without a key


@dataclass(frozen=True)
class Staged:
    """The report of one task to the committing process: its staged file, if any."""

    path: str
    size: int
    rows: int
    task: int
    host: str
    query: str = ""  # the stream's id
    batch: int = -1
    topics: dict[str, Facts] = field(default_factory=dict)


# ---- files and directories -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StagingArea:
    """The directory of one job or one stream of one driver."""

    staging: str
    driver: str
    writer: str

    @property
    def path(self) -> str:
        return os.path.join(self.staging, self.driver, self.writer)

    @contextlib.contextmanager
    def file(self, batch: int, task: int) -> Iterator[tuple[Any, str]]:
        """A new open file and the name that it has after the block. Raises StorageError."""
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
        """Remove the files of batches up to this one, or all files; then the directory if it is empty."""
        for name in _names(self.path):
            match = _FILE.fullmatch(name)
            if up_to is None or (match is not None and int(match[1]) <= up_to):
                _remove(os.path.join(self.path, name))
        _leave(self.path)


def staging_area(staging: str, writer: str, driver: str = "") -> StagingArea:
    """The area of this name of a driver; the default is the driver of this process, and valid only in the driver."""
    name = quote(writer, safe="")
    if len(name) > READABLE_BYTES or name in (".", ".."):
        name = hashlib.sha256(writer.encode()).hexdigest()
    return StagingArea(staging, driver or driver_name(), name)


def discard(paths: Iterable[str]) -> None:
    """Remove these files, and their directories if they are empty then. Missing files are ignored."""
    above = set()
    for path in paths:
        _remove(path)
        above.add(os.path.dirname(path))
    for each in above:
        _leave(each)


def _made(path: str) -> Any:
    """A new file; creates its directories, even while another process removes empty ones."""
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
    """Remove an area, its driver's directory and the staging directory, as far as they are empty."""
    for each in (path, os.path.dirname(path), os.path.dirname(os.path.dirname(path))):
        try:
            os.rmdir(each)
        except OSError:  # not empty, or removed by another process: both are correct
            return


# ---- drivers ---------------------------------------------------------------------------------------------------------


def driver_name() -> str:
    """The name of this process's driver, identified by its JVM; without a JVM it is never considered dead."""
    return name_of(next((pid for pid in _ancestors(os.getpid()) if _read(f"/proc/{pid}/comm") == "java"), UNKNOWN))


def name_of(pid: int) -> str:
    """The driver name of a process."""
    return f"driver-{_machine()}-{_boot()}-{_processes()}-{pid}-{_started(pid) or 0}"


def remove_dead(staging: str) -> list[str]:
    """Remove the files of drivers that have provably ended; return their names. Files that cannot be removed stay."""
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
    if boot != _boot():  # another machine, or this one before a reboot if its id is unique
        return machine == _machine() and bool(_read("/etc/machine-id"))
    return processes == _processes() and int(pid) != UNKNOWN and _started(int(pid)) != started


def _ancestors(pid: int) -> Iterator[int]:
    while pid > 0:
        yield pid
        fields = _stat(pid)
        pid = int(fields[1]) if fields else 0


def _stat(pid: int) -> list[str]:
    """The fields of a process after its name, which may contain any character; empty if there is no such process."""
    return _read(f"/proc/{pid}/stat").rpartition(")")[2].split()


def _started(pid: int) -> str:
    """Start time of a process in ticks since the boot; empty if there is none or it is a zombie."""
    fields = _stat(pid)
    return "" if not fields or (fields[0] in "ZX" and len(_names(f"/proc/{pid}/task")) <= 1) else fields[19]


@cache
def _machine() -> str:
    machine = f"{_read('/etc/machine-id')} {socket.gethostname()}"
    return hashlib.sha256(machine.encode()).hexdigest()[:12]


def _boot() -> str:
    return _read("/proc/sys/kernel/random/boot_id").replace("-", "")[:16]


def _processes() -> str:
    """The id of the pid namespace: the same pid is another process in another container."""
    return str(os.stat("/proc/self/ns/pid").st_ino)


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return ""
