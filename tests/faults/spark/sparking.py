"""A streaming word count into a topic, whose tasks, commits and drivers die as a plan says.

    python -m tests.faults.spark.sparking <directory>                    a driver that runs the
    query until everything is written python -m tests.faults.spark.sparking <directory> <seed>
    <count>     a driver that retries tasks, under this number of faults

A plan is a directory of notes: `<where>` contains the fault. The first process at this place
removes the note and has the fault.

    task-begins, task-reads, task-ends         in a task: before its first read, after its first
    batch, after its last batch commit-begins, commit-ends                 in the driver's commit,
    before and after the work commit-call                                at the nth call of the
    commit that changes a file

Faults: `exit` (the process ends), `kill` (SIGKILL), `raise`, `driver` (SIGKILL to the JVM and to
the process).

Invariant: after every fault the topic has each word as often as the lines of the written batches.
After the end of the query it has each word as often as all lines.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import embedlog
from embedlog._native import system
from embedlog.spark import staging

WHERE_TASK = ("task-begins", "task-reads", "task-ends")
WHERE_COMMIT = ("commit-begins", "commit-ends")
CALL = "commit-call"
CHANGING = (
    "pwrite",
    "fsync",
    "fdatasync",
    "ftruncate",
    "rename",
    "unlink",
    "mkdir",
    "mmap",
    "point",
)
DEADLINE_S = 150
CALLS = 280  # about as many as a commit makes of these
WORDS = [
    "the",
    "log",
    "is",
    "the",
    "truth",
    "and",
    "all",
    "the",
    "rest",
    "is",
    "a",
    "cache",
    "of",
    "the",
    "log",
]
Fault = tuple[str, str]  # place and kind
TRIGGERS = ("available", "once", "interval")
TO_THE_END = ("available", "interval")  # after a failure `once` repeats the failed batch only


# ---- the world -------------------------------------------------------------------------------------------------------


class World:
    """A log with topic `lines`, which a query splits into topic `words`; the plan; the
    checkpoint.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / "log"
        self.plan = directory / "plan"
        self.checkpoint = directory / "checkpoint"
        self.lines = 0

    def make(self) -> None:
        self.plan.mkdir()
        with embedlog.open(self.path) as log:
            log.create_topic("lines", partitions=2)
            log.create_topic("words", partitions=2)

    def say(self, rng: random.Random, count: int) -> None:
        """So many more lines."""
        lines = [" ".join(rng.choices(WORDS, k=rng.randint(1, 9))).encode() for _ in range(count)]
        with embedlog.open(self.path) as log, log.producer() as producer:
            for number in (0, 1):
                producer.send_batch("lines", lines[number::2], partition=number).result(30)

    def ends(self) -> dict[int, int]:
        with embedlog.open(self.path, read_only=True) as log:
            return {
                here.partition: here.log_end_offset
                for here in log.describe_topic("lines").partitions
            }

    def scheme(self, where: str, what: str) -> None:
        (self.plan / where).write_text(what)

    def left(self) -> list[str]:
        """The faults that have not happened yet; they are removed."""
        found = sorted(path.name for path in self.plan.iterdir())
        for name in found:
            (self.plan / name).unlink()
        return found

    def counts(self) -> tuple[Counter[str], Counter[str]]:
        """The words of the lines, and the words in the topic, as readers of committed records get
        them.
        """
        with embedlog.open(self.path, read_only=True) as log:
            said = [
                word.decode()
                for record in log.scan("lines").records()
                for word in (record.value or b"").split()
            ]
            scan = log.scan("words", isolation_level="read_committed")
            return Counter(said), Counter((record.key or b"").decode() for record in scan.records())

    def counts_so_far(self) -> tuple[Counter[str], Counter[str]]:
        """The words of the lines up to the batch that the log has written last, bounded by the
        checkpoint. Also the words in the topic, after housekeeping has completed the decided
        transactions.
        """
        with embedlog.open(self.path) as log:
            log.housekeep()
            marks = [
                offset.offset
                for name in log.groups()
                for offset in log.group_offsets(name).values()
            ]
            ends = {0: 0, 1: 0}
            if marks:
                _, _, source = (
                    (self.checkpoint / "offsets" / str(marks[0] - 1)).read_text().splitlines()
                )
                ends = {
                    int(number): end for number, end in json.loads(source)["o"]["lines"].items()
                }
            scan = log.scan("lines", end_offset=ends)
            said = Counter(
                word.decode() for record in scan.records() for word in (record.value or b"").split()
            )
        return said, self.counts()[1]

    def staged(self) -> list[str]:
        return [name for _, _, names in os.walk(f"{self.path}.staging") for name in names]


