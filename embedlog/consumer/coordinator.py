"""The group side of a consumer, executed inside its calls: membership, commits, and start
positions.

- Duties are done at the beginning of every poll, and before every list that iteration continues
  with. The next ones are due at `until_ns`; no record is returned after that time without another
  check.
- Between duties the check costs a clock reading and one read of memory.
- An expired lease is renewed before the group's record is read, so that no record follows an
  undetected removal.
- A partition starts at the committed offset, else by `auto.offset.reset`; it is not read before
  that is known.
- Reading continues while the duties wait (`DutyDelays`): for a lock that others hold, until
  `lock.timeout.ms` have passed, or for the partition of the group, which in a set can have no
  leader or too few replicas. Later calls try again.
"""

from __future__ import annotations

import contextlib
import logging
import re
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NoReturn

from embedlog._native import system
from embedlog._native.scope import scope
from embedlog.config.client import ConsumerConfig
from embedlog.consumer.collector import Collector
from embedlog.consumer.group_metrics import report_commits, report_heartbeats
from embedlog.consumer.membership import NO_GENERATION, Membership, Phase
from embedlog.consumer.offset_committer import AutoCommit, Callback, OffsetCommitter, Offsets
from embedlog.consumer.positions import Cursor
from embedlog.consumer.rebalance_listener import Listener
from embedlog.consumer.subscription import Subscription
from embedlog.coordination.groups.commit_checks import check_group_id, check_offsets
from embedlog.coordination.groups.member_watch import Watch
from embedlog.errors import (
    CommitFailedError,
    DeadlineError,
    EmbedlogError,
    FencedError,
    IllegalGenerationError,
    LeaderNotAvailableError,
    LockTimeoutError,
    NotEnoughReplicasError,
    ReadOnlyError,
    RebalanceInProgressError,
    StateError,
    UnknownTopicOrPartitionError,
)
from embedlog.group import Group, State, end_delay
from embedlog.storage import files
from embedlog.storage.call_deadline import bound_waits
from embedlog.telemetry import log_messages
from embedlog.types import GroupMetadata, OffsetAndMetadata, TopicPartition, brief

if TYPE_CHECKING:
    from embedlog.engine.engine import Engine
    from embedlog.storage.liveness import Lease

logger = logging.getLogger("embedlog.consumer")


TICK_NS: Final = 100_000_000  # between two checks of other members
LARGE_GROUP: Final = 4  # this many members check half as often each: at different times
# between two reads of the group without a notice: a killed writer signals nothing
CHECK_NS: Final = 1_000_000_000
# a step waits this long for a lock before the call continues without it
LOCK_NS: Final = 50_000_000
LEAVE_NS: Final = 1_000_000_000  # for a leader in a set; other members detect the end of the lease
STEPS_MAX: Final = 16  # per call; the next call continues if the group changes faster


