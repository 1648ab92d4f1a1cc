"""The manifest: one record per sealed segment, so that opening reads one file, not all of them.

M1  a cache: whatever it says can be found again in the segments, but for the digest, which is made while appending and
    would bless damage if it were made later
M2  appended to under the partition's append lock, one record with one write; a torn or damaged record ends it
M3  the last record of a base offset counts; records of deleted segments are left until the file is rewritten
M4  a CLOSED record describes the active segment as an orderly close left it; it is valid while the file still has that size
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from embedlog import files, layout
from embedlog._native import codec
from embedlog.errors import UnsupportedFormatError
from embedlog.index import EMPTY_MS

MAGIC: Final = b"ELOGMNFT"
VERSION: Final = 3
_HEAD = struct.Struct(">8sII16s")  # magic, version, CRC-32C of the rest: a flipped bit is no newer version; topic id
HEAD_BYTES: Final = _HEAD.size
# kind, flags, base, size, next offset, largest timestamp, its offset, digest, entries of the three indexes, created, epoch,
# digest of the transaction index, smallest timestamp, lateness in ms
_ENTRY = struct.Struct(">HHqqqqqQIIIqiQqq")
_ENTRY_2 = struct.Struct(">HHqqqqqQIIIqiQ")  # of version 2, which is read: no times but the largest
_CHECK = struct.Struct(">I")
ENTRY_BYTES: Final = _ENTRY.size + _CHECK.size

SEALED: Final = 1
CLOSED: Final = 2
GAPLESS: Final = 1  # every offset is there: a jump is damage
DIGESTED: Final = 2  # the digest was carried forward while appending


class SegmentInfo(NamedTuple):
    """What is known of a segment without reading it."""

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
    transaction_digest: int = 0  # chain over the entries; 0: not known, or there are none
    min_timestamp: int = -1  # no record is older; -1: not known
    lateness_ms: int = 0  # by how much at most a record is older than one in a batch before its own; where min_timestamp is known

    @property
    def gapless(self) -> bool:
        return bool(self.flags & GAPLESS)

    @property
    def digested(self) -> bool:
        return bool(self.flags & DIGESTED)


def joined_times(infos: Iterable[SegmentInfo]) -> tuple[int, int]:
    """Smallest timestamp and lateness of some segments, one behind the other; true as well of what is left of them."""
    newest, oldest, lateness_ms = -1, EMPTY_MS, 0
    for info in infos:
        lateness_ms = max(lateness_ms, info.lateness_ms, newest - info.min_timestamp)
        newest, oldest = max(newest, info.max_timestamp), min(oldest, info.min_timestamp)
    return oldest, lateness_ms


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
    kind, flags, *rest = entry.unpack(body)
    times = () if entry is _ENTRY else (-1, 0)
    return SegmentInfo._make((*rest[:11], flags, kind, *rest[11:], *times))


def _check_of_head(version: int, topic_id: bytes) -> int:
    return codec.crc32c(_HEAD.pack(MAGIC, version, 0, topic_id))


class Manifest:
    """The manifest file of one partition. Threads: any may refresh, while the holder of the append lock appends."""

    def __init__(self, directory: Path, topic_id: bytes, mode: int = 0o666) -> None:
        self.path = directory / layout.MANIFEST
        self._topic_id, self._mode = topic_id, mode
        self._mutex = threading.RLock()
        self._read = 0  # bytes of the file that `segments` reflects
        self._inode = 0
        self._entry = _ENTRY  # of the version that the file has
        self.segments: dict[int, SegmentInfo] = {}
        self.closed: SegmentInfo | None = None

    def refresh(self) -> None:
        """Take in what others appended; start over if the file was rewritten or is of another topic."""
        with self._mutex:
            self._refresh()

    def _refresh(self) -> None:
        found = files.facts_of(self.path)
        if found is None:
            self._forget(0)
            return
        if found.inode != self._inode or found.size < self._read:
            self._forget(found.inode)
        if found.size - self._read < self._entry.size + _CHECK.size and self._read:
            return
        with files.opened(self.path) as fd:
            size = files.check_size(found.size, files.WHOLE_BYTES_MAX, self.path)
            raw = files.pread(fd, size - self._read, self._read, self.path)
        self._take(raw)

    def _forget(self, inode: int) -> None:
        self._read, self._inode = 0, inode
        self.segments.clear()
        self.closed = None

    def _take(self, raw: bytes) -> None:
        at = 0
        if self._read == 0:
            if not self._head_is_ours(raw):
                return
            at = HEAD_BYTES
        size = self._entry.size + _CHECK.size
        while at + size <= len(raw):
            info = _unpack(raw[at : at + size], self._entry)
            if info is None:
                break
            self._apply(info)
            at += size
        self._read += at

    def _head_is_ours(self, raw: bytes) -> bool:
        if len(raw) < HEAD_BYTES:
            return False
        magic, version, check, topic_id = _HEAD.unpack_from(raw)
        if magic != MAGIC or check != _check_of_head(version, topic_id):
            return False
        if version > VERSION:
            raise UnsupportedFormatError(
                "the manifest was written by a newer embedlog", path=self.path, expected=f"version {VERSION}", found=version
            )
        self._entry = _ENTRY_2 if version == 2 else _ENTRY
        return bool(topic_id == self._topic_id and version >= 2)  # an older one is made again: it is a cache

    def _apply(self, info: SegmentInfo) -> None:
        if info.kind == SEALED:
            self.segments[info.base] = info
        self.closed = info if info.kind == CLOSED else None

    def times_known(self, base: int, size: int, digest: int) -> SegmentInfo | None:
        """A record of exactly these batches: their headers seldom say how old the records are."""
        known = (each for each in (self.segments.get(base), self.closed) if each is not None and each.digested)
        return next((each for each in known if (each.base, each.size, each.digest) == (base, size, digest)), None)

    def append(self, info: SegmentInfo) -> None:
        """Add a record behind the last good one. REQUIRES the append lock."""
        with self._mutex:
            self._refresh()
            if self._read == 0:
                self.rewrite([info])
            elif self._entry is not _ENTRY:
                self.rewrite([*(each for each in self.segments.values() if each.base != info.base), info])
            else:
                self._append(info)

    def _append(self, info: SegmentInfo) -> None:
        with files.opened(self.path, files.WRITE) as fd:
            files.write_all(fd, _pack(info), self._read, self.path)
        self._read += ENTRY_BYTES
        self._apply(info)

    def rewrite(self, infos: Iterable[SegmentInfo]) -> None:
        """Replace the whole file. REQUIRES the append lock."""
        kept = sorted(infos, key=lambda info: info.base)
        raw = _HEAD.pack(MAGIC, VERSION, _check_of_head(VERSION, self._topic_id), self._topic_id) + b"".join(map(_pack, kept))
        with self._mutex:
            files.write_atomically(self.path, raw, self._mode)
            self._forget(0)
            self._refresh()

    def sync(self) -> None:
        if files.exists(self.path):
            with files.opened(self.path) as fd:
                files.datasync(fd, self.path)
