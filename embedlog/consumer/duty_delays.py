"""This module lets reading continue while the duties of a group member wait for a lock or for a
leader.

- A lock held by others does not stop reading: later calls try again, until `lock.timeout.ms` have
  passed.
- In a set the group's partition can have no leader, or too few replicas. Later calls try again,
  with one message.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from embedlog._native.scope import scope
from embedlog.errors import LeaderNotAvailableError, LockTimeoutError, NotEnoughReplicasError
from embedlog.telemetry import log_messages

if TYPE_CHECKING:
    from embedlog.engine.engine import Engine

logger = logging.getLogger("embedlog.consumer")


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
