"""Rounds of the state machine: each is some examples with one seed, in fresh directories."""

from __future__ import annotations

from collections import Counter

import hypothesis
from hypothesis import HealthCheck, Phase
from hypothesis.stateful import run_state_machine_as_test

from tests.faults.harness.processes import Nursery
from tests.machine.machine import LogMachine

STEPS_OF_EXAMPLE = 60


def run_round(
    seed: int,
    directories: int,
    examples: int,
    *,
    nursery: Nursery | None = None,
    steps: int = STEPS_OF_EXAMPLE,
    shrink: bool = True,
) -> Counter[str]:
    """Run so many examples; returns counts of steps and calls. A violation is raised by Hypothesis, with its shrunk program."""
    if nursery is None:
        with Nursery() as own:
            return run_round(seed, directories, examples, nursery=own, steps=steps, shrink=shrink)
    counts: Counter[str] = Counter()
    own_nursery = nursery

    @hypothesis.seed(seed)
    class Round(LogMachine):
        nursery = own_nursery
        directory_count = directories

    Round.counts = counts
    settings = hypothesis.settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        print_blob=False,
        phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    print(f"round with seed {seed}, {directories} directories, {examples} examples of {steps} steps", flush=True)
    run_state_machine_as_test(Round, settings=settings)
    return counts
