"""Batches to columns, record by record as the reference implementation reads them; and every damage
of a record.
"""

from __future__ import annotations

import base64
import hashlib
import json
import random
import struct
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embedlog._native import codec as native
from embedlog.errors import CorruptRecordError
from embedlog.format import compression
from embedlog.format.buffer_pool import BufferPool
from embedlog.format.record_batch import COLUMNS, Chain, decode, scan
from embedlog.format.record_columns import Decoded, Window
from tests.kafka import GOLDEN, UNCLEAN
from tests.support import oracle
from tests.support.batches import Row, batch, crc32c, marker, varint


def reads(decoded: Decoded) -> list[oracle.Read]:
    """The decoded records, in the form of the reference implementation."""
    assert decoded.headers is not None
    starts = decoded.headers.starts.tolist()
    names = list(decoded.headers.keys)
    contents = list(decoded.headers.values)
    columns = (decoded.offsets, decoded.timestamps, decoded.timestamp_types, decoded.leader_epochs)
    fixed = [column.tolist() for column in columns if column is not None]
    assert decoded.keys is not None
    assert decoded.values is not None
    texts = [list(decoded.keys), list(decoded.values)]
    headers = [
        tuple(zip(names[first:end], contents[first:end], strict=True))
        for first, end in pairwise(starts)
    ]
    return [oracle.Read(*record) for record in zip(*fixed, *texts, headers, strict=True)]


def random_log(rng: random.Random, batches: int) -> bytes:
    data = b""
    offset = rng.choice([0, 2**40])
    for _ in range(batches):
        rows = oracle.random_rows(rng, rng.randrange(1, 30))
        if rng.random() < 0.2:  # as compaction leaves it
            rows = [row._replace(offset_delta=7 * number + 3) for number, row in enumerate(rows)]
        raw = batch(offset, rows, attributes=rng.choice([0, 0, 8]), leader_epoch=3)
        data += raw
        offset += struct.unpack_from(">i", raw, 23)[0] + 1
    return data


def compressed(raw: bytes, codec: int) -> bytes:
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


def decoded(data: bytes, **how: Any) -> Decoded:
    found = scan(data, Chain(gaps_allowed=True))
    assert found.problem is None
    assert found.consumed == len(data)
    return decode(data, found.batches, **how)


# ---- valid batches -------------------------------------------------------------------------------


def test_random_logs_as_the_twin_reads_them(rng: random.Random) -> None:
    pool = BufferPool()
    for _ in range(40):
        data = random_log(rng, rng.randrange(1, 12))
        expected = [
            record for raw in oracle.whole_batches(data) for record in oracle.read_batch(raw)
        ]
        assert reads(decoded(data, pool=pool)) == expected


@pytest.mark.parametrize("codec", range(1, 5))
def test_compressed_logs_as_the_twin_reads_them(rng: random.Random, codec: int) -> None:
    raws = oracle.whole_batches(random_log(rng, 12))
    data = b"".join(compressed(raw, codec) if rng.random() < 0.8 else raw for raw in raws)
    assert reads(decoded(data)) == [record for raw in raws for record in oracle.read_batch(raw)]


def test_windows_take_record_by_record(rng: random.Random) -> None:
    for _ in range(60):
        data = random_log(rng, 8)
        everything = [
            record for raw in oracle.whole_batches(data) for record in oracle.read_batch(raw)
        ]
        offsets = sorted(rng.choice(everything).offset + rng.randrange(-1, 2) for _ in range(2))
        times = sorted(rng.choice(everything).timestamp + rng.randrange(-1, 2) for _ in range(2))
        window = Window(
            start_offset=offsets[0],
            end_offset=rng.choice([offsets[1], 2**63 - 1]),
            start_ms=rng.choice([times[0], -(2**63)]),
            end_ms=rng.choice([times[1], 2**63 - 1]),
        )
        expected = [
            record
            for record in everything
            if window.start_offset <= record.offset < window.end_offset
            and window.start_ms <= record.timestamp < window.end_ms
        ]
        assert reads(decoded(data, window=window)) == expected


def test_the_last_moment_there_is_lies_in_every_window() -> None:
    data = batch(0, [Row(b"a", timestamp_ms=2**63 - 1), Row(b"b", timestamp_ms=0)])
    assert decoded(data, window=Window(start_offset=0, end_offset=1)).count == 1


