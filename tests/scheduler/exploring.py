"""Many schedules of a scenario: random ones, all with few preemptions, and the report of one that
breaks a promise.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Sequence

from tests.scheduler.controller import Controller, Run
from tests.scheduler.gate import Step
from tests.scheduler.schedules import (
    Choice,
    Listed,
    Schedule,
    Turn,
    as_text,
    chosen_at_random,
    shrunk,
    with_preemptions,
)
from tests.support.campaign_report import add_counts

CHANGES = frozenset(
    {"pwrite", "ftruncate", "rename", "unlink", "link", "mkdir", "lock", "page changed", "point"}
)
UNLOCK = 2  # F_UNLCK, the size of a step that releases a lock
SHRINKING = 40  # runs


class Broken(AssertionError):
    """A schedule breaks a promise. The text has what repeats it."""


def random_choices(
    seed: int, count: int, lengths: Sequence[int], first: int = 0
) -> Iterator[tuple[int, Choice]]:
    """Choices by this seed, each with the seed of its run."""
    for number in range(first, first + count):
        rng = random.Random(f"{seed} {number}")
        yield seed ^ number, chosen_at_random(rng, len(lengths), lengths)


def listed(schedules: Iterable[Schedule]) -> Iterator[tuple[int, Choice]]:
    return ((1, Listed(schedule)) for schedule in schedules)


def lengths_of(controller: Controller) -> list[int]:
    """The steps of each process without a preemption, which breaks no promise."""
    run = controller.run(Listed(()))
    assert not run.violations, str(run)
    assert not run.told.errors, str(run)
    return run.steps


def first_broken(
    controller: Controller, choices: Iterable[tuple[int, Choice]]
) -> tuple[int, Run] | None:
    """The first run that breaks a promise, with its seed; None if none does."""
    for seed, choice in choices:
        run = controller.run(choice, seed=seed)
        if run.violations:
            return seed, run
    return None


def explore(controller: Controller, choices: Iterable[tuple[int, Choice]]) -> None:
    """Run them all. Raises Broken, with the smallest schedule that was found."""
    found = first_broken(controller, choices)
    report(controller)
    if found is not None:
        raise Broken(described(controller, *found))


def find(controller: Controller, choices: Iterable[tuple[int, Choice]]) -> tuple[int, Run]:
    """The first run that breaks a promise, as one must: some rule is off."""
    found = first_broken(controller, choices)
    runs = controller.run_count
    assert found is not None, f"{controller.mutants}: {runs} schedules show nothing"
    add_counts("scheduler: mutants", killed=1, schedules=runs)
    print(f"{controller.mutants} found in run {runs}, seed {found[0]}\n{found[1]}")
    return found


def smallest(controller: Controller, seed: int, run: Run) -> Schedule:
    """The part of its schedule that breaks a promise, too."""
    return shrunk(
        run.schedule,
        lambda part: bool(controller.run(Listed(part), seed=seed).violations),
        SHRINKING,
    )


def described(controller: Controller, seed: int, run: Run) -> str:
    """A broken promise, with the schedule that repeats it and the steps at which processes
    change.
    """
    schedule = smallest(controller, seed, run)
    again = controller.run(Listed(schedule), seed=seed, traced=True)
    shown = again if again.violations else run
    lines = [
        f"{controller.scenario.name}, {len(run.steps)} processes, seed {seed}",
        f"repeat it by: python -m tests.scheduler {type(controller.scenario).__name__} "
        f"{len(run.steps)} --seed {seed}"
        f' --schedule "{as_text(schedule)}"',
        *switches(again.trace),
        str(shown),
    ]
    return "\n".join(lines)


def switches(trace: Sequence[Step]) -> Iterator[str]:
    """The last and the next step around each change of the process."""
    for before, after in itertools.pairwise(trace):
        if before.process != after.process:
            yield f"  {_told(before)} | then {_told(after)}"


def _told(step: Step) -> str:
    return f"process {step.process}, step {step.number}: {step.kind} {step.name[-60:]}"


def report(controller: Controller) -> None:
    """Add the runs to the counts of the experiment."""
    name = f"scheduler: {controller.scenario.name}"
    per_s = round(controller.step_count / max(controller.turn_seconds, 1e-9))
    print(f"{name}: {per_s} steps per second")
    add_counts(name, schedules=controller.run_count, steps=controller.step_count)


# ---- systematic exploration --------------------------------------------------------------------------------------


def points(controller: Controller, process: int, *, fine: bool, within: str = "") -> list[int]:
    """Numbers of steps after which a preemption of a process that runs first makes a difference for
    others.

    Those before each change of files or shared words, if `fine`, or those after each release of a
    lock. `within`: a part of the path of what is changed or released.
    """
    run = controller.run(Listed([Turn(process)]), traced=True)
    own = [step for step in run.trace if step.process == process and within in step.name]
    if fine:
        return [step.number - 1 for step in own if step.kind in CHANGES and step.number > 1]
    return [step.number for step in own if step.kind == "lock" and step.size == UNLOCK]


def preempted(
    controller: Controller,
    count: int,
    *,
    fine: bool = True,
    kill: bool = False,
    within: str = "",
    first: Sequence[int] = (0, 1),
) -> Iterator[Schedule]:
    """All schedules of two processes with so many preemptions at the `points`.

    `first`: the processes that may be the first one to be preempted.
    """
    needed = (0, 1) if count > 1 else first
    chosen = [
        points(controller, process, fine=fine, within=within) if process in needed else []
        for process in (0, 1)
    ]
    return (
        schedule
        for schedule in with_preemptions(2, chosen, count, kill=kill)
        if schedule[0].process in first
    )
