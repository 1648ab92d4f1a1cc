"""Contains the verb `transactions`, with the actions of kafka-transactions.

TRANSACTIONSVERB-1  `--abort` takes the transactional id over, which aborts its transaction and
    fences its producer
"""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime

import click

import embedlog
from embedlog.cli.arguments import actions, topic_option
from embedlog.cli.invocation import current, open_log, verb
from embedlog.cli.output import document, table
from embedlog.cli.terminal import tell

_ACTIONS = {
    "list": "List transactional ids (the default).",
    "describe": "Describe the id of --transactional-id.",
    "open": "List transactions that are open in partitions.",
    "find-hanging": "List open transactions that no transactional id will end.",
    "abort": "Abort the transaction of --transactional-id, and fence its producer.",
}


@verb()
@actions(_ACTIONS)
@click.option("--transactional-id", help="The transactional id.")
@topic_option(help="Only open transactions of this topic.")
def transactions(action: str | None, transactional_id: str | None, topic: str | None) -> int:
    """List, describe and abort transactions.

    JSON of ids: a list with the fields of Log.transactions(). JSON of --open and --find-hanging: a
    list with the fields of Log.open_transactions().
    """
    action = action or "list"
    if action in ("describe", "abort") and transactional_id is None:
        raise click.UsageError(f"--{action} needs --transactional-id")
    if action == "abort":
        return _abort(str(transactional_id))
    with open_log() as log:
        if action in ("open", "find-hanging"):
            return _print_open(log, topic, hanging=action == "find-hanging")
        found = [
            each for each in log.transactions() if transactional_id in (None, each.transactional_id)
        ]
    if transactional_id is not None and not found:
        tell(_absent(transactional_id))
    if current().json:
        document(
            [asdict(each) | {"partitions": [list(tp) for tp in each.partitions]} for each in found]
        )
    elif found:
        table(
            (
                "transactional id",
                "producer id",
                "epoch",
                "state",
                "started",
                "timeout ms",
                "partitions",
            ),
            [_row(each) for each in found],
        )
    return 0 if found or transactional_id is None else 1


def _row(each: embedlog.TransactionDescription) -> tuple[str | int | None, ...]:
    partitions = ",".join(f"{tp.topic}-{tp.partition}" for tp in each.partitions) or None
    started = _time(each.started_ms)
    return (
        each.transactional_id,
        each.producer_id,
        each.producer_epoch,
        each.state,
        started,
        each.timeout_ms,
        partitions,
    )


def _time(time_ms: int | None) -> str | None:
    return (
        None
        if time_ms is None
        else datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
    )


def _print_open(log: embedlog.Log, topic: str | None, *, hanging: bool) -> int:
    found = [
        each
        for each in log.open_transactions(topic)
        if not hanging or each.transactional_id is None
    ]
    if current().json:
        document([each._asdict() for each in found])
    elif found:
        table(
            ("topic", "partition", "producer id", "epoch", "first offset", "transactional id"),
            found,
        )
    return 1 if hanging and found else 0


def _absent(transactional_id: str) -> str:
    return f"embedlog: no transactional id {transactional_id!r}: embedlog transactions lists all"


def _abort(transactional_id: str) -> int:
    with open_log(read_only=False) as log:
        if transactional_id not in {each.transactional_id for each in log.transactions()}:
            tell(_absent(transactional_id))
            return 1
        with log.producer(transactional_id=transactional_id) as producer:
            producer.init_transactions()
    return 0
