"""Runs of batches with a producer's stamp, for tests of one partition."""

from __future__ import annotations

import time

from embedlog.format import record_batch
from embedlog.format.record_batch import EncodedRun, Stamp
from embedlog.format.record_columns import BytesColumn, Columns
from embedlog.partition.partition import Partition


def run_of(*values: bytes, batch_bytes: int = 1 << 20) -> EncodedRun:
    columns = Columns(
        len(values), BytesColumn.of(list(values)), timestamps=time.time_ns() // 1_000_000
    )
    (run,) = record_batch.encode(columns, batch_bytes=batch_bytes, run_bytes=1 << 20)
    return run


def stamped(stamp: Stamp, sequence: int, *values: bytes, batch_bytes: int = 1 << 20) -> EncodedRun:
    run = run_of(*values, batch_bytes=batch_bytes)
    record_batch.stamp(run, stamp, sequence)
    return run


def send(partition: Partition, stamp: Stamp, sequence: int, *values: bytes) -> tuple[int, int]:
    """First and last offset."""
    found = partition.append(stamped(stamp, sequence, *(values or (b"x",))), stamp=stamp)
    return found.base_offset, found.last_offset