def start(spark: Any, world: World, trigger: str, most: int) -> Any:
    """The query, started."""
    from pyspark.sql import functions as f

    lines = (
        spark.readStream.format("embedlog")
        .option("subscribe", "lines")
        .option("startingOffsets", "earliest")
    )
    lines = lines.option("maxOffsetsPerTrigger", most).load(str(world.path))
    words = lines.select(
        f.explode(f.split(f.col("value").cast("string"), " ")).alias("key")
    ).withColumn("value", f.lit("1"))
    writer = (
        words.writeStream.format("faulty").option("topic", "words").option("plan", str(world.plan))
    )
    writer = writer.option("checkpointLocation", str(world.checkpoint))
    kinds = {
        "available": {"availableNow": True},
        "once": {"once": True},
        "interval": {"processingTime": "10 milliseconds"},
    }
    return writer.trigger(**kinds[trigger]).start(str(world.path))


def run(spark: Any, world: World, trigger: str, most: int) -> str:
    """Until every line is written, or an error is raised: that error. Raises TimeoutError."""
    query = start(spark, world, trigger, most)
    try:
        deadline = time.monotonic() + DEADLINE_S
        while not query.awaitTermination(0.1) and not (
            trigger == "interval" and has_read(query) == world.ends()
        ):
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"the query still runs after {DEADLINE_S} s: {query.status}, "
                    f"{query.lastProgress}"
                )
    except TimeoutError:
        raise
    except Exception as problem:  # noqa: BLE001 (whatever becomes of it: the next run has to mend it)
        return str(problem) or type(problem).__name__
    finally:
        query.stop()
    return str(query.exception() or "")


def has_read(query: Any) -> dict[int, int]:
    """The begin of the next batch of a running query: earlier lines are written."""
    told = query.lastProgress
    end = json.loads(told.json)["sources"][0]["endOffset"] if told else None
    return {int(number): offset for number, offset in end["o"]["lines"].items()} if end else {}


# ---- faults ----------------------------------------------------------------------------------------------------------


def happen(plan: str, where: str) -> None:
    """Take the note of this place away, if there is one, and have its fault."""
    path = Path(plan) / where
    try:
        what = path.read_text()
        path.unlink()
    except FileNotFoundError:
        return
    if where == CALL:
        nth = int(what.removeprefix("driver "))
        if what.startswith("driver "):
            kill_with_me(jvm())
        system.fault_arm(CHANGING, nth, "kill_before", 0)
    elif what == "raise":
        raise RuntimeError(f"raised on purpose: {where}")
    elif what == "exit":
        os._exit(3)
    else:
        if what == "driver":
            os.kill(jvm(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


def kill_with_me(pid: int) -> None:
    """A child that kills a process as soon as this one is dead."""
    reads, _ = os.pipe()  # the other end is never closed but by this process's end
    if os.fork() == 0:
        os.close(_)
        os.read(reads, 1)
        os.kill(pid, signal.SIGKILL)
        os._exit(0)


def jvm() -> int:
    return int(staging.driver_name().split("-")[4])


def register(spark: Any) -> None:
    """`format("faulty")`: the sink, with a plan."""
    from pyspark import cloudpickle

    import tests.faults.spark.faulty_sink as module

    cloudpickle.register_pickle_by_value(module)
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    spark.dataSource.register(module.FaultySink)


# ---- with faults ------------------------------------------------------------------------------------------------------


def compare(said: Counter[str], written: Counter[str], fault: str) -> None:
    """Every word as often as the lines have it. Raises AssertionError."""
    assert written == said, f"after {fault}: {written - said} too many, {said - written} too few"


def under_fire(
    spark: Any, world: World, rng: random.Random, chosen: list[Fault], each: int = 1
) -> dict[str, int]:
    """Each fault in a run of its own, and after every `each` faults a run that completes all work;
    triggers vary between runs.

    After each fault the topic has the words of the written batches, and after the completing run
    all words.
    """
    struck = ended = 0
    for number, (where, what) in enumerate(chosen, 1):
        world.say(rng, rng.randint(2, 12))
        world.scheme(where, what)
        ended += bool(run(spark, world, rng.choice(TRIGGERS), rng.randint(3, 40)))
        struck += not world.left()
        compare(*world.counts_so_far(), f"{where} {what}, before any repair")
        if number % each == 0:
            problem = run(spark, world, rng.choice(TO_THE_END), rng.randint(3, 40))
            assert not problem, f"after {where} {what}: {problem}"
            compare(*world.counts(), f"{where} {what}")
            assert not world.staged(), f"after {where} {what}: {world.staged()} stays staged"
    return {"faults": struck, "queries_ended_by_them": ended}


def main(directory: str, seed: str = "", count: str = "0") -> None:
    from tests.support import spark_session as session

    world = World(Path(directory))
    rng = random.Random(seed)
    master = "local[2,3]" if seed else "local[2]"  # tries, in brackets: a single one otherwise
    with session.started(master, Path(directory) / f"session-{os.getpid()}") as spark:
        register(spark)
        if seed:
            chosen = [
                (rng.choice(WHERE_TASK), rng.choice(("exit", "kill", "raise")))
                for _ in range(int(count))
            ]
            print(json.dumps(under_fire(spark, world, rng, chosen)))
        else:
            print(run(spark, world, "available", 20))


if __name__ == "__main__":
    main(*sys.argv[1:])
