"""Contains the verb `configs`, with the options of kafka-configs for topics.

Without `--all` only settings of the topic itself are shown. The origin of a setting is "topic" or
"default".
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from embedlog import Log
from embedlog.tools.cli.arguments import (
    complete_topic_names,
    complete_topic_setting_names,
    complete_topic_settings,
    parse_settings,
)
from embedlog.tools.cli.internal_topics import (
    hidden_topics,
    internal_option,
    shown_topics,
    tell_hidden,
)
from embedlog.tools.cli.invocation import current, open_log, verb
from embedlog.tools.cli.output import print_document, print_table
from embedlog.tools.cli.readable import ReadableMembers
from embedlog.tools.cli.terminal import tell

_OTHERS = ["brokers", "clients", "users", "ips", "broker-loggers", "client-metrics", "groups"]
_COLUMNS = ("topic", "name", "value", "origin")


@verb(exclusive=[("--describe", "--alter"), ("--all", "--alter")])
@click.option(
    "--entity-type",
    type=click.Choice(["topics", *_OTHERS]),
    default="topics",
    help="Only topics have settings here.",
)
@click.option(
    "--topic",
    "--entity-name",
    "topic",
    shell_complete=complete_topic_names,
    help="The topic; all if not given.",
)
@internal_option()
@click.option("--describe", is_flag=True, help="Print settings (the default).")
@click.option("--all", "effective", is_flag=True, help="Print all settings with their origin.")
@click.option("--alter", is_flag=True, help="Change settings of a topic.")
@click.option(
    "--add-config",
    metavar="KEY=VALUE,…",
    shell_complete=complete_topic_settings,
    help="Brackets protect commas: cleanup.policy=[compact,delete].",
)
@click.option(
    "--add-config-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Lines of key=value.",
)
@click.option(
    "--delete-config",
    metavar="KEY,…",
    shell_complete=complete_topic_setting_names,
    help="Settings that get the default again.",
)
def configs(
    entity_type: str, topic: str | None, alter: bool, include_internal: bool, **options: Any
) -> int:
    """Print and change settings of topics.

    JSON: a list of {"topic", "name", "value", "origin"}.
    """
    if entity_type != "topics":
        raise click.UsageError(
            f"--entity-type {entity_type}: only topics have stored settings; a program gives the "
            "others"
        )
    changes = (options["add_config"], options["add_config_file"], options["delete_config"])
    if not alter and any(change is not None for change in changes):
        raise click.UsageError("--add-config and --delete-config need --alter")
    readable = ReadableMembers()
    with open_log(read_only=not alter) as log:
        if alter:
            return _alter(log, topic, options)
        names = [topic] if topic else shown_topics(log, include_internal)
        hidden = frozenset() if topic else hidden_topics(log, include_internal)
        rows = []
        for topic_rows in readable.describe_each(
            names, lambda name: _rows_of_topic(log, name, options["effective"])
        ):
            rows += topic_rows
    if current().json:
        _print_document(rows)
    else:
        print_table(_COLUMNS, rows)
        if not rows and readable.is_whole:
            if topic:
                whose = f"{topic} has no"
            elif names:
                whose = "no topic has"
            else:
                whose = "there is no topic that has"
            tell(f"embedlog: {whose} settings of its own; --all prints the effective ones")
        tell_hidden(hidden, "internal topic")
    return readable.status(bool(rows))


def _print_document(rows: list[tuple[str, str, str, str]]) -> None:
    print_document([dict(zip(_COLUMNS, row, strict=True)) for row in rows])


def _rows_of_topic(log: Log, topic: str, effective: bool) -> list[tuple[str, str, str, str]]:
    own = log.describe_topic(topic).config
    shown = log.config.topic_config(own).as_kafka() if effective else dict(own)
    return [
        (topic, name, value, "topic" if name in own else "default")
        for name, value in sorted(shown.items())
    ]


def _alter(log: Log, topic: str | None, options: dict[str, Any]) -> int:
    if topic is None:
        raise click.UsageError("--alter needs --topic")
    changes: dict[str, str | None] = {}
    if options["add_config_file"] is not None:
        content = options["add_config_file"].read_text(encoding="utf-8", errors="replace")
        lines = [line for line in content.splitlines() if line.strip() and not line.startswith("#")]
        changes |= parse_settings(lines, "--add-config-file")
    if options["add_config"] is not None:
        parts = re.findall(r"(?:\[[^\]]*\]|[^,\[])+", options["add_config"])
        for name, value in parse_settings(parts, "--add-config").items():
            changes[name] = value.strip("[]")
    own = log.describe_topic(topic).config
    for name in (options["delete_config"] or "").split(","):
        if not name:
            continue
        if name not in own:
            raise click.UsageError(f"--delete-config: {topic} has no setting {name!r} of its own")
        changes[name] = None
    if not changes:
        raise click.UsageError("--alter needs --add-config, --add-config-file or --delete-config")
    log.alter_topic(topic, changes)
    if current().json:
        _print_document(_rows_of_topic(log, topic, effective=False))
    else:
        click.echo(f"Completed updating config for topic {topic}.")
    return 0
