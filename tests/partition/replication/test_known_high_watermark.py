"""A replica without a role: nothing after its checkpointed high watermark is retained away,
compacted, or noted as committed.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from embedlog._native import system
from embedlog._native.replication import ROLE_NONE
from embedlog.config.options import overlay
from embedlog.format import record_batch
from embedlog.format.record_columns import BytesColumn, Columns
from embedlog.partition.partition import Partition
from embedlog.storage import checkpoints, file_names
from tests.support.replica_logs import lead, replica

COMPACT = {
    "cleanup.policy": "compact,delete",
    "min.cleanable.dirty.ratio": 0.0,
    "delete.retention.ms": 0,
}


def put(partition: Partition, key: bytes, value: bytes, count: int = 1) -> None:
    for _ in range(count):
        columns = Columns(
            1,
            BytesColumn.of([value]),
            BytesColumn.of([key]),
            timestamps=time.time_ns() // 1_000_000,
        )
        (run,) = record_batch.encode(columns, batch_bytes=1 << 20, run_bytes=1 << 20)
        partition.append(run)


def offsets_of(partition: Partition, key: bytes) -> list[int]:
    found = list[int]()
    offset = partition.published().log_start
    while len((fetched := partition.replica.read(offset)).batches):
        for columns in record_batch.decode_parts(
            fetched.data, fetched.batches, columns={"offset", "key"}
        ):
            assert columns.keys is not None
            found += [
                int(at)
                for at, each in zip(columns.offsets, columns.keys, strict=True)
                if each == key
            ]
        offset = fetched.next_offset
    return found


@contextlib.contextmanager
def without_a_role(root: Path) -> Iterator[Partition]:
    """A replica after an orderly close: `k` is committed at 0, and was overwritten after the high
    watermark, at 6.
    """
    with replica(root, config=COMPACT) as partition:
        lead(partition, 0, isr=1)
        put(partition, b"k", b"committed")
        put(partition, b"fill", b"x" * 700, 5)
        assert partition.replica.commit([], 0) == 6
        lead(partition, 1, isr=3)  # another member has nothing of what follows
        put(partition, b"k", b"not committed")
        put(partition, b"fill", b"x" * 700, 9)
        assert partition.published().high_watermark == 6
    with replica(root) as partition:
        _, found = partition.replica.published()
        assert found.role == ROLE_NONE
        assert partition.published().high_watermark == 16, (
            "a page that was made from files shows their end"
        )
        yield partition


def test_compaction_keeps_what_is_committed(tmp_path: Path) -> None:
    with without_a_role(tmp_path / "log") as partition:
        partition.compact(-1, 1 << 20, system.wall_ms() + 1000)
        assert offsets_of(partition, b"k") == [0, 6]
        assert partition.published().purged_to <= 6


def test_retention_keeps_what_may_be_cut(tmp_path: Path) -> None:
    with without_a_role(tmp_path / "log") as partition:
        partition.apply_config(overlay(partition.config, {"retention.bytes": 0}))
        partition.retain()
        assert 0 < partition.published().log_start <= 6


@pytest.mark.parametrize("closing", [False, True])
def test_the_checkpoint_of_the_high_watermark_stays(tmp_path: Path, closing: bool) -> None:
    root = tmp_path / "log"
    with without_a_role(root) as partition:
        assert partition.checkpoint(closing=closing).high_watermark == 6
        partition._state.mark_dirty()  # so that it is closed again
    assert checkpoints.read_offsets(root / file_names.HIGH_WATERMARKS)["t", 0] == 6
