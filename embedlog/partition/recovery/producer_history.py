"""Loads the producers of a partition with its segments: snapshots, replay, transaction indexes
(format.md 4).

HISTORY-1  the newest valid snapshot at or below the end saves reading; later batches are replayed
HISTORY-2  an orderly close without any snapshot means that there were no producers
HISTORY-3  the transaction index of a segment that was read again is made again; other indexes are
    checked when they are used
HISTORY-4  a reader without the right to write keeps in memory what a writer puts into files
HISTORY-5  a load keeps the snapshot at the log end, also if the log start is there, where Kafka
    removes it. The page names this snapshot, and without it HISTORY-2 would forget the producers
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
class History:
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
) -> History:
    """The history up to `end`. `read_again`: segments that recovery read whole; `replay`: whether
    they have producers.
    """
    offsets = snapshots(directory)
    again = sorted(read_again)
    below = min(again[0], end) if again and replay else end
    state = newest(directory, [offset for offset in offsets if offset <= below])
    if state is None and clean and not offsets:
        return History(ProducerState(end))
    loaded = -1 if state is None else state.offset
    if state is None:
        state = ProducerState(segments[0].base)
    history = History(state, loaded=loaded)
    if replay or state.offset < (again[0] if again else end):
        _replay(
            directory,
            [info for info in segments if info.next_offset > state.offset],
            history,
            set(again),
        )
    state.offset = end
    return history


def newest(directory: Path, offsets: list[int]) -> ProducerState | None:
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


def with_index(directory: Path, info: SegmentInfo, past: History, *, last: bool) -> SegmentInfo:
    """A description with the transaction index that was made again; for the last segment also with
    its digest.
    """
    made = past.indexes.get(info.base)
    if made is None and not (last and info.transaction_entries and not info.transaction_digest):
        return info
    if made is None:  # `index_holds`
        made = (
            files.read_bytes(
                file_names.segment_path(directory, info.base, file_names.TRANSACTION_INDEX)
            )
            or b""
        )
        made = made[: info.transaction_entries * aborted_transactions.ENTRY_SIZE]
    return info._replace(
        transaction_entries=len(made) // aborted_transactions.ENTRY_SIZE,
        transaction_digest=aborted_transactions.digest(made),
    )


def index_holds(directory: Path, info: SegmentInfo) -> bool:
    """Whether the file of a transaction index agrees with the description of its segment."""
    if not info.transaction_entries:
        return True
    path = file_names.segment_path(directory, info.base, file_names.TRANSACTION_INDEX)
    try:
        raw = (files.read_bytes(path) or b"")[
            : info.transaction_entries * aborted_transactions.ENTRY_SIZE
        ]
        whole = len(aborted_transactions.decode(raw, info.base, path)) == info.transaction_entries
    except (CorruptRecordError, UnsupportedFormatError):
        return False
    return whole and info.transaction_digest in (0, aborted_transactions.digest(raw))


def _replay(
    directory: Path, segments: list[SegmentInfo], history: History, again: set[int]
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
        position = int(batches["position"][row])
        size = int(batches["size"][row])
        at = position - first
        return marker_in(bytes(data[at : at + size]), position) if batches["records"][row] else None

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
    directory: Path, history: History, bases: list[int], *, log_start: int, mode: int
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
    offsets = snapshots(directory)
    if end != history.loaded and (history.state.producers or offsets):
        write_snapshot(directory, history.state.encode(), end, mode)
        offsets = sorted({*offsets, end})
    kept = select_snapshots(offsets, bases, log_start, end) | (
        {end} if history.state.producers else set()
    )
    for offset in offsets:
        if offset not in kept:
            files.unlink(
                file_names.segment_path(directory, offset, file_names.SNAPSHOT), missing_ok=True
            )


def write_snapshot(directory: Path, data: bytes, offset: int, mode: int) -> None:
    path = file_names.segment_path(directory, offset, file_names.SNAPSHOT)
    with files.opened(path, files.CREATE, mode) as fd:
        files.write_all(fd, data, 0, path)
        files.truncate(fd, len(data), path)


def snapshots(directory: Path) -> list[int]:
    """The offsets of the snapshots, in order."""
    return file_names.bases(files.listing(directory), file_names.SNAPSHOT)
