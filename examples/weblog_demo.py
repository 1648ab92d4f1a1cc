"""Runs weblog.py on the real log with progress, tables and a chart, and checks that every session
was written once.

    python examples/weblog_demo.py                  in a temporary directory
    python examples/weblog_demo.py --keep data      in a directory that is kept

After a part of the lines, the demo removes Spark's record that the last batch is done. A driver
killed between the write of a batch and that record leaves the same state. Spark then writes the
batch again, and embedlog detects the repetition.
"""

from __future__ import annotations

import argparse
import collections
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import weblog
from common import DATA, lines, spark_session, to_the_end
from rich.bar import Bar
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import embedlog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

LINES_AT_ONCE = 2000
FIRST_PART = 0.6  # of the lines
# in the order of weblog.SESSION
Session = tuple[str, str | None, datetime, datetime, int, int, int]


# ---- reference -------------------------------------------------------------------------------------------------------


def by_hand(access: Iterable[bytes]) -> tuple[list[Session], list[bytes]]:
    """Reference: sessions and unparsable lines, computed without Spark and without a topic."""
    seen: dict[str, list[tuple[datetime, int, int]]] = collections.defaultdict(list)
    refused = []
    for line in access:
        if match := re.match(weblog.LINE, line.decode()):
            client, stamp, status, size = match.groups()
            moment = datetime.strptime(stamp, weblog.CLOCK).replace(tzinfo=None)
            seen[client].append((moment, int(status), 0 if size == "-" else int(size)))
        else:
            refused.append(line)
    found = []
    for client, requests in seen.items():
        session: list[tuple[datetime, int, int]] = []
        for request in sorted(requests):
            if session and request[0] - session[-1][0] >= timedelta(minutes=30):
                found.append(summed(client, session))
                session = []
            session.append(request)
        found.append(summed(client, session))
    return found, refused


def summed(client: str, requests: list[tuple[datetime, int, int]]) -> Session:
    moments, statuses, sizes = zip(*requests, strict=True)
    errors = sum(status >= 400 for status in statuses)
    return (
        client,
        weblog.NAMES.get(client),
        moments[0],
        moments[-1],
        len(requests),
        sum(sizes),
        errors,
    )


# ---- the run ---------------------------------------------------------------------------------------------------------


def forget_last_batch(directory: str) -> int:
    """Remove Spark's record that the last batch is done; return its number."""
    notes = Path(f"{directory}-checkpoints/sessions/commits")
    last = max(int(path.name) for path in notes.iterdir() if path.name.isdecimal())
    for path in (notes / str(last), notes / f".{last}.crc"):
        path.unlink(missing_ok=True)
    return last


def written(directory: str, topic: str) -> int:
    """The number of committed records of a topic."""
    with embedlog.open(directory, read_only=True) as log:
        return sum(1 for _ in log.scan(topic, isolation_level="read_committed").records())


