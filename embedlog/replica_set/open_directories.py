"""This module holds the open directories of a set in this process: which of them answer, and the partitions in them.

OPENDIRECTORY-1  a directory fails for this process on an error of its storage (REPLICA-18). Errors of the process itself, such as
    a lack of descriptors, are raised to the caller and change nothing
OPENDIRECTORY-2  a failed directory is not used until `retry_ns`. The pause doubles with each failure, up to 30 s
OPENDIRECTORY-3  an error belongs to the directory that contains its path. An error without a path belongs to none
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol
from uuid import UUID

from embedlog._native import system
from embedlog.errors import (
    CorruptRecordError,
    DurabilityError,
    EmbedlogError,
    LockTimeoutError,
    StorageError,
    UnknownTopicOrPartitionError,
)

if TYPE_CHECKING:
    from embedlog.partition.partition import Partition
    from embedlog.replication.state import State

PAUSES_NS: Final = tuple(seconds * 1_000_000_000 for seconds in (1, 2, 4, 8, 16, 30))
STORAGE: Final = frozenset(
    {errno.EIO, errno.ENODEV, errno.ENXIO, errno.EROFS, errno.ESTALE, errno.ENOSPC, errno.EDQUOT, errno.ENOENT, errno.ENOTDIR}
)


class Directory(Protocol):
    """One open directory, as far as its replicas are concerned."""

    @property
    def path(self) -> Path: ...
    def replica(self, topic_id: UUID, number: int, state: State) -> Partition:
        """The open partition, as the state has it. Raises UnknownTopicOrPartitionError, StorageError."""


@dataclass
class OpenDirectory:
    """One directory of the set. `directory` is None while it is away; `problem` is the reason, None if it is usable."""

    node: int
    slot: int
    incarnation: UUID
    clean: bool  # the registration survived an orderly close
    directory: Directory | None
    problem: str | None = None
    retry_ns: int = 0
    failures: int = 0

    def usable(self, now_ns: int) -> bool:
        """Whether this process uses the directory now (OPENDIRECTORY-2)."""
        return self.directory is not None and (self.problem is None or now_ns >= self.retry_ns)


class OpenDirectories:
    """The directories of one open set by node. Threads: any."""

    def __init__(self, members: Iterable[OpenDirectory]) -> None:
        self._directories = {member.node: member for member in members}
        self._mutex = threading.Lock()

    def __iter__(self) -> Iterator[OpenDirectory]:
        return iter(list(self._directories.values()))

    def get(self, node: int) -> OpenDirectory | None:
        """The directory of a node if it is usable now, otherwise None."""
        member = self._directories.get(node)
        return member if member is not None and member.usable(system.boot_ns()) else None

    def slots(self) -> Mapping[int, int]:
        """The bit of each node in the ISR of control pages."""
        return {node: member.slot for node, member in self._directories.items()}

    # ---- failures --------------------------------------------------------------------------------

    def blame(self, problem: EmbedlogError, *, missing: bool = False) -> int | None:
        """The node whose directory fails with this error; None if the error belongs to the process or to no directory.

        `missing`: a partition that is not there is a failure, because the decision log has its topic.
        """
        absent = missing and isinstance(problem, UnknownTopicOrPartitionError)
        if not (_of_storage(problem) or absent) or problem.path is None:
            return None
        path = Path(problem.path)
        for node, member in self._directories.items():
            if member.directory is not None and path.is_relative_to(member.directory.path):
                return node
        return None

    def fail(self, node: int, problem: EmbedlogError) -> None:
        """Do not use a directory for a while (OPENDIRECTORY-2)."""
        with self._mutex:
            member = self._directories[node]
            pause_ns = PAUSES_NS[min(member.failures, len(PAUSES_NS) - 1)]
            member.problem, member.failures = str(problem), member.failures + 1
            member.retry_ns = system.boot_ns() + pause_ns

    def recovered(self, node: int) -> None:
        """Use a directory again, after work in it succeeded."""
        with self._mutex:
            self._directories[node].problem = None


def _of_storage(problem: EmbedlogError) -> bool:
    if isinstance(problem, StorageError):
        return problem.errno in STORAGE
    return isinstance(problem, (CorruptRecordError, DurabilityError, LockTimeoutError))
