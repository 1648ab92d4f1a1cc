"""This module finds what of an append is in the log of the next leader, before the append goes on
there.

The epochs of the next leader show whether a batch is in its log: there its epoch ends above the
batch. That may not be known if the log begins above the batch now, or if a compaction has changed
it. The batch may have been committed, read and removed.

Then the sequence of the batch shows it, if this leader knows the producer in that epoch. A batch
that was there keeps its place, although its records may be deleted: offsets are the same in each
replica. A log that began again knows no earlier producer (REPLICA-21). Without a sequence, or with
such a producer, the append fails.

A batch of a transaction whose producer is not known is appended again. Readers of committed records
get only what a transaction has at its end, and an unknown one is registered again.
"""

from __future__ import annotations

from bisect import bisect_left

from embedlog._native.lazy_numpy import np
from embedlog.errors import NotEnoughReplicasAfterAppendError
from embedlog.format.producer_state import add_sequence
from embedlog.format.record_columns import Stamp
from embedlog.partition.log_context import AppendProgress
from embedlog.replicas.partition.leader import Leader


def is_in_log_of(leader: Leader, epoch: int, offset: int) -> bool | None:
    """Whether a record that was appended in `epoch` at `offset` is, or was, in this leader's log.

    None if that is not known: the records there were deleted, or removed by a compaction.
    """
    return leader.partition.replica.epochs.contains(epoch, offset)


def reduce_to_survivors(progress: AppendProgress, leader: Leader, stamp: Stamp | None) -> None:
    """Reduce the progress of an append to its first batches that are in this leader's log, by the
    epoch of each.

    The others are appended again, perhaps at lower offsets, and must be committed again. An error
    of the directory changes nothing: the next leader is asked for the same batches. Raises
    NotEnoughReplicasAfterAppendError for a batch that may have been there, if no sequence shows it.
    """
    appended = _AppendedBatches(progress, leader, stamp)
    count = appended.count_in_log()
    is_transactional = stamp is not None and stamp.transactional
    if count < len(appended.ends) and appended.is_in_log(count) is None and not is_transactional:
        text = (
            "the leader changed during an append, and its offsets have no records now: it may "
            "have been committed"
        )
        raise NotEnoughReplicasAfterAppendError(
            text, path=leader.partition.path, offset=int(appended.ends[count]) - 1
        )
    end = int(appended.ends[count - 1]) if count else 0
    committed_end = min(end, leader.partition.published().high_watermark)
    appended.keep(count)
    progress.committed = min(progress.committed, committed_end)
    progress.seen_committed = min(progress.seen_committed, committed_end)


class _AppendedBatches:
    """The batches of a run that have an offset, and what a leader's log shows about them."""

    def __init__(self, progress: AppendProgress, leader: Leader, stamp: Stamp | None) -> None:
        self._progress = progress
        self._leader = leader
        self._stamp = stamp
        pieces = np.array(progress.pieces)
        rows = progress.run.batches
        through = np.cumsum(pieces[:, 1] - pieces[:, 0])  # records up to the end of each piece
        records = np.cumsum(rows["last_offset_delta"].astype(np.int64) + 1)
        records = records[: np.searchsorted(records, through[-1]) + 1]
        self._piece = np.searchsorted(through, records)  # of each batch
        self._rows = rows[: len(records)]
        # the offset after each batch
        self.ends = pieces[self._piece, 1] - through[self._piece] + records

    def _epoch(self, number: int) -> int:
        return self._progress.epochs[int(self._piece[number])]

    def count_in_log(self) -> int:
        """How many of the first batches are in the log, or were.

        A log that has a batch has those of the run before it. So few of them are looked for: the
        last one of an epoch, then a binary search.
        """
        end = len(self.ends)
        while end:
            start = bisect_left(range(end), self._epoch(end - 1), key=self._epoch)
            if self.is_in_log(end - 1):
                return end
            end = start + bisect_left(
                range(start, end - 1), True, key=lambda number: not self.is_in_log(number)
            )
            if end > start:
                return end
        return 0

    def is_in_log(self, number: int) -> bool | None:
        """Whether a batch is, or was, in the log; None if that is not known."""
        end = int(self.ends[number])
        row = self._rows[number]
        is_in_log = is_in_log_of(self._leader, self._epoch(number), end - 1)
        if is_in_log is not None:
            return is_in_log
        if end <= max(self._progress.committed, self._progress.seen_committed):
            return True
        if self._stamp is None:
            return None
        last_sequence = add_sequence(int(row["base_sequence"]), int(row["last_offset_delta"]))
        return self._leader.partition.replica.epochs.has_sequence(self._stamp, last_sequence)

    def keep(self, count: int) -> None:
        """Reduce the progress to the first batches."""
        progress = self._progress
        size = int(self._rows["size"][:count].sum())
        piece_count = int(self._piece[count - 1]) + 1 if count else 0
        pieces = progress.pieces[:piece_count]
        times_ms = progress.times_ms[:piece_count]
        epochs = progress.epochs[:piece_count]
        if count:
            pieces[-1] = pieces[-1][0], int(self.ends[count - 1])
        progress.start = size
        progress.pieces = pieces
        progress.times_ms = times_ms
        progress.epochs = epochs
