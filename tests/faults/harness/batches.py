"""A batch of Kafka's format made by hand, as a broker would append it, without embedlog's code."""

from __future__ import annotations

import struct
from pathlib import Path

HEAD = struct.Struct(">qiibIhiqqqhii")
POLYNOMIAL = 0x82F63B78


def crc32c(data: bytes) -> int:
    """Bit by bit: slow and plain."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (POLYNOMIAL if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def varint(number: int) -> bytes:
    raw = (number << 1) ^ (number >> 63)
    out = bytearray()
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    return bytes([*out, raw])


def batch(
    offset: int, value: bytes, *, epoch: int = 0, timestamp_ms: int = 1_700_000_000_000
) -> bytes:
    """One batch with one record without key and headers."""
    body = b"\x00" + varint(0) + varint(0) + varint(-1) + varint(len(value)) + value + varint(0)
    record = varint(len(body)) + body
    covered = struct.pack(">hiqqqhii", 0, 0, timestamp_ms, timestamp_ms, -1, -1, -1, 1) + record
    head = struct.pack(">qiib", offset, len(covered) + 9, epoch, 2)
    return head + struct.pack(">I", crc32c(covered)) + covered


def end_of(path: Path) -> tuple[int, int]:
    """Log end offset and epoch of a segment, walked header by header."""
    data = path.read_bytes()
    at = 0
    end = int(path.stem)
    epoch = 0
    while at + HEAD.size <= len(data):
        fields = HEAD.unpack_from(data, at)
        end = fields[0] + fields[6] + 1
        epoch = fields[2]
        at += fields[1] + 12
    return end, epoch


def append_batch(partition: Path, value: bytes) -> int:
    """Append one record to the last segment without the library's files, as another program does;
    its offset.
    """
    path = max(partition.glob("*.log"))
    offset, epoch = end_of(path)
    with path.open("ab") as file:
        file.write(batch(offset, value, epoch=epoch))
    return offset