@pytest.mark.parametrize("names", [frozenset({name}) for name in sorted(COLUMNS)] + [frozenset()])
def test_what_is_not_asked_for_is_not_there(rng: random.Random, names: frozenset[str]) -> None:
    data = random_log(rng, 3)
    whole = decoded(data)
    part = decoded(data, columns=[*names, "topic"])
    assert part.count == whole.count
    for name in COLUMNS:
        field = name if name == "headers" else name + "s"
        assert (getattr(part, field) is not None) == (name in names)
    if names == {"value"}:
        assert part.values is not None
        assert whole.values is not None
        assert list(part.values) == list(whole.values)


@pytest.mark.parametrize("headers", [False, True])
def test_values_decoded_in_place_are_the_same(rng: random.Random, headers: bool) -> None:
    for size in (300, 511, 512, 513, 2000, 70_000):
        rows = [
            Row(rng.randbytes(size + rng.randrange(64)), rng.choice([None, b"key"]), timestamp_ms=5)
            for _ in range(40)
        ]
        rows[7] = rows[7]._replace(value=None, headers=[("h", b"x")] if headers else [])
        rows[9] = rows[9]._replace(value=b"")
        data = bytearray(
            b"".join(batch(10 * number, rows[10 * number :][:10]) for number in range(4))
        )
        found = scan(data, Chain())
        before = bytes(data)
        assert reads(decode(data, found.batches, in_place=True)) == reads(
            decode(before, found.batches)
        )
        # headers are read a second time: then nothing may move
        assert (bytes(data) == before) == headers


def test_in_place_asks_nothing_of_small_or_unordered_or_read_only_data(rng: random.Random) -> None:
    data = bytearray(b"".join(batch(number, [Row(rng.randbytes(400))]) for number in range(4)))
    found = scan(data, Chain())
    before = bytes(data)
    turned = found.batches[::-1]
    assert reads(decode(data, turned, in_place=True)) == reads(decode(before, turned))
    assert reads(decode(before, found.batches, in_place=True)) == reads(
        decode(before, found.batches)
    )
    assert bytes(data) == before


def test_control_batches_hold_no_records() -> None:
    data = batch(0, [Row(b"a")]) + marker(1, 7, 0) + batch(2, [Row(b"b")])
    result = decoded(data)
    assert result.offsets is not None
    assert result.offsets.tolist() == [0, 2]


def test_no_batches_and_emptied_batches_make_no_records() -> None:
    assert decoded(b"").count == 0
    emptied = batch(5, [], last_offset_delta=3)
    assert decoded(emptied).count == 0
    assert reads(decoded(emptied + batch(9, [Row(b"x")])))[0].offset == 9


def test_positions_may_count_from_elsewhere() -> None:
    data = batch(0, [Row(b"a")]) + batch(1, [Row(b"b")])
    found = scan(data, Chain(), position=5000)
    result = decode(data, found.batches[1:], position=5000)
    assert result.values is not None
    assert list(result.values) == [b"b"]


def test_results_outlive_the_pool_and_the_data(rng: random.Random) -> None:
    pool = BufferPool()
    data = bytearray(batch(0, [Row(rng.randbytes(50)) for _ in range(100)]))
    kept = decode(data, scan(data, Chain()).batches, pool=pool)
    expected = reads(kept)
    data[:] = bytes(len(data))
    for _ in range(5):
        other = batch(0, [Row(b"other" * 10) for _ in range(100)])
        decode(other, scan(other, Chain()).batches, pool=pool)
    del pool
    assert reads(kept) == expected


# ---- damaged batches -----------------------------------------------------------------------------


def with_records(records: bytes, count: int = 1, last_delta: int = 0) -> bytes:
    """A batch, sealed, around any bytes."""
    tail = struct.pack(">hiqqqhii", 0, last_delta, 0, 0, -1, -1, -1, count) + records
    return struct.pack(">qiibI", 40, 9 + len(tail), 0, 2, crc32c(tail)) + tail


def record_of(content: bytes) -> bytes:
    return varint(len(content)) + content


