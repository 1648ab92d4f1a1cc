"""Digests by index interval: a record for each entry of a segment's offset index, in a file of ours beside it.

DIGEST-1  Kafka's CRC leaves out the first 21 bytes of a batch, and cannot tell a valid batch from another one in its place: the
    chain digest can, and a record holds its value before the batch that an index entry points to
DIGEST-2  records are made while appending, in step with the index, and when a segment is read from its start anyhow; they are
    compared before they are replaced, so that nobody blesses what an older one contradicts
DIGEST-3  a record that is missing, torn or damaged is passed over: losing one costs time, never data, and hides nothing
DIGEST-4  only a segment whose digest was carried on from its first byte (DIGESTED) has records that count
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from embedlog._native import codec, system
from embedlog.errors import StorageError
from embedlog.format.record_batch import Problem
from embedlog.format.record_columns import Batches
from embedlog.storage import file_names, files

RECORD_BYTES: Final = codec.DIGEST_RECORD_SIZE
OTHERS: Final = "the batch heads of this segment are not those that were written"


class State(NamedTuple):
    """How far a reader has compared: the next record's number, its position and the chain there, and where it agreed last."""

    number: int = 0
    position: int = 0
    digest: int = 0
    agreed: int = 0


class Records:
    """The first `count` records of a segment, in an open file."""

    def __init__(self, fd: int, base: int, count: int) -> None:
        self._file = codec.Digests(fd, base, count)

    def seed(self, number: int, position: int) -> State | None:
        """Where the batch of an index entry begins, with the chain digest of all before it; None if its record does not hold."""
        found, digest = self._file.at(number, position)
        return State(number + 1, position, digest, position) if _checked(found) else None

    def reach(self, state: State, limit: int, end: int) -> int:
        """Where a read from `state` ends best, so that all of it can be compared; 0 if no record helps."""
        return _checked(self._file.reach(state.number, state.position, limit, end))

    def compare(self, state: State, data: memoryview, batches: Batches) -> tuple[State, Problem | None]:
        """Carry the chain on over batches that lie one behind the other in `data`, and compare it at every record passed.

        With a problem the state's `agreed` says up to where all is as it was written.
        """
        number, (position, agreed, digest), bad = self._file.compare(
            state.number, data, batches, (state.position, state.agreed, state.digest)
        )
        if bad is not None:
            found = f"{bad[2]:016x}" if bad[2] else "no batch that begins here"
            return state._replace(agreed=agreed), Problem(bad[0], OTHERS, f"digest {bad[1]:016x}", found)
        return State(_checked(number), position, digest, agreed), None


@contextlib.contextmanager
def opened(directory: Path, base: int, *, usable: bool = True) -> Iterator[Records | None]:
    """All records of a segment, None if there are none that count."""
    path = file_names.segment_path(directory, base, file_names.DIGESTS)
    if not usable or system.mutated("no_interval_digest") or not files.exists(path):
        yield None
        return
    with files.opened(path) as fd:
        yield Records(fd, base, files.facts(fd, path).size // RECORD_BYTES)


def before(data: memoryview, batches: Batches, digest: int) -> NDArray[np.uint64]:
    """The chain digest before each of these batches, which lie one behind the other in `data`."""
    made = np.empty(len(batches), np.uint64)
    codec.digests_before(data, batches, digest, made)
    return made


def record(base: int, number: int, position: int, digest: int) -> bytes:
    return codec.digest_record(base, number, position, digest)


def write(directory: Path, base: int, raw: bytes | bytearray, count: int, mode: int) -> None:
    """Put records behind the first `count`, and cut what follows: on disk, before others are written there.

    REQUIRES the append lock.
    """
    path, end = file_names.segment_path(directory, base, file_names.DIGESTS), count * RECORD_BYTES + len(raw)
    with files.opened(path, files.CREATE, mode) as fd:
        shorter = files.facts(fd, path).size > end
        files.write_all(fd, raw, count * RECORD_BYTES, path)
        files.truncate(fd, end, path)
        if shorter:
            files.datasync(fd, path)


def _checked(code: int) -> int:
    if code <= -1000:
        raise StorageError("reading digests", errno=-code - 1000)
    return max(code, 0)