class ConsumerCoordinator:
    """The group side of one consumer. Threads: the consumer's own."""

    def __init__(
        self,
        engine: Engine,
        config: ConsumerConfig,
        client_id: str,
        reading: Collector,
        subscription: Subscription,
    ) -> None:
        if engine.read_only:
            raise ReadOnlyError(
                "a consumer in a group writes, but the log was opened read-only: omit group_id"
            )
        self.until_ns = 0  # monotonic clock
        self.move_count = 0
        self._engine = engine
        self._config = config
        self._reading = reading
        self._subscription = subscription
        self._groups = engine.groups
        self._group_id = check_group_id(config.group_id)
        self._api_timeout_s = timeout_s = config.default_api_timeout_ms / 1000
        self._metrics = reading.waiter.metrics
        self._committer = OffsetCommitter(
            engine.groups, self._group_id, reading.interceptors, timeout_s, self._metrics
        )
        interval_s = config.auto_commit_interval_ms / 1000
        backoff_s = config.retry_backoff_ms / 1000
        self._auto = (
            AutoCommit(interval_s, backoff_s, time.monotonic())
            if config.enable_auto_commit
            else None
        )
        self._lease: Lease | None = None
        self._watch = Watch(engine.transactions.liveness)
        self._number: int | None = None
        self._notice = -1
        self._inside = False
        self._group: Group | None = None  # as last read, if there was nothing to do
        self._check_ns = 0  # time of the next read at the latest, monotonic clock
        self._eviction_due = False  # other members seem to have ended
        # generation whose successor is delayed, and since when
        self._delay: tuple[int, int] | None = None
        self._delays = DutyDelays(engine, self._group_id)
        self.membership = Membership(
            engine, config, client_id, subscription, self, self._ensure_lease, self._metrics
        )
        reading.join_group(self)

    # ---- calls of the consumer -------------------------------------------------------------------

    @property
    def _subscribed(self) -> bool:
        return self._subscription.kind in ("topics", "pattern")

    def read_notices(self) -> list[tuple[Any, int]]:
        """The notice to wait on, with its value before the last read."""
        if self._number is None:
            return []
        return [(self._groups.topic.partition(self._number), self._notice)]

    def begin_poll(self) -> None:
        if self._committer.has_callbacks:
            self.until_ns = 0
        if self._lease is not None:
            self._lease.begin_poll()

    def end_poll(self) -> None:
        if self._lease is not None:
            self._lease.end_poll()

    def note_topics_changed(self) -> None:
        """Called when topics may have changed."""
        self.move_count += 1
        self._engine.refresh_topics()  # closes deleted topics
        if self._subscribed:
            self.membership.note_topics_changed()
            deleted = [cursor.tp for cursor in self._reading.rotation if cursor.partition.closed]
            if deleted:
                self._reading.replace(
                    cursor for cursor in self._reading.rotation if cursor.tp not in deleted
                )
            self.until_ns = 0

    def subscribe(
        self,
        topics: Iterable[str] | None,
        pattern: str | re.Pattern[str] | None,
        listeners: tuple[Listener | None, Listener | None, Listener | None],
    ) -> None:
        """Share these topics with the group from the next poll on. Raises as
        `Consumer.subscribe`.
        """
        selection = self._subscription.with_selection(topics, pattern)
        self.membership.listeners.listen(*listeners)
        self._subscription.become(selection)
        self.membership.note_topics_changed()
        self.until_ns = 0

    def enforce_rebalance(self) -> None:
        if not self._subscribed:
            raise StateError(
                "enforce_rebalance() needs subscribed topics: partitions given to assign() are "
                "not rebalanced"
            )
        self.membership.check_not_fenced()
        self.membership.wants_rejoin = True
        self.until_ns = 0

    def raise_unassigned(self, problem: StateError) -> NoReturn:
        """A call named a partition that this member does not have. Raises FencedInstanceIdError,
        StateError.
        """
        self.membership.check_not_fenced()
        if not self._subscribed:
            raise problem
        raise StateError(
            f"{problem.message} now: a member of a group gets its partitions in poll(). Call it "
            "in the listener on_assigned, "
            "or after a poll() that has returned this partition's records"
        ) from None

    # ---- duties ----------------------------------------------------------------------------------

    def is_due(self) -> bool:
        """Whether a duty is due before records are returned."""
        return time.monotonic_ns() >= self.until_ns or self._read_notice() != self._notice

    def run_duties(self) -> None:
        """Do all duties that are due. Raises errors of listeners, assignors and the group."""
        if self._inside or not self.is_due():
            return
        self._inside = True
        try:
            self._run_due(system.boot_ns() + LOCK_NS)
        finally:
            self._inside = False
        self.membership.listeners.raise_first()

    def _run_due(self, deadline_ns: int) -> None:
        now_ns = time.monotonic_ns()
        self.until_ns = 0
        until_ns = now_ns + self._tick_ns()
        if self._committer.is_waiting:
            self._committer.advance(system.boot_ns())
            self._committer.call_back()
        with bound_waits(deadline_ns), self._delays.tolerate_missing_leader():
            if self._subscribed:
                with self._delays.tolerate_held_lock():
                    self._check_lease(deadline_ns)
                    if self._follow(deadline_ns):
                        until_ns = now_ns
            self.begin_commit(early=False)
            if not self._find_start_positions(self._cursors_without_position(), system.boot_ns()):
                until_ns = min(until_ns, now_ns + TICK_NS)
        self.until_ns = min(until_ns, self._good_until_ns())

    def _tick_ns(self) -> int:
        if self._group is not None and len(self._group.members) >= LARGE_GROUP:
            return 2 * TICK_NS
        return TICK_NS

    def _check_lease(self, deadline_ns: int) -> None:
        """Leave after too long a pause between polls, and renew an expired lease."""
        if self._lease is None:
            return
        if self._lease.has_left and self.membership.phase is not Phase.OUT:
            logger.warning(
                "no poll for max.poll.interval.ms (%d): leaving the group",
                self._config.max_poll_interval_ms,
            )
            self.membership.leave_expired(deadline_ns)
        if self._lease.has_left or self._lease.is_expired:
            self._lease.renew()
            self._check_ns = 0
        elif self.membership.phase is Phase.IN and not self._engine.transactions.liveness.shows(
            self._lease
        ):
            self.membership.wants_rejoin = True  # with a slot in another directory of the set

    def _follow(self, deadline_ns: int) -> bool:
        """Follow the group's state step by step; True if more steps are due."""
        if self._is_quiet():
            return False
        if self._number is None:
            self._number = self._groups.topic.partition_of(self._group_id)
        for _ in range(STEPS_MAX):
            self._notice = self._read_notice()  # before the step: a later change is noticed again
            if not self.membership.step(deadline_ns):
                self._watch_others(deadline_ns)
                if self._notice == self._read_notice():
                    return False
        return True

    def _is_quiet(self) -> bool:
        """Whether the result of the last step still holds: no notice, no request, and no member
        that seems to have ended.
        """
        now_ns = time.monotonic_ns()
        member = self.membership
        if (
            self._group is None
            or now_ns >= self._check_ns
            or member.phase is not Phase.IN
            or member.wants_rejoin
        ):
            return False
        if self._read_notice() != self._notice:
            return False
        watch = self._watch
        self._eviction_due = watch.begin_check_if_due() and bool(
            watch.find_verdicts(self._group, member.member_id)
        )
        return not self._eviction_due

    def _watch_others(self, deadline_ns: int) -> None:
        """Remove other members that have ended; the first member that detects it does so."""
        if self.membership.phase is Phase.OUT or not (
            self._eviction_due or self._watch.begin_check_if_due()
        ):
            return
        self._eviction_due = False
        group = self._groups.evict(
            self._group_id, self._watch, self.membership.member_id, deadline_ns=deadline_ns
        )
        if group is not None and group.delayed and self._is_delay_over(group):
            self._groups.decide(
                self._group_id, lambda old: old and end_delay(old, system.wall_ms()), deadline_ns
            )
        self._group = None
        if group is not None and group.state is State.STABLE:
            self._group = group
        self._check_ns = time.monotonic_ns() + CHECK_NS

    def _is_delay_over(self, group: Group) -> bool:
        """Whether no member joined for `group.initial.rebalance.delay.ms`, or the delay lasts as
        long as a round may.
        """
        now_ns = time.monotonic_ns()
        if self._delay is None or self._delay[0] != group.generation:
            self._delay = group.generation, now_ns
        spent_ms = (now_ns - self._delay[1]) // 1_000_000
        return (
            self._watch.round_age_ms(group) >= self._groups.limits.initial_delay_ms
            or spent_ms >= group.rebalance_timeout_ms
        )

    def _read_notice(self) -> int:
        return -1 if self._number is None else int(self._groups.topic.notice_word(self._number))

    def _ensure_lease(self) -> Lease:
        liveness = self._engine.transactions.liveness
        config = self._config
        if self._lease is None or not liveness.shows(self._lease):
            self.end_lease()
            self._lease = liveness.lease(
                session_timeout_ms=config.session_timeout_ms,
                heartbeat_interval_ms=config.heartbeat_interval_ms,
                max_poll_interval_ms=config.max_poll_interval_ms,
            )
            # a consumer dropped without close() stops being a member
            weakref.finalize(self, self._lease.end).atexit = False
        return self._lease

    def _good_until_ns(self) -> int:
        """The time until which records may be returned without another check, on the monotonic
        clock.
        """
        if self._lease is None:
            return 1 << 62
        return time.monotonic_ns() + int(self._lease.good_until_ns) - system.boot_ns()

    # ---- assigned partitions (the membership's `OwnedPartitions`) -------------------------------------------

    def owned(self) -> set[TopicPartition]:
        return {cursor.tp for cursor in self._reading.rotation}

    def replace_owned(self, tps: Iterable[TopicPartition]) -> None:
        """Assign exactly these; partitions that stay keep their state."""
        cursors = []
        for tp in tps:
            try:
                cursors.append(self._reading.open_cursor(tp))
            except UnknownTopicOrPartitionError:
                logger.warning("%s-%d is assigned, but does not exist", *tp)
        self._reading.rotation.replace(cursors)
        offsets_before = self._committer.committed_offsets
        owned = self.owned()
        self._committer.committed_offsets = {
            tp: offset for tp, offset in offsets_before.items() if tp in owned
        }
        self.move_count += 1
        if self._auto is not None:
            self._auto.restart(time.monotonic())

    def commit_before_revocation(self, identity: GroupMetadata, deadline_ns: int) -> None:
        """Raises LockTimeoutError; other errors are logged, as for every automatic commit."""
        if self._auto is None:
            return
        try:
            try:
                self._committer.commit_sync(self._uncommitted_positions(), identity, deadline_ns)
            except UnknownTopicOrPartitionError:
                self._engine.refresh_topics()  # closes deleted topics
                self._committer.commit_sync(self._uncommitted_positions(), identity, deadline_ns)
        except EmbedlogError as problem:
            if isinstance(problem, LockTimeoutError):
                raise
            self._log_failed_commit(problem)

    # ---- start positions -------------------------------------------------------------------------

    def _cursors_without_position(self) -> list[Cursor]:
        return [cursor for cursor in self._reading.rotation if cursor.needs_committed_offset]

    def find_position(self, cursor: Cursor) -> None:
        """Find the start position of a partition. Raises DeadlineError if it depends on an open
        transaction for too long.
        """
        if cursor.needs_committed_offset and not self._find_start_positions(
            [cursor], files.deadline_after(self._api_timeout_s)
        ):
            raise DeadlineError(
                f"{cursor.tp.topic}-{cursor.tp.partition}: the committed offset depends on an "
                "open transaction",
                expected="a commit or abort by its producer, or the end of transaction.timeout.ms",
            )

    def _find_start_positions(self, cursors: list[Cursor], deadline_ns: int) -> bool:
        """Set the positions of cursors: the committed offset, or that of `auto.offset.reset`.
        False if some are not known yet.
        """
        if not cursors:
            return True
        offsets = self._read_committed([cursor.tp for cursor in cursors], deadline_ns)
        uncommitted = [tp for tp, committed in offsets.items() if committed is None]
        if uncommitted:
            logger.info(
                "group %r has no committed offsets of %s: auto.offset.reset=%s",
                self._group_id,
                brief(uncommitted),
                self._config.auto_offset_reset,
            )
        self.move_count += 1
        for cursor in cursors:
            if cursor.tp not in offsets:
                continue
            committed = offsets[cursor.tp]
            if committed is not None:
                self._committer.committed_offsets[cursor.tp] = committed.offset
                # also ends `needs_committed_offset`: last, so an interrupt finds it anew
                cursor.seek(committed.offset, committed.leader_epoch)
            elif self._config.auto_offset_reset == "none":
                cursor.needs_committed_offset = False  # reading raises
            else:
                # another thread loads the partition: the next step looks again
                with contextlib.suppress(LockTimeoutError):
                    # "latest" means the end now, not at the first read
                    self._reading.reset_position(cursor)
        return not any(cursor.needs_committed_offset for cursor in cursors)

    def _read_committed(
        self, tps: list[TopicPartition], deadline_ns: int
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Committed offsets, without partitions whose offset an open transaction will change."""
        try:
            return dict(
                self._groups.read_committed(self._group_id, tps, deadline_ns, self._reading.waiter)
            )
        except (DeadlineError, LockTimeoutError):
            if len(tps) == 1:
                return {}
        offsets: dict[TopicPartition, OffsetAndMetadata | None] = {}
        for tp in tps:
            offsets.update(self._read_committed([tp], deadline_ns))
        return offsets

    # ---- commits ---------------------------------------------------------------------------------

    def _positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        return {
            cursor.tp: OffsetAndMetadata(cursor.position, "", cursor.epoch)
            for cursor in self._reading.rotation
            if cursor.position >= 0 and not cursor.partition.closed
        }

    def _uncommitted_positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Positions that differ from the committed offsets: without the others an idle group
        rebalances with fewer locks.
        """
        committed = self._committer.committed_offsets if self._subscribed else {}
        return {
            tp: position
            for tp, position in self._positions().items()
            if committed.get(tp) != position.offset
        }

    def _identity(self) -> GroupMetadata | None:
        return self.membership.identity() if self._subscribed else None

    def commit(self, offsets: Mapping[TopicPartition, Any] | None) -> None:
        self.membership.check_not_fenced()
        positions = self._positions() if offsets is None else check_offsets(offsets)
        keeps_partitions = False
        if offsets is None and self._subscribed:
            keeps_partitions = self.membership.keeps_partitions()
        identity: GroupMetadata | None = None
        if keeps_partitions:
            identity = self.membership.metadata()
        elif positions:
            identity = self._identity()
        deadline_ns = files.deadline_after(self._api_timeout_s)
        try:
            self._committer.commit_sync(
                positions, identity, deadline_ns, keeps_partitions=keeps_partitions
            )
        except IllegalGenerationError as problem:
            if self.membership.phase is not Phase.JOINING:
                raise
            raise RebalanceInProgressError(
                f"{problem.message}: poll until there is an assignment"
            ) from problem
        self._committer.call_back()

    def commit_async(
        self, offsets: Mapping[TopicPartition, Any] | None, callback: Callback | None
    ) -> None:
        positions = self._positions() if offsets is None else check_offsets(offsets)
        try:
            self.membership.check_not_fenced()
            self._committer.commit_async(
                positions, self._identity() if positions else None, callback
            )
        except (CommitFailedError, RebalanceInProgressError, FencedError) as problem:
            self._committer.refuse(positions, problem, callback)
        self.until_ns = 0

    def begin_commit(self, early: bool = True) -> None:
        """Start the automatic commit if it is due, or `early`."""
        now = time.monotonic()
        if (
            self._auto is None
            or (now < self._auto.due_at and not early)
            or not len(self._reading.rotation)
        ):
            return
        self._auto.restart(now)
        if self._subscribed and self.membership.generation == NO_GENERATION:
            return
        positions = self._positions()
        try:
            if positions:
                self._committer.commit_async(
                    positions, self._identity(), self._note_automatic_commit
                )
        except RebalanceInProgressError:
            self._auto.retry_soon(now)

    def _log_failed_commit(self, problem: Exception) -> None:
        key = (self._engine.path, "commit", self._group_id)
        log_messages.report(
            logger,
            logging.WARNING,
            key,
            f"automatic commit of group {self._group_id!r} failed",
            problem,
        )

    def _note_automatic_commit(self, offsets: Offsets, problem: Exception | None) -> None:
        if problem is not None:
            self._log_failed_commit(problem)
            if getattr(problem, "retriable", False) and self._auto is not None:
                self._auto.retry_soon(time.monotonic())

    def committed(
        self, tps: list[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        began = time.perf_counter()
        until_ns = files.deadline_after(self._api_timeout_s)
        try:
            return dict(
                self._groups.read_committed(self._group_id, tps, until_ns, self._reading.waiter)
            )
        finally:
            self._metrics.spent("committed", time.perf_counter() - began)

    def metadata(self) -> GroupMetadata:
        self.membership.check_not_fenced()
        return self.membership.metadata()

    def metrics(self) -> dict[str, Any]:
        """Kafka's metrics of commits, rebalances and heartbeats."""
        heartbeat = report_heartbeats(
            self._lease, self._config.session_timeout_ms, self._config.heartbeat_interval_ms
        )
        return {**report_commits(self._metrics), **self.membership.rebalances.report(), **heartbeat}

    # ---- close -----------------------------------------------------------------------------------

    def stop_reading(self, deadline_ns: int) -> None:
        """Commit returned records if automatic commits are enabled; then leave the group and
        release all partitions.
        """
        listeners = self.membership.listeners
        self._inside = True  # a listener may call back; no duty runs meanwhile
        try:
            if self._auto is not None and len(self._reading.rotation):
                with contextlib.suppress(EmbedlogError):
                    self._committer.commit_sync(self._positions(), self._identity(), deadline_ns)
            if self._subscribed:
                until_ns = deadline_ns
                if self._engine.replicated:
                    until_ns = min(deadline_ns, system.boot_ns() + LEAVE_NS)
                self.membership.leave(until_ns)
        finally:
            self.end_lease()  # a member that could not leave ends here
            self._inside = False
            self._number = None
            self._notice = -1
            self.until_ns = 0
            self._group = None
        listeners.raise_first()

    def close(self, timeout_s: float | None, *, automatic: bool = True) -> None:
        """Complete pending commits, leave the group, and end the lease; without `automatic`,
        returned records are not committed.

        Raises a listener's exception.
        """
        if not automatic:
            self._auto = None
        deadline_ns = files.deadline_after(timeout_s)
        try:
            self._committer.complete(deadline_ns)
            self.stop_reading(deadline_ns)
        finally:
            self.end_lease()
            self._committer.end()

    def end_lease(self) -> None:
        """End the lease: others detect at once that this member has ended, unless it is static."""
        lease = self._lease
        if lease is not None:
            lease.end()
        self._lease = None  # after its end, which an interrupt may have left to the next call
        self._watch = Watch(self._engine.transactions.liveness)


class DutyDelays:
    """The delayed duties of one member. Threads: the consumer's own."""

    def __init__(self, engine: Engine, group_id: str) -> None:
        self._engine = engine
        self._group_id = group_id
        self._blocked_since_ns: int | None = None

    @scope
    def tolerate_held_lock(self) -> Iterator[None]:
        """Leave the block if another process holds the lock. Raises LockTimeoutError after
        `lock.timeout.ms` without success.
        """
        try:
            yield
        except LockTimeoutError:
            now_ns = time.monotonic_ns()
            if self._blocked_since_ns is None:
                self._blocked_since_ns = now_ns
            elif now_ns - self._blocked_since_ns >= self._engine.config.lock_timeout_ms * 1_000_000:
                self._blocked_since_ns = None
                raise
            return
        self._blocked_since_ns = None

    @scope
    def tolerate_missing_leader(self) -> Iterator[None]:
        """Leave the block, with a log message, while the partition of the group has no leader or
        too few replicas.
        """
        try:
            yield
        except (LeaderNotAvailableError, NotEnoughReplicasError) as problem:
            if not problem.retriable:
                raise
            key = (self._engine.path, "unavailable", self._group_id)
            log_messages.report(
                logger,
                logging.WARNING,
                key,
                f"the duties of group {self._group_id!r} wait",
                problem,
            )
