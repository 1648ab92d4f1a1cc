"""Cuts below the published end what a failed sync has lost (`docs/protocol.md`, durability).

FAILEDSYNC-1  only bytes without a valid checksum are cut, and later ones, never below `durable`;
    they are copied aside first
FAILEDSYNC-2  a new epoch begins at the cut, and is on disk before the first append in it. Another
            record at an offset that was read must have a larger epoch
FAILEDSYNC-3  the log continues: no process waits for ever for lost bytes
FAILEDSYNC-4  a replica of a set is not cut: other replicas can have the records (REPLICA-17). It is
            damaged, and is repaired from them
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


def cut_lost(held: LockedPartition, base: int) -> int:
    """Cut the log at the first bad batch of a segment; the offset from which records are lost, or
    the log end if none is.

    Raises CorruptRecordError for damage below the durable offset, and for each damage of a replica
    (FAILEDSYNC-4).
    """
    now = held.now
    if base > now.segment_base:
        return now.log_end
    size = now.segment_size if base == now.segment_base else segment.size_of(held.path, base)
    valid = log_cut.remaining(held.path, base, size, OFFSET_MAX)
    if valid.size == size:
        return now.log_end
    durable = held.page.word(system.WORD_DURABLE)
    path = file_names.segment_path(held.path, base)
    in_set = held.state.context.in_set
    if valid.log_end < durable or in_set:
        raise CorruptRecordError(
            "damage of a replica" if in_set else "damage below the durable end",
            path=path,
            position=valid.size,
            expected=f"offsets up to {now.log_end if in_set else durable}",
            found=f"none from {valid.log_end} on",
        )
    logger.error(
        "%s: offsets %d to %d are lost: a sync failed, and they are damaged",
        path,
        valid.log_end,
        now.log_end - 1,
    )
    log_cut.begin(held, system.CUT_LOST, base, valid.log_end)
    return valid.log_end
