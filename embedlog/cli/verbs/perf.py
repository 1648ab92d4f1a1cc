"""Contains the verb `perf`: the rate and the latency of a producer, and the rate of a consumer.

PERF-1  options and output are those of kafka-producer-perf-test and kafka-consumer-perf-test
PERF-2  a record that fails, or fewer records than expected, make the status 1
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any

import click

from embedlog import Producer
from embedlog.cli.arguments import group_ids, settings, topic_option
from embedlog.cli.consumption import Consumption, batches, line, records
from embedlog.cli.internal_topics import matching_topics
from embedlog.cli.invocation import VerbGroup, current, open_log, shared, verb
from embedlog.cli.latencies import Latencies
from embedlog.cli.output import document
from embedlog.cli.pace import Pace
from embedlog.cli.record_format import unescaped
from embedlog.cli.terminal import tell

BLOCK_BYTES = 1 << 20  # of random letters that are made at once
TRANSACTION_MS = 3000


@click.group(cls=VerbGroup)
@shared
def perf() -> None:
    """Measure a producer or a consumer (kafka-producer-perf-test, kafka-consumer-perf-test)."""


# ---- producer ------------------------------------------------------------------------------------


@verb()
@topic_option(required=True, help="The topic; it must exist.")
@click.option("--num-records", type=click.IntRange(min=1), required=True, help="Records to send.")
@click.option(
    "--record-size", type=click.IntRange(min=1), help="Bytes of each value: random letters."
)
@click.option(
    "--payload-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Values are taken at random from this file.",
)
@click.option(
    "--payload-delimiter",
    default="\\n",
    metavar="DELIM",
    help="Between the values of the file; \\n if not given.",
)
@click.option("--payload-monotonic", is_flag=True, help="Values are 0, 1, 2, …")
@click.option(
    "--throughput", type=float, default=-1, help="Records per second; -1 (the default) is no limit."
)
@click.option("--transactional-id", help="Send in transactions with this id.")
@click.option(
    "--transaction-duration-ms",
    type=click.IntRange(min=1),
    help="Time of each transaction; 3000 if not given.",
)
@click.option(
    "--warmup-records",
    type=click.IntRange(min=0),
    default=0,
    help="The first records, without a part in the second line.",
)
@click.option("--print-metrics", is_flag=True, help="Print the metrics of the producer.")
@click.option(
    "--producer-property",
    "--producer-props",
    "--command-property",
    "-X",
    "producer_settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting of the producer.",
)
def producer(topic: str, num_records: int, **options: Any) -> int:
    """Send records, and print their rate and latency.

    JSON: {"records", "failed", "records_per_sec", "mb_per_sec", "latency_ms", "steady_state",
    "metrics"} at the end.
    """
    warmup = options["warmup_records"]
    if warmup >= num_records:
        raise click.UsageError(
            f"--warmup-records: expected fewer than --num-records {num_records}, found {warmup}"
        )
    values = _values(options)
    given = {
        "client.id": "perf-producer-client",
        **settings(options["producer_settings"], "--producer-property"),
    }
    duration_s = _transaction_s(given, options)
    pace = Pace(options["throughput"])
    steady = None
    with open_log(read_only=False) as log:
        log.describe_topic(topic)  # an unknown topic is refused before anything is sent
        with log.producer(config=given) as client:
            if duration_s is not None:
                client.init_transactions()
            sending = _Sending(client, topic, pace, duration_s)
            every = Latencies(num_records)
            if warmup:
                _say(
                    f"Warmup first {warmup} records. Steady state results will print after the "
                    "complete test summary."
                )
                sending.send(islice(values, warmup), every)
                steady = Latencies(num_records - warmup, " steady state")
            sending.send(islice(values, num_records - warmup), every, steady)
            sending.end()
            found = client.metrics() if options["print_metrics"] else None
        # the time of the log's closing is no part of the rate
        _print_totals(every, steady, found, given["client.id"])
    if every.failed:
        tell(f"embedlog: {every.failed} records failed: {every.first_failure}")
    return 1 if every.failed else 0


def _say(line: str) -> None:
    if not current().json:
        click.echo(line)


def _print_totals(
    every: Latencies, steady: Latencies | None, found: Mapping[str, float] | None, client_id: str
) -> None:
    _say(every.total_line())
    if steady is not None:
        _say(steady.total_line())
    if found is not None and not current().json:
        _print_metrics("producer-metrics", client_id, found)
    if current().json:
        more = {"steady_state": None if steady is None else steady.totals(), "metrics": found}
        document({**every.totals(), "failed": every.failed, **more})


def _numbers(found: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in found.items() if isinstance(value, int | float)}


def _print_metrics(kind: str, client_id: str, found: Mapping[str, float]) -> None:
    """These metrics, in the layout of Kafka's tools."""
    rows = {f"{kind}:{name}:{{client-id={client_id}}}": value for name, value in found.items()}
    width = max(map(len, rows))
    click.echo(f"\n{'Metric Name':<{width}} Value")
    for name in sorted(rows):
        click.echo(f"{name:<{width}} : {rows[name]:.3f}")


