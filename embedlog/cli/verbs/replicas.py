"""Contains the verb `replicas`: directories, leaders and ISRs, and the comparison of
kafka-replica-verification.

REPLICASVERB-1  differences and partitions without a full ISR are findings: the exit status is 1
REPLICASVERB-2  a directory that cannot be read is a finding of a comparison, too
REPLICASVERB-3  only `--repair` changes the directories
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import click

import embedlog
from embedlog.cli.arguments import topic_option
from embedlog.cli.internal_topics import internal_option, tell_hidden
from embedlog.cli.invocation import current, open_log, verb
from embedlog.cli.output import document, table
from embedlog.cli.terminal import tell

ROUNDS = 10
DECISIONS = 5  # the newest ones, which are printed


@verb(exclusive=[("--verify", "--repair")])
@topic_option(help="Only this topic.")
@click.option("--verify", is_flag=True, help="Compare the records of all replicas.")
@internal_option()
@click.option(
    "--repair",
    is_flag=True,
    help="Replace different and damaged records by those of a complete replica.",
)
def replicas(topic: str | None, verify: bool, repair: bool, include_internal: bool) -> int:
    """Print directories, leaders, ISRs and lags, or compare replicas.

    JSON: the fields of Log.replicas(), such as "directories", "partitions" and "decisions". JSON of
    --verify and --repair: a list of differences {"topic", "partition", "node", "kind", "path",
    "first_offset", "end_offset", "message"}.
    """
    if verify or repair:
        return _verify(topic, repair=repair)
    with open_log() as log:
        found = log.replicas(topic)
    hides = not include_internal and topic is None
    shown = [
        each for each in found.partitions if not hides or not each.internal or _is_finding(each)
    ]
    if current().json:
        document(asdict(found) | {"partitions": [asdict(each) for each in shown]})
    else:
        _print(found, shown)
    tell_hidden(range(len(found.partitions) - len(shown)), "internal partition")
    return 1 if any(_is_finding(each) for each in found.partitions) else 0


def _is_finding(partition: embedlog.ReplicatedPartitionDescription) -> bool:
    return partition.under_replicated or partition.offline


def _print(
    found: embedlog.ReplicasDescription, shown: list[embedlog.ReplicatedPartitionDescription]
) -> None:
    if found.voters:
        answer = "a majority answers" if found.can_decide else "NO majority answers"
        click.echo(f"Term {found.term}, voters {_nodes(found.voters)}: {answer}")
    columns = ["node", "state", "path", "rack", "leads", "holds", "since", "reason"]
    table(
        columns,
        [
            [
                each.node,
                each.state,
                each.path,
                each.rack,
                each.leads,
                each.holds,
                _time(each.since_ms),
                each.reason,
            ]
            for each in found.directories
        ],
    )
    for warning in found.warnings:
        click.echo(f"Warning: {warning}")
    if shown:
        click.echo()
        columns = [
            "topic",
            "partition",
            "state",
            "epoch",
            "isr",
            "replica",
            "state",
            "start",
            "end",
            "hw",
            "durable",
            "lag",
            "bytes",
            "seconds",
        ]
        table(columns, [row for partition in shown for row in _partition_rows(partition)])
    if found.decisions:
        click.echo()
        newest = found.decisions[-DECISIONS:]
        rows = [
            [each.offset, each.term, _time(each.timestamp_ms), "; ".join(each.changes)]
            for each in newest
        ]
        table(["offset", "term", "time", "changes"], rows)


def _partition_rows(partition: embedlog.ReplicatedPartitionDescription) -> list[list[Any]]:
    """One row for each replica."""
    state = partition.state.removesuffix("Partition")
    facts = [
        partition.topic,
        partition.partition,
        state,
        partition.leader_epoch,
        _nodes(partition.isr),
    ]
    rows: list[list[Any]] = []
    for copy in partition.copies:
        role = (
            "leader" if copy.leads else copy.state.removeprefix("Replica").removesuffix("Replica")
        )
        seconds = None if copy.lag_seconds is None else f"{copy.lag_seconds:.1f}"
        rows.append(
            [
                *facts,
                copy.node,
                role,
                copy.log_start,
                copy.log_end,
                copy.high_watermark,
                copy.durable_offset,
                copy.lag,
                copy.lag_bytes,
                seconds,
            ]
        )
    return rows or [[*facts, *[None] * 9]]


def _nodes(nodes: Iterable[int]) -> str:
    return ",".join(map(str, nodes)) or "none"


def _time(time_ms: int | None) -> str | None:
    return (
        None
        if time_ms is None
        else datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(" ", "seconds")
    )


def _complete(log: embedlog.Log, topic: str | None) -> None:
    """Do rounds of housekeeping until every replica is in sync: one that cannot be loaded is copied
    there.
    """
    for _ in range(ROUNDS):
        if not any(each.under_replicated for each in log.replicas(topic).partitions):
            return
        log.housekeep()


def _verify(topic: str | None, *, repair: bool) -> int:
    with open_log(read_only=not repair) as log:
        if repair:
            report = log.repair(topic)
            _complete(log, topic)
            differences: list[Any] = [*report.repaired, *report.left]
        else:
            report = None
            differences = list(log.verify_replicas(topic))
        absent = [each for each in log.replicas(topic).directories if not each.answers]
    if current().json:
        document([each._asdict() for each in differences])
    elif differences:
        columns = ("topic", "partition", "node", "from", "to", "file")
        table(
            columns,
            [
                (
                    each.topic,
                    each.partition,
                    each.node,
                    each.first_offset,
                    each.end_offset,
                    each.path,
                )
                for each in differences
            ],
        )
    for directory in absent:
        tell(
            f"embedlog: node {directory.node} is not compared: "
            f"{directory.reason or directory.state}"
        )
    if report is not None:
        for each, reason in report.left.items():
            tell(
                f"embedlog: {each.topic}-{each.partition}, node {each.node}: not repaired: {reason}"
            )
        return 1 if report.left or absent else 0
    return 1 if differences or absent else 0
