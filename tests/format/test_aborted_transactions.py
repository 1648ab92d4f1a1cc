"""Kafka's `.txnindex`: entries to the byte, each field damaged with its own message, lookups
against a reference.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from embedlog.errors import CorruptRecordError, UnsupportedFormatError
from embedlog.format.aborted_transactions import (
    ENTRY_SIZE,
    AbortedTransaction,
    below,
    decode,
    encode,
    overlapping,
)

WORKED = bytes.fromhex("0000 0000000000000001 0000000000000005 0000000000000009 000000000000000a")
SOME = [
    AbortedTransaction(1, 5, 9, 3),
    AbortedTransaction(2, 3, 12, 13),
    AbortedTransaction(1, 14, 20, 21),
]


def test_an_entry_is_kafkas_to_the_byte() -> None:
    assert encode([AbortedTransaction(1, 5, 9, 10)]) == WORKED
    assert decode(WORKED, 0).tolist() == [(0, 1, 5, 9, 10)]
    assert len(decode(b"", 7)) == 0


def test_a_brokers_indexes_are_read_and_written_back_to_the_byte(golden: Path) -> None:
    paths = sorted(golden.glob("*/log/*/*.txnindex"))
    assert len(paths) >= 4
    for path in paths:
        entries = [
            AbortedTransaction(*row[1:])
            for row in decode(path.read_bytes(), int(path.stem), path).tolist()
        ]
        assert entries
        assert encode(entries) == path.read_bytes()


@pytest.mark.parametrize(
    ("data", "base", "position", "message"),
    [
        (WORKED[:-1], 0, 0, "ends inside an entry: expected 34 bytes, found 33"),
        (WORKED + WORKED[:1], 0, 34, "ends inside an entry: expected 34 bytes, found 1"),
        (WORKED, 10, 0, "expected a marker in its segment, at or above 10, found 9"),
        (
            encode([AbortedTransaction(1, 5, 4, 5)]),
            0,
            0,
            "expected a first offset up to its marker, found 5",
        ),
        (WORKED + WORKED, 0, 34, "expected a marker after the previous one, found 9"),
        (encode([*SOME[1:], SOME[0]]), 0, 68, "expected a marker after the previous one, found 9"),
    ],
)
def test_damage_is_told_with_its_place(data: bytes, base: int, position: int, message: str) -> None:
    with pytest.raises(CorruptRecordError) as caught:
        decode(data, base, "5.txnindex")
    assert message in str(caught.value)
    assert caught.value.position == position


def test_a_newer_entry_is_named() -> None:
    with pytest.raises(UnsupportedFormatError, match="expected version 0, found 256"):
        decode(b"\x01" + WORKED[1:], 0)
    assert len(decode(b"\x00\x07" + WORKED[2:], 0)) == 1, "Kafka checks the high byte only"


def test_a_lookup_ends_where_nothing_further_can_matter() -> None:
    entries = decode(encode(SOME), 0)
    assert overlapping(entries, 0, 5) == ([SOME[1]], True)
    assert overlapping(entries, 9, 10) == (SOME[:2], True)
    assert overlapping(entries, 10, 14) == ([SOME[1]], True)
    assert overlapping(entries, 0, 100) == (SOME, False)
    assert overlapping(entries, 21, 100) == ([], False)
    assert overlapping(entries[:0], 0, 100) == ([], False)


def test_a_cut_takes_the_entries_whose_markers_are_gone() -> None:
    data = encode(SOME)
    assert below(data, 21, 0) == data
    assert below(data, 20, 0) == data[: 2 * ENTRY_SIZE]
    assert below(data, 9, 0) == b""


def test_lookups_against_a_slow_twin(rng: random.Random) -> None:
    """Aborts as a partition makes them: an abort outside the result of a lookup ended before the
    range, or began after it.
    """
    for _ in range(100):
        opened: dict[int, int] = {}
        entries = []
        for offset in range(80):
            producer = rng.randrange(5)
            if producer in opened and rng.random() < 0.3:
                first = opened.pop(producer)
                entries.append(
                    AbortedTransaction(
                        producer, first, offset, min(opened.values(), default=offset + 1)
                    )
                )
            else:
                opened.setdefault(producer, offset)
        start, end = sorted(rng.sample(range(90), 2))
        found, complete = overlapping(decode(encode(entries), 0), start, end)
        assert found == [
            each for each in entries if each.last_offset >= start and each.first_offset < end
        ]
        assert complete == any(each.last_stable_offset >= end for each in entries)
