"""Reads and checks messages of magic 0 and 1, which Kafka wrote before version 0.11 and still
serves; none is written.

- A message, compressed or not, is one row of the scan; its offset is that of its last record.
- A message is converted to a records section of magic 2, so that there is one decoder.
- The first 17 bytes have the layout of a batch: offset, size, CRC, magic.
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


class MessageExtent(NamedTuple):
    """A whole message of `consumed` bytes; or 0, if `need` bytes are required."""

    consumed: int
    need: int


class LegacyMessage(NamedTuple):
    """One record: `timestamp` is -1 if the format has none."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


# ---- scan ----------------------------------------------------------------------------------------


def scan(
    view: memoryview, next_offset: int, segment_base: int, rows: Batches
) -> MessageExtent | Broken:
    """Checks the message at the begin of `view` and describes it in rows[0]."""
    if len(view) < HEAD.size:
        return MessageExtent(0, 0)
    offset, length, crc, magic, attributes = HEAD.unpack_from(view)
    size = length + AFTER_SIZE
    if size < SIZE_MIN[magic]:
        return Broken("size of a message", SIZE_MIN[magic], size)
    if size > len(view):
        return MessageExtent(0, size)
    computed = zlib.crc32(view[CRC_FROM:size])
    if computed != crc:
        return Broken("checksum of a message", f"{crc:08x}", f"{computed:08x}")
    if offset < max(next_offset, 0):
        return Broken("offset of a message decreases", next_offset, offset)
    first_allowed = 0
    last_allowed = LOG_OFFSET_MAX
    if segment_base >= 0:
        first_allowed = segment_base
        last_allowed = segment_base + RELATIVE_MAX
    if not first_allowed <= offset <= min(last_allowed, LOG_OFFSET_MAX):
        return Broken(
            OUT_OF_RANGE, first_allowed if offset < first_allowed else last_allowed, offset
        )
    timestamp = _read_timestamp(view, magic)
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
    return MessageExtent(size, 0)


def _read_timestamp(view: memoryview, magic: int) -> int:
    return int.from_bytes(view[18:26], "big", signed=True) if magic == 1 else -1


# ---- read ----------------------------------------------------------------------------------------


def read_messages(view: memoryview, limit: int) -> tuple[list[LegacyMessage], bool]:
    """The records of one whole message, and whether their timestamps are append times.

    Raises CorruptRecordError, and `compression.LimitExceeded` for more than `limit` uncompressed
    bytes.
    """
    offset, _, _, magic, attributes = HEAD.unpack_from(view)
    timestamp = _read_timestamp(view, magic)
    append_time = magic == 1 and bool(attributes & LOG_APPEND_TIME)
    key, value = _read_key_and_value(view, magic)
    codec = attributes & CODEC_MASK
    if codec == compression.NONE:
        return [LegacyMessage(offset, timestamp, key, value)], append_time
    if codec > compression.LZ4 or value is None:  # later codecs came with batches
        raise CorruptRecordError("an old message cannot have this codec", found=codec)
    plain = memoryview(_decompress(codec, value, magic, limit)).cast("B")
    inner_messages = list(_read_inner_messages(plain))
    if not inner_messages:
        raise CorruptRecordError("a compressed message is empty")
    base = 0
    if magic == 1 and offset > 0:
        base = offset - inner_messages[-1].offset
    absolute_messages = []
    for message in inner_messages:
        message_time = timestamp if append_time else message.timestamp
        absolute_messages.append(
            message._replace(offset=base + message.offset, timestamp=message_time)
        )
    _check_offsets([message.offset for message in absolute_messages], offset)
    return absolute_messages, append_time


def _check_offsets(offsets: list[int], last: int) -> None:
    """Inner offsets rise, end with the offset of the outer message, and span at most an int32."""
    if offsets[0] < 0 or offsets[-1] != last or last - offsets[0] > RELATIVE_MAX:
        raise CorruptRecordError(
            "offsets in a compressed message",
            expected=f"at most {RELATIVE_MAX} up to {last}",
            found=offsets[:3],
        )
    for previous, offset in pairwise(offsets):
        if offset <= previous:
            raise CorruptRecordError(
                "an offset in a compressed message decreases", expected=previous + 1, found=offset
            )


