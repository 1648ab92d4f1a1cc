"""Contains the verb `reassign`, with the options and files of kafka-reassign-partitions.

REASSIGNVERB-1  `--execute` decides first; then it copies, unless `--no-wait` leaves that to the
    processes that have the log open. An interrupted copy continues with any of them
REASSIGNVERB-2  `--verify` has the exit status 1 while a reassignment is in progress, or if a
    partition has other nodes
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import click

import embedlog
from embedlog import TopicPartition
from embedlog.cli.arguments import actions
from embedlog.cli.invocation import current, open_log, verb
from embedlog.cli.output import document, table
from embedlog.cli.reassignment import assignment_in, described, topics_in

_ACTIONS = {
    "generate": "Propose an assignment for --topics-to-move-json-file.",
    "execute": "Begin the reassignment of --reassignment-json-file, and copy.",
    "verify": "Whether the assignment of --reassignment-json-file is reached.",
    "cancel": "Cancel the reassignments of --reassignment-json-file.",
    "list": "List reassignments in progress.",
}


@verb()
@actions(_ACTIONS)
@click.option(
    "--topics-to-move-json-file",
    type=click.Path(exists=True, dir_okay=False),
    help="Kafka's list of topics.",
)
@click.option(
    "--reassignment-json-file",
    type=click.Path(exists=True, dir_okay=False),
    help="Kafka's list of partitions and nodes.",
)
@click.option("--nodes", help="Nodes for --generate, such as 1,2,3; all if not given.")
@click.option(
    "--throttle",
    type=click.IntRange(min=1),
    help="Bytes per second that are copied out of each directory.",
)
@click.option(
    "--no-wait", is_flag=True, help="Leave the copies to the processes that have the log open."
)
def reassign(
    action: str | None,
    topics_to_move_json_file: str | None,
    reassignment_json_file: str | None,
    nodes: str | None,
    throttle: int | None,
    no_wait: bool,
) -> int:
    """Move partitions to other directories of a set.

    JSON of --generate: {"current", "proposed"} in Kafka's form. JSON of the others: a list of
    {"topic", "partition", "replicas", "in_progress"}, and "wanted", "complete" except for --list.
    """
    if action is None:
        raise click.UsageError("give one of --generate, --execute, --verify, --cancel, --list")
    if action == "generate":
        if topics_to_move_json_file is None:
            raise click.UsageError("--generate needs --topics-to-move-json-file")
        return _generate(topics_in(topics_to_move_json_file), nodes)
    if action != "list" and reassignment_json_file is None:
        raise click.UsageError(f"--{action} needs --reassignment-json-file")
    wanted = {} if reassignment_json_file is None else assignment_in(reassignment_json_file)
    with open_log(read_only=action in ("verify", "list")) as log:
        if action == "execute":
            log.reassign(wanted, throttle=throttle)
            while not no_wait and any(tp in log.reassignments() for tp in wanted):
                log.housekeep()
        elif action == "cancel":
            log.reassign(dict.fromkeys(tp for tp in wanted if tp in log.reassignments()))
        return _report(log, action, wanted)


def _generate(topics: Sequence[str], nodes: str | None) -> int:
    try:
        chosen = None if nodes is None else [int(node) for node in nodes.split(",")]
    except ValueError:
        raise click.UsageError(f"--nodes: expected nodes such as 1,2,3, found {nodes!r}") from None
    with open_log() as log:
        present = {tp: found for name in topics for tp, found in _present(log, name).items()}
        proposed = log.proposed_assignment(topics, chosen)
    if current().json:
        document({"current": described(present), "proposed": described(proposed)})
        return 0
    for title, found in (
        ("Current partition replica assignment", present),
        ("Proposed partition reassignment configuration", proposed),
    ):
        click.echo(f"{title}\n{json.dumps(described(found), separators=(',', ':'))}\n")
    return 0


def _present(log: embedlog.Log, topic: str | None) -> dict[TopicPartition, Sequence[int]]:
    return {
        TopicPartition(each.topic, each.partition): each.replicas
        for each in log.replicas(topic).partitions
    }


def _report(log: embedlog.Log, action: str, wanted: Mapping[TopicPartition, Sequence[int]]) -> int:
    moving = log.reassignments()
    present = _present(log, None)
    found = [
        _Reached(tp, list(present.get(tp, ())), tp in moving, wanted.get(tp))
        for tp in (moving if action == "list" else wanted)
    ]
    if current().json:
        document([each.document() for each in found])
    elif found:
        rows = [(*each.tp, ",".join(map(str, each.replicas)) or None, each.state) for each in found]
        table(("topic", "partition", "replicas", "state"), rows)
    return 1 if action == "verify" and not all(each.complete for each in found) else 0


class _Reached(NamedTuple):
    """A partition with its present nodes, and with the wanted ones, which a list of reassignments
    does not have.
    """

    tp: TopicPartition
    replicas: list[int]
    in_progress: bool
    wanted: Sequence[int] | None

    @property
    def complete(self) -> bool:
        return not self.in_progress and self.replicas == self.wanted

    @property
    def state(self) -> str:
        """In the words of Kafka's script."""
        if self.in_progress:
            return "in progress"
        if self.complete:
            return "complete"
        if not self.replicas:
            return "unknown partition"
        present, wanted = (
            ",".join(map(str, nodes)) for nodes in (self.replicas, self.wanted or ())
        )
        return f"replica set is {present} rather than {wanted}"

    def document(self) -> dict[str, Any]:
        found = {**self.tp._asdict(), "replicas": self.replicas, "in_progress": self.in_progress}
        return (
            found
            if self.wanted is None
            else {**found, "wanted": self.wanted, "complete": self.complete}
        )
