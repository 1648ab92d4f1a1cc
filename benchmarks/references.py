"""References of absolute figures: bare loops that do the least that the subject must do, in the
same run.
"""

from __future__ import annotations

import bisect
import os
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from embedlog import Producer

HEAD_BYTES = 4096
TURNS = 200


def median_us(call: Callable[[], object], turns: int = TURNS) -> float:
    """Median microseconds of a call."""
    times = []
    for _ in range(turns):
        began = time.perf_counter_ns()
        call()
        times.append((time.perf_counter_ns() - began) / 1e3)
    return statistics.median(times)


def send_us(producer: Producer, topic: str) -> float:
    """A record of 100 bytes, sent and acknowledged: one append under the lock, as a commit."""
    return median_us(lambda: producer.send(topic, bytes(100)).result())


def pwrite_us(directory: Path, size: int) -> float:
    """Append so many bytes to a file, without anything else."""
    fd = os.open(directory / "bare-pwrite", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        return median_us(lambda: os.write(fd, bytes(size)))
    finally:
        os.close(fd)
        (directory / "bare-pwrite").unlink()


def heads(paths: Iterable[Path]) -> int:
    """Open, read and close each file: what a reader of all of them cannot avoid."""
    size = 0
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        try:
            size += len(os.pread(fd, HEAD_BYTES, 0))
        finally:
            os.close(fd)
    return size


def heads_s(paths: list[Path]) -> float:
    began = time.perf_counter()
    heads(paths)
    return time.perf_counter() - began


def sizes_s(directory: Path) -> float:
    """List a directory and ask for the size of each file."""
    began = time.perf_counter()
    with os.scandir(directory) as entries:
        assert sum(entry.stat().st_size for entry in entries) >= 0
    return time.perf_counter() - began


def whole_s(paths: Iterable[Path]) -> float:
    """Read files completely."""
    began = time.perf_counter()
    for path in paths:
        path.read_bytes()
    return time.perf_counter() - began


def bisect_us(numbers: list[int]) -> float:
    """Find a number in a sorted list."""
    middle = numbers[len(numbers) // 2]
    return median_us(lambda: bisect.bisect(numbers, middle))


def files_ms(directory: Path, count: int) -> float:
    """Create so many empty files, and remove them."""
    began = time.perf_counter()
    paths = [directory / f"bare-{number}" for number in range(count)]
    for path in paths:
        path.touch()
    for path in paths:
        path.unlink()
    return (time.perf_counter() - began) * 1e3


def sleeping_percent(wakes_per_second: float, seconds: float = 2.0) -> float:
    """The processor time of a bare loop that sleeps and wakes so often."""
    wakes_per_second = max(1.0, wakes_per_second)
    began = time.process_time()
    for _ in range(int(seconds * wakes_per_second)):
        time.sleep(1 / wakes_per_second)
    return 100 * (time.process_time() - began) / seconds
