"""This module makes the leader epochs of a log again from its batches, if the leader-epoch-checkpoint is missing or damaged.

LOGEPOCHS-1  a checkpoint covers a log if its first epoch starts at the log start. Otherwise entries are missing: a follower would
    not be cut where its log and that of the leader diverge (REPLICA-2)
LOGEPOCHS-2  epochs never fall within a log. A segment that begins in the epoch in which the next one begins has that epoch only
LOGEPOCHS-3  an epoch of the page without a batch is stored again: the next batches of a leader have it
LOGEPOCHS-4  a changed number in the checkpoint is as well-formed as the true one. A follower reads its batches
    before a cut below its high watermark, and if its last epoch is above that of the leader's next batch
LOGEPOCHS-5  batches that cannot be read are damage of the log: nothing is written then
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final

from embedlog import segment
from embedlog._native.replication import ROLE_FOLLOWER, ROLE_LEADER, Replica
from embedlog._native.system import Published
from embedlog.errors import CorruptRecordError, ForeignDirectoryError, UnsupportedFormatError
from embedlog.format.record_batch import Batches, Chain
from embedlog.storage import checkpoints, file_names, files
from embedlog.storage.checkpoints import EpochCache

logger = logging.getLogger("embedlog")

DAMAGE: Final = (CorruptRecordError, ForeignDirectoryError, UnsupportedFormatError)


def covers(epochs: EpochCache, now: Published) -> bool:
    """Whether each offset of a log has an epoch (LOGEPOCHS-1)."""
    return now.log_end == now.log_start or bool(epochs.entries and epochs.entries[0][1] <= now.log_start)


def read_or_make(directory: Path, now: Published, replica: Replica | None = None) -> tuple[EpochCache, bool]:
    """The epochs of a log that ends as `now` describes it, and whether they were made from its batches.

    REQUIRES that no process changes the files. Raises CorruptRecordError for damaged batches, StorageError.
    """
    path = directory / file_names.EPOCHS
    found, problem = EpochCache(), "the file is missing or has lost entries"
    try:
        found = checkpoints.read_epochs(path)
        if covers(found, now):
            return found, False
    except DAMAGE as damage:
        problem = str(damage)
    return _made(directory, now, replica, found, problem)


def make_again(directory: Path, now: Published, replica: Replica, found: EpochCache) -> tuple[EpochCache, bool]:
    """As `read_or_make`, although a checkpoint with these epochs covers the log (LOGEPOCHS-4)."""
    return _made(directory, now, replica, found, "its epochs are not those of the batches")


def _made(directory: Path, now: Published, replica: Replica | None, found: EpochCache, problem: str) -> tuple[EpochCache, bool]:
    made = from_log(directory, now)
    if replica is not None and replica.role != ROLE_FOLLOWER and now.epoch > made.latest_epoch:  # LOGEPOCHS-3
        made.assign(now.epoch, replica.epoch_start if replica.role == ROLE_LEADER else now.log_end)
    if made.entries == found.entries:
        return found, False
    logger.warning("%s is made again from the log: %s", directory / file_names.EPOCHS, problem)
    return made, True


def from_log(directory: Path, now: Published) -> EpochCache:
    """The epochs of the batches up to the published end. Raises CorruptRecordError for batches that cannot be read."""
    bases = [base for base in file_names.bases(files.listing(directory)) if base <= now.segment_base]
    bases = [base for base, following in pairwise([*bases, now.log_end + 1]) if following > now.log_start]
    found = [(base, first) for base in bases if (first := _first(directory, base, now)) is not None]
    epochs = EpochCache()
    for number, (base, (epoch, start)) in enumerate(found, 1):
        if number < len(found) and epoch == found[number][1][0]:
            _assign(epochs, epoch, start)  # LOGEPOCHS-2
            continue
        for batches in _batches(directory, base, now):
            for each, offset in zip(batches["leader_epoch"].tolist(), batches["base_offset"].tolist(), strict=True):
                _assign(epochs, each, offset)
    if found and epochs.entries and epochs.entries[0] == found[0][1] and epochs.entries[0][1] > now.log_start:
        epochs.entries[0] = epochs.entries[0][0], now.log_start  # offsets at the log start were compacted away
    epochs.truncate_from_start(now.log_start)
    return epochs


def _assign(epochs: EpochCache, epoch: int, start: int) -> None:
    if epoch > epochs.latest_epoch:  # messages of magic 0 and 1 have none
        epochs.assign(epoch, start)


def _first(directory: Path, base: int, now: Published) -> tuple[int, int] | None:
    """The epoch and the base offset of the first batch of a segment, None if it is empty."""
    for batches in _batches(directory, base, now):
        return int(batches["leader_epoch"][0]), int(batches["base_offset"][0])
    return None


def _batches(directory: Path, base: int, now: Published) -> Iterator[Batches]:
    size = now.segment_size if base == now.segment_base else segment.size_of(directory, base)
    path = file_names.segment_path(directory, base)
    with files.opened(path) as fd:
        walk = segment.Walk(fd, path, Chain(base, gaps_allowed=True), 0, size)
        yield from walk
    if walk.problem is not None or walk.end < size:
        what = walk.problem.message if walk.problem is not None else "the file ends inside a batch"
        raise CorruptRecordError(what, path=path, position=walk.end, expected=f"batches up to byte {size}", found=walk.end)
