"""Finds the processes that hold a lock, from the kernel's information, for messages only: no
decision depends on it.

LOCKHOLDER-1  an OFD lock names no process, but /proc/PID/fdinfo lists the locks of each descriptor
    (Linux 4.1)
LOCKHOLDER-2  processes of another user are not visible without privileges, and a process may end
    during the search: both give "unknown"
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from embedlog.errors import DirectoryInUseError

_LOCK = r"^lock:.*\bOFDLCK\b.*:([0-9]+) [0-9]+ (?:[0-9]+|EOF)$"  # of a text with several lines


def held_by(path: str | os.PathLike[str], *, own: int = 0) -> str:
    """The processes that hold an OFD lock on the file, as text for a message; "" if unknown.

    `own`: the locks of the caller itself. This process is named if it holds more, by another
    opening.
    """
    try:
        inode = os.stat(path).st_ino
    except OSError:
        return ""
    this = os.getpid()
    seen = _counts(os.path.basename(os.fspath(path)), inode)
    pids = sorted(pid for pid, count in seen if pid != this or count > own)
    mark = " (this process has it open a second time)" if own else " (this process)"
    named = ", ".join(f"pid {pid}{mark if pid == this else ''}" for pid in pids[:3])
    more = f" and {len(pids) - 3} more" if len(pids) > 3 else ""
    return f"{named}{more} on {os.uname().nodename}" if pids else ""


def in_use(message: str, path: Path, *, own: int = 0) -> DirectoryInUseError:
    """The error of a directory whose lock file is held, with the processes that hold it; `own` as
    in `held_by`.
    """
    return DirectoryInUseError(
        message, path=path, found=held_by(path, own=own) or "a process that is not visible"
    )


def _counts(name: str, inode: int) -> Iterator[tuple[int, int]]:
    """Each process that holds a lock, with the number of its descriptors that do."""
    for pid in filter(str.isdecimal, _listing("/proc")):
        count = sum(
            _holds(pid, fd, inode) for fd in _listing(f"/proc/{pid}/fd") if _leads_to(pid, fd, name)
        )
        if count:
            yield int(pid), count


def _listing(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []


def _leads_to(pid: str, fd: str, name: str) -> bool:
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/fd/{fd}")) == name
    except OSError:
        return False


def _holds(pid: str, fd: str, inode: int) -> bool:
    try:
        with open(f"/proc/{pid}/fdinfo/{fd}", encoding="ascii", errors="replace") as file:
            return any(
                int(found) == inode for found in re.findall(_LOCK, file.read(), re.MULTILINE)
            )
    except OSError:
        return False
