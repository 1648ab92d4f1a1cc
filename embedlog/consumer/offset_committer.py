"""Commits the offsets of a consumer: synchronously, asynchronously in order, or automatically at
intervals.

- Commits happen in the order of the calls: a synchronous commit first completes earlier ones.
- An asynchronous commit is one attempt without a wait for a lock: it is made at once. While another
  process holds the lock it stays first in the queue, until `default.api.timeout.ms` have passed.
- Callbacks run on the caller's thread, in a later poll, commit or close, in the order of their
  commits. A call of the consumer calls those that wait at its begin, so a callback that always
  commits again keeps no call from its end. The close calls all, and refuses asynchronous commits of
  the last ones.
- Commits are made inside calls, never by a separate thread: automatic commits contain records that
  earlier polls returned.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

from embedlog._native import system
from embedlog.consumer.collector import ConsumerInterceptors
from embedlog.errors import (
    ClosedError,
    EmbedlogError,
    LeaderNotAvailableError,
    LockTimeoutError,
    NotEnoughReplicasError,
    RetriableCommitFailedError,
)
from embedlog.hooks import callbacks
from embedlog.storage import files
from embedlog.telemetry.metrics import Metrics
from embedlog.types import GroupMetadata, OffsetAndMetadata, TopicPartition

logger = logging.getLogger("embedlog.consumer")

Offsets = Mapping[TopicPartition, OffsetAndMetadata]
Callback = Callable[[Offsets, Exception | None], object]

# the wait of a non-blocking attempt for a lock that others hold for microseconds
TRY_NS = 1_000_000


class Store(Protocol):
    """Writes commits to the group's log."""

    def commit(
        self,
        group_id: str,
        offsets: Offsets,
        identity: GroupMetadata | None,
        deadline_ns: int,
        topics: Mapping[str, str] | None = None,
    ) -> None: ...
    def topic_ids(self, tps: Iterable[TopicPartition]) -> Mapping[str, str]: ...
    def commit_kept_partitions(
        self, group_id: str, offsets: Offsets, member_id: str, deadline_ns: int
    ) -> None: ...


class AutoCommit:
    """The schedule of automatic commits. Has no clock: `now` is in seconds of any one clock."""

    def __init__(self, interval_s: float, backoff_s: float, now: float) -> None:
        self._interval_s = interval_s
        self._backoff_s = backoff_s
        self.due_at = now + interval_s

    def restart(self, now: float) -> None:
        """A commit or an assignment begins: the next commit is due one interval later."""
        self.due_at = now + self._interval_s

    def retry_soon(self, now: float) -> None:
        """A commit failed with a transient error: retry after the backoff."""
        self.due_at = min(self.due_at, now + self._backoff_s)


class _PendingCommit(NamedTuple):
    """One pending asynchronous commit."""

    offsets: Offsets
    identity: GroupMetadata | None
    callback: Callback | None
    until_ns: int  # boot clock; afterwards the commit has failed
    topics: Mapping[str, str]  # ids by name: the topics that the offsets are of


