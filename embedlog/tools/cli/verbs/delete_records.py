"""Contains the verb `delete-records`, with the file and the lines of kafka-delete-records.

The whole request is checked before any record is deleted. Of several partitions, one or all are
named: no partition is chosen silently.
"""

from __future__ import annotations

import json
from typing import Any, TextIO

import click

from embedlog import Log, TopicPartition
from embedlog.tools.cli.arguments import topic_option
from embedlog.tools.cli.invocation import current, open_log, verb
from embedlog.tools.cli.output import print_document

_FORM = '{"partitions": [{"topic": "t", "partition": 0, "offset": 5}], "version": 1}'


_EXCLUSIVE = [
    ("--offset-json-file", option) for option in ("--topic", "--partition", "--all-partitions")
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
    offsets = {} if offset_json_file is None else _read_request(offset_json_file)
    with open_log(read_only=False) as log:
        if topic is not None:
            numbers = [partition] if partition is not None else _partition_numbers(log, topic)
            if partition is None and not all_partitions:
                _check_is_one(topic, numbers)
            offsets = {TopicPartition(topic, number): int(before_offset or 0) for number in numbers}
        starts = log.delete_records(offsets)
    if current().json:
        print_document(
            [
                {"topic": tp.topic, "partition": tp.partition, "low_watermark": start}
                for tp, start in sorted(starts.items())
            ]
        )
    else:
        for tp, start in sorted(starts.items()):
            click.echo(f"partition: {tp.topic}-{tp.partition}\tlow_watermark: {start}")
    return 0


def _partition_numbers(log: Log, topic: str) -> list[int]:
    return [partition.partition for partition in log.describe_topic(topic).partitions]


def _check_is_one(topic: str, numbers: list[int]) -> None:
    """Raises UsageError if a topic has several partitions."""
    if len(numbers) <= 1:
        return
    shown = ",".join(map(str, numbers[:SHOWN]))
    if len(numbers) > SHOWN:
        shown += ",…"
    raise click.UsageError(
        f"--partition: {topic} has the partitions {shown}: give one of them, or --all-partitions"
    )


def _read_request(file: TextIO) -> dict[TopicPartition, int]:
    """The request of a file. Raises UsageError for any other content."""
    try:
        content: Any = json.load(file)
        rows = [
            (TopicPartition(row["topic"], row["partition"]), row["offset"])
            for row in content["partitions"]
        ]
        has_numbers = all(type(offset) is int for _, offset in rows)
        if content.get("version", 1) != 1 or not rows or not has_numbers:
            raise ValueError(
                "a version other than 1, no partitions, or an offset that is no number"
            )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as problem:
        raise click.UsageError(f"--offset-json-file: expected {_FORM}: {problem}") from None
    if len({tp for tp, _ in rows}) != len(rows):
        raise click.UsageError("--offset-json-file: a partition is named twice")
    return dict(rows)
