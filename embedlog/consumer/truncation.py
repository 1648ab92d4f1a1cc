"""Detects log truncation by the leader epoch of the last record that a reader has seen.

- A position has the epoch of the record before it. A new leader epoch begins at every truncation
  below published offsets. So the reader and the log diverge where that epoch now ends.
- Positions are checked when the partition's epoch differs from the last check, and after a seek
  with an epoch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from embedlog.consumer.positions import Cursor
from embedlog.errors import LogTruncationError
from embedlog.types import OffsetAndMetadata

if TYPE_CHECKING:
    from embedlog.partition.log_context import Bounds


def check_position(cursor: Cursor, bounds: Bounds) -> None:
    """Raises LogTruncationError if the log no longer contains the records before the cursor's
    position.
    """
    if bounds.epoch == cursor.checked_epoch:
        return
    position = cursor.position
    epoch = cursor.epoch
    if epoch >= 0:
        known_epoch, end = cursor.partition.epoch_end(epoch)
        if known_epoch < 0 or end < position:
            diverging = (
                None if known_epoch < 0 else OffsetAndMetadata(end, leader_epoch=known_epoch)
            )
            partition_name = f"{cursor.tp.topic}-{cursor.tp.partition}"
            if diverging is None:
                reason = "that epoch is unknown"
            else:
                reason = f"that epoch ends at {end} now"
            raise LogTruncationError(
                f"{partition_name}: the log was cut below the position {position} of leader epoch "
                f"{epoch}: {reason}",
                topic=cursor.tp.topic,
                partition=cursor.tp.partition,
                offset=position,
                diverging=diverging,
            )
    cursor.checked_epoch = bounds.epoch


__all__ = ["check_position"]
