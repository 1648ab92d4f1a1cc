"""The leader-epoch-checkpoint of one partition, as this process knows and replaces it.

- `compared` has entries that agree with the batches (`log_epochs`): all that are written, and those
  that were compared.
- A staged file is a synced temporary. It is put in place if its entries are the ones to be written;
  any other write removes it. It shortens the time under the append lock, and nothing depends on it.
- A file is not read again while its facts are those of the last read, if its times were older than
  `SETTLED_MS` then. A change in the same tick of the kernel's clock leaves the times, and another
  file can get the same inode. Without mappings it is read each time: only an open revalidates what
  a network file system has cached.
"""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Final, NamedTuple

from embedlog._native import system
from embedlog.errors import StorageError
from embedlog.storage import checkpoints, files
from embedlog.storage.checkpoints import EpochCache, StagedEpochs

SETTLED_MS: Final = 1000  # many ticks of a clock of files


class EpochFile:
    """Threads: any; `write` REQUIRES the append lock."""

    def __init__(self, path: Path, mode: int, *, mapped: bool = True) -> None:
        self.path = path
        self._mode = mode
        self._name = str(path)
        self._mapped = mapped
        self.compared: list[tuple[int, int]] | None = None
        # facts of the file, and what it contained
        self._read: tuple[system.Facts | None, list[tuple[int, int]]] = (None, [])
        self._staged: StagedEpochs | None = None
        self._mutex = threading.Lock()

    def read(self) -> EpochCache:
        """As `checkpoints.read_epochs`, but an unchanged file is not read again. Raises its
        errors.
        """
        if not self._mapped:
            return checkpoints.read_epochs(self._name)
        facts = files.facts_of(self._name)
        read_facts, entries = self._read
        if facts is not None and facts == read_facts:
            return EpochCache.from_rising(entries)
        epochs = checkpoints.read_epochs(self._name)
        if facts is not None:
            newest_ms = max(facts.modified_ns, facts.changed_ns) // 1_000_000
            if newest_ms >= system.kernel_ms() - SETTLED_MS:
                facts = None  # a change in this tick of the clock would not be noticed
        self._read = (facts, list(epochs.entries))
        return epochs

    def stage(self, epochs: EpochCache) -> Staging:
        """Write these epochs as a temporary, which is kept when it is on disk."""
        return Staging(self, *checkpoints.stage_epochs(self._name, epochs, self._mode))

    def keep(self, staged: StagedEpochs | None) -> None:
        """Keep a synced file for the next `write`; one that was kept before is removed."""
        with self._mutex:
            before = self._staged
            self._staged = staged
        if before is not None:
            with contextlib.suppress(StorageError):  # the next open removes it
                files.unlink(before.temporary, missing_ok=True)

    def take_loaded(self, epochs: EpochCache, *, differ: bool) -> None:
        """Take the epochs of a load, which are to be written if they differ from the file."""
        if differ:
            self.write(epochs)
        self.compared = list(epochs.entries)

    def write(self, epochs: EpochCache) -> None:
        """Replace the file by epochs that agree with the batches; it is on disk when this
        returns.
        """
        with self._mutex:
            staged = self._staged
            is_right = staged is not None and staged.entries == epochs.entries
            if is_right:
                self._staged = None
        if staged is None or not is_right or not files.put_in_place(staged.temporary, self._name):
            self.keep(None)
            checkpoints.write_epochs(self._name, epochs, self._mode)
        self.compared = list(epochs.entries)


class Staging(NamedTuple):
    """A file that is written, but not on disk yet. The caller syncs the descriptor."""

    file: EpochFile
    staged: StagedEpochs
    fd: int

    def finish(self, *, synced: bool) -> None:
        """Close the descriptor, and keep the file if it is on disk."""
        files.close(self.fd)
        if synced:
            self.file.keep(self.staged)
        else:
            files.unlink(self.staged.temporary, missing_ok=True)
