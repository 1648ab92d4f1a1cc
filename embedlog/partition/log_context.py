"""Values that the partitions of one directory share: the directory itself, bounds on descriptors and
on kept batches. Also the progress of one append, and its result.

- A `Context` is made when a directory is opened, and outlives its partitions. A set has one for each
  directory.
- Descriptors that a partition keeps for appends or syncs are released by the longest idle holder,
  never while in use. The bounds of `Shares` add up to `max.open.files`, if that is 32 or more.
- The verified batches that the readers keep occupy `RECENT_BYTES_MAX` at most: the batches that
  were used last stay. A batch counts with the memory that it occupies: pages of the buffer pool,
  marks, objects.
"""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from embedlog._native.lazy_numpy import np
from embedlog.errors import EmbedlogError, InvalidRecordError, OffsetOutOfRangeError
from embedlog.format.compression import LIMIT_BYTES
from embedlog.hooks.callbacks import Work
from embedlog.storage import checkpoints, file_names, files
from embedlog.storage.descriptors import Handles
from embedlog.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from embedlog._native import system
    from embedlog._native.system import Published
    from embedlog.config.topic import TopicConfig
    from embedlog.format.record_columns import Batches, EncodedRun, Stamp
    from embedlog.partition.interposer import Interposer


class Appended(NamedTuple):
    """The offsets of a run. Between its pieces (base offset, next offset) other processes may have
    appended.
    """

    base_offset: int
    last_offset: int
    append_time_ms: int  # of the last piece; -1 under CreateTime
    pieces: tuple[tuple[int, int], ...]
    times_ms: tuple[int, ...] = ()  # append time of each piece

    @property
    def contiguous(self) -> bool:
        """Whether no other process appended between the pieces."""
        return all(before[1] == after[0] for before, after in pairwise(self.pieces))

    def base_offsets(self, counts: Sequence[int]) -> list[int]:
        """The base offsets of consecutive batches, given their numbers of records."""
        pieces = iter(self.pieces)
        offsets: list[int] = []
        base, end = next(pieces)
        for count in counts:
            if base >= end:
                base, end = next(pieces)
            offsets.append(base)
            base += count
        return offsets

    def time_of(self, offset: int) -> int:
        """The append time of the batch at `offset`. A run that continues in the next segment has
        several times.
        """
        if self.append_time_ms >= 0:
            for (base, end), time_ms in zip(self.pieces, self.times_ms, strict=False):
                if base <= offset < end:
                    return time_ms
        return self.append_time_ms


