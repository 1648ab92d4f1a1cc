"""The batches after a compaction, in every codec and timestamp type, against a reference with a
dictionary of records.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from embedlog._native import codec
from embedlog.errors import CorruptRecordError, UnsupportedFormatError
from embedlog.format import compression
from embedlog.format.compactor import (
    DISCARD,
    HORIZON,
    HORIZON_BIT,
    KEEP_EMPTY,
    WHOLE,
    KeyOffsetMap,
    clean,
)
from embedlog.format.record_batch import Chain, decode, scan
from embedlog.format.record_columns import HEADER_SIZE
from tests.support.batches import COMMIT, Row, batch, marker

APPEND_TIME = 0x08
NOW = 1_700_000_000_000
DAY = 86_400_000
Kept = tuple[int, bytes | None, bytes | None, int]


def packed(raw: bytes, number: int) -> bytes:
    """The same batch, its records compressed."""
    if number == 0:
        return raw
    body = memoryview(compression.compress(number, raw[HEADER_SIZE:], None)).cast("B")
    made = bytearray(raw[:HEADER_SIZE]) + body
    assert codec.reseal(made, len(body), number) >= 0
    return bytes(made)


def scanned(data: bytes) -> Any:
    found = scan(data, Chain(gaps_allowed=True))
    assert found.problem is None
    assert found.consumed == len(data)
    return found.batches


def records(data: bytes) -> list[Kept]:
    batches = scanned(data)
    rows = decode(data, batches)
    return [
        (int(rows.offsets[n]), rows.keys[n], rows.values[n], int(rows.timestamps[n]))  # type: ignore[index]
        for n in range(rows.count)
    ]


def mapped(data: bytes, memory_bytes: int = 1 << 16) -> KeyOffsetMap:
    offsets = KeyOffsetMap(memory_bytes)
    assert offsets.add(data, scanned(data), position=0)
    return offsets


def cleaned(
    data: bytes, offsets: KeyOffsetMap, orders: list[int] | None = None, now_ms: int = NOW
) -> bytes:
    batches = scanned(data)
    how = np.array(orders if orders is not None else [0] * len(batches), np.uint8)
    runs = clean(data, batches, how, offsets, position=0, now_ms=now_ms, delete_retention_ms=DAY)
    return b"".join(bytes(run) for run, _ in runs)


# ---- the map ---------------------------------------------------------------------------------------


def test_the_map_knows_the_latest_offset_of_every_key() -> None:
    data = batch(5, [Row(b"1", b"a"), Row(b"2", b"b"), Row(b"3", b"a"), Row(b"4")])
    offsets = mapped(data)
    assert [offsets.find(key) for key in (b"a", b"b", b"c", b"")] == [7, 6, -1, -1]
    assert (len(offsets), offsets.latest) == (2, 8)


def test_a_full_map_says_up_to_where_it_knows_everything() -> None:
    data = batch(0, [Row(b"v", b"%d" % n) for n in range(50)])
    offsets = KeyOffsetMap(16 * 24)
    assert not offsets.add(data, scanned(data), position=0)
    assert (len(offsets), offsets.latest) == (14, 13)
    assert offsets.find(b"13") == 13
    assert offsets.find(b"14") == -1


@pytest.mark.parametrize("keys", [0, 1, 2, 3, 14, 15, 1000, 9_000_000])
def test_a_map_has_room_for_all_keys_that_can_come_and_no_more_memory(keys: int) -> None:
    """9 million keys need huge pages; these are zero too."""
    limit_bytes = 512 << 20
    offsets = KeyOffsetMap(limit_bytes, keys=keys)
    table = offsets.table.raw
    assert keys <= table.limit < table.capacity <= max(2, 2.3 * (keys + 1))
    assert not offsets._memory[-codec.MAP_SLOT_BYTES :].any()
    assert offsets.find(b"k") == -1
    few = KeyOffsetMap(4 * codec.MAP_SLOT_BYTES, keys=keys)
    assert few.table.raw.capacity <= 4


def test_compressed_and_plain_batches_alternate_in_one_call() -> None:
    codecs = [0, 0, 2, 0, 2, 2, 0]
    data = b"".join(
        packed(batch(3 * n, [Row(b"v", b"%d" % n), Row(b"v", b"same")]), kind)
        for n, kind in enumerate(codecs)
    )
    offsets = mapped(data)
    assert [offsets.find(b"%d" % n) for n in range(len(codecs))] == [
        3 * n for n in range(len(codecs))
    ]
    assert (offsets.find(b"same"), offsets.latest) == (19, 19)


@pytest.mark.parametrize("number", [0, 2])
@pytest.mark.parametrize("bad", [0, 1, 2])
def test_the_error_of_a_damaged_record_names_its_batch(bad: int, number: int) -> None:
    whole = [batch(10 * n, [Row(b"v", b"k")]) for n in range(3)]
    damaged = bytearray(whole[bad])
    damaged[HEADER_SIZE] ^= 0x20  # the size of the record
    body = len(damaged) - HEADER_SIZE
    assert codec.reseal(damaged, body, 0) >= 0
    data = b"".join(
        packed(bytes(damaged) if n == bad else raw, number) for n, raw in enumerate(whole)
    )
    with pytest.raises(
        CorruptRecordError, match=f"record 0 of the batch at offset {10 * bad}: size of a record"
    ) as caught:
        KeyOffsetMap(1 << 12).add(data, scanned(data), position=0)
    assert caught.value.position == int(scanned(data)["position"][bad])


def test_batches_that_are_not_plain_or_not_in_the_data_are_refused_by_the_core() -> None:
    plain = batch(0, [Row(b"v", b"k")])
    table = KeyOffsetMap(1 << 12).table
    assert table.add_run(packed(plain, 2), 0, scanned(packed(plain, 2)), 0) == (codec.EINVALID, 0)
    for position in (-1, 1):
        moved = scanned(plain).copy()
        moved["position"] += position
        assert table.add_run(plain, 0, moved, 0) == (codec.EINVALID, 0)
    old = scanned(plain).copy()
    old["magic"] = 1
    with pytest.raises(UnsupportedFormatError, match="old format"):
        KeyOffsetMap(1 << 12).add(plain, old, position=0)


def test_keys_of_all_lengths_are_told_apart() -> None:
    keys = [bytes(size) for size in range(70)] + [b"x" * size for size in range(1, 70)]
    data = batch(0, [Row(b"", key) for key in keys])
    offsets = mapped(data)
    assert [offsets.find(key) for key in keys] == list(range(len(keys)))


def test_the_hash_is_the_published_one() -> None:
    """SipHash-2-4-128 of the bytes 0 to 14 under the key 0 to 15, from the reference
    implementation's vectors.
    """
    offsets = KeyOffsetMap(4 * 24, seed=bytes(range(16)))
    data = batch(0, [Row(b"", bytes(range(15)))])
    assert offsets.add(data, scanned(data), position=0)
    slots = offsets._memory.tobytes()
    assert bytes.fromhex("5493e99933b0a8117e08ec0f97cfc3d9") in slots


# ---- batches ---------------------------------------------------------------------------------------


def test_a_batch_that_loses_nothing_is_the_same_bytes() -> None:
    data = packed(batch(0, [Row(b"1", b"a"), Row(b"2", b"b")]), 2) + batch(2, [Row(b"3", b"c")])
    assert cleaned(data, mapped(data)) == data


def test_tombstones_stay_for_a_day_and_go_with_the_next_pass() -> None:
    """Kafka's own sequence for a=1, b=1, a=null in one batch."""
    data = batch(
        0,
        [Row(b"1", b"a", (), NOW - 3), Row(b"1", b"b", (), NOW - 2), Row(None, b"a", (), NOW - 1)],
    )
    first = cleaned(data, mapped(data))
    assert records(first) == [(1, b"b", b"1", NOW - 2), (2, b"a", None, NOW - 1)]
    (row,) = scanned(first)
    assert (row["base_offset"], row["last_offset_delta"], row["records"]) == (0, 2, 2)
    assert row["attributes"] & HORIZON_BIT
    assert row["base_timestamp"] == NOW + DAY
    assert cleaned(first, mapped(first), now_ms=NOW + DAY - 1) == first
    second = cleaned(first, mapped(first), now_ms=NOW + DAY)
    assert records(second) == [(1, b"b", b"1", NOW - 2)]
    (row,) = scanned(second)
    assert row["attributes"] & HORIZON_BIT
    assert row["max_timestamp"] == NOW - 2


