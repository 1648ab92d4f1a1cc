"""Counters in a log: each process appends the number after the last one, at the offset after it,
and is killed at a chosen call.

Invariant: the log has the numbers 1, 2, 3, … each once, and every acknowledged number at its
offset.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import embedlog
from embedlog import OffsetMismatchError
from tests.faults.harness.processes import Nursery, Victim
from tests.faults.harness.tasks import TOPIC, Stage, task

CONFIG = {"segment.bytes": 4_000, "index.interval.bytes": 300, "flush.ms": 3_600_000}
QUIET = {"housekeeping": False}
PLACES = (
    "before-publish",
    "after-publish",
    "before-unlock",
    "roll-intent",
    "roll-created",
    "roll-published",
)
CALLS = ("open", "pread", "pwrite", "ftruncate", "unlink", "rename", "stat", "lock")


@task
def count_on(stage: Stage, path: str, times: int) -> int:
    """Open and increment; a note (offset, number) for each acknowledged increment. Returns the
    number of conflicts.
    """
    conflicts = 0
    stage.log = log = embedlog.open(path, config=QUIET)
    if TOPIC not in log.topics():
        log.create_topic(TOPIC, config=CONFIG, exist_ok=True)
    with log.producer() as producer:
        for _ in range(times):
            while True:
                last = log.last_record(TOPIC, 0)
                number, end = (1, 0) if last is None else (int(last.value) + 1, last.offset + 1)
                try:
                    offset = (
                        producer.send(TOPIC, b"%d" % number, expected_offset=end).result(60).offset
                    )
                    break
                except OffsetMismatchError:
                    conflicts += 1
            stage.note((offset, number))
    log.close()
    return conflicts


def race(nursery: Nursery, directory: Path, writers: int, times: int) -> tuple[list[str], int]:
    """Several processes at once; what is wrong, and the number of conflicts."""
    victims = [nursery.spawn() for _ in range(writers)]
    for victim in victims:
        victim.start("count_on", str(directory), times)
    acknowledged: dict[int, int] = {}
    conflicts = 0
    for victim in victims:
        acknowledged |= dict(victim.notes())
        conflicts += victim.result_after(())
    nursery.end(*victims)
    return list(violations(directory, acknowledged, writers * times)), conflicts


def killed(nursery: Nursery, directory: Path, rng: random.Random, kills: int) -> list[str]:
    """One process after the other is killed while it counts, beside one that goes on."""
    acknowledged: dict[int, int] = {}
    survivor = nursery.spawn()
    survivor.start("count_on", str(directory), 3)
    acknowledged |= dict(survivor.notes())
    for number in range(kills):
        victim = nursery.spawn()
        arm(victim, rng, number)
        victim.start("count_on", str(directory), 40)
        acknowledged |= dict(victim.notes())
        nursery.end(victim)
        survivor.start("count_on", str(directory), 2)
        acknowledged |= dict(survivor.notes())
    nursery.end(survivor)
    return list(violations(directory, acknowledged))


def arm(victim: Victim, rng: random.Random, number: int) -> None:
    """At a place where something is half done, in the middle of a write, or at any call."""
    if number % 3 == 0:
        victim.arm(
            ["point"], "kill_before", nth=rng.randint(1, 20), name=PLACES[number // 3 % len(PLACES)]
        )
    elif number % 3 == 1:
        victim.arm(["pwrite"], "torn_kill", nth=rng.randint(1, 30), name=".log")
    else:
        victim.arm(CALLS, rng.choice(("kill_before", "kill_after")), nth=rng.randint(1, 300))


def violations(
    directory: Path, acknowledged: dict[int, int], count: int | None = None
) -> Iterator[str]:
    with embedlog.open(directory, config=QUIET) as log:
        found = {record.offset: int(record.value) for record in log.scan(TOPIC).records()}
    if [*found.values()] != list(range(1, len(found) + 1)):
        yield f"the numbers are {_around([*found.values()])}"
    if count is not None and len(found) != count:
        yield f"{len(found)} numbers of {count}"
    for offset, number in acknowledged.items():
        if found.get(offset) != number:
            yield f"offset {offset} has {found.get(offset)}, acknowledged {number}"


def _around(numbers: Sequence[int]) -> Sequence[int]:
    first = next((at for at, number in enumerate(numbers) if number != at + 1), len(numbers))
    return numbers[max(0, first - 3) : first + 4]
