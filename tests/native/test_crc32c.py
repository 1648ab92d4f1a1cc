"""CRC-32C: every implementation of this machine against one table, at every alignment and join."""

from __future__ import annotations

import platform
import random
from collections.abc import Iterator

import pytest

from embedlog._native import codec
from tests.support import batches as reference

BACKENDS = [
    "software",
    *(["sse42", "avx512-vpclmul"] if platform.machine() == "x86_64" else ["armv8"]),
]


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    chosen = codec.crc32c_backend()
    if not codec.crc32c_select(request.param):
        pytest.skip(f"this processor has no {request.param}")
    yield request.param
    codec.crc32c_select(chosen)


def test_published_values(backend: str) -> None:
    assert codec.crc32c_backend() == backend
    assert codec.crc32c(b"") == 0
    assert codec.crc32c(b"123456789") == 0xE3069283
    assert codec.crc32c(bytes(32)) == 0x8A9136AA
    assert codec.crc32c(b"\xff" * 32) == 0x62A8AB43


def test_every_size_and_alignment_as_the_table(backend: str, rng: random.Random) -> None:
    data = rng.randbytes(20_000)
    sizes = [
        *range(70),
        255,
        256,
        257,
        511,
        512,
        767,
        768,
        769,
        1023,
        1024,
        12_287,
        12_288,
        12_289,
        16_000,
    ]
    for size in sizes + [rng.randrange(3000) for _ in range(50)]:
        start = rng.randrange(64)
        assert codec.crc32c(memoryview(data)[start : start + size]) == reference.crc32c(
            data[start : start + size]
        ), (size, start)


def test_a_checksum_goes_on_where_another_ended(backend: str, rng: random.Random) -> None:
    data = rng.randbytes(5000)
    for _ in range(50):
        cut = rng.randrange(len(data) + 1)
        assert codec.crc32c(data[cut:], codec.crc32c(data[:cut])) == codec.crc32c(data)


def test_joined_checksums_are_those_of_the_joined_bytes(rng: random.Random) -> None:
    for _ in range(200):
        first = rng.randbytes(rng.randrange(400))
        second = rng.randbytes(rng.choice([0, 1, 7, rng.randrange(70_000)]))
        joined = codec.crc32c_combine(codec.crc32c(first), codec.crc32c(second), len(second))
        assert joined == codec.crc32c(first + second)


def test_an_unknown_implementation_changes_nothing() -> None:
    chosen = codec.crc32c_backend()
    assert not codec.crc32c_select("abacus")
    assert codec.crc32c_backend() == chosen