FINE = record_of(b"\0\0\0\1\2v\0")  # null key, value "v", no headers
BROKEN = {
    "size beyond the fields": (varint(20) + FINE[1:], "size of a record"),
    "size too small": (varint(5) + bytes(20), "size of a record"),
    "size negative": (varint(-3) + bytes(20), "size of a record"),
    "size beyond the section": (varint(2**30) + bytes(20), "size of a record"),
    "size number too long": (b"\xff" * 5 + bytes(20), "integer in a record"),
    "timestamp number too long": (
        record_of(b"\0" + b"\xff" * 10 + bytes(10)),
        "integer in a record",
    ),
    "offset number too long": (record_of(b"\0\0" + b"\xff" * 5 + bytes(10)), "integer in a record"),
    "key longer than the record": (
        record_of(b"\0\0\0" + varint(100) + b"\1\0" + bytes(3)) + bytes(200),
        "length in a record",
    ),
    "key length below null": (
        record_of(b"\0\0\0" + varint(-2) + b"\1\0" + bytes(3)),
        "length in a record",
    ),
    "value longer than the record": (
        record_of(b"\0\0\0\1" + varint(100) + bytes(3)) + bytes(200),
        "length in a record",
    ),
    "value length below null": (
        record_of(b"\0\0\0\1" + varint(-2) + bytes(3)),
        "length in a record",
    ),
    "value of two gibibytes": (
        record_of(b"\0\0\0\1" + varint(2**31 - 1) + bytes(3)),
        "length in a record",
    ),
    "header count negative": (record_of(b"\0\0\0\1\1" + varint(-1) + bytes(3)), "header count"),
    "header count beyond the record": (
        record_of(b"\0\0\0\1\1" + varint(50) + bytes(3)),
        "header count",
    ),
    "null header name": (
        record_of(b"\0\0\0\1\1" + varint(1) + varint(-1) + b"\0"),
        "length in a record",
    ),
    "header name beyond the record": (
        record_of(b"\0\0\0\1\1" + varint(1) + varint(9) + b"\0"),
        "length in a record",
    ),
    "bytes after the headers": (
        record_of(b"\0\0\0\1\1" + varint(1) + b"\0\0" + b"x"),
        "size of a record",
    ),
    "bytes after the value": (record_of(b"\0\0\0\1\2v\0x"), "size of a record"),
    "bytes after the last record": (FINE + b"\0", "bytes after the last record"),
    "offset beyond the batch": (record_of(b"\0\0\2\1\2v\0"), "offset of a record"),
    "offset negative": (record_of(b"\0\0\1\1\2v\0"), "offset of a record"),
}


@pytest.mark.parametrize("padding", [b"", bytes(100)], ids=["at the end", "with bytes after it"])
@pytest.mark.parametrize("damage", BROKEN)
def test_each_broken_record_has_its_message_and_place(damage: str, padding: bytes) -> None:
    records, message = BROKEN[damage]
    data = batch(0, [Row(b"good")]) + with_records(records + padding)
    if padding and message.startswith("bytes after the last"):
        message = "bytes after the last"
    with pytest.raises(CorruptRecordError, match=message) as caught:
        decoded(data)
    assert "batch at offset 40" in str(caught.value)
    assert caught.value.position is not None
    assert caught.value.position >= len(data) - len(records + padding)
    with pytest.raises(oracle.Broken):
        oracle.read_batch(oracle.whole_batches(data)[1])


def test_offsets_that_do_not_rise_are_corruption() -> None:
    data = with_records(FINE + FINE, count=2, last_delta=5)
    with pytest.raises(
        CorruptRecordError, match="record 1 of the batch at offset 40: offset of a record"
    ):
        decoded(data)


def test_random_sections_never_read_otherwise_than_the_twin(rng: random.Random) -> None:
    """Sealed batches around damaged sections: either both read the same, or both refuse."""
    for _ in range(1500):
        rows = oracle.random_rows(rng, rng.randrange(1, 5))
        section = bytearray(batch(0, rows)[61:])
        for _ in range(rng.randrange(1, 4)):
            section[rng.randrange(len(section))] = rng.choice(
                [0, 1, 2, 0x7F, 0x80, 0xFF, rng.randrange(256)]
            )
        if rng.random() < 0.3:
            del section[rng.randrange(len(section)) :]
        if 7 * len(rows) > len(section):
            continue
        data = with_records(bytes(section), len(rows), len(rows) - 1)
        try:
            expected = oracle.read_batch(data)
        except oracle.Broken:
            with pytest.raises(CorruptRecordError):
                decoded(data)
        else:
            found = [record._replace(timestamp=0) for record in reads(decoded(data))]
            assert found == [record._replace(timestamp=0) for record in expected]


