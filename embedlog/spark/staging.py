"""Manages the files in which tasks stage their rows until the job commits, outside of the log
directory.

    <staging>/driver-<machine>-<boot>-<processes>-<pid>-<started>/<writer>/[<owner>-]b<batch>-t<task>-<chance>.arrow

- Each attempt writes one file with a unique name and renames it to its final name when it is
  complete.
- Files below a driver's name serve that driver only. After its death no process refers to them, and
  any process that detects the death may remove them. Nobody can judge a driver on another machine
  or in another container: its files go when a later driver commits their batch, or `AGE_S` after
  the last change.
- The owner is the stream, or the transactional id of a job. Its files up to the committed batch are
  obsolete, whichever driver they belong to. The files of a job are obsolete when it has ended.
- A file is not synced: after a power loss no driver is left that would read it.
- The driver makes the directories, for one job or one batch of a stream, so that it can remove
  files of tasks that run as another user. The directories above have group and mode of the log
  directory: who may write the log may stage. Anybody can make a file in the directory of a writer,
  as its tasks may be anybody; without the right to write the log nobody can list it, so that the
  names, which are random, are known to the writer only.
- Removing reports problems and raises none.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import secrets
import shutil
import socket
import stat
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import embedlog

SUFFIX = ".arrow"
UNFINISHED = ".tmp"
# of a name that is used as directory name; a longer one is replaced by its digest
READABLE_BYTES = 100
UNKNOWN = 0
AGE_S = 7 * 86_400  # as long as the log remembers an unused transactional id
# the id of the first pid namespace of every Linux: its processes see all others
INITIAL_PROCESSES = "4026531836"
_DRIVER = re.compile(r"driver-([0-9a-f]+)-([0-9a-f]+)-(\d+)-(\d+)-(\d+)(?:\.[0-9a-f]+)?")
_FILE = re.compile(r"(?:(.+)-)?b(\d+)-t\d+-[0-9a-f]+\.(?:arrow|tmp)")


# ---- reports of tasks ------------------------------------------------------------------------------------------------


@dataclass
class TopicRows:
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
    area: str = ""  # the directory of the writer
    topics: dict[str, TopicRows] = field(default_factory=dict)


# ---- files and directories -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StagingPlace:
    """A staging directory, and the log directory that decides who may use it."""

    staging: str
    log: str


@dataclass(frozen=True)
class StagingArea:
    """The directory of one job, or of one batch of a stream."""

    staging: str
    driver: str
    writer: str

    @property
    def path(self) -> str:
        return os.path.join(self.staging, self.driver, self.writer)

    @contextlib.contextmanager
    def file(self, batch: int, task: int, owner: str = "") -> Iterator[tuple[Any, str]]:
        """A new open file and the name that it has after the block. Raises StorageError."""
        whose = f"{_file_name(owner)}-" if owner else ""
        final = os.path.join(
            self.path, f"{whose}b{max(batch, 0)}-t{task}-{secrets.token_hex(8)}{SUFFIX}"
        )
        unfinished = final.removesuffix(SUFFIX) + UNFINISHED
        try:
            with _create_file(unfinished) as opened:
                if os.stat(self.path).st_uid != os.geteuid():
                    # the driver reads it, whatever the umask of the task is
                    os.fchmod(opened.fileno(), 0o644)
                yield opened, final
            os.rename(unfinished, final)
        except OSError as problem:
            _remove(unfinished)
            raise embedlog.StorageError(
                f"rows cannot be staged: {problem}", path=unfinished
            ) from problem
        except BaseException:
            _remove(unfinished)
            raise

    def clear(self) -> list[OSError]:
        """Remove the files, and the directory; what could not be removed."""
        return discard([self.path])


def make_area(places: Iterable[StagingPlace], writer: str) -> StagingArea:
    """The new directory of a writer, in the first place that can be written. Called by the driver.
    Raises StorageError.
    """
    problems = []
    for candidate in places:
        area = StagingArea(candidate.staging, driver_name(), _file_name(writer))
        try:
            _make_area(area, candidate.log)
        except OSError as problem:
            problems.append(problem)
        else:
            return area
    raise embedlog.StorageError(
        "rows cannot be staged: "
        f"{'; '.join(map(str, problems)) or 'no log directory is available'}",
        path=None if not problems else problems[0].filename,
    ) from (problems[0] if problems else None)


def discard(areas: Iterable[str]) -> list[OSError]:
    """Remove these directories of writers, and those above that are empty then; what could not be
    removed.
    """
    problems = []
    for area in dict.fromkeys(areas):
        try:
            names = os.listdir(area)
        except FileNotFoundError:
            names = []
        except OSError as problem:
            problems.append(problem)
            continue
        failures = [_remove(os.path.join(area, name)) for name in names]
        problems += [failure for failure in failures if failure is not None]
        _remove_if_empty(area)
    return problems


def remove_written(staging: str, owner: str, batch: int) -> None:
    """Remove the files of this owner up to this batch, of all drivers; those that cannot be removed
    stay.

    A directory serves one batch. Without a file it may be that of a batch of another owner, which
    begins now.
    """
    name_of_owner = _file_name(owner)
    for driver in _names(staging):
        for writer in _names(os.path.join(staging, driver)):
            area = os.path.join(staging, driver, writer)
            files = [match for match in map(_FILE.fullmatch, _names(area)) if match is not None]
            written = [
                match[0] for match in files if match[1] == name_of_owner and int(match[2]) <= batch
            ]
            for name in written:
                _remove(os.path.join(area, name))
            if written:
                _remove_if_empty(area)


def _file_name(text: str) -> str:
    """The text as the name of a file, or as a part of one."""
    name = quote(text, safe="")
    if len(name) > READABLE_BYTES or name in ("", ".", ".."):
        return hashlib.sha256(text.encode()).hexdigest()
    return name


def _create_file(path: str) -> Any:
    """A new file. The directory exists, unless its job has ended: then it belongs to what a dead
    driver leaves.
    """
    try:
        return open(path, "xb")
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return open(path, "xb")


def _make_area(area: StagingArea, log: str) -> None:
    """Make the directories, even while another process removes empty ones."""
    model = os.stat(log)
    shared = stat.S_IMODE(model.st_mode) | 0o711
    for _ in range(10):
        with contextlib.suppress(FileNotFoundError):
            os.makedirs(os.path.dirname(area.staging), exist_ok=True)
            _make_directory(area.staging, shared, model.st_gid)
            _make_directory(os.path.dirname(area.path), shared, model.st_gid)
            _make_directory(area.path, _of_a_writer(shared), model.st_gid)
            return
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), area.path)


def _of_a_writer(shared: int) -> int:
    """A mode with which everybody can make files, and only those can list them who may write in the
    directory above.
    """
    mode = shared | 0o033
    for read, write in ((stat.S_IRGRP, stat.S_IWGRP), (stat.S_IROTH, stat.S_IWOTH)):
        if not shared & write:
            mode &= ~read
    return mode


def _make_directory(path: str, mode: int, group: int) -> None:
    """Make a directory that nobody sees with another mode or group."""
    if os.path.isdir(path):
        return
    temporary = f"{path}.{secrets.token_hex(4)}"
    os.mkdir(temporary, 0o700)
    try:
        os.chown(temporary, -1, group)
    except PermissionError:  # not a member: this process's own group gets no rights
        mode &= ~(stat.S_IRGRP | stat.S_IWGRP | stat.S_ISGID)
    os.chmod(temporary, mode)
    try:
        os.rename(temporary, path)
    except OSError as problem:
        os.rmdir(temporary)
        # else another process was faster, and may have removed it since
        if problem.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise


def _names(path: str) -> list[str]:
    """The names in a directory; none if it cannot be listed."""
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def _remove(path: str) -> OSError | None:
    """Remove a file; why it could not be removed."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return None
    except OSError as problem:
        return problem
    return None


