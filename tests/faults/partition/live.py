"""E12 and E13: files that change under living readers and writers, and readers beside a writer that
rolls and deletes.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

from embedlog import EmbedlogError
from tests.faults.harness import tasks
from tests.faults.harness.content import Mark, mark_of, value_of
from tests.faults.harness.tasks import TOPIC, Stage, task


@task
def try_things(stage: Stage, writer: int, start: int, partitions: int) -> list[str]:
    """Append to, read and query every partition; the failures, by the typed error's name. Other
    exceptions pass.
    """
    failed = []
    for partition in range(partitions):
        for verb, call in (
            (
                "append",
                lambda p=partition: tasks.append(stage, [value_of(writer, start + p, 120)], p),
            ),
            ("read", lambda p=partition: tasks.read(stage, TOPIC, p)),
            ("durable", lambda p=partition: tasks.durable(stage, p)),
            ("flush", lambda: tasks.flush(stage)),
        ):
            try:
                call()
            except EmbedlogError as problem:
                failed.append(f"{verb} {partition}: {type(problem).__name__}")
    return failed


@task
def write_columns(stage: Stage, writer: int, batches: int, count: int, size: int) -> int:
    """Batches of equal values as fast as they go; housekeeping now and then; returns the log
    end.
    """
    end = 0
    for batch in range(batches):
        end = (
            tasks.append(
                stage, [value_of(writer, batch * count + at, size) for at in range(count)]
            )[-1]
            + 1
        )
        if batch % 16 == 15:
            stage.opened.housekeep()
    return end


@task
def follow(stage: Stage, end: int, seed: int) -> dict[str, Any]:
    """Tail until `end`; each value must be whole, each offset follow the last one, but where
    retention was faster.
    """
    rng = random.Random(seed)
    bad: list[str] = []
    read = 0
    jumps = 0
    following = -1
    with stage.opened.consumer(TOPIC, auto_offset_reset="earliest") as consumer:
        last: Mark | None = None
        while following < end:
            for record in consumer.poll(timeout=10.0, max_records=rng.choice((10, 500, 5000))):
                mark = mark_of(record.value)
                if mark is None:
                    bad.append(f"offset {record.offset}: no whole value: {record.value[:40]!r}")
                elif last is not None and (
                    mark.number - last.number != record.offset - following + 1
                ):
                    bad.append(f"offset {record.offset} has {mark} after {last}")
                if following not in (-1, record.offset):
                    jumps += 1
                    if record.offset < following:
                        bad.append(f"offset {record.offset} again: {following} was due")
                following = record.offset + 1
                last = mark
                read = read + 1
    return {"read": read, "jumps": jumps, "bad": bad[:20], "pid": os.getpid()}


def files_of(directory: Path, suffix: str, partition: int = 0) -> list[Path]:
    return sorted((directory / f"{TOPIC}-{partition}").glob(f"*{suffix}"))
