"""A reference implementation of the encoder: one batch at a time, with any header field set by the
test.

Written from the format alone, with no code of the package, so that the bytes that the package reads
are not its own.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

TRANSACTIONAL = 0x10
CONTROL = 0x20
ABORT = 0
COMMIT = 1

Header = tuple[str | bytes, bytes | None]


class Row(NamedTuple):
    """One record of a batch."""

    value: bytes | None = b""
    key: bytes | None = None
    headers: Sequence[Header] = ()
    timestamp_ms: int = 0
    offset_delta: int | None = None  # None: one more than the record before


def _table() -> list[int]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return table


_CRC_TABLE = _table()


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRC_TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def varint(number: int) -> bytes:
    zigzag = (number << 1) ^ (number >> 63)
    out = bytearray()
    while zigzag > 0x7F:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    out.append(zigzag)
    return bytes(out)


def _text(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def _record(row: Row, timestamp_delta: int, offset_delta: int) -> bytes:
    body = (
        b"\0"
        + varint(timestamp_delta)
        + varint(offset_delta)
        + _text(row.key)
        + _text(row.value)
        + varint(len(row.headers))
    )
    for name, value in row.headers:
        body += _text(name.encode() if isinstance(name, str) else name) + _text(value)
    return varint(len(body)) + body


def batch(
    base_offset: int,
    rows: Sequence[Row],
    *,
    attributes: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    leader_epoch: int = 0,
    last_offset_delta: int | None = None,
) -> bytes:
    """One sealed, uncompressed batch."""
    base_ms = rows[0].timestamp_ms if rows else -1
    records = b""
    delta = -1
    for row in rows:
        delta = delta + 1 if row.offset_delta is None else row.offset_delta
        records += _record(row, row.timestamp_ms - base_ms, delta)
    last = delta if last_offset_delta is None else last_offset_delta
    newest_ms = max((row.timestamp_ms for row in rows), default=-1)
    tail = (
        struct.pack(
            ">hiqqqhii",
            attributes,
            last,
            base_ms,
            newest_ms,
            producer_id,
            producer_epoch,
            base_sequence,
            len(rows),
        )
        + records
    )
    return struct.pack(">qiibI", base_offset, 9 + len(tail), leader_epoch, 2, crc32c(tail)) + tail


def marker(base_offset: int, producer_id: int, kind: int) -> bytes:
    """The control batch that ends a transaction: ABORT or COMMIT."""
    row = Row(value=struct.pack(">hi", 0, 0), key=struct.pack(">hh", 0, kind))
    return batch(
        base_offset,
        [row],
        attributes=TRANSACTIONAL | CONTROL,
        producer_id=producer_id,
        producer_epoch=0,
    )
