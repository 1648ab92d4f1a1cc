"""Cuts below the published end what a failed sync has lost (`docs/protocol.md`, durability).

- Only bytes without a valid checksum are cut, and later ones, never below `durable`; they are
  copied aside first.
- A new epoch begins at the cut, and is on disk before the first append in it. Another record at an
  offset that was read must have a larger epoch.
- The log continues: no process waits for ever for lost bytes.
- A replica of a set is not cut: other replicas can have the records (REPLICA-17). It is damaged,
  and is repaired from them.
"""

from __future__ import annotations

import logging

from embedlog import segment
from embedlog._native import system
from embedlog.errors import CorruptRecordError
from embedlog.format.record_columns import OFFSET_MAX
from embedlog.partition.locked_partition import LockedPartition
from embedlog.partition.truncation import log_cut
from embedlog.storage import file_names

logger = logging.getLogger("embedlog")


def cut_lost(locked: LockedPartition, base: int) -> int:
    """Cut the log at the first bad batch of a segment; the offset from which records are lost, or
    the log end if none is.

    Raises CorruptRecordError for damage below the durable offset, and for each damage of a replica.
    """
    published = locked.published
    if base > published.segment_base:
        return published.log_end
    if base == published.segment_base:
        size = published.segment_size
    else:
        size = segment.size_of(locked.path, base)
    valid = log_cut.find_remaining(locked.path, base, size, OFFSET_MAX)
    if valid.size == size:
        return published.log_end
    durable = locked.page.word(system.WORD_DURABLE)
    path = file_names.segment_path(locked.path, base)
    if locked.state.context.in_set:
        raise CorruptRecordError(
            "damage of a replica",
            path=path,
            position=valid.size,
            expected=f"offsets up to {published.log_end}",
            found=f"none from {valid.log_end} on",
        )
    if valid.log_end < durable:
        raise CorruptRecordError(
            "damage below the durable end",
            path=path,
            position=valid.size,
            expected=f"offsets up to {durable}",
            found=f"none from {valid.log_end} on",
        )
    logger.error(
        "%s: offsets %d to %d are lost: a sync failed, and they are damaged",
        path,
        valid.log_end,
        published.log_end - 1,
    )
    log_cut.begin(locked, system.CUT_LOST, base, valid.log_end)
    return valid.log_end
