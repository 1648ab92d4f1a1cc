"""Topics whose first records are deleted, and the records of each directory."""

from __future__ import annotations

import time
from typing import cast

import embedlog
from embedlog.format import record_batch
from embedlog.format.record_batch import EncodedRun
from embedlog.format.record_columns import BytesColumn, Columns
from embedlog.partition.partition import Partition
from tests.support.replica_partitions import Process

COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.0, "delete.retention.ms": 0}
MEMORY = 1 << 20


def keyed(key: bytes, value: bytes | None) -> EncodedRun:
    columns = Columns(
        1, BytesColumn.of([value]), BytesColumn.of([key]), timestamps=time.time_ns() // 1_000_000
    )
    (run,) = record_batch.encode(columns, batch_bytes=1 << 20, run_bytes=1 << 20)
    return run


def partition(process: Process, node: int) -> Partition:
    return own(process.disks[node].log)


def own(log: embedlog.Log) -> Partition:
    return cast("Partition", log._engine.partition("t", 0))


def put(
    process: Process, key: bytes, value: bytes | None, count: int = 1, *, all_in_sync: bool = True
) -> None:
    for _ in range(count):
        process.partition.append(keyed(key, value), all_in_sync=all_in_sync)


def records(found: Partition) -> list[tuple[bytes, bytes | None]]:
    """Keys and values of everything in a replica."""
    every = list[tuple[bytes, bytes | None]]()
    offset = found.published().log_start
    while len((fetched := found.replica.read(offset, 1 << 22)).batches):
        for columns in record_batch.decode_parts(
            fetched.data, fetched.batches, columns={"key", "value"}
        ):
            assert columns.keys is not None
            assert columns.values is not None
            every += [
                (key or b"", value) for key, value in zip(columns.keys, columns.values, strict=True)
            ]
        offset = fetched.next_offset
    return every


def values(found: Partition) -> dict[bytes, bytes]:
    """The last values by key."""
    return {
        key: value
        for key, value in dict(records(found)).items()
        if value is not None and key in (b"a", b"b", b"c")
    }
