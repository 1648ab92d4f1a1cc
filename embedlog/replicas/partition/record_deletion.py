"""This module deletes the oldest records of a partition in all replicas of its ISR.

All that can fail comes before the first deletion in a follower. The leader deletes last: what its
readers miss is deleted in the whole ISR.

A deletion has begun when a replica may have deleted something: that one can lead next. From then on
its error says so, also at the deadline, without a majority and at the next leader.

The locks of all followers are waited for until one deadline, each as long as for an append. A
follower for whose lock no time is left stays in the ISR.
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
from embedlog.replicas.partition.leader import Leader, LeaderChanged

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
        self.has_begun = False  # a replica may have deleted something

    def delete_everywhere(self, leader: Leader) -> int:
        """Raise the log start in the ISR, on disk before it returns; the new one. May be repeated.

        Raises LeaderChanged, Fenced, NotLeader, and the errors of directories and decisions.
        NotEnoughReplicasError: the ISR is too small for an append, and a replica outside it could
        lead next.
        """
        high_watermark = leader.read_tuple().high_watermark
        if self._start == -1:
            self._start = high_watermark
        check_start(self._start, high_watermark, self._replicas.name, leader.partition.path)
        self.delete_in_followers(leader)
        until_ns = self._replicas.members.lock_deadline(self._deadline_ns)
        log_start = self._delete(leader, leader.partition, until_ns)
        self.delete_in_followers(leader)  # in one that joined meanwhile
        return log_start

    def delete_in_followers(self, leader: Leader) -> None:
        """Store the log start in every other directory of the ISR; a follower that fails leaves it
        (REPLICA-20).
        """
        for step in (self._prepare, self._prepare_and_delete):
            self._make_step(leader, step)
            if not self._replicas.in_sync.is_large_enough(leader):
                raise self._replicas.in_sync.too_few_error(leader)

    def unfinished_error(self, problem: EmbedlogError) -> NotEnoughReplicasAfterAppendError:
        """The error of a deletion that has begun. Raises UnknownTopicOrPartitionError: the topic
        was deleted.
        """
        reason = problem.message
        if isinstance(problem, NotEnoughReplicasError):  # whose message is about an append
            reason = "too few replicas are in sync"
        text = (
            f"the deletion of the records of {self._replicas.name} below {self._start} has begun: "
            f"repeat it; {reason}"
        )
        return NotEnoughReplicasAfterAppendError(
            text, offset=self._start - 1, **self._replicas.in_sync.size_facts()
        )

    def _prepare(self, leader: Leader, follower: Partition, until_ns: int) -> None:
        """Let a follower have everything below the log start, and know that it is committed."""
        if follower.bounds().log_start < self._start:
            copy(leader, follower, self._start, until_ns)
            # its lock shows a directory that fails
            follower.replica.learn(leader.epoch, self._start, until_ns)

    def _prepare_and_delete(self, leader: Leader, follower: Partition, until_ns: int) -> None:
        """Delete in a follower. One that joined after the step before is prepared first.

        It knows the high watermark of its last copy, which can be below the new log start.
        """
        if follower.published().high_watermark < self._start:
            self._prepare(leader, follower, until_ns)
        self._delete(leader, follower, until_ns)

    def _delete(self, leader: Leader, partition: Partition, until_ns: int) -> int:
        had_begun = self.has_begun
        self.has_begun = True
        try:
            return partition.delete_records(self._start, leader.epoch, until_ns)
        except (Fenced, LockTimeoutError, OffsetOutOfRangeError):  # it has deleted nothing
            self.has_begun = had_begun
            raise

    def _make_step(self, leader: Leader, step: Callable[[Leader, Partition, int], None]) -> None:
        """Make a step in each follower of the ISR. Raises LeaderChanged, and at the deadline
        LockTimeoutError.
        """
        replicas = self._replicas
        deadline_ns = self._deadline_ns
        for node, follower in replicas.in_sync.shrink_to_reached(leader, deadline_ns)[1:]:
            try:
                until_ns = replicas.members.lock_deadline(deadline_ns)
                replicas.members.runner_of(node)(partial(step, leader, follower, until_ns))
            except EmbedlogError as problem:
                if replicas.members.blame(problem, deadline_ns) == leader.node:
                    raise LeaderChanged from problem
                replicas.in_sync.remove_from_isr(leader, node, deadline_ns)
            except (Fenced, NotLeader) as changed:
                raise LeaderChanged from changed
