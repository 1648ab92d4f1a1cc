"""Encodes columns as sealed record batches, and chooses partitions by keys.

- A run is encoded in memory of the buffer pool; the caller owns it and may stamp it in place.
- Batches are compressed on all cores; a batch that does not become smaller stays uncompressed,
  which is cheaper to read.
- Inconsistent columns, or columns that change meanwhile, raise InvalidRecordError before any byte
  of that run is returned.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from embedlog._native import codec as native
from embedlog._native._rows import encode_batch
from embedlog._native.lazy_numpy import np
from embedlog.errors import InvalidRecordError, RecordTooLargeError
from embedlog.format import compression
from embedlog.format.buffer_pool import BufferPool, SharedBytes, shared_pool
from embedlog.format.record_columns import (
    HEADER_SIZE,
    LOG_APPEND_TIME,
    NO_STAMP,
    TRANSACTIONAL,
    Batches,
    BytesColumn,
    Columns,
    EncodedRun,
    Stamp,
    batch_dtype,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

BATCH_BYTES = 1 << 20  # Kafka's default max.message.bytes is a little more
BATCHES_MAX = 4096  # of one run

# ---- partitions ----------------------------------------------------------------------------------


def partitions_of(keys: BytesColumn, partition_count: int) -> NDArray[np.int32]:
    """Kafka's partition of every key; -1 for a null key."""
    numbers = np.empty(len(keys), np.int32)
    column = (keys.data, keys.offsets, keys.validity, keys.validity_offset)
    if native.assign_partitions(column, partition_count, numbers) < 0:
        raise InvalidRecordError("offsets of the keys' column do not rise within its data")
    return numbers


def group_by_partition(numbers: NDArray[np.int32], partition_count: int) -> list[NDArray[np.int64]]:
    """The row numbers of each partition, in order; rows with number -1 are in none."""
    rows = np.empty(len(numbers), np.int64)
    starts = np.empty(partition_count + 1, np.int64)
    contiguous = np.ascontiguousarray(numbers, np.int32)
    if native.group_rows(contiguous, partition_count, rows, starts) < 0:
        raise InvalidRecordError("partition of a record", expected=f"0 to {partition_count - 1}")
    return [rows[starts[number] : starts[number + 1]] for number in range(partition_count)]


# ---- encode --------------------------------------------------------------------------------------


class _RunPlan(NamedTuple):
    """The parameters of a run."""

    codec: int
    level: int | None
    batch_bytes: int
    run_bytes: int
    compressed_max: int
    pool: BufferPool


def encode(
    columns: Columns,
    *,
    codec: int = 0,
    level: int | None = None,
    batch_bytes: int = BATCH_BYTES,
    selection: NDArray[np.int64] | None = None,
    timestamp_type: int = 0,
    run_bytes: int | None = None,
    pool: BufferPool | None = None,
    compressed_max: int = compression.LIMIT_BYTES,
) -> Iterator[EncodedRun]:
    """Sealed runs of batches of at most `batch_bytes` (before compression), in row order or in that
    of `selection`.

    A larger record gets a batch of its own. `run_bytes` is encoded at once: by default one batch,
    or with a codec two per core. A batch of more than `compressed_max` stays uncompressed, because
    readers refuse to decompress it. Raises InvalidRecordError for inconsistent columns.

    **Threads:** an iterator belongs to one; any number of threads may encode the same columns.
    """
    encoder = _make_encoder(
        columns, selection, batch_bytes, LOG_APPEND_TIME if timestamp_type else 0
    )
    if run_bytes is None:
        run_bytes = batch_bytes
        if codec:
            run_bytes *= 2 * compression.core_count()
    plan = _RunPlan(
        codec=codec,
        level=level,
        batch_bytes=batch_bytes,
        run_bytes=max(run_bytes, batch_bytes, HEADER_SIZE),
        compressed_max=compressed_max,
        pool=pool or shared_pool(),
    )
    row_count = columns.count if selection is None else len(selection)
    return _encode_runs(encoder, row_count, plan)


def _make_encoder(
    columns: Columns, selection: NDArray[np.int64] | None, batch_bytes: int, attributes: int
) -> native.Encoder:
    count = columns.count if selection is None else len(selection)
    encoder = native.Encoder(columns.count, count, batch_bytes, attributes)
    _add_column(encoder, "values", columns.values, columns.count)
    _add_column(encoder, "keys", columns.keys, columns.count)
    if isinstance(columns.timestamps, int):
        encoder.set_timestamp(columns.timestamps)
    else:
        _check_length("timestamps", len(columns.timestamps), columns.count)
        encoder.set_array(
            "timestamps", "int64_t[]", np.ascontiguousarray(columns.timestamps, np.int64)
        )
    if columns.headers is not None:
        _check_length("headers", len(columns.headers.starts) - 1, columns.count)
        encoder.set_array(
            "header_starts", "int32_t[]", np.ascontiguousarray(columns.headers.starts, np.int32)
        )
        _add_column(encoder, "header_keys", columns.headers.keys, len(columns.headers.keys))
        _add_column(encoder, "header_values", columns.headers.values, len(columns.headers.keys))
    if selection is not None:
        encoder.set_array("selection", "int64_t[]", np.ascontiguousarray(selection, np.int64))
    return encoder


