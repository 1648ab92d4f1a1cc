"""An independent reader of Kafka's log files, of all message formats: it shares no code with the
package.

Checksums are compared, so that a test cannot build bytes that no broker would take. Codecs: none
and gzip.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_TABLE: list[int] = []
for _number in range(256):
    for _ in range(8):
        _number = (_number >> 1) ^ (0x82F63B78 if _number & 1 else 0)
    _TABLE.append(_number)


class ReadRecord(NamedTuple):
    """One record of a log."""

    offset: int
    key: bytes | None
    value: bytes | None


class Unreadable(Exception):
    """The bytes are no valid log."""


def crc32c(data: bytes) -> int:
    """CRC-32C."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def read_partition(directory: Path, tail_bytes: int = 0) -> list[ReadRecord]:
    """The records of all segments of a partition but the last `tail_bytes` bytes, without control
    records.
    """
    paths = sorted(directory.glob("*.log"))
    records: list[ReadRecord] = []
    for path in paths:
        data = path.read_bytes()
        if path == paths[-1] and tail_bytes:
            data = data[:-tail_bytes]
        records += read_log(data, path.name)
    return records


def read_log(data: bytes, name: str = "log") -> Iterator[ReadRecord]:
    """The records of a segment. Raises Unreadable at the first wrong byte."""
    at = 0
    while at < len(data):
        if at + 17 > len(data):
            raise Unreadable(f"{name}: {len(data) - at} stray bytes at {at}")
        size = 12 + struct.unpack_from(">i", data, at + 8)[0]
        if size < 26 or at + size > len(data):
            raise Unreadable(f"{name}: size {size} at {at}")
        batch = data[at : at + size]
        yield from _batch(batch, name) if batch[16] == 2 else _message(batch, name)
        at += size


def _batch(data: bytes, name: str) -> Iterator[ReadRecord]:
    base, _, _, _, crc, attributes = struct.unpack_from(">qiibIh", data)
    if crc32c(data[21:]) != crc:
        raise Unreadable(f"{name}: checksum of the batch at offset {base}")
    if attributes & 0x20:
        return
    count = struct.unpack_from(">i", data, 57)[0]
    body = zlib.decompress(data[61:], 31) if attributes & 7 else data[61:]
    at = 0
    for _ in range(count):
        size, at = _varint(body, at)
        end = at + size
        _, at = _varint(body, at + 1)
        delta, at = _varint(body, at)
        key, at = _field(body, at)
        value, at = _field(body, at)
        yield ReadRecord(base + delta, key, value)
        at = end


def _message(data: bytes, name: str) -> list[ReadRecord]:
    offset, _, crc, magic, attributes = struct.unpack_from(">qiIbb", data)
    if magic not in (0, 1) or zlib.crc32(data[16:]) != crc:
        raise Unreadable(f"{name}: message at offset {offset} of magic {magic}")
    at = 18 if magic == 0 else 26
    fields: list[bytes | None] = []
    for _ in range(2):
        size = struct.unpack_from(">i", data, at)[0]
        at += 4
        fields.append(None if size < 0 else data[at : at + size])
        at += max(size, 0)
    key, value = fields
    if not attributes & 7:
        return [ReadRecord(offset, key, value)]
    inner = list(read_log(zlib.decompress(value or b"", 31), name))
    shift = offset - inner[-1].offset if magic == 1 else 0
    return [each._replace(offset=each.offset + shift) for each in inner]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    shift = number = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return (number >> 1) ^ -(number & 1), at
        shift += 7


def _field(data: bytes, at: int) -> tuple[bytes | None, int]:
    size, at = _varint(data, at)
    return (None, at) if size < 0 else (data[at : at + size], at + size)
