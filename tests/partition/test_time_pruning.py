"""Bounds in time: skipped segments contain no requested record, and little is read of the rest."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedlog
import embedlog.duckdb
import embedlog.polars
from embedlog import TopicPartition, index
from embedlog._native import codec
from embedlog.format import record_batch
from embedlog.storage import file_names, files, manifest
from tests.conftest import ROOT

HOUR_MS = 3_600_000
QUIET = {"housekeeping": False}


def opened(path: Path, **options: Any) -> embedlog.Log:
    return embedlog.open(path, config=QUIET, **options)


def write(log: embedlog.Log, times: list[int], **options: Any) -> None:
    """One batch for each ten records."""
    with log.producer(linger_ms=10_000, batch_size=600, **options) as producer:
        for time_ms in times:
            producer.send("t", b"v" * 40, key=b"%d" % (time_ms % 7), timestamp_ms=time_ms)


def found(log: embedlog.Log, **bounds: Any) -> list[tuple[int, int]]:
    return [(record.offset, record.timestamp_ms) for record in log.scan("t", **bounds).records()]


def between(rows: list[tuple[int, int]], start_ms: int, end_ms: int) -> list[tuple[int, int]]:
    return [row for row in rows if start_ms <= row[1] < end_ms]


@pytest.fixture
def bytes_read(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Bytes of `.log` files read since the last look."""
    seen = [0]
    real = files.pread_into

    def counted(fd: int, buffer: Any, position: int, path: Any) -> int:
        got = real(fd, buffer, position, path)
        seen[0] += got if str(path).endswith(file_names.LOG) else 0
        return got

    def look() -> int:
        before = seen[0]
        seen[0] = 0
        return before

    monkeypatch.setattr(files, "pread_into", counted)
    return look


def log_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*.log"))


# ---- every requested record ----------------------------------------------------------------------


