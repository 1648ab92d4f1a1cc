"""A partition pinned at one moment, for a copy while other processes append, roll, retain and
compact.

- The published records of that moment are in segments that only grow: bytes after their pinned size
  do not count. Batches from the high watermark on do not count either: another leader may cut them.
- An open file stays readable after a rename over its name or an unlink. So all files are opened
  under the append lock, or, without the right to lock, between two changes of the generation; then
  they belong together.
- Files that were compacted after the first pin lack records that later committed ones replaced.
  These, and the markers that committed them, are below the current high watermark: a second pin of
  a compacted partition ends there.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from embedlog._native import system
from embedlog._native.scope import scope
from embedlog._native.system import Published
from embedlog.errors import CorruptRecordError, StorageError
from embedlog.format import aborted_transactions
from embedlog.format.producer_state import ProducerState
from embedlog.format.record_columns import Batches
from embedlog.partition.recovery import producer_history
from embedlog.storage import checkpoints, file_names, files
from embedlog.storage.manifest import SegmentInfo

if TYPE_CHECKING:
    from embedlog.partition.partition import Partition
    from embedlog.partition.recovery.loader import Loaded

RETRY_S: Final = 0.001  # between two tries to open all files of a partition


class Pin(NamedTuple):
    """One partition as it was when it was pinned."""

    partition: Partition
    published: Published
    loaded: Loaded | None  # the files as a reader without a live control page had loaded them
    segments: list[SegmentInfo]
    end: int  # the high watermark of that moment: later records do not count
    descriptors: dict[int, int] | None = None  # of the segments, by base
    aborted: dict[int, bytes] | None = None  # their transaction indexes, read when they were opened

    @scope
    def open_log(self, base: int) -> Iterator[int]:
        """The log file of a segment."""
        if self.descriptors is not None:
            yield self.descriptors[base]
            return
        with files.opened(file_names.segment_path(self.partition.path, base)) as fd:
            yield fd

    def aborted_in(self, info: SegmentInfo) -> bytes:
        """The entries of transactions that were aborted below the pinned end, as in their file."""
        if self.aborted is not None:
            return self.aborted[info.base]
        entries = self.partition.aborted_entries(info, self.published)
        return bytes(entries[entries["last_offset"] < self.end].tobytes())

    def has_moved(self) -> bool:
        """Whether files of the pin were replaced. Raises UnknownTopicOrPartitionError."""
        self.partition.check_deleted()
        return (
            self.partition.published().generation != self.published.generation
            or self.partition.loaded is not self.loaded
        )

    def epochs(self) -> checkpoints.EpochCache:
        """The leader epochs of the partition."""
        loaded = self.partition.loaded
        if loaded is not None:
            return loaded.epochs
        return checkpoints.read_epochs(self.partition.path / file_names.EPOCHS)

    def producers(self) -> ProducerState:
        """The producers as of the newest snapshot below the end, in an object of its own; `replay`
        continues it.
        """
        loaded = self.partition.loaded
        if loaded is not None and loaded.history.state.offset <= self.end:
            state = loaded.history.state
            return ProducerState(state.offset, state.producers.values())
        path = self.partition.path
        offsets = [
            offset for offset in producer_history.snapshot_offsets(path) if offset <= self.end
        ]
        newest = producer_history.read_newest(path, offsets)
        if newest is None:
            newest = ProducerState(self.segments[0].base)
        return newest

    @staticmethod
    def replay(state: ProducerState, data: memoryview, batches: Batches) -> None:
        """Take batches into the state of the producers; `data` begins at the first one."""
        state.replay(batches, producer_history.markers_in(data, batches))


def pin_of(partition: Partition, published: Published | None = None, end: int | None = None) -> Pin:
    """Pin a partition as it is now, or as of the tuple `published`. It ends at the high watermark,
    or at the `end` of an earlier pin.
    """
    partition.check_deleted()
    if published is None:
        published, infos = partition.current_segments()
    else:
        infos = partition.segments(published)
    if end is None or partition.config.compacted:
        # files that were compacted after the earlier pin need the later records, too
        end = max(published.high_watermark, end or 0)
    end = max(end, published.log_start)
    segments = [info for info in infos if info.base <= end]
    return Pin(partition, published, partition.loaded, segments, end)


@scope
def pin_files(partition: Partition, end: int) -> Iterator[Pin]:
    """Pin a partition up to the `end` of an earlier pin, and open its files.

    Raises StorageError if they keep changing until the deadline.
    """
    until = partition.deadline()
    pause = threading.Event()
    fds = dict[int, int]()
    try:
        while True:
            pin = _open_files(partition, end, fds)
            if pin is not None:
                break
            _release_all(fds)
            if system.boot_ns() >= until:
                raise StorageError(
                    "the files of this partition keep changing during a backup", path=partition.path
                )
            pause.wait(RETRY_S)
        yield pin
    finally:
        _release_all(fds)


def _open_files(partition: Partition, end: int, fds: dict[int, int]) -> Pin | None:
    """Open all files of one moment; None if they changed meanwhile. Raises CorruptRecordError,
    StorageError.
    """
    aborted: dict[int, bytes] = {}
    with _hold_moment(partition) as published:
        partition.forget_segments()
        try:
            pin = pin_of(partition, published, end)
        except (CorruptRecordError, StorageError):
            if partition.published().generation == published.generation:
                raise
            return None
        try:
            for info in pin.segments:
                fds[info.base] = files.open_file(
                    file_names.segment_path(partition.path, info.base), files.READ
                )
                aborted[info.base] = b""
                if info.transaction_entries:
                    index = file_names.segment_path(
                        partition.path, info.base, file_names.TRANSACTION_INDEX
                    )
                    aborted[info.base] = files.read_bytes(index) or b""
        except StorageError:
            if _is_unchanged(pin):
                raise
            return None
        if not _is_unchanged(pin):
            return None
    checked = {info.base: _check_index(pin, info, aborted[info.base]) for info in pin.segments}
    return pin._replace(descriptors=fds, aborted=checked)


@scope
def _hold_moment(partition: Partition) -> Iterator[Published]:
    """The published tuple. No file is replaced inside the block, except where this process may not
    lock.
    """
    if partition.read_only:
        yield partition.await_replacement()
        return
    with partition.exclusive() as locked:
        yield locked.published


def _check_index(pin: Pin, info: SegmentInfo, raw: bytes) -> bytes:
    """The entries of a transaction index up to the pinned end. Raises CorruptRecordError if they
    are not as they were written.
    """
    path = file_names.segment_path(pin.partition.path, info.base, file_names.TRANSACTION_INDEX)
    if info.base == pin.published.segment_base:
        raw = raw[: info.transaction_entries * aborted_transactions.ENTRY_SIZE]
    entries = aborted_transactions.decode(raw, info.base, path)
    if len(entries) < info.transaction_entries or info.transaction_digest not in (
        0,
        aborted_transactions.digest(raw),
    ):
        expected = f"{info.transaction_entries} entries, as they were written"
        raise CorruptRecordError(
            "a transaction index is damaged", path=path, expected=expected, found=len(entries)
        )
    return bytes(entries[entries["last_offset"] < pin.end].tobytes())


def _is_unchanged(pin: Pin) -> bool:
    """Whether files and log start are still those of the pin."""
    current = pin.partition.published()
    is_same = (current.generation, current.log_start) == (
        pin.published.generation,
        pin.published.log_start,
    )
    return is_same and pin.partition.loaded is pin.loaded


def _release_all(fds: dict[int, int]) -> None:
    while fds:
        files.close(fds.popitem()[1])
