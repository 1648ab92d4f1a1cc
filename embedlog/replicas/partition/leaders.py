"""This module finds the leader of one partition, installs decisions about it, and elects another
one if it fails.

The page of a leader decides whether it leads. A decision that was only read is settled before its
installation. An error of a directory changes the leader. An error of the process is raised and
changes nothing.

A directory that fails costs one decision: it elects the leaders of all partitions in use that lost
theirs with it. Elections and evictions of one node pause if they repeat: two processes must not
undo each other for ever. The pauses of a node end when this process has used it with success in
between: then its next failure is one for all. An election of a partition without a leader undoes no
other one, and has no pause.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from embedlog._native import replication, system
from embedlog.errors import (
    EligibleLeadersNotAvailableError,
    EmbedlogError,
    LockTimeoutError,
    NotEnoughDirectoriesError,
    NotEnoughReplicasError,
)
from embedlog.partition.replication.replica_log import Decision, NotLeader
from embedlog.replicas.decisions.proposals import Steps
from embedlog.replicas.members.open_directories import Limit, OpenDirectories, OpenDirectory
from embedlog.replicas.partition.evictions import Evictions
from embedlog.replicas.partition.partition_directories import Decisions, PartitionDirectories
from embedlog.replicas.partition.staged_epochs import StagedEpochs
from embedlog.replicas.rules.events import Elect, Election, Found, Place, RaiseEpoch, Refusal, Seen
from embedlog.replicas.rules.records import NO_LEADER
from embedlog.replicas.rules.records import Partition as Decided

if TYPE_CHECKING:
    from embedlog._native.replication import Replica
    from embedlog._native.system import Published
    from embedlog.partition.partition import Partition
    from embedlog.partition.replication.replica_log import Staging
    from embedlog.replicas.rules.state import State

logger = logging.getLogger("embedlog")


UNSETTLED: Final = 1 << 16  # as `min.insync.replicas`, larger than any ISR: nothing is committed
UNCLEAN_NS: Final = 9_000_000_000  # Kafka's broker.session.timeout.ms
ELECTIONS_MAX: Final = 500  # in one decision: a batch has room for them


class Leader(NamedTuple):
    """A replica whose page led in this epoch at the last look."""

    node: int
    partition: Partition
    epoch: int

    def shown(self) -> Published:
        """The tuple of its page. Raises NotLeader unless the page leads in this epoch now."""
        return self.page()[0]

    def page(self) -> tuple[Published, Replica]:
        """What its page shows. Raises NotLeader unless it leads in this epoch now.

        A page that was made again from files may show another log start, and records that are not
        committed.
        """
        now, replica = self.partition.replica.published()
        if replica.role != replication.ROLE_LEADER or now.epoch != self.epoch:
            raise NotLeader
        return now, replica


def slot_of(state: State, node: int) -> int | None:
    """The bit of a node in the ISR of control pages; None for a directory that has left the set."""
    registered = state.nodes.get(node)
    return None if registered is None else registered.slot


def decision_of(decided: Decided, state: State) -> Decision:
    """A decision of this state, as the leader's page contains it. The state has the slots of all
    nodes of the ISR.
    """
    isr = sum(1 << state.nodes[node].slot for node in decided.isr)
    return Decision(
        decided.leader, decided.leader_epoch, decided.partition_epoch, isr, state.required(decided)
    )


class LeaderChanged(Exception):
    """The leader failed or was replaced during the work. Never leaves the package."""


class Leaders(PartitionDirectories):
    """The leaders of one partition, for this process. Threads: any."""

    def __init__(
        self, directories: OpenDirectories, decisions: Decisions, place: Place, topic: str
    ) -> None:
        super().__init__(directories, decisions, place, topic)
        self._elections: dict[int, Limit] = {}  # the pauses, by the node that was the leader
        self._evictions = Evictions()
        self.unclean_default = False  # the setting of the log, for a topic without its own
        self.least_default = 1  # `min.insync.replicas` of the log, as above
        # with the partitions that the same decision gave other leaders
        self._staged: StagedEpochs | None = None
        # the time of the first election without an eligible replica; 0 after a leader was found
        self._unled_ns = 0
        self.peers: Callable[[], Sequence[Leaders]] = list  # the partitions that this process uses

    # ---- the leader ------------------------------------------------------------------------------

    def find_leader(
        self, deadline_ns: int, lowest: int = -1, *, wait: bool = True, show: bool = True
    ) -> Leader:
        """The replica that leads, in an epoch from `lowest` on. Elects one if the present leader
        fails.

        Without `wait` one attempt is made. Without `show` the caller commits what it appends next,
        and with it the start of the epoch. Raises LeaderNotAvailableError at the deadline, with the
        last problem in the message; decisions wake the wait for it.
        """
        reason = ""
        while True:
            version = self._directories.version()
            state = self._decisions.hint()
            decided = self.find_decision(state)
            self.open_new_members(decided)
            if self._directories.read_only:
                return self._find_readable(decided)
            leader = self._install_leader(state, deadline_ns, show=show)
            if leader is not None and leader.epoch >= lowest:
                self._unled_ns = 0
                return leader
            # if so, the copy that was read is older than the page
            is_present = leader is None and self._is_present(decided)
            if is_present:
                reason = self._raise_epoch_of_leader(decided, deadline_ns)
            elif self._is_paused(decided.leader):
                reason = "its leader fails for this process only"
            else:
                reason = self._elect(deadline_ns)
            if system.boot_ns() >= deadline_ns or (reason and not wait):
                raise self._unavailable_error(decided, reason)
            if (is_present or reason) and not self.wait(version, deadline_ns):
                raise self._unavailable_error(decided, reason)

    def _find_readable(self, decided: Decided) -> Leader:
        """For a reader that changes nothing: the leader, or the member of the ISR with the highest
        watermark.
        """
        best: Leader | None = None
        best_rank = (False, -1)
        for node in decided.isr:
            member = self.usable_directory(node)
            if member is None:
                continue
            try:
                partition = self._open_replica(member)
                now = partition.published()
            except EmbedlogError as problem:
                self.blame(problem)
                continue
            rank = (node == decided.leader, now.high_watermark)
            if best is None or rank > best_rank:
                best = Leader(node, partition, now.epoch)
                best_rank = rank
        if best is None:
            raise self._unavailable_error(decided, "")
        return best

    def is_replaced(self, leader: Leader) -> bool:
        """Whether a decision has another leader, or the topic was deleted. The page of a failed
        leader need not show it.
        """
        decided = self._decisions.hint().partitions.get(self._place)
        return decided is None or decided.leader_epoch > leader.epoch

    def decided_epoch(self) -> int:
        """The leader epoch of the newest decision. Raises UnknownTopicOrPartitionError."""
        return self.find_decision(self._decisions.hint()).leader_epoch

    def begin(self, deadline_ns: int) -> None:
        """Give the replicas of a new partition their roles. A failure is left to its first user."""
        with suppress(EmbedlogError):
            self._install_leader(self._decisions.hint(), deadline_ns)

    def _is_present(self, decided: Decided) -> bool:
        """Whether the decided leader's directory is usable in the incarnation of its election."""
        if decided.leader == NO_LEADER:
            return False
        member = self.usable_directory(decided.leader)
        return member is not None and member.incarnation == decided.leader_incarnation

    def _install_leader(
        self, state: State, deadline_ns: int, *, show: bool = True
    ) -> Leader | None:
        """The leader in this state, with the decision installed; None if there is none, or if its
        directory fails.
        """
        decided = self.find_decision(state)
        member = self.usable_directory(decided.leader)
        if member is None:
            return None
        try:
            partition = self._load_replica(member)
            now, replica = partition.replica.published()
            page_epochs = (now.epoch, replica.partition_epoch)
            decided_epochs = (decided.leader_epoch, decided.partition_epoch)
            if replica.role == replication.ROLE_LEADER and page_epochs >= decided_epochs:
                leader = Leader(decided.leader, partition, now.epoch)
                if show and now.high_watermark < replica.epoch_start:
                    self._commit_epoch_start(leader, replica.epoch_start, deadline_ns)
                return leader
            if now.epoch > decided.leader_epoch or member.incarnation != decided.leader_incarnation:
                return None
            staged = self._staged
            self._staged = None
            if staged is not None:
                staged.prepare(self, state)
            return self._install_settled(state, deadline_ns, show=show)
        except EmbedlogError as problem:
            self.blame(problem)
            return None

    def _install_settled(self, read: State, deadline_ns: int, *, show: bool) -> Leader | None:
        """Install the settled decision in the leader's page (REPLICA-9). `read` is the state that
        was read.
        """
        try:
            state = self._decisions.settled_state()
            if not self._has_decision(state, read):
                state = self._decisions.settle(deadline_ns)
        except NotEnoughDirectoriesError as problem:
            return self._install_unsettled(problem, deadline_ns)
        decided = self.find_decision(state)
        member = self.usable_directory(decided.leader)
        if member is None or member.incarnation != decided.leader_incarnation:
            return None
        partition = self._load_replica(member)
        lead = partial(partition.replica.lead, decision_of(decided, state), deadline_ns)
        if self._directories.making(member.node)(lead):
            logger.debug(
                "%s: node %d leads in epoch %d, ISR %s",
                self.name,
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
        decided = self.find_decision(read)
        if state.partitions.get(self._place) != decided:
            return False
        return state.required(decided) == read.required(decided)

    def _install_unsettled(self, problem: EmbedlogError, deadline_ns: int) -> Leader | None:
        """Without a majority: let the leader that was read serve readers up to the checkpointed
        high watermark, and `acks=1`, and commit nothing.

        A newer decision may be in the directories that are away. The page gets the partition epoch
        before that decision, so that a settled one replaces it.
        """
        decided = self.find_decision(self._decisions.hint())
        member = self.usable_directory(decided.leader)
        if member is None or member.incarnation != decided.leader_incarnation:
            return None
        partition = self._open_replica(member)
        all_slots = sum(1 << slot for slot in self._directories.slots().values())
        unsettled = Decision(
            decided.leader, decided.leader_epoch, decided.partition_epoch - 1, all_slots, UNSETTLED
        )
        lead = partial(partition.replica.lead, unsettled, deadline_ns)
        if self._directories.making(member.node)(lead):
            logger.warning(
                "%s: node %d leads without a majority, and commits nothing: %s",
                self.name,
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
            self.commit(leader, start, deadline_ns, wait=False)

    def stage_epochs(self, state: State) -> Iterator[Staging]:
        """Write the epochs that the leader in this state and its followers will store."""
        decided = self.find_decision(state)
        for node in decided.isr:
            try:
                member = self.usable_directory(node)
                if member is None:
                    continue
                leads = node == decided.leader
                if leads and member.incarnation != decided.leader_incarnation:
                    continue
                replica = self._load_replica(member).replica
                stage = partial(replica.stage_epoch, decided.leader_epoch, leads=leads)
                staging = self._directories.at(node, stage)
                if staging is not None:
                    yield staging
            except EmbedlogError as problem:
                logger.debug(
                    "%s: the epochs of node %d are not prepared: %s", self.name, node, problem
                )

    def needed_isr_size(self) -> int:
        """The size of the ISR that `acks=all` of this process needs, if the page requires no larger
        one.

        For a topic without a decided value it is the `min.insync.replicas` of the log. The page has
        the decided one, which all processes need.
        """
        if self.least_default == 1:
            return 1
        state = self._decisions.hint()
        decided = state.partitions.get(self._place)
        if decided is None:
            return 1
        return state.required(decided, self.least_default)

    def is_large_enough(self, leader: Leader) -> bool:
        """Whether the decided ISR is large enough for `acks=all` of this process. Raises NotLeader,
        StorageError.
        """
        _, replica = leader.page()
        return replica.decided_isr.bit_count() >= max(replica.min_in_sync, self.needed_isr_size())

    # ---- elections -------------------------------------------------------------------------------

    def _elect(self, deadline_ns: int) -> str:
        """Elect a leader among the replicas that this process reaches; the reason if that is not
        possible now.

        The same decision elects leaders of other partitions that lost theirs with the same
        directory.
        """
        reason = self._directories.undecided() or self._directories.undecided(self._place)
        if reason:
            return reason
        leader = self.find_decision(self._decisions.hint()).leader
        if leader == NO_LEADER:
            cause = "there is no leader"
        else:
            cause = f"the leader, node {leader}: {self._describe_node(leader)}"
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
            self._directories.note_undecided(self._place, reason)
            return reason
        elected = (self, *(peers[number] for number in outcome.others))
        staged = StagedEpochs(elected)
        for partition in elected:
            partition._staged = staged
            if leader != NO_LEADER:
                partition._elections.setdefault(leader, Limit()).made()
        if self.find_decision(outcome.state).leader == NO_LEADER:
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
        decided = self.find_decision(state)
        is_allowed = state.unclean(self.topic)
        if is_allowed is None:
            is_allowed = self.unclean_default
        is_due = bool(self._unled_ns) and system.boot_ns() - self._unled_ns >= UNCLEAN_NS
        return Elect(
            self._place,
            Election.OFFLINE,
            decided.partition_epoch,
            self.observe_replicas(decided),
            allowed=is_allowed and is_due,
        )

    def _raise_epoch_of_leader(self, decided: Decided, deadline_ns: int) -> str:
        """Raise the leader epoch above that of the page of the decided leader; the reason if that
        is not possible now.
        """
        member = self._directories.get(decided.leader)
        if member is None:
            return ""
        try:
            self.raise_epoch_above(self._open_replica(member), decided.leader_epoch, deadline_ns)
        except NotEnoughDirectoriesError as problem:
            return str(problem)
        except EmbedlogError as problem:
            self.blame(problem)
        return ""

    def raise_epoch_above(self, replica: Partition, epoch: int, deadline_ns: int) -> bool:
        """Whether a replica has a page with a later epoch than this one; the leader epoch is above
        it then.

        A page that was made from files may have an epoch above the decided one, begun by a broker
        or a process without the set.
        """
        now, page_replica = replica.replica.published()
        if page_replica.role != replication.ROLE_NONE or now.epoch <= epoch:
            return False
        event = RaiseEpoch(self._place, now.epoch)
        self._decisions.propose(
            Steps([lambda state, offset: event]),
            deadline_ns,
            reason=f"a replica that was written without the set is in epoch {now.epoch}",
        )
        return True

    def hand_over(self, leader: Leader, deadline_ns: int, reason: str) -> None:
        """Elect another complete member of the ISR instead of this leader, unless that has
        happened.

        Raises EligibleLeadersNotAvailableError if there is none, NotEnoughDirectoriesError.
        """

        def elect_other(state: State, offset: int) -> Elect:
            decided = self.find_decision(state)
            observed = self.observe_replicas(decided)
            observed.pop(leader.node, None)
            if not any(
                node in decided.isr and replica.found is Found.COMPLETE
                for node, replica in observed.items()
            ):
                text = f"no other replica in the ISR of {self.name} is complete"
                raise EligibleLeadersNotAvailableError(
                    text, expected=f"one of {list(decided.replicas)}", found=list(decided.isr)
                )
            return Elect(self._place, Election.OFFLINE, decided.partition_epoch, observed)

        self._decisions.propose(
            Steps([elect_other]), deadline_ns, reason=f"node {leader.node}: {reason}"
        )

    def is_leading(self, leader: Leader) -> bool:
        """Whether the page still shows this leader. Raises StorageError."""
        now, replica = leader.partition.replica.published()
        return (
            replica.role == replication.ROLE_LEADER
            and now.epoch == leader.epoch
            and not self.is_replaced(leader)
        )

    def is_member(self, leader: Leader, node: int) -> bool:
        """Whether a node is in the maximal ISR of this leader's page."""
        _, replica = leader.partition.replica.published()
        slot = slot_of(self._decisions.hint(), node)
        return slot is not None and bool(replica.maximal_isr >> slot & 1)

    def is_undecided(self, leader: Leader, node: int, decided: Decided) -> bool:
        """Whether this leader's page adds a node to the ISR of the newest decision: no decision has
        added it (REPLICA-6).
        """
        _, replica = leader.partition.replica.published()
        if replica.partition_epoch != decided.partition_epoch or node in decided.isr:
            return False
        return self.is_member(leader, node)

    def _is_paused(self, leader: int) -> bool:
        limit = self._elections.get(leader)
        return limit is not None and system.boot_ns() < limit.next_ns()

    def note_worked(self, node: int) -> None:
        """This process has used a node with success: its next failure is a new one."""
        self._elections.pop(node, None)
        self._evictions.forget(node)

    def _find_unled_peers(self) -> list[Leaders]:
        """Other partitions in use whose leader was in the same directory as that of this one."""
        state = self._decisions.hint()
        unled = list[Leaders]()
        own = self.find_decision(state)
        self._load_replicas(own)
        for peer in self.peers():
            decided = state.partitions.get(peer._place)
            if decided is None or peer is self or decided.leader != own.leader:
                continue
            if not peer._is_present(decided) and not peer._is_paused(decided.leader):
                peer._load_replicas(decided)
                unled.append(peer)
        return unled

    def _load_replicas(self, decided: Decided) -> None:
        """Load the replicas that this process has not opened yet: the decision holds locks for
        which others wait.
        """
        for node in decided.replicas:
            with suppress(EmbedlogError):  # the election meets it again
                member = self.usable_directory(node)
                if member is not None:
                    self._load_replica(member)

    def observe_replicas(self, decided: Decided) -> dict[int, Seen]:
        """The replicas that this process reaches."""
        observed: dict[int, Seen] = {}
        for node in decided.replicas:
            member = self.usable_directory(node)
            if member is None:
                continue
            observe = partial(self._observe_replica, member)
            try:
                observed[node] = self._directories.at(node, observe, slow=True)
            except EmbedlogError as problem:
                self.blame(problem)
        return observed

    def _observe_replica(self, member: OpenDirectory) -> Seen:
        partition = self._open_replica(member)
        now, replica, epoch = partition.replica.last_shown()
        # a page without a role was made from files (REPLICA-11, REPLICA-13)
        is_complete = replica.role != replication.ROLE_NONE or partition.replica.is_kept()
        condition = Found.COMPLETE if is_complete else Found.CRASHED
        return Seen(condition, member.incarnation, epoch, now.log_end)

    def commit(self, leader: Leader, end: int, deadline_ns: int, *, wait: bool = True) -> int:
        """Raise the high watermark to `end` (`PartitionReplicas`)."""
        raise NotImplementedError
