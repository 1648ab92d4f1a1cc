"""Rounds of the state machine: each is some examples with one seed, in fresh directories."""

from __future__ import annotations

from collections import Counter

import hypothesis
from hypothesis import HealthCheck, Phase
from hypothesis.stateful import run_state_machine_as_test

from tests.faults.harness.processes import Nursery
from tests.machine import shrink
from tests.machine.machine import LogMachine
from tests.machine.model import Violation

STEPS_OF_EXAMPLE = 60
SHRINK_S = 60.0


def machine_of(nursery: Nursery, directories: int) -> type[LogMachine]:
    """A state machine on so many directories, with counts of its own."""
    return type(
        "Round",
        (LogMachine,),
        {"nursery": nursery, "directory_count": directories, "counts": Counter()},
    )


def run_round(
    seed: int,
    directories: int,
    examples: int,
    *,
    nursery: Nursery,
    steps: int = STEPS_OF_EXAMPLE,
    shrink_s: float = SHRINK_S,
) -> Counter[str]:
    """Run so many examples; returns counts of steps and calls. Raises Violation with the seed and
    the shrunk program.
    """
    machine_class = machine_of(nursery, directories)
    settings = hypothesis.settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        print_blob=False,
        phases=(Phase.generate,),  # what shrinks here is `shrink`
        suppress_health_check=list(HealthCheck),
    )
    print(
        f"round with seed {seed}, {directories} directories, {examples} examples of {steps} steps",
        flush=True,
    )
    try:
        run_state_machine_as_test(hypothesis.seed(seed)(machine_class), settings=settings)
    except Exception as problem:
        if machine_class.failure is None:
            raise
        raise explained(machine_class, seed, machine_class.failure, shrink_s) from problem
    return machine_class.counts


def explained(
    machine_class: type[LogMachine], seed: int, problem: BaseException, seconds: float
) -> Violation:
    """The failure with its seed and the shortest program that fails as well."""
    program, again = shrink.shrunk(machine_class, machine_class.failing, seconds)
    what = "fails, too" if again is not None else "failed once, and not again"
    lines = [
        f"{problem}",
        f"seed {seed}, {machine_class.directory_count} directories; this program {what} "
        "(`--program FILE` repeats it):",
        shrink.as_text(program),
        str(again or problem),
    ]
    return Violation("\n".join(lines))
