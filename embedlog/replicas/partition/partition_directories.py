"""This module uses the replicas of one partition in the open directories: those that answer, the
failures of the others, and what the decisions say about them.

An error of a directory concerns all of its partitions. Damage concerns one replica, which rests for
a while: the other partitions of its directory stay in use. An error of the process is raised.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from embedlog._native import replication, system
from embedlog.errors import (
    CorruptRecordError,
    EmbedlogError,
    ForeignDirectoryError,
    LeaderNotAvailableError,
    LockTimeoutError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from embedlog.replicas.decisions.proposals import Steps
from embedlog.replicas.members.open_directories import (
    LOAD_ERRORS,
    DamagedReplica,
    OpenDirectories,
    OpenDirectory,
)
from embedlog.replicas.partition.copy_rate import RateLimit, Throttle, is_throttled
from embedlog.replicas.partition.leader import Leader
from embedlog.replicas.rules.events import PartitionId, RaiseEpoch, Refusal
from embedlog.replicas.rules.records import NO_LEADER, DecidedPartition
from embedlog.storage.call_deadline import NEVER_NS, bound_deadline, wait_end
from embedlog.telemetry import log_messages

if TYPE_CHECKING:
    from uuid import UUID

    from embedlog.config.topic import TopicConfig
    from embedlog.partition.partition import Partition
    from embedlog.replicas.decisions import proposals
    from embedlog.replicas.members.directory_workers import CallRunner, DirectoryWorker
    from embedlog.replicas.rules.state import State

logger = logging.getLogger("embedlog")

# at most, between two looks for a leader: decisions wake a waiting process earlier
CHECK_NS: Final = 200_000_000


class Decisions(Protocol):
    """The decision log of the set."""

    def counted_state(self) -> State:
        """The state by one reachable copy (QUORUM-7)."""

    def is_newest(self, state: State) -> bool:
        """Whether a state has all decisions that count. False without a majority."""

    def settle(self, deadline_ns: int | None = None) -> State:
        """The decided state. Raises NotEnoughDirectoriesError."""

    def last_decided_state(self) -> State:
        """The state at the last decision or settlement of this process: all of its records count,
        and later ones may exist.
        """

    def propose(
        self, steps: proposals.Steps, deadline_ns: int | None = None, *, reason: str = ""
    ) -> proposals.Decision | Refusal:
        """Decide about events, each derived from the decided state. The reason is for the log."""


class PartitionDirectories:
    """The replicas of one partition, for this process. Threads: any."""

    def __init__(
        self,
        directories: OpenDirectories,
        decisions: Decisions,
        partition_id: PartitionId,
        topic: str,
    ) -> None:
        self._directories = directories
        self._decisions = decisions
        self._partition_id = partition_id
        self.topic = topic
        self.number = partition_id[1]
        self.name = f"{topic}-{self.number}"
        # the nodes whose replica was found damaged here, until it is repaired
        self.damaged: dict[int, DamagedReplica] = {}

    @property
    def partition_id(self) -> PartitionId:
        return self._partition_id

    @property
    def topic_uuid(self) -> UUID:
        return self._partition_id[0]

    @property
    def changes(self) -> int:
        """A number that changes when a directory of the set fails or returns."""
        return self._directories.changes

    def version(self) -> int:
        """A number that changes with each decision."""
        return self._directories.version()

    def wait(
        self, version: int, deadline_ns: int, tails: Sequence[tuple[system.Page, int]] = ()
    ) -> bool:
        """Sleep until the next decision after a version or a committed record at a tail, at most
        until the deadline, or for CHECK_NS. False without a sleep at the deadline, and if this
        thread has other work.
        """
        now_ns = system.boot_ns()
        until_ns = wait_end(deadline_ns)
        if now_ns >= until_ns:
            return False
        self._directories.wait(version, min(until_ns, now_ns + CHECK_NS), tails)
        return True

    @property
    def read_only(self) -> bool:
        """Whether this process changes nothing: it reads whatever replica it reaches."""
        return self._directories.read_only

    def worker(self, node: int) -> DirectoryWorker | None:
        """The worker of the directory of a node; None if calls about it are made by the thread of
        the caller.
        """
        return self._directories.worker(node)

    def runner_of(self, node: int) -> CallRunner:
        """What makes calls that change the replica of a node."""
        return self._directories.runner_of(node)

    def lock_deadline(self, deadline_ns: int) -> int:
        """The time until which one lock is waited for."""
        return self._directories.lock_deadline(deadline_ns)

    def make_throttle(
        self, config: TopicConfig, source: int, target: int, rate: int | None
    ) -> Throttle:
        """The limits of copies to a replica outside the ISR: of its topic, and the `rate` of a
        reassignment.
        """
        out_rate, in_rate = self._directories.rates
        limits = list[RateLimit]()
        rates = list[int]()
        throttled_sources = config.leader_replication_throttled_replicas
        if out_rate is not None and is_throttled(throttled_sources, self.number, source):
            rates.append(out_rate)
        if rate is not None:
            rates.append(rate)
        member = self._directories.member(source)
        if rates and member is not None and member.directory is not None:
            limits.append(RateLimit(member.directory.copies_out, min(rates)))
        throttled_targets = config.follower_replication_throttled_replicas
        if in_rate is not None and is_throttled(throttled_targets, self.number, target):
            member = self._directories.member(target)
            if member is not None and member.directory is not None:
                limits.append(RateLimit(member.directory.copies_in, in_rate))
        return Throttle(limits)

    def is_deleted(self) -> bool:
        """Whether the topic was deleted, as far as one copy of the decision log shows."""
        return self._partition_id not in self._decisions.counted_state().partitions

    def usable_directory(self, node: int) -> OpenDirectory | None:
        """The directory of a node if this process uses its replica now, otherwise None."""
        damage = self.damaged.get(node)
        if damage is not None and damage.is_resting():
            return None
        return self._directories.get(node)

    def is_open(self, node: int) -> bool:
        """Whether the directory of a node is usable, although the replica in it may be damaged."""
        return self._directories.get(node) is not None

    def find_replica(self, node: int, *, damaged: bool = False) -> Partition | None:
        """The replica of a node; None if its directory is away or fails, or if it rests after
        damage, unless `damaged`.
        """
        member = self._directories.get(node) if damaged else self.usable_directory(node)
        if member is None:
            return None
        try:
            return self.open_replica(member)
        except EmbedlogError as problem:
            self.blame(problem)
            return None

    def find_load_problems(self) -> dict[int, EmbedlogError]:
        """The members of the decided ISR whose directory is usable, and whose replica cannot be
        loaded, with the reasons.
        """
        problems: dict[int, EmbedlogError] = {}
        for node in self.find_decision(self._decisions.counted_state()).isr:
            member = self._directories.get(node)
            try:
                if member is not None:
                    self.open_replica(member).published()
            except LOAD_ERRORS as problem:
                problems[node] = problem
        return problems

    def has_lost(self, end: int) -> bool:
        """Whether every member of the decided ISR is reached, and none has the records below `end`:
        they are lost.

        The decision log of a minority does not show that: other replicas may have been elected
        meanwhile.
        """
        with suppress(EmbedlogError):
            state = self._decisions.counted_state()
            replicas = [self.find_replica(node) for node in self.find_decision(state).isr]
            are_lost = all(
                replica is not None and replica.published().log_end < end for replica in replicas
            )
            return are_lost and self._decisions.is_newest(state)
        return False

    def open_replica(self, member: OpenDirectory) -> Partition:
        """The replica in a directory. Raises LeaderNotAvailableError, and the errors of the
        directory.
        """
        if member.directory is None:
            raise LeaderNotAvailableError(f"the directory of node {member.node} is away")
        directory = member.directory
        if self._directories.worker(member.node) is None or directory.is_present(
            self._partition_id, self.topic
        ):
            return directory.replica(self._partition_id, self.topic, self._decisions.counted_state)
        open_replica = partial(
            directory.replica, self._partition_id, self.topic, self._decisions.counted_state
        )
        return self._directories.run_at(member.node, open_replica, slow=True)

    def load_replica(self, member: OpenDirectory) -> Partition:
        """The replica, with its files loaded in the thread of its directory."""
        partition = self.open_replica(member)
        if partition.mapped_page is None:
            self._directories.run_at(member.node, partition.published, slow=True)
        return partition

    def open_new_members(self, decided: DecidedPartition) -> None:
        """Open the directories of replicas that another process has added to the set."""
        if any(self._directories.member(node) is None for node in decided.replicas):
            self._directories.follow()

    # ---- the decisions ---------------------------------------------------------------------------

    def find_decision(self, state: State) -> DecidedPartition:
        """The decision of a state about this partition. Raises UnknownTopicOrPartitionError: the
        topic was deleted.
        """
        decided = state.partitions.get(self._partition_id)
        if decided is None:  # its decision was there when this object was made
            raise UnknownTopicOrPartitionError(
                f"topic {self.topic} was deleted", found=f"no decision about {self.name}"
            )
        return decided

    def decided_epoch(self) -> int:
        """The leader epoch of the newest decision. Raises UnknownTopicOrPartitionError."""
        return self.find_decision(self._decisions.counted_state()).leader_epoch

    def is_replaced(self, leader: Leader) -> bool:
        """Whether a decision has another leader, or the topic was deleted. The page of a failed
        leader need not show it.
        """
        decided = self._decisions.counted_state().partitions.get(self._partition_id)
        return decided is None or decided.leader_epoch > leader.epoch

    def is_leading(self, leader: Leader) -> bool:
        """Whether the page still shows this leader. Raises StorageError."""
        now, replica = leader.partition.replica.published()
        return (
            replica.role == replication.ROLE_LEADER
            and now.epoch == leader.epoch
            and not self.is_replaced(leader)
        )

    def raise_epoch_above(self, partition: Partition, epoch: int, deadline_ns: int) -> bool:
        """Whether a replica has a page with a later epoch than this one; the leader epoch is above
        it then.

        A page that was made from files may have an epoch above the decided one, begun by a broker
        or a process without the set.
        """
        now, page_replica = partition.replica.published()
        if page_replica.role != replication.ROLE_NONE or now.epoch <= epoch:
            return False
        event = RaiseEpoch(self._partition_id, now.epoch)
        self._decisions.propose(
            Steps([lambda state, offset: event]),
            deadline_ns,
            reason=f"a replica that was written without the set is in epoch {now.epoch}",
        )
        return True

    def find_in_rack(self, rack: str) -> tuple[int, tuple[int, ...]]:
        """The leader epoch of the newest decision, and the followers of its ISR in a rack: none if
        the leader is there.
        """
        state = self._decisions.counted_state()
        decided = state.partitions.get(self._partition_id)
        if decided is None or decided.leader == NO_LEADER:
            return -1, ()
        nodes = tuple(
            node for node in decided.isr if node in state.nodes and state.nodes[node].rack == rack
        )
        if decided.leader in nodes:
            return decided.leader_epoch, ()
        return decided.leader_epoch, nodes

    # ---- messages --------------------------------------------------------------------------------

    def unavailable_error(
        self, decided: DecidedPartition | None, reason: str
    ) -> LeaderNotAvailableError:
        text = f"no replica of {self.name} leads before the deadline"
        states = list[str]()
        if decided is not None:
            if decided.strangers and decided.leader == NO_LEADER:
                text += f": {self._describe_strangers(decided.strangers)}"
            states = [f"{node}: {self.describe_node(node)}" for node in sorted(decided.replicas)]
        if reason:
            text += f"; {reason}"
        return LeaderNotAvailableError(text, found="; ".join(states) or None)

    def _describe_strangers(self, nodes: Sequence[int]) -> str:
        """Why replicas in replaced directories are not elected, and the way out."""
        registered = self._decisions.counted_state().nodes
        names = list[str]()
        for node in nodes:
            directory = registered[node].path if node in registered else "retired"
            names.append(f"{node} ({directory})")
        return (
            f"node {', '.join(names)} was replaced, or begins from a copy, and may lack "
            "acknowledged records. Bring back a directory that has them, or select a leader by "
            "elect(topic, partition, unclean=True, node=…)"
        )

    def describe_node(self, node: int) -> str:
        member = next((member for member in self._directories if member.node == node), None)
        if member is None:
            return "not registered"
        if self.usable_directory(node) is None and self.is_open(node):
            return "its replica is damaged"
        if member.problem:
            return member.problem
        return "usable" if member.directory is not None else "away"

    # ---- failures --------------------------------------------------------------------------------

    def find_failed_node(self, problem: EmbedlogError) -> int | None:
        """The node that `blame` returns for an error; nothing is noted. None if it belongs to this
        process.
        """
        return self._directories.find_failed_node(problem, missing=not self.is_deleted())

    def blame(self, problem: EmbedlogError, deadline_ns: int | None = None) -> int:
        """Note an error of a directory or of a replica: this process uses another one for a while.
        Returns the node. Raises the error, and notes nothing, if it belongs to this process.

        A lock for which the caller did not wait long enough shows nothing about its directory: it
        is raised at the deadline. Damage without another replica in the ISR is raised too: no
        election could help.
        """
        until_ns = bound_deadline(NEVER_NS if deadline_ns is None else deadline_ns)
        if isinstance(problem, LockTimeoutError) and system.boot_ns() >= until_ns:
            raise problem
        node = self._directories.find_failed_node(problem, missing=not self.is_deleted())
        if node is None:
            raise problem
        decided = self.find_decision(self._decisions.counted_state())
        is_absent = isinstance(problem, UnknownTopicOrPartitionError) or self._is_missing_file(
            problem
        )
        missing_directory = self._directories.loss_of(node) if is_absent else None
        is_missing = self._is_missing_file(problem) or self._is_missing_file(problem.__cause__)
        if is_missing and missing_directory is None and self._directories.has_file(node, problem):
            is_absent = False  # the directory was away for a moment, and no replica was lost
        problem = missing_directory or problem
        is_damage = isinstance(problem, CorruptRecordError) or self._is_unreadable(problem)
        if is_damage or (is_absent and missing_directory is None):
            if decided.isr == (node,) and not decided.elr:
                raise problem
            if node in decided.replicas:
                self._note_damage(node, problem)
        elif node in decided.replicas:  # else it was moved away from there
            self._directories.fail(node, problem)
            logger.warning("%s: node %d failed: %s", self.name, node, problem)
        return node

    def _is_unreadable(self, problem: EmbedlogError) -> bool:
        """Whether a file with facts of this partition cannot be read: that is damage of this
        replica.
        """
        return (
            isinstance(problem, ForeignDirectoryError)
            and problem.path is not None
            and self.name == Path(problem.path).parent.name
        )

    def _is_missing_file(self, problem: BaseException | None) -> bool:
        """Whether a file of this partition is missing: that is damage of this replica, unless its
        whole directory is missing.
        """
        if not isinstance(problem, StorageError) or problem.path is None:
            return False
        path = Path(problem.path)
        is_inside = self.name in (path.name, path.parent.name)
        return is_inside and problem.errno == errno.ENOENT

    def note_repair(self, node: int) -> None:
        """Use a replica again that was found damaged."""
        self.damaged.pop(node, None)
        self._directories.note_repair(node, self.name)

    def _note_damage(self, node: int, problem: EmbedlogError) -> None:
        """Use another replica for a while: the other partitions of the directory stay in use."""
        self.damaged.setdefault(node, DamagedReplica()).begin_rest()
        self._directories.note_damage(node, self.name, problem)
        text = f"{self.name}: the replica of node {node} is damaged"
        log_messages.report(
            logger, logging.WARNING, (problem.path, self.name, "damaged"), text, problem
        )
