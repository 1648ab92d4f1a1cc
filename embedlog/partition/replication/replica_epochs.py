"""The leader epochs of one replica, without the append lock as long as its leader-epoch-checkpoint
is in order.

- A checkpoint is believed if it covers the log and was compared with its batches (`log_epochs`).
  Another one is made again under the lock.
- The epoch of the last batch comes from such a checkpoint, else from the batch itself. It is read
  after the page. So it has the epoch of each batch below the published end, unless
  the log was cut meanwhile. Damage of an epoch without a batch is not noticed by a comparison: no
  batch has a later epoch than the page.
- The epochs of a log that was copied after a compaction begin where they have a batch, and the
  first one at the log start. So a batch at or above an offset decides whether the log has, or had,
  the record of an epoch there. One of that epoch shows that it was there; one of a later epoch at
  that offset, or below it, shows that it was not. Otherwise it is not known.
- The sequences of a producer are a function of the log, too, and outlast its records. So they show
  what the epochs do not.
"""

from __future__ import annotations

import contextlib

from embedlog._native.replication import ROLE_LEADER, Replica
from embedlog._native.system import Published
from embedlog.errors import OffsetOutOfRangeError
from embedlog.format.record_columns import Stamp
from embedlog.partition.append_lock import AppendLock
from embedlog.partition.reader import Reader
from embedlog.partition.recovery import log_epochs
from embedlog.partition.replication.locked_replica import with_batches
from embedlog.storage.checkpoints import EpochCache


