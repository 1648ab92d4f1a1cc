"""Reads beside the deletion of their topic: the typed error, whatever the read finds in the files
(READER, SEGMENTLIST).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog import Log, UnknownTopicOrPartitionError
from embedlog._native.system import Published
from embedlog.partition.partition import Partition
from embedlog.partition.segment_list import SegmentList
from embedlog.storage import files
from tests.support.small_logs import append, opened

SMALL = {"segment.bytes": 400, "flush.ms": 3_600_000}

READS: dict[str, Callable[[Partition], object]] = {
    "fetch": lambda partition: partition.fetch(0),
    "committed": lambda partition: partition.fetch(0, isolation="read_committed"),
    "split_points": lambda partition: partition.split_points(0, 20, 100),
    "end_by_time": lambda partition: partition.end_by_time(0, 20, 1),
    "skip_by_time": lambda partition: partition.skip_by_time(0, 1, 2),
    "offset_for_time": lambda partition: partition.offset_for_time(1 << 50),
}


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with opened(tmp_path / "log") as made:
        made.create_topic("t", config=SMALL)
        append(made, 20)
        yield made


def partition_of(log: Log) -> Partition:
    found = log._engine.partition("t", 0)
    assert isinstance(found, Partition)
    return found


def deleted_by_another_process(log: Log) -> None:
    """The open partition stays in this process as it is: another process cannot close it."""
    with embedlog.open(log.path) as other:
        other.delete_topic("t")


def recreated_by_another_process(log: Log) -> None:
    with embedlog.open(log.path) as other:
        other.delete_topic("t")
        other.create_topic("t", config=SMALL)
        append(other, 60)


@pytest.mark.parametrize("change", [deleted_by_another_process, recreated_by_another_process])
@pytest.mark.parametrize("read", READS)
def test_a_topic_that_is_deleted_during_a_read(
    log: Log, read: str, change: Callable[[Log], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deletion comes after the check at the begin of the read, and before it looks for the
    files.
    """
    partition = partition_of(log)
    refresh = SegmentList._refresh
    done = list[bool]()
    partition.fetch(0)

    def late(segments: SegmentList, now: Published) -> Any:
        if not done:
            done.append(True)
            change(log)
            partition._forget_caches()
        return refresh(segments, now)

    monkeypatch.setattr(SegmentList, "_refresh", late)
    with pytest.raises(UnknownTopicOrPartitionError, match="deleted"):
        READS[read](partition)
    assert done


def test_an_empty_directory_has_no_segments(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = partition_of(log)
    now = partition.published()
    assert now.segment_base > 0
    monkeypatch.setattr(files, "listing", lambda path: [])
    assert partition._segments._list_directory(now, {}) == []
