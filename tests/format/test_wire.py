"""Varints as Kafka writes them, in both directions."""

from __future__ import annotations

import random

import pytest

from embedlog.format.wire import Flexible, read_varint, uvarint, varint
from tests.support import batches


@pytest.mark.parametrize(
    ("number", "data"),
    [
        (0, b"\x00"),
        (-1, b"\x01"),
        (1, b"\x02"),
        (64, b"\x80\x01"),
        (-64, b"\x7f"),
        (-65, b"\x81\x01"),
        (300, b"\xd8\x04"),
    ],
)
def test_known_varints(number: int, data: bytes) -> None:
    assert varint(number) == data
    assert read_varint(b"?" + data + b"?", 1) == (number, 1 + len(data))


def test_varints_agree_with_the_tests_own_encoder(rng: random.Random) -> None:
    edges = [
        sign * (1 << bits) + delta for bits in range(63) for sign in (1, -1) for delta in (-1, 0, 1)
    ]
    numbers = [
        *edges,
        2**63 - 1,
        -(2**63),
        *(rng.randrange(-(2**63), 2**63) >> rng.randrange(64) for _ in range(2000)),
    ]
    for number in numbers:
        data = varint(number)
        assert data == batches.varint(number), number
        assert read_varint(data, 0) == (number, len(data))


def test_unsigned_varints_are_read_back(rng: random.Random) -> None:
    for number in [
        0,
        1,
        127,
        128,
        16383,
        16384,
        2**31 - 1,
        2**35 - 1,
        *(rng.randrange(2**35) for _ in range(1000)),
    ]:
        data = uvarint(number)
        assert varint(number >> 1) == uvarint(number >> 1 << 1), (
            "zigzag doubles a number that is not negative"
        )
        reader = Flexible(data, 0)
        assert (reader.uvarint(), reader.at) == (number, len(data))


def test_a_varint_that_is_cut_off_is_an_index_error() -> None:
    for number in (64, 2**40, -(2**63)):
        with pytest.raises(IndexError):
            read_varint(varint(number)[:-1], 0)


def test_a_varint_of_more_than_ten_bytes_is_refused() -> None:
    assert read_varint(b"\xff" * 9 + b"\x01", 0) == (-(2**63), 10)
    with pytest.raises(ValueError, match="ten bytes"):
        read_varint(b"\x80" * 10 + b"\x00", 0)
