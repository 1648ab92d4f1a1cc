"""Reads and checks messages of magic 0 and 1, which Kafka wrote before version 0.11 and still
serves; none is written.

LEGACY-1  a message, compressed or not, is one row of the scan; its offset is that of its last
    record
LEGACY-2  a message is converted to a records section of magic 2, so that there is one decoder
LEGACY-3  the first 17 bytes have the layout of a batch: offset, size, CRC, magic
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final, NamedTuple

from embedlog.errors import CorruptRecordError
from embedlog.format import compression
from embedlog.format.record_columns import (
    CODEC_MASK,
    LOG_APPEND_TIME,
    LOG_OFFSET_MAX,
    RELATIVE_MAX,
    Batches,
)
from embedlog.format.wire import varint

HEAD = struct.Struct(
    ">q"  # offset
    "i"  # size of what follows this field
    "I"  # CRC-32 (IEEE) of what follows this field
    "b"  # magic
    "b"  # attributes: codec, and for magic 1 the timestamp type in bit 3
)
AFTER_SIZE = 12
CRC_FROM = 16
SIZE_MIN = {0: 26, 1: 34}  # a null key and a null value

OUT_OF_RANGE: Final = "offset of a message is outside its segment"


class Broken(NamedTuple):
    """The reason why bytes are not a message."""

    what: str
    expected: int | str
    found: int | str


class Seen(NamedTuple):
    """A whole message of `consumed` bytes; or 0, if `need` bytes are required."""

    consumed: int
    need: int


class Message(NamedTuple):
    """One record: `timestamp` is -1 if the format has none."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


# ---- scan ----------------------------------------------------------------------------------------


def scan(view: memoryview, next_offset: int, segment_base: int, rows: Batches) -> Seen | Broken:
    """Checks the message at the begin of `view` and describes it in rows[0]."""
    if len(view) < HEAD.size:
        return Seen(0, 0)
    offset, length, crc, magic, attributes = HEAD.unpack_from(view)
    size = length + AFTER_SIZE
    if size < SIZE_MIN[magic]:
        return Broken("size of a message", SIZE_MIN[magic], size)
    if size > len(view):
        return Seen(0, size)
    found = zlib.crc32(view[CRC_FROM:size])
    if found != crc:
        return Broken("checksum of a message", f"{crc:08x}", f"{found:08x}")
    if offset < max(next_offset, 0):
        return Broken("offset of a message decreases", next_offset, offset)
    first, last = (
        (segment_base, segment_base + RELATIVE_MAX) if segment_base >= 0 else (0, LOG_OFFSET_MAX)
    )
    if not first <= offset <= min(last, LOG_OFFSET_MAX):
        return Broken(OUT_OF_RANGE, first if offset < first else last, offset)
    timestamp = _timestamp(view, magic)
    attributes &= CODEC_MASK | LOG_APPEND_TIME
    oldest = -1 if attributes & CODEC_MASK else timestamp  # inner messages may be older
    rows[0] = (
        0,
        size,
        -1,
        offset,
        timestamp,
        timestamp,
        oldest,
        -1,
        0,
        -1,
        1,
        attributes,
        -1,
        magic,
        0,
        crc,
    )
    return Seen(size, 0)


def _timestamp(view: memoryview, magic: int) -> int:
    return int.from_bytes(view[18:26], "big", signed=True) if magic == 1 else -1


# ---- read ----------------------------------------------------------------------------------------


def messages(view: memoryview, limit: int) -> tuple[list[Message], bool]:
    """The records of one whole message, and whether their timestamps are append times.

    Raises CorruptRecordError, and `compression.LimitExceeded` for more than `limit` uncompressed
    bytes.
    """
    offset, _, _, magic, attributes = HEAD.unpack_from(view)
    timestamp = _timestamp(view, magic)
    append_time = magic == 1 and bool(attributes & LOG_APPEND_TIME)
    key, value = _fields(view, magic)
    codec = attributes & CODEC_MASK
    if codec == compression.NONE:
        return [Message(offset, timestamp, key, value)], append_time
    if codec == compression.ZSTD or value is None:
        raise CorruptRecordError("an old message cannot have this codec", found=codec)
    inner = list(_inner(memoryview(_decompressed(codec, value, magic, limit)).cast("B")))
    if not inner:
        raise CorruptRecordError("a compressed message is empty")
    base = offset - inner[-1].offset if magic == 1 and offset > 0 else 0
    times = [timestamp if append_time else message.timestamp for message in inner]
    found = [
        each._replace(offset=base + each.offset, timestamp=time)
        for each, time in zip(inner, times, strict=True)
    ]
    _check_offsets([message.offset for message in found], offset)
    return found, append_time


