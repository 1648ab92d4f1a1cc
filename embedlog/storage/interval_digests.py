"""Digests by index interval: a file of embedlog beside each segment, with a record for each entry
of its offset index.

- Kafka's CRC omits the first 21 bytes of a batch, and cannot distinguish a valid batch from another
  valid one in its place. The chain digest can. A record contains its value before the batch that an
  index entry points to.
- Records are made while appending, in step with the index, and whenever a segment is read from its
  start. Records are compared before they are replaced, so that a new digest never hides an earlier
  mismatch.
- A missing, torn or damaged record is skipped: its loss costs time, never data, and hides no damage.
- Records count only if the segment's digest was carried forward from its first byte (DIGESTED).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from embedlog._native import codec
from embedlog._native.lazy_numpy import np
from embedlog._native.scope import scope
from embedlog.errors import StorageError
from embedlog.format.record_batch import Problem
from embedlog.format.record_columns import HEADER_SIZE, Batches
from embedlog.storage import file_names, files

if TYPE_CHECKING:
    from numpy.typing import NDArray

RECORD_BYTES: Final = codec.DIGEST_RECORD_SIZE
LOG_BYTES_MAX: Final = 2**31 - 1  # a position in a segment is an int32
OTHERS: Final = "the batch headers of this segment differ from those that were written"


class State(NamedTuple):
    """Progress of a comparison: the next record's number, its position, the chain digest there, and
    the last position that agreed.
    """

    number: int = 0
    position: int = 0
    digest: int = 0
    agreed: int = 0


class Records:
    """The first `count` records of a segment, in an open file."""

    def __init__(self, fd: int, base: int, count: int) -> None:
        self._file = codec.Digests(fd, base, count)

    def state_at(self, number: int, position: int) -> State | None:
        """The state at the batch of an index entry, with the chain digest of all earlier batches;
        None if its record is not valid.
        """
        code, digest = self._file.at(number, position)
        if not _check(code):
            return None
        return State(number + 1, position, digest, position)

    def reach(self, state: State, limit: int, end: int) -> int:
        """The best end of a read from `state`, so that all of it can be compared; 0 if no record
        helps.
        """
        return _check(self._file.reach(state.number, state.position, limit, end))

    def compare(
        self, state: State, data: memoryview, batches: Batches
    ) -> tuple[State, Problem | None]:
        """Continue the chain over adjacent batches in `data`, and compare it at every record that
        it passes.

        With a problem, the state's `agreed` is the end of the bytes that are as written.
        """
        number, (position, agreed, digest), bad = self._file.compare(
            state.number, data, batches, (state.position, state.agreed, state.digest)
        )
        if bad is not None:
            problem_position, expected, actual = bad
            found = f"{actual:016x}" if actual else "no batch starts here"
            problem = Problem(problem_position, OTHERS, f"digest {expected:016x}", found)
            return state._replace(agreed=agreed), problem
        return State(_check(number), position, digest, agreed), None


@scope
def open_records(directory: Path, base: int, *, usable: bool = True) -> Iterator[Records | None]:
    """The records of a segment; None if it has no valid ones."""
    path = file_names.segment_path(directory, base, file_names.DIGESTS)
    if not usable or not files.exists(path):
        yield None
        return
    with files.opened(path) as fd:
        count = files.facts(fd, path).size // RECORD_BYTES
        yield Records(fd, base, min(count, _records_max(directory, base)))


def _records_max(directory: Path, base: int) -> int:
    """The most records that a segment can have: one for each batch. The file itself may be of any
    size, without any blocks.
    """
    log = files.facts_of(file_names.segment_path(directory, base, file_names.LOG))
    return min(log.size if log is not None else 0, LOG_BYTES_MAX) // HEADER_SIZE + 1


def digests_before(data: memoryview, batches: Batches, digest: int) -> NDArray[np.uint64]:
    """The chain digest before each of these adjacent batches in `data`."""
    digests = np.empty(len(batches), np.uint64)
    codec.digests_before(data, batches, digest, digests)
    return digests


def encode_record(base: int, number: int, position: int, digest: int) -> bytes:
    return codec.digest_record(base, number, position, digest)


def write_records(
    directory: Path, base: int, raw: bytes | bytearray, count: int, mode: int
) -> None:
    """Write records after the first `count` and truncate the rest: on disk before other records are
    written there.

    REQUIRES the append lock.
    """
    path = file_names.segment_path(directory, base, file_names.DIGESTS)
    end = count * RECORD_BYTES + len(raw)
    with files.opened(path, files.CREATE, mode) as fd:
        becomes_shorter = files.facts(fd, path).size > end
        files.write_all(fd, raw, count * RECORD_BYTES, path)
        files.truncate(fd, end, path)
        if becomes_shorter:
            files.datasync(fd, path)


def _check(code: int) -> int:
    """The code, 0 at least. Raises StorageError for the number of a system error."""
    if code <= -1000:
        raise StorageError("reading digests", errno=-code - 1000)
    return max(code, 0)
