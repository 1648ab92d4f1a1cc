"""Reads a metadata log with its snapshots, and builds snapshots, as Kafka's Raft client writes them
(KIP-630).

- The newest snapshot counts, then the records of the log from its end on; an incomplete batch ends
  the log.
- A snapshot whose end is after the log replaces the log: a broker removes the log at its start.
- Records of an aborted metadata transaction do not count, nor those of one that was not ended.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from embedlog._native._rows import encode_batch
from embedlog.errors import CorruptRecordError
from embedlog.format.record_batch import CONTROL
from embedlog.format.wire import LONG, SHORT, Flexible
from embedlog.storage import file_names, files
from embedlog.tools.dump.batches import RawBatch, read_batches
from embedlog.tools.dump.segments import records_of
from embedlog.tools.handover import metadata_records as records

NAME: Final = "__cluster_metadata-0"
CHECKPOINT: Final = ".checkpoint"

_SNAPSHOT = re.compile(r"([0-9]{20})-([0-9]{10})\.checkpoint")
# types of control records
RAFT_VERSION = 5
VOTERS = 6
_HEADER = 3
_FOOTER = 4
_BATCH_BYTES = 512 << 10


class Entry(NamedTuple):
    """One record with its bytes, or a control record of Raft without a `record`."""

    value: bytes
    record: records.Record | None
    kind: int = -1  # of a control record


@dataclass(frozen=True, slots=True)
class MetadataLog:
    """All records that count. `end` and `epoch` are those of the last batch; 0 of an absent log.

    `snapshot_end` is the end of the newest snapshot: a broker that ran on it has written records
    after it.
    """

    entries: list[Entry] = field(default_factory=list)
    raft: dict[int, bytes] = field(default_factory=dict)  # by type: the Raft version and the voters
    end: int = 0
    epoch: int = 0
    snapshot_end: int = 0

    def __bool__(self) -> bool:
        return self.end > 0

    @property
    def voter_count(self) -> int:
        """The controllers that the log names; 0 if the configuration file of the broker names them.
        Raises CorruptRecordError.
        """
        value = self.raft.get(VOTERS)
        try:
            return 0 if value is None else Flexible(value, SHORT.size).uvarint() - 1
        except (ValueError, IndexError) as problem:
            raise CorruptRecordError(
                "the voters in the metadata log", found=(value or b"")[:64].hex()
            ) from problem


def snapshot_name(end: int, epoch: int) -> str:
    """The name of a snapshot of all records below `end`."""
    return f"{end:020d}-{epoch:010d}{CHECKPOINT}"


# ---- reading -------------------------------------------------------------------------------------


def read(directory: Path) -> MetadataLog:
    """The metadata log below a metadata directory; an empty one if there is none. Raises
    CorruptRecordError, StorageError.
    """
    path = directory / NAME
    if not files.is_directory(path):
        return MetadataLog()
    names = files.listing(path)
    snapshots = []
    bases = []
    for name in names:
        match = _SNAPSHOT.fullmatch(name)
        if match is not None:
            snapshots.append((int(match[1]), int(match[2]), name))
        base = _base_of(name)
        if base is not None:
            bases.append(base)
    bases.sort()
    end = 0
    epoch = 0
    snapshot_entries: list[Entry] = []
    if snapshots:
        end, epoch, name = max(snapshots)
        snapshot_entries = list(_read_snapshot(path / name))
    snapshot_end = end
    log_entries: list[Entry] = []
    for number, base in enumerate(bases):
        is_last = number + 1 == len(bases)
        if not is_last and bases[number + 1] <= end:
            continue  # the snapshot covers it
        segment_path = path / file_names.file_name(base, file_names.LOG)
        for batch in _read_valid_batches(segment_path, end, last=is_last):
            log_entries += _read_entries(batch, path)
            end = batch.last_offset + 1
            epoch = batch.leader_epoch
    raft = {
        entry.kind: entry.value for entry in [*snapshot_entries, *log_entries] if entry.kind >= 0
    }
    entries = [
        *_drop_aborted(entry for entry in snapshot_entries if entry.kind < 0),
        *_drop_aborted(entry for entry in log_entries if entry.kind < 0),
    ]
    return MetadataLog(entries, raft, end, epoch, snapshot_end)


def _read_valid_batches(path: Path, end: int, *, last: bool) -> Iterator[RawBatch]:
    """The batches of a segment from `end` on. A wrong checksum ends the last segment, as after a
    power loss.
    """
    with files.opened(path) as fd:
        for batch in read_batches(fd, path):
            if not batch.is_valid:
                if last:
                    return
                raise CorruptRecordError(
                    "checksum of a batch of the metadata log", path=path, position=batch.position
                )
            if batch.last_offset < end:
                continue
            if batch.base_offset != end:
                raise CorruptRecordError(
                    "offset in the metadata log", path=path, expected=end, found=batch.base_offset
                )
            end = batch.last_offset + 1
            yield batch


def _base_of(name: str) -> int | None:
    """The base offset of a log file; None for any other file."""
    parsed = file_names.parse(name)
    if parsed is None:
        return None
    base, suffix = parsed
    return base if suffix == file_names.LOG else None


def _read_snapshot(path: Path) -> Iterator[Entry]:
    """The records of a snapshot, which is complete only with its footer."""
    has_footer = False
    with files.opened(path) as fd:
        for batch in read_batches(fd, path):
            if not batch.is_valid:
                raise CorruptRecordError(
                    "checksum of a batch of a metadata snapshot", path=path, position=batch.position
                )
            if batch.is_control:
                kinds = [_kind_of(record.key) for record in records_of(batch)]
                has_footer = has_footer or _FOOTER in kinds
            yield from _read_entries(batch, path)
    if not has_footer:
        raise CorruptRecordError("the end of a metadata snapshot is missing", path=path)


def _read_entries(batch: RawBatch, path: Path) -> Iterator[Entry]:
    for record in records_of(batch):
        if batch.is_control:
            if _kind_of(record.key) in (RAFT_VERSION, VOTERS):
                yield Entry(record.value or b"", None, _kind_of(record.key))
            continue
        if record.value is None:
            raise CorruptRecordError(
                "a metadata record without a value", path=path, position=batch.position
            )
        yield Entry(record.value, records.decode(record.value))


def _kind_of(key: bytes | None) -> int:
    return int.from_bytes((key or b"")[2:4], "big")


def _drop_aborted(entries: Iterable[Entry]) -> Iterator[Entry]:
    """The entries outside of aborted metadata transactions."""
    pending: list[Entry] | None = None
    for entry in entries:
        kind = entry.record.kind if isinstance(entry.record, records.Other) else -1
        if kind == records.BEGIN:
            pending = []
        elif kind in (records.END, records.ABORT):
            if kind == records.END and pending is not None:
                yield from pending
            pending = None
        elif pending is not None:
            pending.append(entry)
        else:
            yield entry


# ---- writing -------------------------------------------------------------------------------------


def snapshot(values: Iterable[bytes], raft: dict[int, bytes], epoch: int, time_ms: int) -> bytes:
    """A snapshot file with these records, and those of Raft."""
    head = [(_control_key(_HEADER), SHORT.pack(0) + LONG.pack(time_ms) + b"\0")]
    head += [(_control_key(kind), value) for kind, value in sorted(raft.items())]
    data = bytearray(encode_batch(head, time_ms, CONTROL, -1, -1, -1))
    _stamp(data, 0, 0, epoch)
    offset = len(head)
    for chunk in _split_into_chunks(values):
        position = len(data)
        data += encode_batch([(None, value) for value in chunk], time_ms, 0, -1, -1, -1)
        _stamp(data, position, offset, epoch)
        offset += len(chunk)
    position = len(data)
    footer = [(_control_key(_FOOTER), SHORT.pack(0) + b"\0")]
    data += encode_batch(footer, time_ms, CONTROL, -1, -1, -1)
    _stamp(data, position, offset, epoch)
    return bytes(data)


def _split_into_chunks(values: Iterable[bytes]) -> Iterator[list[bytes]]:
    chunk: list[bytes] = []
    size = 0
    for value in values:
        if chunk and size + len(value) > _BATCH_BYTES:
            yield chunk
            chunk = []
            size = 0
        chunk.append(value)
        size += len(value)
    if chunk:
        yield chunk


def _control_key(kind: int) -> bytes:
    return SHORT.pack(0) + SHORT.pack(kind)


def _stamp(data: bytearray, at: int, offset: int, epoch: int) -> None:
    """Base offset and leader epoch of a batch, which its checksum does not cover (format.md
    3.1).
    """
    LONG.pack_into(data, at, offset)
    data[at + 12 : at + 16] = epoch.to_bytes(4, "big")
