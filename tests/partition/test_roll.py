"""Rolling: segments that reserve their space, and the few partitions whose write descriptors stay
open.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import embedlog
from embedlog.integrity.directory_check import check_closed

SEGMENT_BYTES = 100_000


def log_sizes(directory: Path) -> list[int]:
    return [path.stat().st_size for path in sorted(directory.glob("events-0/*.log"))]


def fill(log: embedlog.Log, count: int) -> None:
    with log.producer(batch_size=1000) as producer:
        for number in range(count):
            producer.send("events", b"%0100d" % number)


def test_preallocated_segments_reserve_their_space_and_give_back_what_they_did_not_use(
    tmp_path: Path,
) -> None:
    with embedlog.open(tmp_path) as log:
        log.create_topic("events", config={"preallocate": True, "segment.bytes": SEGMENT_BYTES})
        fill(log, 3000)
        sizes = log_sizes(tmp_path)
        assert sizes[-1] == SEGMENT_BYTES, "the active segment has all of its space"
        assert all(size < SEGMENT_BYTES for size in sizes[:-1]), (
            "a sealed one ends with its last batch"
        )
    assert log_sizes(tmp_path)[-1] < SEGMENT_BYTES, "closed in order, the last one too"
    with embedlog.open(tmp_path, read_only=True) as log:
        values = [record.value for record in log.scan("events").records()]
    assert values == [b"%0100d" % number for number in range(3000)]


@pytest.mark.parametrize("names", [["d1"], ["d1", "d2", "d3"]], ids=["directory", "set"])
def test_a_log_that_was_only_read_reserves_nothing_that_a_later_opening_would_cut(
    tmp_path: Path, names: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    paths = [tmp_path / name for name in names]
    with embedlog.open(paths) as log:
        log.create_topic("other")
    with embedlog.open(paths) as log:
        log.create_topic(
            "events",
            replication_factor=len(names),
            config={"preallocate": True, "segment.bytes": SEGMENT_BYTES},
        )
        assert list(log.scan("events").records()) == []
    for path in paths:
        report = check_closed(path)
        assert report.findings == (), str(report)
    with embedlog.open(paths) as log:
        assert list(log.scan("events").records()) == []
        fill(log, 1)
        assert log_sizes(paths[0]) == [SEGMENT_BYTES], "the first write reserves them"
    assert "cut" not in caplog.text
    assert not list(tmp_path.glob("*/events-0/embedlog.cut-*"))
    assert log_sizes(paths[0])[0] < SEGMENT_BYTES


def test_the_partition_that_is_written_to_keeps_its_descriptors(tmp_path: Path) -> None:
    with embedlog.open(tmp_path, config={"max.open.files": 64}) as log, log.producer() as producer:
        log.create_topic("many", 20)
        busy = log._engine.partition("many", 0)
        for number in range(1, 20):
            producer.send("many", b"often", partition=0).result()
            writer = busy._state.writer
            producer.send("many", b"once", partition=number).result()
            assert busy._state.writer is writer is not None, (
                f"given back when partition {number} was opened"
            )
        given_back = [
            number
            for number in range(1, 20)
            if log._engine.partition("many", number)._state.writer is None
        ]
        assert given_back, "one thread must have returned its descriptor"