class AppendProgress:
    """How much of a run was appended, and at which offsets.

    With `expected_offset` the run is appended only if its first batch gets that offset. Such a run
    must be stamped. In a set an append can run in a thread of the leader's directory, on a `copy`;
    the caller takes over what that has done, also after it gave up.

    | field | written by | copied | taken over |
    | --- | --- | --- | --- |
    | `run`, `expected_offset`, `judge` | the caller, before the first append | yes | no |
    | `judged` | `judge_by` | yes | yes |
    | `refusal` | `Partition.append`: each call sets it anew | no | yes |
    | `is_begun` | `Partition.append` | yes | yes |
    | `start`, `pieces`, `times_ms`, `epochs` | `take`: each piece once | yes | yes |
    | `committed` | the append or the commit of a set | yes | yes |
    | `seen_committed`, `waiting`, `epoch` | the caller in a set, about the leader it asks | yes | no |
    """

    def __init__(self, run: EncodedRun, expected_offset: int | None = None) -> None:
        self.run = run
        self.expected_offset = expected_offset
        # raises if these settings of the topic refuse the run
        self.judge: Callable[[TopicConfig], None] | None = None
        self.judged: TopicConfig | None = None  # the settings that accepted it last
        # of the current settings, after a part of the run was appended
        self.refusal: EmbedlogError | None = None
        # an append was tried: batches of it may be in the log without a result
        self.is_begun = False
        self.start = 0  # byte in the run
        self.pieces: list[tuple[int, int]] = []
        self.times_ms: list[int] = []
        # in a set: offsets below it were committed while the ISR was large enough for acks=all
        self.committed = 0
        # in a set: offsets below it were committed, perhaps with an ISR that became too small
        self.seen_committed = 0
        # in a set, with acks=all: only what is below `committed` is acknowledged
        self.waiting = False
        self.epoch = -1  # in a set: of the leader that appends the next piece
        self.epochs: list[int] = []  # in which each piece was appended
        # pieces and `start` after the last piece, of one moment, for `take_over`
        self._taken = (0, 0)

    def copy(self) -> AppendProgress:
        """A progress of its own, with the bytes of the run: for an append that may go on after its
        caller has given up.
        """
        run = self.run._replace(
            buffer=memoryview(bytearray(self.run.buffer)), table=bytearray(self.run.table)
        )
        other = AppendProgress(run, self.expected_offset)
        other.judge = self.judge
        other.judged = self.judged
        other.is_begun = self.is_begun
        other.start = self.start
        other.pieces = self.pieces.copy()
        other.times_ms = self.times_ms.copy()
        other.epochs = self.epochs.copy()
        other._taken = (len(other.epochs), other.start)
        other.committed = self.committed
        other.seen_committed = self.seen_committed
        other.waiting = self.waiting
        other.epoch = self.epoch
        return other

    def take_over(self, other: AppendProgress) -> None:
        """The progress that a copy has made until now. Another thread may still append with it."""
        count, start = other._taken
        self.judged = other.judged
        self.refusal = other.refusal
        self.is_begun = other.is_begun
        self.pieces = other.pieces[:count]
        self.times_ms = other.times_ms[:count]
        self.epochs = other.epochs[:count]
        self.start = start
        self.committed = other.committed

    def is_in_doubt(self, stamp: Stamp | None) -> bool:
        """Whether the log must be searched for the run before its rest is judged or appended."""
        return self.is_begun and stamp is not None

    def is_accepted_by(self, config: TopicConfig) -> bool:
        """Whether the run was judged by these settings, or needs no judgement."""
        return self.judge is None or self.judged is config

    def judge_by(self, config: TopicConfig) -> None:
        """Judge the run by these settings, unless they have accepted it. Raises the error of the
        judge.
        """
        if self.judge is not None and self.judged is not config:
            self.judge(config)
            self.judged = config

    @property
    def complete(self) -> bool:
        return self.start == len(self.run.buffer)

    def result(self) -> Appended:
        """The place of the run. REQUIRES: at least one batch was appended."""
        pieces = self.pieces
        times_ms = self.times_ms
        return Appended(
            pieces[0][0], pieces[-1][1] - 1, times_ms[-1], tuple(pieces), tuple(times_ms)
        )

    @property
    def table_left(self) -> Any:
        """The buffer of `rows_left`."""
        if self.start == 0:
            return self.run.table
        return self.rows_left

    @property
    def rows_left(self) -> Batches:
        batches = self.run.batches
        if self.start:
            batches = batches[np.searchsorted(batches["position"], self.start) :]
        return batches

    def take(self, base_offset: int, next_offset: int, size: int, time_ms: int) -> None:
        self.pieces.append((base_offset, next_offset))
        self.times_ms.append(time_ms)
        self.epochs.append(self.epoch)
        self.start += size
        self._taken = (len(self.epochs), self.start)


class Bounds(NamedTuple):
    """The published offsets: readers see [log_start, high_watermark), committed ones below
    last_stable.
    """

    log_start: int
    log_end: int
    high_watermark: int
    last_stable: int
    epoch: int


class DirectTarget(Protocol):
    """An object to which the C core appends for a caller: under the mutex, while `writer` and
    `config` are those it was given.

    `followers`: None for one directory; else partition, mutex and writer of each follower, which
    are checked in the same way.
    """

    @property
    def config(self) -> TopicConfig: ...
    @property
    def mutex(self) -> threading.RLock: ...
    @property
    def writer(self) -> system.Writer | None: ...
    @property
    def followers(self) -> tuple[tuple[object, object, object], ...] | None: ...
    @property
    def addresses(self) -> tuple[int, int]:
        """Addresses of the append and of its first argument, for the other extension. REQUIRES a
        writer.
        """


