"""Directories of brokers of all generations: each mode reads what an independent reader finds, as
often as one likes.
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

import embedlog
from tests.support.broker_directories import GENERATIONS, TORN_BYTES, Generation, build
from tests.support.given_directories import give
from tests.support.kafka_log_reader import ReadRecord, read_partition

CONFIG: dict[str, Any] = {"housekeeping": False}
COMPACT: dict[str, Any] = {
    "cleanup.policy": "compact",
    "segment.ms": 1,
    "min.cleanable.dirty.ratio": 0.0,
}
by_generation = pytest.mark.parametrize(
    "generation", GENERATIONS, ids=lambda generation: generation.name
)
by_close = pytest.mark.parametrize("closed", [True, False], ids=["closed", "crashed"])
by_files = pytest.mark.parametrize("whole", [True, False], ids=["all-files", "logs-only"])
sampled = pytest.mark.sample(0.1)
by_gaps = pytest.mark.parametrize("compacted", [False, True], ids=["dense", "compacted"])


@pytest.fixture
def left(
    tmp_path: Path, generation: Generation, closed: bool, whole: bool, compacted: bool
) -> Path:
    return build(tmp_path / "left", generation, closed=closed, whole=whole, compacted=compacted)


@pytest.fixture
def expected(left: Path, closed: bool) -> list[ReadRecord]:
    return read_partition(left / "t-0", 0 if closed else TORN_BYTES)


def records(log: embedlog.Log) -> list[ReadRecord]:
    scanned = [ReadRecord(each.offset, each.key, each.value) for each in log.scan("t").records()]
    with log.consumer("t", auto_offset_reset="earliest", group_id=None) as consumer:
        polled: list[ReadRecord] = []
        while found := consumer.poll(timeout=0):
            polled += [ReadRecord(each.offset, each.key, each.value) for each in found]
    assert polled == scanned
    return scanned


def test_the_independent_reader_reads_every_generation(tmp_path: Path) -> None:
    for generation in GENERATIONS:
        for compacted in (False, True):
            path = build(
                tmp_path / f"{generation.name}-{compacted}",
                generation,
                closed=True,
                whole=True,
                compacted=compacted,
            )
            assert len(read_partition(path / "t-0")) == (10 if compacted else 204)


@sampled
@by_generation
@by_close
@by_files
@by_gaps
def test_it_is_read_in_each_mode_again_and_again(left: Path, expected: list[ReadRecord]) -> None:
    for read_only in (True, True, False, False, True):
        with embedlog.open(left, read_only=read_only, config=CONFIG) as log:
            assert records(log) == expected
    with embedlog.open(left, config=CONFIG) as log, log.producer() as producer:
        assert producer.send("t", b"new", key=b"n").result().offset == 204
    for read_only in (True, False):
        with embedlog.open(left, read_only=read_only, config=CONFIG) as log:
            assert records(log) == [*expected, ReadRecord(204, b"n", b"new")]
    assert not [
        path for path in (left / "t-0").glob("embedlog.cut-*") if path.stat().st_size != TORN_BYTES
    ]


@sampled
@by_generation
@by_close
@by_files
@by_gaps
def test_a_check_and_a_repair_leave_every_record(left: Path, expected: list[ReadRecord]) -> None:
    embedlog.check(left)
    embedlog.repair(left)
    for read_only in (True, False):
        with embedlog.open(left, read_only=read_only, config=CONFIG) as log:
            assert records(log) == expected
    embedlog.repair(left)
    with embedlog.open(left, config=CONFIG) as log:
        assert records(log) == expected


@sampled
@by_generation
@by_close
@by_files
@by_gaps
def test_a_compaction_keeps_the_last_record_of_each_key(
    left: Path, expected: list[ReadRecord]
) -> None:
    with embedlog.open(left, config=CONFIG) as log:
        log.alter_topic("t", COMPACT)
        with log.producer() as producer:
            producer.send("t", b"new", key=b"n").result()
        log.housekeep()
        assert {each.key: each.value for each in records(log)} == {
            each.key: each.value for each in expected
        } | {b"n": b"new"}
    with embedlog.open(left, config=CONFIG) as log:
        assert {each.key: each.value for each in records(log)} == {
            each.key: each.value for each in expected
        } | {b"n": b"new"}


@sampled
@by_generation
@by_close
@by_files
@by_gaps
def test_it_is_handed_over_whole(left: Path, expected: list[ReadRecord]) -> None:
    embedlog.open(left, config=CONFIG).close()
    give(left)
    assert read_partition(left / "t-0") == expected


@by_generation
def test_a_reader_says_once_what_a_writer_would_cut(
    tmp_path: Path, generation: Generation, caplog: pytest.LogCaptureFixture
) -> None:
    path = build(tmp_path / "left", generation, closed=False, whole=True, compacted=False)
    with (
        caplog.at_level(logging.WARNING, "embedlog"),
        embedlog.open(path, read_only=True, config=CONFIG) as log,
    ):
        assert len(records(log)) == 204
        assert len(records(log)) == 204
    said = [each.getMessage() for each in caplog.records if "would cut" in each.getMessage()]
    assert len(said) == 1
    assert f"{TORN_BYTES} bytes" in said[0]


@pytest.mark.parametrize("damage", ["absent", "zeroed"])
def test_a_brokers_log_without_manifest_and_durable_record_is_not_cut(
    tmp_path: Path, damage: str
) -> None:
    """A power loss can leave both as zeros, beside the mark of a process that has begun to
    write.
    """
    path = build(tmp_path / "left", GENERATIONS[-1], closed=True, whole=False, compacted=True)
    expected = read_partition(path / "t-0")
    with embedlog.open(path, config=CONFIG) as log, log.producer() as producer:
        producer.send("t", b"new", key=b"n").result()
        shutil.copytree(path, tmp_path / "killed")
    for name in ("embedlog.manifest", "embedlog.durable", "embedlog.page"):
        found = tmp_path / "killed" / "t-0" / name
        if damage == "absent":
            found.unlink(missing_ok=True)
        elif found.exists():
            found.write_bytes(bytes(found.stat().st_size))
    assert (tmp_path / "killed" / "t-0" / "embedlog.dirty").exists()
    for read_only in (True, False, True):
        with embedlog.open(tmp_path / "killed", read_only=read_only, config=CONFIG) as log:
            assert records(log)[: len(expected)] == expected
    assert not list((tmp_path / "killed" / "t-0").glob("embedlog.cut-*"))
