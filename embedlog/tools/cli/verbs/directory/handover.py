"""Contains the verb `handover`: a directory is given to a Kafka broker, and taken back, in one step
each.

The directory is opened and closed first, so that a crash is recovered; then nothing of it is open.
A repetition completes an interrupted handover.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

import embedlog
from embedlog.tools.cli.arguments import parse_settings
from embedlog.tools.cli.invocation import current, directories, verb
from embedlog.tools.cli.output import print_document, print_table
from embedlog.tools.handover import from_kafka, to_kafka
from embedlog.tools.handover.server_properties import Addresses
from embedlog.tools.handover.settings import CARRIED, Setting

DEFAULTS = Addresses()


@verb()
@click.argument("direction", type=click.Choice(["to-kafka", "from-kafka"]))
@click.option(
    "--listen",
    default=DEFAULTS.clients,
    show_default=True,
    metavar="HOST:PORT",
    help="Address for clients.",
)
@click.option(
    "--listen-controller",
    default=DEFAULTS.controller,
    show_default=True,
    metavar="HOST:PORT",
    help="Address of the controller.",
)
@click.option(
    "--metadata-dir",
    type=click.Path(),
    help="Directory of the metadata log; without it, the log directory.",
)
@click.option(
    "-c",
    "--config",
    "config",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting of the broker. Repeatable.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be handed over, and write nothing.")
def handover(
    direction: str,
    listen: str,
    listen_controller: str,
    metadata_dir: str | None,
    config: tuple[str, ...],
    dry_run: bool,
) -> int:
    """Give the directory to a Kafka broker (to-kafka), or take it back when the broker has stopped
    (from-kafka).

    to-kafka writes the metadata that a broker of Kafka 4 needs: topics with their ids, partitions
    and settings, and a configuration file. It prints the command that starts the broker. Groups,
    transactions and offsets continue there. from-kafka takes over what was created, changed and
    deleted at the broker. Settings that the other side does not have are named as lost.

    JSON: {"directory", "cluster_id", "node_id", "metadata_directory", "topics", "settings"}.
    `topics` are {name: partitions}, `settings` a list of {"topic", "name", "value", "outcome",
    "reason"}. to-kafka also has "properties", the file. from-kafka also has "created", "deleted",
    "set_aside", "lost" and "clean".
    """
    paths = directories()
    if len(paths) != 1:
        raise click.UsageError(
            "handover needs one directory: that of a set is copied first, by `embedlog backup`"
        )
    path = Path(paths[0])
    metadata = Path(metadata_dir) if metadata_dir else None
    if direction == "to-kafka":
        return _to_kafka(
            path,
            metadata,
            Addresses(listen, listen_controller),
            parse_settings(config, "--config"),
            dry_run=dry_run,
        )
    if config:
        raise click.UsageError("--config is for to-kafka")
    return _from_kafka(path, metadata, dry_run=dry_run)


def _to_kafka(
    path: Path,
    metadata: Path | None,
    addresses: Addresses,
    config: dict[str, str],
    *,
    dry_run: bool,
) -> int:
    to_kafka.check_last_use(path)
    plan = to_kafka.plan(path, metadata, addresses, config)
    if not dry_run:
        embedlog.open(path, create=False).close()
        plan = to_kafka.hand_over(path, metadata, addresses, config)
    facts = {
        "directory": str(plan.directory),
        "cluster_id": plan.meta.cluster_id,
        "node_id": plan.meta.node_id,
        "metadata_directory": str(plan.metadata),
        "topics": plan.topics,
        "properties": str(plan.properties_path),
    }
    if current().json:
        print_document(facts | {"settings": [setting._asdict() for setting in plan.settings]})
        return 0
    _print(plan.settings)
    count = f"{len(plan.topics)} topics with {sum(plan.topics.values())} partitions"
    if dry_run:
        click.echo(f"A broker would get {count}.")
    else:
        click.echo(f"The broker of node {plan.meta.node_id} has {count}. Start it:")
        click.echo(f"bin/kafka-server-start.sh {plan.properties_path}")
    return 0


def _from_kafka(path: Path, metadata: Path | None, *, dry_run: bool) -> int:
    plan = from_kafka.plan(path, metadata) if dry_run else from_kafka.take_back(path, metadata)
    if not dry_run:
        embedlog.open(path, create=False).close()
        from_kafka.finish(path)
    if current().json:
        facts: dict[str, Any] = {
            key: value
            for key, value in asdict(plan).items()
            if key not in ("meta", "changed", "metadata")
        }
        facts |= {"directory": str(plan.directory), "metadata_directory": str(plan.metadata)}
        facts |= {"cluster_id": plan.meta.cluster_id, "node_id": plan.meta.node_id}
        print_document(facts | {"settings": [setting._asdict() for setting in plan.settings]})
        return 0
    _print(plan.settings)
    for heading, names in (
        ("Created", plan.created),
        ("Deleted", plan.deleted),
        ("Set aside", plan.set_aside),
    ):
        if names:
            click.echo(f"{heading}: {', '.join(names)}")
    if plan.lost:
        click.echo(f"Only in the metadata of the broker: {', '.join(plan.lost)}")
    verb_text = "would be" if dry_run else "are"
    click.echo(
        f"{len(plan.topics)} topics with {sum(plan.topics.values())} partitions {verb_text} back."
    )
    return 0


def _print(settings: list[Setting]) -> None:
    """The settings, those with a loss last; of internal topics only these."""
    shown = [
        setting
        for setting in settings
        if setting.outcome != CARRIED or not (setting.topic or "").startswith("__")
    ]
    ordered = sorted(
        shown, key=lambda setting: (setting.outcome != CARRIED, setting.topic or "", setting.name)
    )
    if ordered:
        print_table(
            ("topic", "setting", "value", "outcome", "reason"),
            [
                (
                    setting.topic,
                    setting.name,
                    setting.value,
                    setting.outcome,
                    setting.reason or None,
                )
                for setting in ordered
            ],
        )
