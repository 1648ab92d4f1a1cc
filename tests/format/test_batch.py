"""The scan: torn, flipped, reordered and forged batches, each with its own message; and nothing
read beyond the end.
"""

from __future__ import annotations

import mmap
import random
import struct
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import xxhash

from embedlog import segment
from embedlog._native import system
from embedlog.errors import CorruptRecordError
from embedlog.format.record_batch import Chain, Scanned, aborts, batch_dtype, markers, scan
from embedlog.format.record_columns import ROW_BYTES
from embedlog.segment import Walk
from embedlog.storage import file_names
from tests.support import oracle
from tests.support.batches import ABORT, COMMIT, Row, batch, crc32c, marker

# format.md 13: bytes that Kafka wrote.
PLAIN = bytes.fromhex(
    "000000000000002a 0000005a 00000007 02 fcd9d1b4 0000 00000002 0000018bcfe56800 0000018bcfe56805"
    "ffffffffffffffff ffff ffffffff 00000003"
    "30 00 00 00 01 0a 68656c6c6f 04 04 6831 04 7631 0a 7472616365 01 0c 00 0a 02 00 00 00 10 00 "
    "05 04 04 6b32 01 00"
)
COMMITTED = bytes.fromhex(
    "0000000000000032 00000042 00000007 02 1739e40b 0030 00000000 0000018bcfe56800 0000018bcfe56800"
    "0000000000000fa0 0002 ffffffff 00000001 20 00 00 00 08 00000001 0c 000000000009 00"
)
EMPTIED = bytes.fromhex(
    "000000000000003c 00000031 00000007 02 09e3f8ba 0000 00000004 ffffffffffffffff 0000018bcfe56800"
    "0000000000000fa0 0002 00000011 00000000"
)


# as in `Head`
HEAD_FIELDS = (
    "leader_epoch",
    "base_offset",
    "max_timestamp",
    "producer_id",
    "last_offset_delta",
    "records",
)


def chain_of(rows: int = 3, batches: int = 4) -> bytes:
    return b"".join(batch(number * rows, [Row(b"value")] * rows) for number in range(batches))


def sealed(raw: bytes) -> bytes:
    """The batch with a checksum that fits its bytes again."""
    return raw[:17] + struct.pack(">I", crc32c(raw[21:])) + raw[21:]


def replaced(raw: bytes, at: int, field: bytes) -> bytes:
    return raw[:at] + field + raw[at + len(field) :]


def test_batches_that_kafka_wrote() -> None:
    chain = Chain(next_offset=42, gaps_allowed=True)
    found = scan(PLAIN + COMMITTED + EMPTIED, chain)
    assert found.problem is None
    assert found.batches["base_offset"].tolist() == [42, 50, 60]
    assert found.batches["last_offset_delta"].tolist() == [2, 0, 4]
    assert found.batches["records"].tolist() == [3, 1, 0]
    assert found.batches["position"].tolist() == [0, 102, 180]
    assert found.batches["size"].tolist() == [102, 78, 61]
    assert found.batches["leader_epoch"].tolist() == [7, 7, 7]
    assert found.batches["max_timestamp"].tolist() == [1700000000005, 1700000000000, 1700000000000]
    assert found.batches["base_timestamp"].tolist() == [1700000000000, 1700000000000, -1]
    assert found.batches["producer_id"].tolist() == [-1, 4000, 4000]
    assert found.batches["producer_epoch"].tolist() == [-1, 2, 2]
    assert found.batches["base_sequence"].tolist() == [-1, -1, 17]
    assert found.batches["attributes"].tolist() == [0, 0x30, 0]
    assert chain.next_offset == 65
    (commit,) = markers(PLAIN + COMMITTED + EMPTIED, found.batches)
    assert commit == (1, 50, 4000, 2, COMMIT, 9)


def test_a_tail_cut_at_every_byte_is_no_damage() -> None:
    whole = chain_of()
    sizes = [len(raw) for raw in oracle.whole_batches(whole)]
    for end in range(len(whole) + 1):
        found = scan(whole[:end], Chain())
        assert found.problem is None, end
        assert found.consumed == found.batches["size"].sum() <= end
        left = end - found.consumed
        assert found.need == (sizes[len(found.batches)] if left >= 17 else 0)


def test_nothing_is_read_beyond_the_end() -> None:
    """The buffer ends where its pages end; a read beyond it would hit an unmapped page."""
    whole = chain_of()
    mapping = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    for cut in range(1, 70):
        part = whole[:-cut]
        mapping[mmap.PAGESIZE - len(part) : mmap.PAGESIZE] = part
        view = memoryview(mapping)[mmap.PAGESIZE - len(part) : mmap.PAGESIZE]
        assert scan(view, Chain()).consumed <= len(part)
        view.release()


