"""Contains the verb `replicas`: directories, leaders and ISRs, and the comparison of
kafka-replica-verification.

- Differences and partitions without a full ISR are findings: the exit status is 1. With `--repair`
  only what was not repaired is a finding.
- A directory that cannot be read is a finding of a comparison, too.
- Only `--repair` changes the directories.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import click

import embedlog
from embedlog.tools.cli.arguments import topic_option
from embedlog.tools.cli.internal_topics import internal_option, tell_hidden
from embedlog.tools.cli.invocation import current, open_log, verb
from embedlog.tools.cli.output import print_document, print_table
from embedlog.tools.cli.terminal import tell

ROUNDS = 10  # of housekeeping after a repair, at most
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
        description = log.replicas(topic)
    hides = not include_internal and topic is None
    shown = [
        partition
        for partition in description.partitions
        if not hides or not partition.internal or _is_finding(partition)
    ]
    if current().json:
        print_document(
            asdict(description) | {"partitions": [asdict(partition) for partition in shown]}
        )
    else:
        _print(description, shown)
    tell_hidden(range(len(description.partitions) - len(shown)), "internal partition")
    return 1 if any(_is_finding(partition) for partition in description.partitions) else 0


def _is_finding(partition: embedlog.ReplicatedPartitionDescription) -> bool:
    return partition.under_replicated or partition.offline


def _print(
    description: embedlog.ReplicasDescription, shown: list[embedlog.ReplicatedPartitionDescription]
) -> None:
    if description.voters:
        answer = "a majority answers" if description.can_decide else "NO majority answers"
        click.echo(f"Term {description.term}, voters {_nodes(description.voters)}: {answer}")
    columns = ["node", "state", "path", "rack", "leads", "holds", "since", "reason"]
    rows: list[list[Any]] = [
        [
            directory.node,
            directory.state,
            directory.path,
            directory.rack,
            directory.leads,
            directory.holds,
            _date_of(directory.since_ms),
            directory.reason,
        ]
        for directory in description.directories
    ]
    print_table(columns, rows)
    for warning in description.warnings:
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
        print_table(columns, [row for partition in shown for row in _partition_rows(partition)])
    if description.decisions:
        click.echo()
        newest = description.decisions[-DECISIONS:]
        rows = [
            [
                decision.offset,
                decision.term,
                _date_of(decision.timestamp_ms),
                "; ".join(decision.changes),
            ]
            for decision in newest
        ]
        print_table(["offset", "term", "time", "changes"], rows)


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


def _date_of(time_ms: int | None) -> str | None:
    if time_ms is None:
        return None
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(" ", "seconds")


def _complete_replicas(log: embedlog.Log, topic: str | None) -> list[str]:
    """Do rounds of housekeeping until every replica is in sync, or for ROUNDS: one that cannot be
    loaded is copied there. The partitions with replicas that are not in sync after the last round.
    """
    for _ in range(ROUNDS):
        if not _find_incomplete(log, topic):
            return []
        log.housekeep()
    return _find_incomplete(log, topic)


def _find_incomplete(log: embedlog.Log, topic: str | None) -> list[str]:
    return [
        f"{partition.topic}-{partition.partition}"
        for partition in log.replicas(topic).partitions
        if partition.under_replicated
    ]


def _verify(topic: str | None, *, repair: bool) -> int:
    with open_log(read_only=not repair) as log:
        if repair:
            report = log.repair(topic)
            incomplete = _complete_replicas(log, topic)
            differences: list[Any] = [*report.repaired, *report.left]
        else:
            report = None
            incomplete = []
            differences = list(log.verify_replicas(topic))
        absent = [
            directory for directory in log.replicas(topic).directories if not directory.answers
        ]
    if current().json:
        print_document([difference._asdict() for difference in differences])
    elif differences:
        columns = ("topic", "partition", "node", "from", "to", "file")
        rows = [
            (
                difference.topic,
                difference.partition,
                difference.node,
                difference.first_offset,
                difference.end_offset,
                difference.path,
            )
            for difference in differences
        ]
        print_table(columns, rows)
    for directory in absent:
        tell(
            f"embedlog: node {directory.node} is not compared: "
            f"{directory.reason or directory.state}"
        )
    if report is not None:
        for difference, reason in report.left.items():
            tell(
                f"embedlog: {difference.topic}-{difference.partition}, node {difference.node}: "
                f"not repaired: {reason}"
            )
        for partition in incomplete:
            tell(f"embedlog: {partition}: not all replicas are in sync; --repair continues")
        return 1 if report.left or absent or incomplete else 0
    return 1 if differences or absent else 0
