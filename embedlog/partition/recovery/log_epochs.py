"""This module makes the leader epochs of a log again from its batches, if the
leader-epoch-checkpoint is missing or damaged.

- A checkpoint covers a log if its first epoch starts at the log start. Otherwise entries are
  missing: a follower would not be cut where its log and that of the leader diverge (REPLICA-2).
- Epochs never fall within a log. A segment that begins in the epoch in which the next one begins
  has that epoch only.
- An epoch of the page without a batch is stored again: the next batches of a leader have it.
- A changed number in the checkpoint is as well-formed as the true one. A follower reads its batches
  before a cut below its high watermark, and if its last epoch is above that of the leader's next
  batch.
- Batches that cannot be read, or that differ from their digests, are damage of the log: nothing is
  written then.
- Before a process believes a checkpoint, it compares the batches before and after each start, the
  first and the last one. These are two header reads from an index entry for each epoch. Each epoch
  is compared once, because later ones that are added or removed do not change it. Without an index
  entry within `ROWS_MAX` batches an epoch is not compared.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from embedlog import index, segment
from embedlog._native import system
from embedlog._native.lazy_numpy import np
from embedlog._native.replication import ROLE_FOLLOWER, ROLE_LEADER, Replica
from embedlog._native.system import Published
from embedlog.errors import CorruptRecordError, ForeignDirectoryError, UnsupportedFormatError
from embedlog.format.record_batch import Batches, Chain, batch_dtype
from embedlog.partition.epoch_file import EpochFile
from embedlog.storage import checkpoints, file_names, files, interval_digests
from embedlog.storage.checkpoints import NO_EPOCH, EpochCache
from embedlog.storage.manifest import DIGESTED

logger = logging.getLogger("embedlog")

EPOCH_FILE_ERRORS: Final = (CorruptRecordError, ForeignDirectoryError, UnsupportedFormatError)
OTHER_EPOCHS: Final = "its epochs are not those of the batches"
# an index interval of 4 KiB has fewer batches; below `index.interval.bytes` of 32 KiB all have
ROWS_MAX: Final = 512


class _BatchEpoch(NamedTuple):
    """The first and the last offset of a batch, and its epoch."""

    first: int
    last: int
    epoch: int


def covers(epochs: EpochCache, published: Published) -> bool:
    """Whether each offset of a log has an epoch."""
    if published.log_end == published.log_start:
        return True
    return bool(epochs.entries) and epochs.entries[0][1] <= published.log_start


def read_or_make(
    directory: Path,
    published: Published,
    replica: Replica | None = None,
    *,
    compare: bool = True,
    file: EpochFile | None = None,
    digests: bool = True,
) -> tuple[EpochCache, bool]:
    """The epochs of a log that ends as `published` describes it, and whether they were made from
    its batches.

    `compare`: with the batches (`agrees`), unless `file` has compared these entries. `digests`: the
    segments have valid ones. REQUIRES that no process changes the files. Raises CorruptRecordError
    for damaged batches, StorageError.
    """
    epochs = EpochCache()
    problem = "the file is missing or has lost entries"
    compared = None
    try:
        if file is None:
            epochs = checkpoints.read_epochs(directory / file_names.EPOCHS)
        else:
            epochs = file.read()
            compared = file.compared
        if covers(epochs, published):
            if (
                not compare
                or epochs.entries == compared
                or agrees(directory, published, epochs, compared)
            ):
                return epochs, False
            problem = OTHER_EPOCHS
    except EPOCH_FILE_ERRORS as damage:
        problem = str(damage)
    return _make(directory, published, replica, epochs, problem, digests=digests)


def make_again(
    directory: Path, published: Published, replica: Replica, stored: EpochCache
) -> tuple[EpochCache, bool]:
    """As `read_or_make`, although a checkpoint with the `stored` epochs covers the log."""
    return _make(directory, published, replica, stored, OTHER_EPOCHS)


def _make(
    directory: Path,
    published: Published,
    replica: Replica | None,
    stored: EpochCache,
    problem: str,
    *,
    digests: bool = True,
) -> tuple[EpochCache, bool]:
    epochs = read_log(directory, published, digests=digests)
    if (
        replica is not None
        and replica.role != ROLE_FOLLOWER
        and published.epoch > epochs.latest_epoch
    ):
        # it has no batch yet: the next batches of a leader have it
        start = published.log_end
        if replica.role == ROLE_LEADER:
            start = replica.epoch_start
        epochs.assign(published.epoch, start)
    if epochs.entries == stored.entries:
        return stored, False
    logger.warning("%s is made again from the log: %s", directory / file_names.EPOCHS, problem)
    return epochs, True


# ---- comparison ----------------------------------------------------------------------------------


def agrees(
    directory: Path,
    published: Published,
    epochs: EpochCache,
    compared: Sequence[tuple[int, int]] | None = None,
) -> bool:
    """Whether the batches next to each start have the epochs of a checkpoint that covers the log.

    `compared`: the entries of an earlier checkpoint of this log that agreed. Without the append
    lock, False can also mean that the files have changed meanwhile.
    """
    if published.log_end == published.log_start:
        return True
    bases = _find_bases(directory, published)
    compared_count = 0
    for entry, compared_entry in zip(epochs.entries, compared or (), strict=False):
        if entry != compared_entry:
            break
        compared_count += 1
    starts = [
        start
        for _, start in epochs.entries[compared_count:]
        if published.log_start < start < published.log_end
    ]
    try:
        for offset in (published.log_start, *starts, published.log_end - 1):
            for batch in _read_around(directory, bases, offset, published):
                if offset in starts and batch.first < offset <= batch.last:
                    return False  # an epoch does not begin inside a batch
                expected = epochs.epoch_for(max(batch.first, published.log_start))
                if batch.epoch not in (NO_EPOCH, expected):
                    return False
    except CorruptRecordError:
        return False  # a full read shows what is wrong
    return True


def _find_bases(directory: Path, published: Published) -> list[int]:
    bases = [
        base
        for base in file_names.bases(files.listing(directory))
        if base <= published.segment_base
    ]
    return [
        base
        for base, following in pairwise([*bases, published.log_end + 1])
        if following > published.log_start
    ]


def _read_around(
    directory: Path, bases: list[int], offset: int, published: Published
) -> list[_BatchEpoch]:
    """The last batch before an offset, and the first one at or after it.

    The batches before the log start do not count.
    """
    batches: list[_BatchEpoch] = []
    for start in (max(offset - 1, published.log_start), offset):
        if batches and batches[-1].first >= offset:
            break
        base = next((base for base in reversed(bases) if base <= start), None)
        if base is not None:
            batches += _read_rows(directory, base, start, offset, published)
    before = [batch for batch in batches if published.log_start <= batch.last < offset]
    after = [batch for batch in batches if batch.last >= offset]
    return [*before[-1:], *after[:1]]


def _read_rows(
    directory: Path, base: int, start: int, offset: int, published: Published
) -> list[_BatchEpoch]:
    """The batches of a segment from an index entry at or below `start` to the first one at or after
    `offset`; none without one.
    """
    is_active = base == published.segment_base
    if is_active:
        size = published.segment_size
        entries = published.index_entries
    else:
        size = segment.size_of(directory, base)
        entries = None
    path = file_names.segment_path(directory, base)
    rows = np.empty(ROWS_MAX, batch_dtype())
    with files.opened(path) as fd:
        position = _find_position(directory, base, start, entries, fd, size)
        step = 2
        batches: list[_BatchEpoch] = []
        while position < size and len(batches) + step <= ROWS_MAX:
            count, position = system.walk_headers(fd, position, size, rows[:step], base)
            for row in rows[:count]:
                first = int(row["base_offset"])
                last = first + int(row["last_offset_delta"])
                batches.append(_BatchEpoch(first, last, int(row["leader_epoch"])))
                if last >= offset:
                    return batches
            step *= 4
    if position < size:
        return []
    return batches


def _find_position(
    directory: Path, base: int, offset: int, entries: int | None, fd: int, size: int
) -> int:
    """A position at or before the batch of an offset, by the index of the segment."""
    path = file_names.segment_path(directory, base, file_names.INDEX)
    if entries is None:
        entries = index.count_entries(path, index.OFFSET_ENTRY.size)
    if not entries or not files.exists(path):
        return 0
    with files.opened(path) as index_fd:
        entry = index.offset_floor(index_fd, entries, base, offset)
    if entry.number < 0 or not index.names_its_batch(fd, entry, base, size):
        return 0
    return entry.position


# ---- the batches ---------------------------------------------------------------------------------


def read_log(directory: Path, published: Published, *, digests: bool = True) -> EpochCache:
    """The epochs of the batches up to the published end. Raises CorruptRecordError for batches that
    cannot be read.
    """
    bases = _find_bases(directory, published)
    # base of each segment with a batch; epoch and base offset of its first one
    first_batches: list[tuple[int, tuple[int, int]]] = []
    for base in bases:
        first = _read_first(directory, base, published)
        if first is not None:
            first_batches.append((base, first))
    epochs = EpochCache()
    for number, (base, (epoch, start)) in enumerate(first_batches, 1):
        if number < len(first_batches) and epoch == first_batches[number][1][0] != NO_EPOCH:
            # epochs never fall, so the whole segment has this one
            _assign(epochs, epoch, start)
            continue
        for batches in _read_batches(directory, base, published, digests=digests):
            for batch_epoch, offset in zip(
                batches["leader_epoch"].tolist(), batches["base_offset"].tolist(), strict=True
            ):
                _assign(epochs, batch_epoch, offset)
    if (
        first_batches
        and epochs.entries
        and epochs.entries[0] == first_batches[0][1]
        and epochs.entries[0][1] > published.log_start
    ):
        # offsets at the log start were compacted away
        epochs.entries[0] = (epochs.entries[0][0], published.log_start)
    epochs.truncate_from_start(published.log_start)
    return epochs


def _assign(epochs: EpochCache, epoch: int, start: int) -> None:
    if epoch > epochs.latest_epoch:  # messages of magic 0 and 1 have none
        epochs.assign(epoch, start)


def _read_first(directory: Path, base: int, published: Published) -> tuple[int, int] | None:
    """The epoch and the base offset of the first batch of a segment, None if it is empty."""
    for batches in _read_batches(directory, base, published, digests=False):
        return int(batches["leader_epoch"][0]), int(batches["base_offset"][0])
    return None


def _read_batches(
    directory: Path, base: int, published: Published, *, digests: bool
) -> Iterator[Batches]:
    if base == published.segment_base:
        size = published.segment_size
    else:
        size = segment.size_of(directory, base)
    path = file_names.segment_path(directory, base)
    with (
        files.opened(path) as fd,
        interval_digests.open_records(directory, base, usable=digests) as records,
    ):
        walk = segment.Walk(fd, path, Chain(base, gaps_allowed=True), 0, size, records)
        yield from walk
    if walk.problem is not None or walk.end < size:
        problem = (
            walk.problem.message if walk.problem is not None else "the file ends inside a batch"
        )
        raise CorruptRecordError(
            problem,
            path=path,
            position=walk.end,
            expected=f"batches up to byte {size}",
            found=walk.end,
        )
    if (
        digests
        and base == published.segment_base
        and published.flags & DIGESTED
        and walk.chain.digest != published.digest
    ):
        expected = f"digest {published.digest:016x}"
        found = f"{walk.chain.digest:016x}"
        raise CorruptRecordError(
            interval_digests.OTHERS, path=path, position=size, expected=expected, found=found
        )
