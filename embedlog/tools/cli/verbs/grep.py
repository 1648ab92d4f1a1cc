"""Contains the verb `grep`: records whose key, value or headers match a pattern.

- Exit statuses are those of grep: 0 found, 1 none, 2 an error.
- An ASCII expression is applied to bytes; one with other characters is applied to decoded text.
- The order of the output is that of the topics, partitions and offsets, with any number of workers.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Generator, Sequence
from concurrent.futures import BrokenExecutor
from contextlib import closing
from typing import Any

import click

from embedlog import EmbedlogError
from embedlog.tools.cli.arguments import complete_topic_names
from embedlog.tools.cli.invocation import current, directories, open_log, verb
from embedlog.tools.cli.option_words import text_in_options
from embedlog.tools.cli.output import print_document
from embedlog.tools.cli.progress import progress
from embedlog.tools.cli.ranges import Range, range_of, range_options, topics_of
from embedlog.tools.cli.record_format import as_bytes
from embedlog.tools.cli.search_jobs import (
    PIECE_BYTES,
    Query,
    Result,
    SearchPiece,
    core_count,
    search,
    search_in_pool,
    worker_count,
    worker_pool,
)
from embedlog.tools.cli.terminal import tell, tell_traceback

LAYOUT = "%t\\t%p\\t%o\\t%T\\t%k\\t%s\\n"
ERROR = 2


@verb()
@click.argument("pattern")
@click.argument("topics", nargs=-1, shell_complete=complete_topic_names)
@range_options("read_uncommitted")
@click.option("-F", "--fixed-strings", "fixed", is_flag=True, help="PATTERN is literal text.")
@click.option("-i", "--ignore-case", is_flag=True, help="Match letters in any case.")
@click.option("-k", "--keys", is_flag=True, help="Search keys.")
@click.option(
    "-V",
    "--values",
    is_flag=True,
    help="Search values; keys and values are searched without -k, -V and -H.",
)
@click.option("-H", "--headers", is_flag=True, help="Search names and values of headers.")
@click.option(
    "-v", "--invert-match", "invert", is_flag=True, help="Print the records that do not match."
)
@click.option(
    "-c",
    "--count",
    "counts_only",
    is_flag=True,
    help="Print the number of matches of each partition.",
)
@click.option(
    "-m", "--max-count", "limit", type=click.IntRange(min=1), help="Stop after this many matches."
)
@click.option("-q", "--quiet", is_flag=True, help="Print nothing; stop at the first match.")
@click.option(
    "-f",
    "--format",
    "layout",
    metavar="FORMAT",
    help="As in cat; %t, %p, %o, %T, %k, %s with tabs if not given.",
)
@click.option(
    "-j",
    "--jobs",
    type=click.IntRange(min=1),
    help="Processes; as many as processors if not given.",
)
def grep(**options: Any) -> int:
    """Print the records of TOPICS (all if none is given) that match PATTERN, a regular expression
    of Python.

    Output: topic, partition, offset, timestamp, key, value. Exit status: 0 found, 1 none, 2 an
    error. JSON lines: {"topic", "partition", "offset", "tstype", "ts", "headers", "key",
    "payload"}; with -c a list of {"topic", "partition", "count"}.
    """
    try:
        return 0 if _grep(options) else 1
    except BrokenPipeError:
        raise
    except (EmbedlogError, OSError, BrokenExecutor) as error:
        if current().debug:
            tell_traceback()
        tell(f"embedlog: {text_in_options(error)}")
        return ERROR


def _make_pattern(options: dict[str, Any]) -> bytes | re.Pattern[bytes] | re.Pattern[str]:
    pattern: str = options["pattern"]
    ignores_case: bool = options["ignore_case"]
    if options["fixed"] and not ignores_case:
        return as_bytes(pattern)
    if options["fixed"] and pattern.isascii():
        return re.compile(re.escape(as_bytes(pattern)), re.IGNORECASE)
    text = re.escape(pattern) if options["fixed"] else pattern
    flags = re.IGNORECASE if ignores_case else re.NOFLAG
    try:
        if text.isascii():
            return re.compile(text.encode("ascii"), flags)
        return re.compile(text, flags)
    except (re.error, OverflowError, RecursionError) as problem:
        raise click.UsageError(f"PATTERN: not a regular expression: {problem}") from None


def _grep(options: dict[str, Any]) -> int:
    """Print the matches; returns their number."""
    span = range_of(options)
    query = _make_query(span, options)
    limit = 1 if options["quiet"] else options["limit"]
    with open_log() as log:
        scans = [span.scan(log, topic) for topic in topics_of(log, options)]
        pieces = [
            SearchPiece(scan.topic, *split) for scan in scans for split in scan.splits(PIECE_BYTES)
        ]
        counts = {(scan.topic, number): 0 for scan in scans for number in scan.bounds}
        workers = worker_count(pieces, options["jobs"] or core_count())
        if workers == 1:
            _print_lines(search(log, query, pieces, limit), pieces, limit, counts)
    if workers > 1:
        with worker_pool(query, workers) as pool:
            _print_lines(search_in_pool(pool, pieces, limit, workers), pieces, limit, counts)
    if options["counts_only"] and not options["quiet"]:
        _print_counts(counts)
    return sum(counts.values())


def _make_query(span: Range, options: dict[str, Any]) -> Query:
    columns = []
    for column, option in (("key", "keys"), ("value", "values"), ("headers", "headers")):
        if options[option]:
            columns.append(column)
    layout = None
    if not current().json:
        layout = options["layout"] or LAYOUT
    return Query(
        directories=tuple(directories()),
        pattern=_make_pattern(options),
        columns=tuple(columns or ("key", "value")),
        invert=options["invert"],
        start_ms=span.start_ms,
        end_ms=span.end_ms,
        isolation_level=span.isolation_level,
        counts_only=options["counts_only"] or options["quiet"],
        layout=layout,
        null=b"null" if options["layout"] is None else b"",
    )


def _print_lines(
    results: Generator[Result, None, None],
    pieces: Sequence[SearchPiece],
    limit: int | None,
    counts: dict[tuple[str, int], int],
) -> None:
    """Print lines up to the limit, and add their numbers to `counts`."""
    total = 0
    searched_bytes = 0
    size = sum(piece.size_bytes for piece in pieces)
    with progress(lines=True) as advance, closing(results):
        for piece, count, lines in results:
            printed = count if limit is None else min(count, limit - total)
            sys.stdout.buffer.write(b"".join(lines[:printed]))
            sys.stdout.buffer.flush()
            counts[piece.topic, piece.partition] += printed
            total += printed
            searched_bytes += piece.size_bytes
            advance(searched_bytes, size)
            if total == limit:
                return


def _print_counts(counts: dict[tuple[str, int], int]) -> None:
    if current().json:
        print_document(
            [
                {"topic": topic, "partition": number, "count": count}
                for (topic, number), count in counts.items()
            ]
        )
        return
    for (topic, number), count in counts.items():
        click.echo(f"{topic}\t{number}\t{count}")
