"""One copy of the decision log: a partition of a directory, locked for a decision.

Every change is made under the append lock of the copy. Its page is that of a follower without a
leader, and the epoch of the page is the promise.

A copy is brought to another one by the terms of its records: what differs is truncated, then the
rest is copied unchanged. Where the starts of the terms differ, records are compared before anything
is cut (`shared_records` says why). A copy that may lack a compacted record begins again, and is
incomplete until it is synced.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TypeVar
from uuid import UUID

from embedlog._native import replication
from embedlog._native.replication import Leading, Replica
from embedlog._native.system import Published
from embedlog.errors import StorageError
from embedlog.format.encoder import encode_records
from embedlog.format.record_batch import Batches, Chain, scan, stamp_offsets
from embedlog.replicas.decisions import promise, shared_records
from embedlog.replicas.decisions.decision_view import (
    CHUNK_BYTES,
    DecisionView,
    FetchedBatches,
    ReadableCopy,
    advance_view,
    term_at,
)
from embedlog.replicas.decisions.promise import Promise
from embedlog.replicas.members.directory_workers import Lane
from embedlog.replicas.rules.records import Record, encode
from embedlog.replicas.rules.state import State
from embedlog.storage.checkpoints import EpochCache
from embedlog.storage.manifest import SegmentInfo

if TYPE_CHECKING:
    from typing_extensions import Buffer

T = TypeVar("T")

NO_LEADER: Final = -1


class LockedCopyReplica(Protocol):
    """A replica whose append lock is held."""

    @property
    def published(self) -> Published: ...
    @property
    def replica(self) -> Replica: ...
    @property
    def known_high_watermark(self) -> int: ...
    def epochs(self) -> EpochCache: ...
    def publish(self, published: Published, replica: Replica) -> None: ...
    def truncate(self, offset: int) -> None: ...
    def restart(self, offset: int) -> None: ...
    def take(
        self, data: Buffer, rows: Batches, leading: Leading, at: int | None = None
    ) -> bool: ...


class CopyLog(ReadableCopy, Protocol):
    """The log of a partition as a replica."""

    def compare_epochs(self) -> None: ...
    def exclusive(
        self, deadline_ns: int
    ) -> contextlib.AbstractContextManager[LockedCopyReplica]: ...
    def published(self) -> tuple[Published, Replica]: ...
    def missing_segment(self, offset: int) -> Path | None: ...
    def restart(self, offset: int, deadline_ns: int, prepare: Callable[[], None]) -> None: ...


class CopyPartition(Protocol):
    """The partition of a copy."""

    path: Path

    @property
    def replica(self) -> CopyLog: ...
    def segments(self, published: Published) -> list[SegmentInfo]: ...
    def sync(self, deadline_ns: int | None = None) -> int: ...
    def notify(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Copy:
    """The decision log in one directory of the set, as a process has it open."""

    node: int
    partition: CopyPartition
    mode: int = 0o666
    # wakes the processes that follow the decisions in this directory
    wake_followers: Callable[[], None] = lambda: None
    # the open partition; a missing directory had closed the one before
    find_partition: Callable[[], CopyPartition] | None = None
    directory: UUID | None = None  # its directory id: only the registered directory of a node votes
    # of its directory, one of which is registered; empty if any may be
    openings: tuple[UUID, ...] = ()
    # its thread makes every access that may last; without one, the thread of the caller does
    lane: Lane | None = None

    @property
    def is_hanging(self) -> bool:
        """Whether its directory does not answer now."""
        return self.lane is not None and self.lane.worker.is_hanging

    def run(self, call: Callable[[], T]) -> T:
        """The result of a call in the directory of the copy. Raises also StorageError if it
        hangs.
        """
        return call() if self.lane is None else self.lane.run(call)

    def reopen(self) -> Copy:
        """This copy with its open partition. Raises StorageError, UnknownTopicOrPartitionError."""
        if self.find_partition is None:
            return self
        partition = self.find_partition()
        if partition is self.partition:
            return self
        return replace(self, partition=partition)

    def is_other(self, state: State) -> bool:
        """Whether another directory is registered for its node: then the copy does not count."""
        registered = state.nodes.get(self.node)
        if registered is None:
            return False
        if self.directory is not None and self.directory != registered.directory:
            return True
        if not self.openings or registered.opening is None:
            return False
        return registered.opening not in self.openings


@dataclass(frozen=True, slots=True)
class DecisionBatch:
    """The records of one decision, as one batch in its place."""

    data: bytes
    rows: Batches
    base: int
    term: int

    @property
    def end(self) -> int:
        """The offset after its last record."""
        return int(self.rows["base_offset"][0] + self.rows["last_offset_delta"][0]) + 1


def batch_of(records: tuple[Record, ...], base: int, term: int, timestamp_ms: int) -> DecisionBatch:
    """One batch with offsets and term. REQUIRES: at least one record."""
    data = bytearray(encode_records([encode(record) for record in records], timestamp_ms))
    stamp_offsets(data, base, term)
    return DecisionBatch(bytes(data), scan(data, Chain(base, -1)).batches, base, term)


class LockedCopy:
    """A copy whose append lock is held, by the thread of its lane if it has one. Only that thread
    changes and releases it.
    """

    def __init__(
        self, copy: Copy, hold: contextlib.AbstractContextManager[LockedCopyReplica]
    ) -> None:
        """Take the lock. Raises LockTimeoutError, StorageError, ForeignDirectoryError."""
        self.copy = copy
        self.node = copy.node
        self._hold = hold
        self._locked = hold.__enter__()
        try:
            self.promise = promise.read(copy.partition.path)
            self.epochs = self._locked.epochs()
            self._is_trusted = self._is_written
            # as its page shows; -1 if it cannot know
            self.settled_end = self.now.high_watermark if self._is_trusted else -1
            self.counted_end = self._locked.known_high_watermark  # all records below it count
            # the error of a change: the next holder repairs the copy
            self.broken: BaseException | None = None
        except BaseException as problem:
            hold.__exit__(type(problem), problem, problem.__traceback__)
            raise

    def change(self, action: Callable[[LockedCopy], None]) -> None:
        """Make a change, and note its failure."""
        try:
            action(self)
        except BaseException as problem:
            self.broken = problem
            raise

    def release(self, problem: BaseException | None = None) -> None:
        """Give the lock back; after a problem the next holder repairs the copy."""
        problem = problem or self.broken
        self._hold.__exit__(None if problem is None else type(problem), problem, None)

    # ---- what it holds ---------------------------------------------------------------------------

    @property
    def now(self) -> Published:
        return self._locked.published

    @property
    def path(self) -> Path:
        return self.copy.partition.path

    @property
    def end(self) -> int:
        return self._locked.published.log_end

    @property
    def log_start(self) -> int:
        return self.now.log_start

    def fetch(self, offset: int, end: int) -> FetchedBatches:
        """CopyRecords from the batch with an offset, up to an end."""
        return self.copy.run(lambda: self.copy.partition.replica.read(offset, CHUNK_BYTES, end))

    def advance_view(self, view: DecisionView) -> DecisionView:
        """The view after all of its records. Raises CorruptRecordError, UnsupportedFormatError,
        StorageError.
        """
        log = self.copy.partition.replica
        if view.position == self.end and view.continues_in(self.now, self.epochs, self.end):
            return view
        return self.copy.run(lambda: advance_view(view, log, self.now, self.epochs, self.end))

    @property
    def last_term(self) -> int:
        """The term of its last record."""
        return term_at(self.epochs, self.end - 1, self.now.log_start)

    @property
    def highest_term(self) -> int:
        """The highest term that was promised or used here, or that a recovery has put into the
        page.
        """
        return max(self.promise.term, self.now.epoch, self.epochs.latest_epoch)

    @property
    def _is_written(self) -> bool:
        """Whether its page was written by a decision in this incarnation of the directory.

        Only then its high watermark counts as settled: a load cannot know it.
        """
        return self._locked.replica.role == replication.ROLE_FOLLOWER

    # ---- changes ---------------------------------------------------------------------------------

    def has_promised(self, term: int) -> bool:
        """Whether `give_promise` has nothing to do."""
        return self.promise.term >= term and self.now.epoch == term and self._is_written

    def give_promise(self, term: int) -> None:
        """Store a promise, synced, then show it in the page (QUORUM-3).

        The first promise puts the checkpointed high watermark into the page: that of the last
        close, below which all records count.
        """
        self._write_promise(self.promise._replace(term=max(term, self.promise.term)))
        if self.now.epoch == term and self._is_written:
            return
        if self._is_written:
            high_watermark = self.now.high_watermark
        else:
            high_watermark = max(self.now.log_start, self.counted_end)
        replica = Replica(role=replication.ROLE_FOLLOWER, leader=NO_LEADER)
        self._locked.publish(self.now._replace(epoch=term, high_watermark=high_watermark), replica)

    def _write_promise(self, new: Promise) -> None:
        if new != self.promise:
            promise.write(self.path, new, self.copy.mode)
            self.promise = new

    def bring_to(self, best: LockedCopy, term: int) -> None:
        """Make this log equal to the most advanced one (QUORUM-4). REQUIRES the promise in both."""
        if best is self:
            return
        agreed_end = self._find_agreed_end(best)
        purged_end = max(best.now.log_start, min(best.now.purged_to, best.end))
        is_empty = self.end == 0 and best.now.log_start == 0
        if agreed_end < self.end and self._can_be_cut(agreed_end):
            self._locked.truncate(agreed_end)
            self.epochs = self._locked.epochs()
        elif agreed_end < self.end or (agreed_end < purged_end and not is_empty):
            self._begin_again(best.now.log_start)
        self._copy_from(best, term)

    def _find_agreed_end(self, best: LockedCopy) -> int:
        """The end of the records that both have. They are read if the starts of the terms
        differ.
        """
        divergence = find_divergence(self, best)
        if divergence >= min(self.end, best.end):
            return divergence
        return shared_records.find_agreed_end(self, best)

    def _can_be_cut(self, offset: int) -> bool:
        """Whether no record at or above the offset has replaced one below it.

        Else a cut copy would lack both.
        """
        if self.promise.incomplete or offset < self.now.purged_to:
            return False
        if self._is_trusted:
            return True
        return all(info.gapless for info in self.copy.partition.segments(self.now))

    def _begin_again(self, start: int) -> None:
        self._write_promise(self.promise._replace(incomplete=True))
        self._locked.restart(start)
        self.epochs = self._locked.epochs()

    def _copy_from(self, best: LockedCopy, term: int) -> None:
        leading = Leading(best.now.high_watermark, term, gaps_allowed=True)
        while self.end < best.end:
            start = self.end
            fetched: FetchedBatches = shared_records.read(best, start, best.end)
            is_appended = len(fetched.batches) > 0 and self._locked.take(
                fetched.data, fetched.batches, leading, start
            )
            if not is_appended or self.end <= start:
                raise StorageError(
                    "the decision log of another directory cannot be copied", path=self.path
                )
        self.epochs = self._locked.epochs()

    def become_complete(self, deadline_ns: int) -> None:
        """After it was brought to the most advanced log: sync it, and let it count again."""
        if self.promise.incomplete:
            self.sync(deadline_ns)
            self._write_promise(self.promise._replace(incomplete=False))

    def append(self, batch: DecisionBatch, settled: int) -> None:
        """Append the decision. Raises StorageError."""
        leading = Leading(settled, batch.term, gaps_allowed=True)
        if not self._locked.take(batch.data, batch.rows, leading) or self.end != batch.end:
            raise StorageError(
                "a decision does not continue the log",
                path=self.path,
                expected=batch.base,
                found=self.end,
            )
        if self.epochs.latest_epoch != batch.term:
            self.epochs = self._locked.epochs()

    def sync(self, deadline_ns: int) -> None:
        """Put all its records on stable storage. Raises DurabilityError, LockTimeoutError."""
        self.copy.partition.sync(deadline_ns)

    def announce(self) -> None:
        """Wake the processes that follow the decisions."""
        self.copy.partition.notify()
        self.copy.wake_followers()

    def settle(self, end: int) -> None:
        """Show that all records below `end` count."""
        if self.now.high_watermark < end:
            self._locked.publish(self.now._replace(high_watermark=end), self._locked.replica)


def find_divergence(one: LockedCopy, other: LockedCopy) -> int:
    """The first offset at which the terms of two logs differ, at most the smaller log end."""
    end = min(one.end, other.end)
    start = max(one.now.log_start, other.now.log_start)
    offsets = {start}
    for cache in (one.epochs, other.epochs):
        offsets.update(first for _, first in cache.entries if start < first < end)
    for offset in sorted(offsets):
        if offset >= end:
            break
        if one.epochs.epoch_for(offset) != other.epochs.epoch_for(offset):
            return offset
    return end


def advancement_of(copy: LockedCopy) -> tuple[int, int]:
    """The order of copies: the last term, then the length (QUORUM-4)."""
    return copy.last_term, copy.end
