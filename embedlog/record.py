"""Kafka's record batches: bytes to columns and back.

R1  one BATCH row describes one batch header; the C core fills and reads the same 72 bytes
R2  `scan` believes nothing: what it returns passed its CRC and follows the chain
R3  a batch is encoded and checksummed once; offsets and epoch are stamped in later, outside the CRC
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedlog.columns import BytesColumn, Columns, Decoded, Headers, Window

__all__ = [
    "BATCH",
    "HEADER_SIZE",
    "BytesColumn",
    "Chain",
    "Columns",
    "Decoded",
    "EncodedRun",
    "Headers",
    "Problem",
    "Scanned",
    "Window",
]

HEADER_SIZE = 61

BATCH = np.dtype(
    {
        "names": [
            "position", "size", "leader_epoch", "base_offset", "base_timestamp", "max_timestamp", "producer_id", "last_offset_delta",
            "base_sequence", "records", "attributes", "producer_epoch", "magic", "crc",
        ],
        "formats": ["<i8", "<i4", "<i4", "<i8", "<i8", "<i8", "<i8", "<i4", "<i4", "<i4", "<i2", "<i2", "i1", "<u4"],
        "offsets": [0, 8, 12, 16, 24, 32, 40, 48, 52, 56, 60, 62, 64, 68],
        "itemsize": 72,
    }
)  # fmt: skip

CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20

Batches = NDArray[Any]  # of BATCH: numpy has no static type for structured rows


@dataclass(slots=True)
class Chain:
    """What must follow. `scan` moves it on over every good batch."""

    next_offset: int = -1
    epoch: int = -1
    digest: int = 0
    gaps_allowed: bool = False


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a scan stopped: the first byte of the bad batch (plus the base position given), in words, and the facts."""

    position: int
    message: str
    expected: int | str | None = None
    found: int | str | None = None


@dataclass(frozen=True, slots=True)
class Scanned:
    """Good batches, their total size, and why there are no more.

    `problem` None: the rest is empty or the beginning of a batch, whose whole size is `need` (0 if that cannot be told yet).
    """

    batches: Batches
    consumed: int
    problem: Problem | None
    need: int = 0


@dataclass(frozen=True, slots=True)
class EncodedRun:
    """Consecutive sealed batches, ready to be stamped: base offsets count from 0, epoch 0.

    `batches` has a BATCH row for each, positions within `buffer`. The buffer is the run's own and may be stamped in place.
    """

    buffer: memoryview
    batch_count: int
    record_count: int
    size: int
    batches: Batches
