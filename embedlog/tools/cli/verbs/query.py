"""Contains the verb `query`: the offset of the first record at or after a time, as kcat -Q."""

from __future__ import annotations

import re

import click

from embedlog import TopicPartition
from embedlog.tools.cli.arguments import complete_topic_names, parse_time_ms
from embedlog.tools.cli.invocation import current, open_log, verb
from embedlog.tools.cli.output import print_document


@verb()
@click.option(
    "-t",
    "--topic",
    "times",
    multiple=True,
    required=True,
    shell_complete=complete_topic_names,
    metavar="TOPIC:PARTITION:TIME",
    help="A place; TIME is in ms or an ISO 8601 date.",
)
def query(times: tuple[str, ...]) -> int:
    """Print the offset of the first record at or after a time; -1 is none.

    JSON: a list of {"topic", "partition", "offset", "timestamp"}.
    """
    answers = []
    with open_log() as log, log.consumer() as consumer:
        for text in times:
            topic, _, partition_and_time = text.partition(":")
            number, _, time = partition_and_time.partition(":")
            if not re.fullmatch(r"[0-9]{1,9}", number):
                raise click.UsageError(f"-t: expected TOPIC:PARTITION:TIME, found {text!r}")
            tp = TopicPartition(topic, int(number))
            answer = consumer.offsets_for_times({tp: parse_time_ms(time, "-t")})[tp]
            answers.append(
                {
                    "topic": topic,
                    "partition": tp.partition,
                    "offset": -1 if answer is None else answer.offset,
                    "timestamp": None if answer is None else answer.timestamp_ms,
                }
            )
    if current().json:
        print_document(answers)
    else:
        for row in answers:
            click.echo(f"{row['topic']} [{row['partition']}] offset {row['offset']}")
    return 0 if any(row["offset"] != -1 for row in answers) else 1
