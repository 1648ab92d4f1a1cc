"""Reads the batches of a `.log` file by their sizes, also those with a wrong checksum.

A batch ends the file if its size is impossible, or if the file ends inside it; the rest is reported
as invalid bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from embedlog._native import codec
from embedlog._native.lazy_numpy import np
from embedlog.format.producer_state import add_sequence
from embedlog.format.record_batch import (
    CODEC_MASK,
    CONTROL,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    batch_dtype,
)
from embedlog.storage import files
from embedlog.types import CODECS

HORIZON: Final = 0x40  # attribute: the base timestamp is the delete horizon
_HEADER = struct.Struct(">qiibIhiqqqhii")  # format.md 3.1
_CHECKED_FROM = 21  # the checksum covers the attributes and what follows
_AFTER_SIZE = 12
_SIZE_MIN = 14  # of what follows the size field, in any magic


@dataclass(frozen=True, slots=True)
class RawBatch:
    """The header of one batch, and its bytes. Of a message of an older Kafka (`magic` below 2) only
    five fields are set.
    """

    position: int
    size: int
    base_offset: int
    magic: int
    data: bytes
    leader_epoch: int = -1
    crc: int = 0
    attributes: int = 0
    last_offset_delta: int = 0
    base_timestamp: int = -1
    max_timestamp: int = -1
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    count: int = 1

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def is_valid(self) -> bool:
        """Whether the checksum is that of the bytes."""
        return self.size >= HEADER_SIZE and codec.crc32c(self.data[_CHECKED_FROM:]) == self.crc

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)

    @property
    def timestamp_type(self) -> str:
        return "LogAppendTime" if self.attributes & LOG_APPEND_TIME else "CreateTime"

    def sequence_at(self, delta: int) -> int:
        """The sequence of the record with this offset delta, -1 without one."""
        return add_sequence(self.base_sequence, delta) if self.base_sequence >= 0 else -1

    def facts(self) -> dict[str, Any]:
        """The fields with the names and in the order of kafka-dump-log."""
        horizon = "OptionalLong.empty"
        if self.attributes & HORIZON:
            horizon = f"OptionalLong[{self.base_timestamp}]"
        codec_number = self.attributes & CODEC_MASK
        return {
            "baseOffset": self.base_offset,
            "lastOffset": self.last_offset,
            "count": self.count,
            "baseSequence": self.base_sequence,
            "lastSequence": self.sequence_at(self.last_offset_delta),
            "producerId": self.producer_id,
            "producerEpoch": self.producer_epoch,
            "partitionLeaderEpoch": self.leader_epoch,
            "isTransactional": bool(self.attributes & TRANSACTIONAL),
            "isControl": self.is_control,
            "deleteHorizonMs": horizon,
            "position": self.position,
            self.timestamp_type: self.max_timestamp,
            "size": self.size,
            "magic": self.magic,
            "compresscodec": CODECS[codec_number] if codec_number < len(CODECS) else "unknown",
            "crc": self.crc,
            "isvalid": self.is_valid,
        }

    def rows(self) -> Any:
        """The batch as a batch row at position 0 of its bytes, for the decoder."""
        rows = np.zeros(1, batch_dtype())
        for name in (
            "size",
            "leader_epoch",
            "base_offset",
            "base_timestamp",
            "max_timestamp",
            "producer_id",
            "last_offset_delta",
            "base_sequence",
            "attributes",
            "producer_epoch",
            "magic",
            "crc",
        ):
            rows[name] = getattr(self, name)
        rows["min_timestamp"] = -1
        rows["records"] = self.count
        return rows


def read_batch(fd: int, path: Path, position: int, end: int) -> RawBatch | None:
    """The batch at a position of a file with `end` bytes; None if there is no whole batch."""
    head = files.pread(fd, HEADER_SIZE, position, path)
    if len(head) < _AFTER_SIZE + _SIZE_MIN:
        return None
    size = int.from_bytes(head[8:12], "big", signed=True) + _AFTER_SIZE
    magic = int.from_bytes(head[16:17], "big", signed=True)
    size_min = HEADER_SIZE if magic >= 2 else _AFTER_SIZE + _SIZE_MIN
    if size < size_min or position + size > end:
        return None
    data = files.pread(fd, size, position, path)
    if len(data) < size:
        return None  # the file was truncated meanwhile
    base = int.from_bytes(head[:8], "big", signed=True)
    if magic < 2:
        return RawBatch(position, size, base, magic, data)
    (
        _,
        _,
        epoch,
        _,
        crc,
        attributes,
        delta,
        base_ms,
        max_ms,
        producer_id,
        producer_epoch,
        sequence,
        count,
    ) = _HEADER.unpack_from(head)
    return RawBatch(
        position,
        size,
        base,
        magic,
        data,
        leader_epoch=epoch,
        crc=crc,
        attributes=attributes,
        last_offset_delta=delta,
        base_timestamp=base_ms,
        max_timestamp=max_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=sequence,
        count=count,
    )


def read_batches(
    fd: int, path: Path, start: int = 0, *, size: int | None = None
) -> Iterator[RawBatch]:
    """All whole batches from a position on. `size`: the bytes of the file."""
    position = start
    end = files.facts(fd, path).size if size is None else size
    while (batch := read_batch(fd, path, position, end)) is not None:
        yield batch
        position += batch.size
