"""The lengths of the main paths: Python calls, distinct files, reads of control blocks, look-ups of
topics, and microseconds.

Run: `python -m benchmarks.call_paths`. Only public names are used, so that the program also
measures older versions of the package. Calls of Python functions are counted in all threads, the
standard library's included, after a few rounds, so that caches are filled. The time is the median
of many rounds without counting.
"""

from __future__ import annotations

import gc
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import embedlog
from embedlog import OffsetAndMetadata, TopicPartition

ROUNDS = 200
WARM = 3
PACKAGE = str(Path(embedlog.__file__).parent)

Step = Callable[[], object]
Steps = Generator[Step, None, None]
# each item is one measured step; the code between two items is not measured
Path_ = Callable[[embedlog.Log], Steps]


class Length(NamedTuple):
    """The length of one path."""

    calls: int
    files: int
    control_reads: int
    topic_lookups: int
    microseconds: float


def first_poll(log: embedlog.Log) -> Steps:
    while True:
        with log.consumer("t", auto_offset_reset="earliest") as consumer:
            yield lambda consumer=consumer: consumer.poll(timeout=0)  # type: ignore[misc]


def scan(log: embedlog.Log) -> Steps:
    while True:
        yield lambda: log.scan("t").to_arrow()


def commit_offset(log: embedlog.Log) -> Steps:
    place = TopicPartition("t", 0)
    with log.consumer(
        "t", group_id="g", enable_auto_commit=False, auto_offset_reset="earliest"
    ) as consumer:
        consumer.poll(timeout=5)
        while True:
            yield lambda: consumer.commit({place: OffsetAndMetadata(1)})


def commit_transaction(log: embedlog.Log) -> Steps:
    with log.producer(transactional_id="x", linger_ms=0) as producer:
        producer.init_transactions()
        while True:
            producer.begin_transaction()
            for partition in (0, 1):
                producer.send("two", b"value", partition=partition).result(10)
            yield producer.commit_transaction


def send(log: embedlog.Log) -> Steps:
    with log.producer(linger_ms=0) as producer:
        while True:
            yield lambda: producer.send("sent", b"value").result(10)


PATHS: dict[str, Path_] = {
    "first poll": first_poll,
    "scan of one record to Arrow": scan,
    "commit of one offset": commit_offset,
    "commit_transaction, two partitions": commit_transaction,
    "send().result()": send,
}


class Counting:
    """Counts the calls of Python functions while it is on, in this thread and in threads that are
    started meanwhile.
    """

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()
        self.on = False

    def note(self, frame: FrameType, event: str, argument: object) -> None:
        if self.on and event == "call" and frame.f_code.co_filename != __file__:
            self.calls[
                frame.f_code.co_filename.removeprefix(PACKAGE), frame.f_code.co_qualname
            ] += 1

    @contextmanager
    def installed(self) -> Iterator[None]:
        threading.setprofile(self.note)
        sys.setprofile(self.note)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)


@contextmanager
def steps_of(path: Path_) -> Iterator[Steps]:
    """The steps of a path in a directory of its own, after the first few."""
    with (
        tempfile.TemporaryDirectory() as directory,
        embedlog.open(directory, housekeeping=False) as log,
    ):
        log.create_topic("t", 1)
        log.create_topic("two", 2)
        log.create_topic("sent", 1)
        with log.producer() as producer:
            producer.send("t", b"value").result(10)
        steps = path(log)
        for _ in range(WARM):
            next(steps)()
        yield steps
        steps.close()


def microseconds(path: Path_, rounds: int = ROUNDS) -> float:
    """The median time of a step."""
    spent = []
    with steps_of(path) as steps:
        gc.disable()
        for _ in range(rounds):
            step = next(steps)
            began = time.perf_counter_ns()
            step()
            spent.append(time.perf_counter_ns() - began)
        gc.enable()
    return statistics.median(spent) / 1000


def calls_of(path: Path_) -> Counter[tuple[str, str]]:
    """The calls of one step by file and function."""
    counting = Counting()
    with counting.installed(), steps_of(path) as steps:
        step = next(steps)
        counting.on = True
        step()
        counting.on = False
    return counting.calls


def measure(path: Path_, calls: Counter[tuple[str, str]]) -> Length:
    """The length of a path, given the calls of one step."""
    return Length(
        sum(calls.values()),
        len({file for file, _ in calls if not file.startswith(("<", sys.base_prefix))}),
        sum(count for (_, name), count in calls.items() if name == "Page.read"),
        sum(count for (_, name), count in calls.items() if name == "TopicRegistry.refresh"),
        microseconds(path),
    )


def main() -> None:
    wanted = sys.argv[1:]
    print(f"{'path':36} {'calls':>6} {'files':>6} {'control':>8} {'topics':>7} {'µs':>8}")
    for name, path in PATHS.items():
        if wanted and not any(word in name for word in wanted):
            continue
        calls = calls_of(path)
        found = measure(path, calls)
        numbers = (
            f"{found.calls:6} {found.files:6} {found.control_reads:8} {found.topic_lookups:7} "
            f"{found.microseconds:8.1f}"
        )
        print(f"{name:36} {numbers}")
        if wanted:
            for (file, function), count in sorted(calls.items(), key=lambda each: -each[1]):
                print(f"    {count:4}  {file}  {function}")


if __name__ == "__main__":
    main()
