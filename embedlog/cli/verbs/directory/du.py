"""Contains the verb `du`: the disk space of partitions, with the JSON of kafka-log-dirs.

DU-1  each directory of a set is read by itself, so that a replica has the size of its own files
DU-2  a directory of several that cannot be opened has its error in the list; its node is -1 if the
    others do not know it
"""

from __future__ import annotations

import os

import click

import embedlog
from embedlog.cli.arguments import topic_names
from embedlog.cli.internal_topics import hidden_topics, internal_option, tell_hidden
from embedlog.cli.invocation import current, directories, open_log, verb
from embedlog.cli.output import document, size_of, table
from embedlog.cli.readable import Readable
from embedlog.cli.terminal import tell


@verb()
@click.option("--describe", is_flag=True, help="As in Kafka; without effect.")
@click.option(
    "--topic-list", metavar="TOPIC,…", shell_complete=topic_names, help="Only these topics."
)
@internal_option()
@click.option("--bytes", "exact", is_flag=True, help="Print bytes without units.")
def du(describe: bool, topic_list: str | None, exact: bool, include_internal: bool) -> int:
    """Print the size of the logs of partitions in each directory.

    JSON: that of kafka-log-dirs, {"version", "brokers": [{"broker", "logDirs": [{"logDir", "error",
    "partitions": [{"partition", "size", "offsetLag", "isFuture"}]}]}]}. A directory is a broker
    with the number of its node.
    """
    wanted = None if topic_list is None else topic_list.split(",")
    found = []
    readable = Readable()
    rows: list[tuple[str, str, int]] = []
    hidden_sizes: list[int] = []
    seen: list[tuple[str, embedlog.PartitionDescription]] = []
    places = directories()
    for place in places:
        try:
            with embedlog.open(place, read_only=True) as log:
                hidden = hidden_topics(log, include_internal) if wanted is None else frozenset()
                names = [
                    name
                    for name in log.topics(include_internal=True)
                    if wanted is None or name in wanted
                ]
                topics = [*readable.each(names, log.describe_topic)]
                parts = [
                    (topic.name, part)
                    for topic in topics
                    if topic.name not in hidden
                    for part in topic.partitions
                ]
                hidden_sizes += [
                    part.size_bytes
                    for topic in topics
                    if topic.name in hidden
                    for part in topic.partitions
                ]
                path = str(log.path)
                node = next(
                    (known.node for known in log.replicas().directories if known.path == path), 0
                )
        except embedlog.EmbedlogError as problem:
            if len(places) == 1:
                raise
            readable.note(problem)
            path = os.path.abspath(place)
            found.append(
                {
                    "broker": _node(path),
                    "logDirs": [{"logDir": path, "error": str(problem), "partitions": []}],
                }
            )
            continue
        seen += parts
        rows += [(path, f"{name}-{part.partition}", part.size_bytes) for name, part in parts]
        found.append(
            {
                "broker": node,
                "logDirs": [
                    {
                        "logDir": path,
                        "error": None,
                        "partitions": [
                            {
                                "partition": f"{name}-{part.partition}",
                                "size": part.size_bytes,
                                "offsetLag": max(part.high_watermark - part.log_end_offset, 0),
                                "isFuture": False,
                            }
                            for name, part in parts
                        ],
                    }
                ],
            }
        )
    if current().json:
        document({"version": 1, "brokers": found})
    else:
        table(
            ["directory", "partition", "size"],
            [[*row[:2], row[2] if exact else size_of(row[2])] for row in rows],
        )
        tell_hidden(hidden_sizes, "internal partition", f" ({size_of(sum(hidden_sizes))})")
    absent = set(wanted or ()) - {name for name, _ in seen}
    if absent and readable.whole:
        tell(
            f"embedlog: --topic-list: no topic {', '.join(sorted(absent))} in "
            f"{', '.join(places)}: embedlog ls lists the topics"
        )
        return 1
    return readable.status(bool(rows or hidden_sizes))


def _node(path: str) -> int:
    """The node of a directory that cannot be opened, as the others of its set know it (DU-2)."""
    try:
        with open_log() as log:
            return next(
                (known.node for known in log.replicas().directories if known.path == path), -1
            )
    except embedlog.EmbedlogError:
        return -1
