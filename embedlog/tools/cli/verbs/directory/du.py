"""Contains the verb `du`: the disk space of partitions, with the JSON of kafka-log-dirs.

Each directory of a set is read by itself, so that a replica has the size of its own files. A
directory of several that cannot be opened has its error in the list; its node is -1 if the others
do not know it.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import click

import embedlog
from embedlog.tools.cli.arguments import complete_topic_names
from embedlog.tools.cli.internal_topics import hidden_topics, internal_option, tell_hidden
from embedlog.tools.cli.invocation import current, directories, open_log, verb
from embedlog.tools.cli.output import print_document, print_table, size_of
from embedlog.tools.cli.readable import ReadableMembers
from embedlog.tools.cli.terminal import tell


@verb()
@click.option("--describe", is_flag=True, help="As in Kafka; without effect.")
@click.option(
    "--topic-list",
    metavar="TOPIC,…",
    shell_complete=complete_topic_names,
    help="Only these topics.",
)
@internal_option()
@click.option("--bytes", "exact", is_flag=True, help="Print bytes without units.")
def du(describe: bool, topic_list: str | None, exact: bool, include_internal: bool) -> int:
    """Print the size of the logs of partitions in each directory.

    JSON: that of kafka-log-dirs, {"version", "brokers": [{"broker", "logDirs": [{"logDir", "error",
    "partitions": [{"partition", "size", "offsetLag", "isFuture"}]}]}]}. A directory is a broker
    with the number of its node.
    """
    selected = None if topic_list is None else topic_list.split(",")
    readable = ReadableMembers()
    usages: list[_Usage] = []
    brokers = []
    paths = directories()
    for path in paths:
        try:
            usage = _read_usage(path, selected, include_internal, readable)
        except embedlog.EmbedlogError as problem:
            if len(paths) == 1:
                raise
            readable.report_problem(problem)
            absolute_path = os.path.abspath(path)
            broker = _broker(_find_node(absolute_path), absolute_path, str(problem), [])
        else:
            usages.append(usage)
            broker = _broker(usage.node, usage.path, None, _kafka_partitions(usage))
        brokers.append(broker)
    hidden_sizes = [size for usage in usages for size in usage.hidden_sizes]
    rows: list[tuple[str, str, int | str]] = []
    for usage in usages:
        for topic, partition in usage.partitions:
            size = partition.size_bytes if exact else size_of(partition.size_bytes)
            rows.append((usage.path, f"{topic}-{partition.partition}", size))
    if current().json:
        print_document({"version": 1, "brokers": brokers})
    else:
        print_table(["directory", "partition", "size"], rows)
        tell_hidden(hidden_sizes, "internal partition", f" ({size_of(sum(hidden_sizes))})")
    existing = {topic for usage in usages for topic, _partition in usage.partitions}
    absent = set(selected or ()) - existing
    if absent and readable.is_whole:
        tell(
            f"embedlog: --topic-list: no topic {', '.join(sorted(absent))} in "
            f"{', '.join(paths)}: embedlog ls lists the topics"
        )
        return 1
    return readable.status(bool(rows or hidden_sizes))


class _Usage(NamedTuple):
    """The partitions of one directory with their topics, and the sizes of those that are hidden."""

    path: str
    node: int
    partitions: list[tuple[str, embedlog.PartitionDescription]]
    hidden_sizes: list[int]


def _read_usage(
    path: str, selected: list[str] | None, include_internal: bool, readable: ReadableMembers
) -> _Usage:
    with embedlog.open(path, read_only=True) as log:
        names = log.topics(include_internal=True)
        hidden: frozenset[str] = frozenset()
        if selected is None:
            hidden = hidden_topics(log, include_internal)
        else:
            names = [name for name in names if name in selected]
        partitions = []
        hidden_sizes = []
        for topic in readable.describe_each(names, log.describe_topic):
            if topic.name in hidden:
                hidden_sizes += [partition.size_bytes for partition in topic.partitions]
            else:
                partitions += [(topic.name, partition) for partition in topic.partitions]
        node = _node_of(log, str(log.path), default=0)
        return _Usage(str(log.path), node, partitions, hidden_sizes)


def _broker(
    node: int, path: str, error: str | None, partitions: list[dict[str, object]]
) -> dict[str, object]:
    """A directory in the JSON of kafka-log-dirs."""
    return {
        "broker": node,
        "logDirs": [{"logDir": path, "error": error, "partitions": partitions}],
    }


def _kafka_partitions(usage: _Usage) -> list[dict[str, object]]:
    return [
        {
            "partition": f"{topic}-{partition.partition}",
            "size": partition.size_bytes,
            "offsetLag": max(partition.high_watermark - partition.log_end_offset, 0),
            "isFuture": False,
        }
        for topic, partition in usage.partitions
    ]


def _node_of(log: embedlog.Log, path: str, *, default: int) -> int:
    """The node of the directory with this path, in the description of its set."""
    for directory in log.replicas().directories:
        if directory.path == path:
            return directory.node
    return default


def _find_node(path: str) -> int:
    """The node of a directory that cannot be opened, as the others of its set know it, or -1."""
    try:
        with open_log() as log:
            return _node_of(log, path, default=-1)
    except embedlog.EmbedlogError:
        return -1
