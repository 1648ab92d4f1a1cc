"""The leader epochs of one replica, without the append lock as long as its leader-epoch-checkpoint
is in order.

REPLICAEPOCHS-1  a checkpoint is believed if it covers the log and was compared with its batches
    (LOGEPOCHS-6, EPOCHFILE-1). Another one is made again under the lock
REPLICAEPOCHS-2  the epoch of the last batch comes from such a checkpoint, else from the batch
    itself. It is read after the page. So it has the epoch of each batch below the published end
    (REPLICALOG-2), unless the log was cut meanwhile. Damage of an epoch without a batch is not
    noticed by a comparison: no batch has a later epoch than the page
REPLICAEPOCHS-3  the epochs of a log that was copied after a compaction begin where they have a
    batch, and the first one at the log start. So a batch at or above an offset decides whether the
    log has, or had, the record of an epoch there. One of that epoch shows that it was there; one of
    a later epoch at that offset, or below it, shows that it was not. Otherwise it is not known
REPLICAEPOCHS-4  the sequences of a producer are a function of the log, too, and outlast its
    records. So they show what the epochs do not
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
        self._last: tuple[tuple[int, int], int] = (-1, -1), -1
        reader.epochs.compare = self._compare

    def checked(self, now: Published, deadline_ns: int) -> EpochCache:
        """The leader-epoch-checkpoint; a damaged one is made again."""
        with contextlib.suppress(*log_epochs.DAMAGE):
            found = self._state.epoch_file.read()
            if self._agrees(found, now):
                return found
        with self._lock.exclusive(deadline_ns) as held:
            return held.epochs()

    def compare_early(self) -> None:
        """Compare the checkpoint with the batches without a lock: the next holder of the append
        lock has less to read.

        Raises the errors of a load, and StorageError.
        """
        now = self._state.published()
        with contextlib.suppress(*log_epochs.DAMAGE):  # the holder of the lock makes it again
            self._agrees(self._state.epoch_file.read(), now)

    def end(self, epoch: int) -> tuple[int, int]:
        """`Partition.epoch_end`; a damaged leader-epoch-checkpoint is made again first, unless the
        log is read only.
        """
        self._compare_first()
        return self._reader.epochs.end(epoch)

    def known_end(self, epoch: int) -> tuple[int, int]:
        """As `end`; (-1, -1) also for an epoch below all that are known: what a follower has of it
        is not (REPLICALOG-7).
        """
        self._compare_first()
        return self._reader.epochs.known_end(epoch)

    def contains(self, epoch: int, offset: int) -> bool | None:
        """Whether the record that a leader appended in an epoch at an offset is, or was, in this
        log (REPLICAEPOCHS-3).

        None if that is not known: the batches there were deleted or removed by a compaction.
        """
        self._compare_first()
        while True:
            cache, log_end = self._reader.epochs.of_log()
            if offset >= log_end or epoch >= cache.latest_epoch > -1:
                return offset < log_end and epoch == cache.latest_epoch
            # the log start or the log end has changed meanwhile
            with contextlib.suppress(OffsetOutOfRangeError):
                return self._decided(epoch, offset, self._batch_from(offset), cache)

    def has_sequence(self, stamp: Stamp, sequence: int) -> bool | None:
        """Whether the record of a producer with a sequence is, or was, in this log
        (REPLICAEPOCHS-4).

        None if the log does not know the producer in the epoch of the stamp.
        """
        self._state.ensure_open()
        with self._lock.mutex_until(self._state.deadline()):
            producer = self._lock.present_producers().producers.get(stamp.producer_id)
        return (
            producer.has(sequence)
            if producer is not None and producer.epoch == stamp.epoch
            else None
        )

    def _batch_from(self, offset: int) -> tuple[int, int] | None:
        """The base offset and the epoch of the batch at an offset, or of the first one above it."""
        at = max(offset, self._state.published().log_start)
        found = self._reader.fetch(
            at, max_bytes=0, committed=False, upto=None, pool=None, whole=True
        ).batches
        return (int(found["base_offset"][0]), int(found["leader_epoch"][0])) if len(found) else None

    def _decided(
        self, epoch: int, offset: int, batch: tuple[int, int] | None, cache: EpochCache
    ) -> bool | None:
        """What a batch at or above an offset, or none, shows about the record of an epoch there."""
        if batch is None:
            return None
        if batch[1] <= epoch:
            return batch[1] == epoch
        later = any(entry[0] > epoch and entry[1] <= offset for entry in cache.entries[1:])
        return False if batch[0] <= offset or later else None

    def _compare_first(self) -> None:
        if not self._state.context.read_only:
            self._compare()

    def _compare(self) -> None:
        """Make a checkpoint again that is damaged, or that does not agree with the batches."""
        now = self._state.published()
        with contextlib.suppress(*log_epochs.DAMAGE):
            if self._agrees(self._reader.epochs.stored(now.epoch), now):
                return
        with self._lock.exclusive() as held:
            held.epochs()
        self._reader.epochs.forget()

    def _agrees(self, epochs: EpochCache, now: Published) -> bool:
        """Whether a checkpoint covers the log and agrees with its batches. It is compared once,
        without a lock.
        """
        file = self._state.epoch_file
        if not log_epochs.covers(epochs, now):
            return False
        if epochs.entries != file.compared and log_epochs.agrees(
            self._state.path, now, epochs, file.compared
        ):
            file.compared = list(epochs.entries)
        return epochs.entries == file.compared

    def of_last_batch(self, now: Published, replica: Replica) -> int:
        """The epoch of the last batch of what was published, -1 without one. No lock is taken: an
        election waits for none.

        Raises CorruptRecordError for a damaged batch, if it is read.
        """
        if now.log_end == now.log_start:
            return -1
        if replica.role == ROLE_LEADER and replica.epoch_start < now.log_end:
            return now.epoch
        end, epoch = self._last
        if end != (now.generation, now.log_end):
            known = self._stored_last(now)
            epoch = self._read_last(now) if known is None else known
            self._last = (now.generation, now.log_end), epoch
        return epoch

    def _stored_last(self, now: Published) -> int | None:
        """The epoch of the last batch in the checkpoint; None if it is not to be believed
        (REPLICAEPOCHS-2).
        """
        file = self._state.epoch_file
        with contextlib.suppress(*log_epochs.DAMAGE):
            epochs = file.read()
            if epochs.entries != file.compared or not log_epochs.covers(epochs, now):
                return None
            last = with_batches(epochs, now.log_end).latest_epoch
            if last <= now.epoch and self._state.published().generation == now.generation:
                return last
        return None

    def _read_last(self, now: Published) -> int:
        end = now.log_end
        found = self._reader.fetch(
            end - 1, max_bytes=0, committed=False, upto=end, pool=None, whole=True
        )
        return int(found.batches["leader_epoch"][-1]) if len(found.batches) else -1
