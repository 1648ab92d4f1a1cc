"""Loading a partition whose caches lie: what an index says is believed only where the log agrees."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

import embedlog

COUNT = 300
ENTRIES = {
    "before the file": (1 << 20, -5),
    "behind the file": (1 << 20, 1 << 30),
    "into the middle of a batch": (7, 3),
    "to another batch": (COUNT - 1, 0),
}


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    """A log of several segments that was closed in order."""
    with embedlog.open(tmp_path / "log", config={"log.segment.bytes": 10_000, "log.index.interval.bytes": 64}) as log:
        log.create_topic("t")
        with log.producer(batch_size=300, linger_ms=0) as producer:
            for number in range(COUNT):
                producer.send("t", b"%d" % number * 20)
    return tmp_path / "log"


@pytest.mark.parametrize("which", [0, -1], ids=["first segment", "active segment"])
@pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)
@pytest.mark.parametrize("read_only", [True, False], ids=["reading", "writing"])
def test_an_index_entry_that_points_elsewhere_costs_time_not_records(
    closed: Path, which: int, entry: tuple[int, int], read_only: bool
) -> None:
    path = sorted((closed / "t-0").glob("*.index"))[which]
    path.write_bytes(path.read_bytes() + struct.pack(">ii", *entry))
    with embedlog.open(closed, read_only=read_only) as log:
        assert [record.offset for record in log.scan("t").records()] == list(range(COUNT))
        with log.consumer(max_poll_records=1) as consumer:
            consumer.assign([tp := embedlog.TopicPartition("t", 0)])
            for offset in range(0, COUNT, 13):
                consumer.seek(tp, offset)
                assert [record.offset for record in consumer.poll(5)] == [offset]
