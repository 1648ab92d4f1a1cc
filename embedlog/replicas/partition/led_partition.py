"""This module finds the leader for each call of a replicated partition, and reads what the leader
shows.

A call that reads is repeated at the next leader if the directory of the present one fails. Nothing
is kept about a leader but its node and epoch; its page is read by each call.

A call that reads uses a leader whose high watermark has reached the start of its epoch. The epoch
is not lower than for earlier calls of this process (REPLICA-10). An append needs neither. The page
of the leader shows its epoch also after the call. The result of another page is dropped: it may
have been cut, or made from files of another time.

A leader is used while no decision has another one: each call compares the version of the decisions.
The page of a leader in a removed directory is never written again, so it shows its epoch for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar

from embedlog._native import replication, system
from embedlog.errors import (
    EmbedlogError,
    LeaderNotAvailableError,
    LockTimeoutError,
    NotEnoughReplicasError,
)
from embedlog.format.visibility import end_offset
from embedlog.replicas.partition.leader import Leader, LeaderChanged
from embedlog.storage.call_deadline import bounded, bounded_waits

if TYPE_CHECKING:
    from pathlib import Path

    from embedlog._native.replication import Replica
    from embedlog._native.system import Page, Published
    from embedlog.config.topic import TopicConfig
    from embedlog.partition.interfaces import SplitPoint
    from embedlog.partition.log_context import Bounds
    from embedlog.partition.partition import Partition
    from embedlog.replicas.partition.partition_replicas import PartitionReplicas
    from embedlog.replicas.rules.events import Place
    from embedlog.types import OffsetAndTimestamp

T = TypeVar("T")


class LedPartition:
    """One partition of a set, as its leader shows it. Threads: every public method may be called
    from any thread.
    """

    replicated: Final = True

    def __init__(
        self,
        replicas: PartitionReplicas,
        config: Callable[[], TopicConfig],
        lock_timeout_ms: int,
        check_open: Callable[[], None],
    ) -> None:
        self.topic = replicas.topic
        self.number = replicas.number
        self._config = config
        self._replicas = replicas
        self._timeout_ms = lock_timeout_ms
        self._check_open = check_open
        self._leader: Leader | None = None
        self._lowest = -1  # the highest epoch of a leader that a call has read from
        # the version of the decisions at the last look for another leader
        self._checked_version = -1
        self._changes = -1  # of the directories, at the last look for the leader

    # ---- the leader ------------------------------------------------------------------------------

    def deadline(self) -> int:
        """The deadline (boot clock, ns) of work that begins at this call."""
        return bounded(system.boot_ns() + self._timeout_ms * 1_000_000)

    def _deadline_of(self, deadline_ns: int | None) -> int:
        """The deadline of a call, that of the caller or of this partition."""
        if deadline_ns is None:
            return self.deadline()
        return bounded(deadline_ns)

    def _find_leader(self, deadline_ns: int, *, show: bool = True) -> Leader:
        """The leader, if its page still shows the epoch; otherwise the next one. `show`: as of
        `Leaders.find_leader`.

        The page of a directory that was removed shows its epoch for ever: the decisions are asked,
        too.
        """
        self._check_leader()
        leader = self._leader
        changes = self._replicas.members.changes
        if leader is not None and changes == self._changes:
            try:
                now, replica = leader.partition.replica.published()
                if now.epoch == leader.epoch and (
                    replica.role == replication.ROLE_LEADER or self._replicas.members.read_only
                ):
                    return leader
            except EmbedlogError as problem:
                self._replicas.members.blame(problem)
        self._changes = changes
        self._leader = None
        leader = self._replicas.leaders.find_leader(deadline_ns, self._lowest, show=show)
        self._leader = leader
        return leader

    def _find_shown_leader(self, deadline_ns: int) -> Leader:
        """The leader from which records may be returned: it has committed the start of its
        epoch.
        """
        while True:
            version = self._replicas.members.version()
            leader = self._find_leader(deadline_ns)
            now, replica = leader.partition.replica.published()
            if self._replicas.members.read_only or (
                is_page_of(leader, now, replica) and now.high_watermark >= replica.epoch_start
            ):
                self._lowest = max(self._lowest, leader.epoch)
                return leader
            try:
                self._commit(replica.epoch_start, deadline_ns)
            except NotEnoughReplicasError as problem:  # until more replicas are in sync
                if not self._replicas.members.wait(version, deadline_ns):
                    text = (
                        f"the leader of {self._replicas.name} returns nothing before the start of "
                        "its epoch is committed"
                    )
                    facts = f"{now.high_watermark}, {problem}"
                    raise LeaderNotAvailableError(text, found=facts) from problem

    def _check_leader(self) -> None:
        """Forget a leader that a decision has replaced."""
        leader = self._leader
        version = self._replicas.members.version()
        if leader is not None and version != self._checked_version:
            self._checked_version = version
            if self._replicas.members.is_replaced(leader):
                self._leader = None

    def _call_at_leader(self, call: Callable[[Partition], T]) -> T:
        """The result of a call that reads; it is repeated at the next leader."""
        self._check_open()
        deadline_ns = self.deadline()
        while True:
            try:
                return self._try_call(call, lambda: deadline_ns)
            except LeaderChanged:
                self._check_deadline(deadline_ns)

    def _try_call(self, call: Callable[[Partition], T], deadline: Callable[[], int]) -> T:
        """The result of a call at the present leader. `deadline` gives that of each wait.

        Raises LeaderChanged if the call must be repeated.
        """
        leader = None
        try:
            leader = self._find_shown_leader(deadline())
            result = call(leader.partition)
            if self._is_still_leading(leader):
                return result
        except EmbedlogError as problem:
            if leader is None or self._is_still_leading(leader) is not False:
                self._forget_failed(problem, deadline())
        self._leader = None
        raise LeaderChanged

    def _is_still_leading(self, leader: Leader) -> bool | None:
        """Whether the page still leads in the epoch; None if it cannot be read."""
        with suppress(EmbedlogError):
            return self._replicas.members.read_only or is_page_of(
                leader, *leader.partition.replica.published()
            )
        return None

    def _call_at_once(self, call: Callable[[Partition], T]) -> T | None:
        """As `_call_at_leader`, without a wait; None if there is no leader now."""
        try:
            with bounded_waits(system.boot_ns()):
                return self._call_at_leader(call)
        except (LeaderNotAvailableError, LockTimeoutError):
            return None

    def _commit(self, end: int, deadline_ns: int) -> None:
        while True:
            try:
                self._replicas.in_sync.commit(self._find_leader(deadline_ns), end, deadline_ns)
                return
            except LeaderChanged:
                self._leader = None
            self._check_deadline(deadline_ns)

    def _check_deadline(self, until_ns: int) -> None:
        if system.boot_ns() >= until_ns:
            raise LeaderNotAvailableError(
                f"the leader of {self._replicas.name} changed until the deadline"
            )

    def _forget_failed(self, problem: EmbedlogError, until_ns: int) -> None:
        """Look for the leader again after an error of its directory. Raises errors of this
        process.
        """
        self._replicas.members.blame(problem, until_ns)
        self._leader = None

    def check_open(self) -> None:
        """Raises ClosedError or ForkedError if the log is not open in this process."""
        self._check_open()

    @property
    def closed(self) -> bool:
        """Whether its topic was deleted."""
        return self._replicas.members.is_deleted()

    @property
    def place(self) -> Place:
        """The topic's id and the number."""
        return self._replicas.place

    @property
    def topic_id(self) -> bytes:
        return self._replicas.topic_id.bytes

    @property
    def config(self) -> TopicConfig:
        return self._config()

    @property
    def node(self) -> int:
        """The node of the leader. Raises LeaderNotAvailableError."""
        return self._find_leader(self.deadline()).node

    # ---- the published state ---------------------------------------------------------------------

    def published(self) -> Published:
        """The tuple of the leader."""
        return self._call_at_leader(lambda partition: partition.published())

    def bounds(self) -> Bounds:
        """The present offsets, from one read of the leader's page."""
        return self._call_at_leader(lambda partition: partition.bounds())

    def awaited_bounds(self, end: int, isolation: str, since_ns: int | None = None) -> Bounds:
        """The present offsets, after a wait until the deadline for a replica with the records below
        `end`.

        `since_ns`: a reader has found nothing since then (boot clock), although a replica showed
        the records. Its page can be that of a lost directory, so the wait ends with the deadline of
        the first call. Raises LeaderNotAvailableError.

        A process that changes nothing may read a follower, whose high watermark is late: that it
        ends there does not show that the log does. A leader that has committed the start of its
        epoch shows that, or all members of the ISR together. Then a majority of the directories
        must show that this is the ISR.
        """
        if since_ns is None:
            until_ns = self.deadline()
        else:
            until_ns = bounded(since_ns + self._timeout_ms * 1_000_000)
        while True:
            version = self._replicas.members.version()
            is_final, bounds, page = self._call_at_leader(
                lambda partition: (
                    self._is_final(partition),
                    partition.bounds(),
                    partition.mapped_page,
                )
            )
            shown_end = end_offset(bounds, isolation)
            is_shown = shown_end >= end
            if is_shown and since_ns is None:
                return bounds
            if not is_shown and (is_final or self._replicas.members.has_lost(end)):
                return bounds
            if system.boot_ns() >= until_ns:
                verb = "returns" if is_shown else "shows"
                text = (
                    f"no replica of {self._replicas.name} in sync {verb} all records below {end} "
                    "before the deadline"
                )
                raise LeaderNotAvailableError(text, expected=f"offset {end}", found=shown_end)
            self._leader = None  # another replica may show more
            tails: list[tuple[Page, int]] = []
            # a wait for a committed offset would end at once
            if page is not None and bounds.high_watermark < end:
                tails.append((page, end - 1))
            self._replicas.members.wait(version, until_ns, tails)
            if is_shown:
                return bounds

    def _is_final(self, partition: Partition) -> bool:
        """Whether the high watermark of a replica is that of the log: records above it that were
        committed are lost.
        """
        now, replica = partition.replica.published()
        return (
            replica.role == replication.ROLE_LEADER
            and now.high_watermark >= replica.epoch_start
            and now.epoch >= max(self._lowest, self._replicas.members.decided_epoch())
        )

    @property
    def path(self) -> Path:
        """The leader's directory of the partition, for messages."""
        return self._call_at_leader(lambda partition: partition.path)

    @property
    def mapped_page(self) -> Page | None:
        """The leader's control page, for waits on it; None while there is no leader."""
        self._check_leader()
        return self._call_at_once(lambda partition: partition.mapped_page)

    def open(self) -> None:
        """Find the leader, and load its files."""
        self._call_at_leader(lambda partition: partition.open())

    def is_led(self) -> bool:
        """Whether it has a leader now; nothing waits for one."""
        return self._call_at_once(lambda partition: partition.published()) is not None

    def check_page(self) -> None:
        """At the end of a wait: look at the leader's page again."""
        self._check_leader()
        self._call_at_once(lambda partition: partition.check_page())

    def notify(self) -> None:
        """Wake the processes that follow decisions in this partition."""
        self._call_at_leader(lambda partition: partition.notify())

    def is_prepared(self) -> bool:
        """As `Partition.is_prepared`, of the leader."""
        return self._call_at_leader(lambda partition: partition.is_prepared())

    def holds_data(self) -> bool:
        """As `Partition.holds_data`, of the leader."""
        return self._call_at_leader(lambda partition: partition.holds_data())

    # ---- reading ---------------------------------------------------------------------------------

    def unread_bytes(self, offset: int) -> int | None:
        """As `Partition.unread_bytes`, of the leader."""
        return self._call_at_leader(lambda partition: partition.unread_bytes(offset))

    def end_by_time(self, first: int, last: int, end_ms: int) -> int:
        """As `Partition.end_by_time`, of the leader."""
        return self._call_at_leader(lambda partition: partition.end_by_time(first, last, end_ms))

    def skip_by_time(self, offset: int, start_ms: int, end_ms: int) -> int:
        """As `Partition.skip_by_time`, of the leader."""
        return self._call_at_leader(
            lambda partition: partition.skip_by_time(offset, start_ms, end_ms)
        )

    def split_points(
        self, start: int, end: int, max_bytes: int, count: int | None = None
    ) -> list[SplitPoint]:
        """As `Partition.split_points`, of the leader."""
        return self._call_at_leader(
            lambda partition: partition.split_points(start, end, max_bytes, count)
        )

    def size_bytes(self) -> int:
        """Bytes in the logs of all segments of the leader."""
        return self._call_at_leader(lambda partition: partition.size_bytes())

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        """As `Partition.epoch_end`, from the leader."""
        return self._call_at_leader(lambda partition: partition.epoch_end(epoch))

    def offset_for_time(
        self, timestamp_ms: int, isolation: str = "read_uncommitted"
    ) -> OffsetAndTimestamp | None:
        """As `Partition.offset_for_time`, from the leader."""
        return self._call_at_leader(
            lambda partition: partition.offset_for_time(timestamp_ms, isolation)
        )


def is_page_of(leader: Leader, now: Published, replica: Replica) -> bool:
    """Whether the tuple and the state of a page are those of this leader."""
    return replica.role == replication.ROLE_LEADER and now.epoch == leader.epoch
