"""Runs schedules of one scenario from the shell: random ones, or one that is repeated.

python -m tests.scheduler PutBack 2 --seed 7 --count 100
python -m tests.scheduler PutBack 2 --mutant strangers_continue --schedule "1 x 408, 0 x 3685"
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from tests.scheduler import scenarios
from tests.scheduler.controller import controlling
from tests.scheduler.exploring import explore, lengths_of, random_choices, switches
from tests.scheduler.schedules import Listed, from_text


def main() -> None:
    """Run it, and fail if a promise is broken."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.scheduler", description=__doc__.partition("\n")[0]
    )
    parser.add_argument(
        "scenario", choices=["PutBack", "Appending", "Committing", "Replacing", "Reassigning"]
    )
    parser.add_argument("processes", type=int, nargs="?", default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=50, help="of random schedules")
    parser.add_argument("--mutant", action="append", default=[], help="a rule that is off")
    parser.add_argument("--schedule", help="repeat this one")
    given = parser.parse_args()
    scenario = getattr(scenarios, given.scenario)(given.processes)
    with (
        tempfile.TemporaryDirectory() as root,
        controlling(scenario, Path(root), *given.mutant) as controller,
    ):
        if given.schedule is None:
            explore(controller, random_choices(given.seed, given.count, lengths_of(controller)))
            return
        run = controller.run(Listed(from_text(given.schedule)), seed=given.seed, traced=True)
        print(*switches(run.trace), run, sep="\n")
        raise SystemExit(bool(run.violations))


if __name__ == "__main__":
    main()