def random_times(rng: random.Random, count: int) -> list[int]:
    """Rising on the whole, with late records, steps back, equal ones and now and then one of
    another age altogether.
    """
    now = rng.randrange(1, 10**9)
    made = []
    late_ms = rng.choice([0, 0, 3, 200, 5_000])
    for _ in range(count):
        now += rng.choice([0, 1, 1, 20, -10 if rng.random() < 0.1 else 5])
        time_ms = now - (rng.randrange(late_ms + 1) if rng.random() < 0.2 else 0)
        if rng.random() < 0.002:
            time_ms = rng.choice([0, 1, now + 10**9, now // 2])
        made.append(max(0, time_ms))
    return made


@pytest.mark.sample(0.3)
@pytest.mark.parametrize(
    ("kind", "codec_name"),
    [
        ("CreateTime", "zstd"),
        ("LogAppendTime", "none"),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (("CreateTime", "none"), ("LogAppendTime", "zstd"))
        ),
    ],
)
def test_random_times_as_a_slow_filter(
    tmp_path: Path, rng: random.Random, kind: str, codec_name: str
) -> None:
    config = {"segment.bytes": 3_000, "index.interval.bytes": 300, "message.timestamp.type": kind}
    for number in range(3):
        path = tmp_path / f"log{number}"
        for part in range(2):
            with opened(path) as log:
                if part == 0:
                    log.create_topic("t", config=config)
                write(log, random_times(rng, rng.randrange(1, 500)), compression_type=codec_name)
                compare(log, rng)
        with opened(path, read_only=True) as log:
            compare(log, rng)


def compare(log: embedlog.Log, rng: random.Random) -> None:
    rows = found(log)
    whole = log.scan("t")
    for _ in range(15):
        one, two = (max(0, rng.choice(rows)[1] + rng.choice([-1, 0, 1])) for _ in "ab")
        start_ms, end_ms = (0, two) if rng.random() < 0.5 else (min(one, two), max(one, two))
        wanted = between(rows, start_ms, end_ms)
        assert found(log, start_time=start_ms, end_time=end_ms) == wanted
        narrow = whole.narrowed(start_time=start_ms).narrowed(end_time=end_ms)
        assert [(record.offset, record.timestamp_ms) for record in narrow.records()] == wanted


def test_a_compacted_topic_keeps_what_was_known(
    tmp_path: Path, rng: random.Random, bytes_read: Callable[[], int]
) -> None:
    path = tmp_path / "log"
    config = {
        "segment.bytes": 3_000,
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": 0.01,
        "index.interval.bytes": 300,
    }
    with opened(path) as log:
        log.create_topic("t", config=config)
        for part in range(3):
            with log.producer(linger_ms=10_000, batch_size=600) as producer:
                for number in range(400):
                    time_ms = part * HOUR_MS + number * 1000 - rng.randrange(3000)
                    producer.send(
                        "t", b"v" * 40, key=b"%d" % rng.randrange(300), timestamp_ms=max(0, time_ms)
                    )
            log.housekeep()
        rows = found(log)
        assert len(rows) < 1200
        compare(log, rng)
        bytes_read()
        middle = rows[len(rows) // 4][1]
        assert found(log, end_time=middle) == between(rows, 0, middle)
        assert bytes_read() < log_bytes(path) / 2


def test_what_is_appended_later_changes_nothing(tmp_path: Path) -> None:
    with opened(tmp_path / "log") as log:
        log.create_topic("t")
        write(log, list(range(1000, 2000)))
        scan = log.scan("t", end_time=1500)
        write(log, list(range(100)))  # much later, and much older
        assert [record.timestamp_ms for record in scan.records()] == list(range(1000, 1500))
        assert len(found(log, end_time=1500)) == 600


def test_what_retention_takes_away_is_an_error_under_an_upper_bound(tmp_path: Path) -> None:
    with opened(tmp_path / "log") as log:
        log.create_topic("t", config={"segment.bytes": 2_000})
        write(log, list(range(1000)))
        whole = log.scan("t")
        early = log.scan("t", end_time=300)
        log.delete_records({TopicPartition("t", 0): 500})
        for scan in (early, whole.narrowed(end_time=300)):
            with pytest.raises(embedlog.OffsetOutOfRangeError):
                list(scan.records())


# ---- and little else -----------------------------------------------------------------------------


@pytest.mark.parametrize("segment_bytes", [20_000, 1 << 30])
@pytest.mark.parametrize("ending", ["open", "closed", "read_only", "killed"])
def test_an_upper_bound_reads_the_part_below_it(
    tmp_path: Path,
    bytes_read: Callable[[], int],
    monkeypatch: pytest.MonkeyPatch,
    ending: str,
    segment_bytes: int,
) -> None:
    """Whether the segments are many or the active one alone, at whose end a process may have
    died.
    """
    monkeypatch.setattr("embedlog.columns.scan.CHUNK_BYTES", 4_000)
    path = tmp_path / "log"
    times = list(range(10_000, 30_000, 10))
    with opened(path) as log:
        log.create_topic("t", config={"segment.bytes": segment_bytes})
        if ending == "open":
            write(log, times)
            check_part(log, path, bytes_read)
            return
    if ending == "killed":
        write_and_die(path, times)
    else:
        with opened(path) as log:
            write(log, times)
    with opened(path, read_only=ending == "read_only") as log:
        check_part(log, path, bytes_read)
        if ending == "killed":
            write(log, list(range(30_000, 31_000, 10)))
            check_part(log, path, bytes_read)


def check_part(log: embedlog.Log, path: Path, bytes_read: Callable[[], int]) -> None:
    rows = found(log)
    bytes_read()
    assert found(log, end_time=12_000) == between(rows, 0, 12_000)
    assert bytes_read() < 0.3 * log_bytes(path)


def test_conditions_of_polars_and_duckdb_read_no_more(
    tmp_path: Path, bytes_read: Callable[[], int]
) -> None:
    polars = pytest.importorskip("polars", reason="needs polars")
    path = tmp_path / "log"
    kind = polars.Datetime("ms", "UTC")
    with opened(path) as log:
        log.create_topic("t", config={"segment.bytes": 20_000})
        write(log, list(range(10_000, 40_000, 10)))
        frame = embedlog.polars.scan(log, "t")
        with embedlog.duckdb.register(log) as connection:
            bytes_read()
            for low, high in ((0, 12_000), (20_000, 21_000)):
                time = polars.col("timestamp")
                part = frame.filter(
                    time >= polars.lit(low).cast(kind), time < polars.lit(high).cast(kind)
                ).collect()
                assert part.height == (high - max(low, 10_000)) // 10
                assert bytes_read() < 0.3 * log_bytes(path)
                moments = (
                    f"make_timestamptz({low} * 1000) and timestamp < make_timestamptz({high} * "
                    "1000)"
                )
                counted = connection.sql(
                    f"select count(*) from t where timestamp >= {moments}"
                ).fetchall()
                assert counted == [(part.height,)]
                assert bytes_read() < 0.3 * log_bytes(path)


def write_and_die(path: Path, times: list[int]) -> None:
    """In a process of its own, which dies with the log open."""
    code = (
        "import os, pathlib, sys; from tests.partition.test_time_pruning import opened, write\n"
        "log = opened(pathlib.Path(sys.argv[1])); write(log, eval(sys.argv[2])); "
        "os.kill(os.getpid(), 9)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path), str(times)], cwd=ROOT, check=False
    )
    assert done.returncode == -9


def test_segments_between_others_are_left_out(
    tmp_path: Path, bytes_read: Callable[[], int]
) -> None:
    """Times that come back: neither end of the partition can be left out."""
    path = tmp_path / "log"
    with opened(path) as log:
        log.create_topic("t", config={"segment.bytes": 20_000})
        for first in (0, HOUR_MS, HOUR_MS, 0, HOUR_MS, 0):
            write(log, list(range(first, first + 600)))
        rows = found(log)
        for bounds, at_most in (
            ((0, 1000), 0.7),
            ((HOUR_MS, 2 * HOUR_MS), 0.7),
            ((1000, HOUR_MS), 0.5),
        ):
            bytes_read()
            assert found(log, start_time=bounds[0], end_time=bounds[1]) == between(rows, *bounds)
            assert bytes_read() < at_most * log_bytes(path), bounds


def test_a_reader_opens_no_index_that_it_does_not_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One partition of many, complete: the others stay closed, and no index is read where a segment
    begins.
    """
    path = tmp_path / "log"
    seen = list[Path]()
    with opened(path) as log:
        log.create_topic("t", partitions=5, config={"segment.bytes": 8_000})
        with log.producer() as producer:
            for number in range(3000):
                producer.send("t", b"v" * 40, partition=number % 5, timestamp_ms=number)
    real = files.open_file

    def noted(file: Any, *arguments: Any, **keywords: Any) -> int:
        seen.append(Path(file))
        return real(file, *arguments, **keywords)

    monkeypatch.setattr(files, "open_file", noted)
    with opened(path, read_only=True) as log:
        assert sum(1 for _ in log.scan("t", partitions=3).records()) == 600
    inside = [file.relative_to(path).parts for file in seen if file.is_relative_to(path)]
    assert {parts[0] for parts in inside if parts[-1] != "partition.metadata"} >= {"t-3"}
    assert not [
        parts
        for parts in inside
        if len(parts) > 1 and parts[0] != "t-3" and parts[-1] != "partition.metadata"
    ]
    last = max((path / "t-3").glob("*.log")).stem
    indexes = [Path(parts[-1]) for parts in inside if parts[-1].endswith("index")]
    assert {file.stem for file in indexes} <= {last}, "the end of the active segment"
    assert len({parts for parts in inside if parts[-1].endswith(".log")}) > 3


# ---- stored facts are verified -------------------------------------------------------------------


def test_an_index_of_times_that_lies_hides_nothing(tmp_path: Path, rng: random.Random) -> None:
    path = tmp_path / "log"
    with opened(path) as log:
        log.create_topic("t", config={"segment.bytes": 8_000, "index.interval.bytes": 300})
        write(log, random_times(rng, 2000))
        rows = found(log)
        for file in sorted((path / "t-0").glob("*.timeindex")):
            raw = bytearray(file.read_bytes())
            for at in range(0, len(raw) - 11, 12):
                struct.pack_into(">i", raw, at + 8, rng.randrange(200))
            file.write_bytes(raw)
        for _ in range(50):
            end_ms = rng.choice(rows)[1]
            assert found(log, end_time=end_ms) == between(rows, 0, end_ms)


@pytest.mark.parametrize("lost", ["t-0/*.timeindex", "t-0/embedlog.manifest"])
def test_without_index_or_manifest_everything_is_found(
    tmp_path: Path, rng: random.Random, lost: str
) -> None:
    path = tmp_path / "log"
    with opened(path) as log:
        log.create_topic("t", config={"segment.bytes": 8_000})
        write(log, random_times(rng, 2000))
        rows = found(log)
    for file in path.glob(lost):
        file.unlink()
    for read_only in (True, False):
        with opened(path, read_only=read_only) as log:
            for end_ms in (rows[700][1], rows[1200][1]):
                assert found(log, end_time=end_ms) == between(rows, 0, end_ms)
                assert found(log, start_time=end_ms) == between(rows, end_ms, 2**62)


def test_a_brokers_segments_without_an_index_of_times_are_searched(tmp_path: Path) -> None:
    """A segment without stored times is no segment without records in the range."""
    path = tmp_path / "log"
    with opened(path) as log:
        log.create_topic("t", config={"segment.bytes": 8_000})
        write(log, list(range(2000)))
    for file in [
        *path.glob("t-0/embedlog.*"),
        *path.glob("embedlog.*"),
        *path.glob("t-0/*.timeindex"),
    ]:
        file.unlink()
    for read_only in (True, False):
        with opened(path, read_only=read_only) as log:
            assert [row[1] for row in found(log, start_time=500)] == list(range(500, 2000))


# ---- the manifest --------------------------------------------------------------------------------


def as_version_2(path: Path) -> None:
    """Rewrites a manifest as an earlier embedlog would have written it."""
    raw = path.read_bytes()
    made = bytearray(raw[:32])
    struct.pack_into(">II", made, 8, 2, 0)
    struct.pack_into(">I", made, 12, codec.crc32c(bytes(made)))
    for at in range(32, len(raw), manifest.ENTRY_BYTES):
        body = raw[at : at + 84]
        made += body + struct.pack(">I", codec.crc32c(body))
    path.write_bytes(made)


def test_a_manifest_of_the_version_before_is_read_and_then_replaced(
    tmp_path: Path, bytes_read: Callable[[], int]
) -> None:
    path = tmp_path / "log"
    with opened(path) as log:
        log.create_topic("t", config={"segment.bytes": 20_000})
        write(log, list(range(2000)))
        rows = found(log)
        kept = log._engine.partition("t", 0)._state.manifest.segments
    as_version_2(path / "t-0" / file_names.MANIFEST)
    with opened(path) as log:
        bytes_read()
        assert log.describe_topic("t").partitions[0].high_watermark == 2000
        assert bytes_read() < 20_000  # nothing was read but the end
        read = log._engine.partition("t", 0)._state.manifest.segments
        assert {
            base: info._replace(min_timestamp=-1, lateness_ms=0) for base, info in kept.items()
        } == read
        assert found(log, end_time=500) == between(rows, 0, 500)
        write(log, list(range(2000, 4000)))
        raw = (path / "t-0" / file_names.MANIFEST).read_bytes()
        assert struct.unpack_from(">I", raw, 8) == (manifest.VERSION,)
        assert log._engine.partition("t", 0)._state.manifest.segments.keys() > kept.keys()
        rows = found(log)
        bytes_read()
        assert found(log, end_time=500) == between(rows, 0, 500)
        assert bytes_read() < 0.7 * log_bytes(path)


def test_the_version_before_is_what_it_was(tmp_path: Path) -> None:
    """One record, byte for byte."""
    path = tmp_path / file_names.MANIFEST
    info = manifest.SegmentInfo(
        5, 700, 9, 1_000, 8, 77, 1, 2, 3, 4, 5, 3, manifest.SEALED, 99, 900, 20
    )
    manifest.Manifest(tmp_path, bytes(16)).rewrite([info], None)
    as_version_2(path)
    assert len(path.read_bytes()) == 32 + 88
    assert path.read_bytes()[32:116] == struct.pack(
        ">HHqqqqqQIIIqiQ", 1, 3, 5, 700, 9, 1_000, 8, 77, 1, 2, 3, 4, 5, 99
    )
    read = manifest.Manifest(tmp_path, bytes(16))
    read.refresh()
    assert read.segments == {5: info._replace(min_timestamp=-1, lateness_ms=0)}


def test_joined_segments_are_as_late_as_what_lies_before_them() -> None:
    one = manifest.SegmentInfo(0, 1, 1, max_timestamp=100, min_timestamp=50, lateness_ms=10)
    two = manifest.SegmentInfo(1, 1, 2, max_timestamp=90, min_timestamp=60, lateness_ms=0)
    assert manifest.join_times([one]) == (50, 10)
    assert manifest.join_times([one, two]) == (50, 40)
    assert manifest.join_times([two, one]) == (50, 40)
    assert manifest.join_times([one, two._replace(min_timestamp=-1)])[0] == -1


def test_the_largest_timestamp_before_a_record_without_one_fits_the_files() -> None:
    """Found by hostile directories: the lateness was 2^63, which neither page nor manifest can
    hold.
    """
    rows = np.zeros(2, record_batch.batch_dtype())
    rows["base_offset"] = (0, 1)
    rows["records"] = 1
    rows["size"] = 70
    rows["position"] = (0, 70)
    rows["max_timestamp"] = (2**63 - 1, -1)
    rows["min_timestamp"] = (2**63 - 1, -1)
    builder = index.Builder(0, 4096)
    builder.add(rows, np.zeros(2, np.uint64))
    assert (builder.min_timestamp, builder.lateness_ms) == (-1, 0)
    one = manifest.SegmentInfo(0, 70, 1, max_timestamp=2**63 - 1, min_timestamp=2**63 - 1)
    assert manifest.join_times([one, one._replace(base=1, min_timestamp=-1)])[1] < 2**63
