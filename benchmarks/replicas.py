"""Sets of two and three directories against one: appends, single sends, a follower that catches up,
failovers.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median

import pyarrow as pa

import embedlog
from embedlog._native import system
from embedlog.partition.replication.replica_log import LeaderDecision
from embedlog.replicas.partition.copying import copy
from embedlog.replicas.partition.leader import Leader

from . import references
from .context import QUIET, Context, bytes_in, filled, log_files, pieces, remove, values_of
from .measure import PIECE_BYTES, Outcome, against, percentile

RECORD_BYTES = 1000
APPEND_MOST = {2: 1 / 2.1, 3: 1 / 3.2}
SEND_MOST = {2: 1.5, 3: 2.0}
SENDS = 400
WARM = 100
FAILOVERS = 40
SETTLED_S = 2.2  # after this time a lock file is found in place by its change time
LOG = {"housekeeping": False}


@contextlib.contextmanager
def opened(
    context: Context, count: int, partitions: int = 1
) -> Iterator[tuple[embedlog.Log, Path]]:
    """A log of so many directories, with the topic `bench` in all of them."""
    root = context.fresh("replicas")
    paths: list[str | os.PathLike[str]] = [root / f"d{number}" for number in range(1, count + 1)]
    try:
        with embedlog.open(paths if count > 1 else paths[0], config=LOG) as log:
            log.create_topic(
                "bench",
                partitions,
                config=QUIET,
                **({"replication_factor": count} if count > 1 else {}),
            )
            yield log, root
    finally:
        remove(root)


def append_rate(context: Context, values: pa.Array, count: int) -> float:
    """Bytes of values per second, with acks=all."""
    with opened(context, count) as (log, _), log.producer() as producer:
        producer.send_batch("bench", values.slice(0, 64)).result()
        # else the write-back of the turn before, with another amount of data, slows this one
        os.sync()
        began = time.perf_counter()
        futures = [
            producer.send_batch("bench", part) for part in pieces(values, context.size_bytes)
        ]
        for future in futures:
            future.result()
        return context.size_bytes / (time.perf_counter() - began)


def appends(context: Context) -> Iterator[Outcome]:
    values = values_of(RECORD_BYTES, context.size_bytes)
    for count, target in APPEND_MOST.items():
        yield against(
            f"replicas/append/directories={count}",
            lambda: append_rate(context, values, 1),
            lambda count=count: append_rate(context, values, count),  # type: ignore[misc]
            target=target,
            rounds=context.rounds,
            unit="bytes/s",
            cpu=time.process_time,
        )


def send_us(producer: embedlog.Producer, value: bytes) -> list[float]:
    found = []
    for _ in range(SENDS):
        began = time.perf_counter_ns()
        producer.send("bench", value).result()
        found.append((time.perf_counter_ns() - began) / 1e3)
    return found


def sends(context: Context) -> Iterator[Outcome]:
    """The median time of `send().result()`: all sets in alternation."""
    value = os.urandom(RECORD_BYTES)
    with contextlib.ExitStack() as stack:
        producers = {}
        for count in (1, *SEND_MOST):
            log, _ = stack.enter_context(opened(context, count))
            producers[count] = stack.enter_context(log.producer())
        for wait_s in (SETTLED_S, 0):
            for producer in producers.values():
                for _ in range(WARM):
                    producer.send("bench", value).result()
            time.sleep(wait_s)
        times: dict[int, list[float]] = {count: [] for count in producers}
        for _ in range(context.rounds):
            for count, producer in producers.items():
                times[count] += send_us(producer, value)
    one = median(times[1])
    for count, target in SEND_MOST.items():
        detail = {
            "one": one,
            "set": median(times[count]),
            "p99": percentile(times[count], 0.99),
            "per": "us",
        }
        yield Outcome(
            f"replicas/send/directories={count}",
            median(times[count]) / one,
            "x one",
            target,
            False,
            detail,
        )


def bare_copy(sources: Sequence[Path], target: Path) -> float:
    """Bytes per second of `pread` and `pwrite` through one buffer, without checks. The whole copy
    exists at the end.
    """
    # a mapping begins at a page
    buffer = mmap.mmap(-1, PIECE_BYTES)
    total = 0
    target.mkdir()
    os.sync()
    began = time.perf_counter()
    for source in sources:
        with (
            open(source, "rb", buffering=0) as found,
            open(target / source.name, "wb", buffering=0) as made,
        ):
            while got := found.readinto(buffer):
                made.write(memoryview(buffer)[:got])
                total += got
    spent_s = time.perf_counter() - began
    remove(target)
    return total / spent_s


def catch_up(context: Context) -> Iterator[Outcome]:
    """A follower that lacks the whole log, which has `--large` bytes: checked bytes per second."""
    with (
        filled(context, RECORD_BYTES, context.large_bytes) as leading,
        contextlib.ExitStack() as stack,
    ):
        following = context.fresh("following")
        stack.callback(remove, following)
        logs = [
            stack.enter_context(embedlog.open(path, config=LOG)) for path in (leading, following)
        ]
        for slot, each in enumerate(logs):
            each._engine.home.context.node_slot = slot
        logs[1].create_topic("bench", 1, config=QUIET)
        source, follower = (each._engine.partition("bench", 0) for each in logs)
        assert source.replica.lead(LeaderDecision(0, 1, 1, 1, 1))
        leader = Leader(0, source, 1)
        files = log_files(leading)
        size = bytes_in(leading)

        def ours() -> float:
            os.sync()
            began = time.perf_counter()
            assert copy(leader, follower, source.published().log_end, system.boot_ns() + 10**12) > 0
            spent_s = time.perf_counter() - began
            with follower.replica.exclusive() as held:
                held.restart(0)
            for each in follower.path.glob("*.deleted"):
                # as the bare copy: memory has room for two logs of 10 GB, and unwritten pages slow
                # the next round
                each.unlink()
            return size / spent_s

        def ceiling() -> float:
            return bare_copy(files, leading / "bare")

        name = "replicas/catch-up"
        rounds = context.rounds
        yield against(
            name, ceiling, ours, target=0.8, rounds=rounds, unit="bytes/s", cpu=time.process_time
        )


def failover_ms(context: Context, partitions: int) -> tuple[float, float]:
    """From the loss of a directory to an acknowledged record in every partition that it led;
    microseconds of one such send.
    """
    with opened(context, 3, partitions) as (log, root), log.producer(linger_ms=0) as producer:
        for number in range(partitions):
            producer.send("bench", b"before", partition=number)
        producer.flush()
        alone_us = references.send_us(producer, "bench")
        node = log._engine.partition("bench", 0).node  # type: ignore[attr-defined]
        led = [n for n in range(partitions) if log._engine.partition("bench", n).node == node]  # type: ignore[attr-defined]
        shutil.move(root / f"d{node}", root / "lost")
        began = time.perf_counter()
        for future in [producer.send("bench", b"after", partition=number) for number in led]:
            future.result()
        return (time.perf_counter() - began) * 1e3, alone_us


def failovers(context: Context) -> Iterator[Outcome]:
    found = [failover_ms(context, 1) for _ in range(FAILOVERS)]
    times = [each[0] for each in found]
    detail = {
        "p50": median(times),
        "samples": len(times),
        "a send us": median(each[1] for each in found),
    }
    yield Outcome(
        "replicas/failover/partitions=1", percentile(times, 0.99), "ms p99", 50.0, False, detail
    )
    many, alone_us = failover_ms(context, context.partitions)
    detail = {"led by the lost directory": context.partitions // 3, "a send us": alone_us}
    yield Outcome(
        f"replicas/failover/partitions={context.partitions}", many / 1e3, "s", 1.0, False, detail
    )


PARTS: tuple[Callable[[Context], Iterator[Outcome]], ...] = (appends, sends, catch_up, failovers)


def replicas(context: Context) -> Iterator[Outcome]:
    for part in PARTS:
        yield from part(context)
