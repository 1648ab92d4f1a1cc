"""Markers with one wrong bit are restored; no other bytes are taken for a marker."""

from __future__ import annotations

import random
import struct

import pytest

from embedlog.format.record_batch import marker_batch
from embedlog.integrity.marker_repair import MARKER_BYTES, restore

OFFSET = 1234
EPOCH = 3


def marker(commit: bool) -> bytes:
    data = bytearray(marker_batch(77, 2, commit, 5, 1_700_000_000_000))
    data[:8], data[12:16] = struct.pack(">q", OFFSET), struct.pack(">i", EPOCH)
    return bytes(data)


@pytest.mark.parametrize("commit", [True, False])
def test_every_single_bit_is_corrected(commit: bool) -> None:
    right = marker(commit)
    assert len(right) == MARKER_BYTES
    for bit in range(8 * MARKER_BYTES):
        wrong = bytearray(right)
        wrong[bit // 8] ^= 1 << bit % 8
        assert restore(bytes(wrong), OFFSET, EPOCH) == right, bit


def test_other_bytes_are_no_marker(rng: random.Random) -> None:
    right = marker(True)
    assert restore(right[:-1], OFFSET, EPOCH) is None
    assert restore(right + b"\0", OFFSET, EPOCH) is None
    for _ in range(200):
        assert restore(rng.randbytes(MARKER_BYTES), OFFSET, EPOCH) is None
        wrong = bytearray(right)
        for bit in rng.sample(range(8 * 21, 8 * MARKER_BYTES), 2):
            wrong[bit // 8] ^= 1 << bit % 8
        assert restore(bytes(wrong), OFFSET, EPOCH) is None