def _transaction_s(given: dict[str, str], options: Mapping[str, Any]) -> float | None:
    """Set the transactional id; returns the time of a transaction, or None without transactions."""
    if options["transactional_id"] is not None:
        given["transactional.id"] = options["transactional_id"]
    duration_ms: int | None = options["transaction_duration_ms"]
    if duration_ms is None and "transactional.id" not in given:
        return None
    given.setdefault("transactional.id", f"performance-producer-{uuid.uuid4()}")
    return (TRANSACTION_MS if duration_ms is None else duration_ms) / 1000


def _values(options: Mapping[str, Any]) -> Iterator[bytes]:
    """The values to send, without end; the random ones are equal in each run, as Kafka's."""
    size = options["record_size"]
    file = options["payload_file"]
    if (size is not None) + (file is not None) + options["payload_monotonic"] != 1:
        raise click.UsageError("give one of --record-size, --payload-file and --payload-monotonic")
    if size is not None:
        return _letters(size)
    if file is None:
        return (b"%d" % number for number in count())
    delimiter = unescaped(options["payload_delimiter"], "--payload-delimiter")
    if not delimiter:
        raise click.UsageError("--payload-delimiter: expected at least one byte")
    given = file.read_bytes().removesuffix(delimiter).split(delimiter)
    if given == [b""]:
        raise click.UsageError(f"--payload-file: {file} is empty")
    _say(f"Reading payloads from: {file.absolute()}\nNumber of messages read: {len(given)}")
    return _chosen(given)


