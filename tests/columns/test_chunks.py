"""Chunks of batches that are larger than they look, and of batches that cannot be read: bounded
memory, errors with a place.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import embedlog
import embedlog.polars
from embedlog import TopicPartition
from embedlog.columns import chunks
from embedlog.errors import CorruptRecordError
from embedlog.format import compression, decoder
from embedlog.format.record_batch import Chain, decode_some, scan
from embedlog.format.record_columns import Window
from tests.support.batches import CONTROL, TRANSACTIONAL, Row, batch, crc32c, marker, varint

CODECS = ("gzip", "snappy", "lz4", "zstd")
LOG_NAME = "00000000000000000000.log"
QUIET = {"housekeeping": False}
WAYS: dict[str, Callable[[embedlog.Log], list[Any]]] = {
    "poll": lambda log: polled(log),
    "loop": lambda log: list(
        log.consumer("t", auto_offset_reset="earliest", consumer_timeout_ms=0)
    ),
    "batches": lambda log: [
        record
        for each in log.consumer("t", auto_offset_reset="earliest").batches(timeout=0)
        for record in each.records()
    ],
    "scan": lambda log: [row for each in log.scan("t") for row in each.to_pylist()],
    "records": lambda log: list(log.scan("t").records()),
    "arrow": lambda log: log.scan("t").to_arrow().to_pylist(),
    "pandas": lambda log: log.scan("t").to_pandas().to_numpy().tolist(),
    "polars": lambda log: framed(log),
    "time": lambda log: [log.consumer("t").offsets_for_times({TopicPartition("t", 0): 5})],
}
each_way = pytest.mark.parametrize("way", WAYS)


def framed(log: embedlog.Log) -> list[Any]:
    pytest.importorskip("polars", reason="needs polars")
    return list(embedlog.polars.scan(log, "t").collect().rows())


def polled(log: embedlog.Log) -> list[Any]:
    found: list[Any] = []
    with log.consumer("t", auto_offset_reset="earliest") as consumer:
        while records := consumer.poll(0):
            found += records
    return found


def packed(raw: bytes, codec: int) -> bytes:
    """The batch with its section compressed."""
    body = bytes(compression.compress(codec, raw[61:]))
    tail = struct.pack(">h", struct.unpack_from(">h", raw, 21)[0] | codec) + raw[23:61] + body
    return (
        raw[:8]
        + struct.pack(">i", 49 + len(body))
        + raw[12:17]
        + struct.pack(">I", crc32c(tail))
        + tail
    )


def received(path: Path, *batches: bytes) -> Path:
    """A log directory of another party: one segment of one partition."""
    (path / "t-0").mkdir(parents=True)
    (path / "meta.properties").write_text(
        "version=1\ncluster.id=abcdefghijklmnopqrstuv\nnode.id=1\n"
    )
    (path / "t-0" / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAQACAAAAAAAAAAQ")
    (path / "t-0" / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
    (path / "t-0" / LOG_NAME).write_bytes(b"".join(batches))
    return path


# ---- memory --------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", range(1, 5))
def test_batches_that_grow_are_decoded_one_by_one(
    monkeypatch: pytest.MonkeyPatch, codec: int
) -> None:
    monkeypatch.setattr(decoder, "GROUP_BYTES", 50_000)
    small = [packed(batch(number, [Row(bytes(1000))]), codec) for number in range(20)]
    large = [packed(batch(number, [Row(bytes(60_000))]), codec) for number in range(20, 24)]
    data = b"".join(small + large)
    batches = scan(data, Chain()).batches
    counts = []
    while len(batches):
        part = decode_some(data, batches, window=Window())
        assert part.decoded is not None
        assert part.decoded.count == part.batch_count
        assert (
            sum(len(value or b"") for value in part.decoded.values or [])
            <= 50_000 + compression.core_count() * 50_000
        )
        counts.append(part.batch_count)
        batches = batches[part.batch_count :]
    assert sum(counts) == 24
    assert counts[-4:] == [1, 1, 1, 1]


def test_control_batches_count_in_what_a_part_reaches_over() -> None:
    small = packed(batch(1, [Row(b"a")]), 4)
    large = row_of_zeros(9 << 20, 4)
    data = b"".join(
        [marker(0, 7, 1), small, marker(2, 7, 1), struct.pack(">q", 3) + large[8:], marker(4, 7, 1)]
    )
    batches = scan(data, Chain()).batches
    # up to the large one, with the marker in between
    assert decode_some(data, batches).batch_count == 3
    assert decode_some(data, batches[3:]).batch_count == 2
    assert decode_some(data, batches[3:], alone_bytes=1 << 20) == (None, 0)


@pytest.mark.parametrize("way", ["poll", "batches", "scan", "records"])
def test_large_batches_behind_small_ones_are_handed_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Together they are more than may be decoded at once, each of them is not."""
    for module in (chunks, decoder):
        monkeypatch.setattr(module, "GROUP_BYTES", 200_000)
    monkeypatch.setattr(chunks, "AHEAD_BYTES", 300_000)
    sizes = [10] * 72 + [250_000, 350_000] * 32
    with embedlog.open(tmp_path / "log", config=QUIET) as log:
        log.create_topic("t", config={"compression.type": "zstd"})
        with log.producer(linger_ms=0) as producer:
            for size in sizes:
                producer.send("t", bytes(size)).result()
        found = WAYS[way](log)
        assert [len(each["value"] if way == "scan" else each.value) for each in found] == sizes


