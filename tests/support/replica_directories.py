"""Directories of a set for tests, and calls on their files that fail."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from embedlog._native import system
from embedlog.replicas.members import membership
from embedlog.storage import file_names, files

CHANGES = ("pwrite", "fsync", "fdatasync", "ftruncate", "rename", "unlink", "mkdir", "fallocate")


@dataclass
class Struck:
    """The number of calls that failed inside the block."""

    count: int = 0


@contextlib.contextmanager
def failing(
    kinds: Sequence[str] = CHANGES, *, nth: int = 1, name: str = "", error: int = errno.EIO
) -> Iterator[Struck]:
    """The nth call of these kinds fails, on a file whose path contains the name."""
    found = Struck()
    system.fault_arm(tuple(kinds), nth, "fail", error, name=name)
    try:
        yield found
    finally:
        found.count = system.fault_counters()[1]
        system.fault_off()


def take_for_originals(root: Path) -> None:
    """Let the copies of directories below a root count as the directories themselves, as after a
    crash.
    """
    for path in root.glob(f"*/{file_names.REPLICAS}"):
        found = membership.read(path.parent)
        door = path.with_name(file_names.OPEN_LOCK)
        if found is not None and found.created_ns is not None and door.exists():
            with files.opened(door, files.READ) as fd:
                membership.write(
                    path.parent, found._replace(created_ns=files.created_ns(fd, door), births=())
                )
