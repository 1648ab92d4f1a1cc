"""Contains the verb `export`: topics as parquet, Delta tables, Arrow IPC, JSON lines or CSV files.

A second run continues after the first, also after a kill: no record is lost or exported twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import click

from embedlog import Log, Scan, Split
from embedlog.tools.cli.arguments import complete_topic_names
from embedlog.tools.cli.invocation import current, open_log, verb
from embedlog.tools.cli.output import print_document, print_table, size_of
from embedlog.tools.cli.progress import progress
from embedlog.tools.cli.ranges import Range, range_of, range_options, topics_of
from embedlog.tools.cli.terminal import tell
from embedlog.tools.cli.transfer import delta_log
from embedlog.tools.cli.transfer.export_directory import ExportDirectory, ExportSettings
from embedlog.tools.cli.transfer.writers import COMPRESSIONS, WRITERS, check_installed

FILE_MIB = 256


@verb()
@click.argument("destination", type=click.Path(file_okay=False, path_type=Path))
@click.argument("topics", nargs=-1, shell_complete=complete_topic_names)
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
    settings = ExportSettings(layout, span.isolation_level, span.start_ms, span.end_ms)
    with open_log() as log:
        topics = topics_of(log, options)
        with ExportDirectory(destination, settings) as directory:
            parts = _plan_parts(log, directory, topics, span, options["file_mib"] << 20)
            files = _export(
                directory, parts, lambda scan, file: WRITERS[layout](scan, file, compression)
            )
            if layout == "delta":
                for topic in topics:
                    delta_log.commit(destination, topic)
    if current().json:
        print_document(files)
    elif files:
        rows = [[file["file"], file["records"], size_of(file["bytes"])] for file in files]
        print_table(["file", "records", "size"], rows)
    return 0


class ExportPart(NamedTuple):
    """A range of a partition that no file contains, in pieces for one file each."""

    scan: Scan
    start: int
    pieces: list[Split]


def _plan_parts(
    log: Log, directory: ExportDirectory, topics: list[str], span: Range, file_bytes: int
) -> list[ExportPart]:
    """What is to be exported; the bounds are fixed now."""
    parts = []
    for topic in topics:
        directory.add_topic(log.describe_topic(topic))
        scan = replace(span, start_ms=None, end_ms=None).scan(log, topic)
        for number, (first, last) in scan.bounds.items():
            exported = directory.find_end(topic, number)
            if exported is not None and exported < first and span.start_offset is None:
                tell(
                    f"embedlog: {topic}-{number}: offsets {exported} to {first - 1} were deleted "
                    "before their export"
                )
            for start, end in directory.find_missing(topic, number, first, last):
                part = scan.narrowed(partitions=number, start_offset=start, end_offset=end)
                timed = part.narrowed(start_time=span.start_ms, end_time=span.end_ms)
                parts.append(ExportPart(timed, start, part.splits(file_bytes)))
    return parts


def _export(
    directory: ExportDirectory, parts: list[ExportPart], write: Callable[[Scan, BinaryIO], int]
) -> list[dict[str, Any]]:
    """Write the files; returns their descriptions."""
    files: list[dict[str, Any]] = []
    exported_bytes = 0
    total = sum(piece.size_bytes for part in parts for piece in part.pieces)
    with progress() as advance:
        for scan, start, pieces in parts:
            for piece in pieces:
                piece_scan = scan.narrowed(
                    start_offset=piece.start_offset, end_offset=piece.end_offset
                )
                stored = directory.store(
                    scan.topic, piece.partition, start, piece.end_offset, partial(write, piece_scan)
                )
                if stored is not None:  # otherwise the next file contains this range
                    files.append(
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
                exported_bytes += piece.size_bytes
                advance(exported_bytes, total)
    return files
