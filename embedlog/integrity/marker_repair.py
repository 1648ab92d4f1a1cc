"""Restores a transaction marker in which one bit is wrong: without it its transaction would have
another outcome.

- A marker has 78 bytes. Its offset, length and magic are known. One wrong bit after them, or in the
  checksum, is the only one whose correction makes the checksum right.
- The corrected bytes must be a control batch with one marker. Batches with records are never
  corrected: a wrong correction has a probability of about 1 in 10 million for markers, and more for
  larger batches.
"""

from __future__ import annotations

import struct
from typing import Final

from embedlog._native import codec
from embedlog.errors import EmbedlogError
from embedlog.format import record_batch
from embedlog.format.record_batch import Chain

MARKER_BYTES: Final = 78
_CRC_AT: Final = 17
_BODY_AT: Final = 21  # the first byte that the checksum covers
_HEAD: Final = struct.Struct(">qiib")  # base offset, length, leader epoch, magic
_LENGTH: Final = MARKER_BYTES - 12


def restore(damaged: bytes, offset: int, leader_epoch: int) -> bytes | None:
    """The marker that was written at an offset, None if the bytes are no marker with one wrong
    bit.
    """
    if len(damaged) != MARKER_BYTES:
        return None
    data = bytearray(damaged)
    data[: _HEAD.size] = _HEAD.pack(offset, _LENGTH, leader_epoch, 2)
    difference = int.from_bytes(data[_CRC_AT:_BODY_AT]) ^ codec.crc32c(bytes(data[_BODY_AT:]))
    if difference and not _correct_bit(data, difference):
        return None
    if not _is_marker(bytes(data), offset):
        return None
    return bytes(data)


def _correct_bit(data: bytearray, difference: int) -> bool:
    """Correct the only bit that explains the difference of the checksums; False if no single bit
    does.
    """
    if difference.bit_count() == 1:  # a bit of the checksum itself
        data[_CRC_AT:_BODY_AT] = codec.crc32c(bytes(data[_BODY_AT:])).to_bytes(4)
        return True
    stored = int.from_bytes(data[_CRC_AT:_BODY_AT])
    for bit in range(8 * _BODY_AT, 8 * MARKER_BYTES):
        data[bit // 8] ^= 1 << bit % 8
        if codec.crc32c(bytes(data[_BODY_AT:])) == stored:
            return True
        data[bit // 8] ^= 1 << bit % 8
    return False


def _is_marker(data: bytes, offset: int) -> bool:
    scanned = record_batch.scan(memoryview(data), Chain(offset, gaps_allowed=True))
    try:
        markers = record_batch.markers(memoryview(data), scanned.batches)
    except EmbedlogError:
        return False
    if len(markers) != 1:
        return False
    marker = markers[0]
    return marker.offset == offset and marker.kind in (record_batch.ABORT, record_batch.COMMIT)