def run(spark: SparkSession, directory: str, path: Path, console: Console) -> dict[str, Any]:
    """Run the pipeline in two parts with a failure between them; return the figures."""
    columns = (
        TextColumn("{task.description:<36}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    found = list(lines(path))
    first = round(FIRST_PART * len(found))
    with Progress(*columns, console=console) as bars:

        def through(
            words: str, write: Callable[..., StreamingQuery], *arguments: int, total: int
        ) -> dict[int, Any]:
            """Run a query to its end with a progress bar; return its batch reports by number."""
            task = bars.add_task(words, total=total)
            done: dict[int, Any] = {}

            def watch(query: StreamingQuery) -> None:
                done.update({each["batchId"]: each for each in query.recentProgress})
                bars.update(task, completed=sum(each["numInputRows"] for each in done.values()))

            to_the_end(lambda: write(spark, directory, *arguments), watch)
            return done

        weblog.load(directory, found[:first], closed=False)
        before = through("lines into sessions", weblog.write_sessions, LINES_AT_ONCE, total=first)
        written_before = written(directory, "sessions")
        forgotten = forget_last_batch(directory)
        weblog.load(directory, found, closed=True)
        rest = before[forgotten]["numInputRows"] + len(found) - first + 1  # and the tick
        after = through(
            "the others, and that batch again", weblog.write_sessions, LINES_AT_ONCE, total=rest
        )
        through("lines that cannot be read", weblog.write_refused, total=len(found) + 1)
        through("sessions into the table", weblog.write_table, total=written(directory, "sessions"))
    rows = [tuple(row) for row in spark.read.parquet(weblog.table_of(directory)).collect()]
    states = [
        state for each in (*before.values(), *after.values()) for state in each["stateOperators"]
    ]
    late = sum(state["numRowsDroppedByWatermark"] for state in states)
    twice = forgotten in before and forgotten in after
    return {
        "lines": found,
        "rows": rows,
        "late": late,
        "before": written_before,
        "again": forgotten,
        "twice": twice,
    }


# ---- output ----------------------------------------------------------------------------------------------------------


def clients(rows: list[Session]) -> Table:
    """The clients with the most requests."""
    totals: dict[str, list[int]] = collections.defaultdict(lambda: [0, 0, 0, 0])
    names = {client: name or "" for client, name, *_ in rows}
    for client, _, _, _, *counts in rows:
        totals[client] = [old + new for old, new in zip(totals[client], (1, *counts), strict=True)]
    table = Table("client", "name", title="clients with the most requests")
    for column in ("sessions", "requests", "MB", "errors"):
        table.add_column(column, justify="right")
    for client, (count, requests, size, errors) in sorted(
        totals.items(), key=lambda each: -each[1][1]
    )[:10]:
        table.add_row(
            client, names[client], f"{count:,}", f"{requests:,}", f"{size / 1e6:.1f}", f"{errors:,}"
        )
    return table


def hours(rows: list[Session]) -> Table:
    """Requests by the hour in which their session begins, one bar each."""
    counts = collections.Counter[int]()
    for _, _, start, _, requests, *_ in rows:
        counts[start.hour] += requests
    table = Table(title="when (UTC)", box=None, show_header=False)
    for hour in range(24):
        table.add_row(
            f"{hour:02}:00",
            Bar(max(counts.values()), 0, counts[hour], width=60),
            f"{counts[hour]:,}",
        )
    return table


def proofs(directory: str, told: dict[str, Any]) -> list[tuple[bool, str]]:
    """The guarantees and whether they hold."""
    access = told["lines"]
    rows = told["rows"]
    expected, unreadable = by_hand(access)
    refused = written(directory, "refused")
    count = written(directory, "sessions")
    inside = sum(row[4] for row in rows)
    different = len({(row[0], row[2]) for row in rows})
    return [
        (
            len(access) == inside + refused,
            f"rows in = rows out: {len(access):,} lines = {inside:,} in sessions + {refused:,} "
            f"refused, {told['late']} came late",
        ),
        (
            count == len(rows) == different and told["before"] > 0 and told["twice"],
            f"written once: {count:,} sessions in the topic, {len(rows):,} in the table, "
            f"{different:,} different ones; "
            f"batch {told['again']} was written twice, after {told['before']:,} sessions",
        ),
        (
            sorted(rows, key=str) == sorted(expected, key=str) and refused == len(unreadable),
            "the same sessions as plain Python makes of the same lines",
        ),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description="the pipeline of weblog.py on the real log, with a proof"
    )
    parser.add_argument(
        "--input",
        type=Path,
        default=DATA / "apache_access.log.xz",
        help="another access log, also as .xz",
    )
    parser.add_argument(
        "--keep", metavar="DIRECTORY", help="the log directory, which must be new; it is kept"
    )
    options = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory(prefix="embedlog-weblog-") as scratch:
        directory = options.keep or os.path.join(scratch, "log")
        with console.status("Spark is starting"):
            spark = spark_session("weblog_demo")
        told = run(spark, directory, options.input, console)
        console.print("", clients(told["rows"]), "", hours(told["rows"]), "")
        results = proofs(directory, told)
        spark.stop()
    for holds, words in results:
        console.print(
            f"[green]proved[/]  {words}" if holds else f"[red]NOT SO[/]  {words}",
            soft_wrap=True,
            highlight=False,
        )
    return 0 if all(holds for holds, _ in results) else 1


if __name__ == "__main__":
    sys.exit(main())
