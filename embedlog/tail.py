"""Tailing a partition: the short way from a publication to records, for a reader that stands at the end.

H1  one call reads the page, the bytes behind the position, and verifies them; a second one makes the records
H2  only the usual case is served: the active segment, one epoch, plain batches, no open transaction, a small backlog;
    everything else answers None, and the reader goes the ordinary way, which finds out and explains
H3  the state is the reader's own: where the next batch begins, and what it must be
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from embedlog import layout
from embedlog._native import _rows, system
from embedlog.errors import StorageError

if TYPE_CHECKING:
    from embedlog._native._rows import Record
    from embedlog._native.system import Published
    from embedlog.partition import Partition

ROOM_BYTES: Final = 1 << 16


class Tail:
    """Where a reader stands at the end of a partition. Threads: one at a time."""

    def __init__(self, partition: Partition, now: Published, position: int, digest: int) -> None:
        self._partition = partition
        self._file = (str(partition.path), now.segment_base, layout.LOG)
        self._tailing = system.Tailing(partition.page, now, position, now.log_end, digest, bytearray(ROOM_BYTES))
        self.offset = now.log_end
        self.end = now.high_watermark
        self.epoch = now.epoch
        self.size_bytes = 0  # of what the last call read

    def records(self) -> list[Record] | None:
        """What was published since, perhaps nothing; None: go the ordinary way from `offset`, and drop this."""
        partition = self._partition
        if partition.closed or partition.page_file is None:
            return None
        try:
            with partition.home.handles.borrow(*self._file) as fd:
                code, self.size_bytes, end = self._tailing.read(fd)
        except StorageError:
            return None
        if code == system.TAIL_NOTHING:
            self.end = end
            return []
        if code != system.TAIL_DATA:
            return None
        found = _rows.records_from_run(partition.topic, partition.number, self._tailing.room, self.size_bytes, self.offset)
        if found is not None:
            self.offset, self.end = self._tailing.offset, end
        return found