class Checkpoint(NamedTuple):
    """The offsets of one partition that belong in the checkpoints of the directory."""

    recovery_point: int
    log_start: int
    high_watermark: int

    @classmethod
    def of(cls, published: Published, durable_offset: int, *, closing: bool) -> Checkpoint:
        """The offsets of a published tuple; at an orderly close everything is on stable storage."""
        recovery_point = published.log_end
        if not closing:
            recovery_point = min(durable_offset, recovery_point)
        return cls(recovery_point, published.log_start, published.high_watermark)


class Shares(NamedTuple):
    """The parts of `max.open.files`: descriptors for reads, partitions that keep some for appends,
    and for syncs.
    """

    handles: int
    writers: int  # five each: log, two indexes, digests, append lock
    syncers: int  # two each, as a rule: log, sync lock

    @classmethod
    def of(cls, limit: int) -> Shares:
        return cls(max(8, limit // 2), max(2, limit // 16), max(2, 3 * limit // 32))


FREE_THREADED = not getattr(sys, "_is_gil_enabled", lambda: True)()


class Traffic:
    """What the dropped writers of one topic have counted in this process (bytes, records, waits), and
    the bytes that the process has read of it.

    With the GIL readers add to `bytes_out` without a lock: the addition of a local to an attribute
    is one step.
    """

    __slots__ = ("_mutex", "bytes_in", "bytes_out", "lock_waited_ns", "lock_waits", "records_in")

    def __init__(self) -> None:
        self.bytes_in = 0
        self.bytes_out = 0
        self.records_in = 0
        self.lock_waits = 0
        self.lock_waited_ns = 0
        self._mutex = threading.RLock()  # a finalizer may drop a writer at any point

    def add_writer(self, writer: system.Writer) -> None:
        """Add the counts of a writer that is dropped."""
        raw = writer.raw
        with self._mutex:
            self.bytes_in += int(raw.appended_bytes)
            self.records_in += int(raw.appended_records)
            self.lock_waits += int(raw.lock_waits)
            self.lock_waited_ns += int(raw.lock_waited_ns)

    if FREE_THREADED:

        def add_read(self, size: int) -> None:
            """Add bytes that were read."""
            with self._mutex:
                self.bytes_out += size

    else:

        def add_read(self, size: int) -> None:
            """Add bytes that were read."""
            self.bytes_out += size


class Holder(Protocol):
    """An object that keeps descriptors open between uses."""

    def release(self, wait_s: float = 0.0) -> bool:
        """Close them; False if they are in use, after a wait of this length."""

    def use_count(self) -> int:
        """A number that changes with each append by this process. Reading it costs less than a
        page.
        """


# of the limit of holders: so many are released together, for a search reads the uses of all
SPARE_SHARE: Final = 4


class KeptDescriptors:
    """Bounds the holders of descriptors of one kind: beyond the limit the longest idle ones are
    released. Threads: any.

    Without a mutex, which a signal handler could find taken by its own thread: each step of the
    mapping is atomic.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._spare = limit // SPARE_SHARE
        # with the count of uses at the last check
        self._open: OrderedDict[int, tuple[Holder, int]] = OrderedDict()
        self._unchecked = 0  # opened since the last check

    def add(self, holder: Holder) -> None:
        """Keep a holder that has opened descriptors; idle ones beyond the limit are released."""
        self._open[id(holder)] = (holder, holder.use_count())
        self._unchecked += 1
        if len(self._open) <= self._limit and self._unchecked <= self._spare:
            return
        for idle in self._find_idle(holder):
            if idle.release():
                self.remove(idle)

    def _find_idle(self, newest: Holder) -> Sequence[Holder]:
        """The longest unused beyond the limit, and the spare ones, without the newest. An append
        without `note_use` has moved the count of uses.
        """
        self._unchecked = 0
        for key, (holder, count) in self._items():
            use_count = holder.use_count()
            if use_count != count and key in self._open:
                self._open[key] = (holder, use_count)
                self.note_use(holder)
        items = self._items()
        excess = len(items) - self._limit
        if excess <= 0:
            return ()
        others = (holder for _, (holder, _) in items if holder is not newest)
        return list(islice(others, excess + self._spare))

    def release_all(self, wait_s: float) -> bool:
        """Release every holder; False if one was in use for longer than the wait."""
        for _, (holder, _) in self._items():
            if not holder.release(wait_s):
                return False
            self.remove(holder)
        return True

    def note_use(self, holder: Holder) -> None:
        """A holder was used: it is the last to be released."""
        try:
            self._open.move_to_end(id(holder))
        except KeyError:
            pass  # it is not kept

    def _items(self) -> list[tuple[int, tuple[Holder, int]]]:
        while True:
            try:
                return list(self._open.items())
            except RuntimeError:  # changed meanwhile, by a finalizer or another thread
                continue

    def remove(self, holder: Holder) -> None:
        """A holder has closed its descriptors."""
        self._open.pop(id(holder), None)


# more would leave the caches of the processor: then each new batch costs more
RECENT_BYTES_MAX: Final = 3 << 20


class BatchOwner(Protocol):
    """The reads of one partition."""

    def forget_batch(self, first: int) -> None:
        """The batch with this base offset is not kept any more."""


class RecentBatches:
    """The kept batches of an open directory, in the order of their last use. Threads: any."""

    def __init__(self, bytes_max: int = RECENT_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        # Of all kept batches. The garbage collector may run a finalizer that closes a log inside a
        # section.
        self.mutex = threading.RLock()
        self._order: OrderedDict[tuple[int, int], tuple[BatchOwner, int]] = OrderedDict()
        self.size_bytes = 0

    def fits(self, size_bytes: int) -> bool:
        """Whether a batch of this size can be kept at all."""
        return size_bytes <= self._bytes_max

    def keep(self, owner: BatchOwner, first: int, size_bytes: int) -> None:
        """Count a batch that `owner` keeps now; the longest unused ones are dropped for it.
        REQUIRES: it fits, and the mutex.
        """
        key = (id(owner), first)
        if key in self._order:
            self._forget(key)
        self._order[key] = (owner, size_bytes)
        self.size_bytes += size_bytes
        while self.size_bytes > self._bytes_max:
            (_, oldest), (holder, freed) = self._order.popitem(last=False)
            self.size_bytes -= freed
            holder.forget_batch(oldest)

    def note_use(self, owner: BatchOwner, first: int) -> None:
        """A kept batch is used. REQUIRES: `owner` keeps it, and the mutex."""
        self._order.move_to_end((id(owner), first))

    def drop(self, owner: BatchOwner) -> None:
        """Drop all batches of this owner."""
        with self.mutex:
            for key in [key for key in self._order if key[0] == id(owner)]:
                self._forget(key)
                owner.forget_batch(key[1])

    def _forget(self, key: tuple[int, int]) -> None:
        self.size_bytes -= self._order.pop(key)[1]


class CheckpointedOffsets:
    """Offsets in a checkpoint file, which is read again after another process changed it. Threads:
    any.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        # facts of the file, and the offsets that it had then
        self._read: tuple[object, dict[tuple[str, int], int]] = (None, {})

    def of(self, topic: str, number: int) -> int:
        """The offset of a partition, 0 if it has none. Raises ForeignDirectoryError for a malformed
        file.
        """
        facts = files.facts_of(self._path)
        version = facts and (facts.inode, facts.size, facts.modified_ns)
        read_version, offsets = self._read
        if read_version != version:
            offsets = checkpoints.read_offsets(self._path)
            self._read = (version, offsets)
        return offsets.get((topic, number), 0)


def write_checkpoints(root: Path, offsets: Mapping[tuple[str, int], Checkpoint], mode: int) -> None:
    """Write recovery points, log starts and high watermarks of these partitions.

    REQUIRES the directory lock, or the open lock as the last process.
    """
    if not offsets:
        return
    checkpoints.update(
        root / file_names.RECOVERY_POINTS,
        {name: checkpoint.recovery_point for name, checkpoint in offsets.items()},
        mode,
    )
    # Kafka omits a log start that is the start of a segment, but then a missing one would not be
    # noticed.
    checkpoints.update(
        root / file_names.LOG_STARTS,
        {name: checkpoint.log_start or None for name, checkpoint in offsets.items()},
        mode,
    )
    checkpoints.update(
        root / file_names.HIGH_WATERMARKS,
        {name: checkpoint.high_watermark for name, checkpoint in offsets.items()},
        mode,
    )


@dataclass(eq=False, repr=False)
class Context:
    """A directory, for the partitions in it. Those of one directory share it. Of a set, only `traffic`
    and `loads` belong to all directories.
    """

    root: Path
    incarnation: bytes
    directory_page: system.Page | None
    read_only: bool = False
    clean: bool = False  # the directory was closed in order before this incarnation
    broker_wrote: bool = False  # a broker wrote here after the last embedlog process
    last_broker_visit: int = 0  # the number of the last visit of a broker, 0: there was none
    # shared="locks": nothing is mapped, data is written through, each read opens its file
    locked: bool = False
    mode: int = 0o666
    lock_timeout_ms: int = 10_000
    producer_expiration_ms: int = 86_400_000
    decompressed_max: int = LIMIT_BYTES  # uncompressed bytes of a batch that is read
    node_slot: int = -1  # bit of the directory in an ISR; -1: the directory belongs to no set
    # for a reader: another one after each opening or close of the directory by a process
    directory_change: object = None
    recovery_points: CheckpointedOffsets | None = None
    log_starts: CheckpointedOffsets | None = None
    high_watermarks: CheckpointedOffsets | None = None
    cleaned: CheckpointedOffsets | None = None  # the end of the compacted part of each partition
    check_open: Callable[[], None] = lambda: None
    # read the topics, and apply a partition's settings
    renew_settings: Callable[[str, int], None] = lambda topic, number: None
    handles: Handles = field(default_factory=lambda: Handles(400))
    recent_batches: RecentBatches = field(default_factory=RecentBatches)
    writers: KeptDescriptors = field(default_factory=lambda: KeptDescriptors(32))
    syncers: KeptDescriptors = field(default_factory=lambda: KeptDescriptors(64))
    # the directory's `.lock`: path, device, inode, fd
    held_lock: Callable[[], tuple[str, int, int, int]] | None = None
    # lock it again after its file was replaced, or raise
    reacquire: Callable[[], None] = lambda: None
    refresh: Callable[[], bool] | None = None  # for a reader: whether a process writes here now
    # from leaders, with writers that were dropped
    copied_bytes: dict[tuple[str, int], int] = field(default_factory=dict)
    # by topic
    traffic: dict[str, Traffic] = field(default_factory=dict)
    # is asked before each append of this process; for tests of applications
    interposer: Interposer | None = None
    # syncs, compactions and recoveries of an open log
    metrics: Metrics = field(default_factory=Metrics)
    # of partitions from their files
    loads: Work = field(default_factory=Work)

    def note_load(self, spent_s: float, recovered: bool) -> None:
        """Count a load of a partition that this process will serve."""
        self.metrics.add(
            {"loads": 1, "loads_s": spent_s, "recoveries": recovered}, {"loads_s": spent_s}
        )

    @property
    def in_set(self) -> bool:
        """Whether the directory belongs to a set: then a decision makes a leader, and recovery
        begins no epoch (REPLICA-17).
        """
        return self.node_slot >= 0


def check_sizes(run: EncodedRun, config: TopicConfig, name: str) -> None:
    """Raises InvalidRecordError for a run without a batch, RecordTooLargeError for a batch above
    the limit of the topic.
    """
    if not run.batch_count or not len(run.buffer):
        raise InvalidRecordError(f"an append to {name} without a batch")
    if len(run.buffer) > config.batch_limit:
        config.check_batch(int(run.batches["size"].max()), f"a batch for {name}")


def check_start(start: int, high_watermark: int, name: str, path: Path) -> None:
    """Raises OffsetOutOfRangeError if records of a partition cannot be deleted up to an offset."""
    if not 0 <= start <= high_watermark:
        text = f"cannot delete records of {name}"
        raise OffsetOutOfRangeError(
            text, path=path, expected=f"-1, or 0 to {high_watermark}", found=start
        )
