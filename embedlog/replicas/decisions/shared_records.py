"""This module compares the records of two copies of the decision log.

SHAREDRECORDS-1  compaction removes records of one copy that another one has. Only offsets at which
    both have a record are compared. The starts of terms show less: a copy of a compacted log has
    other ones
SHAREDRECORDS-2  a term has one writer, and each batch has a time. So copies with the same record at
    an offset have the same records below it: the same last batch shows that all are equal, by two
    reads
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from embedlog.errors import EmbedlogError
from embedlog.format.record_batch import Batches, decode_parts
from embedlog.replicas.decisions.decision_view import CHUNK_BYTES, Fetched, Readable


class Records(Protocol):
    """The records of a copy, up to an end that does not change meanwhile."""

    @property
    def node(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def log_start(self) -> int: ...
    def fetch(self, offset: int, end: int) -> Fetched: ...


@dataclass(frozen=True, slots=True)
class ShownRecords:
    """The records that a copy shows to a reader, which holds no lock."""

    node: int
    log: Readable
    log_start: int
    end: int

    def fetch(self, offset: int, end: int) -> Fetched:
        """Whole batches from the one that holds `offset`."""
        return self.log.read(offset, CHUNK_BYTES, end)


class Unreadable(Exception):
    """A copy cannot be read for a comparison."""

    def __init__(self, node: int, problem: EmbedlogError) -> None:
        super().__init__(node, problem)
        self.node = node
        self.problem = problem


def agreed_end(one: Records, other: Records) -> int:
    """The end of the records that two copies share, at the begin of a batch of the first one.
    Raises Unreadable.

    Records are compared, and not the starts of the terms: a copy of a compacted log has other
    starts (SHAREDRECORDS-1).
    """
    end = min(one.end, other.end)
    start = max(one.log_start, other.log_start)
    if end <= start or _same(read(one, end - 1, end).batches, read(other, end - 1, end).batches):
        return end
    theirs = {
        offset: record for part in _reads(other, start, end) for offset, record in _records(part)
    }
    agreed = start
    for part in _reads(one, start, end):  # compaction may have removed records of either copy
        own = dict(_records(part))
        for row in part.batches:
            after = int(row["base_offset"] + row["last_offset_delta"]) + 1
            shared = [
                offset
                for offset in range(int(row["base_offset"]), after)
                if offset in own and offset in theirs
            ]
            if any(own[offset] != theirs[offset] for offset in shared):
                return agreed
            agreed = after if shared else agreed
    return end


def _same(one: Batches, other: Batches) -> bool:
    fields = ("base_offset", "last_offset_delta", "leader_epoch", "crc")
    return (
        len(one) > 0 and len(other) > 0 and all(one[0][name] == other[0][name] for name in fields)
    )


def read(copy: Records, offset: int, end: int) -> Fetched:
    try:
        return copy.fetch(offset, end)
    except EmbedlogError as problem:
        raise Unreadable(copy.node, problem) from problem


def _reads(copy: Records, start: int, end: int) -> list[Fetched]:
    found: list[Fetched] = []
    while start < end:
        found.append(read(copy, start, end))
        if found[-1].next_offset <= start:
            break
        start = found[-1].next_offset
    return found


def _records(fetched: Fetched) -> list[tuple[int, object]]:
    """Offset, and term and content of each record, as compaction keeps them."""
    found: list[tuple[int, object]] = []
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
            found += [
                (at, (terms[row], times[row], keys[row], values[row]))
                for row, at in enumerate(part.offsets.tolist())
            ]
    return found
