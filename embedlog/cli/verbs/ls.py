"""Contains the verb `ls`: topics, or the partitions of topics."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from embedlog.cli.arguments import topic_names
from embedlog.cli.internal_topics import hidden_topics, internal_option, shown_topics, tell_hidden
from embedlog.cli.invocation import current, open_log, verb
from embedlog.cli.output import document, size_of, table
from embedlog.cli.readable import Readable


@verb()
@click.argument("topics", nargs=-1, shell_complete=topic_names)
@internal_option("--all")
def ls(topics: tuple[str, ...], include_internal: bool) -> int:
    """List topics; with TOPICS, their partitions.

    JSON: a list of {"topic", "partitions", "records", "bytes", "internal"}. With TOPICS a list of
    {"topic", "partition", "path", "log_start_offset", "log_end_offset", "high_watermark",
    "last_stable_offset", "leader_epoch", "size_bytes"}.
    """
    readable = Readable()
    with open_log() as log:
        hidden = frozenset() if topics else hidden_topics(log, include_internal)
        found = list(readable.topics(log, topics or shown_topics(log, include_internal)))
    if topics:
        rows = [
            {"topic": topic.name, **asdict(each)} for topic in found for each in topic.partitions
        ]
        if current().json:
            document(rows)
        else:
            shown = {
                "topic": "topic",
                "partition": "partition",
                "start": "log_start_offset",
                "end": "log_end_offset",
                "readable": "high_watermark",
                "stable": "last_stable_offset",
                "epoch": "leader_epoch",
                "bytes": "size_bytes",
            }
            table(list(shown), [[row[key] for key in shown.values()] for row in rows])
        return readable.status(bool(rows))
    sums: list[dict[str, Any]] = [
        {
            "topic": topic.name,
            "partitions": topic.partition_count,
            "records": sum(
                each.high_watermark - each.log_start_offset for each in topic.partitions
            ),
            "bytes": sum(each.size_bytes for each in topic.partitions),
            "internal": topic.internal,
        }
        for topic in found
    ]
    if current().json:
        document(sums)
    else:
        columns = ["topic", "partitions", "records", "size"]
        table(
            columns,
            [
                [row["topic"], row["partitions"], row["records"], size_of(row["bytes"])]
                for row in sums
            ],
        )
        tell_hidden(hidden, "internal topic")
    return readable.status(True)
