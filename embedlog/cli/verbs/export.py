"""Contains the verb `export`: topics as parquet, Delta tables, Arrow IPC, JSON lines or CSV files.

EXPORT-1  a second run continues after the first, also after a kill: no record is lost or exported
    twice
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import click

from embedlog import Log, Scan, Split
from embedlog.cli.arguments import topic_names
from embedlog.cli.invocation import current, open_log, verb
from embedlog.cli.output import document, size_of, table
from embedlog.cli.progress import progress
from embedlog.cli.ranges import Range, range_of, range_options, topics_of
from embedlog.cli.terminal import tell
from embedlog.cli.transfer import delta_log
from embedlog.cli.transfer.export_directory import ExportDirectory, Settings
from embedlog.cli.transfer.writers import COMPRESSIONS, WRITERS, check_installed

FILE_MIB = 256


@verb()
@click.argument("destination", type=click.Path(file_okay=False, path_type=Path))
@click.argument("topics", nargs=-1, shell_complete=topic_names)
@range_options("read_committed")
@click.option(
    "--format",
    "layout",
    type=click.Choice([*WRITERS]),
    default="parquet",
    help="parquet if not given.",
)
@click.option(
    "--compression", help="zstd (if not given), none, lz4, and for parquet snappy, gzip, brotli."
)
@click.option(
    "--file-size",
    "file_mib",
    type=click.IntRange(min=1),
    default=FILE_MIB,
    help="MiB of the log for each file; 256.",
)
def export(destination: Path, **options: Any) -> int:
    """Write the records of TOPICS (all if none is given) to files in DESTINATION, and continue an
    earlier export to it.

    A file is DESTINATION/TOPIC/PARTITION-START-END.FORMAT, with the offsets from START up to END.
    With --format delta DESTINATION/TOPIC is a table of Delta Lake, to which each export adds. JSON:
    a list of {"file", "topic", "partition", "start_offset", "end_offset", "records", "bytes"}, one
    for each new file.
    """
    layout: str = options["layout"]
    allowed = COMPRESSIONS.get(layout, ("none",))
    compression = options["compression"] or allowed[0]
    if compression not in allowed:
        raise click.UsageError(
            f"--compression: expected {' or '.join(allowed)} for {layout}, found {compression!r}"
        )
    check_installed(layout)
    span = range_of(options)
    settings = Settings(layout, span.isolation_level, span.start_ms, span.end_ms)
    with open_log() as log:
        topics = topics_of(log, options)
        with ExportDirectory(destination, settings) as directory:
            parts = _parts(log, directory, topics, span, options["file_mib"] << 20)
            rows = _export(
                directory, parts, lambda scan, file: WRITERS[layout](scan, file, compression)
            )
            for topic in topics if layout == "delta" else ():
                delta_log.commit(destination, topic)
    if current().json:
        document(rows)
    elif rows:
        table(
            ["file", "records", "size"],
            [[row["file"], row["records"], size_of(row["bytes"])] for row in rows],
        )
    return 0


class Part(NamedTuple):
    """A range of a partition that no file contains, in pieces for one file each."""

    scan: Scan
    start: int
    pieces: list[Split]


def _parts(
    log: Log, directory: ExportDirectory, topics: list[str], span: Range, file_bytes: int
) -> list[Part]:
    """What is to be exported; the bounds are fixed now."""
    found = []
    for topic in topics:
        directory.add_topic(log.describe_topic(topic))
        scan = replace(span, start_ms=None, end_ms=None).scan(log, topic)
        for number, (first, last) in scan.bounds.items():
            exported = directory.end(topic, number)
            if exported is not None and exported < first and span.start_offset is None:
                lost = f"offsets {exported} to {first - 1} were deleted before their export"
                tell(f"embedlog: {topic}-{number}: {lost}")
            for start, end in directory.missing(topic, number, first, last):
                part = scan.narrowed(partitions=number, start_offset=start, end_offset=end)
                timed = part.narrowed(start_time=span.start_ms, end_time=span.end_ms)
                found.append(Part(timed, start, part.splits(file_bytes)))
    return found


def _export(
    directory: ExportDirectory, parts: list[Part], write: Callable[[Scan, BinaryIO], int]
) -> list[dict[str, Any]]:
    """Write the files; returns their descriptions."""
    made: list[dict[str, Any]] = []
    done = 0
    total = sum(piece.size_bytes for part in parts for piece in part.pieces)
    with progress() as advance:
        for scan, start, pieces in parts:
            for piece in pieces:
                here = scan.narrowed(start_offset=piece.start_offset, end_offset=piece.end_offset)
                stored = directory.store(
                    scan.topic, piece.partition, start, piece.end_offset, partial(write, here)
                )
                if stored is not None:  # otherwise the next file contains this range
                    made.append(
                        {
                            "file": str(stored.path),
                            "topic": scan.topic,
                            "partition": piece.partition,
                            "start_offset": start,
                            "end_offset": piece.end_offset,
                            "records": stored.records,
                            "bytes": stored.path.stat().st_size,
                        }
                    )
                    start = piece.end_offset
                done += piece.size_bytes
                advance(done, total)
    return made