def _letters(size: int) -> Iterator[bytes]:
    import numpy as np  # late: most verbs need no numpy

    random = np.random.default_rng(0)
    rows = max(1, BLOCK_BYTES // size)
    while True:
        block = random.integers(65, 91, rows * size, dtype=np.uint8).tobytes()
        yield from (block[start : start + size] for start in range(0, len(block), size))


def _chosen(given: list[bytes]) -> Iterator[bytes]:
    import numpy as np  # late: most verbs need no numpy

    random = np.random.default_rng(0)
    while True:
        yield from (given[index] for index in random.integers(0, len(given), 1000).tolist())


class _Sending:
    """Sends values one by one, in transactions of `duration_s` seconds if that is given."""

    def __init__(
        self, client: Producer[Any, Any], topic: str, pace: Pace, duration_s: float | None
    ) -> None:
        self._client = client
        self._topic = topic
        self._pace = pace
        self._duration_s = duration_s
        self._began: float | None = None  # the present transaction
        self._number = 0

    def send(
        self, values: Iterator[bytes], every: Latencies, steady: Latencies | None = None
    ) -> None:
        """Send these values; their results are counted in `every` and `steady`, of which the last
        prints its windows.
        """
        windows = every if steady is None else steady
        for value in values:
            wait_s = self._pace.wait_s(self._number)
            if wait_s:
                time.sleep(wait_s)
            self._number += 1
            sent = time.monotonic()
            if self._duration_s is not None and self._began is None:
                self._client.begin_transaction()
                self._began = sent
            future = self._client.send(self._topic, value)
            future.add_done_callback(partial(every.completed, sent, len(value)))
            if steady is not None:
                future.add_done_callback(partial(steady.completed, sent, len(value)))
            if (
                self._began is not None
                and self._duration_s is not None
                and sent - self._began >= self._duration_s
            ):
                self._commit()
            line = windows.window_line()
            if line is not None:
                _say(line)

    def end(self) -> None:
        """Commit the present transaction, and wait until all records are acknowledged."""
        if self._began is not None:
            self._commit()
        self._client.flush()

    def _commit(self) -> None:
        self._client.commit_transaction()
        self._began = None


# ---- consumer ------------------------------------------------------------------------------------


@verb()
@topic_option(help="The topic.")
@click.option("--include", metavar="REGEX", help="All topics that match.")
@click.option(
    "--num-records",
    "--messages",
    "expected",
    type=click.IntRange(min=1),
    required=True,
    help="Records to read.",
)
@click.option(
    "-G", "--group", shell_complete=group_ids, help="Read as a member of a group, and commit."
)
@click.option("--from-latest", is_flag=True, help="Begin at the end, without a committed offset.")
@click.option(
    "--timeout",
    "timeout_ms",
    type=click.IntRange(min=0),
    default=10_000,
    help="Exit if no record arrives for this time in ms.",
)
@click.option(
    "--show-detailed-stats", "detailed", is_flag=True, help="Print a row for each interval."
)
@click.option(
    "--reporting-interval",
    "interval_ms",
    type=click.IntRange(min=1),
    default=5000,
    help="The interval in ms.",
)
@click.option("--hide-header", is_flag=True, help="Print no names of columns.")
@click.option("--batches", "columnar", is_flag=True, help="Read columns of records, not objects.")
@click.option("--fetch-size", help="The setting max.partition.fetch.bytes.")
@click.option("--print-metrics", is_flag=True, help="Print the metrics of the consumer.")
@click.option(
    "--consumer-property",
    "--command-property",
    "-X",
    "consumer_settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting of the consumer.",
)
def consumer(topic: str | None, include: str | None, **options: Any) -> int:
    """Read records, and print the rate.

    JSON: {"rows", "metrics"}; a row has the columns of the text.
    """
    if (topic is None) == (include is None):
        raise click.UsageError("give --topic, or --include with a regular expression")
    given = {
        "client.id": "perf-consumer-client",
        "auto.offset.reset": "latest" if options["from_latest"] else "earliest",
        **settings(options["consumer_settings"], "--consumer-property"),
    }
    if options["fetch_size"] is not None:
        given["max.partition.fetch.bytes"] = options["fetch_size"]
    group = options["group"]
    expected = options["expected"]
    reading = Consumption(interval_s=options["interval_ms"] / 1000 if options["detailed"] else None)
    with open_log(read_only=group is None) as log:
        topics = matching_topics(log, include, "--include") if topic is None else [topic]
        if not options["hide_header"]:
            _say(", ".join(reading.columns))
        with log.consumer(group_id=group, config=given) as client:
            if group is None:
                client.subscribe(topics)
                reading.assigned(client.assignment())
            else:
                client.subscribe(
                    topics,
                    on_assigned=reading.assigned,
                    on_revoked=reading.revoked,
                    on_lost=reading.revoked,
                )
            poll = batches(client) if options["columnar"] else records(client)
            rows = []
            for row in reading.rows(poll, expected, options["timeout_ms"] / 1000):
                _say(line(row))
                rows.append(row)
            found = _numbers(client.metrics()) if options["print_metrics"] else None
    if current().json:
        document({"rows": rows, "metrics": found})
    elif found is not None:
        _print_metrics("consumer-metrics", given["client.id"], found)
    if reading.count < expected:
        missed = (
            f"{reading.count} of {expected} records arrived, then none for "
            f"{options['timeout_ms']} ms (--timeout)"
        )
        tell(f"embedlog: {missed}")
    return 0 if reading.count >= expected else 1


for command in (producer, consumer):
    perf.add_command(command)
