"""Contains the verb `reassign`, with the options and files of kafka-reassign-partitions.

REASSIGNVERB-1  `--execute` decides first; then it copies, unless `--no-wait` leaves that to the processes that have the log open.
    An interrupted copy continues with any of them
REASSIGNVERB-2  `--verify` has the exit status 1 while a reassignment is in progress, or if a partition has other nodes
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

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
@click.option("--topics-to-move-json-file", type=click.Path(exists=True, dir_okay=False), help="Kafka's list of topics.")
@click.option(
    "--reassignment-json-file", type=click.Path(exists=True, dir_okay=False), help="Kafka's list of partitions and nodes."
)
@click.option("--nodes", help="Nodes for --generate, such as 1,2,3; all if not given.")
@click.option("--throttle", type=click.IntRange(min=1), help="Bytes per second that are copied out of each directory.")
@click.option("--no-wait", is_flag=True, help="Leave the copies to the processes that have the log open.")
def reassign(
    action: str | None, topics_to_move_json_file: str | None, reassignment_json_file: str | None, nodes: str | None,
    throttle: int | None, no_wait: bool,
) -> int:  # fmt: skip
    """Move partitions to other directories of a set.

    JSON of --generate: {"current", "proposed"} in Kafka's form. JSON of the others: a list of {"topic", "partition",
    "replicas", "in_progress"}.
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
    return {TopicPartition(each.topic, each.partition): each.replicas for each in log.replicas(topic).partitions}


def _report(log: embedlog.Log, action: str, wanted: Mapping[TopicPartition, Sequence[int]]) -> int:
    moving, present = log.reassignments(), _present(log, None)
    places = list(moving) if action == "list" else list(wanted)
    rows = [(tp.topic, tp.partition, list(present.get(tp, ())), tp in moving) for tp in places]
    if current().json:
        document([dict(zip(("topic", "partition", "replicas", "in_progress"), row, strict=True)) for row in rows])
    elif rows:
        table(
            ("topic", "partition", "replicas", "state"),
            [
                (name, number, ",".join(map(str, nodes)), "in progress" if busy else "complete")
                for name, number, nodes, busy in rows
            ],
        )
    if action == "verify":
        return (
            0
            if all(not busy and nodes == list(wanted[TopicPartition(name, number)]) for name, number, nodes, busy in rows)
            else 1
        )
    return 0
