"""Tails a partition: a short path from a publication to records, for a reader at the end.

- One call reads the control page and the bytes after the position, and verifies them; a second call
  makes the records.
- Only the usual case is served: the active segment, one epoch, batches that are not compressed, few
  unread bytes. For committed readers there is no aborted and no open transaction before the end. In
  all other cases the answer is None, and the reader fetches instead, which finds out why.
- A tail begins at the end of the log, or at the start of an active segment that fits into its
  buffer. There the digest is 0.
- The state belongs to the reader: position and expected digest of the next batch.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from embedlog._native import _rows, system
from embedlog.errors import StorageError
from embedlog.storage import file_names

if TYPE_CHECKING:
    from embedlog._native._rows import Record
    from embedlog._native.system import Published
    from embedlog.partition.state import PartitionState

BUFFER_BYTES: Final = 1 << 16


class Tail:
    """The position of a reader at the end of a partition. Threads: one at a time."""

    def __init__(
        self,
        state: PartitionState,
        published: Published,
        offset: int,
        position: int,
        digest: int,
        committed: bool,
    ) -> None:
        self._state = state
        self._committed = committed
        self._file = (str(state.path), published.segment_base, file_names.LOG)
        self._tailing = system.Tailing(
            state.page,
            published,
            position=position,
            offset=offset,
            digest=digest,
            buffer=bytearray(BUFFER_BYTES),
            committed=committed,
        )
        self._partition_name = (state.topic, state.number)
        self._traffic = state.traffic
        self._handles = state.context.handles
        self._pid = os.getpid()
        self._handle = self._handles.acquire_kept(*self._file)
        if self._handle is not None:
            self._tailing.use(self._handle.fd)
        self.offset = offset
        self.end = published.high_watermark
        self.epoch = published.epoch
        self.size_bytes = 0  # of what the last call read

    def __del__(self) -> None:
        handle = getattr(self, "_handle", None)  # none if the constructor raised
        # not in a forked child, where the locks may be held for ever
        if handle is not None and self._pid == os.getpid():
            self._handles.release_kept(handle)

    def records(self) -> list[Record] | None:
        """The records published since the last call. `offset` is then after them, and after
        markers.

        None: fetch from the unchanged `offset`, and drop this tail.
        """
        if self._handle is None:
            code, size_bytes, end = self._read_acquired()
        elif self._handle.is_forgotten:  # the partition was closed, or its files were replaced
            return None
        else:
            code, size_bytes, end = self._tailing.read()
        if code == system.TAIL_NOTHING:
            self.end = end
            return []
        if code != system.TAIL_DATA:
            return None
        topic, number = self._partition_name
        records = _rows.records_from_run(
            topic, number, self._tailing.buffer, size_bytes, self.offset, self._committed
        )
        if records is not None:
            self.offset = self._tailing.offset
            self.end = end
            self.size_bytes = size_bytes
            self._traffic.add_read(size_bytes)
        return records

    def _read_acquired(self) -> tuple[int, int, int]:
        """Read with a shared descriptor: many partitions are tailed."""
        state = self._state
        if state.closed or state.page_file is None:
            return system.TAIL_OTHERWISE, 0, 0
        try:
            with self._handles.acquire(*self._file) as fd:
                self._tailing.use(fd)
                return self._tailing.read()
        except StorageError:
            return system.TAIL_OTHERWISE, 0, 0
