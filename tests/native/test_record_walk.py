"""The one walk over the records of a batch: a record that one reader refuses, every reader refuses,
with any valid checksum.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from embedlog._native import _rows, codec
from embedlog.errors import CorruptRecordError
from embedlog.format import compression
from embedlog.format.compactor import DISCARD, WHOLE, KeyOffsetMap, clean
from embedlog.format.record_batch import Chain, decode, scan
from embedlog.format.record_columns import HEADER_SIZE
from tests.support.batches import Row, batch, crc32c, varint

NOW = 1_700_000_000_000


def sealed(
    base_offset: int, section: bytes, records: int, last_delta: int, number: int = 0
) -> bytes:
    """A batch around any records section, with a checksum that fits."""
    body = (
        bytes(memoryview(compression.compress(number, section, None)).cast("B"))
        if number
        else section
    )
    tail = struct.pack(">hiqqqhii", number, last_delta, NOW, NOW, -1, -1, -1, records) + body
    return struct.pack(">qiibI", base_offset, 9 + len(tail), 0, 2, crc32c(tail)) + tail


def wire(
    delta: int,
    *,
    key: bytes = b"k",
    value: bytes = b"value",
    headers: bytes = b"\0",
    size: int | None = None,
) -> bytes:
    """One record; `headers` with their count, `size` is its size field."""
    body = (
        b"\0"
        + varint(0)
        + varint(delta)
        + varint(len(key))
        + key
        + varint(len(value))
        + value
        + headers
    )
    return varint(len(body) if size is None else size) + body


HEADER = varint(1) + varint(1) + b"h" + varint(2) + b"hv"
PLAIN = [wire(0), wire(1, headers=HEADER), wire(2)]
BROKEN: dict[str, tuple[bytes, int, int]] = {  # section, records, last offset delta
    "a delta after the batch": (wire(1000), 1, 0),
    "a negative delta": (wire(-1), 1, 0),
    "a delta twice": (wire(0) + wire(0), 2, 1),
    "deltas that fall": (wire(1) + wire(0), 2, 1),
    "a byte after the last record": (b"".join(PLAIN) + b"\0", 3, 2),
    "a record after the last record": (b"".join(PLAIN), 2, 2),
    "fewer records than promised": (b"".join(PLAIN), 4, 3),
    "a cut record": (b"".join(PLAIN)[:-1], 3, 2),
    "a record that is smaller than its fields": (wire(0, size=5) + bytes(9), 1, 0),
    "a record that is larger than its fields": (wire(0, size=30) + bytes(40), 1, 0),
    "a key that leaves its record": (varint(20) + b"\0\0\0" + varint(100) + bytes(30), 1, 0),
    "a header count that cannot be": (wire(0, headers=varint(50)), 1, 0),
    "a negative header count": (wire(0, headers=varint(-1)), 1, 0),
    "a header without a name": (wire(0, headers=varint(1) + varint(-1) + varint(-1)), 1, 0),
    "a header that leaves its record": (wire(0, headers=varint(1) + varint(9) + b"name"), 1, 0),
    "bytes after the headers": (wire(0, headers=HEADER + b"\0"), 1, 0),
    "a number of six bytes": (b"\xff\xff\xff\xff\xff\x01" + bytes(20), 1, 0),
}

Walk = Callable[[bytes, Any], Any]


def decoding(data: bytes, batches: Any) -> Any:
    return decode(data, batches)


def mapping(data: bytes, batches: Any) -> Any:
    return KeyOffsetMap(1 << 12).add(data, batches, position=0)


def cleaning(order: int) -> Walk:
    def run(data: bytes, batches: Any) -> Any:
        orders = np.full(len(batches), order, np.uint8)
        runs = clean(
            data,
            batches,
            orders,
            KeyOffsetMap(1 << 12),
            position=0,
            now_ms=NOW,
            delete_retention_ms=1,
        )
        return b"".join(bytes(made) for made, _ in runs)

    return run


WALKS: dict[str, Walk] = {
    "decode": decoding,
    "offset map": mapping,
    "clean": cleaning(0),
    "clean, all goes": cleaning(DISCARD),
    "clean, all stays": cleaning(WHOLE),
}


@pytest.mark.parametrize("walk", WALKS)
@pytest.mark.parametrize("number", [0, compression.LZ4], ids=["plain", "lz4"])
@pytest.mark.parametrize("broken", BROKEN)
def test_what_is_wrong_inside_a_batch_is_refused_by_every_walk(
    broken: str, number: int, walk: str
) -> None:
    section, records, last_delta = BROKEN[broken]
    data = batch(0, [Row(b"good", b"k")]) + sealed(1, section, records, last_delta, number)
    batches = scan(data, Chain()).batches
    assert len(batches) == 2
    with pytest.raises(CorruptRecordError, match="offset 1"):
        WALKS[walk](data, batches)


@pytest.mark.parametrize("broken", BROKEN)
def test_what_is_wrong_inside_a_batch_is_left_to_the_long_way_by_a_tail(broken: str) -> None:
    section, records, last_delta = BROKEN[broken]
    data = batch(0, [Row(b"good", b"k")]) + sealed(1, section, records, last_delta)
    assert _rows.records_from_run("t", 0, data, len(data), 0, False) is None
    assert (
        _rows.records_from_run(
            "t", 0, data, len(data) - len(sealed(1, section, records, last_delta)), 0, False
        )
        is not None
    )


@pytest.mark.parametrize("walk", WALKS)
def test_what_is_right_is_taken_by_every_walk(walk: str) -> None:
    data = sealed(0, b"".join(PLAIN), 3, 2) + sealed(5, wire(7, headers=HEADER), 1, 9)
    assert WALKS[walk](data, scan(data, Chain(gaps_allowed=True)).batches) is not None


def test_more_records_than_a_section_can_hold_ask_for_no_memory() -> None:
    """A compressed batch may declare 2^31 records: the memory for them is not allocated."""
    data = sealed(0, b"".join(PLAIN), 2**31 - 1, 2**31 - 1, compression.LZ4)
    batches = scan(data, Chain()).batches
    for name, walk in WALKS.items():
        with pytest.raises(CorruptRecordError) as caught:
            walk(data, batches)
        assert "record count" in str(caught.value) or name == "decode"


def test_all_walks_agree_about_random_damage(rng: random.Random, seed: int) -> None:
    """Bytes changed inside of a section whose checksum fits all the same: either each walk takes
    them, or none.
    """
    refused = 0
    for _ in range(1500):
        section = bytearray(
            b"".join(
                wire(n, headers=rng.choice((b"\0", HEADER))) for n in range(rng.randrange(1, 5))
            )
        )
        for _ in range(rng.randrange(1, 3)):
            section[rng.randrange(len(section))] = rng.randrange(256)
        count = rng.randrange(1, 5)
        data = sealed(0, bytes(section), count, count)
        batches = scan(data, Chain()).batches
        answers = (
            {name: _fine(walk, data, batches) for name, walk in WALKS.items()}
            if len(batches)
            else {}
        )
        if answers:
            answers["tail"] = _rows.records_from_run("t", 0, data, len(data), 0, False) is not None
        assert len(set(answers.values())) <= 1, (answers, bytes(section).hex(), count)
        refused += not all(answers.values())
    assert 100 < refused < 1500, seed


def _fine(walk: Walk, data: bytes, batches: Any) -> bool:
    try:
        walk(data, batches)
    except CorruptRecordError:
        return False
    return True


def test_a_resealed_batch_is_the_one_that_was_sealed() -> None:
    """The reference implementation of this page seals as the package does."""
    data = bytearray(sealed(0, b"".join(PLAIN), 3, 2))
    assert codec.reseal(data, len(data) - HEADER_SIZE, 0) >= 0
    assert bytes(data) == sealed(0, b"".join(PLAIN), 3, 2)
