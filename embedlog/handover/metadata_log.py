"""Reads a metadata log with its snapshots, and builds snapshots, as Kafka's Raft client writes them
(KIP-630).

METADATALOG-1  the newest snapshot counts, then the records of the log from its end on; an
    incomplete batch ends the log
METADATALOG-2  a snapshot whose end is after the log replaces the log: a broker removes the log at
    its start
METADATALOG-3  records of an aborted metadata transaction do not count, nor those of one that was
    not ended
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from embedlog._native._rows import encode_batch
from embedlog.dump.batches import Batch, batches
from embedlog.dump.segments import records_of
from embedlog.errors import CorruptRecordError
from embedlog.format.record_batch import CONTROL
from embedlog.format.wire import LONG, SHORT, Flexible
from embedlog.handover import metadata_records as records
from embedlog.storage import file_names, files

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
    snapshots = sorted(
        (int(found[1]), int(found[2]), name)
        for name in names
        if (found := _SNAPSHOT.fullmatch(name))
    )
    end, epoch, name = snapshots[-1] if snapshots else (0, 0, "")
    kept = list(_snapshot(path / name)) if name else []
    raft = {each.kind: each.value for each in kept if each.kind >= 0}
    logged: list[Entry] = []
    for number, base in enumerate(
        segments := sorted(base for each in names if (base := _base(each)) is not None)
    ):
        if number + 1 < len(segments) and segments[number + 1] <= end:
            continue  # the snapshot covers it
        for batch in _valid(
            path / file_names.file_name(base, file_names.LOG), end, last=number + 1 == len(segments)
        ):
            logged += _entries(batch, path)
            end = batch.last_offset + 1
            epoch = batch.leader_epoch
    raft |= {each.kind: each.value for each in logged if each.kind >= 0}
    entries = [
        *_committed(each for each in kept if each.kind < 0),
        *_committed(each for each in logged if each.kind < 0),
    ]
    return MetadataLog(entries, raft, end, epoch, snapshots[-1][0] if snapshots else 0)


def _valid(path: Path, end: int, *, last: bool) -> Iterator[Batch]:
    """The batches of a segment from `end` on. A wrong checksum ends the last segment, as after a
    power loss.
    """
    with files.opened(path) as fd:
        for batch in batches(fd, path):
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


def _base(name: str) -> int | None:
    found = file_names.parse(name)
    return found[0] if found and found[1] == file_names.LOG else None


def _snapshot(path: Path) -> Iterator[Entry]:
    """The records of a snapshot, which is complete only with its footer."""
    whole = False
    with files.opened(path) as fd:
        for batch in batches(fd, path):
            if not batch.is_valid:
                raise CorruptRecordError(
                    "checksum of a batch of a metadata snapshot", path=path, position=batch.position
                )
            if batch.is_control:
                whole = whole or any(_kind(each.key) == _FOOTER for each in records_of(batch))
            yield from _entries(batch, path)
    if not whole:
        raise CorruptRecordError("the end of a metadata snapshot is missing", path=path)


def _entries(batch: Batch, path: Path) -> Iterator[Entry]:
    for each in records_of(batch):
        if batch.is_control:
            if _kind(each.key) in (RAFT_VERSION, VOTERS):
                yield Entry(each.value or b"", None, _kind(each.key))
            continue
        if each.value is None:
            raise CorruptRecordError(
                "a metadata record without a value", path=path, position=batch.position
            )
        yield Entry(each.value, records.decode(each.value))


def _kind(key: bytes | None) -> int:
    return int.from_bytes((key or b"")[2:4], "big")


def _committed(entries: Iterable[Entry]) -> Iterator[Entry]:
    """The entries outside of aborted metadata transactions (METADATALOG-3)."""
    pending: list[Entry] | None = None
    for entry in entries:
        kind = entry.record.kind if isinstance(entry.record, records.Other) else -1
        if kind == records.BEGIN:
            pending = []
        elif kind in (records.END, records.ABORT):
            yield from (pending or []) if kind == records.END else []
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
    made = bytearray(encode_batch(head, time_ms, CONTROL, -1, -1, -1))
    _stamp(made, 0, 0, epoch)
    offset = len(head)
    for chunk in _chunks(values):
        at = len(made)
        made += encode_batch([(None, value) for value in chunk], time_ms, 0, -1, -1, -1)
        _stamp(made, at, offset, epoch)
        offset += len(chunk)
    at = len(made)
    made += encode_batch(
        [(_control_key(_FOOTER), SHORT.pack(0) + b"\0")], time_ms, CONTROL, -1, -1, -1
    )
    _stamp(made, at, offset, epoch)
    return bytes(made)


def _chunks(values: Iterable[bytes]) -> Iterator[list[bytes]]:
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
