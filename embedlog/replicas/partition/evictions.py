"""The pauses between evictions of one node from the ISR of one partition.

Evictions of a node pause if they repeat: two processes must not undo each other for ever. The
pauses end when this process has copied records to the node since the last eviction, or has added it
to the ISR. The node works for this process then, and its next failure is a new one.
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple, Protocol

from embedlog.errors import EmbedlogError
from embedlog.replicas.members.open_directories import Limit


class CopiedReplica(Protocol):
    """A replica to which this process copies."""

    @property
    def copied_bytes(self) -> int: ...


class _Eviction(NamedTuple):
    """The pauses of a node, and what was copied to it before its last eviction."""

    limit: Limit
    replica: CopiedReplica | None
    copied_bytes: int


class Evictions:
    """The nodes that left the ISR of one partition because they failed here. Threads: any."""

    def __init__(self) -> None:
        self._replicas: dict[int, CopiedReplica] = {}  # to which this process copies, by node
        self._evictions: dict[int, _Eviction] = {}

    def note_copies_to(self, node: int, replica: CopiedReplica) -> None:
        """Remember the replica to which this process copies now."""
        self._replicas[node] = replica

    def forget(self, node: int) -> None:
        """The node works for this process."""
        self._evictions.pop(node, None)

    def limit_of(self, node: int) -> Limit:
        """The pauses of a node."""
        replica = self._replicas.get(node)
        copied_bytes = 0
        with contextlib.suppress(EmbedlogError):  # of the failed directory
            if replica is not None:
                copied_bytes = replica.copied_bytes
        earlier = self._evictions.get(node)
        if earlier is None:
            limit = Limit()
        elif (replica, copied_bytes) != (earlier.replica, earlier.copied_bytes) and copied_bytes:
            limit = Limit()  # records were copied since then
        else:
            limit = earlier.limit
        self._evictions[node] = _Eviction(limit, replica, copied_bytes)
        return limit
