"""Splits a scan into pieces of about equal size, for parallel workers.

The pieces of a partition are contiguous and cover the whole scan (`partition.split_points`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from embedlog.partition.interfaces import ReadableLog


class Split(NamedTuple):
    """One piece: offsets `start_offset` up to `end_offset` (exclusive) of a partition, about
    `size_bytes` in the log.
    """

    partition: int
    start_offset: int
    end_offset: int
    size_bytes: int


def splits(partition: ReadableLog, start: int, end: int, max_bytes: int) -> list[Split]:
    """The pieces of one open partition between two offsets; none if the range is empty.

    Raises UnknownTopicOrPartitionError.
    """
    pieces = []
    for end_offset, size_bytes in partition.split_points(start, end, max_bytes):
        pieces.append(Split(partition.number, start, end_offset, size_bytes))
        start = end_offset
    return pieces
