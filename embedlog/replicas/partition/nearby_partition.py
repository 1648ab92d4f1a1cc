"""This module is the partition that a consumer with a rack uses: it reads a replica in this rack,
if there is one (REPLICA-27).

NEARBY-1  a read goes to a follower of the decided ISR whose page is in the epoch of that decision,
    up to its own high watermark. If the leader is in the rack, or no such follower has the offset,
    it goes to the leader
NEARBY-2  an offset out of the range of a follower is asked again at the leader. So is a read whose
    follower fails: its directory is treated as one that failed in any other call
NEARBY-3  a read never goes to a follower in a lower epoch than an earlier one has read from
NEARBY-4  a reader brings its follower the high watermark of the leader, and does not wait for the
    next copy. One that changes nothing waits
NEARBY-5  a wait watches the page of the replica that was asked last. If that one has all that the
    leader shows, it watches the leader's page, which changes first
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from embedlog._native import replication, system
from embedlog.errors import EmbedlogError, LockTimeoutError, OffsetOutOfRangeError
from embedlog.partition.replication.replica_log import Fenced
from embedlog.replicas.partition.replicated_partition import ReplicatedPartition

if TYPE_CHECKING:
    from embedlog._native.system import Page
    from embedlog.config.topic import TopicConfig
    from embedlog.format.buffer_pool import BufferPool
    from embedlog.partition.interfaces import Fetched
    from embedlog.partition.log_context import Bounds
    from embedlog.partition.partition import Partition
    from embedlog.replicas.partition.partition_replicas import PartitionReplicas

# to wait for the lock of a follower: without it the reader waits for the next copy
LEARN_NS: Final = 20_000_000
PAUSE_NS: Final = 1_000_000_000  # after a lock that was not had


class NearbyPartition(ReplicatedPartition):
    """One partition of a set for one consumer. Threads: those of the consumer, one at a time."""

    def __init__(
        self,
        replicas: PartitionReplicas,
        config: Callable[[], TopicConfig],
        lock_timeout_ms: int,
        check_open: Callable[[], None],
        rack: str,
    ) -> None:
        super().__init__(replicas, config, lock_timeout_ms, check_open)
        self._rack = rack
        self._seen = (-1, -1)  # the decisions and the directories for which the next two were read
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
        return self.node if self._node < 0 else self._node

    # ---- the replica -----------------------------------------------------------------------------

    def _near(self, offset: int) -> Partition | None:
        """The follower to read at an offset; None: the leader (NEARBY-1). With -1 any offset."""
        self._check_open()
        seen = self._replicas.version(), self._replicas.changes
        if seen != self._seen:
            self._epoch, self._nodes = self._replicas.in_rack(self._rack)
            self._seen = seen
        found: list[tuple[bool, int, int, int, Partition]] = []
        for node in self._nodes if self._epoch >= self._lowest else ():
            follower = self._replicas.reached(node)
            if follower is None:
                continue
            try:
                now, replica = follower.replica.published()
            except EmbedlogError as problem:
                self._replicas.blame(problem)
                continue
            follows = replica.role == replication.ROLE_FOLLOWER and now.epoch == self._epoch
            if follows and (offset < 0 or now.log_start <= offset <= now.log_end):
                found.append((node == self._node, now.log_end, now.high_watermark, node, follower))
        if not found:
            self._node = -1
            return None
        *_, self._node, near = max(found, key=lambda each: each[:4])
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
        near = None if getattr(self._held, "leader", None) is not None else self._near(offset)
        found = (
            None if near is None else self._fetched(near, offset, max_bytes, isolation, upto, pool)
        )
        if found is None:
            found = super().fetch(
                offset, max_bytes=max_bytes, isolation=isolation, upto=upto, pool=pool
            )
        self._next = found.next_offset
        return found

    def _fetched(
        self,
        near: Partition,
        offset: int,
        max_bytes: int,
        isolation: str,
        upto: int | None,
        pool: BufferPool | None,
    ) -> Fetched | None:
        """What a follower has; None if the leader is to be asked (NEARBY-2)."""
        try:
            found = near.fetch(
                offset, max_bytes=max_bytes, isolation=isolation, upto=upto, pool=pool
            )
            if found.next_offset <= offset:
                before = near.bounds()
                self._next = offset
                if self._advanced(near) != before:
                    found = near.fetch(
                        offset, max_bytes=max_bytes, isolation=isolation, upto=upto, pool=pool
                    )
        except OffsetOutOfRangeError:
            return None
        except EmbedlogError as problem:
            self._replicas.blame(problem)
            return None
        self._lowest = max(self._lowest, self._epoch)
        # the caller knows what is there
        return None if upto is not None and found.next_offset <= offset else found

    def bounds(self) -> Bounds:
        """The offsets of the replica that is read next."""
        near = self._near(self._next)
        if near is not None:
            try:
                return self._advanced(near)
            except EmbedlogError as problem:
                self._replicas.blame(problem)
        self._waiting_at = None
        return super().bounds()

    def unread_bytes(self, offset: int) -> int | None:
        """As `Partition.unread_bytes`, of the replica that is read next."""
        near = self._near(offset)
        if near is not None:
            try:
                return near.unread_bytes(offset)
            except EmbedlogError as problem:
                self._replicas.blame(problem)
        return super().unread_bytes(offset)

    def _advanced(self, near: Partition) -> Bounds:
        """The offsets of a follower, after it got the leader's high watermark (NEARBY-4)."""
        found = near.bounds()
        leader = self._replicas.present_leader()
        theirs = None if leader is None else leader.partition.bounds()
        if leader is not None and theirs is not None and self._lacks_mark(found, theirs):
            try:
                near.replica.learn(leader.epoch, theirs.high_watermark, system.boot_ns() + LEARN_NS)
            except (Fenced, LockTimeoutError):
                self._learn_ns = system.boot_ns() + PAUSE_NS
            found = near.bounds()
        level = (
            theirs is not None
            and found.high_watermark >= theirs.high_watermark
            and found.last_stable >= theirs.last_stable
        )
        self._waiting_at = None if level else near
        return found

    def _lacks_mark(self, own: Bounds, theirs: Bounds) -> bool:
        lower = own.high_watermark < min(theirs.high_watermark, own.log_end)
        return lower and not self._replicas.read_only and system.boot_ns() >= self._learn_ns

    # ---- waits -----------------------------------------------------------------------------------

    @property
    def mapped_page(self) -> Page | None:
        """The page of a replica, for waits on it (NEARBY-5)."""
        near = self._waiting_at
        return super().mapped_page if near is None else near.mapped_page

    def check_page(self) -> None:
        """At the end of a wait: look at the pages again."""
        near = self._waiting_at
        if near is not None:
            try:
                near.check_page()
                return
            except EmbedlogError as problem:
                self._replicas.blame(problem)
                self._waiting_at = None
        super().check_page()
