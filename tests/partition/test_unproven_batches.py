"""Batches before a damaged one are returned up to the last digest that agrees, however the read is
divided.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import embedlog
from embedlog.errors import CorruptRecordError
from embedlog.format.record_batch import Chain, scan

SIZE_AT = 8  # of the size in a batch header
INTERVAL_BYTES = 300
# of the values: entries of the index have one to four batches
SIZES = (50, 50, 50, 700, 50, 100, 100, 400, 50, 50)


@contextmanager
def changed(path: Path, position: int, mask: int) -> Iterator[None]:
    """One byte of a file has other bits meanwhile."""
    with path.open("r+b", buffering=0) as file:
        byte = os.pread(file.fileno(), 1, position)[0]
        os.pwrite(file.fileno(), bytes([byte ^ mask]), position)
        yield
        os.pwrite(file.fileno(), bytes([byte]), position)


def read(log: embedlog.Log, max_bytes: int) -> tuple[int, str]:
    """The end of what reads from the start return before an error, and the error."""
    partition = log._engine.partition("t", 0)
    offset = 0
    partition._reader.forget()
    try:
        while offset < partition.bounds().high_watermark:
            offset = partition.fetch(
                offset, max_bytes=max_bytes, isolation="read_uncommitted"
            ).next_offset
    except CorruptRecordError as error:
        return offset, str(error)
    return offset, ""


@pytest.mark.parametrize("max_bytes", [1, 400, 1_000, 1 << 20])
def test_a_damaged_size_ends_reads_at_the_last_digest_before_it(
    tmp_path: Path, max_bytes: int
) -> None:
    """Also where the read ends within the batch, so that its checksum is not compared."""
    with embedlog.open(tmp_path / "log", config={"housekeeping": False}) as log:
        log.create_topic("t", config={"index.interval.bytes": INTERVAL_BYTES})
        with log.producer(batch_size=0) as producer:
            for size in SIZES:
                producer.send("t", bytes(size)).result()
        (path,) = (tmp_path / "log" / "t-0").glob("*.log")
        batches = scan(path.read_bytes(), Chain()).batches
        proven = [0]
        since = 0
        for number in range(1, len(SIZES)):
            since += int(batches["size"][number - 1])
            proven.append(number if since > INTERVAL_BYTES else proven[-1])
            since = 0 if since > INTERVAL_BYTES else since
        assert sorted(set(proven)) == [0, 3, 4, 7, 8]
        for number, position in enumerate(batches["position"].tolist()):
            for bit in range(32):
                with changed(path, position + SIZE_AT + bit // 8, 1 << bit % 8):
                    end, error = read(log, max_bytes)
                assert error
                assert end == proven[number], (number, bit, error)
        assert read(log, max_bytes) == (len(SIZES), "")


@pytest.mark.parametrize("at", [SIZE_AT + 1, 100])
def test_a_damaged_batch_that_is_read_to_its_end_leaves_no_unproven_one_before_it(
    tmp_path: Path, at: int
) -> None:
    """A read without a digest at its end reads a large batch to its end."""
    with embedlog.open(tmp_path / "log", config={"housekeeping": False}) as log:
        log.create_topic(
            "t", config={"index.interval.bytes": 1 << 30, "max.message.bytes": 2_000_000}
        )
        with log.producer(batch_size=0, max_request_size=2_000_000) as producer:
            for size in (100, 1_500_000, 1_500_000):
                producer.send("t", bytes(size)).result()
        (path,) = (tmp_path / "log" / "t-0").glob("*.log")
        position = int(scan(path.read_bytes(), Chain()).batches["position"][1])
        assert read(log, 1 << 20) == (3, "")
        with changed(path, position + at, 1):
            assert read(log, 1 << 20)[0] == 0
