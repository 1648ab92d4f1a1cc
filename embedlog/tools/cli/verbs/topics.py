"""Contains the verb `topics`, with the options of kafka-topics.

- A topic is named literally for `--create`, and by a regular expression otherwise, as in Kafka.
- Internal topics are listed if they are asked for, unlike in Kafka: by `--include-internal`, or by a
  filter for partitions in trouble.
- Only `--create` creates a directory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

import embedlog
from embedlog.tools.cli.arguments import (
    action_options,
    complete_topic_settings,
    parse_settings,
    topic_option,
)
from embedlog.tools.cli.internal_topics import (
    hidden_topics,
    internal_option,
    no_match_error,
    shown_topics,
    tell_hidden,
)
from embedlog.tools.cli.invocation import current, open_log, verb
from embedlog.tools.cli.output import print_document, print_table
from embedlog.tools.cli.readable import ReadableMembers
from embedlog.tools.cli.terminal import tell

_ACTIONS = ("list", "create", "describe", "alter", "delete")
_FILTERS = {  # options of --describe, and the attribute of a partition that each asks for
    "under_replicated_partitions": "under_replicated",
    "unavailable_partitions": "offline",
    "under_min_isr_partitions": "under_min_isr",
    "at_min_isr_partitions": "at_min_isr",
}
# the options that each action takes, besides --topic and those of internal topics
_OPTIONS = {
    "create": {"partitions", "replication_factor", "replica_assignment", "config", "if_not_exists"},
    "alter": {"partitions", "if_exists"},
    "delete": {"if_exists"},
    "describe": {*_FILTERS, "topics_with_overrides", "if_exists"},
    "list": {"if_exists"},
}
_OF_EVERY_ACTION = {"include_internal", "exclude_internal"}


def _add_flags(function: Callable[..., Any]) -> Callable[..., Any]:
    for name, text in (
        ("--exclude-internal", "The default, as --include-internal has not been given."),
        (
            "--if-not-exists",
            "Accept an existing topic, unless it contradicts --partitions or --config.",
        ),
        ("--if-exists", "Accept an absent topic."),
        ("--topics-with-overrides", "Describe topics with settings of their own."),
        ("--under-replicated-partitions", "Describe partitions with a replica outside of the ISR."),
        ("--unavailable-partitions", "Describe partitions without a leader."),
        ("--under-min-isr-partitions", "Describe partitions below min.insync.replicas."),
        ("--at-min-isr-partitions", "Describe partitions at min.insync.replicas."),
    ):
        function = click.option(name, is_flag=True, help=text)(function)
    return action_options({name: f"{name.capitalize()} topics." for name in _ACTIONS})(function)


@verb(
    exclusive=[
        ("--include-internal", "--exclude-internal"),
        ("--partitions", "--replica-assignment"),
        ("--replication-factor", "--replica-assignment"),
    ]
)
@_add_flags
@internal_option()
@topic_option(help="The topic; a regular expression except for --create.")
@click.option("--partitions", type=int, help="Number of partitions, for --create and --alter.")
@click.option("--replication-factor", type=int, help="Directories that hold each partition.")
@click.option("--replica-assignment", help="Nodes of each partition: 1:2,2:3.")
@click.option(
    "--config",
    multiple=True,
    metavar="KEY=VALUE",
    shell_complete=complete_topic_settings,
    help="Setting of a new topic.",
)
def topics(action: str | None, topic: str | None, **options: Any) -> int:
    """List (the default), create, describe, alter and delete topics.

    JSON of a list and of --delete: names. JSON of --alter: a list of {"topic", "partitions"}. JSON
    of a description: a list of {"topic", "topic_id", "internal", "config", "partitions":
    [{"partition", "leader", "replicas", "isr", "log_start_offset", "log_end_offset",
    "size_bytes"}]}.
    """
    if action in ("create", "alter", "delete") and topic is None:
        raise click.UsageError(f"--{action} needs --topic")
    _check_options(action or "list", options)
    if action == "create":
        return _create(str(topic), options)
    with open_log(read_only=action not in ("alter", "delete")) as log:
        # who looks for partitions in trouble sees those of internal topics, too
        has_filter = any(options[name] for name in _FILTERS)
        include_internal = options["include_internal"] or (
            has_filter and not options["exclude_internal"]
        )
        names = shown_topics(log, include_internal, topic)
        hidden = hidden_topics(log, include_internal) if topic is None else frozenset()
        if topic is not None and not names and not options["if_exists"]:
            raise no_match_error(log, topic, "--topic")
        if action == "describe":
            status = _describe(log, names, options)
            tell_hidden(hidden, "internal topic")
            return status
        if action == "alter":
            if options["partitions"] is None:
                raise click.UsageError(
                    "--alter needs --partitions; settings are changed by the verb configs"
                )
            for name in names:
                log.create_partitions(name, options["partitions"])
        elif action == "delete":
            for name in names:
                log.delete_topic(name)
        if current().json:
            if action == "alter":
                count = options["partitions"]
                print_document([{"topic": name, "partitions": count} for name in names])
            else:
                print_document(names)
        elif action in ("list", None):
            click.echo("".join(f"{name}\n" for name in names), nl=False)
            if not names and not options["if_exists"]:
                tell(
                    f"embedlog: there is no topic in {log.path}: topics --create --topic NAME "
                    "makes one"
                )
            tell_hidden(hidden, "internal topic")
    return 0 if names or options["if_exists"] else 1


def _check_options(action: str, options: dict[str, Any]) -> None:
    """Refuse an option that the action would not use. Raises UsageError."""
    for name, value in options.items():
        is_given = value is not None and value is not False and value != ()
        if not is_given or name in _OPTIONS[action] or name in _OF_EVERY_ACTION:
            continue
        reason = f"--{action} does not take it"
        if (action, name) == ("alter", "config"):
            reason = "settings are changed by the verb configs"
        raise click.UsageError(f"--{name.replace('_', '-')}: {reason}")


def _create(topic: str, options: dict[str, Any]) -> int:
    assignment = None
    if options["replica_assignment"] is not None:
        try:
            groups = options["replica_assignment"].split(",")
            assignment = {
                number: [int(node) for node in nodes.split(":")]
                for number, nodes in enumerate(groups)
            }
        except ValueError:
            raise click.UsageError("--replica-assignment: expected nodes such as 1:2,2:3") from None
    with open_log(read_only=False, create=True) as log:
        created = log.create_topic(
            topic,
            options["partitions"] if assignment is None else len(assignment),
            parse_settings(options["config"], "--config"),
            replication_factor=options["replication_factor"],
            assignment=assignment,
            exist_ok=options["if_not_exists"],
        )
    if current().json:
        print_document({"topic": topic, "created": created})
    elif created:
        click.echo(f"Created topic {topic}.")
    return 0


def _describe(log: embedlog.Log, names: list[str], options: dict[str, Any]) -> int:
    documents: list[dict[str, Any]] = []
    attributes = [attribute for option, attribute in _FILTERS.items() if options[option]]
    readable = ReadableMembers()
    for topic in readable.describe_topics(log, names):
        if options["topics_with_overrides"] and not topic.config:
            continue
        partitions = _partition_documents(log, topic, attributes)
        if partitions or not attributes:
            documents.append(
                {
                    "topic": topic.name,
                    "topic_id": topic.topic_id,
                    "internal": topic.internal,
                    "config": dict(topic.config),
                    "partitions": partitions,
                }
            )
    if current().json:
        print_document(documents)
        return readable.status(True)
    for document in documents:
        _print_topic(document)
    return readable.status(True)


def _partition_documents(
    log: embedlog.Log, topic: embedlog.TopicDescription, attributes: list[str]
) -> list[dict[str, Any]]:
    """The partitions of a topic that have one of the attributes, all if none is given. One without
    a leader has no offsets.
    """
    offsets_by_partition = {partition.partition: partition for partition in topic.partitions}
    documents = []
    for replicated in log.replicas(topic.name).partitions:
        if replicated.topic != topic.name:
            continue
        if attributes and not any(getattr(replicated, attribute) for attribute in attributes):
            continue
        offsets = offsets_by_partition.get(replicated.partition)
        documents.append(
            {  # the columns of `_print_topic` have this order
                "partition": replicated.partition,
                "leader": replicated.leader,
                "replicas": list(replicated.replicas),
                "isr": list(replicated.isr),
                "log_start_offset": None if offsets is None else offsets.log_start_offset,
                "log_end_offset": None if offsets is None else offsets.log_end_offset,
                "size_bytes": None if offsets is None else offsets.size_bytes,
            }
        )
    return documents


def _print_topic(document: dict[str, Any]) -> None:
    partitions = document["partitions"]
    config = ",".join(f"{key}={value}" for key, value in document["config"].items())
    line = f"{document['topic']}  id {document['topic_id']}  {len(partitions)} partitions  {config}"
    click.echo(line.rstrip())
    columns = ["partition", "leader", "replicas", "isr", "start", "end", "bytes"]
    rows = [
        [",".join(map(str, cell)) if isinstance(cell, list) else cell for cell in row.values()]
        for row in partitions
    ]
    print_table(columns, rows)
