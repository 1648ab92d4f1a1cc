"""This module repairs a replica that is damaged or different: it is cut, and copies from the leader
again. One that cannot be loaded or repaired, or whose directory is missing, begins again.

- A damaged leader first hands over to a complete member of the ISR; without one nothing is changed.
- The replica leaves ISR and ELR by a decision before its log is cut or its files are set aside
  (REPLICA-5): until it is copied, it must not lead. Cut bytes stay in other files.
- Before that the leader's records, for a cut those from there on, are read with all checks: without
  a good source the replica is kept.
- A page that lost its role joins no ISR before it follows again. After the leader's lock was free
  once, no earlier join is in progress; the role is compared again in the section of the cut.
- An interrupted cut is completed by the next process, and the replica copies and joins. After an
  interruption before the cut the replica is outside the ISR. One that was to begin again is
  damaged, missing or empty then: the next round does it.
- A replica that another process has loaded meanwhile does not begin again: under its append lock
  its page shows that. The files that are set aside are those of a retired partition, and are
  removed after `file.delete.delay.ms`.
- A loaded replica whose append lock cannot be taken, because the repair of an interrupted append
  finds damage, loses its role first. Its log begins again by a cut, which other processes with this
  page follow.
- A follower whose directory fails during a comparison is left out, as one that is away. The
  directory is described with its problem. A partition that is missing is damage of the replica. The
  other replicas are compared.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from embedlog._native import system
from embedlog._native.replication import ROLE_NONE
from embedlog.descriptions.replicas import RepairedReplica, ReplicaDifference
from embedlog.errors import ClosedError, CorruptRecordError, EmbedlogError, LeaderNotAvailableError
from embedlog.partition.replication.replica_log import Fenced, NotLeader
from embedlog.replicas.members.open_directories import LOAD_ERRORS
from embedlog.replicas.partition.copying import copy
from embedlog.replicas.partition.leader import LeaderChanged
from embedlog.replicas.verification.comparison import Difference, SourceDamagedError, check, compare
from embedlog.storage import files
from embedlog.telemetry import log_messages

if TYPE_CHECKING:
    from embedlog.partition.partition import Partition
    from embedlog.replicas.partition.leader import Leader
    from embedlog.replicas.partition.partition_replicas import PartitionReplicas
    from embedlog.replicas.verification.comparison import Advance

logger = logging.getLogger("embedlog")


class PartitionRepair:
    """The replicas of one partition, compared and repaired by this process. Threads: one at a
    time.
    """

    def __init__(self, replicas: PartitionReplicas, deadline: Callable[[], int]) -> None:
        self._replicas = replicas
        self._deadline = deadline

    # ---- comparison ------------------------------------------------------------------------------

    def find_differences(self, advance: Advance) -> list[ReplicaDifference]:
        """The differences of the members of the ISR that this process reaches. Raises
        LeaderNotAvailableError.
        """
        until = self._deadline()
        while True:
            leader = self._replicas.leaders.find_leader(until)
            try:
                return self._compare_with(leader, advance)
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

    def _note_failure(
        self, node: int, leader: Leader, problem: EmbedlogError
    ) -> list[ReplicaDifference]:
        """A replica that cannot be compared: its directory fails, or it is damaged.

        Raises the problem if it is another one, or if the directory of the leader fails.
        """
        failing = self._replicas.members.find_failed_node(problem)
        if failing == leader.node and not files.is_directory(leader.partition.path):
            return [self._describe_unread(failing, leader, problem)]  # it leads until the repair
        if failing != node:
            raise problem
        self._replicas.members.blame(problem)
        if node not in self._replicas.members.damaged:
            return []
        return [self._describe_unread(node, leader, problem)]

    def _describe_unread(
        self, node: int, leader: Leader, problem: EmbedlogError
    ) -> ReplicaDifference:
        now = leader.partition.published()
        path = Path(problem.path or "")
        return self._describe(
            node, Difference("damaged", path, now.log_start, now.high_watermark, str(problem))
        )

    def _compare_with(self, leader: Leader, advance: Advance) -> list[ReplicaDifference]:
        unloaded = self._replicas.members.find_load_problems()
        differences = [
            self._describe_unread(node, leader, problem) for node, problem in unloaded.items()
        ]
        followers = dict(self._replicas.in_sync.find_replicas(leader)[1:])
        for node in self._replicas.members.damaged.keys() - followers.keys() - {leader.node}:
            if not self._replicas.in_sync.is_member(leader, node):
                continue
            resting = self._replicas.members.find_replica(node, damaged=True)
            if resting is not None:
                followers[node] = resting
        for node, follower in sorted(followers.items()):
            if node in unloaded:
                continue
            try:
                difference = compare(leader.partition, follower, advance)
            except SourceDamagedError as problem:
                return [self._describe(leader.node, problem.difference)]
            except EmbedlogError as problem:
                differences += self._note_failure(node, leader, problem)
                if differences and differences[-1].node == leader.node:
                    return differences
                continue
            if difference is not None:
                differences.append(self._describe(node, difference))
        if len(self._replicas.in_sync.find_replicas(leader)) == 1:
            try:
                check(leader.partition, leader.partition.published().log_start)
            except SourceDamagedError as problem:
                differences.append(self._describe(leader.node, problem.difference))
        return differences

    def _describe(self, node: int, difference: Difference) -> ReplicaDifference:
        return ReplicaDifference(
            topic=self._replicas.topic,
            partition=self._replicas.number,
            node=node,
            kind=difference.kind,
            path=str(difference.path),
            first_offset=difference.first,
            end_offset=difference.end,
            message=difference.text,
        )

    # ---- repair ----------------------------------------------------------------------------------

    def repair(self, node: int, advance: Advance = lambda size: None) -> RepairedReplica | None:
        """Compare the replica of a node, and copy it again from its first difference on; None
        without a difference.

        Raises EligibleLeadersNotAvailableError, CorruptRecordError if the leader is damaged as
        well, LeaderNotAvailableError.
        """
        problem = _find_load_problem(self._replicas, node, self._deadline)
        if problem is not None:
            return self._renew(node, problem)
        until = self._deadline()
        cause: BaseException | None = None
        while True:
            leader = self._replicas.leaders.find_leader(until)
            if leader.node == node:
                self._replicas.leaders.hand_over(leader, until, "its replica is damaged")
            else:
                try:
                    return self._repair(leader, node, advance)
                except (LeaderChanged, Fenced, NotLeader) as changed:
                    cause = changed.__cause__ or changed
            if system.boot_ns() >= until:
                raise LeaderNotAvailableError(
                    f"the leader of {self._replicas.name} changed until the deadline of a repair"
                ) from cause

    def _renew(self, node: int, problem: EmbedlogError) -> RepairedReplica:
        """Begin a replica again that cannot be loaded, and copy everything."""
        _begin_again(self._replicas, node, problem, self._deadline)
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
        return RepairedReplica(
            topic=self._replicas.topic,
            partition=self._replicas.number,
            node=node,
            source=leader.node,
            path=str(problem.path or ""),
            first_offset=now.log_start,
            end_offset=now.high_watermark,
        )

    def _repair(self, leader: Leader, node: int, advance: Advance) -> RepairedReplica | None:
        follower = self._replicas.members.find_replica(node, damaged=True)
        if follower is None:
            raise LeaderNotAvailableError(
                f"the directory of node {node} fails: {self._replicas.name} is repaired after it "
                "returns"
            )
        copy(leader, follower, 0, self._deadline())
        try:
            difference = compare(leader.partition, follower, advance)
            if difference is not None:
                first = leader.read_tuple().log_start if difference.anew else difference.first
                check(leader.partition, first)
        except SourceDamagedError as problem:
            raise CorruptRecordError(
                f"{self._replicas.name} is damaged also in its leader, node {leader.node}",
                path=problem.difference.path,
                found=problem,
            ) from problem
        if difference is None:
            return None
        self._leave(leader, node, follower, difference)
        end = max(follower.published().log_end, difference.end)
        self._cut(leader, node, follower, difference)
        logger.warning(
            "%s: node %d: %s (%s): offsets %d to %d are copied from node %d",
            self._replicas.name,
            node,
            difference.text,
            difference.path,
            difference.first,
            end - 1,
            leader.node,
        )
        self._copy_again(leader, node, follower)
        return RepairedReplica(
            topic=self._replicas.topic,
            partition=self._replicas.number,
            node=node,
            source=leader.node,
            path=str(difference.path),
            first_offset=difference.first,
            end_offset=end,
        )

    def _leave(
        self, leader: Leader, node: int, follower: Partition, difference: Difference
    ) -> None:
        """Leave ISR and ELR, and lose the role."""
        reason = f"node {node}: {difference.kind} from offset {difference.first} on"
        self._replicas.in_sync.remove_from_isr(leader, node, self._deadline(), reason, lost=True)
        with follower.replica.exclusive(self._deadline()) as locked:
            without_role = locked.replica._replace(role=ROLE_NONE, maximal_isr=0, decided_isr=0)
            locked.publish(locked.published, without_role)
            system.point("repair-role")

    def _cut(self, leader: Leader, node: int, follower: Partition, difference: Difference) -> None:
        """Cut the log at the difference. Raises LeaderChanged if the replica follows or joins
        meanwhile: it is compared again.
        """
        self._replicas.in_sync.check_outside_isr(leader, node, self._deadline())
        start = leader.read_tuple().log_start
        with follower.replica.exclusive(self._deadline()) as locked:
            if locked.replica.role != ROLE_NONE:
                raise LeaderChanged
            if difference.anew:
                locked.restart(start)
            else:
                locked.truncate(max(difference.first, locked.published.log_start))
        system.point("repair-cut")

    def _copy_again(self, leader: Leader, node: int, follower: Partition) -> None:
        """Copy, and join. An ISR that changes meanwhile leaves the rest to the housekeeper."""
        end = -1
        high_watermark = leader.read_tuple().high_watermark
        while end < high_watermark:
            end = copy(leader, follower, high_watermark, self._deadline())
            high_watermark = leader.read_tuple().high_watermark
        self._replicas.in_sync.add_to_isr(leader, node, self._deadline())


def repair_damaged(
    replicas: PartitionReplicas, deadline: Callable[[], int], ending: Callable[[], bool]
) -> None:
    """Repair the replicas that were found damaged by reads or copies of this process. For the
    housekeeper.
    """

    def advance(size: int) -> None:
        if ending():
            raise ClosedError("the log is closed during a repair")

    for node, damage in list(replicas.members.damaged.items()):
        if system.boot_ns() < damage.repair.next_ns() or not replicas.members.is_open(node):
            continue
        damage.repair.count_change()
        try:
            problem = _find_load_problem(replicas, node, deadline)
            if problem is not None:
                _begin_again(replicas, node, problem, deadline)
            PartitionRepair(replicas, deadline).repair(node, advance)
        except ClosedError:
            raise
        except EmbedlogError as failure:
            text = f"{replicas.name}: the damaged replica of node {node} is not repaired"
            log_messages.report(logger, logging.WARNING, (replicas.topic_uuid, text), text, failure)
        else:
            replicas.members.note_repair(node)


def _find_load_problem(
    replicas: PartitionReplicas, node: int, deadline: Callable[[], int]
) -> EmbedlogError | None:
    """The damage for which a replica cannot be loaded or repaired; None without one. Raises other
    errors of the directory.

    A damaged leader-epoch-checkpoint is made again.
    """
    try:
        partition = replicas.members.find_replica(node, damaged=True)
        if partition is not None:
            with partition.replica.exclusive(deadline()) as locked:
                locked.epochs()
    except LOAD_ERRORS as problem:
        return problem
    return None


def _begin_again(
    replicas: PartitionReplicas, node: int, problem: EmbedlogError, deadline: Callable[[], int]
) -> None:
    """Begin a replica again, empty, outside the ISR. Raises EligibleLeadersNotAvailableError,
    CorruptRecordError if the leader is damaged as well, LeaderNotAvailableError,
    NotEnoughDirectoriesError.
    """
    until = deadline()
    cause: BaseException | None = None
    while True:
        leader = replicas.leaders.find_leader(until)
        try:
            if leader.node == node:
                replicas.leaders.hand_over(leader, until, "its replica is damaged")
            else:
                check(leader.partition, leader.read_tuple().log_start)
                replicas.in_sync.remove_from_isr(
                    leader, node, until, f"node {node}: {problem}", lost=True
                )
                if replicas.in_sync.begin_again(leader, node, until):
                    logger.warning(
                        "%s: node %d is copied again from node %d: %s",
                        replicas.name,
                        node,
                        leader.node,
                        problem,
                    )
                return
        except SourceDamagedError as damage:
            text = f"{replicas.name} is damaged also in its leader, node {leader.node}"
            raise CorruptRecordError(text, path=damage.difference.path, found=damage) from damage
        except (LeaderChanged, Fenced, NotLeader) as changed:
            cause = changed.__cause__ or changed
        if system.boot_ns() >= until:
            raise LeaderNotAvailableError(
                f"the leader of {replicas.name} changed until the deadline of a repair"
            ) from cause
