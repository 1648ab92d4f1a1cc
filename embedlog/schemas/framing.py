"""Contains the frame that Confluent's serializers put before each datum: a zero, and the id of its
schema in four bytes.

- A frame of Protobuf also has the path of the message in its schema: zigzag varints, their number
  first. The path of the first message is one zero.
- Bytes without such a frame are refused, never guessed.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

HEAD = struct.Struct(">bI")  # magic, schema id
MAGIC = 0


def add_frame(schema_id: int, payload: bytes) -> bytes:
    """The datum with its frame."""
    return HEAD.pack(MAGIC, schema_id) + payload


def remove_frame(data: bytes) -> tuple[int, memoryview]:
    """The id of the schema, and the bytes after the frame. Raises ValueError."""
    if len(data) < HEAD.size or data[0] != MAGIC:
        raise ValueError(
            "not in the frame of a schema registry: the bytes begin with "
            f"{bytes(data[:5]).hex() or 'nothing'}"
        )
    return HEAD.unpack_from(data)[1], memoryview(data)[HEAD.size :]


def message_path(path: Sequence[int]) -> bytes:
    """The place of a message in its file: its number, or the numbers of the messages around it and
    its own.
    """
    if list(path) == [0]:
        return b"\0"
    return b"".join(_varint(number) for number in (len(path), *path))


def after_message_path(data: memoryview) -> tuple[list[int], memoryview]:
    """The place of the message, and the bytes after it. Raises ValueError."""
    count, at = _read_varint(data, 0)
    if count == 0:
        return [0], data[at:]
    if not 0 < count <= len(data):
        raise ValueError(f"a message path of {count} numbers")
    path = []
    for _ in range(count):
        number, at = _read_varint(data, at)
        path.append(number)
    return path, data[at:]


def _varint(number: int) -> bytes:
    # zigzag of a number that is not negative
    remaining = number << 1
    encoded = bytearray()
    while remaining > 0x7F:
        encoded.append(remaining & 0x7F | 0x80)
        remaining >>= 7
    encoded.append(remaining)
    return bytes(encoded)


def _read_varint(data: memoryview, at: int) -> tuple[int, int]:
    value = 0
    shift = 0
    while at < len(data) and shift < 35:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        shift += 7
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
    raise ValueError("a message path that does not end")