class ReplicaEpochs:
    """Threads: any."""

    def __init__(self, lock: AppendLock, reader: Reader) -> None:
        self._lock = lock
        self._reader = reader
        self._state = lock.state
        # a generation and a log end, and the epoch of its last batch
        self._last: tuple[tuple[int, int], int] = ((-1, -1), -1)
        reader.epochs.compare = self._compare

    def read_checked(self, published: Published, deadline_ns: int) -> EpochCache:
        """The leader-epoch-checkpoint; a damaged one is made again."""
        with contextlib.suppress(*log_epochs.EPOCH_FILE_ERRORS):
            epochs = self._state.epoch_file.read()
            if self._agrees(epochs, published):
                return epochs
        with self._lock.exclusive(deadline_ns) as locked:
            return locked.epochs()

    def compare_early(self) -> None:
        """Compare the checkpoint with the batches without a lock: the next holder of the append
        lock has less to read.

        Raises the errors of a load, and StorageError.
        """
        published = self._state.published()
        # the holder of the lock makes the file again
        with contextlib.suppress(*log_epochs.EPOCH_FILE_ERRORS):
            self._agrees(self._state.epoch_file.read(), published)

    def end_of(self, epoch: int) -> tuple[int, int]:
        """`Partition.epoch_end`; a damaged leader-epoch-checkpoint is made again first, unless the
        log is read only.
        """
        self._compare_first()
        return self._reader.epochs.end_of(epoch)

    def known_end_of(self, epoch: int) -> tuple[int, int]:
        """As `end_of`; (-1, -1) also for an epoch below all that are known: what a follower has of
        it is not.
        """
        self._compare_first()
        return self._reader.epochs.known_end_of(epoch)

    def contains(self, epoch: int, offset: int) -> bool | None:
        """Whether the record that a leader appended in an epoch at an offset is, or was, in this
        log.

        None if that is not known: the batches there were deleted or removed by a compaction.
        """
        self._compare_first()
        while True:
            epochs, log_end = self._reader.epochs.epochs_and_end()
            if offset >= log_end or epoch >= epochs.latest_epoch > -1:
                return offset < log_end and epoch == epochs.latest_epoch
            # the log start or the log end has changed meanwhile
            with contextlib.suppress(OffsetOutOfRangeError):
                return self._decide(epoch, offset, self._read_batch_from(offset), epochs)

    def has_sequence(self, stamp: Stamp, sequence: int) -> bool | None:
        """Whether the record of a producer with a sequence is, or was, in this log.

        None if the log does not know the producer in the epoch of the stamp.
        """
        self._state.ensure_open()
        with self._lock.mutex_until(self._state.deadline()):
            producer = self._lock.current_producers().producers.get(stamp.producer_id)
        if producer is None or producer.epoch != stamp.epoch:
            return None
        return producer.has(sequence)

    def _read_batch_from(self, offset: int) -> tuple[int, int] | None:
        """The base offset and the epoch of the batch at an offset, or of the first one above it."""
        start = max(offset, self._state.published().log_start)
        fetched = self._reader.fetch(
            start, max_bytes=0, committed=False, upto=None, pool=None, whole=True
        )
        if not len(fetched.batches):
            return None
        batch = fetched.batches[0]
        return int(batch["base_offset"]), int(batch["leader_epoch"])

    def _decide(
        self, epoch: int, offset: int, batch: tuple[int, int] | None, epochs: EpochCache
    ) -> bool | None:
        """What a batch at or above an offset, or none, shows about the record of an epoch there."""
        if batch is None:
            return None
        batch_offset, batch_epoch = batch
        if batch_epoch <= epoch:
            return batch_epoch == epoch
        if batch_offset <= offset:
            return False
        for later_epoch, start in epochs.entries[1:]:
            if later_epoch > epoch and start <= offset:
                return False
        return None

    def _compare_first(self) -> None:
        if not self._state.context.read_only:
            self._compare()

    def _compare(self) -> None:
        """Make a checkpoint again that is damaged, or that does not agree with the batches."""
        published = self._state.published()
        with contextlib.suppress(*log_epochs.EPOCH_FILE_ERRORS):
            if self._agrees(self._reader.epochs.stored_with(published.epoch), published):
                return
        with self._lock.exclusive() as locked:
            locked.epochs()
        self._reader.epochs.forget()

    def _agrees(self, epochs: EpochCache, published: Published) -> bool:
        """Whether a checkpoint covers the log and agrees with its batches. It is compared once,
        without a lock.
        """
        file = self._state.epoch_file
        if not log_epochs.covers(epochs, published):
            return False
        if epochs.entries != file.compared and log_epochs.agrees(
            self._state.path, published, epochs, file.compared
        ):
            file.compared = list(epochs.entries)
        return epochs.entries == file.compared

    def epoch_of_last_batch(self, published: Published, replica: Replica) -> int:
        """The epoch of the last batch of what was published, -1 without one. No lock is taken: an
        election waits for none.

        Raises CorruptRecordError for a damaged batch, if it is read.
        """
        if published.log_end == published.log_start:
            return -1
        if replica.role == ROLE_LEADER and replica.epoch_start < published.log_end:
            return published.epoch
        end, epoch = self._last
        if end != (published.generation, published.log_end):
            stored_epoch = self._read_stored_last(published)
            if stored_epoch is None:
                stored_epoch = self._read_last(published)
            epoch = stored_epoch
            self._last = ((published.generation, published.log_end), epoch)
        return epoch

    def _read_stored_last(self, published: Published) -> int | None:
        """The epoch of the last batch in the checkpoint; None if it is not to be believed."""
        file = self._state.epoch_file
        with contextlib.suppress(*log_epochs.EPOCH_FILE_ERRORS):
            epochs = file.read()
            if epochs.entries != file.compared or not log_epochs.covers(epochs, published):
                return None
            last = with_batches(epochs, published.log_end).latest_epoch
            if (
                last <= published.epoch
                and self._state.published().generation == published.generation
            ):
                return last
        return None

    def _read_last(self, published: Published) -> int:
        end = published.log_end
        fetched = self._reader.fetch(
            end - 1, max_bytes=0, committed=False, upto=end, pool=None, whole=True
        )
        return int(fetched.batches["leader_epoch"][-1]) if len(fetched.batches) else -1
