"""Contains the verb `handover`: a directory is given to a Kafka broker, and taken back, in one step
each.

HANDOVERVERB-1  the directory is opened and closed first, so that a crash is recovered; then nothing
    of it is open
HANDOVERVERB-2  a repetition completes an interrupted handover
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

import embedlog
from embedlog.cli.arguments import settings
from embedlog.cli.invocation import current, directories, verb
from embedlog.cli.output import document, table
from embedlog.handover import from_kafka, to_kafka
from embedlog.handover.server_properties import Addresses
from embedlog.handover.settings import CARRIED, Setting

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
    "given",
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
    given: tuple[str, ...],
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
    places = directories()
    if len(places) != 1:
        raise click.UsageError(
            "handover needs one directory: that of a set is copied first, by `embedlog backup`"
        )
    path = Path(places[0])
    metadata = Path(metadata_dir) if metadata_dir else None
    if direction == "to-kafka":
        return _to_kafka(
            path,
            metadata,
            Addresses(listen, listen_controller),
            settings(given, "--config"),
            dry_run=dry_run,
        )
    if given:
        raise click.UsageError("--config is for to-kafka")
    return _from_kafka(path, metadata, dry_run=dry_run)


def _to_kafka(
    path: Path, metadata: Path | None, addresses: Addresses, given: dict[str, str], *, dry_run: bool
) -> int:
    to_kafka.check_last_use(path)
    made = to_kafka.plan(path, metadata, addresses, given)
    if not dry_run:
        embedlog.open(path, create=False).close()
        made = to_kafka.hand_over(path, metadata, addresses, given)
    facts = {
        "directory": str(made.directory),
        "cluster_id": made.meta.cluster_id,
        "node_id": made.meta.node_id,
        "metadata_directory": str(made.metadata),
        "topics": made.topics,
        "properties": str(made.properties_path),
    }
    if current().json:
        document(facts | {"settings": [each._asdict() for each in made.settings]})
        return 0
    _print(made.settings)
    count = f"{len(made.topics)} topics with {sum(made.topics.values())} partitions"
    if dry_run:
        click.echo(f"A broker would get {count}.")
    else:
        click.echo(f"The broker of node {made.meta.node_id} has {count}. Start it:")
        click.echo(f"bin/kafka-server-start.sh {made.properties_path}")
    return 0


def _from_kafka(path: Path, metadata: Path | None, *, dry_run: bool) -> int:
    found = from_kafka.plan(path, metadata) if dry_run else from_kafka.take_back(path, metadata)
    if not dry_run:
        embedlog.open(path, create=False).close()
        from_kafka.finish(path)
    if current().json:
        facts: dict[str, Any] = {
            key: value
            for key, value in asdict(found).items()
            if key not in ("meta", "changed", "metadata")
        }
        facts |= {"directory": str(found.directory), "metadata_directory": str(found.metadata)}
        facts |= {"cluster_id": found.meta.cluster_id, "node_id": found.meta.node_id}
        document(facts | {"settings": [each._asdict() for each in found.settings]})
        return 0
    _print(found.settings)
    for what, names in (
        ("Created", found.created),
        ("Deleted", found.deleted),
        ("Set aside", found.set_aside),
    ):
        if names:
            click.echo(f"{what}: {', '.join(names)}")
    if found.lost:
        click.echo(f"Only in the metadata of the broker: {', '.join(found.lost)}")
    verb_text = "would be" if dry_run else "are"
    click.echo(
        f"{len(found.topics)} topics with {sum(found.topics.values())} partitions {verb_text} back."
    )
    return 0


def _print(outcomes: list[Setting]) -> None:
    """The settings, those with a loss last; of internal topics only these."""
    shown = [
        each
        for each in outcomes
        if each.outcome != CARRIED or not (each.topic or "").startswith("__")
    ]
    ordered = sorted(shown, key=lambda each: (each.outcome != CARRIED, each.topic or "", each.name))
    if ordered:
        table(
            ("topic", "setting", "value", "outcome", "reason"),
            [
                (each.topic, each.name, each.value, each.outcome, each.reason or None)
                for each in ordered
            ],
        )
