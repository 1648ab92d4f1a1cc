"""The use of a log with every kind of call: create, append, roll, sync, delete, alter, housekeep,
close, open.

It runs inside a victim. Each acknowledgement is a note at once, so that after a crash at any call
the parent has exactly the acknowledged records. Steps are numbered: under injected errors a failed
one is repeated.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from embedlog import EmbedlogError, InvalidPartitionsError, TopicExistsError
from tests.faults.harness import tasks
from tests.faults.harness.content import Mark, check, value_of
from tests.faults.harness.tasks import TOPIC, Stage, task

CONFIG = {
    "segment.bytes": 2_500,
    "index.interval.bytes": 500,
    "retention.bytes": 1_000_000,
    "file.delete.delay.ms": 0,
    "flush.ms": 50,
}
Step = Callable[[], Any]


class Script:
    """One run; `marks` counts its records, `acks` has the acknowledged ones."""

    def __init__(self, stage: Stage, path: str, seed: int, housekeeping: bool = True) -> None:
        self.stage = stage
        self.path = path
        self.rng = random.Random(seed)
        self.config = {"housekeeping": housekeeping}
        self.number = 0
        self.acks: dict[tuple[int, int], Mark] = {}
        self.tried: set[object] = set()

    def steps(self) -> Iterator[tuple[str, Step]]:
        stage = self.stage
        yield "open", self.open
        yield "create", self.create
        for turn in range(8):
            yield f"append {turn}", lambda turn=turn: self.append(turn % 2)
        yield "flush", lambda: self.flush(2)
        yield "delete", lambda: self.delete(0, 9)
        yield "partitions", self.more_partitions
        yield (
            "alter",
            lambda: tasks.on_log(stage, "alter_topic", TOPIC, {"index.interval.bytes": "400"}),
        )
        for turn in range(4):
            yield f"append more {turn}", lambda turn=turn: self.append(turn % 3)
        yield "housekeep", lambda: tasks.on_log(stage, "housekeep")
        yield "flush more", lambda: self.flush(3)
        yield "close", lambda: tasks.close(stage)
        yield "open again", self.open
        yield "append last", lambda: self.append(1)
        yield "read", self.read
        yield "close again", lambda: tasks.close(stage)

    def open(self) -> None:
        tasks.open_(self.stage, self.path, config=self.config)

    def create(self) -> None:
        there = TOPIC in self.stage.opened.topics()
        self.twice(
            there, lambda: tasks.create_topic(self.stage, TOPIC, 2, CONFIG), TopicExistsError
        )

    def more_partitions(self) -> None:
        there = len(self.stage.opened.describe_topic(TOPIC).partitions) == 3
        self.twice(
            there, lambda: self.stage.opened.create_partitions(TOPIC, 3), InvalidPartitionsError
        )

    def twice(self, there: bool, make: Step, refusal: type[EmbedlogError]) -> None:
        """A failed try may have made it late, or the next try may complete it and then raise an
        error.
        """
        again = refusal in self.tried
        self.tried = self.tried | {refusal}
        if not there:
            try:
                make()
            except refusal:
                if not again:
                    raise

    def append(self, partition: int) -> None:
        marks = [Mark(1, self.number + at) for at in range(self.rng.randint(1, 4))]
        self.number += len(marks)
        values = [value_of(*mark, self.rng.randint(100, 900)) for mark in marks]
        offsets = tasks.append(self.stage, values, partition)
        made = {(partition, offset): mark for offset, mark in zip(offsets, marks, strict=True)}
        self.acks |= made
        self.stage.note(("acked", made))

    def flush(self, partitions: int) -> None:
        tasks.flush(self.stage)
        self.stage.note(("durable", {n: tasks.durable(self.stage, n) for n in range(partitions)}))

    def delete(self, partition: int, offset: int) -> None:
        end = tasks.ends(self.stage)[partition][1]
        self.stage.note(("may delete", partition, min(offset, end)))
        tasks.delete_records(self.stage, min(offset, end), partition)

    def read(self) -> None:
        """The records that a running process reads agree with its own acknowledgements."""
        starts = {n: first for n, (first, _) in tasks.ends(self.stage).items()}
        rows = tasks.read(self.stage)
        acks = {here: mark for here, mark in self.acks.items() if here[1] >= starts.get(here[0], 0)}
        self.stage.note(("read", check(rows, acks)))


@task
def script(stage: Stage, path: str, seed: int, housekeeping: bool = True) -> None:
    """Run it through; the first error ends it."""
    for name, step in Script(stage, path, seed, housekeeping).steps():
        stage.note(("step", name))
        step()


@task
def stubborn_script(
    stage: Stage, path: str, seed: int, kinds: tuple[str, ...], nth: int, error: int, sticky: bool
) -> None:
    """Run it with a fault armed; a step that fails must fail by a typed error, leave the log
    readable, and work again then.
    """
    from embedlog._native import system

    stage.patience = {"retries": 0}  # a failure must be visible, not repaired by a retry
    run = Script(stage, path, seed)
    system.fault_arm(kinds, nth, "fail", error, sticky=sticky)
    for name, step in run.steps():
        try:
            step()
            continue
        except EmbedlogError as problem:
            stage.note(("failed", name, type(problem).__name__, str(problem)))
        system.fault_off()
        if name.startswith("close"):
            continue  # closed in spite of the error: the error was raised, as it must be
        if stage.log is not None and TOPIC in stage.log.topics():
            run.read()
        step()
    system.fault_off()


def names_of(path: Path) -> list[str]:
    """Every file below a log directory, for messages."""
    return sorted(str(found.relative_to(path)) for found in path.rglob("*"))
