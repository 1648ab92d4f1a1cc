"""The pauses between elections of one partition away from a node, and between evictions of a node
from its ISR.

Both pause if they repeat: two processes must not undo each other for ever. The pauses end when this
process has used the node with success, or has copied records to it since its last eviction. The
node works for this process then, and its next failure is a new one.
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple, Protocol

from embedlog._native import system
from embedlog.errors import EmbedlogError
from embedlog.replicas.members.open_directories import Limit


class CopiedReplica(Protocol):
    """A replica to which this process copies."""

    @property
    def copied_bytes(self) -> int: ...


class _Eviction(NamedTuple):
    """The pauses of a node, and what was copied to it when they were asked for last."""

    limit: Limit
    replica: CopiedReplica | None
    copied_bytes: int


class NodePauses:
    """The nodes that lost a role in one partition because they failed here. Threads: any."""

    def __init__(self) -> None:
        self._elections: dict[int, Limit] = {}  # by the node that was the leader
        self._replicas: dict[int, CopiedReplica] = {}  # to which this process copies, by node
        self._evictions: dict[int, _Eviction] = {}

    def note_copies_to(self, node: int, replica: CopiedReplica) -> None:
        """Remember the replica to which this process copies now."""
        self._replicas[node] = replica

    def note_worked(self, node: int) -> None:
        """This process has used a node with success: its next failure is a new one."""
        self._elections.pop(node, None)
        self._evictions.pop(node, None)

    def note_election(self, node: int) -> None:
        """Another leader was elected instead of a node."""
        self._elections.setdefault(node, Limit()).count_change()

    def has_paused_elections(self, node: int) -> bool:
        """Whether a node that leads stays leader for now, although it fails here."""
        limit = self._elections.get(node)
        return limit is not None and system.boot_ns() < limit.next_ns()

    def renew_eviction_limit(self, node: int) -> Limit:
        """The pauses between evictions of a node, for one that may follow now. They begin again if
        records were copied to the node since the last call.
        """
        replica = self._replicas.get(node)
        copied_bytes = 0
        with contextlib.suppress(EmbedlogError):  # of the failed directory
            if replica is not None:
                copied_bytes = replica.copied_bytes
        earlier = self._evictions.get(node)
        if earlier is None:
            limit = Limit()
        elif (replica, copied_bytes) != (earlier.replica, earlier.copied_bytes) and copied_bytes:
            limit = Limit()  # records were copied since the last call
        else:
            limit = earlier.limit
        self._evictions[node] = _Eviction(limit, replica, copied_bytes)
        return limit
