"""The manifest: one record per sealed segment, so that an open reads one file instead of all, and
the log start offset.

- Everything in it can be recomputed from the segments, except the digest. A digest of a damaged
  segment hides the damage, so a known digest is compared before it is made again.
- It is appended to under the partition's append lock, one record with one write; a torn or damaged
  record ends it.
- The last record of a base offset counts; records of deleted segments remain until the file is
  rewritten.
- A CLOSED record describes the active segment at a clean close, on stable storage; if the file has
  grown since, it describes the first bytes.
- A START record is on stable storage before the log start moves: the checkpoint that a broker reads
  has no checksum. `append` and `begin` do not sync: whoever moves the log start calls `sync` first. A
  manifest with a START record never describes bytes that were truncated or replaced since.

One kind of record has other facts in the fields of `SegmentInfo`:

| field | a sealed segment, and CLOSED | START (`Start.record`) |
| --- | --- | --- |
| `base` | its base offset | the log start |
| `next_offset` | the offset after it | `gaps_base` |
| `digest` | the chain at its end | `visit` |
| `transaction_digest` | the chain of its transaction index | of the first record of a file: a random number |
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from embedlog._native import codec
from embedlog.errors import UnsupportedFormatError
from embedlog.storage import file_names, files

MAGIC: Final = b"ELOGMNFT"
VERSION: Final = 3
# magic, version, CRC-32C (a flipped bit must not become a newer version), topic id
_HEAD = struct.Struct(">8sII16s")
HEAD_BYTES: Final = _HEAD.size
# kind, flags, base, size, next offset, largest timestamp, its offset, digest, entries of the three
# indexes, created, epoch, digest of the transaction index, smallest timestamp, lateness in ms
_ENTRY = struct.Struct(">HHqqqqqQIIIqiQqq")
# of version 2, which can be read: without smallest timestamp and lateness
_ENTRY_2 = struct.Struct(">HHqqqqqQIIIqiQ")
_CHECK = struct.Struct(">I")
ENTRY_BYTES: Final = _ENTRY.size + _CHECK.size

SEALED: Final = 1
CLOSED: Final = 2
START: Final = 3
GAPLESS: Final = 1  # every offset exists: a gap is damage
DIGESTED: Final = 2  # the digest is known from the first byte on

EMPTY_MS: Final = 2**63 - 1  # the smallest timestamp of no record

SPARE_RECORDS: Final = 1024  # obsolete records before the file is rewritten


class SegmentInfo(NamedTuple):
    """Facts of a segment that are known without reading it."""

    base: int
    size: int
    next_offset: int
    max_timestamp: int = -1
    max_timestamp_offset: int = 0
    digest: int = 0
    index_entries: int = 0
    time_entries: int = 0
    transaction_entries: int = 0
    created_ms: int = 0
    epoch: int = 0
    flags: int = 0
    kind: int = SEALED
    transaction_digest: int = 0  # chain over the entries; 0: unknown, or no entries
    min_timestamp: int = -1  # lower bound of all timestamps; -1: unknown
    # a record is at most this much older than records of earlier batches; valid if min_timestamp is
    # known
    lateness_ms: int = 0

    @property
    def gapless(self) -> bool:
        return bool(self.flags & GAPLESS)

    @property
    def digested(self) -> bool:
        return bool(self.flags & DIGESTED)


def join_times(infos: Iterable[SegmentInfo]) -> tuple[int, int]:
    """Smallest timestamp and lateness of adjacent segments; the result also holds for any remaining
    part of them.
    """
    newest = -1
    oldest = EMPTY_MS
    lateness_ms = 0
    for info in infos:
        lateness_ms = max(lateness_ms, info.lateness_ms, newest - max(info.min_timestamp, 0))
        newest = max(newest, info.max_timestamp)
        oldest = min(oldest, info.min_timestamp)  # -1, unknown, stays the smallest
    return oldest, lateness_ms


class Start(NamedTuple):
    """The log start offset, and the unsealed segment that may lack offsets because a broker wrote
    it (-1: none).

    `visit` is the last visit of a broker to the directory that the manifest includes: after a later
    visit it proves nothing.
    """

    offset: int
    gaps_base: int = -1
    visit: int = 0

    def record(self) -> SegmentInfo:
        return SegmentInfo(self.offset, 0, self.gaps_base, digest=self.visit, kind=START)


def _first_record(start: Start) -> SegmentInfo:
    """The start record with a random number: a reader of the previous file detects the
    replacement.
    """
    return start.record()._replace(transaction_digest=int.from_bytes(os.urandom(8)))


def _pack(info: SegmentInfo) -> bytes:
    body = _ENTRY.pack(
        info.kind,
        info.flags,
        info.base,
        info.size,
        info.next_offset,
        info.max_timestamp,
        info.max_timestamp_offset,
        info.digest,
        info.index_entries,
        info.time_entries,
        info.transaction_entries,
        info.created_ms,
        info.epoch,
        info.transaction_digest,
        info.min_timestamp,
        info.lateness_ms,
    )
    return body + _CHECK.pack(codec.crc32c(body))


def _unpack(raw: bytes, entry: struct.Struct) -> SegmentInfo | None:
    body = raw[: entry.size]
    if _CHECK.unpack_from(raw, entry.size)[0] != codec.crc32c(body):
        return None
    kind, flags, *fields = entry.unpack(body)
    if entry is _ENTRY_2:
        fields += (-1, 0)  # the smallest timestamp is unknown, and so is the lateness
    # a file has kind and flags first, `SegmentInfo` after its eleven offsets, sizes and times
    return SegmentInfo._make((*fields[:11], flags, kind, *fields[11:]))


def _check_of_head(version: int, topic_id_bytes: bytes) -> int:
    return codec.crc32c(_HEAD.pack(MAGIC, version, 0, topic_id_bytes))


class Manifest:
    """The manifest file of one partition. Threads: any may refresh, while the holder of the append
    lock appends.
    """

    def __init__(self, directory: Path, topic_id_bytes: bytes, mode: int = 0o666) -> None:
        self.path = directory / file_names.MANIFEST
        self._topic_id_bytes = topic_id_bytes
        self._mode = mode
        self._mutex = threading.RLock()
        self._read = 0  # bytes of the file that `segments` reflects
        self._inode = 0
        # first bytes of the file: a file system may reuse the inode of a removed file
        self._first = b""
        self._entry = _ENTRY  # record layout of the file's version
        self._size = 0  # of the file; more than `_read` if the rest is torn or damaged
        self.segments: dict[int, SegmentInfo] = {}
        self.closed: SegmentInfo | None = None
        self.start: Start | None = None

    def refresh(self) -> None:
        """Read records that others appended; start again if the file was rewritten or belongs to
        another topic.
        """
        with self._mutex:
            self._refresh()

    def _refresh(self) -> None:
        if not files.exists(self.path):
            self._forget(0)
            return
        with files.opened(self.path) as fd:
            facts = files.facts(fd, self.path)
            is_same = (
                self._read > 0
                and facts.inode == self._inode
                and facts.size >= self._read
                and files.pread(fd, len(self._first), 0, self.path) == self._first
            )
            if not is_same:
                self._forget(facts.inode)
            self._size = facts.size
            if self._read and facts.size - self._read < self._entry.size + _CHECK.size:
                return
            size = files.check_size(facts.size, files.WHOLE_BYTES_MAX, self.path)
            raw = files.pread(fd, size - self._read, self._read, self.path)
        if not self._read:
            self._first = raw[: HEAD_BYTES + ENTRY_BYTES]
        self._take_records(raw)

    def _forget(self, inode: int) -> None:
        self._read = 0
        self._inode = inode
        self._size = 0
        self._entry = _ENTRY
        self.segments = {}
        self.closed = self.start = None

    def _take_records(self, raw: bytes) -> None:
        """Apply the bytes that follow those that were read, up to the first damaged record."""
        position = 0
        if self._read == 0:
            if not self._has_own_head(raw):
                return
            position = HEAD_BYTES
        size = self._entry.size + _CHECK.size
        infos = []
        while position + size <= len(raw):
            info = _unpack(raw[position : position + size], self._entry)
            if info is None:
                break
            infos.append(info)
            position += size
        self._apply(infos)
        self._read += position

    def _has_own_head(self, raw: bytes) -> bool:
        if len(raw) < HEAD_BYTES:
            return False
        magic, version, check, topic_id_bytes = _HEAD.unpack_from(raw)
        if magic != MAGIC or check != _check_of_head(version, topic_id_bytes):
            return False
        if version > VERSION:
            raise UnsupportedFormatError(
                "the manifest was written by a newer embedlog",
                path=self.path,
                expected=f"version {VERSION}",
                found=version,
            )
        self._entry = _ENTRY_2 if version == 2 else _ENTRY
        # an older version is rebuilt: it is a cache
        return bool(topic_id_bytes == self._topic_id_bytes and version >= 2)

    def _apply(self, infos: Iterable[SegmentInfo]) -> None:
        """Add records in a new dictionary: another thread may iterate over the current one."""
        segments = dict(self.segments)
        for info in infos:
            if info.kind == START:
                self.start = Start(info.base, info.next_offset, info.digest)
                continue
            if info.kind == SEALED:
                segments[info.base] = info
            self.closed = info if info.kind == CLOSED else None
        self.segments = segments

    def find_times(self, base: int, size: int, digest: int) -> SegmentInfo | None:
        """A record of exactly these batches, for its timestamps: batch headers seldom contain the
        smallest one.
        """
        for info in (self.segments.get(base), self.closed):
            if info is None or not info.digested:
                continue
            if (info.base, info.size, info.digest) == (base, size, digest):
                return info
        return None

    @property
    def is_whole(self) -> bool:
        """Whether the last refresh understood all of the file."""
        return self._size == self._read

    @property
    def understood_bytes(self) -> int:
        """The bytes of the file that the last refresh understood."""
        return self._read

    def begin(self, start: Start) -> None:
        """Create the manifest of a new log with its first record; the first sync of the log also
        syncs it.

        REQUIRES the append lock.
        """
        with files.opened(self.path, files.EXCLUSIVE, self._mode) as fd:
            files.write_all(fd, self._encode_head() + _pack(_first_record(start)), 0, self.path)
        self.refresh()

    def append(self, start: Start, info: SegmentInfo | None = None) -> None:
        """Append new records after the last good one, without a sync. REQUIRES the append lock."""
        with self._mutex:
            self._refresh()
            records = []
            if start != self.start:
                records.append(start.record())
            if info is not None:
                records.append(info)
            if not records:
                return
            is_full = self._read > ENTRY_BYTES * (SPARE_RECORDS + 2 * len(self.segments))
            is_of_other_version = self._entry is not _ENTRY
            if self._read == 0 or not self.is_whole or is_full or is_of_other_version:
                self.rewrite(self._infos_with(info, start.offset), start)
            else:
                self._append(records)

    def _append(self, infos: list[SegmentInfo]) -> None:
        raw = b"".join(map(_pack, infos))
        with files.opened(self.path, files.WRITE) as fd:
            files.write_all(fd, raw, self._read, self.path)
        self._read += len(raw)
        self._size = self._read
        self._apply(infos)

    def _infos_with(self, added: SegmentInfo | None, start: int) -> list[SegmentInfo]:
        """The known infos of existing segments, and the added one."""
        directory = self.path.parent
        infos = []
        for info in self.segments.values():
            path = file_names.segment_path(directory, info.base)
            if info.next_offset > start or files.exists(path):
                infos.append(info)
        last = self.closed if added is None else added
        if last is not None:
            infos.append(last)
        return infos

    def rewrite(self, infos: Iterable[SegmentInfo], start: Start | None) -> None:
        """Replace the whole file. REQUIRES the append lock."""
        records = sorted(infos, key=lambda info: (info.base, info.kind))
        if start is not None:
            records.insert(0, _first_record(start))
        data = self._encode_head() + b"".join(map(_pack, records))
        with self._mutex:
            files.write_atomically(self.path, data, self._mode)
            self._forget(0)
            self._refresh()

    def _encode_head(self) -> bytes:
        return _HEAD.pack(
            MAGIC, VERSION, _check_of_head(VERSION, self._topic_id_bytes), self._topic_id_bytes
        )

    def sync(self) -> None:
        """Put the manifest on stable storage."""
        if files.exists(self.path):
            with files.opened(self.path) as fd:
                files.datasync(fd, self.path)


def changed_by_others(manifest: Manifest, visit: int) -> bool:
    """Whether others may have changed a partition since its manifest was written. `visit`: the last
    one of the directory.

    Without a manifest they did if there are records, but no file that embedlog makes before or with
    its first record.
    """
    directory = manifest.path.parent
    if manifest.start is not None:
        return manifest.start.visit != visit
    if files.exists(manifest.path):
        return visit != 0
    for name in (file_names.DIRTY, file_names.DURABLE):
        if files.exists(directory / name):
            return False
    return holds_data(directory)


def holds_data(directory: Path) -> bool:
    """Whether a segment has bytes."""
    for base in file_names.bases(files.listing(directory)):
        log = files.facts_of(file_names.segment_path(directory, base))
        if log is not None and log.size:
            return True
    return False