def _read_key_and_value(view: memoryview, magic: int) -> tuple[bytes | None, bytes | None]:
    at = 26 if magic == 1 else 18
    key_and_value: list[bytes | None] = []
    for _ in range(2):
        size = int.from_bytes(view[at : at + 4], "big", signed=True)
        at += 4
        if size < -1 or max(size, 0) > len(view) - at:
            raise CorruptRecordError(
                "a length in a message exceeds it", expected=f"at most {len(view) - at}", found=size
            )
        key_and_value.append(None if size < 0 else bytes(view[at : at + size]))
        at += max(size, 0)
    if at != len(view):
        raise CorruptRecordError("bytes after the value of a message", expected=at, found=len(view))
    key, value = key_and_value
    return key, value


def _read_inner_messages(view: memoryview) -> Iterator[LegacyMessage]:
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
        yield LegacyMessage(
            offset, _read_timestamp(view, magic), *_read_key_and_value(view[:size], magic)
        )
        view = view[size:]


def _decompress(codec: int, data: bytes, magic: int, limit: int) -> Any:
    if codec == compression.LZ4 and magic == 0 and data[:4] == compression.LZ4_MAGIC:
        # The first writers hashed the magic of the frame too; the right checksum replaces that one.
        end = 6 + (8 if data[4:5] and data[4] & 0x08 else 0)
        check = xxh32(data[4:end]) >> 8 & 0xFF
        data = data[:end] + bytes([check]) + data[end + 1 :]
    return compression.expand(codec, data, limit)


def xxh32(data: bytes) -> int:
    """XXH32 with seed 0 of at most 15 bytes, such as the header of an LZ4 frame."""
    number = PRIME_5 + len(data)
    whole_bytes = len(data) - len(data) % 4
    for start in range(0, whole_bytes, 4):
        word = int.from_bytes(data[start : start + 4], "little")
        number = _rotate(number + word * PRIME_3, 17) * PRIME_4
    for byte in data[whole_bytes:]:
        number = _rotate(number + byte * PRIME_5, 11) * PRIME_1
    for shift, prime in ((15, PRIME_2), (13, PRIME_3), (16, 1)):
        number &= 0xFFFFFFFF
        number = (number ^ number >> shift) * prime
    return number & 0xFFFFFFFF


def _rotate(number: int, bits: int) -> int:
    number &= 0xFFFFFFFF
    return number << bits | number >> 32 - bits


PRIME_1 = 0x9E3779B1
PRIME_2 = 0x85EBCA77
PRIME_3 = 0xC2B2AE3D
PRIME_4 = 0x27D4EB2F
PRIME_5 = 0x165667B1


# ---- as a records section ------------------------------------------------------------------------


def convert_message(view: memoryview, rows: Batches, number: int, limit: int) -> memoryview:
    """The message as a records section of magic 2; its row is changed accordingly. Raises as
    `messages` does.
    """
    records, append_time = read_messages(view, limit)
    base = records[0].offset
    base_timestamp = records[0].timestamp
    row = rows[number : number + 1]
    row["magic"] = 2
    row["attributes"] = LOG_APPEND_TIME if append_time else 0
    row["records"] = len(records)
    row["base_offset"] = base
    row["last_offset_delta"] = records[-1].offset - base
    row["base_timestamp"] = base_timestamp
    row["max_timestamp"] = max(record.timestamp for record in records)
    return memoryview(b"".join(_encode_record(record, base, base_timestamp) for record in records))


def _encode_record(message: LegacyMessage, base: int, base_timestamp: int) -> bytes:
    fields = [b"\x00", varint(message.timestamp - base_timestamp), varint(message.offset - base)]
    for field in (message.key, message.value):
        if field is None:
            fields.append(varint(-1))
        else:
            fields += (varint(len(field)), field)
    fields.append(varint(0))
    content = b"".join(fields)
    return varint(len(content)) + content
