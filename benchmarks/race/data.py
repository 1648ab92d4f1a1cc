"""The values that all peers append: random bytes and JSON-like text, kept in one file that every
language can read.

The file is a sequence of values, each after its size as a little-endian number of 4 bytes. A peer
that needs more records than it has begins again with the first.
"""

from __future__ import annotations

import json
import random
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SIZE = struct.Struct("<I")
DISTINCT_BYTES = 16 << 20  # of one file, at most
WORDS = (
    "cart",
    "checkout",
    "login",
    "logout",
    "search",
    "payment",
    "refund",
    "view",
    "click",
    "scroll",
    "error",
    "retry",
    "item",
    "order",
    "user",
    "session",
    "page",
)


def json_value(rng: random.Random, number: int, record_bytes: int) -> bytes:
    """An event of about so many bytes."""
    event: dict[str, Any] = {
        "id": number,
        "user": f"user-{rng.randrange(10_000)}",
        "type": rng.choice(WORDS),
    }
    left = record_bytes - len(json.dumps(event))
    if left > 20:
        words: list[str] = []
        while left > 0:
            words.append(rng.choice(WORDS) if rng.random() < 0.8 else f"{rng.randrange(100_000)}")
            left -= len(words[-1]) + 1
        event["text"] = " ".join(words)
    return json.dumps(event).encode()


def make(path: Path, kind: str, record_bytes: int, total_bytes: int) -> int:
    """Write the values of `total_bytes`, at most DISTINCT_BYTES; return their number."""
    rng = random.Random(f"{kind}-{record_bytes}")
    count = max(1, min(total_bytes, DISTINCT_BYTES) // record_bytes)
    with path.open("wb") as file:
        for number in range(count):
            value = (
                rng.randbytes(record_bytes)
                if kind == "random"
                else json_value(rng, number, record_bytes)
            )
            file.write(SIZE.pack(len(value)) + value)
    return count


def load(path: str) -> list[bytes]:
    """All values of a file."""
    text = Path(path).read_bytes()
    at = 0
    found = []
    while at < len(text):
        (size,) = SIZE.unpack_from(text, at)
        found.append(text[at + 4 : at + 4 + size])
        at += 4 + size
    return found


def pieces(values: list[bytes], count: int, batch: int) -> Iterator[list[bytes]]:
    """Lists of `batch` values, `count` values in all, from the beginning again after the last."""
    at = 0
    while count > 0:
        piece = values[at : at + min(batch, count)]
        yield piece
        count -= len(piece)
        at = (at + len(piece)) % len(values)


def checksum(values: list[bytes], count: int) -> int:
    """CRC-32 over the first `count` values in their order."""
    found = 0
    for piece in pieces(values, count, 1 << 20):
        found = zlib.crc32(b"".join(piece), found)
    return found
