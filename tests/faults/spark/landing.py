"""A driver of Spark that dies, or gets an error, at any call of a batch's commit; without Spark, so
it is cheap.

The driver dies at every call, and the next one, too. Invariant: a reader of committed records gets
all records of the batch for a partition or none. A repeated batch is written once, later batches
work, and nothing stays staged.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute  # here, not in each victim

import embedlog
from embedlog._native import system
from embedlog.errors import EmbedlogError
from embedlog.partitioners import partition_of
from embedlog.spark import staging, transactional_write
from embedlog.spark.transactional_write import WriteId
from embedlog.spark.write_options import WriteSettings, parse_write
from embedlog.spark.write_task import WriteTask
from tests.faults.harness.processes import Died, Nursery, RemoteError
from tests.faults.harness.tasks import Stage, task
from tests.faults.partition.crashes import FAILING, KINDS, Point

TASKS = 2
ROWS = 30
PARTITIONS = {"t": 2, "u": 1}
NAME = "stream"
# of the log while it is made
CONFIG = {"offsets.topic.num.partitions": 1, "transaction.state.log.num.partitions": 1}
CHANGING = tuple(
    kind for kind in KINDS if kind not in ("open", "close", "pread", "stat", "lock", "list")
)
Rows = Counter[tuple[str, bytes | None, bytes | None]]


def rows_of(batch: int, task: int) -> list[tuple[str, bytes, bytes]]:
    """(topic, key, value)."""
    return [
        ("tu"[number % 3 == 0], b"%d" % (number % 5), b"%d.%d.%d" % (batch, task, number))
        for number in range(ROWS)
    ]


def wanted(*batches: int) -> Rows:
    return Counter(
        row for batch in batches for task in range(TASKS) for row in rows_of(batch, task)
    )


def make(directory: Path) -> None:
    """A log in which batch 0 is written; made once, and copied."""
    template = directory.with_name("template")
    if not template.exists():
        _make(template)
    shutil.copytree(template, directory)


def _make(directory: Path) -> None:
    with embedlog.open(directory, config=CONFIG) as log:
        for name, count in PARTITIONS.items():
            log.create_topic(name, count)
        log.keep_group(NAME)
        with log.producer(transactional_id=NAME) as producer:
            producer.init_transactions()  # the log's own topics are there, small ones
    Driver(str(directory)).write(0)


class Driver:
    """The steps of Spark for a stream's batch: tasks stage, the driver commits."""

    def __init__(self, directory: str, overwrite: bool = False) -> None:
        self.settings: WriteSettings = parse_write(
            {"path": directory, "transactionalId": NAME}, stream=False
        )
        self.overwrite = overwrite
        (place,) = self.settings.staging_places()
        self.area = staging.StagingArea(place.staging, staging.name_of(os.getpid()), NAME)

    def stage(self, batch: int) -> list[staging.Staged]:
        return [self._task(batch, number) for number in range(TASKS)]

    def _task(self, batch: int, number: int) -> staging.Staged:
        topics, keys, values = zip(*rows_of(batch, number), strict=True)
        rows = pa.record_batch(
            {"value": pa.array(values), "topic": pa.array(topics), "key": pa.array(keys)}
        )
        attempt = WriteTask(
            self.area, {"value": 0, "topic": 1, "key": 2}, "", task=number, query="q", batch=batch
        )
        return attempt.stage([rows.slice(0, ROWS // 2), rows.slice(ROWS // 2)])

    def commit(self, batch: int, staged: Sequence[staging.Staged]) -> bool:
        return transactional_write.commit(
            self.settings, WriteId(NAME, batch, "q"), staged, self.area, overwrite=self.overwrite
        )

    def write(self, batch: int) -> bool:
        return self.commit(batch, self.stage(batch))


@task
def land_batch(
    _: Stage,
    directory: str,
    batch: int,
    arming: tuple[Any, ...] | None = None,
    overwrite: bool = False,
) -> tuple[str, bool, dict[str, int]]:
    """A driver's batch, with a fault armed during its commit: its error, whether it wrote, the
    number of its calls.
    """
    driver = Driver(directory, overwrite)
    raised = ""
    written = False
    staged = driver.stage(batch)
    system.fault_counters(True)
    if arming is not None:
        kinds, nth, action, error = arming
        system.fault_arm(kinds, nth, action, error)
    try:
        written = driver.commit(batch, staged)
    except EmbedlogError as problem:
        raised = f"{type(problem).__name__}: {problem}"
    counts, _ = system.fault_counters()
    system.fault_off()
    return raised, written, counts


@task
def land_and_mark_apart(_: Stage, directory: str) -> None:
    """The forbidden way: the rows in their transaction, and in a later step the note that they are
    written. Dies in between.
    """

    def nothing(*_: object) -> None:
        """The mark is left for later."""

    transactional_write._Write._mark = nothing  # type: ignore[method-assign]
    Driver(directory).write(1)
    os.kill(os.getpid(), signal.SIGKILL)


def count_calls(nursery: Nursery, directory: Path, overwrite: bool = False) -> dict[str, int]:
    """How many calls of each kind committing a batch makes, if nothing goes wrong."""
    make(directory)
    victim = nursery.spawn()
    raised, written, counts = victim.call("land_batch", str(directory), 1, None, overwrite)
    assert (raised, written) == ("", True)
    nursery.end(victim)
    forget(directory)
    return dict(counts)


def forget(directory: Path) -> None:
    shutil.rmtree(directory)
    shutil.rmtree(f"{directory}.staging", ignore_errors=True)


def points(counts: dict[str, int]) -> list[Point]:
    """Before each call that changes something, and in the middle of each write: between two of them
    nothing else can be left.
    """
    torn = [Point(nth, "torn_kill", ("pwrite",)) for nth in range(1, counts["pwrite"] + 1)]
    return torn + [
        Point(nth, "kill_before", CHANGING)
        for nth in range(1, sum(counts[kind] for kind in CHANGING) + 1)
    ]


# ---- one run -------------------------------------------------------------------------------------


def crash_at(
    nursery: Nursery,
    directory: Path,
    point: Point,
    nested: Point | None = None,
    overwrite: bool = False,
) -> tuple[list[str], int]:
    """Batch 1 by a driver that dies at `point`, and by one that dies at `nested`; what is wrong
    then, and how many died.
    """
    make(directory)
    wrong = []
    died = 0
    for each in (point, nested):
        if each is not None:
            died += one_driver(
                nursery, directory, (each.kinds, each.nth, each.mode, 0), overwrite, wrong
            )
            wrong += half_a_batch(directory, overwrite)
    wrong += repeated(nursery, directory, overwrite)
    return [
        f"{point}, then {nested}{', overwriting' if overwrite else ''}: {each}" for each in wrong
    ], died


def fail_at(
    nursery: Nursery, directory: Path, nth: int, error: int, overwrite: bool = False
) -> tuple[list[str], bool]:
    """Batch 1 by a driver with one failed call; what is wrong then, and whether it raised although
    it had written.
    """
    make(directory)
    wrong: list[str] = []
    victim = nursery.spawn()
    raised, _, _ = victim.call(
        "land_batch", str(directory), 1, (FAILING, nth, "fail", error), overwrite
    )
    nursery.end(victim)
    there = bool(seen(directory) & wanted(1))
    if not raised and not there:
        wrong.append("the commit did not raise, and nothing is there")
    wrong += half_a_batch(directory, overwrite) + repeated(nursery, directory, overwrite)
    return [
        f"call {nth} fails with {os.strerror(error)} ({raised}): {each}" for each in wrong
    ], bool(raised) and there


def one_driver(
    nursery: Nursery, directory: Path, arming: tuple[Any, ...], overwrite: bool, wrong: list[str]
) -> bool:
    """Whether it died on the way."""
    victim = nursery.spawn()
    try:
        raised, _, _ = victim.call("land_batch", str(directory), 1, arming, overwrite)
        if raised:
            wrong.append(raised)
        return False
    except Died:
        return True
    finally:
        nursery.end(victim)


def seen(directory: Path) -> Rows:
    """The records of readers of committed records."""
    with embedlog.open(directory, read_only=True) as log:
        return Counter(
            (topic, record.key, record.value)
            for topic in PARTITIONS
            for record in log.scan(topic, isolation_level="read_committed").records()
        )


def half_a_batch(directory: Path, overwrite: bool) -> list[str]:
    """A reader starts before any repair: it sees batch 0, and batch 1 after it or instead of it."""
    found = seen(directory)
    wrong = []
    for name, count in PARTITIONS.items():
        for number in range(count):
            batches = [_part(rows, name, number) for rows in (found, wanted(0), wanted(1))]
            here, old, new = batches
            if here not in (old, old + new) and not (overwrite and here == new):
                wrong.append(f"{name}-{number}: a reader gets {here - old} and not {old - here}")
    return wrong


def _part(rows: Rows, topic: str, number: int) -> Rows:
    return Counter(
        {
            row: count
            for row, count in rows.items()
            if row[0] == topic and partition_of(row[1] or b"", PARTITIONS[topic]) == number
        }
    )


def repeated(nursery: Nursery, directory: Path, overwrite: bool) -> list[str]:
    """The driver that continues: batch 1 once more, and batch 2."""
    wrong = []
    victim = nursery.spawn()
    for batch, due in (
        (1, wanted(1) if overwrite else wanted(0, 1)),
        (2, wanted(2) if overwrite else wanted(0, 1, 2)),
    ):
        try:
            raised, _, _ = victim.call("land_batch", str(directory), batch, None, overwrite)
        except RemoteError as problem:
            raised = str(problem)
        found = seen(directory)
        if raised or found != due:
            wrong.append(
                f"batch {batch} repeated ({raised or 'well'}): {found - due} too much, "
                f"{due - found} too little"
            )
    nursery.end(victim)
    left = [name for _, _, names in os.walk(f"{directory}.staging") for name in names]
    return [*wrong, *(f"{name} stays staged" for name in left)]


def nested_point(rng: random.Random, counts: dict[str, int]) -> Point:
    return rng.choice(points(counts))
