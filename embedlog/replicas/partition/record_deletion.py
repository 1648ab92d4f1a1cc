"""This module deletes the oldest records of a partition in all replicas of its ISR.

RECORDDELETION-1  all that can fail comes before the first deletion in a follower. The leader
    deletes last (REPLICATEDPARTITION-3)
RECORDDELETION-2  a deletion has begun when a replica may have deleted something: that one can lead
    next. From then on its error says so, also at the deadline, without a majority and at the next
    leader
RECORDDELETION-3  a lock that was not free, another epoch and a refused offset show that the replica
    has deleted nothing
RECORDDELETION-4  a follower that joins between two steps is prepared by the next one. It knows the
    high watermark of its last copy, which can be below the new log start
RECORDDELETION-5  the locks of all followers are waited for until one deadline, each as long as for
    an append. A follower for whose lock no time is left stays in the ISR
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from embedlog.errors import (
    EmbedlogError,
    LockTimeoutError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    OffsetOutOfRangeError,
)
from embedlog.partition.log_context import check_start
from embedlog.partition.replication.replica_log import Fenced, NotLeader
from embedlog.replicas.partition.copying import copy
from embedlog.replicas.partition.leaders import Leader, LeaderChanged

if TYPE_CHECKING:
    from embedlog.partition.partition import Partition
    from embedlog.replicas.partition.partition_replicas import PartitionReplicas


class RecordDeletion:
    """One call, at one leader after another. Threads: one."""

    def __init__(self, replicas: PartitionReplicas, start: int, deadline_ns: int) -> None:
        """`start`: the wanted log start; -1: the high watermark of the first leader."""
        self._replicas = replicas
        self._start = start
        self._deadline_ns = deadline_ns
        self.begun = False  # RECORDDELETION-2

    def everywhere(self, leader: Leader) -> int:
        """Raise the log start in the ISR, on disk before it returns; the new one. May be repeated.

        Raises LeaderChanged, Fenced, NotLeader, and the errors of directories and decisions.
        NotEnoughReplicasError: the ISR is too small for an append, and a replica outside it could
        lead next.
        """
        high_watermark = leader.shown().high_watermark
        self._start = high_watermark if self._start == -1 else self._start
        check_start(self._start, high_watermark, self._replicas.name, leader.partition.path)
        self.in_followers(leader)
        start = self._delete(
            leader, leader.partition, self._replicas.lock_deadline(self._deadline_ns)
        )
        self.in_followers(leader)  # in one that joined meanwhile
        return start

    def in_followers(self, leader: Leader) -> None:
        """Store the log start in every other directory of the ISR; a follower that fails leaves it
        (REPLICA-20).
        """
        for step in (self._prepare, self._prepare_and_delete):
            self._in_each(leader, step)
            if not self._replicas.is_large_enough(leader):
                raise self._replicas.too_few(leader)

    def unfinished(self, problem: EmbedlogError) -> NotEnoughReplicasAfterAppendError:
        """The error of a deletion that has begun. Raises UnknownTopicOrPartitionError: the topic
        was deleted.
        """
        few = isinstance(problem, NotEnoughReplicasError)  # whose message is about an append
        why = "too few replicas are in sync" if few else problem.message
        text = (
            f"the deletion of the records of {self._replicas.name} below {self._start} has begun: "
            f"repeat it; {why}"
        )
        return NotEnoughReplicasAfterAppendError(
            text, offset=self._start - 1, **self._replicas.size_facts()
        )

    def _prepare(self, leader: Leader, follower: Partition, until: int) -> None:
        """Let a follower have everything below the log start, and know that it is committed."""
        if follower.bounds().log_start < self._start:
            copy(leader, follower, self._start, until)
            # its lock shows a directory that fails
            follower.replica.learn(leader.epoch, self._start, until)

    def _prepare_and_delete(self, leader: Leader, follower: Partition, until: int) -> None:
        if follower.published().high_watermark < self._start:  # RECORDDELETION-4
            self._prepare(leader, follower, until)
        self._delete(leader, follower, until)

    def _delete(self, leader: Leader, partition: Partition, until: int) -> int:
        before = self.begun
        self.begun = True
        try:
            return partition.delete_records(self._start, leader.epoch, until)
        except (Fenced, LockTimeoutError, OffsetOutOfRangeError):  # RECORDDELETION-3
            self.begun = before
            raise

    def _in_each(self, leader: Leader, step: Callable[[Leader, Partition, int], None]) -> None:
        """Make a step in each follower of the ISR. Raises LeaderChanged, and at the deadline
        LockTimeoutError.
        """
        replicas = self._replicas
        until = self._deadline_ns
        for node, follower in replicas.in_sync(leader, until)[1:]:
            try:
                replicas.making(node)(
                    partial(step, leader, follower, replicas.lock_deadline(until))
                )
            except EmbedlogError as problem:
                if replicas.blame(problem, until) == leader.node:
                    raise LeaderChanged from problem
                replicas.leave(leader, node, until)
            except (Fenced, NotLeader) as changed:
                raise LeaderChanged from changed