def _check_offsets(offsets: list[int], last: int) -> None:
    """Inner offsets rise, end with the offset of the outer message, and span at most an int32."""
    if offsets[0] < 0 or offsets[-1] != last or last - offsets[0] > RELATIVE_MAX:
        raise CorruptRecordError(
            "offsets in a compressed message",
            expected=f"at most {RELATIVE_MAX} up to {last}",
            found=offsets[:3],
        )
    for before, offset in pairwise(offsets):
        if offset <= before:
            raise CorruptRecordError(
                "an offset in a compressed message decreases", expected=before + 1, found=offset
            )


def _fields(view: memoryview, magic: int) -> tuple[bytes | None, bytes | None]:
    at = 26 if magic == 1 else 18
    found: list[bytes | None] = []
    for _ in range(2):
        size = int.from_bytes(view[at : at + 4], "big", signed=True)
        at += 4
        if size < -1 or max(size, 0) > len(view) - at:
            raise CorruptRecordError(
                "a length in a message exceeds it", expected=f"at most {len(view) - at}", found=size
            )
        found.append(None if size < 0 else bytes(view[at : at + size]))
        at += max(size, 0)
    if at != len(view):
        raise CorruptRecordError("bytes after the value of a message", expected=at, found=len(view))
    return found[0], found[1]


def _inner(view: memoryview) -> Iterator[Message]:
    while len(view):
        if len(view) < HEAD.size:
            raise CorruptRecordError("a compressed message ends too early")
        offset, length, crc, magic, attributes = HEAD.unpack_from(view)
        size = length + AFTER_SIZE
        if magic not in SIZE_MIN or not SIZE_MIN[magic] <= size <= len(view):
            raise CorruptRecordError(
                "size of an inner message", expected=f"at most {len(view)}", found=size
            )
        if zlib.crc32(view[CRC_FROM:size]) != crc:
            raise CorruptRecordError("checksum of an inner message", expected=f"{crc:08x}")
        if attributes & CODEC_MASK:
            raise CorruptRecordError("a compressed message inside another one")
        yield Message(offset, _timestamp(view, magic), *_fields(view[:size], magic))
        view = view[size:]


def _decompressed(codec: int, data: bytes, magic: int, limit: int) -> Any:
    if codec == compression.LZ4 and magic == 0 and data[:4] == compression.LZ4_MAGIC:
        # The first writers hashed the magic of the frame too; the right checksum replaces that one.
        end = 6 + (8 if data[4:5] and data[4] & 0x08 else 0)
        check = xxh32(data[4:end]) >> 8 & 0xFF
        data = data[:end] + bytes([check]) + data[end + 1 :]
    return compression.expand(codec, data, limit)


def xxh32(data: bytes) -> int:
    """XXH32 with seed 0 of at most 15 bytes, such as the header of an LZ4 frame."""
    number = PRIME_5 + len(data)
    at = 0
    for at in range(4, len(data) + 1, 4):
        number = (
            _rotated(number + int.from_bytes(data[at - 4 : at], "little") * PRIME_3, 17) * PRIME_4
        )
    for byte in data[at:]:
        number = _rotated(number + byte * PRIME_5, 11) * PRIME_1
    for shift, prime in ((15, PRIME_2), (13, PRIME_3), (16, 1)):
        number &= 0xFFFFFFFF
        number = (number ^ number >> shift) * prime
    return number & 0xFFFFFFFF


def _rotated(number: int, bits: int) -> int:
    number &= 0xFFFFFFFF
    return number << bits | number >> 32 - bits


PRIME_1 = 0x9E3779B1
PRIME_2 = 0x85EBCA77
PRIME_3 = 0xC2B2AE3D
PRIME_4 = 0x27D4EB2F
PRIME_5 = 0x165667B1


# ---- as a records section ------------------------------------------------------------------------


def body(view: memoryview, rows: Batches, number: int, limit: int) -> memoryview:
    """The message as a records section of magic 2; its row is changed accordingly. Raises as
    `messages` does.
    """
    found, append_time = messages(view, limit)
    base = found[0].offset
    base_timestamp = found[0].timestamp
    row = rows[number : number + 1]
    row["magic"], row["attributes"], row["records"] = (
        2,
        LOG_APPEND_TIME if append_time else 0,
        len(found),
    )
    row["base_offset"], row["last_offset_delta"] = base, found[-1].offset - base
    row["base_timestamp"], row["max_timestamp"] = (
        base_timestamp,
        max(message.timestamp for message in found),
    )
    return memoryview(b"".join(_record(message, base, base_timestamp) for message in found))


def _record(message: Message, base: int, base_timestamp: int) -> bytes:
    fields = [b"\x00", varint(message.timestamp - base_timestamp), varint(message.offset - base)]
    for field in (message.key, message.value):
        fields += (varint(-1),) if field is None else (varint(len(field)), field)
    fields.append(varint(0))
    content = b"".join(fields)
    return varint(len(content)) + content
