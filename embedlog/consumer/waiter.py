"""Waits for records, topic changes, ends of transactions and wakeups.

- A wait does not poll: it sleeps in the kernel on futex words that appends, topic changes and
  `wakeup` change.
- The futex word of the topics is read before the topics: a change in between is detected by the
  next check.
- The group's duties are done before each collection; a call waits at most until the next duty is
  due.
- A transaction that blocks a reader for RESOLVE_S is checked, since its owner may have ended; a
  read-only log changes nothing.
- In a set a partition without a leader stops no other one: nothing waits for it except the sleep,
  which a decision ends.
- The first sleep of LOAD_S or more imports what a first read needs: the first record of a consumer
  would wait for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from embedlog._native import lazy_numpy, system
from embedlog.config.client import ConsumerConfig
from embedlog.consumer.positions import Cursor, Rotation
from embedlog.consumer.subscription import Subscription
from embedlog.errors import ClosedError, StateError, WakeupError
from embedlog.format.visibility import READ_COMMITTED, end_offset
from embedlog.storage.call_deadline import bound_waits
from embedlog.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from embedlog.engine.engine import Engine

Result = TypeVar("Result")

AT_ONCE_NS = 1  # a deadline (boot clock) that is over: nothing is waited for
# between two checks of the topics while their word is odd: a change is in progress, or was not
# signalled
TOPICS_CHECK_S = 0.5
GROUP_CHECK_S = 1.0  # between two checks of the partitions by a group member without a signal
LEADER_CHECK_S = 0.2  # between two checks for a leader, without a decision
RESOLVE_S = 0.1  # between two checks of a transaction that blocks this reader
LOAD_S = 0.2  # a shorter sleep would end late


class Duty(Protocol):
    """Duties of a consumer in a group, to be done between collections."""

    until_ns: int  # monotonic clock

    move_count: int  # changes with the assigned partitions or positions

    def run_duties(self) -> None: ...
    def read_notices(self) -> list[tuple[Any, int]]: ...
    def begin_poll(self) -> None: ...
    def end_poll(self) -> None: ...


class Waiter:
    """Waits for a result of a collection. `follow` is called when the topics may have changed.

    **Threads:** one at a time, except `wakeup` and `stop`.
    """

    def __init__(
        self,
        engine: Engine,
        config: ConsumerConfig,
        rotation: Rotation,
        follow: Callable[[Subscription], None],
    ) -> None:
        self.metrics = Metrics(
            window_s=config.metrics_sample_window_ms / 1000, window_count=config.metrics_num_samples
        )
        self.poll_began = self.first_began = time.monotonic()
        self.poll_count = 0
        self.poll_gap_max_s = self.idle_s = 0.0
        self.duty: Duty | None = None
        self._engine = engine
        self._replicated = engine.replicated
        self._rotation = rotation
        self._follow = follow
        self._isolation = config.isolation_level
        self._committed = config.isolation_level == READ_COMMITTED
        self._least_bytes = config.fetch_min_bytes
        self._least_wait_s = config.fetch_max_wait_ms / 1000
        self._topics_age_s = config.metadata_max_age_ms / 1000
        self._spin_ns = config.poll_spin_us * 1000
        self._topics = -1  # the topics' word at their last check
        self._checked_s = self._now = 0.0
        self._stuck_since: float | None = None
        self._woken = self._stopped = False

    # ---- other threads ----

    def stop(self) -> None:
        """End the current wait and all later ones with ClosedError."""
        self._stopped = True
        self._engine.wake(self)

    def wakeup(self) -> None:
        self._woken = True
        self._engine.wake(self)

    # ---- the loop ----

    def wait_for(
        self,
        collect: Callable[[], Result | None],
        timeout_s: float | None,
        subscription: Subscription,
    ) -> Result | None:
        """The first true result of `collect`, within `timeout_s` (None: forever); otherwise its
        last result, or None.
        """
        if not subscription.kind:
            raise StateError("nothing is subscribed or assigned: subscribe() or assign() first")
        began = self._now = time.monotonic()
        self.count_call(began)
        deadline = None if timeout_s is None else began + timeout_s
        batching_until = began + self._least_wait_s if self._least_bytes > 1 else 0.0
        has_new_data = False
        duty = self.duty
        if duty is not None:
            duty.begin_poll()
        if self._spin_ns:
            self._engine.waiter(self).spin_until_ns = system.boot_ns() + self._spin_ns
        try:
            while True:
                if self._stopped or self._woken:
                    self.raise_if_interrupted()
                if not has_new_data:  # after an append, collect first: it is the shorter path
                    self._check_topics(subscription)
                if duty is not None:
                    duty.run_duties()
                result = None
                if not batching_until or not self._has_too_little(batching_until, deadline):
                    if self._replicated:
                        with bound_waits(AT_ONCE_NS):
                            result = collect()
                    else:
                        result = collect()
                    if result:
                        return result
                if not has_new_data:
                    now = time.monotonic()
                    if deadline is not None and now >= deadline:
                        return self._end_at_deadline(result, now)
                    has_new_data = self._sleep(now, deadline, batching_until)
                else:
                    has_new_data = False
        finally:
            if duty is not None:
                duty.end_poll()
            self.idle_s += time.monotonic() - began

    def count_call(self, now: float) -> None:
        """Record the begin of a call."""
        if now >= self.metrics.due:
            self.metrics.turn()
        if not self.poll_count:
            self.first_began = now
        elif now - self.poll_began > self.poll_gap_max_s:
            self.poll_gap_max_s = now - self.poll_began
        self.poll_count += 1
        self.poll_began = now

    def raise_if_interrupted(self) -> None:
        """Raises ClosedError after `stop`, WakeupError after `wakeup`, once."""
        if self._stopped:
            raise ClosedError("this consumer was closed; create another one with log.consumer(…)")
        if self._woken:
            self._woken = False
            raise WakeupError("wakeup() was called")

    def forget_topics(self) -> None:
        """Check the topics again, after a change of the subscription."""
        self._topics = -1

    def _check_topics(self, subscription: Subscription) -> None:
        word = self._engine.topics_version()
        if (
            word == self._topics
            and not word & 1
            and self._now - self._checked_s < self._topics_age_s
        ):
            return
        if (
            word & 1
            and subscription.kind == "assigned"
            and self._now - self._checked_s < TOPICS_CHECK_S
        ):
            self._topics = word
            return
        if self._replicated:
            with bound_waits(AT_ONCE_NS):
                self._follow(subscription)
        else:
            self._follow(subscription)
        self._topics = word
        self._checked_s = self._now

    def _end_at_deadline(self, result: Result | None, now: float) -> Result | None:
        """At the deadline: a blocking transaction is checked even if the polls do not wait."""
        if self._committed:
            self._end_blocking_transactions(now)
        return result

    def _sleep(self, now: float, deadline: float | None, short_until: float) -> bool:
        """Sleep until a partition grows (then True), topics change, a wakeup arrives, or another
        check is due.
        """
        if self._committed and self._end_blocking_transactions(now):
            return False
        until = now + self._topics_age_s
        if deadline is not None:
            until = min(until, deadline)
        if self._topics & 1:
            until = min(until, now + TOPICS_CHECK_S)
        if self._stuck_since is not None:
            until = min(until, self._stuck_since + RESOLVE_S)
        if now < short_until:
            until = min(until, short_until)
            tails = [(cursor.partition, self._end_of(cursor)) for cursor in self._led_cursors()]
        else:
            tails = [(cursor.partition, cursor.seen_end) for cursor in self._led_cursors()]
        if self._replicated and len(tails) < sum(1 for _ in self._rotation.readable_cursors()):
            until = min(until, now + LEADER_CHECK_S)
        if until - now >= LOAD_S:
            lazy_numpy.load()
        if self.duty is not None:
            return self._sleep_in_group(self.duty, now, until, tails)
        if self._engine.wait(tails, until - now, self, self._committed, self._topics):
            return True
        self._now = time.monotonic()
        return False

    def _sleep_in_group(
        self, duty: Duty, now: float, until: float, tails: list[tuple[Any, int]]
    ) -> bool:
        """As `_sleep`, with the group's duties in between; these do not check partitions without a
        signal.
        """
        until = min(until, now + GROUP_CHECK_S)
        move_count = duty.move_count
        while True:
            duty_or_end = min(until, duty.until_ns / 1e9)
            if self._engine.wait(
                tails,
                duty_or_end - now,
                self,
                self._committed,
                self._topics,
                duty.read_notices(),
                duty_or_end < until,
            ):
                return True
            now = self._now = time.monotonic()
            if (
                now >= until
                or self._woken
                or self._stopped
                or self._engine.topics_version() != self._topics
            ):
                return False
            duty.run_duties()
            if duty.move_count != move_count:
                return False

    def _led_cursors(self) -> Iterable[Cursor]:
        """The cursors that can be read; in a set without those whose partition has no leader
        now.
        """
        cursors = self._rotation.readable_cursors()
        if not self._replicated:
            return cursors
        return [cursor for cursor in cursors if self._engine.is_led(cursor.partition)]

    def _end_of(self, cursor: Cursor) -> int:
        return end_offset(cursor.partition.bounds(), self._isolation)

    # ---- fetch.min.bytes ----

    def _has_too_little(self, short_until: float, deadline: float | None) -> bool:
        """Whether less than `fetch.min.bytes` is available, no records are fetched ahead, and both
        this wait and the poll may continue.
        """
        now = time.monotonic()
        if now >= short_until or (deadline is not None and now >= deadline):
            return False
        available_bytes = 0
        for cursor in self._led_cursors():
            unread = (
                None
                if cursor.has_records or cursor.position < 0
                else cursor.partition.unread_bytes(cursor.position)
            )
            if unread is None:
                return False  # fetched ahead, or not at the end of the log: enough data
            available_bytes += unread
        return available_bytes < self._least_bytes

    # ---- blocking transactions ----

    def _end_blocking_transactions(self, now: float) -> bool:
        """End transactions that block a reader for RESOLVE_S, and whose owner has ended; True if
        one was ended. They are looked for at most every RESOLVE_S.
        """
        stuck = [cursor for cursor in self._led_cursors() if is_stuck(cursor)]
        if not stuck:
            self._stuck_since = None
        elif self._stuck_since is None:
            self._stuck_since = now
        elif now - self._stuck_since >= RESOLVE_S:
            self._stuck_since = now
            if not self._engine.read_only:
                resolve = self._engine.transactions.resolve
                ended_count = sum(resolve(cursor.partition) for cursor in stuck)
                return ended_count > 0
        return False


def is_stuck(cursor: Cursor) -> bool:
    """Whether a committed reader is at the last stable offset, and an open transaction hides later
    records.
    """
    bounds = cursor.partition.bounds()
    return bool(cursor.position == bounds.last_stable < bounds.high_watermark)


__all__ = ["RESOLVE_S", "TOPICS_CHECK_S", "Waiter", "is_stuck"]
