"""This module makes the leader epochs of a log again from its batches, if the
leader-epoch-checkpoint is missing or damaged.

LOGEPOCHS-1  a checkpoint covers a log if its first epoch starts at the log start. Otherwise entries
    are missing: a follower would not be cut where its log and that of the leader diverge
    (REPLICA-2)
LOGEPOCHS-2  epochs never fall within a log. A segment that begins in the epoch in which the next
    one begins has that epoch only
LOGEPOCHS-3  an epoch of the page without a batch is stored again: the next batches of a leader have
    it
LOGEPOCHS-4  a changed number in the checkpoint is as well-formed as the true one. A follower reads
    its batches before a cut below its high watermark, and if its last epoch is above that of the
    leader's next batch
LOGEPOCHS-5  batches that cannot be read, or that differ from their digests, are damage of the log:
    nothing is written then
LOGEPOCHS-6  before a process believes a checkpoint, it compares the batches before and after each
    start, the first and the last one. These are two header reads from an index entry for each
    epoch. Each epoch is compared once, because later ones that are added or removed do not change
    it. Without an index entry within `ROWS_MAX` batches an epoch is not compared
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Final

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

DAMAGE: Final = (CorruptRecordError, ForeignDirectoryError, UnsupportedFormatError)
OTHERS: Final = "its epochs are not those of the batches"
# an index interval of 4 KiB has fewer batches; below `index.interval.bytes` of 32 KiB all have
ROWS_MAX: Final = 512


def covers(epochs: EpochCache, now: Published) -> bool:
    """Whether each offset of a log has an epoch (LOGEPOCHS-1)."""
    return now.log_end == now.log_start or bool(
        epochs.entries and epochs.entries[0][1] <= now.log_start
    )


def read_or_make(
    directory: Path,
    now: Published,
    replica: Replica | None = None,
    *,
    compare: bool = True,
    file: EpochFile | None = None,
    digests: bool = True,
) -> tuple[EpochCache, bool]:
    """The epochs of a log that ends as `now` describes it, and whether they were made from its
    batches.

    `compare`: with the batches (LOGEPOCHS-6), unless `file` has compared these entries. `digests`:
    the segments have valid ones. REQUIRES that no process changes the files. Raises
    CorruptRecordError for damaged batches, StorageError.
    """
    found = EpochCache()
    problem = "the file is missing or has lost entries"
    try:
        found = (
            checkpoints.read_epochs(directory / file_names.EPOCHS) if file is None else file.read()
        )
        if covers(found, now):
            compared = None if file is None else file.compared
            if not compare or found.entries == compared or agrees(directory, now, found, compared):
                return found, False
            problem = OTHERS
    except DAMAGE as damage:
        problem = str(damage)
    return _made(directory, now, replica, found, problem, digests=digests)


def make_again(
    directory: Path, now: Published, replica: Replica, found: EpochCache
) -> tuple[EpochCache, bool]:
    """As `read_or_make`, although a checkpoint with these epochs covers the log (LOGEPOCHS-4)."""
    return _made(directory, now, replica, found, OTHERS)


def _made(
    directory: Path,
    now: Published,
    replica: Replica | None,
    found: EpochCache,
    problem: str,
    *,
    digests: bool = True,
) -> tuple[EpochCache, bool]:
    made = from_log(directory, now, digests=digests)
    # LOGEPOCHS-3
    if replica is not None and replica.role != ROLE_FOLLOWER and now.epoch > made.latest_epoch:
        made.assign(now.epoch, replica.epoch_start if replica.role == ROLE_LEADER else now.log_end)
    if made.entries == found.entries:
        return found, False
    logger.warning("%s is made again from the log: %s", directory / file_names.EPOCHS, problem)
    return made, True


# ---- comparison ----------------------------------------------------------------------------------


def agrees(
    directory: Path,
    now: Published,
    epochs: EpochCache,
    compared: Sequence[tuple[int, int]] | None = None,
) -> bool:
    """Whether the batches next to each start have the epochs of a checkpoint that covers the log
    (LOGEPOCHS-6).

    `compared`: the entries of an earlier checkpoint of this log that agreed. Without the append
    lock, False can also mean that the files have changed meanwhile.
    """
    if now.log_end == now.log_start:
        return True
    bases = _bases(directory, now)
    known = sum(
        1
        for _ in takewhile(
            lambda pair: pair[0] == pair[1], zip(epochs.entries, compared or (), strict=False)
        )
    )
    starts = [start for _, start in epochs.entries[known:] if now.log_start < start < now.log_end]
    try:
        for offset in (now.log_start, *starts, now.log_end - 1):
            rows = _rows_at(directory, bases, offset, now)
            inside = offset in starts and any(base < offset <= last for base, last, _ in rows)
            expected = [epochs.epoch_for(max(base, now.log_start)) for base, _, _ in rows]
            if inside or any(
                row[2] not in (NO_EPOCH, epoch) for row, epoch in zip(rows, expected, strict=True)
            ):
                return False
    except CorruptRecordError:
        return False  # a full read shows what is wrong
    return True


def _bases(directory: Path, now: Published) -> list[int]:
    bases = [
        base for base in file_names.bases(files.listing(directory)) if base <= now.segment_base
    ]
    return [
        base for base, following in pairwise([*bases, now.log_end + 1]) if following > now.log_start
    ]


def _rows_at(
    directory: Path, bases: list[int], offset: int, now: Published
) -> list[tuple[int, int, int]]:
    """First offset, last offset and epoch of the last batch before an offset, and of the first one
    at or after it.

    The batches before the log start do not count.
    """
    found: list[tuple[int, int, int]] = []
    for at in (max(offset - 1, now.log_start), offset):
        base = next((each for each in reversed(bases) if each <= at), None)
        if base is not None and not (found and found[-1][0] >= offset):
            found += _rows_in(directory, base, at, offset, now)
    before = [row for row in found if row[1] < offset and row[1] >= now.log_start]
    after = [row for row in found if row[1] >= offset]
    return [*before[-1:], *after[:1]]


def _rows_in(
    directory: Path, base: int, at: int, offset: int, now: Published
) -> list[tuple[int, int, int]]:
    """The batches of a segment from an index entry at or below `at` to the first one at or after
    `offset`; none without one.
    """
    active = base == now.segment_base
    size = now.segment_size if active else segment.size_of(directory, base)
    path = file_names.segment_path(directory, base)
    rows = np.empty(ROWS_MAX, batch_dtype())
    with files.opened(path) as fd:
        position = _position(directory, base, at, now.index_entries if active else None, fd, size)
        step = 2
        found: list[tuple[int, int, int]] = []
        while position < size and len(found) + step <= ROWS_MAX:
            count, position = system.walk_headers(fd, position, size, rows[:step], base)
            for row in rows[:count]:
                first = int(row["base_offset"])
                delta = int(row["last_offset_delta"])
                epoch = int(row["leader_epoch"])
                found.append((first, first + delta, epoch))
                if first + delta >= offset:
                    return found
            step *= 4
    return found if position >= size else []


def _position(
    directory: Path, base: int, offset: int, entries: int | None, fd: int, size: int
) -> int:
    """A position at or before the batch of an offset, by the index of the segment."""
    path = file_names.segment_path(directory, base, file_names.INDEX)
    known = index.count(path, index.OFFSET_ENTRY.size) if entries is None else entries
    if not known or not files.exists(path):
        return 0
    with files.opened(path) as index_fd:
        place = index.offset_floor(index_fd, known, base, offset)
    return (
        place.position if place.number >= 0 and index.names_its_batch(fd, place, base, size) else 0
    )


# ---- the batches ---------------------------------------------------------------------------------


def from_log(directory: Path, now: Published, *, digests: bool = True) -> EpochCache:
    """The epochs of the batches up to the published end. Raises CorruptRecordError for batches that
    cannot be read.
    """
    bases = _bases(directory, now)
    found = [(base, first) for base in bases if (first := _first(directory, base, now)) is not None]
    epochs = EpochCache()
    for number, (base, (epoch, start)) in enumerate(found, 1):
        if number < len(found) and epoch == found[number][1][0] != NO_EPOCH:
            _assign(epochs, epoch, start)  # LOGEPOCHS-2
            continue
        for batches in _batches(directory, base, now, digests=digests):
            for each, offset in zip(
                batches["leader_epoch"].tolist(), batches["base_offset"].tolist(), strict=True
            ):
                _assign(epochs, each, offset)
    if (
        found
        and epochs.entries
        and epochs.entries[0] == found[0][1]
        and epochs.entries[0][1] > now.log_start
    ):
        # offsets at the log start were compacted away
        epochs.entries[0] = epochs.entries[0][0], now.log_start
    epochs.truncate_from_start(now.log_start)
    return epochs


def _assign(epochs: EpochCache, epoch: int, start: int) -> None:
    if epoch > epochs.latest_epoch:  # messages of magic 0 and 1 have none
        epochs.assign(epoch, start)


def _first(directory: Path, base: int, now: Published) -> tuple[int, int] | None:
    """The epoch and the base offset of the first batch of a segment, None if it is empty."""
    for batches in _batches(directory, base, now, digests=False):
        return int(batches["leader_epoch"][0]), int(batches["base_offset"][0])
    return None


def _batches(directory: Path, base: int, now: Published, *, digests: bool) -> Iterator[Batches]:
    size = now.segment_size if base == now.segment_base else segment.size_of(directory, base)
    path = file_names.segment_path(directory, base)
    with (
        files.opened(path) as fd,
        interval_digests.open_records(directory, base, usable=digests) as records,
    ):
        walk = segment.Walk(fd, path, Chain(base, gaps_allowed=True), 0, size, records)
        yield from walk
    if walk.problem is not None or walk.end < size:
        what = walk.problem.message if walk.problem is not None else "the file ends inside a batch"
        raise CorruptRecordError(
            what,
            path=path,
            position=walk.end,
            expected=f"batches up to byte {size}",
            found=walk.end,
        )
    if (
        digests
        and base == now.segment_base
        and now.flags & DIGESTED
        and walk.chain.digest != now.digest
    ):
        expected = f"digest {now.digest:016x}"
        found = f"{walk.chain.digest:016x}"
        raise CorruptRecordError(
            interval_digests.OTHERS, path=path, position=size, expected=expected, found=found
        )
