"""Copies to the in-sync replicas (ISR) of one partition, commits, and proposes changes of the ISR.

Words of this module: `page` is the replica state in the leader's control page, with the ISR that
counts for a commit; `follower` is a replica, as its open partition; `follower_log` is the log of
one; `member` is an open directory of the set. A page may be ahead of the decisions (REPLICA-6), and
behind them until a decision is installed.

An append is committed when the high watermark has passed it in the epoch of the append. After a
failover the epochs of the new leader show whether the append is in its log: there its epoch ends
above the append.

An error of a directory changes the ISR. An error of the process is raised and changes nothing. Each
loop ends at its deadline, with the last problem in the message.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from embedlog._native import replication, system
from embedlog._native.scope import Guard
from embedlog.errors import (
    EmbedlogError,
    LeaderNotAvailableError,
    NotEnoughDirectoriesError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
)
from embedlog.partition.replication.replica_log import Fenced, NotLeader
from embedlog.replicas.decisions.proposals import MakeEvent, Steps
from embedlog.replicas.members.directory_workers import CallRunner
from embedlog.replicas.members.open_directories import LOAD_ERRORS, OpenDirectories, OpenDirectory
from embedlog.replicas.partition.copying import check_copied, copy
from embedlog.replicas.partition.follower_lags import FollowerLags, LateFollower
from embedlog.replicas.partition.leader import Leader, LeaderChanged, decision_of, slot_of
from embedlog.replicas.partition.node_pauses import NodePauses
from embedlog.replicas.partition.partition_directories import Decisions, PartitionDirectories
from embedlog.replicas.rules.events import AlterIsr, Refusal
from embedlog.replicas.rules.records import DecidedPartition
from embedlog.storage.call_deadline import work_end

if TYPE_CHECKING:
    from embedlog._native.replication import Replica
    from embedlog._native.system import Published
    from embedlog.partition.partition import Partition
    from embedlog.partition.replication.replica_log import ReplicaLog
    from embedlog.replicas.rules.state import State

logger = logging.getLogger("embedlog")


UNSETTLED: Final = 1 << 16  # as `min.insync.replicas`, larger than any ISR: nothing is committed


class InSyncReplicas:
    """The in-sync replicas of one partition, for this process. Threads: any."""

    def __init__(
        self,
        members: PartitionDirectories,
        directories: OpenDirectories,
        decisions: Decisions,
        pauses: NodePauses,
    ) -> None:
        self._members = members
        self._directories = directories
        self._decisions = decisions
        self._pauses = pauses
        self._adding = threading.Lock()
        # `min.insync.replicas` of the log, for a topic without a decided value
        self.least_default = 1
        self.lags = FollowerLags(directories.lag_ns)
        self._spread_to = -1  # the last high watermark that the followers got

    def find_replicas(self, leader: Leader) -> list[tuple[int, Partition]]:
        """The nodes and replicas of the maximal ISR that this process reaches, the leader first.

        Raises LeaderChanged, also if the leader has become a follower: its page shows no ISR then.
        A reader takes the ISR of the newest decision: without a process that writes there is no
        page.
        """
        replicas = [(leader.node, leader.partition)]
        for node, follower in self._look_for_followers(leader):
            if follower is not None:
                replicas.append((node, follower))
        return replicas

    def shrink_to_reached(self, leader: Leader, deadline_ns: int) -> list[tuple[int, Partition]]:
        """As `find_replicas`, and the other members leave the ISR: the result is the whole of
        it.
        """
        replicas = [(leader.node, leader.partition)]
        for node, follower in self._look_for_followers(leader):
            if follower is not None:
                replicas.append((node, follower))
            else:
                self.remove_from_isr(leader, node, deadline_ns)
        return replicas

    def _look_for_followers(self, leader: Leader) -> Iterator[tuple[int, Partition | None]]:
        """The other members of the maximal ISR, with their replicas; None: not reached."""
        if self._members.read_only:
            nodes: Iterable[int] = self._members.find_decision(self._decisions.counted_state()).isr
        else:
            nodes, _ = self.maximal_isr(leader)
        for node in nodes:
            if node != leader.node:
                yield node, self._members.find_replica(node)

    def maximal_isr(self, leader: Leader) -> tuple[list[int], int]:
        """The nodes, and the number of members whose directories another process has added and this
        one does not know yet. Raises LeaderChanged.
        """
        try:
            _, page = leader.read_page()
        except NotLeader as changed:
            raise LeaderChanged from changed
        nodes = [
            node for node, slot in self._directories.slots().items() if page.maximal_isr >> slot & 1
        ]
        return nodes, page.maximal_isr.bit_count() - len(nodes)

    def is_member(self, leader: Leader, node: int) -> bool:
        """Whether a node is in the maximal ISR of this leader's page."""
        _, page = leader.partition.replica.published()
        slot = slot_of(self._decisions.counted_state(), node)
        return slot is not None and bool(page.maximal_isr >> slot & 1)

    def is_undecided(self, leader: Leader, node: int, decided: DecidedPartition) -> bool:
        """Whether this leader's page adds a node to the ISR of the newest decision: no decision has
        added it (REPLICA-6).
        """
        _, page = leader.partition.replica.published()
        if page.partition_epoch != decided.partition_epoch or node in decided.isr:
            return False
        return self.is_member(leader, node)

    def needed_isr_size(self) -> int:
        """The size of the ISR that `acks=all` of this process needs, if the page requires no larger
        one.

        For a topic without a decided value it is the `min.insync.replicas` of the log. The page has
        the decided one, which all processes need.
        """
        if self.least_default == 1:
            return 1
        state = self._decisions.counted_state()
        decided = state.partitions.get(self._members.partition_id)
        if decided is None:
            return 1
        return state.required_size(decided, self.least_default)

    def is_large_enough(self, leader: Leader) -> bool:
        """Whether the decided ISR is large enough for `acks=all` of this process. Raises NotLeader,
        StorageError.
        """
        _, page = leader.read_page()
        return page.decided_isr.bit_count() >= max(page.min_in_sync, self.needed_isr_size())

    # ---- the commit ------------------------------------------------------------------------------

    def commit(self, leader: Leader, end: int, deadline_ns: int, *, wait: bool = True) -> int:
        """Copy up to `end` to the ISR and raise the high watermark; it is at or above `end` then.

        With `wait`, it waits until the deadline for a majority that must decide. Raises
        LeaderChanged, NotEnoughReplicasAfterAppendError, at the deadline also
        LeaderNotAvailableError; NotEnoughDirectoriesError unless `wait`.
        """
        while True:
            version = self._directories.version()
            try:
                high_watermark = self._commit_once(leader, end, deadline_ns)
            except NotEnoughDirectoriesError as problem:
                if not wait:
                    raise
                if not self._members.wait(version, deadline_ns):
                    raise self._not_committed_error(leader, end) from problem
                continue
            except EmbedlogError as problem:
                if isinstance(problem, NotEnoughReplicasError):
                    raise
                node = self._members.blame(problem, deadline_ns)
                decided = self._members.find_decision(self._decisions.counted_state())
                # a replica that was moved away stays in the page until the decision is installed
                # there, by the next look for the leader
                if node == leader.node or node not in decided.replicas:
                    raise LeaderChanged from problem
                if system.boot_ns() >= deadline_ns:
                    raise self._not_committed_error(leader, end) from problem
                continue  # the member is not usable any more, and leaves
            except (Fenced, NotLeader) as changed:
                raise LeaderChanged from changed
            if high_watermark >= end:
                return high_watermark
            self._check_page_size(leader, end)
            if system.boot_ns() >= work_end(deadline_ns):
                raise self._not_committed_error(leader, end)
            _, unknown_count = self.maximal_isr(leader)
            if unknown_count > 0:  # until the directory of that member can be opened
                self._members.wait(version, deadline_ns)

    def _commit_once(self, leader: Leader, end: int, deadline_ns: int) -> int:
        _, page = leader.partition.replica.published()
        if page.role != replication.ROLE_LEADER:
            raise NotLeader
        until_ns = self._directories.lock_deadline(deadline_ns)
        follower_logs: list[tuple[int, ReplicaLog]] = []  # with their slots
        follower_calls = list[CallRunner]()
        unknown_isr = page.maximal_isr
        for node, slot in self._directories.slots().items():
            unknown_isr &= ~(1 << slot)
            if node == leader.node or not page.maximal_isr >> slot & 1:
                continue
            member = self._members.usable_directory(node)
            if member is None:
                self._evict(leader, node, end, deadline_ns)
                continue
            follower = self._members.load_replica(member)
            self._pauses.note_copies_to(node, follower.replica)
            step = self.lags.watch(node, lambda: leader.partition.published().log_end, deadline_ns)
            at_follower = self._directories.runner_of(node)
            try:
                copy(leader, follower, end, until_ns, step=step, at_follower=at_follower)
                follower_logs.append((slot, follower.replica))
                follower_calls.append(at_follower)
            except LateFollower:
                self._remove_late(leader, node, deadline_ns)
        if unknown_isr:
            self._members.open_new_members(
                self._members.find_decision(self._decisions.counted_state())
            )
        at_leader = self._directories.runner_of(leader.node)
        commit = partial(leader.partition.replica.commit, follower_logs, leader.epoch, until_ns)
        high_watermark = at_leader(commit)
        if high_watermark < end:
            for (_, follower_log), at_follower in zip(follower_logs, follower_calls, strict=True):
                at_follower(partial(check_copied, follower_log, until_ns))
        return high_watermark

    def _remove_late(self, leader: Leader, node: int, deadline_ns: int) -> None:
        """Remove a member that does not catch up, although its directory answers.

        It joins again as every replica outside the ISR does.
        """
        limit = f"{self.lags.limit_ms} ms (replica.lag.time.max.ms)"
        self.remove_from_isr(leader, node, deadline_ns, f"node {node} did not catch up for {limit}")
        if not self.is_member(leader, node):
            self.lags.forget(node)
            logger.warning(
                "%s: node %d left the ISR: it did not catch up for %s",
                self._members.name,
                node,
                limit,
            )

    def _evict(self, leader: Leader, node: int, end: int, deadline_ns: int) -> None:
        """Remove a member whose directory fails here. If others took it in again, leave the copying
        to them for a while.
        """
        limit = self._pauses.renew_eviction_limit(node)
        until_ns = min(limit.next_ns(), deadline_ns)
        mapped_page = leader.partition.mapped_page
        version = self._directories.version()
        if system.boot_ns() >= until_ns or mapped_page is None:
            self.remove_from_isr(leader, node, deadline_ns)
            limit.count_change()
            return
        has_waited = self._members.wait(version, until_ns, [(mapped_page, end - 1)])
        # without a wait although there is time, this thread has other work
        if not has_waited and system.boot_ns() < until_ns:
            raise self._not_committed_error(leader, end)

    def commit_for_all(self, leader: Leader, end: int, deadline_ns: int) -> None:
        """As `commit`, for `acks=all` of this process. Raises also if the ISR became too small for
        it.
        """
        self.commit(leader, end, deadline_ns)
        self.check_size_for_acks_all(leader, end, deadline_ns)

    def check_size_for_acks_all(self, leader: Leader, end: int, deadline_ns: int) -> None:
        """After a commit: raise if the ISR became too small for `acks=all` of this process. Raises
        LeaderChanged, too.
        """
        if self.needed_isr_size() == 1:
            return
        try:
            is_large_enough = self.is_large_enough(leader)
        except NotLeader as changed:
            raise LeaderChanged from changed
        except EmbedlogError as problem:
            if self._members.blame(problem, deadline_ns) != leader.node:
                raise
            raise LeaderChanged from problem
        if not is_large_enough:
            raise self._not_committed_error(leader, end, "but too few replicas are in sync")

    def _check_page_size(self, leader: Leader, end: int) -> None:
        """Raise if the decided ISR is smaller than the leader's page requires of all processes."""
        _, page = leader.partition.replica.published()
        if page.decided_isr.bit_count() < page.min_in_sync:
            raise self._not_committed_error(leader, end)

    def _not_committed_error(
        self, leader: Leader, end: int, reason: str = "but not committed"
    ) -> NotEnoughReplicasAfterAppendError:
        _, page = leader.partition.replica.published()
        text = f"the records of {self._members.name} below {end} are in the leader's log, {reason}"
        return NotEnoughReplicasAfterAppendError(text, offset=end - 1, **self.size_facts(page))

    def note_appended(self) -> None:
        """Records were appended with `acks=1`: the housekeeper of this process commits them."""
        self._directories.appended(self._members.partition_id, self._members.topic)

    def too_few_error(self, leader: Leader) -> NotEnoughReplicasError:
        """The error of an append that the leader refuses, because the decided ISR is too small."""
        _, page = leader.partition.replica.published()
        return NotEnoughReplicasError(
            f"too few replicas of {self._members.name} are in sync; nothing was written",
            **self.size_facts(page),
        )

    def size_facts(self, page: Replica | None = None) -> dict[str, Any]:
        """The facts of an error about the size of the ISR of a page, or of the newest decision."""
        state = self._decisions.counted_state()
        decided = self._members.find_decision(state)
        isr = decided.isr
        required = state.required_size(decided)
        if page is not None:
            isr = tuple(
                node
                for node, slot in self._directories.slots().items()
                if page.decided_isr >> slot & 1
            )
            if page.min_in_sync != UNSETTLED:
                required = page.min_in_sync
        away = {
            node: self._members.describe_node(node)
            for node in decided.replicas
            if node not in isr or self._directories.get(node) is None
        }
        return {
            "topic": self._members.topic,
            "partition": self._members.number,
            "isr": isr,
            "required": max(required, self.needed_isr_size()),
            "away": away,
            "retriable": True,
        }

    def spread_high_watermark(self, leader: Leader, deadline_ns: int) -> None:
        """Store the high watermark in the followers, if it has moved since the last time: they
        learn it one copy late.

        Raises LeaderChanged.
        """
        try:
            high_watermark = leader.read_tuple().high_watermark
        except NotLeader as changed:
            raise LeaderChanged from changed
        if high_watermark == self._spread_to:
            return
        for node, follower in self.find_replicas(leader)[1:]:
            learn = partial(follower.replica.learn, leader.epoch, high_watermark, deadline_ns)
            with suppress(Fenced):
                self._directories.runner_of(node)(learn)
        self._spread_to = high_watermark

    def has_spread_all(self, now: Published) -> bool:
        """Whether a leader that shows this has committed everything, and its followers know it."""
        return now.high_watermark == now.log_end == self._spread_to

    def commit_appended(self, leader: Leader, deadline_ns: int, *, wait: bool = True) -> None:
        """Commit what was appended with `acks=1`, if the ISR is large enough. `wait`: for a
        majority that must decide.
        """
        now, page = leader.partition.replica.published()
        if now.high_watermark < now.log_end and page.decided_isr.bit_count() >= page.min_in_sync:
            self.commit(leader, now.log_end, deadline_ns, wait=wait)

    # ---- changes ---------------------------------------------------------------------------------

    def remove_from_isr(
        self, leader: Leader, node: int, deadline_ns: int, reason: str = "", *, lost: bool = False
    ) -> None:
        """Remove a failed replica from the ISR: the decision first, then the page (REPLICA-5).
        `lost`: from the ELR, too.
        """

        def shrink_isr(state: State, offset: int) -> AlterIsr:
            decided = self._members.find_decision(state)
            return AlterIsr(
                self._members.partition_id,
                leader.epoch,
                decided.partition_epoch,
                tuple(member for member in decided.isr if member != node),
                lost=frozenset({node} if lost else ()),
                renewed=self.is_undecided(leader, node, decided),
            )

        if not reason:
            reason = f"node {node}: {self._members.describe_node(node)}"
        self._decide_and_install(shrink_isr, leader, deadline_ns, reason)

    def begin_again(self, leader: Leader, node: int, deadline_ns: int) -> bool:
        """Empty a replica that no process can load or repair, and that left ISR and ELR; False if
        it is in order meanwhile.

        Raises LeaderChanged if it joins meanwhile, LeaderNotAvailableError if its directory fails.
        """
        loaded = self._remove_role(node, deadline_ns)
        state = self.check_outside_isr(leader, node, deadline_ns)
        member = self._directories.get(node)
        if member is None or member.directory is None:
            raise LeaderNotAvailableError(
                f"the directory of node {node} fails: {self._members.name} is repaired after it "
                "returns"
            )
        system.point("renew-left")
        if loaded is not None:
            restart = partial(
                loaded.replica.restart_damaged, leader.read_tuple().log_start, deadline_ns
            )
            return self._directories.run_at(node, restart, slow=True)
        renew = partial(member.directory.renew, self._members.partition_id, state)
        return self._directories.run_at(node, renew, slow=True)

    def check_outside_isr(self, leader: Leader, node: int, deadline_ns: int) -> State:
        """The settled state, with a replica outside ISR and ELR: its log can be cut. Raises
        LeaderChanged otherwise.
        """
        # after this no earlier join is in progress
        with leader.partition.replica.exclusive(deadline_ns):
            is_leading = self._members.is_leading(leader)
        state = self._decisions.settle(deadline_ns)
        decided = self._members.find_decision(state)
        if (
            not is_leading
            or self.is_member(leader, node)
            or node in (*decided.isr, *decided.elr)
            or node not in decided.replicas
        ):
            raise LeaderChanged
        return state

    def _remove_role(self, node: int, deadline_ns: int) -> Partition | None:
        """A replica that is loaded although its repair fails: it has no role now. None if it is not
        loaded.
        """
        with suppress(*LOAD_ERRORS):
            partition = self._members.find_replica(node, damaged=True)
            if partition is not None and partition.replica.lose_role(deadline_ns):
                return partition
        return None

    def add_to_isr(self, leader: Leader, node: int, deadline_ns: int) -> bool:
        """Copy to a replica outside the ISR, and add it: the page first, then the decision
        (REPLICA-6).

        False if its directory fails, if another decision came first, or if another thread adds a
        replica until the deadline: its copy may be long. Raises LeaderChanged.
        """
        member = self._members.usable_directory(node)
        if member is None:
            return False
        try:
            return self._copy_and_add(leader, member, deadline_ns)
        except EmbedlogError as problem:
            if self._members.blame(problem) == leader.node:
                raise LeaderChanged from problem
            return False
        except (Fenced, NotLeader) as changed:
            raise LeaderChanged from changed

    def _copy_and_add(self, leader: Leader, member: OpenDirectory, deadline_ns: int) -> bool:
        remaining_s = max(0.0, (deadline_ns - system.boot_ns()) / 1e9)
        acquire = partial(self._adding.acquire, timeout=min(remaining_s, threading.TIMEOUT_MAX))
        is_added = False
        with Guard(self._adding.release, acquire) as is_acquired:
            if is_acquired:
                is_added = self._copy_and_add_locked(leader, member, deadline_ns)
        return is_added

    def _copy_and_add_locked(self, leader: Leader, member: OpenDirectory, deadline_ns: int) -> bool:
        node = member.node
        follower = self._members.load_replica(member)
        if self._members.raise_epoch_above(follower, leader.epoch, deadline_ns):
            raise LeaderChanged
        end = leader.partition.published().log_end
        decided = self._members.find_decision(self._decisions.counted_state())
        if node not in decided.replicas:
            return False
        copy(
            leader,
            follower,
            end,
            deadline_ns,
            compared=True,
            eligible=node in decided.elr,
            at_follower=self._directories.runner_of(node),
        )
        state = self._decisions.counted_state()
        decided = self._members.find_decision(state)
        slot = slot_of(state, node)
        leader_log = leader.partition.replica
        if node in decided.isr:  # another process was faster
            return True
        # a member that no decision adds leaves the page again by `remove_from_isr` (`renewed`)
        if slot is None or not leader_log.join(
            follower.replica, slot, leader.epoch, decided.partition_epoch, deadline_ns
        ):
            return False
        event = AlterIsr(
            self._members.partition_id,
            leader.epoch,
            decided.partition_epoch,
            (*decided.isr, node),
            {node: member.registration_id},
        )
        is_added = self._decide_and_install(
            lambda state, offset: event, leader, deadline_ns, f"node {node} caught up"
        )
        if is_added:
            self._pauses.note_worked(node)
        return is_added

    def _decide_and_install(
        self, event: MakeEvent, leader: Leader, deadline_ns: int, reason: str
    ) -> bool:
        """Decide about the ISR, and install the decision in the leader's page; False if another
        decision came first.
        """
        outcome = self._decisions.propose(Steps([event]), deadline_ns, reason=reason)
        if outcome is Refusal.FENCED_LEADER_EPOCH:
            raise LeaderChanged
        if outcome in (Refusal.INVALID_UPDATE_VERSION, Refusal.INELIGIBLE_REPLICA):
            return False
        if isinstance(outcome, Refusal):
            raise self._members.unavailable_error(None, outcome.value)
        return self._install_in_page(leader, outcome.state, deadline_ns)

    def _install_in_page(self, leader: Leader, state: State, deadline_ns: int) -> bool:
        decision = decision_of(self._members.find_decision(state), state)
        lead = partial(leader.partition.replica.lead, decision, deadline_ns)
        return self._directories.runner_of(leader.node)(lead)
