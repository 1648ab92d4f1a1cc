"""Directories of a set for tests, and calls on their files that fail."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from embedlog._native import system

CHANGES = ("pwrite", "fsync", "fdatasync", "ftruncate", "rename", "unlink", "mkdir", "fallocate")


@dataclass
class Struck:
    """The number of calls that failed inside the block."""

    count: int = 0


@contextlib.contextmanager
def failing(kinds: Sequence[str] = CHANGES, *, nth: int = 1, name: str = "", error: int = errno.EIO) -> Iterator[Struck]:
    """The nth call of these kinds fails, on a file whose path contains the name."""
    found = Struck()
    system.fault_arm(tuple(kinds), nth, "fail", error, name=name)
    try:
        yield found
    finally:
        found.count = system.fault_counters()[1]
        system.fault_off()