CHILD = """
import resource, sys, embedlog
with embedlog.open(sys.argv[1], read_only=True) as log:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if sys.argv[2] == "poll":
        with log.consumer("t", auto_offset_reset="earliest") as consumer:
            count = 0
            while records := consumer.poll(0, max_records=1): count += len(records)
    else:
        count = sum(each.count for _, each in log.scan("t", columns=["value"])._decode_chunks(("value",)))
    print(count, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.sample(0.2)
@pytest.mark.parametrize("way", ["poll", "scan"])
@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_a_bomb_of_many_batches_takes_the_memory_of_one(
    tmp_path: Path, way: str, codec: str
) -> None:
    size = 24 << 20
    raw = row_of_zeros(24 << 20, embedlog.CODECS.index(codec))
    path = received(
        tmp_path / "log", *(struct.pack(">q", offset) + raw[8:] for offset in range(12))
    )
    ended = subprocess.run(
        [sys.executable, "-c", CHILD, path, way],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ,
    )
    count, grown_kib = map(int, ended.stdout.split())
    assert count == 12
    # uncompressed, as a column, as an object, and the earlier memory: not twelve times
    assert grown_kib < 5 * size >> 10


def row_of_zeros(size: int, codec: int) -> bytes:
    """A batch of one large record, made without the slow sum over its bytes."""
    head = batch(0, [Row(b"")])
    section = b"\0\0\0\1" + varint(size)
    section = varint(len(section) + size + 1) + section + bytes(size) + b"\0"
    body = bytes(compression.compress(codec, section))
    tail = struct.pack(">h", codec) + head[23:61] + body
    return (
        head[:8]
        + struct.pack(">i", 49 + len(body))
        + head[12:17]
        + struct.pack(">I", crc32c(tail))
        + tail
    )


# ---- the bound on a batch ------------------------------------------------------------------------


@pytest.mark.sample(0.2)
@each_way
@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_beyond_the_bound_is_an_error_that_names_it(
    tmp_path: Path, way: str, codec: str
) -> None:
    number = embedlog.CODECS.index(codec)
    small = packed(batch(0, [Row(b"small", timestamp_ms=1)]), number)
    large = packed(batch(1, [Row(bytes(2 << 20), timestamp_ms=9)]), number)
    path = received(tmp_path / "log", small, large)
    with embedlog.open(
        path, config={"max.decompressed.batch.bytes": 1 << 20}, read_only=True
    ) as log:
        with pytest.raises(
            CorruptRecordError, match=r"offset 1 is larger than max\.decompressed\.batch\.bytes"
        ) as told:
            WAYS[way](log)
        assert (told.value.path, told.value.position) == (str(path / "t-0" / LOG_NAME), len(small))
        consumer = log.consumer("t", auto_offset_reset="earliest")
        # the records before it are returned
        assert [record.value for record in consumer.poll(0)] == [b"small"]
    with embedlog.open(
        path, config={"max.decompressed.batch.bytes": 3 << 20}, read_only=True
    ) as log:
        assert WAYS[way](log)


@pytest.mark.parametrize("bulk", [False, True])
def test_what_no_reader_would_uncompress_is_stored_uncompressed(tmp_path: Path, bulk: bool) -> None:
    config = {"max.decompressed.batch.bytes": 1 << 20, "message.max.bytes": 8 << 20, **QUIET}
    with embedlog.open(tmp_path / "log", config=config) as log:
        log.create_topic("t")
        with log.producer(compression_type="zstd", max_request_size=8 << 20) as producer:
            if bulk:
                producer.send_batch("t", [bytes(3 << 20), b"small"]).result()
            else:
                producer.send("t", bytes(3 << 20)).result()
                producer.send("t", b"small").result()
        assert [len(record.value or b"") for record in log.scan("t").records()] == [3 << 20, 5]
    assert (tmp_path / "log" / "t-0" / LOG_NAME).stat().st_size > 3 << 20


# ---- errors have a place -------------------------------------------------------------------------


def out_of_order(base: int) -> bytes:
    rows = [
        Row(b"a", key=b"k", offset_delta=0),
        Row(b"b", key=b"k", offset_delta=7, timestamp_ms=9),
    ]
    return batch(base, rows, last_offset_delta=1)


def garbage(base: int, codec: int) -> bytes:
    """A batch that is marked as compressed, and is not."""
    raw = batch(base, [Row(b"a", timestamp_ms=9)])
    tail = struct.pack(">h", codec) + raw[23:]
    return raw[:17] + struct.pack(">I", crc32c(tail)) + tail


def miscounted(base: int, codec: int) -> bytes:
    """A batch whose count is a thousand, and that has one record."""
    raw = bytearray(packed(batch(base, [Row(b"a", timestamp_ms=9)], last_offset_delta=999), codec))
    raw[57:61] = struct.pack(">i", 1000)
    raw[17:21] = struct.pack(">I", crc32c(bytes(raw[21:])))
    return bytes(raw)


BROKEN = {
    "offsets": out_of_order(1),
    **{name: garbage(1, number) for number, name in enumerate(CODECS, start=1)},
    "count": miscounted(1, 4),
}
GOOD = batch(0, [Row(b"good", key=b"k", timestamp_ms=1)])


@pytest.mark.sample(0.25)
@each_way
@pytest.mark.parametrize("kind", BROKEN)
def test_an_error_of_decoding_names_file_and_byte(tmp_path: Path, way: str, kind: str) -> None:
    path = received(tmp_path / "log", GOOD, BROKEN[kind])
    with (
        embedlog.open(path, config=QUIET, read_only=True) as log,
        pytest.raises(CorruptRecordError) as told,
    ):
        WAYS[way](log)
    file = path / "t-0" / LOG_NAME
    assert told.value.path == str(file)
    assert told.value.position is not None
    assert len(GOOD) <= told.value.position < file.stat().st_size
    assert f"{file} at byte {told.value.position}: " in str(told.value)


@pytest.mark.parametrize("kind", [kind for kind in BROKEN if kind != "offsets"])
def test_an_error_of_the_cleaner_names_file_and_byte(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    # a path of its own: a repeated failure of a path is not logged
    path = received(tmp_path / kind, GOOD, BROKEN[kind])
    topic = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.0, "segment.bytes": 200}
    with embedlog.open(path, config=QUIET) as log:
        log.alter_topic("t", topic)
        with log.producer() as producer:
            for _ in range(2):
                producer.send("t", key=b"k", value=bytes(100)).result()
        log.housekeep()
    (told,) = [
        record.getMessage()
        for record in caplog.records
        if "compaction of t-0" in record.getMessage()
    ]
    assert f"{path / 't-0' / LOG_NAME} at byte {len(GOOD)}: " in told


def test_a_control_record_that_is_cut_short_names_file_and_byte(tmp_path: Path) -> None:
    bad = batch(
        1,
        [Row(b"", key=b"\0")],
        attributes=TRANSACTIONAL | CONTROL,
        producer_id=7,
        producer_epoch=0,
    )
    path = received(tmp_path / "log", GOOD, bad)
    with pytest.raises(CorruptRecordError) as told, embedlog.open(path, config=QUIET) as log:
        list(log.scan("t", isolation_level="read_committed").records())
    assert (told.value.path, told.value.position) == (str(path / "t-0" / LOG_NAME), len(GOOD))


@pytest.mark.parametrize("name", ["index", "timeindex"])
@pytest.mark.parametrize("how", ["cut", "gone"])
def test_an_index_that_is_lost_beside_us_costs_time_and_no_answer(
    tmp_path: Path, name: str, how: str
) -> None:
    config = {"segment.bytes": 20_000, "index.interval.bytes": 100}
    with embedlog.open(tmp_path / "log", config=QUIET) as log:
        log.create_topic("t", config=config)
        with log.producer(linger_ms=0) as producer:
            for number in range(300):
                producer.send("t", bytes(100), timestamp_ms=1_000 + number).result()
        (index,) = (tmp_path / "log" / "t-0").glob(f"{0:020d}.{name}")
        os.truncate(index, 5) if how == "cut" else index.unlink()
        with log.consumer("t") as consumer:
            tp = TopicPartition("t", 0)
            found = consumer.offsets_for_times({tp: 1_050})[tp]
            assert found is not None
            assert found.offset == 50
            consumer.seek(tp, 60)
            assert consumer.poll(1, max_records=1)[0].offset == 60
