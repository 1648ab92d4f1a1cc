"""The state of a set as the sum of the records of its decision log, updated from the last position.

A position with the term of its last record identifies all records below it: copies that agree there
agree below. So a view is used for a log with that term at that position, and with nothing purged
after it; else it is rebuilt. A batch is applied as a whole.

What a view may be used for depends on its records. The types tell that apart, and who makes one of
them says why it may:

- `CountedView`: every record counts, since a majority has it. Further ones may count, too: it may
  be outdated.
- `CopyView`: all records of one copy. The last ones may be on no majority, and then a later
  decision may replace them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple, NewType, Protocol

from embedlog._native.system import Published
from embedlog.errors import CorruptRecordError, in_file
from embedlog.format.record_batch import Batches, decode_parts
from embedlog.replicas.rules.records import Record, decode
from embedlog.replicas.rules.state import State, apply_all
from embedlog.storage.checkpoints import EpochCache

CHUNK_BYTES: Final = 1 << 20
NO_TERM: Final = -1


class FetchedBatches(Protocol):
    """Whole checked batches of a copy, as a partition returns them."""

    @property
    def data(self) -> memoryview: ...
    @property
    def batches(self) -> Batches: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def path(self) -> Path: ...
    @property
    def position(self) -> int: ...


class ReadableCopy(Protocol):
    """A copy that can be read up to its log end."""

    def read(self, offset: int, max_bytes: int, upto: int | None = None) -> FetchedBatches:
        """Whole checked batches from the one that holds `offset`."""


class DecisionView(NamedTuple):
    """The state after all records below a position, and the term of the last one."""

    position: int
    term: int
    state: State

    def continues_in(self, now: Published, epochs: EpochCache, end: int) -> bool:
        """Whether the records below `end` of a log begin with those of this view."""
        if not max(now.log_start, min(now.purged_to, now.log_end)) <= self.position <= end:
            return False
        return self.term == term_at(epochs, self.position - 1, now.log_start)


CountedView = NewType("CountedView", DecisionView)
CopyView = NewType("CopyView", DecisionView)


def term_at(epochs: EpochCache, offset: int, log_start: int) -> int:
    """The term of the record at an offset; NO_TERM below the log start."""
    return epochs.epoch_for(offset) if offset >= log_start else NO_TERM


def advance_view(
    view: DecisionView, copy: ReadableCopy, now: Published, epochs: EpochCache, end: int
) -> DecisionView:
    """The view at `end` of a copy's log. Raises CorruptRecordError, UnsupportedFormatError,
    StorageError.
    """
    if not view.continues_in(now, epochs, end):
        view = DecisionView(now.log_start, NO_TERM, State(view.state.cluster_id))
    position = view.position
    state = view.state
    while position < end:
        fetched = copy.read(position, CHUNK_BYTES, end)
        if fetched.next_offset <= position:
            raise CorruptRecordError(
                "the decision log ends too early", path=fetched.path, expected=end, found=position
            )
        with in_file(fetched.path, fetched.position):
            state = apply_all(state, records_from(fetched, position))
        position = fetched.next_offset
    return DecisionView(position, term_at(epochs, position - 1, now.log_start), state)


def records_from(fetched: FetchedBatches, position: int) -> list[Record]:
    """The records from an offset on. Raises CorruptRecordError, UnsupportedFormatError."""
    return [record for _, record in numbered_records_from(fetched, position)]


def numbered_records_from(fetched: FetchedBatches, position: int) -> Iterator[tuple[int, Record]]:
    """As `records_from`, each with its offset."""
    for columns in decode_parts(fetched.data, fetched.batches, columns={"key", "value", "offset"}):
        keys = columns.keys
        values = columns.values
        offsets = columns.offsets
        if keys is None or values is None or offsets is None:
            raise CorruptRecordError("a batch of the decision log has no records")
        for row in range(bisect_left(offsets.tolist(), position), columns.count):
            yield int(offsets[row]), decode(keys[row] or b"", values[row])
