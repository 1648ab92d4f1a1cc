"""Peers that keep one value for a number: a record is its time and its bytes, and a time is found
by halving the numbers.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterable, Iterator

from ..job import Job

NUMBER = struct.Struct(">Q")  # keys sort as numbers
TIME = struct.Struct("<q")
POLL_S = 0.0005  # a reader without a wake-up looks this often


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def stamped(values: Iterable[bytes], time_ms: int, step_ms: int) -> Iterator[bytes]:
    """Values after their times."""
    pack = TIME.pack
    for value in values:
        yield pack(time_ms) + value
        time_ms += step_ms


def first_since(time_of: Callable[[int], int], count: int, time_ms: int) -> int:
    """The first of `count` numbers whose time is not older; times never fall."""
    low = 0
    high = count
    while low < high:
        middle = (low + high) // 2
        if time_of(middle) < time_ms:
            low = middle + 1
        else:
            high = middle
    return low


def pause(job: Job) -> None:
    """The rest between two looks of a reader, unless it spins."""
    if not job.spin:
        time.sleep(POLL_S)