def test_records_above_what_the_map_knows_stay() -> None:
    data = batch(0, [Row(b"1", b"a"), Row(b"2", b"a"), Row(b"3", b"a")])
    offsets = KeyOffsetMap(1 << 12)
    front = batch(0, [Row(b"1", b"a"), Row(b"2", b"a")])
    assert offsets.add(front, scanned(front), position=0)
    assert [offset for offset, *_ in records(cleaned(data, offsets))] == [1, 2]


def test_records_without_keys_go() -> None:
    data = batch(0, [Row(b"1"), Row(b"2", b"k")])
    assert [offset for offset, *_ in records(cleaned(data, mapped(data)))] == [1]


@pytest.mark.parametrize("order", [DISCARD, DISCARD | KEEP_EMPTY])
def test_an_emptied_batch_stays_only_if_it_is_told_to(order: int) -> None:
    data = batch(
        7,
        [Row(b"1", b"a"), Row(b"2", b"b")],
        attributes=0x10,
        producer_id=9,
        producer_epoch=2,
        base_sequence=5,
    )
    after = cleaned(data, mapped(data), [order])
    if order == DISCARD:
        assert after == b""
        return
    (row,) = scanned(after)
    assert len(after) == HEADER_SIZE
    kept = (
        "base_offset",
        "last_offset_delta",
        "producer_id",
        "producer_epoch",
        "base_sequence",
        "attributes",
        "base_timestamp",
    )
    assert [int(row[name]) for name in kept] == [7, 1, 9, 2, 5, 0x10, -1]


