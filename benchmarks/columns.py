"""Columns: append from Arrow, scan to Arrow, compression, and the influence of the log's size."""

from __future__ import annotations

import mmap
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

import embedlog

from .context import (
    QUIET,
    Context,
    bytes_in,
    child,
    filled,
    keys_of,
    log_files,
    pieces,
    remove,
    text_values,
    values_of,
)
from .measure import Outcome, against


def append_rate(
    context: Context,
    values: pa.Array,
    total_bytes: int,
    *,
    keys: pa.Array | None = None,
    partitions: int = 1,
    codec: str = "none",
) -> tuple[float, int, float]:
    """Append to a fresh topic; log bytes per second, log bytes, seconds."""
    directory = context.fresh("append")
    try:
        with embedlog.open(directory) as log, log.producer(compression_type=codec) as producer:
            log.create_topic("warm", 1, config=QUIET)
            log.create_topic("bench", partitions, config=QUIET)
            warm = values.slice(0, max(1, len(values) // 16))
            producer.send_batch(
                "warm", warm, keys.slice(0, len(warm)) if keys is not None else None
            ).result()
            began = time.perf_counter()
            futures = [
                producer.send_batch(
                    "bench", part, keys.slice(0, len(part)) if keys is not None else None
                )
                for part in pieces(values, total_bytes)
            ]
            for future in futures:
                future.result()
            spent = time.perf_counter() - began
            written = sum(bytes_in(path) for path in directory.glob("bench-*"))
        return written / spent, written, spent
    finally:
        remove(directory)


def appended(
    context: Context,
    name: str,
    record_bytes: int,
    target: float,
    *,
    total_bytes: int = 0,
    keyed: bool = False,
    partitions: int = 1,
    rounds: int = 0,
) -> Outcome:
    total = total_bytes or context.size_bytes
    values = values_of(record_bytes, total)
    keys = keys_of(len(values)) if keyed else None
    size = append_rate(context, values, total, keys=keys, partitions=partitions)[1]  # also warms up
    return against(
        name,
        lambda: context.bare.write(context.fresh("bare"), size),
        lambda: append_rate(context, values, total, keys=keys, partitions=partitions)[0],
        target=target,
        rounds=rounds or context.rounds,
        unit="bytes/s",
        bound=True,
    )


def append(context: Context) -> Iterator[Outcome]:
    yield appended(context, "append/arrow/record=1kB", 1000, 0.55)
    yield appended(context, "append/arrow/record=100B", 100, 0.45)
    yield appended(
        context, "append/arrow/record=100B/keyed/partitions=4", 100, 0.25, keyed=True, partitions=4
    )


def scan_rate(directory: Path, columns: list[str] | None = None) -> float:
    """Log bytes per second of a scan to Arrow that touches every batch and keeps none."""
    with embedlog.open(directory, read_only=True) as log:
        rows = 0
        began = time.perf_counter()
        for batch in log.scan("bench", columns=columns):
            rows += batch.num_rows
        spent = time.perf_counter() - began
        assert rows > 0
    return bytes_in(directory) / spent


def scanned(
    context: Context,
    name: str,
    directory: Path,
    target: float,
    *,
    columns: list[str] | None = None,
    rounds: int = 0,
) -> Outcome:
    files = log_files(directory)
    scan_rate(directory, columns)
    return against(
        name,
        lambda: context.bare.read(files),
        lambda: scan_rate(directory, columns),
        target=target,
        rounds=rounds or context.rounds,
        unit="bytes/s",
        bound=True,
    )


def scan(context: Context) -> Iterator[Outcome]:
    for label, record_bytes, target in (("1kB", 1000, 0.50), ("100B", 100, 0.45)):
        with filled(context, record_bytes, context.size_bytes) as directory:
            yield scanned(context, f"scan/arrow/record={label}", directory, target)
            yield scanned(
                context,
                f"scan/arrow/record={label}/columns=value",
                directory,
                target,
                columns=["value"],
            )


def find_rate(files: list[Path], text: bytes) -> float:
    """Bytes per second of `bytes.find` over mapped files."""
    began = time.perf_counter()
    for path in files:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
            assert mapped.find(text) < 0
    return sum(path.stat().st_size for path in files) / (time.perf_counter() - began)


def search_rate(directory: Path, files: list[Path], pattern: bytes | re.Pattern[bytes]) -> float:
    """Log bytes per second of a search on one core that finds nothing."""
    with embedlog.open(directory, read_only=True) as log:
        began = time.perf_counter()
        assert log.scan("bench").search(pattern).count() == 0
        spent = time.perf_counter() - began
    return sum(path.stat().st_size for path in files) / spent


def search(context: Context) -> Iterator[Outcome]:
    """Literal text, and an expression with such text, against `bytes.find` over the same files,
    which are mapped.
    """
    text = b"connection refused"
    patterns = {
        "literal": text,
        "any-case": re.compile(text, re.IGNORECASE),
        "regex": re.compile(b"connection +refused.*[0-9]$"),
    }
    for label, record_bytes in (("1kB", 1000), ("100B", 100)):
        with filled(context, record_bytes, context.size_bytes) as directory:
            files = log_files(directory)
            for name, pattern in patterns.items():
                yield against(
                    f"search/{name}/record={label}",
                    lambda: find_rate(files, text),  # noqa: B023  (called before the next turn)
                    lambda: search_rate(directory, files, pattern),  # noqa: B023
                    target=0.5,
                    rounds=context.rounds,
                    unit="bytes/s",
                    cpu=time.process_time,
                )


def codecs(context: Context) -> Iterator[Outcome]:
    """Compression on all cores against one core; each measured in its own process."""
    cores = sorted(os.sched_getaffinity(0))
    total = min(context.size_bytes, 128 << 20)
    for codec in ("zstd", "lz4"):
        one = []
        every = []
        for _ in range(max(3, context.rounds // 2)):
            one.append(
                child(
                    "codec",
                    context.fresh(codec),
                    codec,
                    total,
                    prefix=("taskset", "-c", str(cores[0])),
                )["seconds"]
            )
            every.append(child("codec", context.fresh(codec), codec, total)["seconds"])
        speedup = sorted(one)[len(one) // 2] / sorted(every)[len(every) // 2]
        target = 1.0 + 0.5 * (len(cores) - 1) if len(cores) > 1 else 0.9
        detail = {
            "cores": len(cores),
            "one core s": min(one),
            "all cores s": min(every),
            "text MB/s": total / 1e6 / min(every),
        }
        yield Outcome(f"append/text/codec={codec}/speedup", speedup, "x", target, True, detail)


def codec_seconds(context: Context, codec: str, total_bytes: int) -> float:
    values = text_values(min(total_bytes, 32 << 20))
    return append_rate(context, values, total_bytes, codec=codec)[2]


def sizes(context: Context) -> Iterator[Outcome]:
    """The fraction of the upper bound for a large log, relative to a small one."""
    small = context.small_bytes
    large = context.large_bytes
    label = f"{large / (1 << 30):g}GB-vs-{small >> 20}MB"
    many = context.rounds * 4 + 1
    few = max(3, context.rounds // 2)
    a = appended(context, "small", 1000, 0, total_bytes=small, rounds=many)
    b = appended(context, "large", 1000, 0, total_bytes=large, rounds=few)
    yield Outcome(
        f"append/arrow/{label}",
        b.value / a.value,
        "of small's share",
        0.9,
        True,
        {"small": a.value, "large": b.value},
    )
    with filled(context, 1000, small) as directory:
        a = scanned(context, "small", directory, 0, rounds=many)
    with filled(context, 1000, large) as directory:
        b = scanned(context, "large", directory, 0, rounds=few)
        shares = {"small": a.value, "large": b.value}
        yield Outcome(
            f"scan/arrow/{label}", b.value / a.value, "of small's share", 0.9, True, shares
        )
        yield from memory(directory, large)


def memory(directory: Path, size_bytes: int) -> Iterator[Outcome]:
    """Growth of the maximum resident size in the second half of a scan."""
    seen = child("memory", directory)
    in_mib = {"first half MiB": seen["early"] / (1 << 20), "peak MiB": seen["peak"] / (1 << 20)}
    detail = {**in_mib, "log GiB": size_bytes / (1 << 30)}
    yield Outcome(
        "scan/arrow/memory-growth",
        (seen["peak"] - seen["early"]) / (1 << 20),
        "MiB",
        16.0,
        False,
        detail,
    )
