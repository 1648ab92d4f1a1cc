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

Note = Callable[[int], object]  # gets the number of bytes that were compared
Last = dict[bytes, tuple[int, bytes]]  # by key: the offset and the digest of its last value


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
    leader: Partition, follower: Partition, note: Note = lambda size: None
) -> Difference | None:
    """The first difference below both ends; None without one. Raises SourceDamagedError, and errors
    of the storage.
    """
    if leader.config.compacted:
        end = min(_stable_end(leader), _stable_end(follower))
        return _damage(follower, end, note) or _different_keys(leader, follower, end, note)
    return _different_bytes(
        leader, follower, min(leader.published().high_watermark, follower.published().log_end), note
    )


def check(partition: Partition, first: int) -> None:
    """Read the records of a leader from an offset up to the high watermark. Raises
    SourceDamagedError.
    """
    found = _damage(partition, partition.published().high_watermark, lambda size: None, first)
    if found is not None:
        raise SourceDamagedError(found)


def _stable_end(partition: Partition) -> int:
    now = partition.published()
    return (
        now.high_watermark
        if now.first_unstable < 0
        else min(now.high_watermark, now.first_unstable)
    )


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
        raise _Damaged(at, _file(partition, problem), str(problem)) from problem


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
    return (
        problem
        if not files.is_directory(partition.path)
        else _Damaged(at, Path(problem.path), str(problem), anew=True)
    )


def _check_files(partition: Partition, at: int) -> None:
    """Raise _Damaged if the segment with an offset was removed. Its open descriptor reads it
    further.
    """
    missing = partition.replica.missing_segment(at)
    if missing is not None and partition.published().log_start <= at:
        raise _Damaged(at, missing, "the segment is missing", anew=True)


def _file(partition: Partition, problem: CorruptRecordError) -> Path:
    return partition.path if problem.path is None else partition.path / problem.path


def _damage(partition: Partition, end: int, note: Note, first: int = 0) -> Difference | None:
    """The damage of a replica below an offset."""
    at = first
    while (at := max(at, partition.published().log_start)) < end:
        try:
            fetched = _read(partition, at, end)
        except OffsetOutOfRangeError:
            if partition.published().log_start > at:
                continue
            raise
        except _Damaged as found:
            return found.difference(end)
        if not len(fetched.batches):
            return None
        note(len(fetched.data))
        at = fetched.next_offset
    return None


# ---- bytes ---------------------------------------------------------------------------------------


def _different_bytes(
    leader: Partition, follower: Partition, end: int, note: Note
) -> Difference | None:
    at = 0
    while (at := max(at, leader.published().log_start, follower.published().log_start)) < end:
        try:
            ours = _read(leader, at, end)
        except OffsetOutOfRangeError:
            if leader.published().log_start > at:
                continue
            raise
        except _Damaged as found:
            raise SourceDamagedError(found.difference(end)) from found
        try:
            theirs = _read(follower, at, end)
        except OffsetOutOfRangeError:
            if follower.published().log_start > at:
                continue
            raise
        except _Damaged as found:
            return found.difference(end)
        if not len(ours.batches) and not len(theirs.batches):
            return None
        if not len(theirs.batches) or not len(ours.batches):
            return Difference(
                "different",
                follower.path,
                at,
                end,
                f"only one of both logs has records at offset {at}",
            )
        found_at = _first_different(ours, theirs)
        if found_at is not None:
            return Difference(
                "different",
                theirs.path,
                found_at,
                end,
                f"other bytes than the leader from offset {found_at} on",
            )
        at = min(ours.next_offset, theirs.next_offset)
        note(min(len(ours.data), len(theirs.data)))
    return None


def _first_different(ours: Fetched, theirs: Fetched) -> int | None:
    """The offset of the first batch with other bytes; the shorter chunk is compared."""
    one = _bytes_of(ours)
    other = _bytes_of(theirs)
    size = min(len(one), len(other))
    wrong = np.flatnonzero(one[:size] != other[:size])
    if not len(wrong):
        return None
    positions = ours.batches["position"] - ours.batches["position"][0]
    row = int(np.searchsorted(positions, wrong[0], "right")) - 1
    return int(ours.batches["base_offset"][row])


def _bytes_of(fetched: Fetched) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    first = fetched.batches[0]
    last = fetched.batches[-1]
    start = int(first["position"])
    end = int(last["position"]) + int(last["size"])
    return np.frombuffer(fetched.data, np.uint8)[start:end]


# ---- keys ----------------------------------------------------------------------------------------


def _different_keys(
    leader: Partition, follower: Partition, end: int, note: Note
) -> Difference | None:
    """The difference of two compacted logs: the last value of a key, or its offset."""
    damage = _damage(leader, end, note)
    if damage is not None:
        raise SourceDamagedError(damage)
    ours = _last_values(leader, end, note)
    theirs = _last_values(follower, end, note)
    start = max(leader.published().log_start, follower.published().log_start)
    wrong = [
        max(ours.get(key, (0,))[0], theirs.get(key, (0,))[0])
        for key in ours.keys() | theirs.keys()
        if ours.get(key) != theirs.get(key)
    ]
    wrong = [offset for offset in wrong if offset >= start]
    if not wrong:
        return None
    text = f"{len(wrong)} keys with another last value than in the leader"
    return Difference("different", follower.path, min(wrong), end, text, anew=True)


def _last_values(partition: Partition, end: int, note: Note) -> Last:
    found: Last = {}
    at = 0
    while (at := max(at, partition.published().log_start)) < end:
        try:
            fetched = partition.fetch(at, max_bytes=CHUNK_BYTES, isolation=READ_COMMITTED, upto=end)
        except OffsetOutOfRangeError:
            if partition.published().log_start > at:
                continue
            raise
        if not len(fetched.batches):
            break
        _take(found, fetched, end)
        note(len(fetched.data))
        at = fetched.next_offset
    return found


def _take(found: Last, fetched: Fetched, end: int) -> None:
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
                found.pop(key, None)
            else:
                found[key] = offset, hashlib.blake2b(value, digest_size=DIGEST_BYTES).digest()
