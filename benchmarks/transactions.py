"""Transactions: duration from `begin_transaction` to the return of `commit_transaction`."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import embedlog

from .context import QUIET, Context, remove
from .measure import Outcome, percentile

RECORDS = 1_000
PARTITIONS = 4
WARM = 20


def transaction(context: Context) -> Iterator[Outcome]:
    """A thousand records of 100 bytes over four partitions: not compressed, not synced."""
    values = [b"%0100d" % number for number in range(RECORDS)]
    directory = context.fresh("transaction")
    spent: list[float] = []
    without: list[float] = []
    try:
        with embedlog.open(directory) as log, log.producer(transactional_id="bench") as producer:
            log.create_topic("bench", PARTITIONS, config=QUIET)
            producer.init_transactions()
            for _ in range(WARM + 20 * context.rounds):
                began = time.perf_counter()
                with producer.transaction():
                    for number, value in enumerate(values):
                        producer.send("bench", value, partition=number % PARTITIONS)
                spent.append((time.perf_counter() - began) * 1e3)
            with log.producer() as usual:
                for _ in range(WARM + 20 * context.rounds):
                    began = time.perf_counter()
                    for number, value in enumerate(values):
                        usual.send("bench", value, partition=number % PARTITIONS)
                    usual.flush()
                    without.append((time.perf_counter() - began) * 1e3)
    finally:
        remove(directory)
    found = spent[WARM:]
    detail = {
        "p10": percentile(found, 0.1),
        "p99": percentile(found, 0.99),
        "transactions": len(found),
    }
    detail["without a transaction ms"] = statistics.median(without[WARM:])
    yield Outcome(
        f"transaction/records={RECORDS}/partitions={PARTITIONS}",
        statistics.median(found),
        "ms",
        2.0,
        False,
        detail,
    )
