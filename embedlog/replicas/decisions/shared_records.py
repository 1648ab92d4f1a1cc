"""This module compares the records of two copies of the decision log.

Compaction removes records of one copy that another one has. Only offsets at which both have a
record are compared. The starts of terms show less: a copy of a compacted log has other ones.

A term has one writer, and each batch has a time. So copies with the same record at an offset have
the same records below it: the same last batch shows that all are equal, by two reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from embedlog.errors import EmbedlogError
from embedlog.format.record_batch import Batches, decode_parts
from embedlog.replicas.decisions.decision_view import CHUNK_BYTES, FetchedBatches, ReadableCopy


class CopyRecords(Protocol):
    """The records of a copy, up to an end that does not change meanwhile."""

    @property
    def node(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def log_start(self) -> int: ...
    def fetch(self, offset: int, end: int) -> FetchedBatches: ...


@dataclass(frozen=True, slots=True)
class ShownRecords:
    """The records that a copy shows to a reader, which holds no lock."""

    node: int
    log: ReadableCopy
    log_start: int
    end: int

    def fetch(self, offset: int, end: int) -> FetchedBatches:
        """Whole batches from the one that holds `offset`."""
        return self.log.read(offset, CHUNK_BYTES, end)


class Unreadable(Exception):
    """A copy cannot be read for a comparison."""

    def __init__(self, node: int, problem: EmbedlogError) -> None:
        super().__init__(node, problem)
        self.node = node
        self.problem = problem


def find_agreed_end(one: CopyRecords, other: CopyRecords) -> int:
    """The end of the records that two copies share, at the begin of a batch of the first one.
    Raises Unreadable.

    Records are compared, and not the starts of the terms: a copy of a compacted log has other
    starts.
    """
    end = min(one.end, other.end)
    start = max(one.log_start, other.log_start)
    if end <= start:
        return end
    last_batches = read(one, end - 1, end).batches
    if _is_same_batch(last_batches, read(other, end - 1, end).batches):
        return end
    theirs: dict[int, object] = {}
    for chunk in _read_all(other, start, end):
        theirs.update(_records_of(chunk))
    agreed_end = start
    for chunk in _read_all(one, start, end):  # compaction may have removed records of either copy
        own = dict(_records_of(chunk))
        for row in chunk.batches:
            batch_end = int(row["base_offset"] + row["last_offset_delta"]) + 1
            shared_offsets = [
                offset
                for offset in range(int(row["base_offset"]), batch_end)
                if offset in own and offset in theirs
            ]
            if any(own[offset] != theirs[offset] for offset in shared_offsets):
                return agreed_end
            if shared_offsets:
                agreed_end = batch_end
    return end


def _is_same_batch(one: Batches, other: Batches) -> bool:
    """Whether the first batches of two reads are one batch."""
    fields = ("base_offset", "last_offset_delta", "leader_epoch", "crc")
    return (
        len(one) > 0 and len(other) > 0 and all(one[0][name] == other[0][name] for name in fields)
    )


def read(copy: CopyRecords, offset: int, end: int) -> FetchedBatches:
    """Whole batches from the one that holds `offset`. Raises Unreadable."""
    try:
        return copy.fetch(offset, end)
    except EmbedlogError as problem:
        raise Unreadable(copy.node, problem) from problem


def _read_all(copy: CopyRecords, start: int, end: int) -> list[FetchedBatches]:
    chunks: list[FetchedBatches] = []
    while start < end:
        chunk = read(copy, start, end)
        chunks.append(chunk)
        if chunk.next_offset <= start:
            break
        start = chunk.next_offset
    return chunks


def _records_of(fetched: FetchedBatches) -> list[tuple[int, object]]:
    """Offset, and term and content of each record, as compaction keeps them."""
    records: list[tuple[int, object]] = []
    ends = fetched.batches["base_offset"] + fetched.batches["last_offset_delta"]
    for part in decode_parts(
        fetched.data, fetched.batches, columns={"key", "value", "offset", "timestamp"}
    ):
        if (
            part.offsets is not None
            and part.timestamps is not None
            and part.keys is not None
            and part.values is not None
        ):
            times = part.timestamps.tolist()
            keys = part.keys
            values = part.values
            terms = fetched.batches["leader_epoch"][np.searchsorted(ends, part.offsets)].tolist()
            records += [
                (offset, (terms[row], times[row], keys[row], values[row]))
                for row, offset in enumerate(part.offsets.tolist())
            ]
    return records