def _remove_if_empty(path: str) -> None:
    """Remove an area, its driver's directory and the staging directory, as far as they are
    empty.
    """
    for directory in (path, os.path.dirname(path), os.path.dirname(os.path.dirname(path))):
        try:
            os.rmdir(directory)
        except OSError:  # not empty, or removed by another process: both are correct
            return


# ---- drivers ---------------------------------------------------------------------------------------------------------


def driver_name() -> str:
    """The name of this process's driver, identified by its JVM; without a JVM it is never
    considered dead.
    """
    return name_of(
        next(
            (pid for pid in _ancestors(os.getpid()) if _read(f"/proc/{pid}/comm") == "java"),
            UNKNOWN,
        )
    )


def name_of(pid: int) -> str:
    """The driver name of a process."""
    return f"driver-{_machine()}-{_boot()}-{_processes()}-{pid}-{_start_time_of(pid) or 0}"


def remove_dead(staging: str) -> list[str]:
    """Remove the files of drivers that have ended, and old ones of drivers that cannot be judged;
    the names of the former.

    Files that cannot be removed stay.
    """
    dead = []
    for name in _names(staging):
        if _DRIVER.fullmatch(name) is None:
            continue
        path = os.path.join(staging, name)
        alive = _is_alive(name)
        if alive is False:
            dead.append(name)
            shutil.rmtree(path, ignore_errors=True)
        elif alive is None:
            _remove_old(path)
    if dead:
        with contextlib.suppress(OSError):
            os.rmdir(staging)
    return dead