@pytest.mark.parametrize("codec", range(1, 5))
def test_a_count_that_the_uncompressed_bytes_cannot_hold_is_refused_before_memory_is_asked(
    codec: int,
) -> None:
    raw = compressed(batch(0, [Row(b"a")]), codec)
    tail = (
        raw[21:23]
        + struct.pack(">i", 2**31 - 2)
        + raw[27:57]
        + struct.pack(">i", 2**31 - 1)
        + raw[61:]
    )
    data = raw[:17] + struct.pack(">I", crc32c(tail)) + tail
    with pytest.raises(
        CorruptRecordError, match="record count of a batch: expected at most 1, found 2147483647"
    ):
        decoded(data)


@pytest.mark.parametrize("codec", range(5, 8))
def test_an_unknown_codec_is_named(codec: int) -> None:
    data = batch(0, [Row(b"a")], attributes=codec)
    with pytest.raises(
        CorruptRecordError, match=f"codec of a batch: expected 0 to 4, found {codec}"
    ):
        decoded(data)


def test_columns_of_an_unscanned_count_are_refused() -> None:
    data = batch(0, [Row(b"a")])
    rows = scan(data, Chain()).batches
    rows["records"] = 1000
    with pytest.raises(CorruptRecordError, match="record count"):
        decode(data, rows)


def test_words_for_every_problem() -> None:
    assert all(native.PROBLEM_TEXTS.values())
    assert len(set(native.PROBLEM_TEXTS.values())) == len(native.PROBLEM_TEXTS)


# ---- batches of Kafka ----------------------------------------------------------------------------


def _as_expected(content: bytes | None) -> object:
    if content is None:
        return None
    if len(content) > 300:
        return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    return base64.b64encode(content).decode()


def _line(partition: int, record: oracle.Read) -> dict[str, object]:
    return {
        "partition": partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp,
        "timestamp_type": ["CreateTime", "LogAppendTime"][record.timestamp_type],
        "leader_epoch": record.leader_epoch,
        "key": _as_expected(record.key),
        "value": _as_expected(record.value),
        "headers": [[name.decode(), _as_expected(content)] for name, content in record.headers],
    }


@pytest.mark.parametrize("name", GOLDEN)
def test_every_golden_log_decodes_as_a_real_client_read_it(golden: Path, name: str) -> None:
    topics = defaultdict(list)
    for directory in (golden / name / "log").iterdir():
        topics[directory.name.rpartition("-")[0]].append(directory)
    for expectation in sorted((golden / name / "expected").glob("*.jsonl")):
        expected = [json.loads(line) for line in expectation.read_text().splitlines()]
        # records may have been deleted before it
        first = {line["partition"]: line["offset"] for line in reversed(expected)}
        found = []
        for directory in sorted(
            topics[expectation.stem], key=lambda path: int(path.name.rpartition("-")[2])
        ):
            partition = int(directory.name.rpartition("-")[2])
            for path in sorted(directory.glob("*.log")):
                data = path.read_bytes()
                scanned = scan(data, Chain(gaps_allowed=True))
                assert scanned.problem is None or (
                    name in UNCLEAN and not any(data[scanned.consumed :])
                ), path
                window = Window(start_offset=first.get(partition, 0))
                found += [
                    _line(partition, record)
                    for record in reads(decode(data, scanned.batches, window=window))
                ]
        assert found == [
            {key: value for key, value in line.items() if key != "committed"} for line in expected
        ], expectation


def test_a_decoding_holds_numpy_arrays_of_the_documented_types() -> None:
    result = decoded(batch(0, [Row(b"a")]))
    columns = (result.offsets, result.timestamps, result.timestamp_types, result.leader_epochs)
    assert [column.dtype for column in columns if column is not None] == [
        np.int64,
        np.int64,
        np.int8,
        np.int32,
    ]


@pytest.mark.parametrize("number", range(8))
def test_a_batch_without_records_may_name_any_codec(number: int) -> None:
    """Kafka reads no byte of its section."""
    data = batch(0, [], attributes=number, last_offset_delta=4) + batch(5, [Row(value=b"v")])
    decoded = decode(data, scan(memoryview(data), Chain(gaps_allowed=True)).batches)
    assert decoded.offsets is not None
    assert decoded.offsets.tolist() == [5]
