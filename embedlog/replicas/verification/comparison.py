"""This module compares the committed records of a replica with those of its leader.

- All bytes from the larger log start up to the smaller end are read with every check of a reader,
  and compared.
- Each replica of a compacted topic is compacted on its own: there the last value of each key is
  compared, with its offset. Deleted keys and aborted transactions do not count.
- A chunk that cannot be read is read again in the shortest pieces that have a digest: the
  difference begins at the first unreadable piece.
- No lock is held. A log start that moves during the comparison moves the comparison.
- A segment without a file is damage, also if an open descriptor still reads it. Such a replica
  begins again.
"""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from embedlog._native.lazy_numpy import np
from embedlog.errors import CorruptRecordError, OffsetOutOfRangeError, StorageError
from embedlog.format import record_batch
from embedlog.format.visibility import READ_COMMITTED, filter_visible
from embedlog.storage import files

if TYPE_CHECKING:
    from embedlog.partition.interfaces import Fetched
    from embedlog.partition.partition import Partition

CHUNK_BYTES: Final = 1 << 20
DIGEST_BYTES: Final = 16

Advance = Callable[[int], object]  # gets the number of bytes that were compared


class LastValue(NamedTuple):
    """The last value of a key: its offset and its digest."""

    offset: int
    digest: bytes


class Difference(NamedTuple):
    """The first difference of a replica: offsets from `first` to `end` are to be copied again, all
    of them with `anew`.
    """

    kind: str
    path: Path
    first: int
    end: int
    text: str
    anew: bool = False


class SourceDamagedError(Exception):
    """The leader's own log is damaged. Never leaves the package."""

    def __init__(self, difference: Difference) -> None:
        super().__init__(difference.text)
        self.difference = difference


class _Damaged(Exception):
    """A replica cannot be read from an offset on; with `anew` it cannot be cut there either."""

    def __init__(self, offset: int, path: Path, problem: str, *, anew: bool = False) -> None:
        super().__init__(problem)
        self.offset = offset
        self.path = path
        self.anew = anew

    def difference(self, end: int) -> Difference:
        """The damage, up to the end of the comparison."""
        return Difference("damaged", self.path, self.offset, end, str(self), self.anew)


def compare(
    leader: Partition, follower: Partition, advance: Advance = lambda size: None
) -> Difference | None:
    """The first difference below both ends; None without one. Raises SourceDamagedError, and errors
    of the storage.
    """
    if leader.config.compacted:
        end = min(_stable_end(leader), _stable_end(follower))
        damage = _find_damage(follower, end, advance)
        if damage is not None:
            return damage
        return _compare_keys(leader, follower, end, advance)
    end = min(leader.published().high_watermark, follower.published().log_end)
    return _compare_bytes(leader, follower, end, advance)


def check(partition: Partition, first: int) -> None:
    """Read the records of a leader from an offset up to the high watermark. Raises
    SourceDamagedError.
    """
    end = partition.published().high_watermark
    damage = _find_damage(partition, end, lambda size: None, first)
    if damage is not None:
        raise SourceDamagedError(damage)


def _stable_end(partition: Partition) -> int:
    now = partition.published()
    if now.first_unstable < 0:
        return now.high_watermark
    return min(now.high_watermark, now.first_unstable)


def _read(partition: Partition, at: int, end: int) -> Fetched:
    """The batches from an offset on. Raises _Damaged if the first one cannot be read."""
    try:
        fetched = partition.replica.read(at, CHUNK_BYTES, end)
    except CorruptRecordError:
        pass
    except StorageError as problem:
        raise _as_damage(partition, at, problem) from problem
    else:
        _check_files(partition, at)
        return fetched
    try:
        return partition.replica.read(at, 1, end)
    except CorruptRecordError as problem:
        raise _Damaged(at, _damaged_file(partition, problem), str(problem)) from problem


def _as_damage(partition: Partition, at: int, problem: StorageError) -> _Damaged | StorageError:
    """A missing file as damage; the error itself if another one, or the whole partition, is
    missing.
    """
    if (
        problem.errno != errno.ENOENT
        or problem.path is None
        or Path(problem.path).parent != partition.path
    ):
        return problem
    if not files.is_directory(partition.path):
        return problem
    return _Damaged(at, Path(problem.path), str(problem), anew=True)


def _check_files(partition: Partition, at: int) -> None:
    """Raise _Damaged if the segment with an offset was removed. Its open descriptor reads it
    further.
    """
    missing = partition.replica.missing_segment(at)
    if missing is not None and partition.published().log_start <= at:
        raise _Damaged(at, missing, "the segment is missing", anew=True)


def _damaged_file(partition: Partition, problem: CorruptRecordError) -> Path:
    if problem.path is None:
        return partition.path
    return partition.path / problem.path


def _find_damage(
    partition: Partition, end: int, advance: Advance, first: int = 0
) -> Difference | None:
    """The damage of a replica below an offset."""
    offset = max(first, partition.published().log_start)
    while offset < end:
        try:
            fetched = _read(partition, offset, end)
        except OffsetOutOfRangeError:
            log_start = partition.published().log_start
            if log_start <= offset:
                raise
            offset = log_start
            continue
        except _Damaged as damage:
            return damage.difference(end)
        if not len(fetched.batches):
            return None
        advance(len(fetched.data))
        offset = max(fetched.next_offset, partition.published().log_start)
    return None


