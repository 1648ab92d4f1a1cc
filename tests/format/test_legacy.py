"""Messages of magic 0 and 1: bare and compressed, relative and absolute, sound and broken."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Sequence

import lz4.frame
import pytest
import xxhash

from embedlog.errors import CorruptRecordError
from embedlog.format import compression, legacy
from embedlog.format.record_batch import Chain, decode, scan, scan_heads
from tests.support.batches import Row, batch

Content = tuple[int, int, bytes | None, bytes | None]  # offset, timestamp, key, value


def message(
    offset: int,
    value: bytes | None,
    key: bytes | None = None,
    *,
    magic: int = 1,
    attributes: int = 0,
    timestamp: int = -1,
) -> bytes:
    body = struct.pack(">bb", magic, attributes) + (struct.pack(">q", timestamp) if magic else b"")
    for text in (key, value):
        body += struct.pack(">i", -1) if text is None else struct.pack(">i", len(text)) + text
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


def wrapper(
    inner: Sequence[bytes],
    offset: int,
    codec: int,
    magic: int,
    *,
    attributes: int = 0,
    timestamp: int = -1,
) -> bytes:
    packed = bytes(compression.compress(codec, b"".join(inner)))
    return message(offset, packed, magic=magic, attributes=codec | attributes, timestamp=timestamp)


def contents(data: bytes) -> list[Content]:
    found = scan(data, Chain())
    assert found.problem is None
    assert found.consumed == len(data)
    result = decode(data, found.batches)
    assert result.offsets is not None
    assert result.timestamps is not None
    assert result.keys is not None
    assert result.values is not None
    return list(
        zip(
            result.offsets.tolist(),
            result.timestamps.tolist(),
            list(result.keys),
            list(result.values),
            strict=True,
        )
    )


@pytest.mark.parametrize("magic", [0, 1])
def test_bare_messages(magic: int) -> None:
    moments = [100, 50] if magic else [-1, -1]
    data = message(7, b"v", b"k", magic=magic, timestamp=100) + message(
        9, None, magic=magic, timestamp=50
    )
    assert contents(data) == [(7, moments[0], b"k", b"v"), (9, moments[1], None, None)]


@pytest.mark.parametrize("codec", [compression.GZIP, compression.SNAPPY, compression.LZ4])
def test_wrappers_of_magic_1_have_relative_offsets(codec: int) -> None:
    inner = [message(number, b"v%d" % number, timestamp=1000 + number) for number in (0, 1, 4)]
    data = wrapper(inner, 24, codec, 1, timestamp=1004)
    assert contents(data) == [
        (20, 1000, None, b"v0"),
        (21, 1001, None, b"v1"),
        (24, 1004, None, b"v4"),
    ]


def test_wrappers_of_magic_0_have_absolute_offsets() -> None:
    data = wrapper([message(number, b"v", magic=0) for number in (20, 21)], 21, compression.GZIP, 0)
    assert [offset for offset, *_ in contents(data)] == [20, 21]


def test_the_logs_own_time_overrides_that_of_inner_messages() -> None:
    data = wrapper(
        [message(number, b"v", timestamp=1) for number in (0, 1)],
        1,
        compression.GZIP,
        1,
        attributes=8,
        timestamp=777,
    )
    assert [moment for _, moment, *_ in contents(data)] == [777, 777]
    found = decode(data, scan(data, Chain()).batches)
    assert found.timestamp_types is not None
    assert found.timestamp_types.tolist() == [1, 1]


def test_xxh32_as_its_library(rng: random.Random) -> None:
    for size in range(16):
        data = rng.randbytes(size)
        assert legacy.xxh32(data) == xxhash.xxh32_intdigest(data), size


def test_the_first_lz4_writers_wrong_header_checksum() -> None:
    frame = bytearray(
        lz4.frame.compress(message(3, b"v", magic=0), store_size=False, block_linked=False)
    )
    assert frame[6] == xxhash.xxh32_intdigest(bytes(frame[4:6])) >> 8 & 0xFF
    frame[6] = xxhash.xxh32_intdigest(bytes(frame[:6])) >> 8 & 0xFF
    data = message(3, bytes(frame), magic=0, attributes=compression.LZ4)
    assert contents(data) == [(3, -1, None, b"v")]


def test_old_and_new_in_one_log() -> None:
    data = (
        message(0, b"old")
        + batch(1, [Row(b"new"), Row(b"newer")])
        + message(3, b"odd")
        + batch(4, [Row(b"end")])
    )
    assert [value for *_, value in contents(data)] == [b"old", b"new", b"newer", b"odd", b"end"]


def test_a_cut_tail_is_no_damage_and_says_what_it_needs() -> None:
    data = message(0, b"first") + message(1, b"second")
    first = len(message(0, b"first"))
    for end in range(first, len(data)):
        found = scan(data[:end], Chain())
        assert found.problem is None
        assert found.consumed == first
        assert found.need == (0 if end - first < 18 else len(data) - first)


@pytest.mark.parametrize(
    ("at", "field", "words"),
    [
        (8, struct.pack(">i", 10), "size of a"),
        (12, bytes(4), "checksum of a message"),
        (30, b"\xff", "checksum of a message"),
    ],
)
def test_damaged_messages_have_their_own_words(at: int, field: bytes, words: str) -> None:
    bad = bytearray(message(1, b"some value"))
    bad[at : at + len(field)] = field
    found = scan(message(0, b"a") + bytes(bad), Chain())
    assert len(found.batches) == 1
    assert found.problem is not None
    assert words in found.problem.message


def test_falling_offsets_are_refused() -> None:
    problem = scan(message(5, b"a") + message(5, b"b"), Chain()).problem
    assert problem is not None
    assert (problem.message, problem.expected, problem.found) == (
        "offset of a message decreases",
        6,
        5,
    )


def test_offsets_that_a_segment_cannot_hold_are_refused() -> None:
    for base, offset in ((0, 2**31), (10, 9), (-1, 2**63 - 1)):
        problem = scan(message(offset, b"a"), Chain(segment_base=base)).problem
        assert problem is not None
        assert "outside its segment" in problem.message
    assert scan(message(2**31 + 9, b"a"), Chain(segment_base=10)).problem is None


BROKEN_INSIDES = {
    "key beyond the message": (struct.pack(">bbqi", 1, 0, 0, 999) + bytes(8), "exceeds it"),
    "length below null": (struct.pack(">bbqi", 1, 0, 0, -2) + bytes(8), "exceeds it"),
    "bytes after the value": (struct.pack(">bbqii", 1, 0, 0, -1, -1) + b"x", "after the value"),
    "zstd": (struct.pack(">bbqii", 1, 4, 0, -1, 4) + b"abcd", "cannot have this codec"),
    "compressed null": (struct.pack(">bbqii", 1, 1, 0, -1, -1), "cannot have this codec"),
}


@pytest.mark.parametrize("damage", BROKEN_INSIDES)
def test_broken_insides_under_a_fitting_checksum(damage: str) -> None:
    body, words = BROKEN_INSIDES[damage]
    data = struct.pack(">qiI", 0, len(body) + 4, zlib.crc32(body)) + body
    with pytest.raises(CorruptRecordError, match=words):
        contents(data)


def test_broken_inner_messages() -> None:
    fine = message(0, b"v")
    insides = {
        "ends too early": fine[:10],
        "size of an inner": fine[:-1],
        "checksum of an inner": fine[:-1] + b"x",
        "inside another": wrapper([fine], 0, compression.GZIP, 1),
        "is empty": b"",
    }
    for words, inner in insides.items():
        with pytest.raises(CorruptRecordError, match=words):
            contents(wrapper([inner], 0, compression.GZIP, 1))


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize(
    ("inner", "offset"),
    [
        ((2**63 - 1, 1), 5),
        ((-5, 5), 5),
        ((0, 2**31), 2**31),
        ((3, 3), 3),
        ((4, 2, 5), 5),
        ((0, 1), 2**63 - 1),
        ((7,), 0),
    ],
)
def test_inner_offsets_that_cannot_be_are_damage(
    magic: int, inner: tuple[int, ...], offset: int
) -> None:
    """They are under no checksum but the outer message's, and sums of them may be larger than any
    offset.
    """
    data = wrapper(
        [message(number, b"v", magic=magic) for number in inner], offset, compression.GZIP, magic
    )
    found = scan(data, Chain())
    if found.problem is None:
        if magic == 1 and inner == (0, 1):
            assert [each for each, *_ in contents(data)] == [offset - 1, offset]
            return
        with pytest.raises(CorruptRecordError, match="in a compressed message"):
            contents(data)


@pytest.mark.parametrize("magic", [0, 1])
def test_heads_of_old_messages(magic: int) -> None:
    data = b"".join(message(offset, b"v", magic=magic, timestamp=offset) for offset in range(5))
    found, consumed, _, problem = scan_heads(data, Chain(gaps_allowed=True), 0)
    rows = scan(data, Chain(gaps_allowed=True)).batches
    assert [head.base_offset for head in found] == rows["base_offset"].tolist() == [0, 1, 2, 3, 4]
    assert [head.max_timestamp for head in found] == rows["max_timestamp"].tolist()
    assert (consumed, problem) == (len(data), None)
