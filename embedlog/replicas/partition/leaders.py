"""This module finds the leader of one partition, installs decisions about it, and elects another
one if it fails.

The page of a leader decides whether it leads. A decision that was only read is settled before its
installation. An error of a directory changes the leader. An error of the process is raised and
changes nothing.

A directory that fails costs one decision: it elects the leaders of all partitions in use that lost
theirs with it. Elections that repeat pause (`node_pauses`). An election of a partition without a
leader undoes no other one, and has no pause.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from embedlog._native import replication, system
from embedlog.errors import (
    EligibleLeadersNotAvailableError,
    EmbedlogError,
    LockTimeoutError,
    NotEnoughDirectoriesError,
    NotEnoughReplicasError,
)
from embedlog.partition.replication.replica_log import LeaderDecision
from embedlog.replicas.decisions.proposals import Steps
from embedlog.replicas.members.open_directories import OpenDirectories, OpenDirectory
from embedlog.replicas.partition.in_sync_replicas import UNSETTLED, InSyncReplicas
from embedlog.replicas.partition.leader import Leader, LeaderChanged, decision_of
from embedlog.replicas.partition.node_pauses import NodePauses
from embedlog.replicas.partition.partition_directories import Decisions, PartitionDirectories
from embedlog.replicas.partition.staged_epochs import EpochStaging
from embedlog.replicas.rules.events import Condition, Elect, Election, Refusal, Seen
from embedlog.replicas.rules.records import NO_LEADER, DecidedPartition

if TYPE_CHECKING:
    from embedlog.partition.replication.replica_log import Staging
    from embedlog.replicas.rules.state import State

logger = logging.getLogger("embedlog")


UNCLEAN_NS: Final = 9_000_000_000  # Kafka's broker.session.timeout.ms
ELECTIONS_MAX: Final = 500  # in one decision: a batch has room for them


class Leaders:
    """The leaders of one partition, for this process. Threads: any."""

    def __init__(
        self,
        members: PartitionDirectories,
        directories: OpenDirectories,
        decisions: Decisions,
        in_sync: InSyncReplicas,
        pauses: NodePauses,
    ) -> None:
        self._members = members
        self._directories = directories
        self._decisions = decisions
        self._in_sync = in_sync
        self._pauses = pauses
        self.unclean_default = False  # the setting of the log, for a topic without its own
        # with the partitions that the same decision gave other leaders
        self._staged: EpochStaging | None = None
        # the time of the first election without an eligible replica; 0 after a leader was found
        self._unled_ns = 0
        self.peers: Callable[[], Sequence[Leaders]] = list  # of the partitions in use

    # ---- the leader ------------------------------------------------------------------------------

    def find_leader(
        self, deadline_ns: int, lowest: int = -1, *, wait: bool = True, show: bool = True
    ) -> Leader:
        """The replica that leads, in an epoch from `lowest` on. Elects one if the current leader
        fails.

        Without `wait` one attempt is made. Without `show` the caller commits what it appends next,
        and with it the start of the epoch. Raises LeaderNotAvailableError at the deadline, with the
        last problem in the message; decisions wake the wait for it.
        """
        reason = ""
        while True:
            version = self._directories.version()
            state = self._decisions.counted_state()
            decided = self._members.find_decision(state)
            self._members.open_new_members(decided)
            if self._directories.read_only:
                return self._find_readable(decided)
            leader = self.install_leader(state, deadline_ns, show=show)
            if leader is not None and leader.epoch >= lowest:
                self._unled_ns = 0
                return leader
            # if so, the copy that was read is older than the page
            is_present = leader is None and self._is_present(decided)
            if is_present:
                reason = self._raise_epoch_of_leader(decided, deadline_ns)
            elif self._pauses.has_paused_elections(decided.leader):
                reason = "its leader fails for this process only"
            else:
                reason = self._elect(deadline_ns)
            if system.boot_ns() >= deadline_ns or (reason and not wait):
                raise self._members.unavailable_error(decided, reason)
            if (is_present or reason) and not self._members.wait(version, deadline_ns):
                raise self._members.unavailable_error(decided, reason)

    def _find_readable(self, decided: DecidedPartition) -> Leader:
        """For a reader that changes nothing: the leader, or the member of the ISR with the highest
        watermark.
        """
        best: Leader | None = None
        best_rank = (False, -1)
        for node in decided.isr:
            member = self._members.usable_directory(node)
            if member is None:
                continue
            try:
                partition = self._members.open_replica(member)
                now = partition.published()
            except EmbedlogError as problem:
                self._members.blame(problem)
                continue
            rank = (node == decided.leader, now.high_watermark)
            if best is None or rank > best_rank:
                best = Leader(node, partition, now.epoch)
                best_rank = rank
        if best is None:
            raise self._members.unavailable_error(decided, "")
        return best

    def find_present_leader(self) -> Leader | None:
        """The decided leader if its page shows that it leads; nothing is installed or elected for
        that.
        """
        decided = self._decisions.counted_state().partitions.get(self._members.partition_id)
        if decided is None:
            return None
        partition = self._members.find_replica(decided.leader)
        if partition is None:
            return None
        with suppress(EmbedlogError):
            now, replica = partition.replica.published()
            if replica.role == replication.ROLE_LEADER and now.epoch == decided.leader_epoch:
                return Leader(decided.leader, partition, now.epoch)
        return None

    def begin(self, deadline_ns: int) -> None:
        """Give the replicas of a new partition their roles. A failure is left to its first user."""
        with suppress(EmbedlogError):
            self.install_leader(self._decisions.counted_state(), deadline_ns)

    def _is_present(self, decided: DecidedPartition) -> bool:
        """Whether the decided leader's directory is usable, and registered as at its election."""
        if decided.leader == NO_LEADER:
            return False
        member = self._members.usable_directory(decided.leader)
        return member is not None and member.registration_id == decided.leader_registration_id

    def install_leader(self, state: State, deadline_ns: int, *, show: bool = True) -> Leader | None:
        """The leader in this state, with the decision installed; None if there is none, or if its
        directory fails.
        """
        decided = self._members.find_decision(state)
        member = self._members.usable_directory(decided.leader)
        if member is None:
            return None
        try:
            partition = self._members.load_replica(member)
            now, replica = partition.replica.published()
            page_epochs = (now.epoch, replica.partition_epoch)
            decided_epochs = (decided.leader_epoch, decided.partition_epoch)
            if replica.role == replication.ROLE_LEADER and page_epochs >= decided_epochs:
                leader = Leader(decided.leader, partition, now.epoch)
                if show and now.high_watermark < replica.epoch_start:
                    self._commit_epoch_start(leader, replica.epoch_start, deadline_ns)
                return leader
            if (
                now.epoch > decided.leader_epoch
                or member.registration_id != decided.leader_registration_id
            ):
                return None
            staged = self._staged
            self._staged = None
            if staged is not None:
                staged.prepare(self, state)
            return self._install_settled(state, deadline_ns, show=show)
        except EmbedlogError as problem:
            self._members.blame(problem)
            return None

    def _install_settled(self, read: State, deadline_ns: int, *, show: bool) -> Leader | None:
        """Install the settled decision in the leader's page (REPLICA-9). `read` is the state that
        was read.
        """
        try:
            state = self._decisions.last_decided_state()
            if not self._has_decision(state, read):
                state = self._decisions.settle(deadline_ns)
        except NotEnoughDirectoriesError as problem:
            return self._install_unsettled(problem, deadline_ns)
        decided = self._members.find_decision(state)
        member = self._members.usable_directory(decided.leader)
        if member is None or member.registration_id != decided.leader_registration_id:
            return None
        partition = self._members.load_replica(member)
        lead = partial(partition.replica.lead, decision_of(decided, state), deadline_ns)
        if self._directories.runner_of(member.node)(lead):
            logger.debug(
                "%s: node %d leads in epoch %d, ISR %s",
                self._members.name,
                decided.leader,
                decided.leader_epoch,
                list(decided.isr),
            )
        now, replica = partition.replica.published()
        if replica.role != replication.ROLE_LEADER:
            return None
        leader = Leader(decided.leader, partition, now.epoch)
        if show:
            self._commit_epoch_start(leader, replica.epoch_start, deadline_ns)
        return leader

    def _has_decision(self, state: State, read: State) -> bool:
        """Whether a state has the decision that was read, with the same settings."""
        if state is read:
            return True
        decided = self._members.find_decision(read)
        if state.partitions.get(self._members.partition_id) != decided:
            return False
        return state.required_size(decided) == read.required_size(decided)

    def _install_unsettled(self, problem: EmbedlogError, deadline_ns: int) -> Leader | None:
        """Without a majority: let the leader that was read serve readers up to the checkpointed
        high watermark, and `acks=1`, and commit nothing.

        A newer decision may be in the directories that are away. The page gets the partition epoch
        before that decision, so that a settled one replaces it.
        """
        decided = self._members.find_decision(self._decisions.counted_state())
        member = self._members.usable_directory(decided.leader)
        if member is None or member.registration_id != decided.leader_registration_id:
            return None
        partition = self._members.open_replica(member)
        all_slots = sum(1 << slot for slot in self._directories.slots().values())
        unsettled = LeaderDecision(
            decided.leader, decided.leader_epoch, decided.partition_epoch - 1, all_slots, UNSETTLED
        )
        lead = partial(partition.replica.lead, unsettled, deadline_ns)
        if self._directories.runner_of(member.node)(lead):
            logger.warning(
                "%s: node %d leads without a majority, and commits nothing: %s",
                self._members.name,
                decided.leader,
                problem,
            )
        now, replica = partition.replica.published()
        if replica.role != replication.ROLE_LEADER:
            return None
        return Leader(decided.leader, partition, now.epoch)

    def _commit_epoch_start(self, leader: Leader, start: int, deadline_ns: int) -> None:
        """Bring the ISR to the start of the epoch, from which on the leader returns records
        (REPLICA-10).
        """
        with suppress(LeaderChanged, NotEnoughReplicasError, NotEnoughDirectoriesError):
            self._in_sync.commit(leader, start, deadline_ns, wait=False)

    def stage_epochs(self, state: State) -> Iterator[Staging]:
        """Write the epochs that the leader in this state and its followers will store."""
        decided = self._members.find_decision(state)
        for node in decided.isr:
            try:
                member = self._members.usable_directory(node)
                if member is None:
                    continue
                leads = node == decided.leader
                if leads and member.registration_id != decided.leader_registration_id:
                    continue
                replica = self._members.load_replica(member).replica
                stage = partial(replica.stage_epoch, decided.leader_epoch, leads=leads)
                staging = self._directories.run_at(node, stage)
                if staging is not None:
                    yield staging
            except EmbedlogError as problem:
                logger.debug(
                    "%s: the epochs of node %d are not prepared: %s",
                    self._members.name,
                    node,
                    problem,
                )

    # ---- elections -------------------------------------------------------------------------------

    def _elect(self, deadline_ns: int) -> str:
        """Elect a leader among the replicas that this process reaches; the reason if that is not
        possible now.

        The same decision elects leaders of other partitions that lost theirs with the same
        directory.
        """
        reason = self._directories.undecided_reason() or self._directories.undecided_reason(
            self._members.partition_id
        )
        if reason:
            return reason
        leader = self._members.find_decision(self._decisions.counted_state()).leader
        if leader == NO_LEADER:
            cause = "there is no leader"
        else:
            cause = f"the leader, node {leader}: {self._members.describe_node(leader)}"
        peers = self._find_unled_peers()
        peer_elections = [peer.make_election for peer in peers]
        steps = Steps([self.make_election], peer_elections, ELECTIONS_MAX)
        try:
            outcome = self._decisions.propose(steps, deadline_ns, reason=cause)
        except NotEnoughDirectoriesError as problem:
            self._directories.note_undecided(None, str(problem))
            return str(problem)
        except LockTimeoutError as problem:  # another thread or process decides
            return str(problem)
        if isinstance(outcome, Refusal):
            self._note_unled()
            if outcome is Refusal.ELECTION_NOT_NEEDED:
                return ""
            reason = str(outcome.value)
            self._directories.note_undecided(self._members.partition_id, reason)
            return reason
        elected = (self, *(peers[number] for number in outcome.others))
        staged = EpochStaging(elected)
        for partition in elected:
            partition._staged = staged
            if leader != NO_LEADER:
                partition._pauses.note_election(leader)
        if self._members.find_decision(outcome.state).leader == NO_LEADER:
            self._note_unled()
        else:
            self._unled_ns = 0
        return ""

    def _note_unled(self) -> None:
        """No replica could be elected: remember since when."""
        if not self._unled_ns:
            self._unled_ns = system.boot_ns()

    def make_election(self, state: State, offset: int) -> Elect:
        """The event of an election among the replicas that this process reaches. Raises
        LeaderNotAvailableError.

        An unclean one, which the settings must allow, only after this process has found no eligible
        replica for `UNCLEAN_NS`: a directory that is absent for a moment costs nothing.
        """
        decided = self._members.find_decision(state)
        is_allowed = state.allows_unclean(self._members.topic)
        if is_allowed is None:
            is_allowed = self.unclean_default
        is_due = bool(self._unled_ns) and system.boot_ns() - self._unled_ns >= UNCLEAN_NS
        return Elect(
            self._members.partition_id,
            Election.OFFLINE,
            decided.partition_epoch,
            self.observe_replicas(decided),
            allowed=is_allowed and is_due,
        )

    def _raise_epoch_of_leader(self, decided: DecidedPartition, deadline_ns: int) -> str:
        """Raise the leader epoch above that of the page of the decided leader; the reason if that
        is not possible now.
        """
        member = self._directories.get(decided.leader)
        if member is None:
            return ""
        try:
            self._members.raise_epoch_above(
                self._members.open_replica(member), decided.leader_epoch, deadline_ns
            )
        except NotEnoughDirectoriesError as problem:
            return str(problem)
        except EmbedlogError as problem:
            self._members.blame(problem)
        return ""

    def hand_over(self, leader: Leader, deadline_ns: int, reason: str) -> None:
        """Elect another complete member of the ISR instead of this leader, unless that has
        happened.

        Raises EligibleLeadersNotAvailableError if there is none, NotEnoughDirectoriesError.
        """

        def elect_other(state: State, offset: int) -> Elect:
            decided = self._members.find_decision(state)
            observed = self.observe_replicas(decided)
            observed.pop(leader.node, None)
            if not any(
                node in decided.isr and replica.condition is Condition.COMPLETE
                for node, replica in observed.items()
            ):
                text = f"no other replica in the ISR of {self._members.name} is complete"
                raise EligibleLeadersNotAvailableError(
                    text, expected=f"one of {list(decided.replicas)}", found=list(decided.isr)
                )
            return Elect(
                self._members.partition_id, Election.OFFLINE, decided.partition_epoch, observed
            )

        self._decisions.propose(
            Steps([elect_other]), deadline_ns, reason=f"node {leader.node}: {reason}"
        )

    def _find_unled_peers(self) -> list[Leaders]:
        """Other partitions in use whose leader was in the same directory as that of this one."""
        state = self._decisions.counted_state()
        unled = list[Leaders]()
        own = self._members.find_decision(state)
        self._load_replicas(own)
        for peer in self.peers():
            decided = state.partitions.get(peer._members.partition_id)
            if decided is None or peer is self or decided.leader != own.leader:
                continue
            if not peer._is_present(decided) and not peer._pauses.has_paused_elections(
                decided.leader
            ):
                peer._load_replicas(decided)
                unled.append(peer)
        return unled

    def _load_replicas(self, decided: DecidedPartition) -> None:
        """Load the replicas that this process has not opened yet: the decision holds locks for
        which others wait.
        """
        for node in decided.replicas:
            with suppress(EmbedlogError):  # the election meets it again
                member = self._members.usable_directory(node)
                if member is not None:
                    self._members.load_replica(member)

    def observe_replicas(self, decided: DecidedPartition) -> dict[int, Seen]:
        """The replicas that this process reaches."""
        observed: dict[int, Seen] = {}
        for node in decided.replicas:
            member = self._members.usable_directory(node)
            if member is None:
                continue
            observe = partial(self._observe_replica, member)
            try:
                observed[node] = self._directories.run_at(node, observe, slow=True)
            except EmbedlogError as problem:
                self._members.blame(problem)
        return observed

    def _observe_replica(self, member: OpenDirectory) -> Seen:
        partition = self._members.open_replica(member)
        now, replica, epoch = partition.replica.last_shown()
        # a page without a role was made from files (REPLICA-11, REPLICA-13)
        is_complete = replica.role != replication.ROLE_NONE or partition.replica.is_kept()
        condition = Condition.COMPLETE if is_complete else Condition.CRASHED
        return Seen(condition, member.registration_id, epoch, now.log_end)