def test_a_marker_stays_whole_and_can_be_given_its_horizon() -> None:
    data = marker(3, 9, COMMIT)
    assert cleaned(data, mapped(data), [WHOLE]) == data
    after = cleaned(data, mapped(data), [WHOLE | HORIZON])
    (row,) = scanned(after)
    assert row["base_timestamp"] == NOW + DAY
    assert row["records"] == 1
    assert after[-12:] == data[-12:]


def test_damage_inside_a_batch_is_told_and_nothing_is_cleaned() -> None:
    good = batch(0, [Row(b"1", b"a"), Row(b"2", b"b")])
    bad = bytearray(good)
    bad[HEADER_SIZE] = 0x7F
    batches = scanned(good)
    with pytest.raises(CorruptRecordError):
        KeyOffsetMap(1 << 12).add(bytes(bad), batches, position=0)
    with pytest.raises(CorruptRecordError):
        list(
            clean(
                bytes(bad),
                batches,
                np.zeros(1, np.uint8),
                mapped(good),
                position=0,
                now_ms=NOW,
                delete_retention_ms=DAY,
            )
        )


# ---- against a reference implementation ----------------------------------------------------------------


def random_log(rng: random.Random) -> tuple[bytes, list[Kept]]:
    data = b""
    every = []
    offset = 0
    for _ in range(rng.randrange(1, 12)):
        append_time = rng.random() < 0.3
        rows = [
            Row(
                None if rng.random() < 0.2 else rng.randbytes(rng.randrange(40)),
                None if rng.random() < 0.1 else b"k%d" % rng.randrange(15),
                [("h", b"x")] if rng.random() < 0.2 else (),
                NOW + rng.randrange(-(10**6), 10**6)
                if rng.random() < 0.9
                else rng.randrange(2**50),
            )
            for _ in range(rng.randrange(1, 30))
        ]
        raw = batch(offset, rows, attributes=APPEND_TIME if append_time else 0, leader_epoch=2)
        newest = max(row.timestamp_ms for row in rows)
        for number, row in enumerate(rows):
            every.append(
                (offset + number, row.key, row.value, newest if append_time else row.timestamp_ms)
            )
        data += packed(raw, rng.choice([0, 0, 1, 2, 3, 4]))
        offset += len(rows) + rng.choice([0, 0, 3])
    return data, every


def reference(every: list[Kept], latest: dict[bytes, int], known_to: int) -> list[Kept]:
    return [
        each
        for each in every
        if each[0] > known_to or (each[1] is not None and each[0] >= latest[each[1]])
    ]


def test_a_log_without_batches_stays_without_batches() -> None:
    assert cleaned(b"", KeyOffsetMap(64 * 24)) == b""


@pytest.mark.parametrize("number", range(40))
def test_any_log_is_cleaned_as_by_a_dictionary(number: int) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    data, every = random_log(rng)
    offsets = KeyOffsetMap(rng.choice([8, 64]) * 24)
    offsets.add(data, scanned_loosely(data), position=0)
    known = [each for each in every if each[0] <= offsets.latest]
    latest = {key: offset for offset, key, _, _ in known if key is not None}
    after = cleaned(data, offsets)
    assert records(after) == reference(every, latest, offsets.latest)
    again = cleaned(after, offsets, now_ms=NOW + 2 * DAY)
    survivors = [
        each
        for each in reference(every, latest, offsets.latest)
        if each[2] is not None or each[0] > offsets.latest
    ]
    assert records(again) == survivors


def scanned_loosely(data: bytes) -> Any:
    return scan(data, Chain(gaps_allowed=True)).batches
