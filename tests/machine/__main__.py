"""Runs the state machine for a number of steps:
`python -m tests.machine --steps 100000 --seed 7 --directories 3`.

The run is cut into rounds, each with a seed of its own, and prints a line after each. `--round`
begins with a later one, so that an interrupted run can be continued, and a failing round can be
repeated alone. `--program` repeats and shrinks a program that a failing round has printed.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

from tests.faults.harness.processes import Nursery
from tests.machine import campaign, shrink
from tests.machine.model import Violation


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.machine", description=__doc__)
    parser.add_argument(
        "--steps", type=int, default=10_000, help="at least so many steps in all rounds"
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=None,
        help="the seed of the whole run; a new one if it is absent",
    )
    parser.add_argument(
        "--directories", type=int, default=1, help="1, or the number of directories of a set"
    )
    parser.add_argument(
        "--round", type=int, default=0, dest="first_round", help="the first round of the run"
    )
    parser.add_argument("--round-examples", type=int, default=20, help="examples of a round")
    parser.add_argument(
        "--seconds", type=float, default=None, help="no new round begins after this time"
    )
    parser.add_argument(
        "--shrink",
        type=float,
        default=campaign.SHRINK_S,
        metavar="SECONDS",
        help="to shrink a failing program",
    )
    parser.add_argument(
        "--program", type=Path, default=None, help="a file with a program, a call a line"
    )
    given = parser.parse_args(arguments)
    with Nursery() as nursery:
        if given.program is not None:
            return repeat(given, nursery)
        return run(given, nursery)


def repeat(given: argparse.Namespace, nursery: Nursery) -> int:
    program = shrink.from_text(given.program.read_text())
    program, problem = shrink.shrunk(
        campaign.machine_of(nursery, given.directories), program, given.shrink
    )
    print(shrink.as_text(program))
    print("no violation" if problem is None else f"{type(problem).__name__}: {problem}")
    return int(problem is not None)


def run(given: argparse.Namespace, nursery: Nursery) -> int:
    seed = given.seed if given.seed is not None else random.SystemRandom().getrandbits(32)
    began = time.monotonic()
    print(f"seed {seed}, {given.directories} directories, {given.steps} steps", flush=True)
    done = 0
    number = given.first_round
    while done < given.steps and (
        given.seconds is None or time.monotonic() - began < given.seconds
    ):
        try:
            counts = campaign.run_round(
                seed + number,
                given.directories,
                given.round_examples,
                nursery=nursery,
                shrink_s=given.shrink,
            )
        except Violation as problem:
            print(f"Violation: {problem}")
            return 1
        done += counts["steps"]
        number += 1
        spent = time.monotonic() - began
        print(
            f"round {number - 1}: {done} steps in {spent:.0f} s ({done / spent:.0f}/s), "
            f"{dict(counts)}",
            flush=True,
        )
    print(
        f"{done} steps without a violation (seed {seed}, rounds {given.first_round} to "
        f"{number - 1})"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
