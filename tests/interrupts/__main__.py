"""Runs the interrupts:
`python -m tests.interrupts --verb transaction --piece 0/2 --seconds 600`.
"""

from __future__ import annotations

import argparse
import sys
import time

from tests.interrupts import table
from tests.interrupts.runner import Runner


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.interrupts", description=__doc__)
    parser.add_argument(
        "--verb", action="append", help="only verbs whose names contain this; may be repeated"
    )
    parser.add_argument(
        "--piece",
        default="0/1",
        help="the piece of all points, such as 0/4: each point is in one piece",
    )
    parser.add_argument("--every", type=int, default=1, help="only every so many-th point")
    parser.add_argument("--point", type=int, default=None, help="only this one")
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="no new point after this time"
    )
    given = parser.parse_args(arguments)
    piece, pieces = map(int, given.piece.split("/"))
    until = time.monotonic() + given.seconds
    failed = struck = 0
    runner = Runner()
    for verb in table.VERBS:
        if given.verb and not any(part in verb.name for part in given.verb):
            continue
        began = time.monotonic()

        def chosen(points: int) -> list[int]:
            if given.point is not None:
                return [given.point]
            return list(range(1 + piece, points + 1, pieces))[:: given.every]

        outcome = runner.run(verb, chosen, until)
        print(f"{outcome} in {time.monotonic() - began:.1f} s", flush=True)
        for failure in outcome.failures:
            print(f"    {failure}", flush=True)
        failed += len(outcome.failures)
        struck += outcome.struck
    runner.close()
    print(f"{struck} interrupts, {failed} failures")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
