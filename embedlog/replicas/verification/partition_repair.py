"""This module repairs a replica that is damaged or different: it is cut, and copies from the leader
again.

PARTITIONREPAIR-1  a damaged leader first hands over to a complete member of the ISR; without one
    nothing is changed
PARTITIONREPAIR-2  the replica leaves ISR and ELR by a decision before its log is cut: until it is
    copied, it must not lead. Cut bytes stay in other files (LOGCUT-5)
PARTITIONREPAIR-3  before the cut the leader's records from there on are read with all checks:
    without a good source it is kept
PARTITIONREPAIR-4  a page that lost its role joins no ISR before it follows again. After the
    leader's lock was free once, no earlier join is in progress; the role is compared again in the
    section of the cut
PARTITIONREPAIR-5  an interrupted cut is completed by the next process, and the replica copies and
    joins. After an interruption before the cut the replica is outside the ISR
PARTITIONREPAIR-6  a replica that cannot be loaded begins again (RENEWAL-2)
PARTITIONREPAIR-7  a follower whose directory fails during a comparison is left out, as one that is
    away. The directory is described with its problem. A partition that is missing is damage of the
    replica. The other replicas are compared
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from embedlog import _logging
from embedlog._native import system
from embedlog._native.replication import ROLE_NONE
from embedlog.descriptions.replicas import RepairedReplica, ReplicaDifference
from embedlog.errors import ClosedError, CorruptRecordError, EmbedlogError, LeaderNotAvailableError
from embedlog.partition.replication.replica_log import Fenced, NotLeader
from embedlog.replicas.partition.copying import copy
from embedlog.replicas.partition.leader import LeaderChanged
from embedlog.replicas.verification.comparison import Difference, SourceDamagedError, check, compare
from embedlog.replicas.verification.renewal import load_problem, renew
from embedlog.storage import files

if TYPE_CHECKING:
    from embedlog.partition.partition import Partition
    from embedlog.replicas.partition.leader import Leader
    from embedlog.replicas.partition.partition_replicas import PartitionReplicas
    from embedlog.replicas.verification.comparison import Note

logger = logging.getLogger("embedlog")


class PartitionRepair:
    """The replicas of one partition, compared and repaired by this process. Threads: one at a
    time.
    """

    def __init__(self, replicas: PartitionReplicas, deadline: Callable[[], int]) -> None:
        self._replicas = replicas
        self._deadline = deadline

    # ---- comparison ------------------------------------------------------------------------------

    def differences(self, note: Note) -> list[ReplicaDifference]:
        """The differences of the members of the ISR that this process reaches. Raises
        LeaderNotAvailableError.
        """
        until = self._deadline()
        while True:
            leader = self._replicas.leaders.find_leader(until)
            try:
                return self._differences(leader, note)
            except EmbedlogError:
                if self._replicas.members.is_leading(leader) or system.boot_ns() >= until:
                    raise
            except LeaderChanged as changed:
                if system.boot_ns() >= until:
                    text = (
                        f"the leader of {self._replicas.name} changed until the deadline of a "
                        "comparison"
                    )
                    raise LeaderNotAvailableError(text) from changed

    def _failed(self, node: int, leader: Leader, problem: EmbedlogError) -> list[ReplicaDifference]:
        """A replica that cannot be compared: its directory fails, or it is damaged
        (PARTITIONREPAIR-7).

        Raises the problem if it is another one, or if the directory of the leader fails.
        """
        failing = self._replicas.members.find_failed_node(problem)
        if failing == leader.node and not files.is_directory(leader.partition.path):
            return [self._unread(failing, leader, problem)]  # it leads until the repair
        if failing != node:
            raise problem
        self._replicas.members.blame(problem)
        return (
            [self._unread(node, leader, problem)] if node in self._replicas.members.damaged else []
        )

    def _unread(self, node: int, leader: Leader, problem: EmbedlogError) -> ReplicaDifference:
        now = leader.partition.published()
        path = Path(problem.path or "")
        return self._described(
            node, Difference("damaged", path, now.log_start, now.high_watermark, str(problem))
        )

    def _differences(self, leader: Leader, note: Note) -> list[ReplicaDifference]:
        unloaded = self._replicas.members.find_load_problems()
        found = [self._unread(node, leader, problem) for node, problem in unloaded.items()]
        followers = dict(self._replicas.in_sync.find_replicas(leader)[1:])
        for node in self._replicas.members.damaged.keys() - followers.keys() - {leader.node}:
            resting = (
                self._replicas.members.find_replica(node, damaged=True)
                if self._replicas.in_sync.is_member(leader, node)
                else None
            )
            if resting is not None:
                followers[node] = resting
        for node, follower in sorted(followers.items()):
            if node in unloaded:
                continue
            try:
                difference = compare(leader.partition, follower, note)
            except SourceDamagedError as problem:
                return [self._described(leader.node, problem.difference)]
            except EmbedlogError as problem:
                found += self._failed(node, leader, problem)
                if found and found[-1].node == leader.node:
                    return found
                continue
            if difference is not None:
                found.append(self._described(node, difference))
        if len(self._replicas.in_sync.find_replicas(leader)) == 1:
            try:
                check(leader.partition, leader.partition.published().log_start)
            except SourceDamagedError as problem:
                found.append(self._described(leader.node, problem.difference))
        return found

    def _described(self, node: int, found: Difference) -> ReplicaDifference:
        return ReplicaDifference(
            self._replicas.topic,
            self._replicas.number,
            node,
            found.kind,
            str(found.path),
            found.first,
            found.end,
            found.text,
        )

    # ---- repair ----------------------------------------------------------------------------------

    def repair(self, node: int, note: Note = lambda size: None) -> RepairedReplica | None:
        """Compare the replica of a node, and copy it again from its first difference on; None
        without a difference.

        Raises EligibleLeadersNotAvailableError, CorruptRecordError if the leader is damaged as
        well, LeaderNotAvailableError.
        """
        problem = load_problem(self._replicas, node, self._deadline)
        if problem is not None:
            return self._renewed(node, problem)
        until = self._deadline()
        while True:
            leader = self._replicas.leaders.find_leader(until)
            if leader.node == node:
                self._replicas.leaders.hand_over(leader, until, "its replica is damaged")
            else:
                try:
                    return self._repair(leader, node, note)
                except (LeaderChanged, Fenced, NotLeader):
                    until = self._deadline() if system.boot_ns() < until else until
            if system.boot_ns() >= until:
                raise LeaderNotAvailableError(
                    f"the leader of {self._replicas.name} changed until the deadline of a repair"
                )

    def _renewed(self, node: int, problem: EmbedlogError) -> RepairedReplica:
        """Begin a replica again that cannot be loaded, and copy everything (PARTITIONREPAIR-6)."""
        renew(self._replicas, node, problem, self._deadline)
        self._replicas.members.note_repair(node)
        leader = self._replicas.leaders.find_leader(self._deadline())
        follower = self._replicas.members.find_replica(node, damaged=True)
        if follower is None:
            raise LeaderNotAvailableError(
                f"the directory of node {node} fails: {self._replicas.name} is copied after it "
                "returns"
            )
        with suppress(LeaderChanged, Fenced, NotLeader):  # the housekeeper continues
            self._copy_again(leader, node, follower)
        now = leader.partition.published()
        name = self._replicas.topic
        path = str(problem.path or "")
        return RepairedReplica(
            name, self._replicas.number, node, leader.node, path, now.log_start, now.high_watermark
        )

    def _repair(self, leader: Leader, node: int, note: Note) -> RepairedReplica | None:
        follower = self._replicas.members.find_replica(node, damaged=True)
        if follower is None:
            raise LeaderNotAvailableError(
                f"the directory of node {node} fails: {self._replicas.name} is repaired after it "
                "returns"
            )
        copy(leader, follower, 0, self._deadline())
        try:
            found = compare(leader.partition, follower, note)
            if found is not None:
                check(leader.partition, leader.shown().log_start if found.anew else found.first)
        except SourceDamagedError as problem:
            difference = problem.difference
            raise CorruptRecordError(
                f"{self._replicas.name} is damaged also in its leader, node {leader.node}",
                path=difference.path,
                found=problem,
            ) from problem
        if found is None:
            return None
        self._leave(leader, node, follower, found)
        end = follower.published().log_end
        self._cut(leader, node, follower, found)
        logger.warning(
            "%s: node %d: %s (%s): offsets %d to %d are copied from node %d",
            self._replicas.name,
            node,
            found.text,
            found.path,
            found.first,
            max(end, found.end) - 1,
            leader.node,
        )
        self._copy_again(leader, node, follower)
        name = self._replicas.topic
        return RepairedReplica(
            name,
            self._replicas.number,
            node,
            leader.node,
            str(found.path),
            found.first,
            max(end, found.end),
        )

    def _leave(self, leader: Leader, node: int, follower: Partition, found: Difference) -> None:
        """Leave ISR and ELR, and lose the role (PARTITIONREPAIR-2, PARTITIONREPAIR-4)."""
        reason = f"node {node}: {found.kind} from offset {found.first} on"
        self._replicas.in_sync.remove_from_isr(leader, node, self._deadline(), reason, lost=True)
        with follower.replica.exclusive(self._deadline()) as held:
            held.publish(
                held.now, held.replica._replace(role=ROLE_NONE, maximal_isr=0, decided_isr=0)
            )
            system.point("repair-role")

    def _cut(self, leader: Leader, node: int, follower: Partition, found: Difference) -> None:
        """Cut the log at the difference. Raises LeaderChanged if the replica follows or joins
        meanwhile: it is compared again.
        """
        self._replicas.in_sync.check_outside_isr(leader, node, self._deadline())
        start = leader.shown().log_start
        with follower.replica.exclusive(self._deadline()) as held:
            if held.replica.role != ROLE_NONE:
                raise LeaderChanged
            if found.anew:
                held.restart(start)
            else:
                held.truncate(max(found.first, held.now.log_start))
        system.point("repair-cut")

    def _copy_again(self, leader: Leader, node: int, follower: Partition) -> None:
        """Copy, and join. An ISR that changes meanwhile leaves the rest to the housekeeper."""
        end = -1
        while end < (wanted := leader.shown().high_watermark):
            end = copy(leader, follower, wanted, self._deadline())
        self._replicas.in_sync.add_to_isr(leader, node, self._deadline())


def repair_damaged(
    replicas: PartitionReplicas, deadline: Callable[[], int], ending: Callable[[], bool]
) -> None:
    """Repair the replicas that were found damaged by reads or copies of this process. For the
    housekeeper.
    """

    def note(size: int) -> None:
        if ending():
            raise ClosedError("the log is closed during a repair")

    for node, damage in list(replicas.members.damaged.items()):
        if system.boot_ns() < damage.repair.next_ns() or not replicas.members.is_open(node):
            continue
        damage.repair.made()
        try:
            problem = load_problem(replicas, node, deadline)
            if problem is not None:
                renew(replicas, node, problem, deadline)
            PartitionRepair(replicas, deadline).repair(node, note)
        except ClosedError:
            raise
        except EmbedlogError as found:
            what = f"{replicas.name}: the damaged replica of node {node} is not repaired"
            _logging.report(logger, logging.WARNING, (replicas.topic_id, what), what, found)
        else:
            replicas.members.note_repair(node)
