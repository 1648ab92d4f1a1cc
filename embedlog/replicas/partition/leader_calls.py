"""This module makes calls at the leader of a replicated partition, whoever that is now.

A call is repeated at the next leader if the directory of the current one fails, or if a decision
has another one. Of a leader only node, partition and epoch are kept, not what its page says: each
call reads the page, or has a `LeaderWatch` that shows it unchanged.

A call that reads uses a leader whose high watermark has reached the start of its epoch. The epoch
is not lower than for earlier calls of this process (REPLICA-10). An append needs neither. The page
of the leader shows its epoch also after the call. The result of another page is dropped: it may
have been cut, or made from files of another time.

A leader is used while no decision has another one: each call compares the version of the decisions.
The page of a leader in a removed directory is never written again, so it shows its epoch for ever.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from embedlog._native import replication, system
from embedlog.errors import (
    EmbedlogError,
    LeaderNotAvailableError,
    LockTimeoutError,
    NotEnoughReplicasError,
)
from embedlog.partition.replication.replica_log import Fenced, NotLeader, TooFew
from embedlog.replicas.partition.leader import Leader, LeaderChanged
from embedlog.storage.call_deadline import bound_deadline, bound_waits

if TYPE_CHECKING:
    from embedlog._native.replication import Replica
    from embedlog._native.system import Published
    from embedlog.partition.partition import Partition
    from embedlog.replicas.partition.partition_replicas import PartitionReplicas
    from embedlog.replicas.partition.usual_reads import LeaderWatch

T = TypeVar("T")


class LeaderCalls:
    """The calls of one user of a replicated partition. Threads: any."""

    def __init__(
        self, replicas: PartitionReplicas, lock_timeout_ms: int, check_open: Callable[[], None]
    ) -> None:
        self._replicas = replicas
        self._members = replicas.members
        self.check_open = check_open
        self.timeout_ns = lock_timeout_ms * 1_000_000
        self.leader: Leader | None = None  # of the last call
        self.highest_read_epoch = -1  # of a leader from which records were returned
        self._raising = threading.Lock()  # for changes of `highest_read_epoch`
        # a leader that no decision has replaced, up to this version; of one moment
        self._checked: tuple[Leader | None, int] = (None, -1)
        # the number of changes of the directories when the leader was looked for last
        self._found_at_changes = -1
        self._watch: LeaderWatch | None = None

    def deadline(self) -> int:
        """The deadline (boot clock, ns) of work that begins at this call."""
        return bound_deadline(system.boot_ns() + self.timeout_ns)

    def deadline_of(self, deadline_ns: int | None) -> int:
        """The deadline of a call, that of the caller or of this partition."""
        if deadline_ns is None:
            return self.deadline()
        return bound_deadline(deadline_ns)

    # ---- the leader ------------------------------------------------------------------------------

    def find(self, deadline_ns: int, *, show: bool = True) -> Leader:
        """The leader, if its page still shows the epoch; otherwise the next one. `show`: a new leader
        commits the start of its epoch before others learn of it (`Leaders.find_leader`).

        The page of a directory that was removed shows its epoch for ever: the decisions are asked,
        too.
        """
        self.check_leader()
        leader = self.leader
        changes = self._members.changes
        if leader is not None and changes == self._found_at_changes:
            try:
                now, replica = leader.partition.replica.published()
                if now.epoch == leader.epoch and (
                    replica.role == replication.ROLE_LEADER or self._members.read_only
                ):
                    return leader
            except EmbedlogError as problem:
                self._members.blame(problem)
        self._found_at_changes = changes
        self.leader = None
        leader = self._replicas.leaders.find_leader(deadline_ns, self.highest_read_epoch, show=show)
        self.leader = leader
        return leader

    def find_for_append(self, deadline_ns: int) -> Leader:
        """As `find`, for an append that commits the start of the epoch."""
        return self.find(deadline_ns, show=False)

    def find_committed(self, deadline_ns: int) -> Leader:
        """The leader from which records may be returned: it has committed the start of its
        epoch.
        """
        while True:
            version = self._members.version()
            leader = self.find(deadline_ns)
            now, replica = leader.partition.replica.published()
            if self._members.read_only or (
                is_page_of(leader, now, replica) and now.high_watermark >= replica.epoch_start
            ):
                if leader.epoch > self.highest_read_epoch:
                    with self._raising:
                        self.highest_read_epoch = max(self.highest_read_epoch, leader.epoch)
                return leader
            try:
                self._commit(replica.epoch_start, deadline_ns)
            except NotEnoughReplicasError as problem:  # until more replicas are in sync
                if not self._members.wait(version, deadline_ns):
                    text = (
                        f"the leader of {self._replicas.name} returns nothing before the start of "
                        "its epoch is committed"
                    )
                    facts = f"{now.high_watermark}, {problem}"
                    raise LeaderNotAvailableError(text, found=facts) from problem

    def check_leader(self) -> None:
        """Forget a leader that a decision has replaced.

        It counts as checked only after the answer: another thread may ask meanwhile.
        """
        leader = self.leader
        if leader is None:
            return
        version = self._members.version()
        checked_leader, checked_version = self._checked
        if leader is checked_leader and version == checked_version:
            return
        if not self._members.is_replaced(leader):
            self._checked = (leader, version)
        elif self.leader is leader:
            self.leader = None

    def forget_failed(self, problem: EmbedlogError, until_ns: int) -> None:
        """Fail the directory or replica of an error, and forget the leader: the next call looks for it
        again. Raises errors of this process.
        """
        self._members.blame(problem, until_ns)
        self.leader = None

    def is_still_leading(self, leader: Leader) -> bool | None:
        """Whether the page still leads in the epoch; None if it cannot be read."""
        if self._members.read_only:
            return True
        try:
            now, replica = leader.partition.replica.published()
        except EmbedlogError:
            return None
        return is_page_of(leader, now, replica)

    def watch_leader(self) -> LeaderWatch | None:
        """The leader of the last call if it may be read by the short paths; None while that is not
        known.
        """
        watch = self._watch
        if watch is not None and watch.leader is self.leader and watch.is_unchanged():
            return watch
        self.check_leader()
        leader, version = self._checked
        changes = self._found_at_changes
        if (
            leader is None
            or leader is not self.leader
            or self._members.read_only
            or changes != self._members.changes
            or version & 1
        ):
            return None
        with suppress(EmbedlogError):
            now, replica = leader.partition.replica.published()
            if (
                is_page_of(leader, now, replica)
                and now.high_watermark >= replica.epoch_start
                and now.epoch >= self.highest_read_epoch
            ):
                self._watch = self._replicas.watch(leader, changes, version)
                return self._watch
        return None

    # ---- calls -----------------------------------------------------------------------------------

    def retry(
        self,
        attempt: Callable[[Leader], T],
        until_ns: int,
        find: Callable[[int], Leader] | None = None,
        *,
        raises_last: bool = False,
    ) -> T:
        """The result of an attempt at the leader, which `find` looks for (default: `find`). It is
        repeated at the next one until the deadline: once at once, since the next leader is often
        there, and then after a wait for a decision.

        Raises NotEnoughReplicasError if the leader refuses an append, errors of this process, and
        at the deadline LeaderNotAvailableError, from the cause of the last failure; with
        `raises_last` the last error of a directory instead.
        """
        if find is None:
            find = self.find
        cause: BaseException | None = None
        is_repeated = False
        while True:
            version = self._members.version()
            try:
                return self.try_once(attempt, find, until_ns)
            except LeaderChanged as changed:
                cause = changed.__cause__ or cause
            except LeaderNotAvailableError as problem:
                if raises_last and isinstance(cause, EmbedlogError):
                    raise cause from None
                raise problem from problem.__cause__ or cause
            has_time = system.boot_ns() < until_ns
            if has_time and is_repeated:
                has_time = self._members.wait(version, until_ns)
            if not has_time:
                if raises_last and isinstance(cause, EmbedlogError):
                    raise cause
                raise self.changed_error("until the deadline", cause) from cause
            is_repeated = True

    def changed_error(self, period: str, cause: BaseException | None) -> LeaderNotAvailableError:
        """The error of a call whose attempts at all leaders of a period failed, the last one for
        this cause.
        """
        return LeaderNotAvailableError(
            f"the leader of {self._replicas.name} changed {period}",
            found=str(cause) if isinstance(cause, EmbedlogError) else None,
        )

    def try_once(
        self,
        attempt: Callable[[Leader], T],
        find: Callable[[int], Leader],
        until_ns: int | None = None,
    ) -> T:
        """As `retry`, for one attempt: raises LeaderChanged, from its cause, if it must be
        repeated. Without `until_ns` each wait has a deadline of its own.
        """
        leader: Leader | None = None
        try:
            leader = find(self.deadline() if until_ns is None else until_ns)
            return attempt(leader)
        except (NotLeader, LeaderChanged, Fenced) as changed:
            self.leader = None
            raise LeaderChanged from changed.__cause__ or changed
        except TooFew:
            if leader is None:
                raise
            raise self._replicas.in_sync.too_few_error(leader) from None
        except EmbedlogError as problem:
            if until_ns is None:
                until_ns = self.deadline()
            self.forget_failed(problem, until_ns)
            raise LeaderChanged from problem

    def read(self, call: Callable[[Partition], T]) -> T:
        """The result of a call that reads."""
        self.check_open()
        return self.retry(partial(self.read_at, call), self.deadline(), self.find_committed)

    def read_at(self, call: Callable[[Partition], T], leader: Leader) -> T:
        """The result of a call that reads, at this leader. Raises LeaderChanged if the result does
        not count: the page does not lead in the epoch any more.
        """
        try:
            result = call(leader.partition)
        except EmbedlogError as problem:
            if self.is_still_leading(leader) is False:
                raise LeaderChanged from problem
            raise
        if not self.is_still_leading(leader):
            raise LeaderChanged
        return result

    def read_at_once(self, call: Callable[[Partition], T]) -> T | None:
        """As `read`, without a wait; None if there is no leader now."""
        try:
            with bound_waits(system.boot_ns()):
                return self.read(call)
        except (LeaderNotAvailableError, LockTimeoutError):
            return None

    def _commit(self, end: int, deadline_ns: int) -> None:
        """Commit the records below `end`, at the next leaders too."""
        self.retry(
            lambda leader: self._replicas.in_sync.commit(leader, end, deadline_ns), deadline_ns
        )


def is_page_of(leader: Leader, now: Published, replica: Replica) -> bool:
    """Whether the tuple and the state of a page are those of this leader."""
    return replica.role == replication.ROLE_LEADER and now.epoch == leader.epoch
