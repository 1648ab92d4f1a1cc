"""This module finds what of an append is in the log of the next leader, before the append goes on there.

REPEATEDAPPENDS-1  the epochs of the next leader show whether a batch is in its log: there its epoch ends above the batch
    (PARTITIONREPLICAS-1). That may not be known if the log begins above the batch now, or if a compaction has changed it. The
    batch may have been committed, read and removed
REPEATEDAPPENDS-2  such a batch is appended again only if this leader knows its producer in that epoch: then the sequence shows
    whether the batch was there. A log that began again knows no earlier producer (REPLICA-21), and takes each sequence as new.
    Without a sequence, or with such a producer, the append fails
REPEATEDAPPENDS-3  a batch of a transaction is appended again in any case. Readers of committed records get only what a
    transaction has at its end, and an unknown one is registered again
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from embedlog.errors import NotEnoughReplicasAfterAppendError
from embedlog.format.record_columns import Stamp
from embedlog.partition.log_context import AppendProgress
from embedlog.replica_set.leaders import Leader


def committed_in(leader: Leader, epoch: int, offset: int) -> bool | None:
    """Whether a record that was appended in `epoch` at `offset` is, or was, in this leader's log (PARTITIONREPLICAS-1).

    None if that is not known: the records there were deleted, or removed by a compaction (REPLICAEPOCHS-3).
    """
    return leader.partition.replica.epochs.contains(epoch, offset)


def survived(progress: AppendProgress, leader: Leader, stamp: Stamp | None) -> None:
    """Reduce the progress of an append to its first batches that are in this leader's log, by the epoch of each.

    The others are appended again, perhaps at lower offsets, and must be committed again. An error of the directory changes
    nothing: the next leader is asked for the same batches. Raises NotEnoughReplicasAfterAppendError for a batch that may have
    been there, if no sequence shows it (REPEATEDAPPENDS-2).
    """
    found = list(_contained(progress, leader, stamp))
    there = min(found[-1].end if found else 0, leader.partition.published().high_watermark)
    progress.start, progress.pieces, progress.times_ms, progress.epochs = 0, [], [], []
    for each in found:
        progress.epoch = each.epoch
        progress.take(each.base, each.end, each.size, each.time_ms)
    progress.committed, progress.seen_committed = min(progress.committed, there), min(progress.seen_committed, there)


class _AppendedBatch(NamedTuple):
    base: int
    end: int  # the offset after it
    size: int
    time_ms: int
    epoch: int


def _contained(progress: AppendProgress, leader: Leader, stamp: Stamp | None) -> Iterator[_AppendedBatch]:
    """The first batches of a run that are, or were, in a leader's log."""
    rows = iter(progress.run.batches)
    for (base, following), time_ms, epoch in zip(progress.pieces, progress.times_ms, progress.epochs, strict=True):
        while base < following:
            row = next(rows)
            end = base + int(row["last_offset_delta"]) + 1
            there = committed_in(leader, epoch, end - 1)
            if there is None and end <= max(progress.committed, progress.seen_committed):
                there = True
            if there is None and not _is_found_by_sequence(leader, stamp):
                text = "the leader changed during an append, and its offsets have no records now: it may have been committed"
                raise NotEnoughReplicasAfterAppendError(text, path=leader.partition.path, offset=end - 1)
            if not there:
                return
            yield _AppendedBatch(base, end, int(row["size"]), time_ms, epoch)
            base = end


def _is_found_by_sequence(leader: Leader, stamp: Stamp | None) -> bool:
    """Whether a batch may be appended again that may have been in this leader's log (REPEATEDAPPENDS-2, REPEATEDAPPENDS-3)."""
    if stamp is None:
        return False
    return stamp.transactional or leader.partition.stored_epoch(stamp.producer_id) >= stamp.epoch
