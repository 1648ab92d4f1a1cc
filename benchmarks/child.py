"""Tasks that need a process of their own: `python -m benchmarks.child TASK ...` answers with one
line of JSON.
"""

from __future__ import annotations

import json
import os
import random
import resource
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import embedlog
from embedlog import TopicPartition

from .references import bisect_us


def codec(directory: str, name: str, total_bytes: str) -> dict[str, Any]:
    from .columns import codec_seconds
    from .context import Context

    path = Path(directory)
    path.mkdir()
    context = Context(path, bare=None)  # type: ignore[arg-type]
    try:
        return {"seconds": codec_seconds(context, name, int(total_bytes))}
    finally:
        path.rmdir()


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def memory(directory: str) -> dict[str, Any]:
    """Largest resident size within the first half of a scan, and within all of it."""
    with embedlog.open(directory, read_only=True) as log:
        end = max(log.consumer("bench").end_offsets([TopicPartition("bench", 0)]).values())
        early = peak = rows = 0
        for batch in log.scan("bench"):
            rows += batch.num_rows
            peak = max(peak, resident_bytes())
            if rows <= end // 2:
                early = peak
    return {"early": early, "peak": peak, "rows": rows}


def poll(directory: str, samples: str, spin_us: str) -> dict[str, Any]:
    """Print for each record when `poll` returned it and when it was woken, on the system-wide
    clock.
    """
    woken_ns = 0
    with (
        embedlog.open(directory) as log,
        log.consumer("wake", auto_offset_reset="earliest", poll_spin_us=int(spin_us)) as consumer,
    ):
        wait = log._engine.wait

        def stamped(*asked: Any) -> Any:
            nonlocal woken_ns
            answer = wait(*asked)
            woken_ns = time.monotonic_ns()
            return answer

        setattr(log._engine, "wait", stamped)  # noqa: B010 (mypy: a method)
        while consumer.poll(timeout=0):
            continue
        print("ready", flush=True)
        left = int(samples)
        while left:
            records = consumer.poll(timeout=10.0)
            now_ns = time.monotonic_ns()
            for _ in records:
                print(now_ns, woken_ns, flush=True)
                left -= 1
    return {}


def limit_descriptors(count: str) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(count), int(count)))


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def open_(directory: str, topic: str, limit: str) -> dict[str, Any]:
    """Open, ask every partition for its bounds, read from the last one; all within the limit."""
    limit_descriptors(limit)
    began = time.perf_counter()
    with embedlog.open(directory) as log:
        opened = time.perf_counter() - began
        count = len(log.describe_topic(topic).partitions)
        partitions = [TopicPartition(topic, number) for number in range(count)]
        with log.consumer() as consumer:
            ends = consumer.end_offsets(partitions)
            spent = time.perf_counter() - began
            used = descriptors()
            consumer.assign(partitions)
            consumer.seek_to_beginning(*partitions)
            found = 0
            while found < min(sum(ends.values()), 100_000):
                found += len(consumer.poll(timeout=10.0, max_records=10_000))
                used = max(used, descriptors())
    return {"seconds": spent, "open_seconds": opened, "descriptors": used, "records": found}


def lookup(directory: str, topic: str, limit: str) -> dict[str, Any]:
    """Median time to find segment and position of an offset, in segments read for the first time
    and in known ones.
    """
    limit_descriptors(limit)
    rng = random.Random(1)
    with embedlog.open(directory) as log:
        partition = log._engine.partition(topic, 0)
        bases = [info.base for info in partition._segments.all(partition.published())]
        per_segment = bases[1] - bases[0]
        cold_offsets = [
            base + rng.randrange(per_segment)
            for base in rng.sample(bases[:-1], min(2000, len(bases) - 1))
        ]
        warm_offsets = [offset + at % 3 for at in range(40) for offset in cold_offsets[-50:]]
        cold = []
        warm = []
        for offsets, times in ((cold_offsets, cold), (warm_offsets, warm)):
            for offset in offsets:
                now = partition.published()  # a fetch reads the control block once
                began = time.perf_counter_ns()
                partition._reader.find_entry(partition._segments.at(offset, now), offset)
                times.append(time.perf_counter_ns() - began)
    return {
        "segments": len(bases),
        "lookups": len(cold),
        "cold_us": statistics.median(cold) / 1e3,
        "warm_us": statistics.median(warm[50:]) / 1e3,
        "bare_us": bisect_us(bases),
    }


def durable(directory: str, delay_us: str) -> dict[str, Any]:
    from .durable import child_rate

    return {"rate": child_rate(directory, int(delay_us))}


def compact(directory: str) -> dict[str, Any]:
    from .compaction import clean_once

    return clean_once(directory)


def compact_copy(directory: str, after: str) -> dict[str, Any]:
    from .compaction import copy_once

    return copy_once(directory, after)


def member(directory: str) -> dict[str, Any]:
    from .rebalance import member as belong

    return belong(directory)


def task_memory(directory: str) -> dict[str, Any]:
    from .spark import task_memory as read_whole

    return read_whole(directory)


TASKS = {
    "codec": codec,
    "compact": compact,
    "compact_copy": compact_copy,
    "durable": durable,
    "lookup": lookup,
    "member": member,
    "memory": memory,
    "open": open_,
    "poll": poll,
    "task_memory": task_memory,
}


if __name__ == "__main__":
    answer = TASKS[sys.argv[1]](*sys.argv[2:])
    print(json.dumps(answer))
