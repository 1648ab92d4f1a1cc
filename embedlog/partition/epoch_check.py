"""Compares leader epochs of batches with the epoch checkpoint of the partition.

- Each batch carries the epoch that its offset belongs to; another epoch is damage (LOAD-6).
- The checkpoint is read again for an epoch that is newer than the known ones.
- In a set a disagreement can be that of a damaged checkpoint, which is made again then
  (`log_epochs`). A thread with the append lock does not: it would release the lock.
- A log start drops the epochs that ended below it. The end of such an epoch is not known any more:
  records of a later epoch may have had its last offsets.
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

    def epochs_with(self, epoch: int) -> checkpoints.EpochCache:
        """The epochs of the partition, with `epoch` if it exists. A malformed checkpoint of a set
        is made again.
        """
        try:
            return self.stored_with(epoch)
        except log_epochs.EPOCH_FILE_ERRORS:
            if not self._compare_again():
                raise
        return self.stored_with(epoch)

    def stored_with(self, epoch: int) -> checkpoints.EpochCache:
        """As `epochs_with`, from the file as it is."""
        cache = self._epochs
        if cache is None or cache.latest_epoch < epoch:
            loaded_files = self._state.loaded_files
            if loaded_files is not None:
                cache = loaded_files.epochs
            else:
                cache = self._state.epoch_file.read()
            self._epochs = cache
        return cache

    def take(self, epochs: checkpoints.EpochCache) -> None:
        """Take the epochs that the file has at a publication of the last one. REQUIRES the append
        lock.
        """
        self._epochs = epochs

    def end_of(self, epoch: int) -> tuple[int, int]:
        """(largest epoch known here that is at most `epoch`, where it ended); (-1, -1) for one
        above all that are known.
        """
        epochs, log_end = self.epochs_and_end()
        return epochs.end_offset(epoch, log_end)

    def known_end_of(self, epoch: int) -> tuple[int, int]:
        """As `end_of`; (-1, -1) also for an epoch below all that are known."""
        epochs, log_end = self.epochs_and_end()
        if not epochs.entries or epochs.entries[0][0] > epoch:
            return (-1, -1)
        return epochs.end_offset(epoch, log_end)

    def epochs_and_end(self) -> tuple[checkpoints.EpochCache, int]:
        """The epochs of the log, and its end."""
        published = self._state.published()
        cache = self.epochs_with(published.epoch)
        # else a follower would be cut to the log start
        if not cache.entries and published.log_end > published.log_start:
            raise CorruptRecordError("no leader epoch", path=self._state.path / file_names.EPOCHS)
        return cache, published.log_end

    def is_latest(self, epoch: int, base_offset: int) -> bool:
        """Whether batches of this epoch from `base_offset` on are as `check` requires: the usual
        case, at little cost.
        """
        latest = self.epochs_with(epoch).latest
        return latest is None or (epoch == latest[0] and latest[1] <= base_offset)

    def _find_wrong(self, batches: Batches) -> tuple[int, int] | None:
        cache = self.epochs_with(int(batches["leader_epoch"][-1]))
        return cache.find_disagreement(batches["base_offset"], batches["leader_epoch"])

    def _compare_again(self) -> bool:
        """Compare the checkpoint with the batches, and make it again if it is damaged; False if
        this thread may not.
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
        wrong = self._find_wrong(batches)
        # a follower stores epochs that its page does not show
        if wrong is not None and self._state.context.in_set:
            self.forget()
            wrong = self._find_wrong(batches)
            if wrong is not None and self._compare_again():
                wrong = self._find_wrong(batches)
        if wrong is not None:
            row, expected = wrong
            raise CorruptRecordError(
                checkpoints.OTHER_EPOCH,
                path=path,
                position=position + int(batches["position"][row]),
                expected=expected,
                found=int(batches["leader_epoch"][row]),
            )
