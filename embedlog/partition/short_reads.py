"""Reads one batch at an offset, with what must be compared with it, in one call.

- Only the usual case is served: an index entry with a known chain digest, and whole batches of
  magic 2 up to the next entry. All are as their appenders wrote them. In all other cases the answer
  is None.
- The caller ensures that the files belong to the segment, and compares epochs and generation, as
  after every read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from embedlog._native import short_read
from embedlog._native.lazy_numpy import np
from embedlog.errors import StorageError
from embedlog.format.record_columns import Batches, batch_dtype
from embedlog.storage import file_names
from embedlog.storage.descriptors import Handle, Handles

if TYPE_CHECKING:
    from embedlog.format.buffer_pool import BufferPool
    from embedlog.storage.manifest import SegmentInfo

READ_BYTES_MAX: Final = 1_100_000  # a larger read is left to the general reader
BUFFER_BYTES: Final = 64 << 10  # of the first read; later ones begin with what was needed
BATCHES_MAX: Final = 128  # of one index interval
POOLED_BYTES_MIN: Final = 128 << 10  # smaller buffers cost less from the allocator
FILES: Final = (file_names.LOG, file_names.INDEX, file_names.DIGESTS)


class ShortRead(NamedTuple):
    """The batches that were read. `batch` describes the one that holds the offset."""

    batch: short_read.Read
    rows: Batches
    data: memoryview


class ShortReads:
    """Short reads of one partition. Threads: any."""

    def __init__(self, handles: Handles, directory: str) -> None:
        self._handles = handles
        self._directory = directory
        self._opened: list[Handle] = []  # of the last read: opened again if they were closed
        self._buffer_bytes = BUFFER_BYTES

    def read(self, info: SegmentInfo, offset: int, pool: BufferPool | None) -> ShortRead | None:
        """The batch of a segment that holds `offset`; None if the general reader must read it."""
        handles = self._handles
        names = FILES if info.digested else FILES[:2]
        try:
            opened = handles.acquire_together(self._directory, info.base, names, self._opened)
        except StorageError:
            return None
        self._opened = opened
        try:
            fds = [handle.fd for handle in opened]
            digest_fd = fds[2] if info.digested else -1
            segment = short_read.Segment(
                info.base,
                info.size,
                info.index_entries,
                info.digest,
                fds[0],
                fds[1],
                digest_fd,
                info.gapless,
            )
            return self._read(segment, offset, pool)
        finally:
            handles.release_together(opened)

    def _read(
        self, segment: short_read.Segment, offset: int, pool: BufferPool | None
    ) -> ShortRead | None:
        rows = np.empty(BATCHES_MAX, batch_dtype())
        buffer = _lease(self._buffer_bytes, pool)
        batch = short_read.read(segment, offset, buffer, rows)
        if batch is not None and not batch.batch_count and batch.size <= READ_BYTES_MAX:
            self._buffer_bytes = batch.size + batch.size // 8
            buffer = _lease(self._buffer_bytes, pool)
            batch = short_read.read(segment, offset, buffer, rows)
        if batch is None or not batch.batch_count:
            return None
        return ShortRead(batch, rows[: batch.batch_count], buffer[: batch.size])


def _lease(size: int, pool: BufferPool | None) -> memoryview:
    if pool is not None and size >= POOLED_BYTES_MIN:
        return pool.lease(size).view
    return memoryview(bytearray(size))