def _remove_old(driver: str) -> None:
    """Remove what has not changed for `AGE_S` in the directory of a driver."""
    oldest = time.time() - AGE_S
    for area in _names(driver):
        path = os.path.join(driver, area)
        try:
            changed = [os.lstat(os.path.join(path, name)).st_mtime for name in ("", *_names(path))]
        except OSError:  # removed meanwhile
            continue
        if max(changed) < oldest:
            discard([path])


def _is_alive(driver: str) -> bool | None:
    """Whether a driver runs; None if this process cannot know that."""
    match = _DRIVER.fullmatch(driver)
    if match is None:
        return None
    machine, boot, processes, pid, started = match.groups()
    if boot != _boot():  # another machine, or this one before a reboot if its id is unique
        return False if machine == _machine() and _read("/etc/machine-id") else None
    if int(pid) == UNKNOWN:
        return None
    if processes == _processes():
        return True if _start_time_of(int(pid)) == started else _unless_hidden()
    if _processes() != INITIAL_PROCESSES:
        return None
    return (
        True
        if any(map(partial(_is_in_a_container, pid, started), _names("/proc")))
        else _unless_hidden()
    )


def _unless_hidden() -> bool | None:
    """Of a process that was not found: not alive, unless those of other users are hidden (the
    option hidepid of proc).
    """
    return False if _read("/proc/1/stat") else None


def _is_in_a_container(pid: str, started: str, process: str) -> bool:
    """Whether this process has, in a pid namespace of its own, this number, and this start."""
    if not process.isdecimal() or _start_time_of(int(process)) != started:
        return False
    numbers = re.search(r"^NSpid:(.*)$", _read(f"/proc/{process}/status"), re.MULTILINE)
    return numbers is None or numbers[1].split()[-1] == pid


def _ancestors(pid: int) -> Iterator[int]:
    while pid > 0:
        yield pid
        fields = _stat(pid)
        pid = int(fields[1]) if fields else 0


def _stat(pid: int) -> list[str]:
    """The fields of a process after its name, which may contain any character; empty if there is no
    such process.
    """
    return _read(f"/proc/{pid}/stat").rpartition(")")[2].split()


def _start_time_of(pid: int) -> str:
    """Start time of a process in ticks since the boot; empty if there is none or it is a zombie."""
    fields = _stat(pid)
    if not fields:
        return ""
    if fields[0] in "ZX" and len(_names(f"/proc/{pid}/task")) <= 1:
        return ""
    return fields[19]


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
