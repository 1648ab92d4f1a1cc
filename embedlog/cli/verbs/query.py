"""Contains the verb `query`: the offset of the first record at or after a time, as kcat -Q."""

from __future__ import annotations

import re

import click

from embedlog import TopicPartition
from embedlog.cli.arguments import time_ms, topic_names
from embedlog.cli.invocation import current, open_log, verb
from embedlog.cli.output import document


@verb()
@click.option(
    "-t",
    "--topic",
    "places",
    multiple=True,
    required=True,
    shell_complete=topic_names,
    metavar="TOPIC:PARTITION:TIME",
    help="A place; TIME is in ms or an ISO 8601 date.",
)
def query(places: tuple[str, ...]) -> int:
    """Print the offset of the first record at or after a time; -1 is none.

    JSON: a list of {"topic", "partition", "offset", "timestamp"}.
    """
    found = []
    with open_log() as log, log.consumer() as consumer:
        for place in places:
            topic, number, time = (*place.split(":", 2), "", "")[:3]
            if not re.fullmatch(r"[0-9]{1,9}", number):
                raise click.UsageError(f"-t: expected TOPIC:PARTITION:TIME, found {place!r}")
            tp = TopicPartition(topic, int(number))
            answer = consumer.offsets_for_times({tp: time_ms(time, "-t")})[tp]
            found.append(
                {
                    "topic": topic,
                    "partition": tp.partition,
                    "offset": -1 if answer is None else answer.offset,
                    "timestamp": None if answer is None else answer.timestamp_ms,
                }
            )
    if current().json:
        document(found)
    else:
        for each in found:
            click.echo(f"{each['topic']} [{each['partition']}] offset {each['offset']}")
    return 0 if any(each["offset"] != -1 for each in found) else 1
