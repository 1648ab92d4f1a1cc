"""murmur2 and the partitions of keys as Kafka has them; XXH3 as its library has it."""

from __future__ import annotations

import ctypes
import random
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from embedlog import partitioners
from embedlog._native import codec
from embedlog.errors import InvalidRecordError
from embedlog.format.record_batch import group_by_partition, partitions_of
from embedlog.format.record_columns import BytesColumn
from tests.support import oracle

# Key, murmur2, mod 12, mod 50: computed by Kafka's own Utils.murmur2.
KAFKA = [
    (b"", 0x106E08D9, 9, 31),
    (b"a", 0xA2D0B27C, 4, 24),
    (b"21", 0xC5F2F8EC, 0, 40),
    (b"foobar", 0xD0E47BBE, 6, 16),
    (b"kafka", 0xD067CF64, 4, 30),
    (b"a-little-bit-long-string", 0xC53B1DA0, 8, 12),
    (bytes.fromhex("ff807f00fe"), 0x8B43BA05, 5, 9),
    ("żółć".encode(), 0x1C53C761, 5, 27),
]


@pytest.mark.parametrize(("key", "value", "of_12", "of_50"), KAFKA)
def test_kafkas_own_values(key: bytes, value: int, of_12: int, of_50: int) -> None:
    assert codec.murmur2(key) == value == oracle.murmur2(key)
    assert partitions_of(BytesColumn.of([key]), 12).tolist() == [of_12]
    assert partitions_of(BytesColumn.of([key]), 50).tolist() == [of_50]


def librdkafka() -> ctypes.CDLL:
    """The C client inside of confluent-kafka, whose partitioners need no broker."""
    package = Path(pytest.importorskip("confluent_kafka").__file__).parent
    found = sorted((package.parent / "confluent_kafka.libs").glob("librdkafka*.so*"))
    if not found:
        pytest.skip("this confluent-kafka brings no library along")
    library = ctypes.CDLL(str(found[0]))
    library.rd_kafka_msg_partitioner_murmur2.restype = ctypes.c_int32
    library.rd_kafka_msg_partitioner_murmur2.argtypes = [
        ctypes.c_void_p,
        ctypes.c_char_p,
        ctypes.c_size_t,
        ctypes.c_int32,
        ctypes.c_void_p,
        ctypes.c_void_p,
    ]
    return library


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=70), st.integers(1, 2**31 - 1))
def test_librdkafka_puts_every_key_where_we_put_it(key: bytes, count: int) -> None:
    expected = librdkafka().rd_kafka_msg_partitioner_murmur2(None, key, len(key), count, None, None)
    assert (codec.murmur2(key) & 0x7FFFFFFF) % count == expected
    assert partitions_of(BytesColumn.of([key]), count).tolist() == [expected]
    assert partitioners.partition_of(key, count) == expected


@pytest.mark.parametrize("width", [np.int32, np.int64])
def test_a_column_of_random_keys_with_nulls(rng: random.Random, width: type) -> None:
    keys = [None if rng.random() < 0.2 else rng.randbytes(rng.randrange(20)) for _ in range(500)]
    column = BytesColumn.of(keys)
    column = BytesColumn(column.data, column.offsets.astype(width), column.validity)
    expected = [-1 if key is None else (oracle.murmur2(key) & 0x7FFFFFFF) % 7 for key in keys]
    assert partitions_of(column, 7).tolist() == expected


def test_validity_may_begin_within_a_byte() -> None:
    column = BytesColumn.of([b"x", b"y", b"z"])
    shifted = BytesColumn(
        column.data, column.offsets, np.array([0b0101_1000, 0], np.uint8), validity_offset=3
    )
    assert (partitions_of(shifted, 5) >= 0).tolist() == [True, True, False]


@pytest.mark.parametrize("offsets", [[0, 2, 1, 3], [0, 1, 2, 9], [-1, 1, 2, 3]])
def test_offsets_outside_the_data_are_refused(offsets: list[int]) -> None:
    with pytest.raises(InvalidRecordError, match="do not rise"):
        partitions_of(BytesColumn(np.zeros(3, np.uint8), np.array(offsets, np.int32)), 4)


def test_rows_of_each_partition_in_order(rng: random.Random) -> None:
    numbers = np.array([rng.randrange(-1, 9) for _ in range(1000)], np.int32)
    groups = group_by_partition(numbers, 9)
    assert [group.tolist() for group in groups] == [
        np.flatnonzero(numbers == number).tolist() for number in range(9)
    ]


@pytest.mark.parametrize("wrong", [-2, 4])
def test_a_partition_that_is_not_there_is_refused(wrong: int) -> None:
    with pytest.raises(InvalidRecordError, match="0 to 3"):
        group_by_partition(np.array([0, wrong], np.int32), 4)


def test_xxh3_as_its_library(rng: random.Random) -> None:
    for size in [*range(1200), 2047, 2048, 2049, 4096, 65_537]:
        for seed in (0, rng.getrandbits(64)):
            data = rng.randbytes(size)
            assert codec.xxh3_64(data, seed) == xxhash.xxh3_64_intdigest(data, seed), size
