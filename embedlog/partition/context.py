"""What partitions share: the directory they lie in, the bound on their descriptors, the shapes of their answers.

T1  a `Context` is made when a log is opened and outlives its partitions
T2  descriptors that a partition keeps for appends, or for syncs, are given back by whoever has been idle longest, never while
    they are in use; the bounds of `Shares` add up to `max.open.files`
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from embedlog._native import system
from embedlog.config.topic import TopicConfig
from embedlog.format.compression import LIMIT_BYTES
from embedlog.format.record_columns import Batches, EncodedRun
from embedlog.storage import checkpoints, file_names, files
from embedlog.storage.descriptors import Handles


class Appended(NamedTuple):
    """Where a run came to lie. Between its pieces (base offset, next offset) other processes may have appended."""

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
        """Where each of consecutive batches came to lie, given their numbers of records."""
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
        """When the batch at `offset` was appended: a run that goes over into the next segment has several times."""
        if self.append_time_ms >= 0:
            for (base, end), time_ms in zip(self.pieces, self.times_ms, strict=False):
                if base <= offset < end:
                    return time_ms
        return self.append_time_ms


class AppendProgress:
    """How much of a run was appended, and at which offsets."""

    def __init__(self, run: EncodedRun) -> None:
        self.run = run
        self.start = 0  # byte in the run
        self.pieces: list[tuple[int, int]] = []
        self.times_ms: list[int] = []

    @property
    def complete(self) -> bool:
        return self.start == len(self.run.buffer)

    def appended(self) -> Appended:
        """The place of the run. REQUIRES: at least one batch was appended."""
        pieces, times_ms = self.pieces, self.times_ms
        return Appended(pieces[0][0], pieces[-1][1] - 1, times_ms[-1], tuple(pieces), tuple(times_ms))

    @property
    def rows_left(self) -> Batches:
        batches = self.run.batches
        return batches if self.start == 0 else batches[np.searchsorted(batches["position"], self.start) :]

    def take(self, base_offset: int, next_offset: int, size: int, time_ms: int) -> None:
        self.pieces.append((base_offset, next_offset))
        self.times_ms.append(time_ms)
        self.start += size


class Bounds(NamedTuple):
    """The published offsets: readers see [log_start, high_watermark), committed ones below last_stable."""

    log_start: int
    log_end: int
    high_watermark: int
    last_stable: int
    epoch: int


class DirectTarget(Protocol):
    """An object to which the C core appends for a caller: under the mutex, while `writer` and `config` are those it was given."""

    config: TopicConfig
    mutex: threading.RLock
    writer: system.Writer | None


class Checkpoint(NamedTuple):
    """The offsets of one partition that belong in the checkpoints of the directory."""

    recovery_point: int
    log_start: int
    high_watermark: int


class Shares(NamedTuple):
    """How `max.open.files` is shared out: descriptors for reading, partitions that keep some for appends, and for syncs."""

    handles: int
    writers: int  # five each: log, two indexes, digests, append lock
    syncers: int  # two each, as a rule: log, sync lock

    @classmethod
    def of(cls, limit: int) -> Shares:
        return cls(max(8, limit // 2), max(2, limit // 16), max(2, 3 * limit // 32))


class Holder(Protocol):
    """An object that keeps descriptors open between uses."""

    def release(self) -> bool:
        """Close them; False if they are in use."""

    def seen_end(self) -> int:
        """The log end, which moves with use; -1 if it is not known."""


class KeptDescriptors:
    """Bounds the holders of descriptors of one kind: beyond the limit the longest idle ones are released. Threads: any."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._mutex = threading.Lock()
        self._open: OrderedDict[int, tuple[Holder, int]] = OrderedDict()  # with the log end at the last check

    def opened(self, holder: Holder) -> None:
        with self._mutex:
            self._open[id(holder)] = (holder, holder.seen_end())
            idle = self._idle(holder)
        for each in idle:
            if each.release():
                self.closed(each)

    def _idle(self, holder: Holder) -> list[Holder]:
        """The longest unused beyond the limit. A caller may append without `used`: the log end has moved then."""
        for key, (each, end) in list(self._open.items()):
            if (now := each.seen_end()) != end:
                self._open[key] = (each, now)
                self._open.move_to_end(key)
        others = [each for each, _ in self._open.values() if each is not holder]
        return others[: max(0, len(self._open) - self._limit)]

    def used(self, holder: Holder) -> None:
        with self._mutex:
            if id(holder) in self._open:
                self._open.move_to_end(id(holder))

    def closed(self, holder: Holder) -> None:
        with self._mutex:
            self._open.pop(id(holder), None)


class CheckpointedOffsets:
    """Offsets in a checkpoint of the directory, as it is when they are asked for: others write it, too. Threads: any."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: tuple[object, dict[tuple[str, int], int]] = (None, {})

    def of(self, topic: str, number: int) -> int:
        """The partition's offset, 0 if none is there. Raises ForeignDirectoryError for a malformed file."""
        found = files.facts_of(self._path)
        seen = found and (found.inode, found.size, found.modified_ns)
        known = self._known
        if known[0] != seen:
            known = self._known = (seen, checkpoints.read_offsets(self._path))
        return known[1].get((topic, number), 0)


def write_checkpoints(root: Path, found: Mapping[tuple[str, int], Checkpoint], mode: int) -> None:
    """Write recovery points, log starts and high watermarks of these partitions.

    REQUIRES the directory lock, or the open lock as the last process.
    """
    if not found:
        return
    checkpoints.update(root / file_names.RECOVERY_POINTS, {name: each.recovery_point for name, each in found.items()}, mode)
    # Kafka leaves a log start at a segment's start out, but then a missing one would go unnoticed.
    checkpoints.update(root / file_names.LOG_STARTS, {name: each.log_start or None for name, each in found.items()}, mode)
    checkpoints.update(root / file_names.HIGH_WATERMARKS, {name: each.high_watermark for name, each in found.items()}, mode)


@dataclass
class Context:
    """What a partition must know of the directory it lies in. Shared by all partitions of one open log."""

    root: Path
    incarnation: bytes
    directory_page: system.Page | None
    read_only: bool = False
    clean: bool = False  # the directory was left in order before this incarnation
    foreign: bool = False  # somebody else wrote here since we last did
    visit: int = 0  # the number of the last visit of somebody else, 0: there was none
    locked: bool = False  # shared="locks": nothing is mapped, data is written through, each read opens its file
    mode: int = 0o666
    lock_timeout_ms: int = 10_000
    producer_expiration_ms: int = 86_400_000
    decompressed_max: int = LIMIT_BYTES  # uncompressed bytes of a batch that is read
    seen: object = None  # for a reader: differs once somebody has come or gone since
    recovery_points: CheckpointedOffsets | None = None
    log_starts: CheckpointedOffsets | None = None
    cleaned: CheckpointedOffsets | None = None  # how far each partition was ever compacted
    check_open: Callable[[], None] = lambda: None
    handles: Handles = field(default_factory=lambda: Handles(400))
    writers: KeptDescriptors = field(default_factory=lambda: KeptDescriptors(32))
    syncers: KeptDescriptors = field(default_factory=lambda: KeptDescriptors(64))
    held_lock: Callable[[], tuple[str, int, int]] | None = None  # the directory's `.lock`: path, device, inode
    retake: Callable[[], None] = lambda: None  # it is another file now: hold it again, or refuse
    refresh: Callable[[], bool] | None = None  # for a reader: does somebody write here now?
