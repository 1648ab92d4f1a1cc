"""Contains the verb `configs`, with the options of kafka-configs for topics.

CONFIGS-1  without `--all` only settings of the topic itself are shown
CONFIGS-2  the origin of a setting is "topic" or "default"
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from embedlog import Log
from embedlog.cli.arguments import settings, topic_names, topic_setting_names, topic_settings
from embedlog.cli.internal_topics import hidden_topics, internal_option, shown_topics, tell_hidden
from embedlog.cli.invocation import current, open_log, verb
from embedlog.cli.output import document, table
from embedlog.cli.readable import Readable
from embedlog.cli.terminal import tell

_OTHERS = ["brokers", "clients", "users", "ips", "broker-loggers", "client-metrics", "groups"]


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
    shell_complete=topic_names,
    help="The topic; all if not given.",
)
@internal_option()
@click.option("--describe", is_flag=True, help="Print settings (the default).")
@click.option("--all", "effective", is_flag=True, help="Print all settings with their origin.")
@click.option("--alter", is_flag=True, help="Change settings of a topic.")
@click.option(
    "--add-config",
    metavar="KEY=VALUE,…",
    shell_complete=topic_settings,
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
    shell_complete=topic_setting_names,
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
    if not alter and any(
        options[name] is not None for name in ("add_config", "add_config_file", "delete_config")
    ):
        raise click.UsageError("--add-config and --delete-config need --alter")
    readable = Readable()
    with open_log(read_only=not alter) as log:
        if alter:
            return _alter(log, topic, options)
        names = [topic] if topic else shown_topics(log, include_internal)
        hidden = frozenset() if topic else hidden_topics(log, include_internal)
        rows = [
            row
            for found in readable.each(names, lambda name: _rows(log, name, options["effective"]))
            for row in found
        ]
    if current().json:
        document(
            [dict(zip(("topic", "name", "value", "origin"), row, strict=True)) for row in rows]
        )
    else:
        table(["topic", "name", "value", "origin"], rows)
        if not rows and readable.whole:
            whose = (
                f"{topic} has"
                if topic
                else "no topic has"
                if names
                else "there is no topic that has"
            )
            tell(
                f"embedlog: {whose}{' no' if topic else ''} settings of its own; --all prints the "
                "effective ones"
            )
        tell_hidden(hidden, "internal topic")
    return readable.status(bool(rows))


def _rows(log: Log, topic: str, effective: bool) -> list[tuple[str, str, str, str]]:
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
        lines = (
            options["add_config_file"].read_text(encoding="utf-8", errors="replace").splitlines()
        )
        changes |= settings(
            [line for line in lines if line.strip() and not line.startswith("#")],
            "--add-config-file",
        )
    if options["add_config"] is not None:
        parts = re.findall(r"(?:\[[^\]]*\]|[^,\[])+", options["add_config"])
        changes |= {
            name: value.strip("[]") for name, value in settings(parts, "--add-config").items()
        }
    own = log.describe_topic(topic).config
    for name in filter(None, (options["delete_config"] or "").split(",")):
        if name not in own:
            raise click.UsageError(f"--delete-config: {topic} has no setting {name!r} of its own")
        changes[name] = None
    if not changes:
        raise click.UsageError("--alter needs --add-config, --add-config-file or --delete-config")
    log.alter_topic(topic, changes)
    if current().json:
        rows = _rows(log, topic, effective=False)
        document(
            [dict(zip(("topic", "name", "value", "origin"), row, strict=True)) for row in rows]
        )
    else:
        click.echo(f"Completed updating config for topic {topic}.")
    return 0
