"""The replicas of one partition: the members of the set that have them, the in-sync ones, and their
leader.

All processes that use a set copy, commit and propose for their own records. No step depends on
memory: pages and decisions are read again.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from embedlog._native import system
from embedlog.errors import EmbedlogError
from embedlog.replicas.members.open_directories import OpenDirectories
from embedlog.replicas.partition.in_sync_replicas import InSyncReplicas
from embedlog.replicas.partition.leader import Leader, LeaderChanged
from embedlog.replicas.partition.leaders import Leaders
from embedlog.replicas.partition.node_pauses import NodePauses
from embedlog.replicas.partition.partition_directories import Decisions, PartitionDirectories
from embedlog.replicas.partition.usual_reads import LeaderWatch
from embedlog.replicas.rules.events import PartitionId
from embedlog.replicas.rules.records import NO_LEADER, DecidedPartition

if TYPE_CHECKING:
    from uuid import UUID

    from embedlog.partition.partition import Partition

logger = logging.getLogger("embedlog")


class PartitionReplicas:
    """The replicas of one partition, for this process. Threads: any."""

    def __init__(
        self,
        directories: OpenDirectories,
        decisions: Decisions,
        partition_id: PartitionId,
        topic: str,
    ) -> None:
        pauses = NodePauses()
        self._directories = directories
        self._decisions = decisions
        self._pauses = pauses
        self.members = PartitionDirectories(directories, decisions, partition_id, topic)
        self.in_sync = InSyncReplicas(self.members, directories, decisions, pauses)
        self.leaders = Leaders(self.members, directories, decisions, self.in_sync, pauses)
        self.partition_id = partition_id
        self.topic = topic
        self.number = self.members.number
        self.name = self.members.name
        # the decision, the directories and the leader of `tend`
        self._last_round: tuple[DecidedPartition, int, Partition] | None = None

    @property
    def topic_uuid(self) -> UUID:
        return self.members.topic_uuid

    def note_worked(self, node: int) -> None:
        """This process has used a node with success: its next failure is a new one."""
        self._pauses.note_worked(node)

    def watch(self, leader: Leader, changes: int, version: int) -> LeaderWatch:
        """A leader that was looked for at these values of `changes` and `version`."""
        followed = self._directories.followed_pages(version)
        words = system.TopicsWords([page for page, _ in followed], [word for _, word in followed])
        return LeaderWatch(leader, self._directories, changes, words)

    def tend(self, deadline_ns: int, waiting: Collection[int] = ()) -> None:
        """Commit what was appended with `acks=1`, and let replicas outside the ISR catch up and
        join, except for those that wait (REPLICA-25).
        """
        changes = self._directories.changes
        leader = self.leaders.find_leader(deadline_ns, wait=False)
        # not older than the leader: a removed replica gets no copy
        decided = self.members.find_decision(self._decisions.counted_state())
        try:
            self.in_sync.commit_appended(leader, deadline_ns, wait=False)
            self.in_sync.spread_high_watermark(leader, deadline_ns)
            for node in decided.replicas:
                if node in decided.isr or node in waiting or node in self.members.damaged:
                    continue
                if self.members.usable_directory(node) is not None:
                    self.in_sync.add_to_isr(leader, node, deadline_ns)
            self._last_round = decided, changes, leader.partition
        except LeaderChanged:
            logger.debug("%s: the leader changed during its housekeeping", self.name)

    def is_copied(self) -> bool:
        """Whether the leader of the last round has no record to commit, and its followers know the
        high watermark.
        """
        if self._last_round is None:
            return True
        with suppress(EmbedlogError):
            return self.in_sync.has_spread_all(self._last_round[2].published())
        return True

    def is_in_order(self, decided: DecidedPartition) -> bool:
        """Whether `tend` has nothing to do: all replicas are in sync, and everything is
        committed.
        """
        if (
            self.members.damaged
            or decided.removing
            or decided.adding
            or decided.leader == NO_LEADER
            or len(decided.isr) < len(decided.replicas)
        ):
            return False
        last_round = self._last_round
        if last_round is not None and last_round[:2] == (decided, self._directories.changes):
            with suppress(EmbedlogError):
                now = last_round[2].published()
                return now.epoch == decided.leader_epoch and self.in_sync.has_spread_all(now)
        member = self.members.usable_directory(decided.leader)
        if member is None or member.directory is None:
            return False
        with suppress(EmbedlogError):
            is_loaded = partial(member.directory.is_loaded, self.topic, self.number)
            return not self._directories.run_at(member.node, is_loaded)
        return False

    def close(self, deadline_ns: int) -> None:
        """Before the directories are left: the log is committed, and the followers have the high
        watermark (REPLICA-19).
        """
        with suppress(EmbedlogError, LeaderChanged):
            leader = self.leaders.install_leader(self._decisions.counted_state(), deadline_ns)
            if leader is not None:
                self.in_sync.commit_appended(leader, deadline_ns, wait=False)
                self.in_sync.spread_high_watermark(leader, deadline_ns)
