"""The context of every figure and the shared inputs: Arrow columns, filled topics, child
processes.
"""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import embedlog

from .measure import Bare

# one send_batch: large enough to hide the call's cost, small enough for the cache
CHUNK_BYTES = 64 << 20
# No sync while the clock runs: the bare loop does not sync either. Retention and roll by time are
# off.
QUIET = {"flush.ms": 9_223_372_036_854_775_807, "segment.bytes": 1 << 30}


@dataclass
class Context:
    directory: Path
    bare: Bare
    rounds: int = 7
    size_bytes: int = 256 << 20
    large_bytes: int = 1 << 30
    small_bytes: int = 10 << 20
    segments: int = 10_000
    partitions: int = 1_000
    samples: int = 2_000
    _names: Iterator[int] = field(default_factory=itertools.count)

    def fresh(self, word: str) -> Path:
        return self.directory / f"{word}-{next(self._names)}"


def values_of(record_bytes: int, total_bytes: int) -> pa.Array:
    """Random values of one size, as one Arrow array; at most a chunk."""
    count = max(1, min(total_bytes, CHUNK_BYTES) // record_bytes)
    rng = np.random.default_rng(20261121)
    data = rng.integers(0, 256, count * record_bytes, dtype=np.uint8)
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(record_bytes)
    return pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )


def keys_of(count: int) -> pa.Array:
    """Ten thousand different keys of 8 bytes, in random order."""
    numbers = np.random.default_rng(7).integers(0, 10_000, count)
    data = np.frombuffer(b"".join(b"%08d" % number for number in numbers.tolist()), dtype=np.uint8)
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(8)
    return pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )


def text_values(total_bytes: int) -> pa.Array:
    """Lines of this Python's standard library: realistic input for compression."""
    lines: list[bytes] = []
    size = 0
    sources = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    while size < total_bytes:
        for source in sources:
            found = source.read_bytes().splitlines()
            lines.extend(found)
            size += sum(map(len, found))
            if size >= total_bytes:
                break
    return pa.array(lines, type=pa.binary())


def pieces(array: pa.Array, total_bytes: int) -> Iterator[pa.Array]:
    """The array repeatedly, the last time cut, up to `total_bytes` of values."""
    per_row = array.nbytes / len(array)
    rows = max(1, int(total_bytes / per_row))
    while rows > 0:
        part = array if rows >= len(array) else array.slice(0, rows)
        yield part
        rows -= len(part)


def log_files(directory: Path) -> list[Path]:
    return sorted(directory.rglob("*.log"))


def bytes_in(directory: Path) -> int:
    return sum(path.stat().st_size for path in log_files(directory))


@contextmanager
def filled(
    context: Context, record_bytes: int, total_bytes: int, *, keyed: bool = False, **config: Any
) -> Iterator[Path]:
    """A closed log directory whose topic `bench` holds `total_bytes` of values."""
    directory = context.fresh("filled")
    values = values_of(record_bytes, total_bytes)
    with embedlog.open(directory) as log, log.producer() as producer:
        log.create_topic("bench", 1, config=QUIET | config)
        for part in pieces(values, total_bytes):
            producer.send_batch("bench", part, keys_of(len(part)) if keyed else None).result()
    try:
        yield directory
    finally:
        remove(directory)


def remove(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)


def child(task: str, *arguments: object, prefix: tuple[str, ...] = ()) -> dict[str, Any]:
    """Run a task of `benchmarks.child` in a process of its own; it answers with one line of
    JSON.
    """
    command = [*prefix, sys.executable, "-m", "benchmarks.child", task, *map(str, arguments)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).resolve().parent.parent,
    )
    if done.returncode:
        raise RuntimeError(
            f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-2000:]}"
        )
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer
