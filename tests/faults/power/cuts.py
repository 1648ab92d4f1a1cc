"""The power-loss experiment: record the script once, then open many of the disks that a power loss
may leave.

Invariant: records of a completed flush are present and unchanged; all present records are a prefix
of the written ones. A record at the offset of an older acknowledged one has a larger epoch. The log
opens and accepts appends.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.harness.content import Mark, Row, Verdict, mark_of, value_of
from tests.faults.harness.processes import Died, Nursery, RemoteError, Victim
from tests.faults.harness.tasks import TOPIC
from tests.faults.power.powerloss import Change, changes, disks


@dataclass
class Known:
    """The promises up to the power loss."""

    acks: dict[tuple[int, int], Mark] = field(default_factory=dict)
    durable: dict[int, int] = field(default_factory=dict)
    deletable: dict[int, int] = field(default_factory=dict)

    def take(self, change: Change) -> None:
        match json.loads(change.data):
            case ["acked", rows]:
                self.acks |= {
                    (partition, offset): Mark(writer, number)
                    for partition, offset, writer, number in rows
                }
            case ["durable", ends]:
                self.durable |= {int(partition): end for partition, end in ends.items()}
            case ["may delete", partition, offset]:
                self.deletable[partition] = offset


def record(
    nursery: Nursery, directory: Path, seed: int, mutants: Sequence[str] = ()
) -> list[Change]:
    path = directory.with_name(f"{directory.name}.recording")
    victim = nursery.spawn()
    victim.mutate(mutants)
    victim.call("recorded_script", str(directory), seed, str(path))
    nursery.end(victim)
    return list(changes(path))


def experiment(
    nursery: Nursery, workspace: Path, seed: int, states: int, mutants: Sequence[str] = ()
) -> tuple[Verdict, int]:
    """Open `states` disks, cut at moments drawn by the seed; stops at the first tenth violation."""
    rng = random.Random(seed)
    root = workspace / "recorded"
    found = record(nursery, root, seed, mutants)
    moments = sorted(rng.randrange(len(found)) for _ in range(states))
    known = Known()
    verdict = Verdict()
    opened = 0
    for where, target in disks(found, root, workspace, moments, rng, known.take):
        one = judge(nursery, target, known, mutants)
        one.violations = [f"{where}: {violation}" for violation in one.violations]
        verdict.add(one)
        opened += 1
        if not one.violations:
            shutil.rmtree(target)
        if len(verdict.violations) >= 10:
            break
    return verdict, opened


def judge(nursery: Nursery, directory: Path, known: Known, mutants: Sequence[str]) -> Verdict:
    verdict = Verdict(acked=len(known.acks))
    reader = nursery.spawn()
    try:
        reader.mutate(mutants)
        reader.call("open", str(directory))
        topics = reader.call("on_log", "topics")
        if TOPIC not in topics:
            if any(known.durable.values()):
                verdict.violations.append(
                    "the topic is gone with records that a flush had promised"
                )
            return verdict
        rows = reader.call("read")
        ends = reader.call("ends")
        for partition in ends:
            for violation in partition_after(partition, rows[partition], ends[partition], known):
                verdict.violations.append(violation)
            verdict.read += len(rows[partition])
            epoch_rises(verdict, reader, partition, rows[partition], ends[partition], known)
        reader.call("close")
    except (RemoteError, Died) as problem:
        trace = problem.trace if isinstance(problem, RemoteError) else ""
        verdict.violations.append(f"the log does not open or accept appends: {problem}\n{trace}")
    finally:
        nursery.end(reader)
    return verdict


def partition_after(
    partition: int, rows: list[Row], bounds: tuple[int, int], known: Known
) -> list[str]:
    """What is wrong with one partition after the power loss."""
    start, end = bounds
    bad = []
    promised = known.durable.get(partition, 0)
    if end < promised:
        bad.append(f"partition {partition} ends at {end}; {promised} was durable")
    if start > known.deletable.get(partition, 0):
        bad.append(f"partition {partition} begins at {start}, more than was deleted")
    if [row.offset for row in rows] != list(range(start, end)):
        bad.append(
            f"partition {partition}: offsets do not fill [{start}, {end}): "
            f"{[row.offset for row in rows]}"
        )
    for row in rows:
        acked = known.acks.get((partition, row.offset))
        if mark_of(row.value) is None or (acked is not None and mark_of(row.value) != acked):
            bad.append(
                f"partition {partition}: offset {row.offset} holds {row.value[:30]!r}, "
                f"acknowledged was {acked}"
            )
    return bad


def epoch_rises(
    verdict: Verdict,
    reader: Victim,
    partition: int,
    rows: list[Row],
    bounds: tuple[int, int],
    known: Known,
) -> None:
    """Records written over a lost tail that was acknowledged have a larger epoch than all
    before.
    """
    (offset,) = reader.call("append", [value_of(7, partition, 150)], partition)
    if offset != bounds[1]:
        verdict.violations.append(
            f"partition {partition}: appended at {offset}, the end was {bounds[1]}"
        )
    row = reader.call("read", TOPIC, partition)[partition][-1]
    before = max((row.epoch for row in rows), default=0)
    if (partition, offset) in known.acks and row.epoch <= before:
        was = known.acks[partition, offset]
        verdict.violations.append(
            f"partition {partition}: offset {offset}: {was}, then another one in epoch {row.epoch}"
        )
