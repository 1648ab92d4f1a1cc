"""This module is the partition that a backup uses: it gives the files of the leader, for as long as
a copy of them takes.

A copy is made at the leader; a log that changes nothing takes the replica that a reader takes. If
its directory fails, or its replica is damaged or moved away, the whole copy is made again at the
next leader. A copy counts if the replica still leads in its epoch at the end: else files may be of
another time. The time of a copy does not count as a wait for a leader, and the number of copies is
bounded.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from embedlog.replicas.partition.leader import LeaderChanged
from embedlog.replicas.partition.leader_calls import LeaderCalls

if TYPE_CHECKING:
    from embedlog.partition.partition import Partition
    from embedlog.replicas.partition.partition_replicas import PartitionReplicas

T = TypeVar("T")
COPIES_MAX: Final = 10


class CopiedPartition:
    """One partition of a set, for one copy. Threads: one."""

    def __init__(
        self, replicas: PartitionReplicas, lock_timeout_ms: int, check_open: Callable[[], None]
    ) -> None:
        self._calls = LeaderCalls(replicas, lock_timeout_ms, check_open)

    def at_files(self, call: Callable[[Partition], T]) -> T:
        """The result of a call that reads the files of the leader. Raises LeaderNotAvailableError,
        and the errors of the call.
        """
        calls = self._calls
        calls.check_open()
        cause: BaseException | None = None
        for _ in range(COPIES_MAX):
            try:
                return calls.try_once(partial(calls.read_at, call), calls.find_committed)
            except LeaderChanged as changed:
                cause = changed.__cause__
        raise calls.changed_error(f"during each of {COPIES_MAX} copies", cause) from cause
