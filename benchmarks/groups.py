"""Groups: the cost of a commit, of opening a log with ten thousand groups, and the size of their
log.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import embedlog
from embedlog import TopicPartition

from .context import Context, remove
from .measure import Outcome, percentile
from .references import send_us, whole_s

PARTITIONS = 100
WARM = 50
GROUPS = 10_000
# commits per second; partitions per commit
RATE = 1_000
SECONDS = 60
EACH = 10
BOUND_MB = 20  # the records of 15 s (the cleaner's interval), the active segment, and a margin
OFFSETS_TOPIC = "__consumer_offsets"
MIB = 1 << 20


def commit(context: Context) -> Iterator[Outcome]:
    """A commit of a hundred partitions, checked and appended under the lock: not synced."""
    directory = context.fresh("commit")
    try:
        with embedlog.open(directory) as log:
            log.create_topic("bench", PARTITIONS)
            places = [TopicPartition("bench", number) for number in range(PARTITIONS)]
            spent: list[float] = []
            with log.producer() as producer:
                bare_us = send_us(producer, "bench")
            for turn in range(WARM + 100 * context.rounds):
                began = time.perf_counter()
                log._engine.groups.commit("bench", dict.fromkeys(places, turn))
                spent.append((time.perf_counter() - began) * 1e3)
    finally:
        remove(directory)
    found = spent[WARM:]
    detail = {
        "p10": percentile(found, 0.1),
        "p99": percentile(found, 0.99),
        "commits": len(found),
        "a send us": bare_us,
    }
    yield Outcome(
        f"commit/partitions={PARTITIONS}", statistics.median(found), "ms", 1.0, False, detail
    )


def many_groups(context: Context) -> Iterator[Outcome]:
    """From `open` to the list of all groups, with the offsets of one partition for each."""
    directory = context.fresh("groups")
    try:
        with embedlog.open(directory) as log:
            log.create_topic("bench", PARTITIONS)
            for number in range(GROUPS):
                log._engine.groups.commit(
                    f"group-{number}", {TopicPartition("bench", number % PARTITIONS): number}
                )
        spent: list[float] = []
        for _ in range(context.rounds):
            began = time.perf_counter()
            with embedlog.open(directory) as log:
                assert len(log._engine.groups.names()) == GROUPS
                spent.append(time.perf_counter() - began)
        bare_s = whole_s(directory.glob(f"{OFFSETS_TOPIC}-*/*.log"))
    finally:
        remove(directory)
    detail = {"slowest": max(spent), "rounds": context.rounds, "bare read of its file s": bare_s}
    yield Outcome(f"open-groups/groups={GROUPS}", statistics.median(spent), "s", 1.0, False, detail)


def bounded(context: Context) -> Iterator[Outcome]:
    """A thousand commits per second for a minute into one partition, with the cleaner's
    defaults.
    """
    directory = context.fresh("bounded")
    largest = growth = 0
    try:
        with embedlog.open(directory) as log:
            log.create_topic("bench", PARTITIONS)
            begin = time.monotonic()
            for turn in range(RATE * SECONDS):
                log._engine.groups.commit(
                    "bench",
                    {TopicPartition("bench", (turn + n) % PARTITIONS): turn for n in range(EACH)},
                )
                if turn == RATE:
                    growth = size_of(directory)  # of a second; nothing is compacted so early
                if turn % RATE == 0:
                    largest = max(largest, size_of(directory))
                ahead = begin + turn / RATE - time.monotonic()
                if ahead > 0.01:
                    time.sleep(ahead)
            spent = time.monotonic() - begin
            last = size_of(directory)
            turns = RATE * SECONDS
        began = time.perf_counter()
        with embedlog.open(directory) as log:
            log._engine.groups.read_committed("bench")
            opened = time.perf_counter() - began
    finally:
        remove(directory)
    detail = {
        "without compaction MiB": growth * SECONDS / MIB,
        "at the end": last / MIB,
        "commits": turns,
        "partitions of each": EACH,
        "seconds": spent,
        "open s": opened,
    }
    yield Outcome(
        f"offsets-log/commits={RATE}per-second/seconds={SECONDS}",
        largest / MIB,
        "MiB",
        BOUND_MB,
        False,
        detail,
    )


def size_of(directory: Path) -> int:
    """Bytes of the log files, without those that wait for their removal."""
    return sum(path.stat().st_size for path in directory.glob(f"{OFFSETS_TOPIC}-*/*.log"))
