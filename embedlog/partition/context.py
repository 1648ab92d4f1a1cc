"""What partitions share: the directory they lie in, the bound on their descriptors, the shapes of their answers.

T1  a `Home` is made when a log is opened and outlives its partitions
T2  descriptors that a partition keeps for appends, or for syncs, are given back by whoever has been idle longest, never while
    they are in use; the bounds of `Shares` add up to `max.open.files`
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from embedlog._native import system
from embedlog.format.compression import LIMIT_BYTES
from embedlog.storage import checkpoints, files
from embedlog.storage.descriptors import Handles

if TYPE_CHECKING:
    from embedlog.partition.partition import Partition


UNDONE: Final = {
    system.MUST_REPAIR: "an append that was not finished is still to be repaired",
    system.MUST_ROLL: "a new segment is still to be begun",
    system.MUST_REOPEN: "the files of the active segment are still to be opened",
    system.MUST_REMAP: "the control page is still to be mapped",
    system.TOO_LARGE: "the batch is too large",
    system.IS_POISONED: "the segment whose sync failed is still to be left",
    system.LOST_DIRECTORY: "the directory's lock file is still to be taken again",
    system.MUST_CATCH_UP: "what others appended is still to be read",
    system.NOT_DATA: "the batch holds no data",
}  # what stands in the way where a deadline has passed


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


class Bounds(NamedTuple):
    """The published offsets: readers see [log_start, high_watermark), committed ones below last_stable."""

    log_start: int
    log_end: int
    high_watermark: int
    last_stable: int
    epoch: int


class Shares(NamedTuple):
    """How `max.open.files` is shared out: descriptors for reading, partitions that keep some for appends, and for syncs."""

    handles: int
    writers: int  # five each: log, two indexes, digests, append lock
    syncers: int  # two each, as a rule: log, sync lock

    @classmethod
    def of(cls, limit: int) -> Shares:
        return cls(max(8, limit // 2), max(2, limit // 16), max(2, 3 * limit // 32))


class Keepers:
    """Bounds the partitions that keep descriptors of one kind: the longest idle gives its own back. Threads: any.

    `release` asks one for that: False if it is at work.
    """

    def __init__(self, limit: int, release: Callable[[Partition], bool]) -> None:
        self._limit, self._release = limit, release
        self._mutex = threading.Lock()
        self._open: OrderedDict[int, tuple[Partition, int]] = OrderedDict()  # with the log end when it was last looked at

    def opened(self, partition: Partition) -> None:
        with self._mutex:
            self._open[id(partition)] = (partition, _end_of(partition))
            idle = self._idle(partition)
        for each in idle:
            if self._release(each):
                self.closed(each)

    def _idle(self, partition: Partition) -> list[Partition]:
        """The longest unused beyond the limit. Who waits for a record writes it past `used`: the log has grown then."""
        for key, (each, end) in list(self._open.items()):
            if (now := _end_of(each)) != end:
                self._open[key] = (each, now)
                self._open.move_to_end(key)
        others = [each for each, _ in self._open.values() if each is not partition]
        return others[: max(0, len(self._open) - self._limit)]

    def used(self, partition: Partition) -> None:
        with self._mutex:
            if id(partition) in self._open:
                self._open.move_to_end(id(partition))

    def closed(self, partition: Partition) -> None:
        with self._mutex:
            self._open.pop(id(partition), None)


def _end_of(partition: Partition) -> int:
    mapped = partition.page_file
    now = mapped.page.read() if mapped is not None else None
    return -1 if now is None else now.log_end


class Checkpointed:
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


@dataclass
class Home:
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
    recovery_points: Checkpointed | None = None
    log_starts: Checkpointed | None = None
    cleaned: Checkpointed | None = None  # how far each partition was ever compacted
    check_open: Callable[[], None] = lambda: None
    handles: Handles = field(default_factory=lambda: Handles(400))
    writers: Keepers = field(default_factory=lambda: Keepers(32, lambda partition: partition.release()))
    syncers: Keepers = field(default_factory=lambda: Keepers(64, lambda partition: partition.syncer.release()))
    held_lock: Callable[[], tuple[str, int, int]] | None = None  # the directory's `.lock`: path, device, inode
    retake: Callable[[], None] = lambda: None  # it is another file now: hold it again, or refuse
    refresh: Callable[[], bool] | None = None  # for a reader: does somebody write here now?
