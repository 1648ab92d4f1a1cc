"""Reads and writes the fields of Kafka's internal records, in the plain and the flexible encoding
(format.md 9).

- Plain: lengths of two or four bytes, -1 for none; flexible: lengths plus one as varints, 0 for
  none, and tagged fields.
- A reader compares each length with the remaining bytes; missing bytes raise IndexError,
  struct.error or ValueError.
"""

from __future__ import annotations

import struct
from typing import Final

from embedlog.types import TopicPartition

SHORT: Final = struct.Struct(">h")
NUMBER: Final = struct.Struct(">i")
LONG: Final = struct.Struct(">q")

Fields = list[tuple[int, bytes]]


class _FieldReader:
    """Reads numbers of a fixed size in order."""

    __slots__ = ("_data", "at")

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self.at = at

    def take(self, shape: struct.Struct) -> tuple[int, ...]:
        numbers = shape.unpack_from(self._data, self.at)
        self.at += shape.size
        return numbers


class Plain(_FieldReader):
    """Reads plain fields in order."""

    __slots__ = ()

    def number(self) -> int:
        return self.take(NUMBER)[0]

    def count(self) -> int:
        count = self.number()
        if count > len(self._data):  # each item has at least one byte
            raise ValueError(f"{count} items do not fit into {len(self._data)} bytes")
        return max(count, 0)

    def _bytes(self, size: int) -> bytes:
        data = self._data[self.at : self.at + size]
        if size < 0 or len(data) != size:
            raise ValueError(f"{size} bytes are required, but {len(data)} remain")
        self.at += size
        return data

    def fixed(self, size: int) -> bytes:
        """A number of bytes without a length."""
        return self._bytes(size)

    def string(self) -> str:
        return self._bytes(self.take(SHORT)[0]).decode()

    def nullable(self) -> str | None:
        size = self.take(SHORT)[0]
        return None if size == -1 else self._bytes(size).decode()

    def data(self) -> bytes | None:
        size = self.number()
        return None if size == -1 else self._bytes(size)

    def partitions(self) -> tuple[TopicPartition, ...]:
        partitions = []
        for _ in range(self.count()):
            topic = self.string()
            count = self.count()
            numbers = struct.unpack_from(f">{count}i", self._data, self.at)
            self.at += 4 * count
            partitions += [TopicPartition(topic, number) for number in numbers]
        return tuple(partitions)


class Flexible(_FieldReader):
    """Reads flexible fields in order."""

    __slots__ = ()

    def uvarint(self) -> int:
        number = self._data[self.at]
        self.at += 1
        if number < 0x80:
            return number
        number &= 0x7F
        for shift in range(7, 35, 7):
            byte = self._data[self.at]
            self.at += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
        raise ValueError("a varint of more than five bytes")

    def _bytes(self, size: int) -> bytes:
        start = self.at
        end = start + size
        self.at = end
        if size < 0 or end > len(self._data):
            raise ValueError(f"{size} bytes are required, but {len(self._data) - start} remain")
        return self._data[start:end]

    def fixed(self, size: int) -> bytes:
        """A number of bytes without a length."""
        return self._bytes(size)

    def maybe(self) -> bytes | None:
        size = self.uvarint()
        return self._bytes(size - 1) if size else None

    def data(self) -> bytes:
        start = self.at
        size = self._data[start]
        if not 0 < size < 0x80:
            return self._bytes(self.uvarint() - 1)
        end = start + size  # fast path: a length of one byte
        self.at = end
        if end > len(self._data):
            raise ValueError(
                f"{size - 1} bytes are required, but {len(self._data) - start - 1} remain"
            )
        return self._data[start + 1 : end]

    def string(self) -> str:
        return self.data().decode()

    def nullable(self) -> str | None:
        if self._data[self.at]:
            return self.data().decode()
        self.at += 1
        return None

    def tagged(self) -> Fields:
        fields = []
        for _ in range(self.uvarint()):
            tag = self.uvarint()
            fields.append((tag, self._bytes(self.uvarint())))
        return fields

    def numbers(self) -> tuple[int, ...]:
        """An array of int32."""
        count = self.uvarint() - 1
        numbers = struct.unpack_from(f">{max(count, 0)}i", self._data, self.at)
        self.at += 4 * len(numbers)
        return numbers

    def texts(self) -> tuple[str, ...]:
        return tuple(self.string() for _ in range(self.uvarint() - 1))


def uvarint(number: int) -> bytes:
    """An unsigned varint: a length or a tag."""
    if number < 0x80:
        return _BYTES[number]
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def varint(number: int) -> bytes:
    """A signed varint or varlong, zigzag as in the records of a batch."""
    return uvarint(number * 2 if number >= 0 else -number * 2 - 1)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """A signed varint or varlong at `at`, and the position after it. Raises IndexError and
    ValueError.
    """
    number = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at
    raise ValueError("a varint of more than ten bytes")


_BYTES: Final = [bytes((number,)) for number in range(0x80)]
