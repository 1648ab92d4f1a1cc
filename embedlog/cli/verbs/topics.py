"""Contains the verb `topics`, with the options of kafka-topics.

TOPICSVERB-1  a topic is named literally for `--create`, and by a regular expression otherwise, as
    in Kafka
TOPICSVERB-2  internal topics are listed if they are asked for, unlike in Kafka
TOPICSVERB-3  only `--create` creates a directory
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

import embedlog
from embedlog.cli.arguments import actions, settings, topic_option, topic_settings
from embedlog.cli.internal_topics import (
    hidden_topics,
    internal_option,
    no_match,
    shown_topics,
    tell_hidden,
)
from embedlog.cli.invocation import current, open_log, verb
from embedlog.cli.output import document, table
from embedlog.cli.readable import Readable
from embedlog.cli.terminal import tell

_ACTIONS = ("list", "create", "describe", "alter", "delete")
_FILTERS = {  # options of --describe, and the attribute of a partition that each asks for
    "under_replicated_partitions": "under_replicated",
    "unavailable_partitions": "offline",
    "under_min_isr_partitions": "under_min_isr",
    "at_min_isr_partitions": "at_min_isr",
}


def _flags(function: Callable[..., Any]) -> Callable[..., Any]:
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
    return actions({name: f"{name.capitalize()} topics." for name in _ACTIONS})(function)


@verb(exclusive=[("--include-internal", "--exclude-internal")])
@_flags
@internal_option()
@topic_option(help="The topic; a regular expression except for --create.")
@click.option("--partitions", type=int, help="Number of partitions, for --create and --alter.")
@click.option("--replication-factor", type=int, help="Directories that hold each partition.")
@click.option("--replica-assignment", help="Nodes of each partition: 1:2,2:3.")
@click.option(
    "--config",
    multiple=True,
    metavar="KEY=VALUE",
    shell_complete=topic_settings,
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
    if action == "create":
        return _create(str(topic), options)
    with open_log(read_only=action not in ("alter", "delete")) as log:
        has_filter = any(options[name] for name in _FILTERS)  # what fails is not hidden
        include_internal = options["include_internal"] or (
            has_filter and not options["exclude_internal"]
        )
        names = shown_topics(log, include_internal, topic)
        hidden = hidden_topics(log, include_internal) if topic is None else frozenset()
        if topic is not None and not names and not options["if_exists"]:
            raise no_match(log, topic, "--topic")
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
            document(
                [{"topic": name, "partitions": options["partitions"]} for name in names]
                if action == "alter"
                else names
            )
        elif action in ("list", None):
            click.echo("".join(f"{name}\n" for name in names), nl=False)
            if not names and not options["if_exists"]:
                tell(
                    f"embedlog: there is no topic in {log.path}: topics --create --topic NAME "
                    "makes one"
                )
            tell_hidden(hidden, "internal topic")
    return 0 if names or options["if_exists"] else 1


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
            settings(options["config"], "--config"),
            replication_factor=options["replication_factor"],
            assignment=assignment,
            exist_ok=options["if_not_exists"],
        )
    if current().json:
        document({"topic": topic, "created": created})
    elif created:
        click.echo(f"Created topic {topic}.")
    return 0


def _describe(log: embedlog.Log, names: list[str], options: dict[str, Any]) -> int:
    found: list[dict[str, Any]] = []
    wanted = [attribute for option, attribute in _FILTERS.items() if options[option]]
    readable = Readable()
    for topic in readable.topics(log, names):
        name = topic.name
        if options["topics_with_overrides"] and not topic.config:
            continue
        led = {each.partition: each for each in topic.partitions}
        partitions = [
            {
                "partition": of.partition,
                "leader": of.leader,
                "replicas": list(of.replicas),
                "isr": list(of.isr),
                "log_start_offset": each and each.log_start_offset,
                "log_end_offset": each and each.log_end_offset,
                "size_bytes": each and each.size_bytes,
            }
            for of in log.replicas(name).partitions
            for each in [led.get(of.partition)]
            if of.topic == name
            and (not wanted or any(getattr(of, attribute) for attribute in wanted))
        ]
        if partitions or not wanted:
            found.append(
                {
                    "topic": name,
                    "topic_id": topic.topic_id,
                    "internal": topic.internal,
                    "config": dict(topic.config),
                    "partitions": partitions,
                }
            )
    if current().json:
        document(found)
        return readable.status(True)
    for each in found:
        own = ",".join(f"{key}={value}" for key, value in each["config"].items())
        click.echo(
            f"{each['topic']}  id {each['topic_id']}  {len(each['partitions'])} partitions  {own}".rstrip()
        )
        columns = ["partition", "leader", "replicas", "isr", "start", "end", "bytes"]
        rows = [
            [",".join(map(str, cell)) if isinstance(cell, list) else cell for cell in row.values()]
            for row in each["partitions"]
        ]
        table(columns, rows)
    return readable.status(True)
