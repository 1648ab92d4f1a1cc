"""Contains the verb `delete-records`, with the file and the lines of kafka-delete-records.

DELETERECORDS-1  the whole request is checked before any record is deleted
DELETERECORDS-2  of several partitions, one or all are named: no partition is chosen silently
"""

from __future__ import annotations

import json
from typing import Any, TextIO

import click

from embedlog import Log, TopicPartition
from embedlog.cli.arguments import topic_option
from embedlog.cli.invocation import current, open_log, verb
from embedlog.cli.output import document

_FORM = '{"partitions": [{"topic": "t", "partition": 0, "offset": 5}], "version": 1}'


_EXCLUSIVE = [
    ("--offset-json-file", each) for each in ("--topic", "--partition", "--all-partitions")
]
_EXCLUSIVE.append(("--partition", "--all-partitions"))
SHOWN = 10  # partitions in an error


@verb(exclusive=_EXCLUSIVE)
@click.option(
    "--offset-json-file",
    type=click.File("r", encoding="utf-8"),
    metavar="FILE",
    help=f"{_FORM}; - is standard input.",
)
@topic_option(help="The topic, instead of a file.")
@click.option(
    "-p",
    "--partition",
    type=click.IntRange(min=0),
    help="Its partition; required if it has several.",
)
@click.option("--all-partitions", is_flag=True, help="All partitions of the topic.")
@click.option(
    "--before-offset",
    type=click.IntRange(min=-1),
    help="The first offset that remains; -1 deletes all records.",
)
def delete_records(
    offset_json_file: TextIO | None,
    topic: str | None,
    partition: int | None,
    all_partitions: bool,
    before_offset: int | None,
) -> int:
    """Delete the records before an offset of partitions.

    JSON: a list of {"topic", "partition", "low_watermark"}.
    """
    if (offset_json_file is None and topic is None) or (topic is None) != (before_offset is None):
        raise click.UsageError("give --offset-json-file, or --topic and --before-offset")
    wanted = {} if offset_json_file is None else _wanted(offset_json_file)
    with open_log(read_only=False) as log:
        if topic is not None:
            numbers = (
                _all(log, topic, alone=not all_partitions) if partition is None else [partition]
            )
            wanted = {TopicPartition(topic, number): int(before_offset or 0) for number in numbers}
        starts = log.delete_records(wanted)
    if current().json:
        document(
            [
                {"topic": tp.topic, "partition": tp.partition, "low_watermark": start}
                for tp, start in sorted(starts.items())
            ]
        )
    else:
        for tp, start in sorted(starts.items()):
            click.echo(f"partition: {tp.topic}-{tp.partition}\tlow_watermark: {start}")
    return 0


def _all(log: Log, topic: str, *, alone: bool) -> list[int]:
    """The partitions of a topic. Raises UsageError if there are several and one is needed."""
    numbers = [each.partition for each in log.describe_topic(topic).partitions]
    if alone and len(numbers) > 1:
        shown = ",".join(map(str, numbers[:SHOWN])) + ("" if len(numbers) <= SHOWN else ",…")
        raise click.UsageError(
            f"--partition: {topic} has the partitions {shown}: give one of them, or "
            "--all-partitions"
        )
    return numbers


def _wanted(file: TextIO) -> dict[TopicPartition, int]:
    """The request of a file. Raises UsageError for any other content."""
    try:
        content: Any = json.load(file)
        rows = [
            (TopicPartition(row["topic"], row["partition"]), row["offset"])
            for row in content["partitions"]
        ]
        if (
            content.get("version", 1) != 1
            or not rows
            or any(type(offset) is not int for _, offset in rows)
        ):
            raise ValueError(
                "a version other than 1, no partitions, or an offset that is no number"
            )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as problem:
        raise click.UsageError(f"--offset-json-file: expected {_FORM}: {problem}") from None
    if len({tp for tp, _ in rows}) != len(rows):
        raise click.UsageError("--offset-json-file: a partition is named twice")
    return dict(rows)