def _add_column(encoder: native.Encoder, name: str, column: BytesColumn | None, count: int) -> None:
    if column is None:
        return
    _check_length(name, len(column), count)
    required_bits = column.validity_offset + count
    if column.validity is not None and 8 * len(column.validity) < required_bits:
        raise InvalidRecordError(
            f"validity bits of {name}", expected=required_bits, found=8 * len(column.validity)
        )
    encoder.set_column(name, column.data, column.offsets, column.validity, column.validity_offset)


def _check_length(name: str, length: int, expected: int) -> None:
    if length != expected:
        raise InvalidRecordError(f"rows of {name}", expected=expected, found=length)


def _encode_runs(encoder: native.Encoder, total: int, plan: _RunPlan) -> Iterator[EncodedRun]:
    while encoder.next < total:
        run = _encode_run(encoder, plan)
        yield run if plan.codec == 0 else _compress_run(run, plan)


def _encode_run(encoder: native.Encoder, plan: _RunPlan) -> EncodedRun:
    size = plan.run_bytes
    first = encoder.next
    batch_count_max = 2 * plan.run_bytes // max(plan.batch_bytes, HEADER_SIZE) + 2
    batches = np.empty(min(BATCHES_MAX, batch_count_max), batch_dtype())
    while True:
        buffer = plan.pool.lease(size).array
        written, count = encoder.run(buffer, batches)
        if written != native.ESPACE:
            break
        size = encoder.need
    if written == native.EINVALID and encoder.need > 2**31 - 1:
        raise RecordTooLargeError(
            f"row {encoder.next} of the columns makes a batch that the format does not allow",
            expected="below 2 GiB",
        )
    if written == native.ECHANGED:
        raise InvalidRecordError(
            f"row {encoder.next} of the columns changed while it was encoded; they must not be "
            "written until the call returns"
        )
    if written < 0:
        raise InvalidRecordError(
            f"row {encoder.next} of the columns: no such row, or its offsets do not rise within "
            "the data"
        )
    return EncodedRun(buffer.data[:written], count, encoder.next - first, written, batches[:count])


def _compress_run(run: EncodedRun, plan: _RunPlan) -> EncodedRun:
    shared = SharedBytes(run.buffer)

    def pack(row: int) -> memoryview:
        start = int(run.batches["position"][row])
        size = int(run.batches["size"][row])
        body = shared.view()[start + HEADER_SIZE : start + size]
        if len(body) > plan.compressed_max:
            return body
        packed = memoryview(compression.compress(plan.codec, body, plan.level)).cast("B")
        return packed if len(packed) < len(body) else body

    bodies = compression.each(pack, range(run.batch_count))
    batches = run.batches.copy()
    buffer = plan.pool.lease(run.size).array
    position = 0
    for row, body in enumerate(bodies):
        start = int(run.batches["position"][row])
        size = HEADER_SIZE + len(body)
        batch = buffer[position : position + size]
        batch[:HEADER_SIZE] = run.buffer[start : start + HEADER_SIZE]
        batch[HEADER_SIZE:] = body
        packed = size < int(run.batches["size"][row])
        native.reseal(batch, len(body), plan.codec if packed else 0)
        _update_row(batches, row, batch, position)
        position += size
    return EncodedRun(buffer.data[:position], run.batch_count, run.record_count, position, batches)


def _update_row(batches: Batches, row: int, batch: NDArray[np.uint8], position: int) -> None:
    """Writes the fields that sealing changed into the row."""
    batches["position"][row] = position
    batches["size"][row] = len(batch)
    batches["crc"][row] = int.from_bytes(batch[17:21].tobytes(), "big")
    batches["attributes"][row] = int.from_bytes(batch[21:23].tobytes(), "big", signed=True)


# ---- a few records -------------------------------------------------------------------------------


def encode_records(
    records: list[tuple[bytes, bytes | None]],
    timestamp_ms: int,
    stamp: Stamp = NO_STAMP,
    sequence: int = -1,
) -> bytes:
    """One uncompressed batch of a few records with one timestamp, without the cost of columns."""
    attributes = TRANSACTIONAL if stamp.transactional else 0
    return encode_batch(records, timestamp_ms, attributes, stamp.producer_id, stamp.epoch, sequence)


__all__ = ["BATCH_BYTES", "encode", "encode_records", "group_by_partition", "partitions_of"]
