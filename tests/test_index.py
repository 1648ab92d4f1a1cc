"""Floor search in both indexes, in memory and in files, against bisection of a plain list."""

from __future__ import annotations

import bisect
import os
import random
import struct
from pathlib import Path

import pytest

from embedlog._native import codec
from embedlog.errors import CorruptRecordError, StorageError

COUNTS = [0, 1, 2, 3, 339, 340, 341, 509, 510, 511, 512, 681, 1021, 1023, 1361, 2041, 5000]


def numbers(rng: random.Random, count: int, most: int, shape: str) -> list[int]:
    """Rising numbers: even ones, or ones that mislead a guess by the first and the last of them."""
    if shape == "even":
        return sorted(rng.sample(range(most), count))
    found: set[int] = set()
    while len(found) < count:
        found.add(int(most ** rng.random()) + rng.randrange(9999))
    return sorted(found if shape == "steep" else {most + 9999 - each for each in found})


@pytest.mark.parametrize("shape", ["even", "steep", "flat"])
@pytest.mark.parametrize("count", COUNTS)
def test_offsets_as_bisection_finds_them(
    rng: random.Random, tmp_path: Path, count: int, shape: str
) -> None:
    offsets = numbers(rng, count, 2**31 - 10_000, shape)
    entries = b"".join(struct.pack(">ii", offset, number) for number, offset in enumerate(offsets))
    path = tmp_path / "index"
    path.write_bytes(entries + bytes(4096))  # as preallocated: bytes after the count are not read
    fd = os.open(path, os.O_RDONLY)
    try:
        near = [
            offset + step for offset in rng.sample(offsets, min(count, 100)) for step in (-1, 0, 1)
        ]
        for target in (0, 2**31 - 1, *(place for place in near if 0 <= place < 2**31)):
            expected = bisect.bisect_right(offsets, target) - 1
            assert codec.index_floor(entries, target) == expected
            found = codec.index_floor_file(fd, count, target)
            assert found == (
                None if expected < 0 else (expected, entries[8 * expected : 8 * expected + 8])
            )
    finally:
        os.close(fd)


@pytest.mark.parametrize("shape", ["even", "steep", "flat"])
@pytest.mark.parametrize("count", COUNTS)
def test_times_as_bisection_finds_them(
    rng: random.Random, tmp_path: Path, count: int, shape: str
) -> None:
    times = numbers(rng, count, 2**62, shape)
    entries = b"".join(struct.pack(">qi", moment, number) for number, moment in enumerate(times))
    path = tmp_path / "timeindex"
    path.write_bytes(entries)
    fd = os.open(path, os.O_RDONLY)
    try:
        near = [
            moment + step for moment in rng.sample(times, min(count, 100)) for step in (-1, 0, 1)
        ]
        for target in (-(2**63), 2**63 - 1, *near):
            expected = bisect.bisect_right(times, target) - 1
            assert codec.time_floor(entries, target) == expected
            found = codec.time_floor_file(fd, count, target)
            assert found == (
                None if expected < 0 else (expected, entries[12 * expected : 12 * expected + 12])
            )
    finally:
        os.close(fd)


def test_a_file_shorter_than_its_count_is_corruption(tmp_path: Path) -> None:
    path = tmp_path / "index"
    path.write_bytes(bytes(80))
    fd = os.open(path, os.O_RDONLY)
    try:
        for count in (11, 5000):
            with pytest.raises(CorruptRecordError, match="shorter than its count"):
                codec.index_floor_file(fd, count, 5)
    finally:
        os.close(fd)


def test_a_descriptor_that_cannot_be_read_is_a_storage_error() -> None:
    with pytest.raises(StorageError, match="reading an index"):
        codec.index_floor_file(-1, 5, 5)
