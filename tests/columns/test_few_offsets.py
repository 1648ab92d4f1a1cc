"""A scan of few offsets makes columns of records of single batches: the same as the decoder makes."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog.columns.arrow_export import ALL_COLUMNS
from embedlog.columns.chunks import FEW_OFFSETS, ChunkSource
from embedlog.errors import CorruptRecordError, OffsetOutOfRangeError
from embedlog.format.record_batch import Chain, scan
from tests.support.short_fetches import T0, filled, flip, opened
from tests.support.sparse_logs import COMPACTED, compact, transact

pyarrow = pytest.importorskip("pyarrow")


def slowly(monkeypatch: pytest.MonkeyPatch, found: embedlog.Scan) -> Any:
    """The same scan by the decoder, the slow reference implementation."""
    with monkeypatch.context() as patched:
        patched.setattr(ChunkSource, "decode_points", ChunkSource.pieces)
        return found.to_arrow()


def compare(
    log: embedlog.Log,
    rng: random.Random,
    monkeypatch: pytest.MonkeyPatch,
    rounds: int = 80,
    **options: Any,
) -> int:
    """Random scans of few offsets against the reference; returns how many batches were read the
    short way.
    """
    points = log._engine.partition("t", 0)._reader.points
    start, end = (
        limits([T0])[T0]
        for limits in (log.consumer().beginning_offsets, log.consumer().end_offsets)
    )
    short = 0
    for _ in range(rounds):
        first = rng.randrange(start, end)
        columns = rng.sample(ALL_COLUMNS, rng.randrange(1, len(ALL_COLUMNS) + 1))
        found = log.scan(
            "t",
            start_offset=first,
            end_offset=first + rng.randrange(1, FEW_OFFSETS + 1),
            columns=columns,
            **options,
        )
        table = found.to_arrow()
        table.validate(full=True)
        assert table == slowly(monkeypatch, found), found
        low, high = found.bounds[0]
        expected = [
            each for each in log.scan("t", **options).records() if low <= each.offset < high
        ]
        assert list(found.records()) == expected, found
        short += points.read(first, options.get("isolation_level") == "read_committed") is not None
    return short


def test_all_codecs_headers_nulls_and_segments(
    tmp_path: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as log:
        filled(log, rng)
        with log.producer() as producer:
            for number in range(30):
                headers = [("é", None), ("h", b"%d" % number), ("", b"")][: number % 4]
                producer.send(
                    "t",
                    None if number % 3 else b"",
                    key=b"" if number % 2 else None,
                    headers=headers,
                )
        assert compare(log, rng, monkeypatch) > 40, "the short way was taken"


def test_gaps_of_a_compacted_log(
    tmp_path: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as log:
        filled(log, rng, **COMPACTED)
        compact(log)
        compare(log, rng, monkeypatch)


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_transactions_and_markers(
    tmp_path: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch, isolation: str
) -> None:
    with opened(tmp_path) as log, log.producer(transactional_id="x", batch_size=500) as producer:
        log.create_topic("t", config={"index.interval.bytes": 300})
        producer.init_transactions()
        transact(producer, rng, 15)
        compare(log, rng, monkeypatch, isolation_level=isolation)


def test_bounds_by_time(
    tmp_path: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as log, log.producer(batch_size=500) as producer:
        log.create_topic("t", config={"index.interval.bytes": 300})
        for number in range(300):
            producer.send("t", b"%d" % number, timestamp_ms=1000 + number + rng.randrange(-4, 4))
        producer.flush()
        for _ in range(40):
            first = rng.randrange(280)
            time_ms = rng.randrange(1000, 1290)
            found = log.scan(
                "t",
                start_offset=first,
                end_offset=first + 16,
                start_time=time_ms,
                end_time=time_ms + 9,
            )
            assert found.to_arrow() == slowly(monkeypatch, found), found


def test_damage_and_removed_records_are_the_same_errors(tmp_path: Path) -> None:
    with opened(tmp_path) as log, log.producer(batch_size=0) as producer:
        log.create_topic("t", config={"index.interval.bytes": 1})
        for number in range(20):
            producer.send("t", b"%0200d" % number).result()
        (path,) = (tmp_path / "log" / "t-0").glob("*.log")
        place = int(scan(path.read_bytes(), Chain()).batches["position"][11]) + 70
        found = log.scan("t", start_offset=9, end_offset=15)
        flip(path, place)
        records = found.records()
        assert [next(records).offset for _ in range(2)] == [9, 10]
        with pytest.raises(CorruptRecordError):
            next(records)
        flip(path, place)
        log.delete_records({T0: 12})
        with pytest.raises(OffsetOutOfRangeError):
            found.to_arrow()


def test_an_empty_scan_has_the_schema_and_no_rows(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        log.create_topic("t")
        found = log.scan("t")
        assert found.to_arrow().schema == found.schema
        assert found.to_arrow().num_rows == 0
