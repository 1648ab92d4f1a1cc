"""The interfaces of a partition of the open log, for the clients of this package.

- A client of an open log takes one of these protocols, and never `Partition`. The log of a
  partition may be that of one directory, or that of the leader among replicas.
- These are protocols, not base classes. `Partition` stays one class without a dispatch. An object
  that routes calls to the leader inherits nothing of a directory, and mypy refuses a use of what
  only a directory has.
- Work on the files of one directory is no part of them: shutdown, checkpoints, retention,
  compaction, backup. It takes the `Partition` objects of a `LogDirectory`.
- A member without a sentence here has its contract at the member of that name in `Partition`.
- A method works on one replica from its start to its end. Between two calls the leader may change:
  `path` and `mapped_page` are those of the leader at the call.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    from embedlog._native._rows import Record
    from embedlog._native.system import Page, Published
    from embedlog.config.topic import TopicConfig
    from embedlog.format.buffer_pool import BufferPool
    from embedlog.format.record_batch import EncodedRun, Stamp
    from embedlog.partition.append_lock import HeldAppend as HeldAppend
    from embedlog.partition.locked_partition import LockedPartition as LockedPartition
    from embedlog.partition.log_context import Appended, AppendProgress, Bounds, DirectTarget
    from embedlog.partition.point_reads import PointRead as PointRead
    from embedlog.partition.reader import Fetched as Fetched
    from embedlog.partition.split_points import SplitPoint as SplitPoint
    from embedlog.types import OffsetAndTimestamp


class NamedLog(Protocol):
    """The identity and the settings of a partition."""

    @property
    def topic(self) -> str: ...
    @property
    def number(self) -> int: ...
    @property
    def topic_id_bytes(self) -> bytes: ...
    @property
    def path(self) -> Path:
        """For messages only."""

    @property
    def config(self) -> TopicConfig: ...
    @property
    def closed(self) -> bool: ...
    def check_open(self) -> None: ...
    def open(self) -> None: ...


class WatchedLog(NamedLog, Protocol):
    """A partition whose published offsets a process reads and waits for."""

    @property
    def mapped_page(self) -> Page | None:
        """A page whose words change with the published offsets, if it is mapped."""

    def check_page(self) -> None: ...
    def bounds(self) -> Bounds: ...
    def published(self) -> Published: ...


class TailedLog(Protocol):
    """The short path of a reader at the end of a partition (`Tail`)."""

    @property
    def offset(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def epoch(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    def records(self) -> list[Record] | None:
        """The records since the last call; None if it has ended, and the reader fetches from the
        unchanged `offset`.
        """


class ReadableLog(WatchedLog, Protocol):
    """A partition that consumers and scans read."""

    def fetch(
        self,
        offset: int,
        *,
        max_bytes: int = 1 << 20,
        isolation: str = "read_uncommitted",
        upto: int | None = None,
        pool: BufferPool | None = None,
    ) -> Fetched:
        """With `max_bytes` 0 only the batch that holds `offset`, if it can be read alone."""

    def awaited_bounds(self, end: int, isolation: str, since_ns: int | None = None) -> Bounds:
        """The offsets, after a wait for the records below `end` that an earlier call has shown. If
        they are lost, it ends below.

        Raises LeaderNotAvailableError.
        """

    def point(self, offset: int, committed: bool, /) -> PointRead | None:
        """The records of the batch that holds `offset`; None if `fetch` must find out why they
        cannot be read alone.
        """

    def tail(self, offset: int, isolation: str) -> TailedLog | None: ...
    def unread_bytes(self, offset: int) -> int | None: ...
    def epoch_end(self, epoch: int) -> tuple[int, int]: ...
    def offset_for_time(
        self, timestamp_ms: int, isolation: str = "read_uncommitted"
    ) -> OffsetAndTimestamp | None: ...
    def end_by_time(self, first: int, last: int, end_ms: int) -> int: ...
    def skip_by_time(self, offset: int, start_ms: int, end_ms: int) -> int: ...
    def split_points(
        self, start: int, end: int, max_bytes: int, count: int | None = None
    ) -> list[SplitPoint]: ...
    def open_transactions(self) -> list[tuple[int, int, int]]:
        """Those that hide records from committed readers."""


class DurableLog(WatchedLog, Protocol):
    """A partition whose records a process puts on stable storage."""

    @property
    def durable_offset(self) -> int: ...
    def sync(self, deadline_ns: int | None = None) -> int: ...
    def sync_to(self, end: int, deadline_ns: int) -> None: ...
    def flush_if_due(self, end: int, deadline_ns: int, unsynced_ms: int = 0) -> None: ...
    def flush_if_late(self) -> None: ...


class AppendableLog(DurableLog, Protocol):
    """A partition to which producers append."""

    @property
    def batch_limit(self) -> int: ...
    @property
    def direct_target(self) -> DirectTarget | None:
        """The object to which C appends without `append`; None if each append needs more work."""

    def append(
        self,
        run: EncodedRun,
        *,
        deadline_ns: int | None = None,
        stamp: Stamp | None = None,
        flush: bool = True,
        progress: AppendProgress | None = None,
        all_in_sync: bool = True,
    ) -> Appended: ...
    def check_in_sync(self) -> None:
        """Raises NotEnoughReplicasError if it is certain that `acks=all` cannot be satisfied."""

    def note_direct(self, stamp: Stamp, next_sequence: int, slot: int) -> None: ...
    def seen_plain(self, stamp: Stamp) -> int: ...


class HeldLog(Protocol):
    """A partition during a hold of its append lock."""

    @property
    def published(self) -> Published: ...


class TransactionalLog(AppendableLog, Protocol):
    """A partition with the data of transactions."""

    @property
    def replicated(self) -> bool: ...
    def exclusive(self, deadline_ns: int | None = None) -> AbstractContextManager[HeldLog]: ...
    def append_marker(
        self,
        producer_id: int,
        epoch: int,
        *,
        commit: bool,
        coordinator_epoch: int | None = None,
        deadline_ns: int | None = None,
    ) -> int | None: ...
    def open_transactions(self) -> list[tuple[int, int, int]]: ...
    def stored_epoch(self, producer_id: int) -> int: ...


class InternalLog(ReadableLog, TransactionalLog, Protocol):
    """A partition of an internal topic: decisions are made under its lock and read by their
    followers.

    A decision in a replicated partition counts after the lock was released; `confirm` waits for
    that.
    """

    def deadline(self) -> int: ...
    def confirm(self, end: int, epoch: int) -> bool:
        """Wait for the commit of the records below `end` of this leader epoch; False if there is a
        later one.
        """

    def append_held(self, batch: bytes, stamp: Stamp | None = None) -> HeldAppend: ...
    def following_sequence(self, stamp: Stamp) -> int: ...
    def notify(self) -> None: ...
    def is_prepared(self) -> bool: ...
    def holds_data(self) -> bool: ...


class LogPartition(InternalLog, Protocol):
    """A partition of the open log, as the engine returns it."""

    def size_bytes(self) -> int: ...
    def delete_records(self, offset: int) -> int: ...
