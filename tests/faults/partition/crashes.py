"""E2 and E10: the script of `tests.faults.harness.script`, with a crash or an error at a chosen
call of it.

E2: the process dies at every call (before, after, or in the middle of a write), and the recovery,
too. Invariant: the next process opens the log, has every acknowledged record, and appends. E10
invariant: a failed call is a typed error, and no unacknowledged record counts. The log is readable
at once, and the same step works afterwards without reopening.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from embedlog._native.calls import CALLS
from tests.faults.harness.content import Mark, Verdict, check, value_of
from tests.faults.harness.processes import Died, Nursery, RemoteError, Victim
from tests.faults.harness.tasks import TOPIC

KINDS: tuple[str, ...] = CALLS
FAILING = tuple(kind for kind in KINDS if kind != "point")
MODES = ("kill_before", "kill_after", "torn_kill")
ERRORS = (
    errno.ENOSPC,
    errno.EIO,
    errno.EMFILE,
    errno.EDQUOT,
    errno.ENOMEM,
    errno.EACCES,
    errno.EINTR,
)


class Point(NamedTuple):
    """A call and its fault."""

    nth: int
    mode: str
    kinds: tuple[str, ...] = KINDS


@dataclass
class Promises:
    """The notes of a victim until its end."""

    acks: dict[tuple[int, int], Mark] = field(default_factory=dict)
    deletable: dict[int, int] = field(default_factory=dict)
    durable: dict[int, int] = field(default_factory=dict)
    steps: list[str] = field(default_factory=list)
    failures: list[tuple[str, str, str]] = field(default_factory=list)
    verdict: Verdict = field(default_factory=Verdict)

    def take(self, note: tuple) -> None:  # type: ignore[type-arg]
        match note:
            case ("acked", made):
                self.acks |= made
            case ("durable", ends):
                self.durable |= ends
            case ("may delete", partition, offset):
                self.deletable[partition] = offset
            case ("step", name):
                self.steps.append(name)
            case ("failed", *what):
                self.failures.append(tuple(what))
            case ("read", verdict):
                self.verdict.add(verdict)


def count_calls(nursery: Nursery, directory: Path, seed: int) -> dict[str, int]:
    """How many calls of each kind the script makes without a fault."""
    return count_calls_of(nursery, directory, "script", seed)


def count_calls_of(
    nursery: Nursery, directory: Path, task: str, *arguments: object
) -> dict[str, int]:
    """How many calls of each kind a task makes without a fault in a directory that is removed
    afterwards.
    """
    victim = nursery.spawn()
    victim.call("counters", True)
    victim.start(task, str(directory), *arguments)
    for _ in victim.notes():
        pass
    counts: dict[str, int] = victim.call("counters")
    nursery.end(victim)
    shutil.rmtree(directory)
    return counts


def crash_at(
    nursery: Nursery,
    directory: Path,
    seed: int,
    point: Point,
    *,
    nested: Point | None = None,
    mutants: Sequence[str] = (),
) -> tuple[Verdict, bool]:
    """One run that dies at `point` (and whose recovery dies at `nested`); the verdict, and whether
    the fault struck.
    """
    promises = Promises()
    victim = nursery.spawn()
    victim.mutate(mutants)
    victim.arm(point.kinds, point.mode, nth=point.nth)
    struck = run_through(victim, "script", promises, str(directory), seed)
    nursery.end(victim)
    if nested is not None:
        second = nursery.spawn()
        second.mutate(mutants)
        second.arm(nested.kinds, nested.mode, nth=nested.nth)
        try:
            second.call("read_directory", str(directory))
        except (Died, RemoteError) as end:
            if isinstance(end, RemoteError) and end.kind != "UnknownTopicOrPartitionError":
                promises.verdict.violations.append(
                    f"{point}, {nested}: the second open failed: {end}\n{end.trace}"
                )
        nursery.end(second)
    verdict = aftermath(nursery, directory, promises, mutants)
    verdict.add(promises.verdict)
    verdict.violations = [
        f"{point} nested {nested} in {promises.steps[-1:]}: {found}" for found in verdict.violations
    ]
    return verdict, struck


def run_through(victim: Victim, task: str, promises: Promises, *arguments: object) -> bool:
    """Let the task run and take its notes; True if the process died on the way."""
    victim.start(task, *arguments)
    try:
        for note in victim.notes():
            promises.take(note)
    except RemoteError as problem:
        promises.verdict.violations.append(f"unexpected {problem}\n{problem.trace}")
        return False
    if victim.ended:
        return False
    victim.wait_dead()
    return True


def aftermath(
    nursery: Nursery,
    directory: Path,
    promises: Promises,
    mutants: Sequence[str] = (),
    turns: int = 2,
) -> Verdict:
    """The next process opens, reads, appends to every partition and closes; after a crash one more
    reads everything again.
    """
    verdict = Verdict()
    for turn in range(turns):
        reader = nursery.spawn()
        reader.mutate(mutants)
        try:
            reader.call("open", str(directory))
            if TOPIC not in reader.call("on_log", "topics"):
                if promises.acks:
                    verdict.violations.append(
                        f"the topic is gone with {len(promises.acks)} acknowledged records"
                    )
                return verdict
            verdict.add(state_of_things(reader, promises))
            ends = reader.call("ends")
            for partition, (_, end) in ends.items():
                mark = Mark(9, turn * 100 + partition)
                offsets = reader.call("append", [value_of(*mark, 200)], partition)
                promises.acks[partition, offsets[0]] = mark
                if offsets != [end]:
                    verdict.violations.append(
                        f"partition {partition}: appended at {offsets}, the end was {end}"
                    )
            reader.call("close")
        except (RemoteError, Died) as problem:
            trace = problem.trace if isinstance(problem, RemoteError) else ""
            verdict.violations.append(f"the log is not usable afterwards: {problem}\n{trace}")
            return verdict
        finally:
            nursery.end(reader)
    return verdict


def state_of_things(reader: Victim, promises: Promises) -> Verdict:
    rows = reader.call("read")
    ends = reader.call("ends")
    verdict = Verdict()
    for partition, (start, end) in ends.items():
        if start > promises.deletable.get(partition, 0):
            verdict.violations.append(
                f"partition {partition} begins at {start}; only {promises.deletable} were deleted"
            )
        if end < promises.durable.get(partition, 0):
            verdict.violations.append(
                f"partition {partition} ends at {end}, durable was {promises.durable[partition]}"
            )
        if rows[partition] and (
            rows[partition][0].offset != start or rows[partition][-1].offset != end - 1
        ):
            verdict.violations.append(f"partition {partition}: rows do not fill [{start}, {end})")
        if not rows[partition] and start != end:
            verdict.violations.append(f"partition {partition}: no rows in [{start}, {end})")
    kept = {
        here: mark
        for here, mark in promises.acks.items()
        if here[1] >= ends.get(here[0], (0, 0))[0]
    }
    verdict.add(check(rows, kept))
    return verdict


def fail_at(
    nursery: Nursery,
    directory: Path,
    seed: int,
    nth: int,
    error: int,
    *,
    kinds: tuple[str, ...] = FAILING,
    sticky: bool = False,
    mutants: Sequence[str] = (),
) -> tuple[Verdict, Promises]:
    """One run with an error at the nth call; the process itself continues, then others read."""
    promises = Promises()
    victim = nursery.spawn()
    victim.mutate(mutants)
    if run_through(
        victim, "stubborn_script", promises, str(directory), seed, kinds, nth, error, sticky
    ):
        promises.verdict.violations.append("the process died of an error")
    nursery.end(victim)
    verdict = aftermath(nursery, directory, promises, mutants, turns=1)
    verdict.add(promises.verdict)
    where = (
        f"call {nth} of {kinds} fails with "
        f"{errno.errorcode[error]}{' for good' if sticky else ''} ({promises.failures})"
    )
    verdict.violations = [f"{where}: {found}" for found in verdict.violations]
    return verdict, promises
