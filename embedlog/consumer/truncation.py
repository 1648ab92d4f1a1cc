"""A log that came back shorter: noticed by the leader epoch of what a reader has seen.

TRUNCATION-1  a position carries the epoch of the record before it; a new leader epoch begins at every cut below what was
    published, so where that epoch ended is where what the reader saw and what the log holds part ways
TRUNCATION-2  positions are looked at when the partition's epoch is another than at the last look, and behind a seek with an epoch
"""

from __future__ import annotations

from typing import Any

from embedlog.consumer.positions import Cursor
from embedlog.errors import LogTruncationError
from embedlog.types import OffsetAndMetadata


def check_position(cursor: Cursor, bounds: Any) -> None:
    """Raises LogTruncationError if the log no longer holds what lies before the cursor's position."""
    if bounds.epoch == cursor.checked_epoch:
        return
    position, epoch = cursor.position, cursor.epoch
    if epoch >= 0:
        known, end = cursor.partition.epoch_end(epoch)
        if known < 0 or end < position:
            diverging = None if known < 0 else OffsetAndMetadata(end, leader_epoch=known)
            place = f"{cursor.tp.topic}-{cursor.tp.partition}"
            raise LogTruncationError(
                f"{place}: the log was cut below the position {position} of leader epoch {epoch}"
                + (": nothing is known of that epoch" if diverging is None else f": that epoch ends at {end} now"),
                topic=cursor.tp.topic,
                partition=cursor.tp.partition,
                offset=position,
                diverging=diverging,
            )
    cursor.checked_epoch = bounds.epoch


__all__ = ["check_position"]
