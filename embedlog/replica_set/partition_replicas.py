"""This module works on the replicas of one partition: it finds the leader, copies, commits, and proposes decisions.

All processes that use a set do this work for their own records. No step depends on memory: pages and decisions are read again.

PARTITIONREPLICAS-1  the page of a leader decides whether it leads. A decision that was only read is settled before its
    installation
PARTITIONREPLICAS-2  an append is committed when the high watermark has passed it in the epoch of the append. After a failover the
    epochs of the new leader show whether the append is in its log: if its epoch ended above the append, the append is there
PARTITIONREPLICAS-3  an error of a directory changes the ISR or the leader. An error of the process is raised and changes nothing
PARTITIONREPLICAS-4  each loop ends at its deadline, with the last problem in the message
PARTITIONREPLICAS-5  without a majority a leader after an orderly close serves readers up to the checkpointed high watermark, and
    `acks=1`. It commits nothing: a newer decision may be in the directories that are away
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias

from embedlog._native import replication, system
from embedlog.errors import (
    EmbedlogError,
    LeaderNotAvailableError,
    NotEnoughDirectoriesError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
)
from embedlog.partition.replication.replica_log import Decision, Fenced, NotLeader
from embedlog.replica_set.open_directories import OpenDirectories, OpenDirectory
from embedlog.replication.events import AlterIsr, Elect, Election, Event, Found, Place, Refusal, Seen
from embedlog.replication.records import NO_LEADER
from embedlog.replication.records import Partition as Decided
from embedlog.storage import file_names, files

if TYPE_CHECKING:
    from uuid import UUID

    from embedlog._native.replication import Replica
    from embedlog.partition.log_context import AppendProgress
    from embedlog.partition.partition import Partition
    from embedlog.replication.state import State

MakeEvent: TypeAlias = Callable[["State", int], Event]

logger = logging.getLogger("embedlog")

LOOK_NS: Final = 200_000_000  # at most, between two looks for a leader: decisions wake a waiting process earlier
COPY_BYTES: Final = 1 << 20
UNSETTLED: Final = 1 << 16  # as `min.insync.replicas`, larger than any ISR: nothing is committed
LATEST: Final = 2**31 - 1


class Outcome(Protocol):
    """The result of a decision."""

    @property
    def state(self) -> State: ...


class Decisions(Protocol):
    """The decision log of the set."""

    def hint(self) -> State:
        """The state by one reachable copy (QUORUM-7)."""

    def settle(self, deadline_ns: int | None = None) -> State:
        """The newest state, in which every record counts. Raises NotEnoughDirectoriesError."""

    def propose(self, steps: Sequence[MakeEvent], deadline_ns: int | None = None) -> Outcome | Refusal:
        """Decide about events, each derived from the newest state."""


class Leader(NamedTuple):
    """A replica whose page led in this epoch at the last look."""

    node: int
    partition: Partition
    epoch: int


class LeaderChanged(Exception):
    """The leader failed or was replaced during the work. Never leaves the package."""


class PartitionReplicas:
    """The replicas of one partition, for this process. Threads: any."""

    def __init__(self, directories: OpenDirectories, decisions: Decisions, place: Place, topic: str) -> None:
        self._directories, self._decisions, self._place, self.topic = directories, decisions, place, topic
        self.number = place[1]
        self.name = f"{topic}-{self.number}"
        self._joining = threading.Lock()
        self._spread = -1  # the last high watermark that the followers got

    @property
    def topic_id(self) -> UUID:
        return self._place[0]

    @property
    def changes(self) -> int:
        """A number that changes when a directory of the set fails or returns (OPENDIRECTORY-4)."""
        return self._directories.changes

    def deleted(self) -> bool:
        """Whether the topic was deleted, as far as one copy of the decision log shows."""
        return self._place not in self._decisions.hint().partitions

    def in_sync(self, leader: Leader) -> list[tuple[int, Partition]]:
        """The nodes and replicas of the maximal ISR that this process reaches, the leader first."""
        _, replica = leader.partition.replica.published()
        others = [node for node, slot in self._directories.slots().items() if replica.maximal_isr >> slot & 1]
        usable = [member for node in others if node != leader.node and (member := self._directories.get(node)) is not None]
        return [(leader.node, leader.partition), *((member.node, self._partition(member)) for member in usable)]

    # ---- the leader ------------------------------------------------------------------------------

    def leader(self, deadline_ns: int) -> Leader:
        """The replica that leads. Elects one if the present leader fails. Raises LeaderNotAvailableError."""
        reason = ""
        while True:
            version = self._directories.version()
            decided = self._decided(self._decisions.hint())
            if self._directories.read_only:
                return self._readable(decided)
            found = self._led(decided, deadline_ns)
            if found is not None:
                return found
            present = self._is_present(decided)  # if so, the copy that was read is older than the page
            reason = "" if present else self._elect(deadline_ns)
            now_ns = system.boot_ns()
            if now_ns >= deadline_ns:
                raise self._unavailable(decided, reason)
            if present or reason:
                self._directories.wait(version, min(deadline_ns, now_ns + LOOK_NS))

    def _readable(self, decided: Decided) -> Leader:
        """For a reader that changes nothing: the leader, or the member of the ISR with the highest watermark."""
        found: list[tuple[bool, int, Leader]] = []
        for node in decided.isr:
            member = self._directories.get(node)
            if member is None:
                continue
            try:
                partition = self._partition(member)
                now = partition.published()
                found.append((node == decided.leader, now.high_watermark, Leader(node, partition, now.epoch)))
            except EmbedlogError as problem:
                self.blame(problem)
        if not found:
            raise self._unavailable(decided, "")
        return max(found, key=lambda each: each[:2])[2]

    def begin(self, deadline_ns: int) -> None:
        """Give the replicas of a new partition their roles. A failure is left to its first user."""
        with suppress(EmbedlogError):
            self._led(self._decided(self._decisions.hint()), deadline_ns)

    def _decided(self, state: State) -> Decided:
        found = state.partitions.get(self._place)
        if found is None:
            raise self._unavailable(None, "the partition is not decided")
        return found

    def _unavailable(self, decided: Decided | None, reason: str) -> LeaderNotAvailableError:
        nodes = decided.replicas if decided is not None else ()
        states = [f"{node}: {self._reason(node)}" for node in nodes]
        text = f"no replica of {self.name} leads before the deadline"
        return LeaderNotAvailableError(f"{text}; {reason}" if reason else text, found="; ".join(states) or None)

    def _reason(self, node: int) -> str:
        member = next((each for each in self._directories if each.node == node), None)
        if member is None:
            return "not registered"
        return member.problem or ("usable" if member.directory is not None else "away")

    def _is_present(self, decided: Decided) -> bool:
        """Whether the decided leader's directory is usable in the incarnation of its election."""
        member = None if decided.leader == NO_LEADER else self._directories.get(decided.leader)
        return member is not None and member.incarnation == decided.leader_incarnation

    def _led(self, decided: Decided, deadline_ns: int) -> Leader | None:
        """The decided leader, with the decision installed; None if there is none, or if its directory fails."""
        member = self._directories.get(decided.leader)
        if member is None:
            return None
        try:
            partition = self._partition(member)
            now, replica = partition.replica.published()
            leads = replica.role == replication.ROLE_LEADER
            if leads and (now.epoch, replica.partition_epoch) >= (decided.leader_epoch, decided.partition_epoch):
                if now.high_watermark < replica.epoch_start:
                    self._show(Leader(decided.leader, partition, now.epoch), replica.epoch_start, deadline_ns)
                return Leader(decided.leader, partition, now.epoch)
            if now.epoch > decided.leader_epoch or member.incarnation != decided.leader_incarnation:
                return None
            return self._install(deadline_ns)
        except EmbedlogError as problem:
            self.blame(problem)
            return None

    def _install(self, deadline_ns: int) -> Leader | None:
        """Install the settled decision in the leader's page (PARTITIONREPLICAS-1, REPLICA-9)."""
        try:
            state = self._decisions.settle(deadline_ns)
        except NotEnoughDirectoriesError as problem:
            return self._install_unsettled(problem, deadline_ns)
        decided = self._decided(state)
        member = self._directories.get(decided.leader)
        if member is None or member.incarnation != decided.leader_incarnation:
            return None
        partition = self._partition(member)
        slots = self._directories.slots()
        isr = sum(1 << slots[node] for node in decided.isr)
        wanted = Decision(decided.leader, decided.leader_epoch, decided.partition_epoch, isr, state.required(decided))
        if partition.replica.lead(wanted, deadline_ns):
            logger.info(
                "%s: node %d leads in epoch %d, ISR %s", self.name, decided.leader, decided.leader_epoch, list(decided.isr)
            )
        now, replica = partition.replica.published()
        if replica.role != replication.ROLE_LEADER:
            return None
        leader = Leader(decided.leader, partition, now.epoch)
        self._show(leader, replica.epoch_start, deadline_ns)
        return leader

    def _install_unsettled(self, problem: EmbedlogError, deadline_ns: int) -> Leader | None:
        """Without a majority: let the leader that was read serve readers and `acks=1`, and commit nothing (PARTITIONREPLICAS-5).

        Its page gets the partition epoch before that decision, so that a settled one replaces it.
        """
        decided = self._decided(self._decisions.hint())
        member = self._directories.get(decided.leader)
        if member is None or member.incarnation != decided.leader_incarnation:
            return None
        partition, every = self._partition(member), sum(1 << slot for slot in self._directories.slots().values())
        wanted = Decision(decided.leader, decided.leader_epoch, decided.partition_epoch - 1, every, UNSETTLED)
        if partition.replica.lead(wanted, deadline_ns):
            logger.warning("%s: node %d leads without a majority, and commits nothing: %s", self.name, decided.leader, problem)
        now, replica = partition.replica.published()
        return Leader(decided.leader, partition, now.epoch) if replica.role == replication.ROLE_LEADER else None

    def _show(self, leader: Leader, start: int, deadline_ns: int) -> None:
        """Bring the ISR to the start of the epoch, from which on the leader returns records (REPLICA-10)."""
        with suppress(LeaderChanged, NotEnoughReplicasError, NotEnoughDirectoriesError):
            self.commit(leader, start, deadline_ns, patient=False)

    def _partition(self, member: OpenDirectory) -> Partition:
        if member.directory is None:
            raise LeaderNotAvailableError(f"the directory of node {member.node} is away")
        return member.directory.replica(self._place[0], self.number, self._decisions.hint())

    def blame(self, problem: EmbedlogError) -> int:
        """The node whose directory fails. Raises the error if it belongs to this process (PARTITIONREPLICAS-3)."""
        node = self._directories.blame(problem, missing=not self.deleted())
        if node is None:
            raise problem
        self._directories.fail(node, problem)
        logger.warning("%s: node %d failed: %s", self.name, node, problem)
        return node

    # ---- elections -------------------------------------------------------------------------------

    def _elect(self, deadline_ns: int) -> str:
        """Elect a leader among the replicas that this process reaches; the reason if that is not possible now."""

        def event(state: State, offset: int) -> Elect:
            decided = self._decided(state)
            return Elect(self._place, Election.OFFLINE, decided.partition_epoch, self.observed(decided))

        found = self._decisions.propose([event], deadline_ns)
        return found.value if isinstance(found, Refusal) and found is not Refusal.ELECTION_NOT_NEEDED else ""

    def observed(self, decided: Decided) -> dict[int, Seen]:
        """The replicas that this process reaches."""
        found = {}
        for node in decided.replicas:
            member = self._directories.get(node)
            if member is None:
                continue
            try:
                found[node] = self._seen(member)
            except EmbedlogError as problem:
                self.blame(problem)
        return found

    def _seen(self, member: OpenDirectory) -> Seen:
        partition = self._partition(member)
        now, replica = partition.replica.published()
        # A page without a role was made from files. They are complete if nothing was written since an orderly close (REPLICA-11).
        made = member.directory is not None and member.directory.was_made(*self._place) and now.log_end == 0
        complete = replica.role != replication.ROLE_NONE or made or not files.exists(partition.path / file_names.DIRTY)
        found = Found.COMPLETE if complete else Found.CRASHED if member.clean else Found.FOREIGN
        return Seen(found, member.incarnation, partition.epoch_end(LATEST)[0], now.log_end)

    # ---- the commit ------------------------------------------------------------------------------

    def commit(self, leader: Leader, end: int, deadline_ns: int, *, patient: bool = True) -> int:
        """Copy up to `end` to the ISR and raise the high watermark; it is at or above `end` then.

        If `patient`, it waits until the deadline for a majority that must decide. Raises LeaderChanged,
        NotEnoughReplicasAfterAppendError, NotEnoughDirectoriesError unless `patient`.
        """
        while True:
            version = self._directories.version()
            try:
                high_watermark = self._commit_once(leader, end, deadline_ns)
            except NotEnoughDirectoriesError as problem:
                if not patient:
                    raise
                if system.boot_ns() >= deadline_ns:
                    raise self._not_committed(leader, end) from problem
                self._directories.wait(version, min(deadline_ns, system.boot_ns() + LOOK_NS))
                continue
            except EmbedlogError as problem:
                if isinstance(problem, NotEnoughReplicasError):
                    raise
                if self.blame(problem) == leader.node:
                    raise LeaderChanged from problem
                continue  # the member is not usable any more, and leaves
            except (Fenced, NotLeader) as changed:
                raise LeaderChanged from changed
            if high_watermark >= end:
                return high_watermark
            self._check_size(leader, end)
            if system.boot_ns() >= deadline_ns:
                raise self._unavailable(None, f"offset {end} is not committed")

    def _commit_once(self, leader: Leader, end: int, deadline_ns: int) -> int:
        _, replica = leader.partition.replica.published()
        if replica.role != replication.ROLE_LEADER:
            raise NotLeader
        followers = []
        for node, slot in self._directories.slots().items():
            if node == leader.node or not replica.maximal_isr >> slot & 1:
                continue
            member = self._directories.get(node)
            if member is None:
                self.leave(leader, node, deadline_ns)
                continue
            follower = self._partition(member)
            copy(leader, follower, end, deadline_ns)
            followers.append((slot, follower.replica))
        return leader.partition.replica.commit(followers, leader.epoch, deadline_ns)

    def _check_size(self, leader: Leader, end: int) -> None:
        _, replica = leader.partition.replica.published()
        if replica.decided_isr.bit_count() < replica.min_in_sync:
            raise self._not_committed(leader, end)

    def _not_committed(self, leader: Leader, end: int) -> NotEnoughReplicasAfterAppendError:
        _, replica = leader.partition.replica.published()
        text = f"the records of {self.name} below {end} are in the leader's log, but not committed"
        return NotEnoughReplicasAfterAppendError(text, offset=end - 1, **self._in_sync(replica))

    def too_few(self, leader: Leader) -> NotEnoughReplicasError:
        """The error of an append that the leader refuses, because the decided ISR is too small."""
        _, replica = leader.partition.replica.published()
        return NotEnoughReplicasError(
            f"too few replicas of {self.name} are in sync; nothing was written", **self._in_sync(replica)
        )

    def _in_sync(self, replica: Replica) -> dict[str, Any]:
        """The facts of an error about the size of the ISR."""
        isr = tuple(node for node, slot in self._directories.slots().items() if replica.decided_isr >> slot & 1)
        state = self._decisions.hint()
        decided = self._decided(state)
        away = {node: self._reason(node) for node in decided.replicas if node not in isr or self._directories.get(node) is None}
        required = replica.min_in_sync if replica.min_in_sync != UNSETTLED else state.required(decided)
        return {
            "topic": self.topic, "partition": self.number, "isr": isr, "required": required, "away": away,
            "retriable": True,
        }  # fmt: skip

    # ---- the ISR ---------------------------------------------------------------------------------

    def tend(self, deadline_ns: int) -> None:
        """Commit what was appended with `acks=1`, and let the replicas outside the ISR catch up and join (REPLICA-25)."""
        decided = self._decided(self._decisions.hint())
        leader = self.leader(deadline_ns)
        try:
            now, replica = leader.partition.replica.published()
            if now.high_watermark < now.log_end and replica.decided_isr.bit_count() >= replica.min_in_sync:
                self.commit(leader, now.log_end, deadline_ns)
            self.spread(leader, deadline_ns)
            for node in decided.replicas:
                if node not in decided.isr and self._directories.get(node) is not None:
                    self.join(leader, node, deadline_ns)
        except LeaderChanged:
            logger.debug("%s: the leader changed during its housekeeping", self.name)

    def spread(self, leader: Leader, deadline_ns: int) -> None:
        """Store the high watermark in the followers, if it has moved since the last time: they learn it one copy late."""
        high_watermark = leader.partition.published().high_watermark
        if high_watermark == self._spread:
            return
        for _, follower in self.in_sync(leader)[1:]:
            with suppress(Fenced):
                follower.replica.learn(leader.epoch, high_watermark, deadline_ns)
        self._spread = high_watermark

    def close(self, deadline_ns: int) -> None:
        """Before the directories are left: the followers have the high watermark (REPLICA-19)."""
        with suppress(EmbedlogError, LeaderChanged):
            leader = self._led(self._decided(self._decisions.hint()), deadline_ns)
            if leader is not None:
                self.spread(leader, deadline_ns)

    def leave(self, leader: Leader, node: int, deadline_ns: int) -> None:
        """Remove a failed replica from the ISR: the decision first, then the page (REPLICA-5)."""

        def event(state: State, offset: int) -> AlterIsr:
            decided = self._decided(state)
            isr = tuple(each for each in decided.isr if each != node)
            return AlterIsr(self._place, leader.epoch, decided.partition_epoch, isr)

        self._decide_and_install(event, leader, deadline_ns)
        logger.info("%s: node %d left the ISR", self.name, node)

    def _decide_and_install(self, event: MakeEvent, leader: Leader, deadline_ns: int) -> bool:
        """Decide about the ISR, and install the decision in the leader's page; False if another decision came first."""
        found = self._decisions.propose([event], deadline_ns)
        if found is Refusal.FENCED_LEADER_EPOCH:
            raise LeaderChanged
        if found in (Refusal.INVALID_UPDATE_VERSION, Refusal.INELIGIBLE_REPLICA):
            return False
        if isinstance(found, Refusal):
            raise self._unavailable(None, found.value)
        return self._install_in(leader, found.state, deadline_ns)

    def _install_in(self, leader: Leader, state: State, deadline_ns: int) -> bool:
        decided, slots = self._decided(state), self._directories.slots()
        isr = sum(1 << slots[node] for node in decided.isr)
        wanted = Decision(decided.leader, decided.leader_epoch, decided.partition_epoch, isr, state.required(decided))
        return leader.partition.replica.lead(wanted, deadline_ns)

    def join(self, leader: Leader, node: int, deadline_ns: int) -> bool:
        """Copy to a replica outside the ISR, and add it: the page first, then the decision (REPLICA-6).

        False if its directory fails, or if another decision came first. Raises LeaderChanged.
        """
        member = self._directories.get(node)
        if member is None:
            return False
        try:
            return self._join(leader, member, deadline_ns)
        except EmbedlogError as problem:
            if self.blame(problem) == leader.node:
                raise LeaderChanged from problem
            return False
        except (Fenced, NotLeader) as changed:
            raise LeaderChanged from changed

    def _join(self, leader: Leader, member: OpenDirectory, deadline_ns: int) -> bool:
        node = member.node
        with self._joining:
            follower = self._partition(member)
            copy(leader, follower, leader.partition.published().log_end, deadline_ns)
            decided = self._decided(self._decisions.hint())
            slot = self._directories.slots()[node]
            if not leader.partition.replica.join(follower.replica, slot, leader.epoch, decided.partition_epoch, deadline_ns):
                return False
            event = AlterIsr(self._place, leader.epoch, decided.partition_epoch, (*decided.isr, node), {node: member.incarnation})
            joined = self._decide_and_install(lambda state, offset: event, leader, deadline_ns)
        if joined:
            logger.info("%s: node %d joined the ISR", self.name, node)
        return joined


