"""The command line of the race: `python -m benchmarks.race`; the package's own text has the
rules.
"""

from __future__ import annotations

import argparse
import dataclasses
import signal
import sys
from pathlib import Path
from typing import Any

from ..measure import workspace
from . import pages, sizes, spark
from .peers import PEERS
from .race import conditions, run
from .workloads import GROUPS, SCALES

OTHERS = ("spark", "cost")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.race", description=__doc__)
    parser.add_argument(
        "--only",
        action="append",
        choices=[*GROUPS, *OTHERS],
        help="one group of workloads (repeat for more)",
    )
    parser.add_argument(
        "--peer",
        action="append",
        choices=list(PEERS),
        help="one peer besides embedlog (repeat for more)",
    )
    parser.add_argument("--match", default="", help="only workloads with this text in their key")
    parser.add_argument(
        "--scale", choices=list(SCALES), default="default", help="full: up to 10 GB, hours"
    )
    parser.add_argument(
        "--rounds", type=int, help="rounds of each workload (default: those of the scale)"
    )
    parser.add_argument(
        "--every-kind",
        action="store_true",
        help="all record sizes with both kinds of values and both codecs, as full has them",
    )
    parser.add_argument("--directory", help="where to work (default: the temporary directory)")
    parser.add_argument("--json", type=Path, help="write the results here")
    parser.add_argument(
        "--keep",
        action="store_true",
        help=f"replace these parts of the results of {pages.PAGE.name}, and write it",
    )
    parser.add_argument(
        "--pages",
        action="store_true",
        help="only write the page and its plots from the kept results",
    )
    return parser.parse_args()


def say(text: str) -> None:
    print(text, flush=True)


def main() -> int:
    chosen = arguments()
    # so that the broker is stopped and the files are removed
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if chosen.pages:
        return pages.main()
    names = ["embedlog", *(name for name in chosen.peer or PEERS if name != "embedlog")]
    for name in names:
        if missing := PEERS[name].missing():
            say(f"{name}: not installed ({missing}): {PEERS[name].INSTALL}")
    groups = chosen.only or [*GROUPS, *OTHERS]
    scale = SCALES[chosen.scale]
    every_kind = scale.every_kind or chosen.every_kind
    scale = dataclasses.replace(scale, rounds=chosen.rounds or scale.rounds, every_kind=every_kind)
    results: dict[str, Any] = {}

    def save(found: dict[str, Any]) -> None:
        if chosen.json:
            chosen.json.write_text(pages.as_text(pages.rounded(found)))

    with workspace(chosen.directory) as directory:
        if any(name in GROUPS for name in groups):
            results = run(scale, directory, groups, names, chosen.match, say, save)
        if "cost" in groups:
            with conditions(directory) as found:
                dimensions = sizes.run(scale.name, directory, scale.rounds, say)
            results["sizes"] = {"conditions": found, "dimensions": dimensions}
        if "spark" in groups:
            with conditions(directory) as found:
                compared = spark.run(scale.name, directory)
            results["spark"] = {"conditions": found} | compared
    save(results)
    if chosen.keep:
        pages.keep(pages.rounded(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