class OffsetCommitter:
    """The commits of one consumer. Threads: the consumer's own."""

    def __init__(
        self,
        store: Store,
        group_id: str,
        interceptors: ConsumerInterceptors,
        api_timeout_s: float,
        metrics: Metrics,
    ) -> None:
        self._metrics = metrics
        # committed offsets of this consumer's own partitions
        self.committed_offsets: dict[TopicPartition, int] = {}
        self._store = store
        self._group_id = group_id
        self._interceptors = interceptors
        self._api_timeout_s = api_timeout_s
        self._queue: deque[_PendingCommit] = deque()
        self._completed: deque[tuple[Callback | None, Offsets, Exception | None]] = deque()
        self._calling = self._ended = False

    @property
    def is_waiting(self) -> bool:
        """Whether commits or callbacks are pending."""
        return bool(self._queue or self._completed)

    @property
    def has_callbacks(self) -> bool:
        """Whether callbacks of completed commits are to be called."""
        return bool(self._completed)

    def commit_async(
        self, offsets: Offsets, identity: GroupMetadata | None, callback: Callback | None = None
    ) -> None:
        """Start an asynchronous commit; `call_back` passes the result to `callback`. Raises
        ClosedError after `end`.
        """
        self._check_open()
        until_ns = files.deadline_after(self._api_timeout_s)
        topics = self._store.topic_ids(offsets)
        self._queue.append(_PendingCommit(offsets, identity, callback, until_ns, topics))
        self.advance(system.boot_ns() + TRY_NS)

    def refuse(self, offsets: Offsets, error: Exception, callback: Callback | None = None) -> None:
        """An asynchronous commit that cannot be made; its callback keeps its place in the order."""
        self._check_open()
        self.advance(system.boot_ns() + TRY_NS)
        self._complete(callback, offsets, error)

    def _check_open(self) -> None:
        if self._ended:
            raise ClosedError(
                "this consumer was closed: its last callbacks cannot commit asynchronously"
            )

    def _complete(
        self, callback: Callback | None, offsets: Offsets, error: Exception | None
    ) -> None:
        if callback is not None or error is not None:
            self._completed.append((callback, offsets, error))

    def advance(self, deadline_ns: int) -> None:
        """Make pending commits in order, until a lock is not free before the deadline."""
        while self._queue:
            first = self._queue[0]
            error: Exception | None = None
            try:
                until_ns = min(deadline_ns, first.until_ns)
                self._commit(first.offsets, first.identity, until_ns, topics=first.topics)
            except (LockTimeoutError, LeaderNotAvailableError, NotEnoughReplicasError) as problem:
                if system.boot_ns() < first.until_ns:
                    return
                error = RetriableCommitFailedError(f"the offsets were not committed: {problem}")
                error.__cause__ = problem
            except EmbedlogError as problem:
                error = problem
            self._queue.popleft()
            self._complete(first.callback, first.offsets, error)

    def commit_sync(
        self,
        offsets: Offsets,
        identity: GroupMetadata | None,
        deadline_ns: int,
        *,
        keeps_partitions: bool = False,
    ) -> None:
        """Commit after all pending commits; without offsets, only complete those.

        `keeps_partitions`: the member keeps them in a rebalance. REQUIRES an identity then.
        Raises LockTimeoutError after the deadline, and the group's errors.
        """
        began = time.perf_counter()
        try:
            self.advance(deadline_ns)
            self.call_back()
            if self._queue:
                raise LockTimeoutError(
                    "earlier commits of this consumer still wait for the group's lock"
                )
            self._commit(offsets, identity, deadline_ns, keeps_partitions=keeps_partitions)
        finally:
            self._metrics.spent("commit_sync", time.perf_counter() - began)

    def _commit(
        self,
        offsets: Offsets,
        identity: GroupMetadata | None,
        deadline_ns: int,
        *,
        keeps_partitions: bool = False,
        topics: Mapping[str, str] | None = None,
    ) -> None:
        if not offsets:
            return
        began = time.perf_counter()
        if keeps_partitions and identity is not None:
            self._store.commit_kept_partitions(
                self._group_id, offsets, identity.member_id, deadline_ns
            )
        else:
            self._store.commit(self._group_id, offsets, identity, deadline_ns, topics)
        spent_s = time.perf_counter() - began
        self._metrics.add({"commit": 1, "commit_s": spent_s}, {"commit_s": spent_s})
        self.committed_offsets.update((tp, position.offset) for tp, position in offsets.items())
        self._interceptors.on_commit(dict(offsets))

    def call_back(self) -> None:
        """Call the callbacks of the commits that are completed now."""
        # a callback commits, and waits for that: the outer call continues with the others
        if self._calling:
            return
        self._calling = True
        try:
            for _ in range(len(self._completed)):
                if self._completed:  # a callback may close the consumer
                    self._call_first()
        finally:
            self._calling = False

    def complete(self, deadline_ns: int) -> None:
        """Make the pending commits, and those of their callbacks: the member can still commit."""
        self.advance(deadline_ns)
        self.call_back()
        self.advance(deadline_ns)

    def end(self) -> None:
        """Call all callbacks, with an error for commits that still wait for the lock. No commit
        follows.
        """
        self._ended = True
        while self._queue:
            first = self._queue.popleft()
            error = RetriableCommitFailedError(
                "the offsets were not committed: the consumer was closed before the lock was free"
            )
            self._complete(first.callback, first.offsets, error)
        while self._completed:
            self._call_first()

    def _call_first(self) -> None:
        callback, offsets, error = self._completed.popleft()
        try:
            if callback is not None:
                callback(dict(offsets), error)
            elif error is not None:
                logger.error("an asynchronous commit of group %r failed: %s", self._group_id, error)
        except BaseException as problem:
            # a callback may raise anything; the others must still be called
            if callbacks.is_interrupt(problem):
                raise
            logger.exception("the callback of a commit failed")


__all__ = ["AutoCommit", "Callback", "OffsetCommitter", "Offsets"]