def test_every_flipped_bit_is_found_or_outside_the_checksum() -> None:
    raw = batch(5, [Row(b"value", b"key", [("name", b"content")])])
    good = Chain(next_offset=5, epoch=0)
    scan(raw, good)
    for bit in range(8 * len(raw)):
        bad = bytearray(raw)
        bad[bit // 8] ^= 0x80 >> bit % 8
        chain = Chain(next_offset=5, epoch=0)
        found = scan(bad, chain)
        if found.problem is None and len(found.batches):
            assert 12 <= bit // 8 < 16, bit  # the leader epoch: only the digest covers it
            assert chain.digest != good.digest


DAMAGE = {
    "size too small": (8, struct.pack(">i", 48), "size of a batch", 61, 60),
    "size negative": (8, struct.pack(">i", -1), "size of a batch", 61, 11),
    "magic": (16, b"\x03", "magic of a batch", 2, 3),
    "checksum": (17, b"\0\0\0\0", "checksum of a batch", "00000000", None),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_each_damaged_field_has_its_own_message(damage: str) -> None:
    at, field, message, expected, found_value = DAMAGE[damage]
    good = batch(0, [Row(b"a")])
    bad = replaced(batch(1, [Row(b"b")]), at, field)
    found = scan(good + bad + batch(2, [Row(b"c")]), Chain(), position=1000)
    assert len(found.batches) == 1
    assert found.consumed == len(good)
    assert found.problem is not None
    assert (found.problem.position, found.problem.message) == (1000 + len(good), message)
    assert found.problem.expected == expected
    assert found_value is None or found.problem.found == found_value


LIES = {
    "more records than offsets": (57, struct.pack(">i", 9), "record count of a batch"),
    "negative count": (57, struct.pack(">i", -1), "record count of a batch"),
    "more records than bytes": (
        23,
        struct.pack(">i30xi", 2**31 - 1, 2**31 - 1),
        "record count of a batch",
    ),
    "last offset before the base": (23, struct.pack(">i", -1), "record count of a batch"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_header_that_contradicts_itself_is_refused_though_its_checksum_fits(lie: str) -> None:
    at, field, message = LIES[lie]
    problem = scan(sealed(replaced(batch(0, [Row(b"a"), Row(b"b")]), at, field)), Chain()).problem
    assert problem is not None
    assert problem.message == message


FOLLOWING = [
    (9, False, False),
    (11, False, False),
    (9, True, False),
    (11, True, True),
    (10, False, True),
]


@pytest.mark.parametrize(("base", "gaps", "fine"), FOLLOWING)
def test_base_offsets_must_follow_and_may_leap_where_compaction_was(
    base: int, gaps: bool, fine: bool
) -> None:
    found = scan(batch(base, [Row(b"a")]), Chain(next_offset=10, gaps_allowed=gaps))
    if fine:
        assert found.problem is None
    else:
        assert found.problem is not None
        assert found.problem.message == "base offset of a batch does not continue the log"
        assert (found.problem.expected, found.problem.found) == (10, base)


def test_offsets_beyond_the_number_range_are_refused() -> None:
    for base in (-1, -(2**63), 2**63 - 1):
        assert scan(sealed(batch(base, [Row(b"a")])), Chain()).problem is not None


LAST_OFFSET = 2**63 - 1 - 2**31  # a segment that begins here still counts in int64
WITHIN = [  # base of the segment, base offset, last delta, whether it fits
    (0, 2**31 - 1, 0, True),
    (0, 2**31, 0, False),
    (0, 2**31 - 2, 1, True),
    (0, 2**31 - 1, 1, False),
    (0, 2**33 | 2, 0, False),
    (100, 99, 0, False),
    (100, 100, 2**31 - 1, True),
    (100, 101, 2**31 - 1, False),
    (-1, 2**40, 0, True),
    (-1, LAST_OFFSET, 0, True),
    (-1, LAST_OFFSET, 1, False),
    (LAST_OFFSET, LAST_OFFSET, 0, True),
    (2**63 - 3, 2**63 - 3, 0, False),
]


@pytest.mark.parametrize(("base", "first", "delta", "fits"), WITHIN)
def test_offsets_that_a_segment_cannot_hold_are_refused(
    tmp_path: Path, base: int, first: int, delta: int, fits: bool
) -> None:
    """An index counts them from the segment's base in 31 bits: a flipped bit above those is no
    record's offset.
    """
    raw = batch(first, [Row(b"a")], last_offset_delta=delta)
    problem = scan(raw, Chain(gaps_allowed=True, segment_base=base)).problem
    if fits:
        assert problem is None
    else:
        assert problem is not None
        assert (problem.message, problem.found) == (
            "offsets of a batch are outside its segment",
            first,
        )
    path = tmp_path / "log"
    path.write_bytes(raw)
    with (
        path.open("rb") as file,
        nullcontext() if fits else pytest.raises(CorruptRecordError, match="do not form a chain"),
    ):
        assert system.walk_headers(
            file.fileno(), 0, len(raw), np.empty(4, batch_dtype()), base
        ) == (1, len(raw))


def headers_of(raw: bytes, position: int, most: int) -> list[tuple[int, int, int, int]]:
    """Position, size, base offset and last delta of batches from a position on, read field by
    field.
    """
    found: list[tuple[int, int, int, int]] = []
    while position < len(raw) and len(found) < most:
        size = 12 + struct.unpack_from(">i", raw, position + 8)[0]
        found.append(
            (
                position,
                size,
                *struct.unpack_from(">q", raw, position),
                *struct.unpack_from(">i", raw, position + 23),
            )
        )
        position += size
    return found


def test_headers_are_walked_in_blocks_as_one_by_one(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    parts = []
    starts = [0]
    offset = 0
    for _ in range(400):
        size = rng.choice((0, 20, 200, 3900, 16_300, 16_312, 17_000, 40_000))
        parts.append(batch(offset, [Row(bytes(rng.randrange(size + 1)))] * rng.randint(1, 3)))
        offset += rng.randint(3, 5)
        starts.append(starts[-1] + len(parts[-1]))
    raw = b"".join(parts)
    path = tmp_path / "log"
    path.write_bytes(raw)
    with path.open("rb") as file:
        for _ in range(200):
            rows = np.zeros(rng.choice((1, 2, 7, 500)), batch_dtype())
            start = rng.choice(starts)
            count, end = system.walk_headers(file.fileno(), start, len(raw), rows, 0)
            found = [
                tuple(map(int, row))
                for row in rows[["position", "size", "base_offset", "last_offset_delta"]][:count]
            ]
            assert found == headers_of(raw, start, len(rows))
            assert end == (found[-1][0] + found[-1][1] if found else start)
            # the file has more than the part that is walked
            cut = rng.randrange(start, len(raw) + 1)
            if cut not in starts:
                with pytest.raises(CorruptRecordError, match="do not form a chain"):
                    system.walk_headers(file.fileno(), start, cut, np.zeros(500, batch_dtype()), 0)
        system.fault_counters(reset=True)
        system.walk_headers(file.fileno(), 0, len(raw), np.zeros(500, batch_dtype()), 0)
        assert system.fault_counters()[0]["pread"] < len(parts)
    small = b"".join(batch(number, [Row(b"x")]) for number in range(500))
    path.write_bytes(small)
    with path.open("rb") as file:
        system.fault_counters(reset=True)
        assert system.walk_headers(
            file.fileno(), 0, len(small), np.zeros(500, batch_dtype()), 0
        ) == (500, len(small))
        assert system.fault_counters()[0]["pread"] < 5


def test_the_walk_over_a_segment_takes_its_base_from_the_file(tmp_path: Path) -> None:
    path = tmp_path / file_names.file_name(100, file_names.LOG)
    path.write_bytes(batch(100, [Row(b"a")]) + batch(2**33 | 101, [Row(b"b")]))
    with path.open("rb") as file:
        walk = Walk(file.fileno(), path, Chain(gaps_allowed=True), 0, path.stat().st_size)
        assert [int(batches["base_offset"][0]) for batches in walk] == [100]
    assert walk.problem is not None
    assert "outside its segment" in walk.problem.message


def test_a_falling_epoch_is_refused() -> None:
    data = batch(0, [Row(b"a")], leader_epoch=3) + batch(1, [Row(b"b")], leader_epoch=2)
    found = scan(data, Chain())
    assert found.problem is not None
    assert (found.problem.message, found.problem.expected, found.problem.found) == (
        "leader epoch of a batch decreases",
        3,
        2,
    )


def test_the_chain_stays_where_the_good_batches_end() -> None:
    data = chain_of(3, 2)
    chain = Chain(next_offset=0, digest=5)
    scan(data + b"\0" * 100, chain)
    digest = 5
    for raw in oracle.whole_batches(data):
        digest = xxhash.xxh3_64_intdigest(raw[:21], digest)
    assert (chain.next_offset, chain.epoch, chain.digest) == (6, 0, digest)


def test_zeroes_behind_the_end_are_a_problem_at_their_first_byte() -> None:
    data = chain_of(1, 2)
    found = scan(data + bytes(4096), Chain())
    assert found.problem is not None
    assert found.problem.position == found.consumed == len(data)


def test_random_damage_as_the_twin_sees_it(rng: random.Random) -> None:
    for _ in range(200):
        data = bytearray(chain_of(rng.randrange(1, 4), rng.randrange(1, 6)))
        for _ in range(rng.randrange(3)):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        del data[len(data) - rng.randrange(40) :]
        found = scan(data, Chain(gaps_allowed=True))
        expected = [len(raw) for raw in oracle.whole_batches(bytes(data))]
        sizes = found.batches["size"].tolist()
        # The reference implementation does not follow the chain: offsets and epochs are outside the
        # checksum.
        assert sizes == expected[: len(sizes)]
        if len(sizes) < len(expected):
            assert found.problem is not None
            assert "offset" in found.problem.message or "epoch" in found.problem.message


def test_more_batches_than_one_crossing_takes_and_a_limit() -> None:
    data = b"".join(batch(number, [Row(b"")]) for number in range(3000))
    found = scan(data, Chain())
    assert found.batches["base_offset"].tolist() == list(range(3000))
    assert found.batches["position"].tolist() == list(range(0, len(data), len(data) // 3000))
    for limit in (0, 1, 1024, 1500):
        part = scan(data, Chain(), limit=limit)
        assert len(part.batches) == limit
        assert part.consumed == limit * (len(data) // 3000)


def test_an_empty_buffer_has_no_batches() -> None:
    assert isinstance(scan(b"", Chain()), Scanned)
    assert scan(b"", Chain()).consumed == 0


# ---- markers -------------------------------------------------------------------------------------


def test_markers_among_data() -> None:
    data = (
        batch(0, [Row(b"a")]) + marker(1, 7, ABORT) + batch(2, [Row(b"b")]) + marker(3, 8, COMMIT)
    )
    found = scan(data, Chain())
    told = [
        (each.row, each.offset, each.producer_id, each.kind)
        for each in markers(data, found.batches)
    ]
    assert told == [(1, 1, 7, ABORT), (3, 3, 8, COMMIT)]
    assert aborts(data, found.batches).tolist() == [False, True, False, False]


def test_a_longer_key_of_a_later_version_is_read_as_the_first(rng: random.Random) -> None:
    data = batch(0, [Row(b"", struct.pack(">hhi", 5, ABORT, 99))], attributes=0x30, producer_id=3)
    (found,) = markers(data, scan(data, Chain()).batches)
    assert (found.kind, found.coordinator_epoch) == (ABORT, -1)


@pytest.mark.parametrize("key", [b"", b"\0\0\0", struct.pack(">hh", -1, 0)])
def test_a_marker_with_a_broken_key_is_corruption(key: bytes) -> None:
    data = batch(0, [Row(b"", key)], attributes=0x30, producer_id=3)
    with pytest.raises(CorruptRecordError, match="key of a control record"):
        markers(data, scan(data, Chain()).batches)


def test_a_walk_by_heads_is_the_walk_by_arrays(
    tmp_path: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole and damaged files, in one chunk and in several, from the start and from a later
    batch.
    """
    monkeypatch.setattr(segment, "CHUNK_BYTES", 500)
    whole = chain_of(batches=60)
    starts = [0, len(chain_of(batches=20))]
    for _ in range(60):
        data = bytearray(whole[: rng.choice([len(whole), rng.randrange(len(whole))])])
        if data and rng.random() < 0.5:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path = tmp_path / "00000000000000000000.log"
        path.write_bytes(data)
        start = rng.choice([each for each in starts if each <= len(data)])
        with path.open("rb") as file:
            arrays = Walk(file.fileno(), path, Chain(gaps_allowed=True), start, len(data))
            by_arrays = [
                tuple(row[name] for name in HEAD_FIELDS) for part in arrays for row in part
            ]
            heads = Walk(file.fileno(), path, Chain(gaps_allowed=True), start, len(data))
            by_heads = [tuple(head) for part in heads.heads() for head in part]
        assert by_heads == by_arrays
        assert (heads.end, heads.problem) == (arrays.end, arrays.problem)
        assert [(name, getattr(heads.chain, name)) for name in Chain.__slots__] == [
            (name, getattr(arrays.chain, name)) for name in Chain.__slots__
        ]
    assert batch_dtype().itemsize == ROW_BYTES
