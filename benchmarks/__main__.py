"""Run the figures: `python -m benchmarks [--only WORD] [--json FILE]`; exit status 1 if one misses
its target.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from . import (
    columns,
    compaction,
    durable,
    fixtures,
    groups,
    idle,
    loops,
    rebalance,
    replicas,
    rows,
    small,
    spark,
    start,
    transactions,
    waits,
)
from .context import Context
from .measure import Bare, Outcome, report, workspace

FIGURES: dict[str, Callable[[Context], Iterator[Outcome]]] = {
    "append": columns.append,
    "scan": columns.scan,
    "search": columns.search,
    "codecs": columns.codecs,
    "send": rows.send,
    "iterate": rows.iterate,
    "async": loops.twins,
    "idempotence": rows.idempotence,
    "durable": durable.durable,
    "wake": waits.wake,
    "segments": waits.many_segments,
    "partitions": waits.many_partitions,
    "sizes": columns.sizes,
    "point": small.point,
    "acknowledged": small.acknowledged,
    "topics": small.many_topics,
    "few": small.few,
    "transaction": transactions.transaction,
    "commit": groups.commit,
    "groups": groups.many_groups,
    "offsets": groups.bounded,
    "idle": idle.idle_member,
    "compaction": compaction.compaction,
    "start": start.start,
    "engines": spark.engines,
    "spark": spark.spark,
    "rebalance": rebalance.rebalance,
    "replicas": replicas.replicas,
    "test-log": fixtures.ready,
}


def size(text: str) -> int:
    """A number of bytes with a suffix kB, MB or GB (powers of 1024)."""
    for suffix, factor in (("kB", 1 << 10), ("MB", 1 << 20), ("GB", 1 << 30)):
        if text.endswith(suffix):
            return int(float(text.removesuffix(suffix)) * factor)
    return int(text)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--only", action="append", choices=sorted(FIGURES), help="one figure (repeat for more)"
    )
    parser.add_argument(
        "--rounds", type=int, default=7, help="turns of ceiling and subject (default 7)"
    )
    parser.add_argument(
        "--size", type=size, default=size("256MB"), help="bytes appended and scanned per turn"
    )
    parser.add_argument(
        "--large",
        type=size,
        default=size("1GB"),
        help="the large log of 'sizes'; 10GB is the figure's own",
    )
    parser.add_argument("--segments", type=int, default=10_000)
    parser.add_argument("--partitions", type=int, default=1_000)
    parser.add_argument("--samples", type=int, default=2_000, help="wake-ups")
    parser.add_argument("--directory", help="where to work (default: the temporary directory)")
    parser.add_argument("--json", type=Path, help="write the outcomes here as well")
    return parser.parse_args()


def main() -> int:
    chosen = arguments()
    with workspace(chosen.directory) as directory:
        context = Context(
            directory,
            Bare(directory),
            chosen.rounds,
            chosen.size,
            chosen.large,
            segments=chosen.segments,
            partitions=chosen.partitions,
            samples=chosen.samples,
        )
        found = (outcome for name in chosen.only or FIGURES for outcome in FIGURES[name](context))
        return report(found, chosen.json)


if __name__ == "__main__":
    sys.exit(main())
