"""How a consumer commits: now, later in order, or by itself every now and then.

COMMITTER-1  commits happen in the order in which they were asked for: one that waits for its result lets those before it go first
COMMITTER-2  an asynchronous commit is one attempt, which no lock holds up: it is made at once, and while another process has the
    lock it stays first in the row, until `default.api.timeout.ms` have passed
COMMITTER-3  callbacks run on the caller's thread, in a later poll, commit or close, in the order of their commits
COMMITTER-4  commits are made inside calls, never by a thread of their own: what is committed automatically was handed out by
    earlier polls
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from embedlog import _callbacks
from embedlog._metrics import Metrics
from embedlog._native import system
from embedlog.consumer.interceptors import ConsumerInterceptors
from embedlog.errors import EmbedlogError, LockTimeoutError, RetriableCommitFailedError
from embedlog.storage import files
from embedlog.types import GroupMetadata, OffsetAndMetadata, TopicPartition

logger = logging.getLogger("embedlog.consumer")

Offsets = Mapping[TopicPartition, OffsetAndMetadata]
Callback = Callable[[Offsets, Exception | None], object]

TRY_NS = 1_000_000  # what an attempt that must not wait waits for a lock that others hold for microseconds


class Store(Protocol):
    """Where commits go."""

    def commit(self, group_id: str, offsets: Offsets, identity: GroupMetadata | None, deadline_ns: int) -> None: ...


class AutoCommit:
    """When the next automatic commit is due. Knows no clock: `now` is in seconds, of any one clock."""

    def __init__(self, interval_s: float, backoff_s: float, now: float) -> None:
        self._interval_s, self._backoff_s = interval_s, backoff_s
        self.due_at = now + interval_s

    def restart(self, now: float) -> None:
        """A commit begins, or an assignment: the next one is due an interval later."""
        self.due_at = now + self._interval_s

    def hasten(self, now: float) -> None:
        """It failed of something that passes."""
        self.due_at = min(self.due_at, now + self._backoff_s)


class _Waiting(NamedTuple):
    """One asynchronous commit on its way."""

    offsets: Offsets
    identity: GroupMetadata | None
    callback: Callback | None
    until_ns: int  # boot clock: behind it, it has failed


class Committing:
    """The commits of one consumer. Threads: the consumer's own."""

    def __init__(
        self, store: Store, group_id: str, interceptors: ConsumerInterceptors, patience_s: float, metrics: Metrics
    ) -> None:
        self._metrics = metrics
        self.settled: dict[TopicPartition, int] = {}  # what is committed of partitions that are this consumer's own
        self._store, self._group_id, self._interceptors, self._patience_s = store, group_id, interceptors, patience_s
        self._row: deque[_Waiting] = deque()
        self._done: deque[tuple[Callback | None, Offsets, Exception | None]] = deque()

    @property
    def is_waiting(self) -> bool:
        """Whether there are commits that were not made yet, or callbacks that were not called yet."""
        return bool(self._row or self._done)

    def later(self, offsets: Offsets, identity: GroupMetadata | None, callback: Callback | None = None) -> None:
        """An asynchronous commit; what comes of it is told to `callback` by `tell`."""
        self._row.append(_Waiting(offsets, identity, callback, files.deadline_after(self._patience_s)))
        self.advance(system.boot_ns() + TRY_NS)

    def refuse(self, offsets: Offsets, error: Exception, callback: Callback | None = None) -> None:
        """An asynchronous commit that cannot be made; its callback has its place in the row, too."""
        self.advance(system.boot_ns() + TRY_NS)
        self._done.append((callback, offsets, error))

    def advance(self, deadline_ns: int) -> None:
        """Make what waits, in order, until a lock is not to be had before the deadline."""
        while self._row:
            first = self._row[0]
            error: Exception | None = None
            try:
                self._make(first.offsets, first.identity, min(deadline_ns, first.until_ns))
            except LockTimeoutError as problem:
                if system.boot_ns() < first.until_ns:
                    return
                error = RetriableCommitFailedError(f"the offsets were not committed: {problem}")
                error.__cause__ = problem
            except EmbedlogError as problem:
                error = problem
            self._row.popleft()
            self._done.append((first.callback, first.offsets, error))

    def now(self, offsets: Offsets, identity: GroupMetadata | None, deadline_ns: int) -> None:
        """Commit behind everything that was asked for before; nothing to commit only waits for that.

        Raises LockTimeoutError behind the deadline, and what the group has against it.
        """
        began = time.perf_counter()
        try:
            self.advance(deadline_ns)
            self.tell()
            if self._row:
                raise LockTimeoutError("earlier commits of this consumer still wait for the group's lock")
            self._make(offsets, identity, deadline_ns)
        finally:
            self._metrics.spent("commit_sync", time.perf_counter() - began)

    def _make(self, offsets: Offsets, identity: GroupMetadata | None, deadline_ns: int) -> None:
        if not offsets:
            return
        began = time.perf_counter()
        self._store.commit(self._group_id, offsets, identity, deadline_ns)
        spent_s = time.perf_counter() - began
        self._metrics.note({"commit": 1, "commit_s": spent_s}, {"commit_s": spent_s})
        self.settled.update((tp, place.offset) for tp, place in offsets.items())
        self._interceptors.on_commit(dict(offsets))

    def tell(self) -> None:
        """Call the callbacks of what is done."""
        while self._done:
            callback, offsets, error = self._done.popleft()
            try:
                if callback is not None:
                    callback(offsets, error)
                elif error is not None:
                    logger.error("an asynchronous commit of group %r failed: %s", self._group_id, error)
            except BaseException as problem:  # whatever a user's callback raises: the others are called all the same
                if _callbacks.interrupts(problem):
                    raise
                logger.exception("the callback of a commit failed")


__all__ = ["AutoCommit", "Callback", "Committing", "Offsets"]
