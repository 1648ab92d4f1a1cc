"""Contains the verb `transactions`, with the actions of kafka-transactions.

`--abort` takes the transactional id over, which aborts its transaction and fences its producer.
"""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime

import click

import embedlog
from embedlog.tools.cli.arguments import action_options, topic_option
from embedlog.tools.cli.invocation import current, open_log, verb
from embedlog.tools.cli.output import print_document, print_table
from embedlog.tools.cli.terminal import tell

_ACTIONS = {
    "list": "List transactional ids (the default).",
    "describe": "Describe the id of --transactional-id.",
    "open": "List transactions that are open in partitions.",
    "find-hanging": "List open transactions that no transactional id will end.",
    "abort": "Abort the transaction of --transactional-id, and fence its producer.",
}


@verb()
@action_options(_ACTIONS)
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
        descriptions = [
            description
            for description in log.transactions()
            if transactional_id in (None, description.transactional_id)
        ]
    if transactional_id is not None and not descriptions:
        tell(_absent_text(transactional_id))
    if current().json:
        print_document(
            [
                asdict(description) | {"partitions": [list(tp) for tp in description.partitions]}
                for description in descriptions
            ]
        )
    elif descriptions:
        print_table(
            (
                "transactional id",
                "producer id",
                "epoch",
                "state",
                "started",
                "timeout ms",
                "partitions",
            ),
            [_row_of(description) for description in descriptions],
        )
    return 0 if descriptions or transactional_id is None else 1


def _row_of(transaction: embedlog.TransactionDescription) -> tuple[str | int | None, ...]:
    partitions = ",".join(f"{tp.topic}-{tp.partition}" for tp in transaction.partitions) or None
    started = _date_of(transaction.started_ms)
    return (
        transaction.transactional_id,
        transaction.producer_id,
        transaction.producer_epoch,
        transaction.state,
        started,
        transaction.timeout_ms,
        partitions,
    )


def _date_of(time_ms: int | None) -> str | None:
    if time_ms is None:
        return None
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")


def _print_open(log: embedlog.Log, topic: str | None, *, hanging: bool) -> int:
    transactions = [
        transaction
        for transaction in log.open_transactions(topic)
        if not hanging or transaction.transactional_id is None
    ]
    if current().json:
        print_document([transaction._asdict() for transaction in transactions])
    elif transactions:
        print_table(
            ("topic", "partition", "producer id", "epoch", "first offset", "transactional id"),
            transactions,
        )
    return 1 if hanging and transactions else 0


def _absent_text(transactional_id: str) -> str:
    return f"embedlog: no transactional id {transactional_id!r}: embedlog transactions lists all"


def _abort(transactional_id: str) -> int:
    with open_log(read_only=False) as log:
        if transactional_id not in {
            transaction.transactional_id for transaction in log.transactions()
        }:
            tell(_absent_text(transactional_id))
            return 1
        with log.producer(transactional_id=transactional_id) as producer:
            producer.init_transactions()
    return 0
