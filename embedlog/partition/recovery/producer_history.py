"""Loads the producers of a partition with its segments: snapshots, replay, transaction indexes
(format.md 4).

- The newest valid snapshot at or below the end saves reading; later batches are replayed.
- An orderly close without any snapshot means that there were no producers.
- The transaction index of a segment that was read again is made again; other indexes are checked
  when they are used.
- A reader without the right to write keeps in memory what a writer puts into files.
- A load keeps the snapshot at the log end, also if the log start is there, where Kafka removes it.
  The page names this snapshot; after an orderly close without it the producers would be forgotten.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from embedlog import segment
from embedlog._native.lazy_numpy import np
from embedlog.errors import CorruptRecordError, UnsupportedFormatError, in_file
from embedlog.format import aborted_transactions
from embedlog.format.aborted_transactions import AbortedTransaction
from embedlog.format.producer_state import Marker, ProducerState, select_snapshots
from embedlog.format.record_batch import ABORT, COMMIT, HEADER_SIZE, Chain
from embedlog.format.wire import read_varint
from embedlog.storage import file_names, files
from embedlog.storage.manifest import SegmentInfo

logger = logging.getLogger("embedlog")


@dataclass(eq=False, repr=False)
class ProducerHistory:
    """The producers as of the log end, and the transaction indexes that were made again, by segment
    base.
    """

    state: ProducerState
    indexes: dict[int, bytes] = field(default_factory=dict)
    loaded: int = -1  # offset of the snapshot from which it was loaded


def load(
    directory: Path,
    segments: list[SegmentInfo],
    *,
    end: int,
    clean: bool,
    read_again: Iterable[int],
    replay: bool,
) -> ProducerHistory:
    """The history up to `end`. `read_again`: segments that recovery read whole; `replay`: whether
    they have producers.
    """
    offsets = snapshot_offsets(directory)
    bases = sorted(read_again)
    first_read = bases[0] if bases else end
    limit = min(first_read, end) if replay else end
    state = read_newest(directory, [offset for offset in offsets if offset <= limit])
    if state is None and clean and not offsets:
        return ProducerHistory(ProducerState(end))
    if state is None:
        loaded = -1
        state = ProducerState(segments[0].base)
    else:
        loaded = state.offset
    history = ProducerHistory(state, loaded=loaded)
    if replay or state.offset < first_read:
        later = [info for info in segments if info.next_offset > state.offset]
        _replay(directory, later, history, set(bases))
    state.offset = end
    return history


def read_newest(directory: Path, offsets: list[int]) -> ProducerState | None:
    """The state in the valid snapshot with the largest of these offsets, None if there is none."""
    for offset in reversed(offsets):
        path = file_names.segment_path(directory, offset, file_names.SNAPSHOT)
        data = files.read_bytes(path)
        if data is None:
            continue  # a writer removed it after its name was read: that is no damage
        try:
            return ProducerState.decode(data, offset, path)
        except (CorruptRecordError, UnsupportedFormatError) as problem:
            logger.warning("ignored a damaged snapshot of producers: %s", problem)
    return None


def with_index(
    directory: Path, info: SegmentInfo, past: ProducerHistory, *, last: bool
) -> SegmentInfo:
    """A description with the transaction index that was made again; for the last segment also with
    its digest.
    """
    index = past.indexes.get(info.base)
    if index is None:
        if not last or not info.transaction_entries or info.transaction_digest:
            return info
        index = _read_index(directory, info)
    return info._replace(
        transaction_entries=len(index) // aborted_transactions.ENTRY_SIZE,
        transaction_digest=aborted_transactions.digest(index),
    )


def is_index_valid(directory: Path, info: SegmentInfo) -> bool:
    """Whether the file of a transaction index agrees with the description of its segment."""
    if not info.transaction_entries:
        return True
    path = file_names.segment_path(directory, info.base, file_names.TRANSACTION_INDEX)
    index = _read_index(directory, info)
    try:
        entries = aborted_transactions.decode(index, info.base, path)
    except (CorruptRecordError, UnsupportedFormatError):
        return False
    is_whole = len(entries) == info.transaction_entries
    return is_whole and info.transaction_digest in (0, aborted_transactions.digest(index))


def _read_index(directory: Path, info: SegmentInfo) -> bytes:
    """The entries of a transaction index that its segment describes; fewer if the file is
    shorter.
    """
    path = file_names.segment_path(directory, info.base, file_names.TRANSACTION_INDEX)
    data = files.read_bytes(path) or b""
    return data[: info.transaction_entries * aborted_transactions.ENTRY_SIZE]


def _replay(
    directory: Path, segments: list[SegmentInfo], history: ProducerHistory, again: set[int]
) -> None:
    for info in segments:
        if not info.size:
            continue  # a reader has no file for the segment in which it continues an overflowed one
        path = file_names.segment_path(directory, info.base)
        aborted: list[AbortedTransaction] = []
        with files.opened(path) as fd:
            walk = segment.Walk(fd, path, Chain(gaps_allowed=True), 0, info.size, bounded=False)
            for data, batches in walk.chunks():
                with in_file(path):
                    aborted += history.state.replay(batches, markers_in(data, batches))
        if info.base in again:
            history.indexes[info.base] = aborted_transactions.encode(aborted)


def markers_in(data: memoryview, batches: np.ndarray) -> Callable[[int], Marker | None]:
    """A function that reads the markers of these batches for `ProducerState.replay`; `data` begins
    at the first batch.
    """
    first = int(batches["position"][0])

    def marker_of(row: int) -> Marker | None:
        if not batches["records"][row]:
            return None
        position = int(batches["position"][row])
        start = position - first
        end = start + int(batches["size"][row])
        return marker_in(bytes(data[start:end]), position)

    return marker_of


_KEY = struct.Struct(">hh")  # version, type (format.md 1.7)
_VALUE = struct.Struct(">hi")  # version, coordinator epoch


def marker_in(batch: bytes, position: int) -> Marker | None:
    """The transaction marker in a control batch at `position`; None for control records of other
    kinds.

    Raises CorruptRecordError with that position.
    """
    try:
        at = HEADER_SIZE
        for _ in range(4):  # length, attributes (one byte, as 0), timestamp delta, offset delta
            _, at = read_varint(batch, at)
        key_size, at = read_varint(batch, at)
        version, kind = _KEY.unpack_from(batch, at)
        value_size, at = read_varint(batch, at + key_size)
        if version < 0 or kind not in (ABORT, COMMIT) or value_size < _VALUE.size:
            return None
        return Marker(kind == COMMIT, _VALUE.unpack_from(batch, at)[1])
    except (IndexError, ValueError, struct.error) as problem:
        raise CorruptRecordError(
            "a control record is too short", position=position, found=f"{len(batch)} bytes"
        ) from problem


def write(
    directory: Path, history: ProducerHistory, bases: list[int], *, log_start: int, mode: int
) -> None:
    """Write the snapshot and the transaction indexes for the next load. REQUIRES the append
    lock.
    """
    end = history.state.offset
    for base, data in history.indexes.items():
        path = file_names.segment_path(directory, base, file_names.TRANSACTION_INDEX)
        if data:
            with files.opened(path, files.CREATE, mode) as fd:
                files.write_all(fd, data, 0, path)
                files.truncate(fd, len(data), path)
        else:
            files.unlink(path, missing_ok=True)
    offsets = snapshot_offsets(directory)
    if end != history.loaded and (history.state.producers or offsets):
        write_snapshot(directory, history.state.encode(), end, mode)
        offsets = sorted({*offsets, end})
    kept_offsets = set(select_snapshots(offsets, bases, log_start, end))
    if history.state.producers:
        kept_offsets.add(end)
    for offset in offsets:
        if offset not in kept_offsets:
            files.unlink(
                file_names.segment_path(directory, offset, file_names.SNAPSHOT), missing_ok=True
            )


def write_snapshot(directory: Path, data: bytes, offset: int, mode: int) -> None:
    path = file_names.segment_path(directory, offset, file_names.SNAPSHOT)
    with files.opened(path, files.CREATE, mode) as fd:
        files.write_all(fd, data, 0, path)
        files.truncate(fd, len(data), path)


def snapshot_offsets(directory: Path) -> list[int]:
    """The offsets of the snapshots, in order."""
    return file_names.bases(files.listing(directory), file_names.SNAPSHOT)
