"""Finds the last visible record of a partition from its end, without a read of the log before it.

- The first read is that of the last offset; each following one covers twice as many offsets before
  it. So markers, aborted records and offsets that compaction removed cost at most two reads of
  their batches.
- A record that is appended meanwhile may be found or not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from embedlog.columns.batch import records_of
from embedlog.columns.chunks import read_chunk
from embedlog.errors import ConfigError, OffsetOutOfRangeError
from embedlog.format.visibility import READ_COMMITTED, READ_UNCOMMITTED, end_offset

if TYPE_CHECKING:
    from embedlog._native._rows import Record
    from embedlog.format.record_columns import Decoded
    from embedlog.partition.interfaces import ReadableLog

READ_BYTES = 1 << 20


def find_last_record(
    partition: ReadableLog, topic: str, number: int, isolation: str
) -> Record[bytes, bytes] | None:
    """The record, None if no visible record is left. Raises ConfigError, and the errors of
    `read_chunk`.
    """
    if isolation not in (READ_UNCOMMITTED, READ_COMMITTED):
        raise ConfigError(
            "isolation_level",
            expected=f"{READ_UNCOMMITTED!r} or {READ_COMMITTED!r}",
            found=repr(isolation),
        )
    bounds = partition.bounds()
    start = stop = end_offset(bounds, isolation)
    step = 1
    while start > bounds.log_start:
        start = max(bounds.log_start, stop - step)
        try:
            decoded = _read_last_records(partition, start, stop, isolation)
        except OffsetOutOfRangeError:
            earlier_bounds = bounds
            bounds = partition.bounds()
            if bounds.log_start == earlier_bounds.log_start:
                raise
            continue  # records were deleted since the bounds were read
        if decoded is not None:
            return records_of(topic, number, decoded)[-1]
        stop = start
        step = 2 * step
    return None


def _read_last_records(
    partition: ReadableLog, start: int, stop: int, isolation: str
) -> Decoded | None:
    """The last records of the first ones at or after `start`; nothing is expected at or after
    `stop`.
    """
    decoded = None
    while start < stop:
        chunk = read_chunk(partition, start, max_bytes=READ_BYTES, isolation=isolation)
        if chunk is None:
            break
        if chunk.decoded.count:
            decoded = chunk.decoded
        start = chunk.next_offset
    return decoded
