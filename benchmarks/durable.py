"""Durable sends (`flush.messages=1`): group commit among threads and among processes, with the real
disk and a slow one.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import embedlog
from embedlog._native import system

from .context import Context, remove
from .measure import Outcome

SECONDS = 1.0
SLOW_US = 1000  # the fault hook delays each sync by a millisecond
THREADS = 16
PROCESSES = 4
TOPIC = "durable"


def slow_syncs(delay_us: int) -> None:
    if delay_us:
        system.fault_arm(["fdatasync"], 1, "delay", delay_us, sticky=True)
    elif system.TEST_BUILD:
        system.fault_off()


def rate_of_threads(log: embedlog.Log, threads: int) -> float:
    """Acknowledged records per second, one in flight per thread."""
    counts = [0] * threads
    with log.producer() as producer:
        producer.send(TOPIC, b"first").result()
        end = time.monotonic() + SECONDS

        def send(number: int) -> None:
            while time.monotonic() < end:
                producer.send(TOPIC, b"x" * 100).result()
                counts[number] += 1

        workers = [threading.Thread(target=send, args=(number,)) for number in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    return sum(counts) / SECONDS


def child_rate(directory: str, delay_us: int) -> float:
    """The measured part of a child of `rate_of_processes`."""
    with embedlog.open(directory) as log, log.producer() as producer:
        producer.send(TOPIC, b"first").result()
        slow_syncs(delay_us)
        print("ready", flush=True)
        sys.stdin.readline()
        count = 0
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            producer.send(TOPIC, b"x" * 100).result()
            count += 1
        print(count, flush=True)
        sys.stdin.readline()  # no child closes while another one writes
    return count / SECONDS


def rate_of_processes(directory: Path, processes: int, delay_us: int) -> float:
    command = [sys.executable, "-m", "benchmarks.child", "durable", str(directory), str(delay_us)]
    root = Path(__file__).resolve().parent.parent
    children = [
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root
        )
        for _ in range(processes)
    ]
    count = 0
    for step in ("ready", "count"):
        for each in children:
            assert each.stdout is not None
            line = each.stdout.readline()
            count += int(line) if step == "count" else 0
        for each in children:
            assert each.stdin is not None
            print("go", file=each.stdin, flush=True)
    for each in children:
        each.communicate()
    return count / SECONDS


def durable(context: Context) -> Iterator[Outcome]:
    directory = context.fresh("durable")
    try:
        with embedlog.open(directory) as log:
            log.create_topic(TOPIC, 1, config={"flush.messages": 1})
            for delay_us, target in (
                ((0, 4.0), (SLOW_US, 6.0)) if system.TEST_BUILD else ((0, 4.0),)
            ):
                slow_syncs(delay_us)
                pairs = [
                    (rate_of_threads(log, 1), rate_of_threads(log, THREADS))
                    for _ in range(context.rounds)
                ]
                slow_syncs(0)
                yield ratio(f"durable/threads={THREADS}/sync+{delay_us}us", pairs, target)
        if not system.TEST_BUILD:  # syncs of a fixed duration need fault injection
            return
        pairs = [
            (
                rate_of_processes(directory, 1, SLOW_US),
                rate_of_processes(directory, PROCESSES, SLOW_US),
            )
            for _ in range(context.rounds)
        ]
        yield ratio(f"durable/processes={PROCESSES}/sync+{SLOW_US}us", pairs, 3.0)
    finally:
        slow_syncs(0)
        remove(directory)


def ratio(name: str, pairs: list[tuple[float, float]], target: float) -> Outcome:
    one = median(pair[0] for pair in pairs)
    many = median(pair[1] for pair in pairs)
    detail = {"one": one, "many": many, "per": "records/s", "rounds": len(pairs)}
    return Outcome(name, many / one, "x one", target, True, detail)
