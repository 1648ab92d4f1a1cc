"""Compaction: bytes of sealed log that the cleaner processes per second on one core, and its
memory.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

import embedlog
from embedlog._native import system

from .child import resident_bytes
from .context import Context, child, remove
from .measure import Outcome

SEGMENT_BYTES = 64 << 20
TARGET_MB_S = 150.0
# a hundred with the record's own bytes
KEY_BYTES = 16
VALUE_BYTES = 76
MAP_BYTES = 128 << 20  # the default of log.cleaner.dedupe.buffer.size
SETTINGS = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": 0.01,
    "segment.bytes": SEGMENT_BYTES,
    "flush.ms": 9_223_372_036_854_775_807,
    "file.delete.delay.ms": 0,
}
PIECE_BYTES = 1 << 20


def fill(directory: Path, total_bytes: int, keys: int) -> None:
    """Records of about a hundred bytes with random keys."""
    rng = np.random.default_rng(11)
    rows = 200_000
    with (
        embedlog.open(directory, config={"housekeeping": False}) as log,
        log.producer() as producer,
    ):
        log.create_topic("bench", 1, config=SETTINGS)
        written = 0
        while written < total_bytes + SEGMENT_BYTES // 4:  # the active segment is not compacted
            names = rng.integers(0, keys, rows)
            digits = np.char.zfill(names.astype(f"U{KEY_BYTES}"), KEY_BYTES).astype(f"S{KEY_BYTES}")
            key = column(np.frombuffer(digits.tobytes(), np.uint8), KEY_BYTES)
            value = column(rng.integers(0, 256, rows * VALUE_BYTES, dtype=np.uint8), VALUE_BYTES)
            producer.send_batch("bench", value, key).result()
            written += rows * (KEY_BYTES + VALUE_BYTES + 8)
        log.flush("bench")


def column(data: np.ndarray, width: int) -> pa.Array:
    count = len(data) // width
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(width)
    return pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )


def clean_once(directory: str) -> dict[str, float]:
    """Clean everything, in a process of its own on one core; return seconds and memory."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with embedlog.open(directory, config={"housekeeping": False}) as log:
        partition = log._engine.partition("bench", 0)
        now = partition.published()
        before = sum(info.size for info in partition._segments.all(now)[:-1])
        resident = resident_bytes()
        peak = [0]
        stop = threading.Event()
        watcher = threading.Thread(target=watch, args=(peak, stop))
        watcher.start()
        began = time.perf_counter()
        spent_cpu = time.process_time()
        known = -1
        passes = 0
        while (end := partition.compact(known, MAP_BYTES, system.wall_ms())) >= 0:
            known = end
            passes = passes + 1
        seconds = time.perf_counter() - began
        cpu = time.process_time() - spent_cpu
        stop.set()
        watcher.join()
        after = sum(info.size for info in partition._segments.all(partition.published())[:-1])
    return {
        "seconds": seconds,
        "cpu": cpu,
        "before": before,
        "after": after,
        "passes": passes,
        "grown": peak[0] - resident,
    }


def watch(peak: list[int], stop: threading.Event) -> None:
    while not stop.wait(0.02):
        peak[0] = max(peak[0], resident_bytes())


def copy_once(directory: str, after: str) -> dict[str, float]:
    """The lower bound: read the sealed segments twice, in pieces, write the bytes that a compaction
    leaves, and sync.
    """
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    paths = sorted(Path(directory, "bench-0").glob("*.log"))[:-1]
    # A mapping begins at a page: see `page_aligned` in bare.c
    piece = mmap.mmap(-1, PIECE_BYTES)
    left = int(after)
    target = Path(directory, "copy")
    began = time.perf_counter()
    read = 0
    with target.open("wb", buffering=0) as out:
        for turn in range(2):
            for path in paths:
                with path.open("rb", buffering=0) as file:
                    while size := file.readinto(piece):
                        read += size
                        if turn and left > 0:
                            left -= out.write(memoryview(piece)[: min(size, left)])
        os.fsync(out.fileno())
    seconds = time.perf_counter() - began
    target.unlink()
    return {"seconds": seconds, "read": read / 2}


def compaction(context: Context) -> Iterator[Outcome]:
    """Keyed records of a hundred bytes: few keys, which leaves little, and many keys, which leaves
    about half.
    """
    records = context.large_bytes // 100
    for label, keys in (("few keys", 10_000), ("many keys", records // 2)):
        directory = context.fresh("compaction")
        try:
            fill(directory, context.large_bytes, keys)
            sample = child(
                "compact_copy",
                directory,
                int(context.large_bytes * (0.01 if label == "few keys" else 0.43)),
            )
            found = child("compact", directory)
        finally:
            remove(directory)
        rate = found["before"] / found["seconds"] / 1e6
        bare = sample["read"] / sample["seconds"] / 1e6
        detail = {
            "bytes": f"{found['before']:,}",
            "left": f"{found['after']:,}",
            "passes": found["passes"],
            "seconds": found["seconds"],
            "MB per s of CPU": found["before"] / found["cpu"] / 1e6,
            "bare read+write MB/s": bare,
            "of bare": rate / bare,
        }
        yield Outcome(f"compaction/record=100B/{label}", rate, "MB/s", TARGET_MB_S, True, detail)
        took = {"grown MB": found["grown"] / 1e6, "map MB": MAP_BYTES / 1e6}
        yield Outcome(
            f"compaction/memory/{label}", found["grown"] / MAP_BYTES, "of its map", 1.5, False, took
        )
