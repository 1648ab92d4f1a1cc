"""Latencies: waking a reader in another process, opening many partitions and segments, finding an
offset.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

import embedlog
from embedlog.format import record_batch

from .context import QUIET, Context, child, log_files, remove
from .measure import Outcome, percentile
from .references import heads_s, sizes_s

DESCRIPTORS = 512
PAUSE_S = 0.0005  # long enough that the reader sleeps again
SHARES = {"p50": 0.50, "p99": 0.99}
WAKE_FACTOR = 1.3  # of a bare futex
SPIN_US = 1_000_000
SPIN_TARGETS_US = {"p50": 10.0, "p99": 50.0}
Appending = Callable[[embedlog.Log], Callable[[], object]]


def work_on() -> None:
    """A busy pause of this process, in which the reader begins to sleep."""
    end = time.monotonic_ns() + int(PAUSE_S * 1e9)
    while time.monotonic_ns() < end:
        continue


class Wakeup(NamedTuple):
    """Microseconds since just before an append in this process."""

    done: float  # `poll` has returned in another process
    awake: float  # it was woken there: publication and kernel time


def wakeups_of(
    directory: Path, samples: int, appending: Appending, spin_us: int
) -> tuple[list[Wakeup], float]:
    """The latencies, and the median of the append alone, with the same pauses and without a waiting
    reader.
    """
    with embedlog.open(directory) as log:
        log.create_topic("wake", 1, config=QUIET)
        append = appending(log)
        alone = percentile([once(append) for _ in range(samples)], 0.50)
        command = [
            sys.executable,
            "-m",
            "benchmarks.child",
            "poll",
            str(directory),
            str(samples),
            str(spin_us),
        ]
        root = Path(__file__).resolve().parent.parent
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as reader:
            assert reader.stdout is not None
            ready = reader.stdout.readline()
            assert ready == "ready\n", ready
            found = []
            for _ in range(samples):
                work_on()
                began = time.monotonic_ns()
                append()
                done, awake = map(int, reader.stdout.readline().split())
                found.append(Wakeup((done - began) / 1e3, (awake - began) / 1e3))
            reader.stdout.read()  # its last line
    return found[samples // 10 :], alone


def once(append: Callable[[], object]) -> float:
    """Microseconds of one call after a pause."""
    work_on()
    began = time.monotonic_ns()
    append()
    return (time.monotonic_ns() - began) / 1e3


def engine_append(log: embedlog.Log) -> Callable[[], object]:
    """The engine's append of an encoded batch."""
    values = record_batch.BytesColumn(np.frombuffer(b"value", np.uint8), np.array([0, 5], np.int32))
    run = next(iter(record_batch.encode(record_batch.Columns(1, values, timestamps=0))))
    partition = log._engine.partition("wake", 0)
    return lambda: partition.append(run)


def producer_send(log: embedlog.Log) -> Callable[[], object]:
    """`send().result()`: through the producer's thread and back."""
    producer = log.producer(linger_ms=0)
    return lambda: producer.send("wake", b"value").result()


def wake(context: Context) -> Iterator[Outcome]:
    """Measured on one core and on all: on a virtual machine, waking a halted core costs more than
    everything else.

    The latency of a bare futex between two processes, with the same pauses and cores, is the bound.
    It is shown with the parts of the rest. With several cores also with a spinning reader, beside
    two processes of C, of which one spins.
    """
    everywhere = os.sched_getaffinity(0)
    for cores, where in ((1, {min(everywhere)}), (len(everywhere), everywhere)):
        os.sched_setaffinity(0, where)
        try:
            bare = context.bare.wake(context.samples)
            targets = {label: WAKE_FACTOR * bare[label] for label in SHARES}
            for name, appending in (("append", engine_append), ("send", producer_send)):
                yield from _woken(
                    context,
                    f"wake-up/{name}/processes=2/cores={cores}",
                    appending,
                    0,
                    bare,
                    targets,
                )
            if cores > 1:
                bare = context.bare.wake(context.samples, spinning=True)
                for name, appending in (("append", engine_append), ("send", producer_send)):
                    place = f"wake-up/{name}/processes=2/cores={cores}/spin"
                    yield from _woken(context, place, appending, SPIN_US, bare, SPIN_TARGETS_US)
        finally:
            os.sched_setaffinity(0, everywhere)