# ---- bytes ---------------------------------------------------------------------------------------


def _compare_bytes(
    leader: Partition, follower: Partition, end: int, advance: Advance
) -> Difference | None:
    next_offset = 0
    while True:
        # a log start that has moved moves the comparison
        offset = max(next_offset, leader.published().log_start, follower.published().log_start)
        if offset >= end:
            return None
        try:
            ours = _read(leader, offset, end)
        except OffsetOutOfRangeError:
            if leader.published().log_start > offset:
                continue
            raise
        except _Damaged as damage:
            raise SourceDamagedError(damage.difference(end)) from damage
        try:
            theirs = _read(follower, offset, end)
        except OffsetOutOfRangeError:
            if follower.published().log_start > offset:
                continue
            raise
        except _Damaged as damage:
            return damage.difference(end)
        if not len(ours.batches) and not len(theirs.batches):
            return None
        if not len(theirs.batches) or not len(ours.batches):
            text = f"only one of both logs has records at offset {offset}"
            return Difference("different", follower.path, offset, end, text)
        different_offset = _find_first_different(ours, theirs)
        if different_offset is not None:
            text = f"other bytes than the leader from offset {different_offset} on"
            return Difference("different", theirs.path, different_offset, end, text)
        next_offset = min(ours.next_offset, theirs.next_offset)
        advance(min(len(ours.data), len(theirs.data)))


def _find_first_different(ours: Fetched, theirs: Fetched) -> int | None:
    """The offset of the first batch with other bytes; the shorter chunk is compared."""
    our_bytes = _bytes_of(ours)
    their_bytes = _bytes_of(theirs)
    size = min(len(our_bytes), len(their_bytes))
    different = np.flatnonzero(our_bytes[:size] != their_bytes[:size])
    if not len(different):
        return None
    positions = ours.batches["position"] - ours.batches["position"][0]
    row = int(np.searchsorted(positions, different[0], "right")) - 1
    return int(ours.batches["base_offset"][row])


def _bytes_of(fetched: Fetched) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    first = fetched.batches[0]
    last = fetched.batches[-1]
    start = int(first["position"])
    end = int(last["position"]) + int(last["size"])
    return np.frombuffer(fetched.data, np.uint8)[start:end]


# ---- keys ----------------------------------------------------------------------------------------


def _compare_keys(
    leader: Partition, follower: Partition, end: int, advance: Advance
) -> Difference | None:
    """The difference of two compacted logs: the last value of a key, or its offset."""
    damage = _find_damage(leader, end, advance)
    if damage is not None:
        raise SourceDamagedError(damage)
    ours = _read_last_values(leader, end, advance)
    theirs = _read_last_values(follower, end, advance)
    start = max(leader.published().log_start, follower.published().log_start)
    offsets = list[int]()  # of the keys with different values
    for key in ours.keys() | theirs.keys():
        if ours.get(key) == theirs.get(key):
            continue
        our_offset = ours[key].offset if key in ours else 0
        their_offset = theirs[key].offset if key in theirs else 0
        offset = max(our_offset, their_offset)
        if offset >= start:
            offsets.append(offset)
    if not offsets:
        return None
    text = f"{len(offsets)} keys with another last value than in the leader"
    return Difference("different", follower.path, min(offsets), end, text, anew=True)


def _read_last_values(partition: Partition, end: int, advance: Advance) -> dict[bytes, LastValue]:
    """The last value of each key below an offset."""
    values: dict[bytes, LastValue] = {}
    offset = partition.published().log_start
    while offset < end:
        try:
            fetched = partition.fetch(
                offset, max_bytes=CHUNK_BYTES, isolation=READ_COMMITTED, upto=end
            )
        except OffsetOutOfRangeError:
            log_start = partition.published().log_start
            if log_start <= offset:
                raise
            offset = log_start
            continue
        if not len(fetched.batches):
            break
        _note_last_values(values, fetched, end)
        advance(len(fetched.data))
        offset = max(fetched.next_offset, partition.published().log_start)
    return values


def _note_last_values(values: dict[bytes, LastValue], fetched: Fetched, end: int) -> None:
    """Note the last values of a chunk; a deleted key is removed."""
    aborts = record_batch.aborts(fetched.data, fetched.batches) if fetched.aborted else None
    batches = filter_visible(fetched.batches, fetched.aborted, aborts)
    for part in record_batch.decode_parts(
        fetched.data, batches, columns={"offset", "key", "value"}
    ):
        assert part.offsets is not None
        assert part.keys is not None
        assert part.values is not None
        for offset, key, value in zip(part.offsets.tolist(), part.keys, part.values, strict=True):
            if key is None or offset >= end:
                continue
            if value is None:
                values.pop(key, None)
            else:
                digest = hashlib.blake2b(value, digest_size=DIGEST_BYTES).digest()
                values[key] = LastValue(offset, digest)
