"""The aborted transactions of a partition, whose records read_committed readers omit (format.md
2.4).

ABORTEDINDEX-1  an entry is in the segment of its marker, so the search continues in later segments
    until an entry ends it
ABORTEDINDEX-2  the index of a segment is read again when its file has grown or was replaced
ABORTEDINDEX-3  control page and manifest count the entries of each index. An index that has fewer
                entries, or cannot be read, is made again from the log before a read continues.
                Without it aborted records would be returned
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

    def between(self, start: int, end: int, now: Published) -> list[tuple[int, int]]:
        """(producer id, first offset) of the aborted transactions that touch [start, end). Raises
        CorruptRecordError.

        Batches read before a swap must not be judged by an index after it, so the caller reads the
        generation afterwards.
        """
        info = self._segments.at(start, now)
        found: list[tuple[int, int]] = []
        while info is not None:
            entries = self.entries(info, now)
            if len(entries):
                hits, enough = aborted_transactions.overlapping(entries, start, end)
                found += [(each.producer_id, each.first_offset) for each in hits]
                if enough:
                    break
            following = self._segments.after(info.base, now)
            if following is None:
                break
            info = following
        return found

    def entries(self, info: SegmentInfo, now: Published) -> Entries:
        """The whole index of one segment, made again from the log if its file is incomplete."""
        static = self._state.static
        base = info.base
        if static is not None and base in static.history.indexes:
            return aborted_transactions.decode(
                static.history.indexes[base],
                base,
                file_names.segment_path(self._state.path, base, file_names.TRANSACTION_INDEX),
            )
        path: Path = file_names.segment_path(self._state.path, base, file_names.TRANSACTION_INDEX)
        facts = files.facts_of(path)
        key = (
            *((facts.inode, facts.size) if facts is not None else (0, 0)),
            info.transaction_entries,
            info.transaction_digest,
        )
        known = self._read.get(base)
        if known is None or known[0] != key:
            known = self._read[base] = (key, self._checked(info, now, path))
        return known[1]

    def _checked(self, info: SegmentInfo, now: Published, path: Path) -> Entries:
        """The entries of the file, or those of the log if the file has too few."""
        problem: EmbedlogError | None = None
        try:
            raw = files.read_bytes(path) or b""
            if info.base == now.segment_base:
                # later entries are not published yet
                raw = raw[: info.transaction_entries * aborted_transactions.ENTRY_SIZE]
            found = aborted_transactions.decode(raw, info.base, path)
            if len(found) >= info.transaction_entries and info.transaction_digest in (
                0,
                aborted_transactions.digest(raw),
            ):
                return found
        except (CorruptRecordError, UnsupportedFormatError) as damaged:
            problem = damaged
        made = self._again(info, now, path)
        expected = f"it should have {info.transaction_entries} entries, as they were written"
        logger.warning("made %s again: %s", path, problem or expected)
        return aborted_transactions.decode(made, info.base, path)

    def _again(self, info: SegmentInfo, now: Published, path: Path) -> bytes:
        state = self._state
        if state.published().generation != now.generation:
            raise CorruptRecordError("segments were replaced meanwhile", path=path)
        segments = [each for each in self._segments.all(now) if each.base <= info.base]
        past = producer_history.load(
            state.path,
            segments,
            end=info.next_offset,
            clean=False,
            read_again=[info.base],
            replay=True,
        )
        made = past.indexes[info.base]
        if not state.context.read_only:
            self._store(path, made, now.generation)  # a broker needs it too
        return made
