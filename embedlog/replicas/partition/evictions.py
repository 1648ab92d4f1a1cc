"""The pauses between evictions of one node from the ISR of one partition.

EVICTION-1  evictions of a node pause if they repeat: two processes must not undo each other for
    ever. The pauses end when this process has copied records to the node since the last eviction,
    or has added it to the ISR. The node works for this process then, and its next failure is a new
    one (LEADERS-8)
"""

from __future__ import annotations

import contextlib
from typing import Protocol

from embedlog.errors import EmbedlogError
from embedlog.replicas.members.open_directories import Limit


class Used(Protocol):
    """A replica to which this process copies."""

    @property
    def copied_bytes(self) -> int: ...


class Evictions:
    """Of one partition. Threads: any."""

    def __init__(self) -> None:
        self._used: dict[int, Used] = {}
        # with the bytes copied before the last one
        self._evicted: dict[int, tuple[Limit, tuple[Used | None, int]]] = {}

    def copies_to(self, node: int, replica: Used) -> None:
        """Remember the replica to which this process copies now."""
        self._used[node] = replica

    def forget(self, node: int) -> None:
        """The node works for this process."""
        self._evicted.pop(node, None)

    def limit(self, node: int) -> Limit:
        """The pauses of a node."""
        used = self._used.get(node)
        copied = 0
        with contextlib.suppress(EmbedlogError):  # of the failed directory
            copied = 0 if used is None else used.copied_bytes
        limit, before = self._evicted.get(node, (Limit(), (used, copied)))
        if (used, copied) != before and copied > 0:
            limit = Limit()
        self._evicted[node] = limit, (used, copied)
        return limit