def copy(leader: Leader, follower: Partition, end: int, deadline_ns: int) -> int:
    """Copy the leader's log up to `end` at least; the follower's log end. Raises Fenced, and errors of both directories."""
    now, replica = follower.replica.published()
    if now.epoch > leader.epoch:
        raise Fenced
    if now.epoch < leader.epoch or replica.role != replication.ROLE_FOLLOWER:
        follower.replica.follow(leader.node, leader.epoch, leader.partition.epoch_end, deadline_ns)
    at = follower.replica.published()[0].log_end
    while at < end:
        source = leader.partition.published()
        if at < source.log_start:
            with follower.replica.exclusive(deadline_ns) as held:
                held.restart(source.log_start)
            at = source.log_start
            continue
        fetched = leader.partition.replica.read(at, COPY_BYTES)
        if not len(fetched.batches):
            break
        at = follower.replica.take(fetched, leader.epoch, source.high_watermark, deadline_ns)
    return at


def committed_in(leader: Leader, epoch: int, offset: int) -> bool:
    """Whether a record that was appended in `epoch` at `offset` is in this leader's log (PARTITIONREPLICAS-2)."""
    known, end = leader.partition.epoch_end(epoch)
    return known == epoch and offset < end


def survived(progress: AppendProgress, leader: Leader, epoch: int) -> None:
    """Reduce the progress of an append in `epoch` to its first batches that are in this leader's log."""
    known, end = leader.partition.epoch_end(epoch)
    pieces, times_ms = progress.pieces, progress.times_ms
    rows = iter(progress.run.batches)
    progress.start, progress.pieces, progress.times_ms = 0, [], []
    for (base, following), time_ms in zip(pieces, times_ms, strict=True):
        while base < following:
            row = next(rows)
            after = base + int(row["last_offset_delta"]) + 1
            if known != epoch or after > end:
                return
            progress.take(base, after, int(row["size"]), time_ms)
            base = after
