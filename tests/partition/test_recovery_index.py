"""Loading a partition with wrong caches: an index counts only where the log agrees."""

from __future__ import annotations

import itertools
import struct
from pathlib import Path

import pytest

import embedlog
from embedlog import index

COUNT = 300
ENTRIES = {
    "before the file": (1 << 20, -5),
    "after the file": (1 << 20, 1 << 30),
    "into the middle of a batch": (7, 3),
    "to another batch": (COUNT - 1, 0),
}


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    """A log of several segments that was closed in order."""
    with embedlog.open(
        tmp_path / "log", config={"log.segment.bytes": 10_000, "log.index.interval.bytes": 64}
    ) as log:
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


@pytest.mark.parametrize("which", [0, -1], ids=["first segment", "active segment"])
@pytest.mark.parametrize("known", [True, False], ids=["with the manifest", "as a broker leaves it"])
def test_a_flipped_bit_of_the_last_time_entry_costs_time_not_records(
    closed: Path, which: int, known: bool
) -> None:
    """A sign bit there once made an offset that no control page takes: the partition could not be
    opened.
    """
    path = sorted((closed / "t-0").glob("*.timeindex"))[which]
    right = path.read_bytes()
    with embedlog.open(closed, read_only=True) as log:
        newest = log.scan("t").to_arrow()["timestamp"].to_pylist()[-1]
    for byte, bit in itertools.product(range(-index.TIME_ENTRY.size, 0), (0, 7)):
        damaged = bytearray(right)
        damaged[byte] ^= 1 << bit
        path.write_bytes(damaged)
        if not known:
            for own in (*closed.glob("embedlog.*"), *(closed / "t-0").glob("embedlog.*")):
                own.unlink()
        with embedlog.open(closed) as log:
            assert [record.offset for record in log.scan("t").records()] == list(range(COUNT)), (
                byte,
                bit,
            )
            if known:
                assert list(log.scan("t", start_time=newest).records()), (byte, bit)
        path.write_bytes(right)


@pytest.mark.parametrize("which", [0, -1], ids=["first segment", "active segment"])
def test_a_reader_searches_no_time_index_that_it_found_damaged(tmp_path: Path, which: int) -> None:
    """A reader cannot write the index again, so the bad entry stays in the file."""
    root = tmp_path / "log"
    config = {"log.segment.bytes": 10_000, "log.index.interval.bytes": 64}
    with embedlog.open(root, config=config) as log:
        log.create_topic("t")
        with log.producer(batch_size=300, linger_ms=0) as producer:
            for number in range(COUNT):
                producer.send("t", b"%d" % number * 20, timestamp_ms=1_000 + number)
    for own in (*root.glob("embedlog.*"), *(root / "t-0").glob("embedlog.*")):
        own.unlink()
    path = sorted((root / "t-0").glob("*.timeindex"))[which]
    right = path.read_bytes()
    for byte, bit in itertools.product(range(-4, -1), (0, 7)):
        damaged = bytearray(right)
        damaged[byte] ^= 1 << bit
        path.write_bytes(damaged)
        with embedlog.open(root, read_only=True, config=config) as log:
            partition = log._engine.partition("t", 0)
            found = [partition.offset_for_time(1_000 + number) for number in range(COUNT)]
        assert [each.offset if each else None for each in found] == list(range(COUNT)), (byte, bit)
