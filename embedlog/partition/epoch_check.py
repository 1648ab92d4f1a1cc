"""Compares leader epochs of batches with the epoch checkpoint of the partition.

EPOCHCHECK-1  each batch carries the epoch that its offset belongs to; another epoch is damage
    (LOAD-6)
EPOCHCHECK-2  the checkpoint is read again for an epoch that is newer than the known ones
EPOCHCHECK-3  in a set a disagreement can be that of a damaged checkpoint, which is made again then
    (LOGEPOCHS-6). A thread with the append lock does not: it would release the lock
EPOCHCHECK-4  a log start drops the epochs that ended below it. The end of such an epoch is not
    known any more: records of a later epoch may have had its last offsets
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from embedlog.errors import CorruptRecordError
from embedlog.format.record_batch import Batches
from embedlog.partition.recovery import log_epochs
from embedlog.partition.state import PartitionState
from embedlog.storage import checkpoints, file_names, locks


class EpochCheck:
    """The epochs of one partition, for its reader. Threads: any."""

    def __init__(self, state: PartitionState) -> None:
        self._state = state
        self._epochs: checkpoints.EpochCache | None = None
        # the checkpoint with the batches; of a replica in a set
        self.compare: Callable[[], None] | None = None

    def forget(self) -> None:
        self._epochs = None

    def known(self, epoch: int) -> checkpoints.EpochCache:
        """The epochs of the partition, with `epoch` if it exists. A malformed checkpoint of a set
        is made again.
        """
        try:
            return self.stored(epoch)
        except log_epochs.DAMAGE:
            if not self._compared():
                raise
        return self.stored(epoch)

    def stored(self, epoch: int) -> checkpoints.EpochCache:
        """As `known`, from the file as it is."""
        cache = self._epochs
        if cache is None or cache.latest_epoch < epoch:
            static = self._state.static
            cache = static.epochs if static is not None else self._state.epoch_file.read()
            self._epochs = cache
        return cache

    def note(self, epochs: checkpoints.EpochCache) -> None:
        """Take the epochs that the file has at a publication of the last one. REQUIRES the append
        lock.
        """
        self._epochs = epochs

    def end(self, epoch: int) -> tuple[int, int]:
        """(largest epoch known here that is at most `epoch`, where it ended); (-1, -1) for one
        above all that are known.
        """
        cache, log_end = self.of_log()
        return cache.end_offset(epoch, log_end)

    def known_end(self, epoch: int) -> tuple[int, int]:
        """As `end`; (-1, -1) also for an epoch below all that are known (EPOCHCHECK-4)."""
        cache, log_end = self.of_log()
        return (
            cache.end_offset(epoch, log_end)
            if cache.entries and cache.entries[0][0] <= epoch
            else (-1, -1)
        )

    def of_log(self) -> tuple[checkpoints.EpochCache, int]:
        """The epochs of the log, and its end."""
        now = self._state.published()
        cache = self.known(now.epoch)
        # else a follower would be cut to the log start
        if not cache.entries and now.log_end > now.log_start:
            raise CorruptRecordError("no leader epoch", path=self._state.path / file_names.EPOCHS)
        return cache, now.log_end

    def is_latest(self, epoch: int, base_offset: int) -> bool:
        """Whether batches of this epoch from `base_offset` on are as `check` requires: the usual
        case, at little cost.
        """
        latest = self.known(epoch).latest
        return latest is None or (epoch == latest[0] and latest[1] <= base_offset)

    def _wrong(self, batches: Batches) -> tuple[int, int] | None:
        cache = self.known(int(batches["leader_epoch"][-1]))
        return cache.find_disagreement(batches["base_offset"], batches["leader_epoch"])

    def _compared(self) -> bool:
        """Whether the checkpoint was compared with the batches, and made again if it was damaged
        (EPOCHCHECK-3).
        """
        if (
            self.compare is None
            or self._state.context.read_only
            or locks.is_owned(self._state.mutex)
        ):
            return False
        self.compare()
        self.forget()
        return True

    def check(self, path: Path, batches: Batches, position: int) -> None:
        """Raises CorruptRecordError for a batch with another epoch; `position` is that of the first
        batch in `path`.
        """
        wrong = self._wrong(batches)
        # a follower stores epochs that its page does not show
        if wrong is not None and self._state.context.in_set:
            self.forget()
            wrong = self._wrong(batches)
            if wrong is not None and self._compared():
                wrong = self._wrong(batches)
        if wrong is not None:
            row, expected = wrong
            raise CorruptRecordError(
                checkpoints.OTHER_EPOCH,
                path=path,
                position=position + int(batches["position"][row]),
                expected=expected,
                found=int(batches["leader_epoch"][row]),
            )
