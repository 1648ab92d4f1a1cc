"""Contains the verb `replicas`: directories, leaders and ISRs, and the comparison of kafka-replica-verification.

REPLICASVERB-1  differences and partitions without a full ISR are findings: the exit status is 1
REPLICASVERB-2  a directory that cannot be read is a finding of a comparison, too
REPLICASVERB-3  only `--repair` changes the directories
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

import embedlog
from embedlog.cli.arguments import topic_option
from embedlog.cli.invocation import current, open_log, verb
from embedlog.cli.output import document, table

ROUNDS = 10


@verb(exclusive=[("--verify", "--repair")])
@topic_option(help="Only this topic.")
@click.option("--verify", is_flag=True, help="Compare the records of all replicas.")
@click.option("--repair", is_flag=True, help="Replace different and damaged records by those of a complete replica.")
def replicas(topic: str | None, verify: bool, repair: bool) -> int:
    """Print directories, leaders, ISRs and lags, or compare replicas.

    JSON: the fields of Log.replicas(), such as "directories", "partitions" and "decisions". JSON of --verify and
    --repair: a list of differences {"topic", "partition", "node", "kind", "path", "first_offset", "end_offset", "message"}.
    """
    if verify or repair:
        return _verify(topic, repair=repair)
    with open_log() as log:
        found = log.replicas(topic)
    if current().json:
        document(asdict(found))
    else:
        click.echo(str(found))
    return 1 if any(each.under_replicated or each.offline for each in found.partitions) else 0


def _complete(log: embedlog.Log, topic: str | None) -> None:
    """Do rounds of housekeeping until every replica is in sync: one that cannot be loaded is copied there."""
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
            report, differences = None, list(log.verify_replicas(topic))
        absent = [each for each in log.replicas(topic).directories if not each.answers]
    if current().json:
        document([each._asdict() for each in differences])
    elif differences:
        columns = ("topic", "partition", "node", "from", "to", "file")
        table(
            columns,
            [(each.topic, each.partition, each.node, each.first_offset, each.end_offset, each.path) for each in differences],
        )
    for directory in absent:
        click.echo(f"embedlog: node {directory.node} is not compared: {directory.reason or directory.state}", err=True)
    if report is not None:
        for each, reason in report.left.items():
            click.echo(f"embedlog: {each.topic}-{each.partition}, node {each.node}: not repaired: {reason}", err=True)
        return 1 if report.left or absent else 0
    return 1 if differences or absent else 0
