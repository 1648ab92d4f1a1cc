"""A repair cuts no batch that is valid in itself, wherever it is and whatever its offsets are."""

from __future__ import annotations

from pathlib import Path

import pytest

import embedlog
from tests.support.damaged_logs import QUIET, TOPIC, extents

RECORDS = 6


@pytest.fixture
def left(tmp_path: Path) -> Path:
    """A closed log with one batch for each record."""
    path = tmp_path / "log"
    with embedlog.open(path, config=QUIET) as log:
        log.create_topic(TOPIC)
        with log.producer(linger_ms=0) as producer:
            for number in range(RECORDS):
                producer.send(TOPIC, b"value %d" % number).result()
    return path


def log_of(path: Path) -> Path:
    return path / f"{TOPIC}-0" / f"{0:020d}.log"


def batches_of(path: Path) -> list[bytes]:
    data = log_of(path).read_bytes()
    return [data[each.start : each.end] for each in extents(log_of(path))]


@pytest.mark.sample(0.25)
@pytest.mark.parametrize("clean", [True, False], ids=["closed", "crashed"])
@pytest.mark.parametrize("manifest", [True, False], ids=["described", "no manifest"])
@pytest.mark.parametrize(
    "offset", [0, RECORDS + 1, 2**31, 2**33, 2**62], ids=lambda offset: f"offset {offset}"
)
@pytest.mark.parametrize("damaged", [True, False], ids=["after damage", "after good batches"])
def test_a_batch_with_an_impossible_offset_stays(
    left: Path, clean: bool, manifest: bool, offset: int, damaged: bool
) -> None:
    batches = batches_of(left)
    batches[4] = offset.to_bytes(8) + batches[4][8:]
    if damaged:
        batches[3] = batches[3][:-3] + bytes(3)
    log_of(left).write_bytes(b"".join(batches))
    if not clean:
        (left / ".kafka_cleanshutdown").unlink()
    if not manifest:
        (left / f"{TOPIC}-0" / "embedlog.manifest").unlink()
    embedlog.repair(left)
    kept = log_of(left).read_bytes()
    for number in (0, 1, 2, 4, 5):
        assert batches[number][8:] in kept, f"batch {number}"


def test_batches_after_the_noted_end_stay(left: Path) -> None:
    batches = batches_of(left)
    more = b"".join(
        (RECORDS + number).to_bytes(8) + each[8:] for number, each in enumerate(batches)
    )
    log_of(left).write_bytes(b"".join(batches) + more)
    repaired = embedlog.repair(left)
    assert log_of(left).read_bytes() == b"".join(batches) + more, str(repaired)


def test_bytes_after_the_noted_end_are_cut_and_kept(left: Path) -> None:
    before = log_of(left).read_bytes()
    log_of(left).write_bytes(before + b"no batch" * 20)
    repaired = embedlog.repair(left)
    assert repaired.good, str(repaired)
    with embedlog.open(left, config=QUIET) as log:
        assert log.scan(TOPIC).num_rows == RECORDS
    assert log_of(left).read_bytes() == before
    assert [each.read_bytes() for each in log_of(left).parent.glob("embedlog.cut-*")] == [
        b"no batch" * 20
    ]
