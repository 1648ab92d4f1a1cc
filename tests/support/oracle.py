"""Reference implementations of the C core: batches read by the format's words, one byte after the
other, and murmur2.

No code of the package is used; `tests.batches` is the reference implementation of the encoder.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from typing import NamedTuple

from tests.support.batches import Row, batch, crc32c

HEADER = struct.Struct(">qiibIhiqqqhii")


class Broken(Exception):
    """The bytes violate the format."""


class Read(NamedTuple):
    """One record as a reader gets it."""

    offset: int
    timestamp: int
    timestamp_type: int
    leader_epoch: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...]


class _Cursor:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, size: int) -> bytes:
        if size < 0 or self.at + size > len(self.data):
            raise Broken("cut off")
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, size_max: int) -> int:
        value = 0
        for place in range(size_max):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << 7 * place
            if byte < 0x80:
                value &= (1 << (32 if size_max == 5 else 64)) - 1
                return (value >> 1) ^ -(value & 1)
        raise Broken("number too long")

    def text(self) -> bytes | None:
        size = self.number(5)
        if size < -1:
            raise Broken("length")
        return None if size == -1 else self.take(size)


def _record(
    cursor: _Cursor,
) -> tuple[int, int, bytes | None, bytes | None, tuple[tuple[bytes, bytes | None], ...]]:
    inside = _Cursor(cursor.take(cursor.number(5)))
    inside.take(1)
    timestamp_delta = inside.number(10)
    offset_delta = inside.number(5)
    key = inside.text()
    value = inside.text()
    headers = []
    count = inside.number(5)
    if count < 0 or count > len(inside.data):
        raise Broken("header count")
    for _ in range(count):
        name = inside.text()
        content = inside.text()
        if name is None:
            raise Broken("null header name")
        headers.append((name, content))
    if inside.at != len(inside.data):
        raise Broken("surplus in a record")
    return timestamp_delta, offset_delta, key, value, tuple(headers)


def read_batch(raw: bytes) -> list[Read]:
    """The records of one uncompressed batch. Raises Broken."""
    base, _, epoch, _, _, attributes, last_delta, base_ms, max_ms, _, _, _, count = (
        HEADER.unpack_from(raw)
    )
    cursor = _Cursor(raw[HEADER.size :])
    found = []
    previous = -1
    append_time = attributes & 8
    if count < 0:
        raise Broken("count")
    for _ in range(count):
        timestamp_delta, offset_delta, key, value, headers = _record(cursor)
        if not previous < offset_delta <= last_delta:
            raise Broken("offset delta")
        previous = offset_delta
        timestamp = max_ms if append_time else base_ms + timestamp_delta
        found.append(
            Read(
                base + offset_delta, timestamp, 1 if append_time else 0, epoch, key, value, headers
            )
        )
    if count and cursor.at != len(cursor.data):
        raise Broken("surplus in a batch")
    return found


def whole_batches(data: bytes) -> list[bytes]:
    """The batches that data begins with, up to the first that is cut off or has a wrong
    checksum.
    """
    found = []
    at = 0
    while len(data) - at >= HEADER.size:
        size = struct.unpack_from(">i", data, at + 8)[0] + 12
        raw = data[at : at + size]
        if (
            size < HEADER.size
            or len(raw) < size
            or raw[16] != 2
            or crc32c(raw[21:]) != struct.unpack_from(">I", raw, 17)[0]
        ):
            break
        found.append(raw)
        at += size
    return found


def cut(rows: Sequence[Row], batch_bytes: int) -> list[bytes]:
    """The batches that the encoder makes of these rows: as many rows in each as fit, and never
    none.
    """
    batches: list[bytes] = []
    first = 0
    done = 0
    while first < len(rows):
        last = first + 1
        whole = batch(done, rows[first : first + 1])
        while (
            last < len(rows) and len(larger := batch(done, rows[first : last + 1])) <= batch_bytes
        ):
            last = last + 1
            whole = larger
        batches.append(whole)
        done += last - first
        first = last
    return batches


def murmur2(key: bytes) -> int:
    """As in format.md, section 10."""
    m = 0x5BD1E995
    mask = 0xFFFFFFFF
    h = 0x9747B28C ^ len(key)
    whole = len(key) & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(key[at : at + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        h = (h * m & mask) ^ k
    if key[whole:]:
        h = (h ^ int.from_bytes(key[whole:], "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15


def random_rows(rng: random.Random, count: int, *, headers: bool = True) -> list[Row]:
    """Records of all shapes: nulls, empties, long ones, times that jump, offsets without gaps."""

    def text(size_max: int, null: float) -> bytes | None:
        if rng.random() < null:
            return None
        return rng.randbytes(
            rng.choice([0, 1, rng.randrange(64), rng.randrange(64, 200), rng.randrange(size_max)])
        )

    moment = rng.choice([0, 1_700_000_000_000])
    rows = []
    for _ in range(count):
        moment = max(
            0, moment + rng.choice([0, 0, 1, -5, rng.randrange(100_000_000), rng.randrange(2**45)])
        )
        names = [
            rng.randbytes(rng.randrange(5)).hex()
            for _ in range(rng.choice([0, 0, 0, 1, 3]) if headers else 0)
        ]
        some = [(name, text(90, 0.2)) for name in names]
        rows.append(Row(text(1200, 0.05), text(300, 0.3), some, moment))
    return rows
