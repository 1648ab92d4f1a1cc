"""This module finds what of an append is in the log of the next leader, before the append goes on there.

REPEATEDAPPENDS-1  the epochs of the next leader show whether a batch is in its log: there its epoch ends above the batch
    (PARTITIONREPLICAS-1). If the log begins above the batch now, that may not be known. A stamped batch is found by its sequence
    then, and another one fails: it may have been committed, read and deleted
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from embedlog.errors import NotEnoughReplicasAfterAppendError
from embedlog.partition.log_context import AppendProgress
from embedlog.replica_set.leaders import Leader


def committed_in(leader: Leader, epoch: int, offset: int) -> bool | None:
    """Whether a record that was appended in `epoch` at `offset` is, or was, in this leader's log (PARTITIONREPLICAS-1).

    None if that is not known: the log begins above it now (EPOCHCHECK-4).
    """
    return leader.partition.replica.epochs.contains(epoch, offset)


def survived(progress: AppendProgress, leader: Leader, *, found_by_sequence: bool) -> None:
    """Reduce the progress of an append to its first batches that are in this leader's log, by the epoch of each.

    The others are appended again, perhaps at lower offsets, and must be committed again. An error of the directory changes
    nothing: the next leader is asked for the same batches. `found_by_sequence`: a batch that is not known to be there is found
    by its sequence, so it may be appended again. Raises NotEnoughReplicasAfterAppendError for another one.
    """
    found = list(_contained(progress, leader, found_by_sequence=found_by_sequence))
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


def _contained(progress: AppendProgress, leader: Leader, *, found_by_sequence: bool) -> Iterator[_AppendedBatch]:
    """The first batches of a run that are, or were, in a leader's log."""
    rows = iter(progress.run.batches)
    for (base, following), time_ms, epoch in zip(progress.pieces, progress.times_ms, progress.epochs, strict=True):
        while base < following:
            row = next(rows)
            end = base + int(row["last_offset_delta"]) + 1
            there = committed_in(leader, epoch, end - 1)
            if there is None and end <= max(progress.committed, progress.seen_committed):
                there = True
            if there is None and not found_by_sequence:
                text = "the leader changed during an append, and its offsets are deleted: it may have been committed"
                raise NotEnoughReplicasAfterAppendError(text, path=leader.partition.path, offset=end - 1)
            if not there:
                return
            yield _AppendedBatch(base, end, int(row["size"]), time_ms, epoch)
            base = end
