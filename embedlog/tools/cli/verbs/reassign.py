"""Contains the verb `reassign`, with the options and files of kafka-reassign-partitions.

`--execute` decides first; then it copies, unless `--no-wait` leaves that to the processes that have
the log open. An interrupted copy continues with any of them. `--verify` has the exit status 1 while
a reassignment is in progress, or if a partition has other nodes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import click

import embedlog
from embedlog import TopicPartition
from embedlog.tools.cli.arguments import action_options
from embedlog.tools.cli.invocation import current, open_log, verb
from embedlog.tools.cli.output import print_document, print_table
from embedlog.tools.cli.reassignment import document_of, read_assignment, read_topics

_ACTIONS = {
    "generate": "Propose an assignment for --topics-to-move-json-file.",
    "execute": "Begin the reassignment of --reassignment-json-file, and copy.",
    "verify": "Whether the assignment of --reassignment-json-file is reached.",
    "cancel": "Cancel the reassignments of --reassignment-json-file.",
    "list": "List reassignments in progress.",
}


@verb()
@action_options(_ACTIONS)
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
        return _generate(read_topics(topics_to_move_json_file), nodes)
    if action != "list" and reassignment_json_file is None:
        raise click.UsageError(f"--{action} needs --reassignment-json-file")
    assignment = {} if reassignment_json_file is None else read_assignment(reassignment_json_file)
    with open_log(read_only=action in ("verify", "list")) as log:
        if action == "execute":
            log.reassign(assignment, throttle=throttle)
            while not no_wait and any(tp in log.reassignments() for tp in assignment):
                log.housekeep()
        elif action == "cancel":
            log.reassign(dict.fromkeys(tp for tp in assignment if tp in log.reassignments()))
        return _report(log, action, assignment)


def _generate(topics: Sequence[str], nodes: str | None) -> int:
    try:
        chosen = None if nodes is None else [int(node) for node in nodes.split(",")]
    except ValueError:
        raise click.UsageError(f"--nodes: expected nodes such as 1,2,3, found {nodes!r}") from None
    current_nodes: dict[TopicPartition, Sequence[int]] = {}
    with open_log() as log:
        for topic in topics:
            current_nodes |= _current_nodes_of(log, topic)
        proposed = log.proposed_assignment(topics, chosen)
    if current().json:
        print_document({"current": document_of(current_nodes), "proposed": document_of(proposed)})
    else:
        _print_assignment("Current partition replica assignment", current_nodes)
        _print_assignment("Proposed partition reassignment configuration", proposed)
    return 0


def _print_assignment(title: str, assignment: Mapping[TopicPartition, Sequence[int]]) -> None:
    click.echo(f"{title}\n{json.dumps(document_of(assignment), separators=(',', ':'))}\n")


def _current_nodes_of(log: embedlog.Log, topic: str | None) -> dict[TopicPartition, Sequence[int]]:
    return {
        TopicPartition(partition.topic, partition.partition): partition.replicas
        for partition in log.replicas(topic).partitions
    }


def _report(
    log: embedlog.Log, action: str, assignment: Mapping[TopicPartition, Sequence[int]]
) -> int:
    moving = log.reassignments()
    current_nodes = _current_nodes_of(log, None)
    partitions = [
        _ReassignedPartition(tp, list(current_nodes.get(tp, ())), tp in moving, assignment.get(tp))
        for tp in (moving if action == "list" else assignment)
    ]
    if current().json:
        print_document([partition.document() for partition in partitions])
    elif partitions:
        rows = [
            (*partition.tp, _join(partition.replicas) or None, partition.state)
            for partition in partitions
        ]
        print_table(("topic", "partition", "replicas", "state"), rows)
    is_complete = all(partition.complete for partition in partitions)
    return 1 if action == "verify" and not is_complete else 0


def _join(nodes: Sequence[int]) -> str:
    return ",".join(map(str, nodes))


class _ReassignedPartition(NamedTuple):
    """A partition with its current nodes, and with the wanted ones, which a list of reassignments
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
        return f"replica set is {_join(self.replicas)} rather than {_join(self.wanted or ())}"

    def document(self) -> dict[str, Any]:
        document = {**self.tp._asdict(), "replicas": self.replicas, "in_progress": self.in_progress}
        if self.wanted is not None:
            document |= {"wanted": self.wanted, "complete": self.complete}
        return document
