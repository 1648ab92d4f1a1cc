"""The leader-epoch-checkpoint of one partition, as this process knows and replaces it.

EPOCHFILE-1  `compared` has entries that agree with the batches (LOGEPOCHS-6): all that are written, and those that were compared
EPOCHFILE-2  a staged file is a synced temporary. It is put in place if its entries are the ones to be written; any other write
    removes it. It shortens the time under the append lock, and nothing depends on it
"""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

from embedlog._classes import NamedTuple
from embedlog.errors import StorageError
from embedlog.storage import checkpoints, files
from embedlog.storage.checkpoints import EpochCache, StagedEpochs


class EpochFile:
    """Threads: any; `write` REQUIRES the append lock."""

    def __init__(self, path: Path, mode: int) -> None:
        self.path, self._mode = path, mode
        self.compared: list[tuple[int, int]] | None = None
        self._staged: StagedEpochs | None = None
        self._mutex = threading.Lock()

    def stage(self, epochs: EpochCache) -> Staging:
        """Write these epochs as a temporary, which is kept when it is on disk (EPOCHFILE-2)."""
        return Staging(self, *checkpoints.stage_epochs(self.path, epochs, self._mode))

    def keep(self, staged: StagedEpochs | None) -> None:
        """Keep a synced file for the next `write`; one that was kept before is removed."""
        with self._mutex:
            before, self._staged = self._staged, staged
        if before is not None:
            with contextlib.suppress(StorageError):  # the next open removes it
                files.unlink(before.temporary, missing_ok=True)

    def loaded(self, epochs: EpochCache, *, differ: bool) -> None:
        """Take the epochs of a load, which are to be written if they differ from the file."""
        if differ:
            self.write(epochs)
        self.compared = list(epochs.entries)

    def write(self, epochs: EpochCache) -> None:
        """Replace the file by epochs that agree with the batches; it is on disk when this returns."""
        with self._mutex:
            staged = self._staged
            fits = staged is not None and staged.entries == epochs.entries and files.exists(staged.temporary)
            self._staged = None if fits else staged
        if staged is not None and fits:
            files.put_in_place(staged.temporary, self.path)
        else:
            self.keep(None)
            checkpoints.write_epochs(self.path, epochs, self._mode)
        self.compared = list(epochs.entries)


class Staging(NamedTuple):
    """A file that is written, but not on disk yet. The caller syncs the descriptor."""

    file: EpochFile
    staged: StagedEpochs
    fd: int

    def ended(self, *, synced: bool) -> None:
        """Close the descriptor, and keep the file if it is on disk."""
        files.close(self.fd)
        if synced:
            self.file.keep(self.staged)
        else:
            files.unlink(self.staged.temporary, missing_ok=True)
