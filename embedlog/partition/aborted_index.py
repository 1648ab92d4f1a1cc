"""The aborted transactions of a partition, whose records read_committed readers omit (format.md
2.4).

- An entry is in the segment of its marker, so the search continues in later segments until an entry
  ends it.
- The index of a segment is read again when its file has grown or was replaced.
- Control page and manifest count the entries of each index. An index that has fewer entries, or
  cannot be read, is made again from the log before a read continues. Without it aborted records
  would be returned.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from embedlog.errors import CorruptRecordError, EmbedlogError, UnsupportedFormatError
from embedlog.format import aborted_transactions
from embedlog.format.aborted_transactions import Entries
from embedlog.partition.recovery import producer_history
from embedlog.storage import file_names, files

if TYPE_CHECKING:
    from pathlib import Path

    from embedlog._native.system import Published
    from embedlog.partition.segment_list import SegmentList
    from embedlog.partition.state import PartitionState
    from embedlog.storage.manifest import SegmentInfo

logger = logging.getLogger("embedlog")

# writes a file under the append lock, unless the generation has changed
Store = Callable[["Path", bytes, int], None]


class AbortedIndex:
    """The transaction indexes of one partition. Threads: any; the cache is only replaced as a
    whole.
    """

    def __init__(self, state: PartitionState, segments: SegmentList, store: Store) -> None:
        self._state = state
        self._segments = segments
        self._store = store
        self._read: dict[int, tuple[tuple[int, int, int, int], Entries]] = {}

    def forget(self) -> None:
        self._read = {}

    def between(self, start: int, end: int, published: Published) -> list[tuple[int, int]]:
        """(producer id, first offset) of the aborted transactions that touch [start, end). Raises
        CorruptRecordError.

        Batches read before a swap must not be judged by an index after it, so the caller reads the
        generation afterwards.
        """
        info = self._segments.at(start, published)
        transactions: list[tuple[int, int]] = []
        while info is not None:
            entries = self.entries(info, published)
            if len(entries):
                overlapping, enough = aborted_transactions.overlapping(entries, start, end)
                transactions += [
                    (transaction.producer_id, transaction.first_offset)
                    for transaction in overlapping
                ]
                if enough:
                    break
            following = self._segments.after(info.base, published)
            if following is None:
                break
            info = following
        return transactions

    def entries(self, info: SegmentInfo, published: Published) -> Entries:
        """The whole index of one segment, made again from the log if its file is incomplete."""
        loaded_files = self._state.loaded_files
        base = info.base
        path = file_names.segment_path(self._state.path, base, file_names.TRANSACTION_INDEX)
        if loaded_files is not None and base in loaded_files.history.indexes:
            return aborted_transactions.decode(loaded_files.history.indexes[base], base, path)
        facts = files.facts_of(path)
        inode = 0
        size = 0
        if facts is not None:
            inode = facts.inode
            size = facts.size
        key = (inode, size, info.transaction_entries, info.transaction_digest)
        cached_key, entries = self._read.get(base, (None, None))
        if entries is None or cached_key != key:
            entries = self._read_checked(info, published, path)
            self._read[base] = (key, entries)
        return entries

    def _read_checked(self, info: SegmentInfo, published: Published, path: Path) -> Entries:
        """The entries of the file, or those of the log if the file has too few."""
        problem: EmbedlogError | None = None
        try:
            raw = files.read_bytes(path) or b""
            if info.base == published.segment_base:
                # later entries are not published yet
                raw = raw[: info.transaction_entries * aborted_transactions.ENTRY_SIZE]
            entries = aborted_transactions.decode(raw, info.base, path)
            if len(entries) >= info.transaction_entries and info.transaction_digest in (
                0,
                aborted_transactions.digest(raw),
            ):
                return entries
        except (CorruptRecordError, UnsupportedFormatError) as damaged:
            problem = damaged
        remade = self._make_again(info, published, path)
        expected = f"it should have {info.transaction_entries} entries, as they were written"
        logger.warning("made %s again: %s", path, problem or expected)
        return aborted_transactions.decode(remade, info.base, path)

    def _make_again(self, info: SegmentInfo, published: Published, path: Path) -> bytes:
        state = self._state
        if state.published().generation != published.generation:
            raise CorruptRecordError("segments were replaced meanwhile", path=path)
        segments = [
            segment for segment in self._segments.all(published) if segment.base <= info.base
        ]
        past = producer_history.load(
            state.path,
            segments,
            end=info.next_offset,
            clean=False,
            read_again=[info.base],
            replay=True,
        )
        index = past.indexes[info.base]
        if not state.context.read_only:
            self._store(path, index, published.generation)  # a broker needs it too
        return index