def _woken(
    context: Context,
    place: str,
    appending: Appending,
    spin_us: int,
    bare: dict[str, float],
    targets_us: dict[str, float],
) -> Iterator[Outcome]:
    directory = context.fresh("wake")
    try:
        found, alone_us = wakeups_of(directory, context.samples, appending, spin_us)
    finally:
        remove(directory)
    for label, share in SHARES.items():
        detail = {
            "samples": len(found),
            "bare us": bare[label],
            "until awake us": percentile([each.awake for each in found], share),
            "poll after it us": percentile([each.done - each.awake for each in found], share),
            "append without a waiting reader, p50 us": alone_us,
        }
        reached = percentile([each.done for each in found], share)
        yield Outcome(f"{place}/{label}", reached, "us", targets_us[label], False, detail)


def many_partitions(context: Context) -> Iterator[Outcome]:
    """Open cleanly closed partitions, each touched once, with few descriptors."""
    directory = context.fresh("partitions")
    try:
        with embedlog.open(directory) as log, log.producer() as producer:
            log.create_topic("many", context.partitions, config={"flush.ms": 3_600_000})
            for partition in range(context.partitions):
                producer.send("many", b"value", partition=partition)
            producer.flush()
        bare_s = heads_s(log_files(directory))
        runs = [child("open", directory, "many", DESCRIPTORS) for _ in range(3)]
    finally:
        remove(directory)
    best = min(run["seconds"] for run in runs)
    detail = {
        "partitions": context.partitions,
        "descriptors": max(run["descriptors"] for run in runs),
        "limit": DESCRIPTORS,
        "read back": runs[0]["records"],
        "open alone s": min(run["open_seconds"] for run in runs),
        "bare open and read of its logs s": bare_s,
    }
    yield Outcome(f"open/partitions={context.partitions}/clean", best, "s", 1.0, False, detail)


def many_segments(context: Context) -> Iterator[Outcome]:
    """A partition of thousands of segments: opened with few descriptors, then offsets looked up
    warm and cold.
    """
    directory = context.fresh("segments")
    try:
        build_segments(directory, context.segments)
        opened = child("open", directory, "many", DESCRIPTORS)
        detail = {
            "descriptors": opened["descriptors"],
            "limit": DESCRIPTORS,
            "read back": opened["records"],
        }
        detail["bare list of sizes s"] = sizes_s(directory / "many-0")
        yield Outcome(
            f"open/segments={context.segments}", opened["seconds"], "s", 1.0, False, detail
        )
        found = child("lookup", directory, "many", DESCRIPTORS)
        sizes = {
            "segments": found["segments"],
            "lookups": found["lookups"],
            "bare bisect us": found["bare_us"],
        }
        yield Outcome("lookup/warm/p50", found["warm_us"], "us", 5.0, False, sizes)
        yield Outcome("lookup/cold/p50", found["cold_us"], "us", 30.0, False, sizes)
    finally:
        remove(directory)


def build_segments(directory: Path, segments: int) -> None:
    """Create segments of about 16 kB with one index entry per batch."""
    values = [b"%01000d" % number for number in range(4)]
    with embedlog.open(directory) as log, log.producer(linger_ms=0) as producer:
        log.create_topic(
            "many",
            1,
            config={"segment.bytes": 16_384, "flush.ms": 3_600_000, "index.interval.bytes": 4000},
        )
        for _ in range(segments * 4):
            producer.send_batch("many", values).result()
