"""Which transactions were aborted: what a read_committed reader leaves out (format.md 2.4).

L1  an entry lies in the segment that holds its marker, so the search goes on into later segments until an entry says enough
L2  the index of a segment is read again when its file has grown or is another one
L3  an index that does not hold is an error, never an empty answer: without it aborted records would be returned
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from embedlog import files, layout, transaction_index
from embedlog.transaction_index import Entries

if TYPE_CHECKING:
    from pathlib import Path

    from embedlog.partition import Partition


class Aborted:
    """The transaction indexes of one partition. Threads: any; the cache is only ever replaced whole."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._read: dict[int, tuple[tuple[int, int], Entries]] = {}

    def forget(self) -> None:
        self._read = {}

    def between(self, start: int, end: int) -> list[tuple[int, int]]:
        """(producer id, first offset) of the aborted transactions that touch [start, end). Raises CorruptRecordError."""
        partition = self._partition
        now = partition.published()
        info = partition.segments.at(start, now)
        found: list[tuple[int, int]] = []
        while info is not None:
            entries = self._entries(info.base)
            if len(entries):
                hits, enough = transaction_index.overlapping(entries, start, end)
                found += [(each.producer_id, each.first_offset) for each in hits]
                if enough:
                    break
            following = partition.segments.after(info.base, now)
            if following is None:
                break
            info = following
        return found

    def _entries(self, base: int) -> Entries:
        static = self._partition.static
        if static is not None and base in static.history.indexes:
            return transaction_index.decode(static.history.indexes[base], base)
        path: Path = layout.segment_path(self._partition.path, base, layout.TRANSACTION_INDEX)
        facts = files.facts_of(path)
        if facts is None:
            return transaction_index.decode(b"", base)
        key = (facts.inode, facts.size)
        known = self._read.get(base)
        if known is None or known[0] != key:
            known = self._read[base] = (key, transaction_index.decode(files.read_bytes(path) or b"", base, path))
        return known[1]
