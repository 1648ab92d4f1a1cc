"""Contains the verb `import`: files of `export`, or of other programs, into topics.

A second run continues after the first, also after a kill: readers of committed records see each row
once.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import click

from embedlog import Log
from embedlog.tools.cli.arguments import complete_topic_names
from embedlog.tools.cli.invocation import current, open_log, verb
from embedlog.tools.cli.output import print_document, print_table
from embedlog.tools.cli.progress import progress
from embedlog.tools.cli.transfer.export_directory import files_of, is_export, read_manifest
from embedlog.tools.cli.transfer.imports import ImportSource, ImportTarget, import_file
from embedlog.tools.cli.transfer.readers import READERS, SUFFIXES, read_rows
from embedlog.tools.cli.transfer.received_files import open_received
from embedlog.tools.cli.transfer.writers import check_installed

STDIN = "-"
STREAMS = ("jsonl", "csv")


class ImportTask(NamedTuple):
    """One file and its topic, with the partition count and settings of a topic that is to be
    created.
    """

    source: ImportSource
    topic: str
    partition_count: int
    config: dict[str, str]


@verb(name="import")
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE…")
@click.option(
    "-t",
    "--topic",
    shell_complete=complete_topic_names,
    metavar="TOPIC",
    help="The topic of the rows; required for plain files.",
)
@click.option("--from-topic", metavar="TOPIC", help="Only this topic of an export.")
@click.option(
    "--format",
    "layout",
    type=click.Choice([*READERS]),
    help="By the suffix, or that of the export, if not given.",
)
@click.option(
    "--id",
    "identity",
    metavar="NAME",
    help="The name of one SOURCE for a second run; its path if not given.",
)
@click.option("-p", "--partition", type=click.IntRange(min=0), help="The partition of all rows.")
@click.option(
    "--repartition",
    is_flag=True,
    help="Choose partitions by the keys, not by the column partition.",
)
@click.option(
    "--create",
    is_flag=True,
    help="Create the directory, and topics with partitions and settings of the export.",
)
def import_files(sources: tuple[str, ...], **options: Any) -> int:
    """Append the rows of SOURCES to topics: files, directories of `export`, or - for standard
    input.

    Columns are value, key, headers, timestamp and partition. A second run continues after the rows
    that are imported. JSON lines are objects with a value. Lines that are values themselves are
    sent by: embedlog produce -t TOPIC -l FILE. JSON: a list of {"file", "topic", "records"}, with
    the number of new records.
    """
    tasks = [task for source in sources for task in _plan_tasks(source, options)]
    if options["identity"] is not None and len(tasks) != 1:
        raise click.UsageError("--id: expected one file, or -")
    if sources.count(STDIN) > 1:
        raise click.UsageError("SOURCE: standard input is given twice")
    for task in tasks:
        check_installed(task.source.layout)
    partition_counts = _read_first_rows(tasks, options) if options["create"] else {}
    with open_log(read_only=False, create=options["create"]) as log:
        if options["create"]:
            _create_topics(log, tasks, partition_counts)
        rows = _import(log, tasks, options)
    if current().json:
        print_document(rows)
    else:
        print_table(["file", "topic", "records"], [list(row.values()) for row in rows])
    return 0


def _read_first_rows(tasks: list[ImportTask], options: dict[str, Any]) -> dict[str, int]:
    """Read the first rows for each topic, before a topic or a directory is made: the number of
    partitions that they need, by topic. Raises as `import_file`.
    """
    partition_counts: dict[str, int] = {}
    for task in tasks:
        if task.topic in partition_counts:
            continue
        named_count = 0
        if task.source.path != STDIN:
            with _open_source(task.source) as file:
                rows = next(read_rows(task.source.layout, file, task.source.path, 0), None)
            named_count = 0 if rows is None else rows.partition_count
        if options["partition"] is not None:
            partition_counts[task.topic] = options["partition"] + 1
        elif options["repartition"]:
            partition_counts[task.topic] = 0
        else:
            partition_counts[task.topic] = named_count
    return partition_counts


def _create_topics(log: Log, tasks: list[ImportTask], partition_counts: dict[str, int]) -> None:
    """Create the topics that are missing; none of them if a row has no partition in one. Raises
    UsageError.
    """
    present_topics = log.topics()
    new_tasks = {task.topic: task for task in tasks if task.topic not in present_topics}
    for topic, task in new_tasks.items():
        needed_count = partition_counts[topic]
        if needed_count > task.partition_count:
            raise click.UsageError(
                f"--create: {topic} would have no partition {needed_count - 1}: expected 0 to "
                f"{task.partition_count - 1}. Create it first: embedlog topics --create --topic "
                f"{topic} --partitions {needed_count}"
            )
    for topic, task in new_tasks.items():
        log.create_topic(topic, task.partition_count, config=task.config, exist_ok=True)


def _import(log: Log, tasks: list[ImportTask], options: dict[str, Any]) -> list[dict[str, Any]]:
    for topic in {task.topic: None for task in tasks}:
        log.describe_topic(topic)  # an unknown topic is refused before a file is read
    results = []
    sizes = [
        0 if task.source.path == STDIN else Path(task.source.path).lstat().st_size for task in tasks
    ]
    with progress() as advance:
        for number, task in enumerate(tasks):
            earlier_bytes = sum(sizes[:number])
            size = sizes[number]
            imported_bytes = 0

            def report_progress(
                count: int, earlier_bytes: int = earlier_bytes, size: int = size
            ) -> None:
                nonlocal imported_bytes
                imported_bytes = min(imported_bytes + count, size)
                advance(earlier_bytes + imported_bytes, sum(sizes))

            partition = options["partition"]
            keep = partition is None and not options["repartition"]
            target = ImportTarget(task.topic, partition, keep)
            with _open_source(task.source) as file:
                count = import_file(log, task.source, target, file, report_progress)
            results.append({"file": task.source.path, "topic": task.topic, "records": count})
    return results


def _open_source(source: ImportSource) -> BinaryIO:
    """The file of a source. A link that the caller names is followed, one inside of an export is
    refused.
    """
    if source.path == STDIN:
        return os.fdopen(os.dup(sys.stdin.fileno()), "rb")
    is_of_export = source.unchanging
    return open_received(source.path if is_of_export else os.path.realpath(source.path))


# ---- sources -------------------------------------------------------------------------------------


def _plan_tasks(name: str, options: dict[str, Any]) -> list[ImportTask]:
    """The files of one SOURCE. Raises UsageError."""
    path = Path(name)
    if name != STDIN and path.is_dir():
        return _plan_export(path, options)
    if options["topic"] is None:
        raise click.UsageError(f"-t: expected a topic for {name}")
    if name != STDIN and not path.is_file():
        raise click.UsageError(f"SOURCE: no such file: {name}")
    layout = options["layout"] or SUFFIXES.get(path.suffix)
    if layout is None:
        raise click.UsageError(f"--format: expected {' or '.join(READERS)} for {name}")
    if name == STDIN and layout not in STREAMS:
        raise click.UsageError(
            f"--format: expected {' or '.join(STREAMS)} for standard input, found {layout}"
        )
    default = None if name == STDIN else os.path.realpath(name)
    return [
        ImportTask(
            ImportSource(name, layout, options["identity"] or default), options["topic"], 1, {}
        )
    ]


def _plan_export(path: Path, options: dict[str, Any]) -> list[ImportTask]:
    if not is_export(path):
        raise click.UsageError(f"SOURCE: not a directory of an export: {path}")
    manifest = read_manifest(path)
    if options["layout"] not in (None, manifest["format"]):
        raise click.UsageError(
            f"--format: {path} has {manifest['format']} files, found {options['layout']!r}"
        )
    selected = options["from_topic"]
    names = [name for name in sorted(manifest["topics"]) if selected in (None, name)]
    if selected is not None and not names:
        raise click.UsageError(f"--from-topic: {path} has no topic {selected!r}")
    if options["topic"] is not None and len(names) > 1:
        raise click.UsageError(f"-t: {path} has {len(names)} topics: select one by --from-topic")
    tasks = []
    for name in names:
        facts = manifest["topics"][name]
        for file in files_of(path, name):
            identity = f"{manifest['export_id']}/{name}/{file.path.name}"
            source = ImportSource(
                str(file.path), manifest["format"], options["identity"] or identity, unchanging=True
            )
            tasks.append(
                ImportTask(source, options["topic"] or name, facts["partitions"], facts["config"])
            )
    return tasks
