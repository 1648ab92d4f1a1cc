"""Contains the verb `ls`: topics, or the partitions of topics."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from embedlog.tools.cli.arguments import complete_topic_names
from embedlog.tools.cli.internal_topics import (
    hidden_topics,
    internal_option,
    shown_topics,
    tell_hidden,
)
from embedlog.tools.cli.invocation import current, open_log, verb
from embedlog.tools.cli.output import print_document, print_table, size_of
from embedlog.tools.cli.readable import ReadableMembers


@verb()
@click.argument("topics", nargs=-1, shell_complete=complete_topic_names)
@internal_option("--all")
def ls(topics: tuple[str, ...], include_internal: bool) -> int:
    """List topics; with TOPICS, their partitions.

    JSON: a list of {"topic", "partitions", "records", "bytes", "internal"}. With TOPICS a list of
    {"topic", "partition", "path", "log_start_offset", "log_end_offset", "high_watermark",
    "last_stable_offset", "leader_epoch", "size_bytes"}.
    """
    readable = ReadableMembers()
    with open_log() as log:
        hidden = frozenset() if topics else hidden_topics(log, include_internal)
        descriptions = list(
            readable.describe_topics(log, topics or shown_topics(log, include_internal))
        )
    if topics:
        rows = [
            {"topic": topic.name, **asdict(partition)}
            for topic in descriptions
            for partition in topic.partitions
        ]
        if current().json:
            print_document(rows)
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
            print_table(list(shown), [[row[key] for key in shown.values()] for row in rows])
        return readable.status(bool(rows))
    sums: list[dict[str, Any]] = [
        {
            "topic": topic.name,
            "partitions": topic.partition_count,
            "records": sum(
                partition.high_watermark - partition.log_start_offset
                for partition in topic.partitions
            ),
            "bytes": sum(partition.size_bytes for partition in topic.partitions),
            "internal": topic.internal,
        }
        for topic in descriptions
    ]
    if current().json:
        print_document(sums)
    else:
        columns = ["topic", "partitions", "records", "size"]
        print_table(
            columns,
            [
                [row["topic"], row["partitions"], row["records"], size_of(row["bytes"])]
                for row in sums
            ],
        )
        tell_hidden(hidden, "internal topic")
    return readable.status(True)
