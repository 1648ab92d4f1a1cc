"""This module is the partition that a consumer with a rack uses: it reads a replica in this rack,
if there is one (REPLICA-27).

A read goes to a follower of the decided ISR whose page is in the epoch of that decision, up to its
own high watermark. If the leader is in the rack, or no such follower has the offset, it goes to the
leader. A read never goes to a follower in a lower epoch than an earlier one has read from.

A reader brings its follower the high watermark of the leader, and does not wait for the next copy.
One that changes nothing waits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from embedlog._native import replication, system
from embedlog.errors import EmbedlogError, LockTimeoutError, OffsetOutOfRangeError
from embedlog.partition.replication.replica_log import Fenced
from embedlog.replicas.partition.replicated_partition import ReplicatedPartition

if TYPE_CHECKING:
    from pathlib import Path

    from embedlog._native.system import Page, Published
    from embedlog.config.topic import TopicConfig
    from embedlog.format.buffer_pool import BufferPool
    from embedlog.partition.interfaces import Fetched, SplitPoint
    from embedlog.partition.log_context import Bounds
    from embedlog.partition.partition import Partition
    from embedlog.replicas.partition.partition_replicas import PartitionReplicas
    from embedlog.types import OffsetAndTimestamp

# to wait for the lock of a follower: without it the reader waits for the next copy
LEARN_NS: Final = 20_000_000
PAUSE_NS: Final = 1_000_000_000  # after a lock that was not had


class NearbyPartition:
    """One partition of a set for one consumer. Threads: those of the consumer, one at a time."""

    def __init__(
        self,
        replicas: PartitionReplicas,
        config: Callable[[], TopicConfig],
        lock_timeout_ms: int,
        check_open: Callable[[], None],
        rack: str,
    ) -> None:
        self._replicas = replicas
        self._partition = ReplicatedPartition(replicas, config, lock_timeout_ms, check_open)
        self._rack = rack
        self.topic = replicas.topic
        self.number = replicas.number
        # the versions of decisions and directories for which the next two were read
        self._versions = (-1, -1)
        self._epoch = -1
        self._nodes = tuple[int, ...]()
        self._node = -1  # the follower of the last read
        self._next = -1  # the offset after the last read
        # a follower that shows less than the leader, else the leader
        self._waiting_at: Partition | None = None
        self._learn_ns = 0

    @property
    def read_node(self) -> int:
        """The node of the last read: the leader's if no follower was read."""
        return self._partition.node if self._node < 0 else self._node

    # ---- the partition ---------------------------------------------------------------------------

    @property
    def topic_id_bytes(self) -> bytes:
        return self._partition.topic_id_bytes

    @property
    def path(self) -> Path:
        """The leader's directory of the partition, for messages."""
        return self._partition.path

    @property
    def config(self) -> TopicConfig:
        return self._partition.config

    @property
    def closed(self) -> bool:
        """Whether its topic was deleted."""
        return self._partition.closed

    def check_open(self) -> None:
        """Raises ClosedError or ForkedError if the log is not open in this process."""
        self._partition.check_open()

    def open(self) -> None:
        """Find the leader, and load its files."""
        self._partition.open()

    def is_led(self) -> bool:
        """Whether it has a leader now; nothing waits for one."""
        return self._partition.is_led()

    # ---- the replica -----------------------------------------------------------------------------

    def _find_near(self, offset: int) -> Partition | None:
        """The follower to read at an offset; None: the leader. With -1 any offset."""
        self.check_open()
        versions = (self._replicas.members.version(), self._replicas.members.changes)
        if versions != self._versions:
            self._epoch, self._nodes = self._replicas.members.find_in_rack(self._rack)
            self._versions = versions
        nodes = self._nodes
        if self._epoch < self._partition.lowest_epoch:
            nodes = ()
        followers: list[tuple[bool, int, int, int, Partition]] = []
        for node in nodes:
            follower = self._replicas.members.find_replica(node)
            if follower is None:
                continue
            try:
                now, replica = follower.replica.published()
            except EmbedlogError as problem:
                self._replicas.members.blame(problem)
                continue
            follows = replica.role == replication.ROLE_FOLLOWER and now.epoch == self._epoch
            if follows and (offset < 0 or now.log_start <= offset <= now.log_end):
                is_same = node == self._node
                followers.append((is_same, now.log_end, now.high_watermark, node, follower))
        if not followers:
            self._node = -1
            return None
        *_, self._node, near = max(followers, key=lambda ranked: ranked[:4])
        return near

    # ---- reading ---------------------------------------------------------------------------------

    def point(self, offset: int, committed: bool) -> None:
        """None: `fetch` selects the replica."""

    def tail(self, offset: int, isolation: str) -> None:
        """None: `fetch` selects the replica, for each read."""

    def fetch(
        self,
        offset: int,
        *,
        max_bytes: int = 1 << 20,
        isolation: str = "read_uncommitted",
        upto: int | None = None,
        pool: BufferPool | None = None,
    ) -> Fetched:
        """As `Partition.fetch`, from a replica in the rack or from the leader. With `upto` it has
        the records below that.
        """
        fetched: Fetched | None = None
        near = self._find_near(offset)
        if near is not None:
            fetched = self._fetch_near(near, offset, max_bytes, isolation, upto, pool)
        if fetched is None:
            fetched = self._partition.fetch(
                offset, max_bytes=max_bytes, isolation=isolation, upto=upto, pool=pool
            )
        self._next = fetched.next_offset
        return fetched

    def _fetch_near(
        self,
        near: Partition,
        offset: int,
        max_bytes: int,
        isolation: str,
        upto: int | None,
        pool: BufferPool | None,
    ) -> Fetched | None:
        """What a follower has; None if the leader is to be asked.

        That is so for an offset out of the range of the follower, and if the follower fails: its
        directory is treated as one that failed in any other call.
        """
        try:
            fetched = near.fetch(
                offset, max_bytes=max_bytes, isolation=isolation, upto=upto, pool=pool
            )
            if fetched.next_offset <= offset:
                earlier_bounds = near.bounds()
                self._next = offset
                if self._advance(near) != earlier_bounds:
                    fetched = near.fetch(
                        offset, max_bytes=max_bytes, isolation=isolation, upto=upto, pool=pool
                    )
        except OffsetOutOfRangeError:
            return None
        except EmbedlogError as problem:
            self._replicas.members.blame(problem)
            return None
        self._partition.raise_lowest_epoch(self._epoch)
        if upto is not None and fetched.next_offset <= offset:
            return None  # the caller knows that there are records
        return fetched

    def bounds(self) -> Bounds:
        """The offsets of the replica that is read next."""
        near = self._find_near(self._next)
        if near is not None:
            try:
                return self._advance(near)
            except EmbedlogError as problem:
                self._replicas.members.blame(problem)
        self._waiting_at = None
        return self._partition.bounds()

    def unread_bytes(self, offset: int) -> int | None:
        """As `Partition.unread_bytes`, of the replica that is read next."""
        near = self._find_near(offset)
        if near is not None:
            try:
                return near.unread_bytes(offset)
            except EmbedlogError as problem:
                self._replicas.members.blame(problem)
        return self._partition.unread_bytes(offset)

    def _advance(self, near: Partition) -> Bounds:
        """The offsets of a follower, after it got the leader's high watermark."""
        own = near.bounds()
        leader = self._replicas.leaders.find_present_leader()
        if leader is None:
            self._waiting_at = near
            return own
        theirs = leader.partition.bounds()
        if self._needs_mark(own, theirs):
            try:
                near.replica.learn(leader.epoch, theirs.high_watermark, system.boot_ns() + LEARN_NS)
            except (Fenced, LockTimeoutError):
                self._learn_ns = system.boot_ns() + PAUSE_NS
            own = near.bounds()
        is_level = (
            own.high_watermark >= theirs.high_watermark and own.last_stable >= theirs.last_stable
        )
        # the leader's page changes first
        self._waiting_at = None if is_level else near
        return own

    def _needs_mark(self, own: Bounds, theirs: Bounds) -> bool:
        is_lower = own.high_watermark < min(theirs.high_watermark, own.log_end)
        return (
            is_lower and not self._replicas.members.read_only and system.boot_ns() >= self._learn_ns
        )

    # ---- at the leader ---------------------------------------------------------------------------

    def published(self) -> Published:
        """The tuple of the leader."""
        return self._partition.published()

    def awaited_bounds(self, end: int, isolation: str, since_ns: int | None = None) -> Bounds:
        """As `ReplicatedPartition.awaited_bounds`."""
        return self._partition.awaited_bounds(end, isolation, since_ns)

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        """As `Partition.epoch_end`, from the leader."""
        return self._partition.epoch_end(epoch)

    def offset_for_time(
        self, timestamp_ms: int, isolation: str = "read_uncommitted"
    ) -> OffsetAndTimestamp | None:
        """As `Partition.offset_for_time`, from the leader."""
        return self._partition.offset_for_time(timestamp_ms, isolation)

    def end_by_time(self, first: int, last: int, end_ms: int) -> int:
        """As `Partition.end_by_time`, of the leader."""
        return self._partition.end_by_time(first, last, end_ms)

    def skip_by_time(self, offset: int, start_ms: int, end_ms: int) -> int:
        """As `Partition.skip_by_time`, of the leader."""
        return self._partition.skip_by_time(offset, start_ms, end_ms)

    def split_points(
        self, start: int, end: int, max_bytes: int, count: int | None = None
    ) -> list[SplitPoint]:
        """As `Partition.split_points`, of the leader."""
        return self._partition.split_points(start, end, max_bytes, count)

    def open_transactions(self) -> list[tuple[int, int, int]]:
        """As `Partition.open_transactions`, of the leader."""
        return self._partition.open_transactions()

    # ---- waits -----------------------------------------------------------------------------------

    @property
    def mapped_page(self) -> Page | None:
        """The page of a replica, for waits on it: of the one that was asked last. If that one has
        all that the leader shows, of the leader.
        """
        near = self._waiting_at
        if near is None:
            return self._partition.mapped_page
        return near.mapped_page

    def check_page(self) -> None:
        """At the end of a wait: look at the pages again."""
        near = self._waiting_at
        if near is not None:
            try:
                near.check_page()
                return
            except EmbedlogError as problem:
                self._replicas.members.blame(problem)
                self._waiting_at = None
        self._partition.check_page()
