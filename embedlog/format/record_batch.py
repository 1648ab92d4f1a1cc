"""Contains Kafka's record batches: check, header changes, markers, and the names of encoder and
decoder.

- Every batch that `scan` returns has a correct CRC and continues the chain.
- A batch is encoded and checksummed once; offsets and epoch are stamped later, outside the CRC.
- The position of a batch is its byte in the scanned buffer plus the given base position.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from embedlog._native import codec
from embedlog._native._rows import encode_batch
from embedlog._native.lazy_numpy import np
from embedlog.errors import CorruptRecordError
from embedlog.format import legacy
from embedlog.format.decoder import (
    COLUMNS,
    DecodedPart,
    control_keys,
    decode,
    decode_parts,
    decode_some,
)
from embedlog.format.encoder import encode, group_by_partition, partitions_of
from embedlog.format.record_columns import (
    CODEC_MASK,
    CONTROL,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    ROW_BYTES,
    TRANSACTIONAL,
    Batches,
    BytesColumn,
    Columns,
    Decoded,
    EncodedRun,
    Head,
    Headers,
    Stamp,
    Window,
    batch_dtype,
    heads,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "ABORT",
    "batch_dtype",
    "CODEC_MASK",
    "COLUMNS",
    "COMMIT",
    "CONTROL",
    "HEADER_SIZE",
    "LOG_APPEND_TIME",
    "TRANSACTIONAL",
    "Batches",
    "BytesColumn",
    "Chain",
    "Columns",
    "Decoded",
    "EncodedRun",
    "Head",
    "Headers",
    "Marker",
    "DecodedPart",
    "Problem",
    "Scanned",
    "Stamp",
    "Window",
    "aborts",
    "decode",
    "decode_parts",
    "decode_some",
    "encode",
    "group_by_partition",
    "marker_batch",
    "markers",
    "partitions_of",
    "scan",
    "scan_heads",
    "set_header_fields",
    "stamp",
    "stamp_offsets",
]

ROWS_AT_ONCE = 1024  # batch rows of one call of the C core

# ---- scan ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class Chain:
    """The requirements for the next batch: its base offset (-1: any) and a minimum epoch. `scan`
    updates it after each valid batch.

    `segment_base` (-1: unknown) bounds the offsets to 2^31 - 1 above it (format.md 2.2).

    `digest` is the running XXH3 of bytes 0 to 20 of every batch, which Kafka's CRC does not cover.
    """

    next_offset: int = -1
    epoch: int = -1
    digest: int = 0
    gaps_allowed: bool = False
    segment_base: int = -1


class Problem(NamedTuple):
    """The reason why a scan stopped: the position of the invalid batch, a message,
    and the facts.
    """

    position: int
    message: str
    expected: int | str | None = None
    found: int | str | None = None

    def moved(self, size: int) -> Problem:
        """The same problem, for bytes that begin so much later."""
        return self._replace(position=self.position + size)

    @property
    def torn(self) -> bool:
        """Whether an incomplete write may be the cause. A valid batch with impossible offsets has
        another cause.
        """
        return self.message not in _IMPOSSIBLE_OFFSETS


_IMPOSSIBLE_OFFSETS = (codec.PROBLEM_TEXTS[codec.BAD_RANGE], legacy.OUT_OF_RANGE)


class Scanned(NamedTuple):
    """Valid batches, their total size, and the reason why the scan ended.

    If `problem` is None, the rest is empty, the limit was reached, or the rest begins a batch with
    `need` bytes (0: size unknown).
    """

    batches: Batches
    consumed: int
    problem: Problem | None
    need: int = 0


def scan(buffer: Any, chain: Chain, *, position: int = 0, limit: int | None = None) -> Scanned:
    """Checks the batches at the begin of a buffer, and updates `chain` after each valid one.

    `position` is added to the positions of batches and of a problem; `limit` is the maximum number
    of batches.

    **Threads:** any, each with its own chain.
    """
    parts: list[Batches] = []

    def take(rows: Batches, count: int, start: int) -> None:
        parts.append(rows[:count])
        if start + position:
            rows["position"][:count] += start + position

    consumed, need, problem = _scan_all(
        buffer, chain, limit, lambda count: np.empty(count, batch_dtype()), take
    )
    if problem is not None:
        problem = problem.moved(position)
    return Scanned(joined(parts), consumed, problem, need)


def scan_heads(
    buffer: Any, chain: Chain, position: int
) -> tuple[list[Head], int, int, Problem | None]:
    """As `scan`, without numpy: (heads of the batches, consumed, need, problem). For few
    batches.
    """
    all_heads: list[Head] = []

    def take(rows: bytearray, count: int, start: int) -> None:
        all_heads.extend(heads(memoryview(rows)[: count * ROW_BYTES]))

    consumed, need, problem = _scan_all(
        buffer, chain, None, lambda count: bytearray(count * ROW_BYTES), take
    )
    if problem is not None:
        problem = problem.moved(position)
    return all_heads, consumed, need, problem


def _scan_all(
    buffer: Any,
    chain: Chain,
    limit: int | None,
    new: Callable[[int], Any],
    take: Callable[[Any, int, int], None],
) -> tuple[int, int, Problem | None]:
    """Checks batches: (consumed, need, problem). `new` makes memory for rows;
    `take(rows, count, start)` gets each part.
    """
    view = memoryview(buffer).cast("B")
    start = 0
    need = 0
    problem = None
    remaining_count = len(view) if limit is None else limit  # more than that many bytes can hold
    while remaining_count > 0 and problem is None and start < len(view):
        row_count = min(remaining_count, ROWS_AT_ONCE, (len(view) - start) // HEADER_SIZE + 1)
        rows = new(row_count)
        count, consumed, need, problem = _scan_some(view, start, chain, rows)
        take(rows, count, start)
        start += consumed
        remaining_count -= count
        if count < row_count and not consumed:
            break  # the view ends inside a batch or an old message, or the first one is bad
        if problem is None and need:
            break  # the view ends inside the batch after these
    return start, need, problem


def joined(parts: list[Batches]) -> Batches:
    """All rows in one array. np.concatenate takes longer for the field names than a scan of a
    megabyte.
    """
    if len(parts) == 1:
        return parts[0]
    return np.frombuffer(bytearray().join(part.data for part in parts), batch_dtype())


def _scan_some(
    view: memoryview, start: int, chain: Chain, rows: Any
) -> tuple[int, int, int, Problem | None]:
    """One call of the C core, or one old message: (count, consumed, need, problem). `rows`: memory
    for batch rows.
    """
    state = (chain.next_offset, chain.segment_base, chain.epoch, chain.digest, chain.gaps_allowed)
    count, consumed, need, after, bad = codec.scan(view, start, state, rows)
    chain.next_offset, chain.epoch, chain.digest = after
    # an old message after good batches is met by the next call, as its first one
    if bad.what == codec.LEGACY and count == 0:
        rows = np.frombuffer(rows, batch_dtype())
        message = legacy.scan(view[start:], chain.next_offset, chain.segment_base, rows)
        if isinstance(message, legacy.Broken):
            return 0, 0, 0, Problem(start, message.what, message.expected, message.found)
        if not message.consumed:
            return 0, 0, message.need, None
        chain.digest = codec.xxh3_64(view[start : start + codec.DIGEST_SIZE], chain.digest)
        chain.next_offset = int(rows["base_offset"][0]) + 1
        return 1, message.consumed, message.need, None
    if bad.what in (0, codec.LEGACY):
        return count, consumed, need, None
    return count, consumed, 0, _problem(bad, start)


def _problem(bad: Any, start: int) -> Problem:
    position = start + int(bad.position)
    message = codec.PROBLEM_TEXTS[bad.what]
    expected = int(bad.expected)
    actual = int(bad.found)
    if bad.what == codec.BAD_CRC:
        return Problem(position, message, f"{expected:08x}", f"{actual:08x}")
    return Problem(position, message, expected, actual)


# ---- headers of sealed batches -------------------------------------------------------------------


def stamp_offsets(
    run: Any, base_offset: int, leader_epoch: int, digest: int = 0
) -> tuple[int, int]:
    """Writes offsets, from `base_offset` on, and the epoch into every batch of a run: (next offset,
    digest).
    """
    next_offset, digest = codec.stamp(run, base_offset, leader_epoch, digest)
    if next_offset < 0:
        raise CorruptRecordError("sizes of the batches of a run do not add up")
    return next_offset, digest


def stamp(run: EncodedRun, stamp: Stamp, first_sequence: int) -> int:
    """Writes a producer into every batch of a run, in place and into its rows, with consecutive
    sequences; returns the next sequence.

    No body is read. The call may be repeated with other values, but not during an append of the
    run.
    """
    next_sequence = codec.stamp_producer(
        run.buffer, run.batches, stamp.producer_id, stamp.epoch, first_sequence, stamp.transactional
    )
    if next_sequence < 0:
        raise CorruptRecordError("sizes of the batches of a run do not add up")
    return next_sequence


def set_header_fields(
    batch: Any,
    *,
    attributes: int | None = None,
    max_timestamp: int | None = None,
    producer: tuple[int, int] | None = None,
    base_sequence: int | None = None,
) -> None:
    """Changes fields of one sealed batch in place and updates its CRC without reading the records.

    `producer` is (producer id, producer epoch).
    """
    fields = np.zeros(1, batch_dtype())
    fields["attributes"] = attributes or 0
    fields["max_timestamp"] = max_timestamp or 0
    fields["producer_id"], fields["producer_epoch"] = producer or (0, 0)
    fields["base_sequence"] = base_sequence or 0
    is_changed = (
        attributes is not None,
        max_timestamp is not None,
        producer is not None,
        base_sequence is not None,
    )
    if codec.set_header_fields(batch, fields, *is_changed) < 0:
        raise CorruptRecordError("a batch is shorter than its header")


# ---- control batches -----------------------------------------------------------------------------

ABORT = 0
COMMIT = 1

_MARKER_KEY = struct.Struct(">hh")  # version, kind
_MARKER_VALUE = struct.Struct(">hi")  # version, coordinator epoch


def marker_batch(
    producer_id: int, epoch: int, commit: bool, coordinator_epoch: int, timestamp_ms: int
) -> bytes:
    """The control batch that ends a transaction, as Kafka writes it: 78 bytes, offset 0 (format.md
    13.3).
    """
    record = (
        _MARKER_KEY.pack(0, COMMIT if commit else ABORT),
        _MARKER_VALUE.pack(0, coordinator_epoch),
    )
    return encode_batch([record], timestamp_ms, TRANSACTIONAL | CONTROL, producer_id, epoch, -1)


class Marker(NamedTuple):
    """A control record: `row` in the given batches, `kind` ABORT, COMMIT or another one of
    Kafka.
    """

    row: int
    offset: int
    producer_id: int
    producer_epoch: int
    kind: int
    coordinator_epoch: int


def markers(data: Any, batches: Batches, *, position: int = 0) -> list[Marker]:
    """The control records among the batches. Raises CorruptRecordError for one that cannot be
    read.
    """
    rows = np.flatnonzero(batches["attributes"] & CONTROL)
    if not len(rows):
        return []
    control_markers = []
    control = batches[rows]
    last_offsets = (control["base_offset"] + control["last_offset_delta"]).tolist()
    positions = control["position"].tolist()
    producer_ids = control["producer_id"].tolist()
    producer_epochs = control["producer_epoch"].tolist()
    for offset, key, value in control_keys(data, control, position):
        number = bisect_left(last_offsets, offset)
        if len(key) < 4 or int.from_bytes(key[:2], "big", signed=True) < 0:
            raise CorruptRecordError(
                "key of a control record", position=positions[number], found=key.hex()
            )
        coordinator_epoch = -1
        if len(value) >= 6:
            coordinator_epoch = int.from_bytes(value[2:6], "big", signed=True)
        control_markers.append(
            Marker(
                row=int(rows[number]),
                offset=offset,
                producer_id=producer_ids[number],
                producer_epoch=producer_epochs[number],
                kind=int.from_bytes(key[2:4], "big", signed=True),
                coordinator_epoch=coordinator_epoch,
            )
        )
    return control_markers


def aborts(data: Any, batches: Batches, *, position: int = 0) -> NDArray[np.bool_]:
    """For each batch, whether it is the marker that aborts a transaction of its producer."""
    is_abort = np.zeros(len(batches), np.bool_)
    for marker in markers(data, batches, position=position):
        is_abort[marker.row] |= marker.kind == ABORT
    return is_abort
