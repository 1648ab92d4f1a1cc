"""Finds the processes that hold a lock, from the kernel's information, for messages only: no
decision depends on it.

- An OFD lock names no process, but /proc/PID/fdinfo lists the locks of each descriptor (Linux 4.1).
- Processes of another user are not visible without privileges, and a process may end during the
  search: both give "unknown".
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from embedlog.errors import DirectoryInUseError

_LOCK = r"^lock:.*\bOFDLCK\b.*:([0-9]+) [0-9]+ (?:[0-9]+|EOF)$"  # of a text with several lines


def name_holders(path: str | os.PathLike[str], *, own: int = 0) -> str:
    """The processes that hold an OFD lock on the file, as text for a message; "" if unknown.

    `own`: the locks of the caller itself. This process is named if it holds more, by another
    opening.
    """
    try:
        inode = os.stat(path).st_ino
    except OSError:
        return ""
    own_pid = os.getpid()
    pids = []
    for pid, count in _count_locks(os.path.basename(os.fspath(path)), inode):
        if pid != own_pid or count > own:
            pids.append(pid)
    if not pids:
        return ""
    pids.sort()
    own_mark = " (this process has it open a second time)" if own else " (this process)"
    text = ", ".join(f"pid {pid}{own_mark if pid == own_pid else ''}" for pid in pids[:3])
    if len(pids) > 3:
        text += f" and {len(pids) - 3} more"
    return f"{text} on {os.uname().nodename}"


def in_use_error(message: str, path: Path, *, own: int = 0) -> DirectoryInUseError:
    """The error of a directory whose lock file is held, with the processes that hold it; `own` as
    in `name_holders`.
    """
    holders = name_holders(path, own=own) or "a process that is not visible"
    return DirectoryInUseError(message, path=path, found=holders)


def _count_locks(name: str, inode: int) -> Iterator[tuple[int, int]]:
    """Each process that holds a lock, with the number of its descriptors that do."""
    for pid in filter(str.isdecimal, _list_names("/proc")):
        count = 0
        for fd in _list_names(f"/proc/{pid}/fd"):
            if _leads_to(pid, fd, name) and _has_lock(pid, fd, inode):
                count += 1
        if count:
            yield int(pid), count


def _list_names(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []


def _leads_to(pid: str, fd: str, name: str) -> bool:
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/fd/{fd}")) == name
    except OSError:
        return False


def _has_lock(pid: str, fd: str, inode: int) -> bool:
    try:
        with open(f"/proc/{pid}/fdinfo/{fd}", encoding="ascii", errors="replace") as file:
            text = file.read()
    except OSError:
        return False
    return any(int(number) == inode for number in re.findall(_LOCK, text, re.MULTILINE))
