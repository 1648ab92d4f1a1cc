"""Contains the verb `perf`: the rate and the latency of a producer, and the rate of a consumer.

Options and output are those of kafka-producer-perf-test and kafka-consumer-perf-test. A record that
fails, or fewer records than expected, make the status 1.
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
from embedlog.tools.cli.arguments import complete_group_ids, parse_settings, topic_option
from embedlog.tools.cli.consumption import Consumption, batch_poll, line_of, record_poll
from embedlog.tools.cli.internal_topics import find_matching_topics
from embedlog.tools.cli.invocation import VerbGroup, current, open_log, shared_options, verb
from embedlog.tools.cli.latencies import Latencies
from embedlog.tools.cli.output import print_document
from embedlog.tools.cli.pace import Pace
from embedlog.tools.cli.record_format import unescape
from embedlog.tools.cli.terminal import tell

BLOCK_BYTES = 1 << 20  # of random letters that are made at once
TRANSACTION_MS = 3000


@click.group(cls=VerbGroup)
@shared_options
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
    values = _make_values(options)
    config = {
        "client.id": "perf-producer-client",
        **parse_settings(options["producer_settings"], "--producer-property"),
    }
    duration_s = _prepare_transactions(config, options)
    pace = Pace(options["throughput"])
    steady = None
    with open_log(read_only=False) as log:
        log.describe_topic(topic)  # an unknown topic is refused before anything is sent
        with log.producer(config=config) as client:
            if duration_s is not None:
                client.init_transactions()
            sending = _PacedSender(client, topic, pace, duration_s)
            every = Latencies(num_records)
            if warmup:
                _print_text(
                    f"Warmup first {warmup} records. Steady state results will print after the "
                    "complete test summary."
                )
                sending.send(islice(values, warmup), every)
                steady = Latencies(num_records - warmup, " steady state")
            sending.send(islice(values, num_records - warmup), every, steady)
            sending.end()
            client_metrics = client.metrics() if options["print_metrics"] else None
        # the time of the log's closing is no part of the rate
        _print_totals(every, steady, client_metrics, config["client.id"])
    if every.failed:
        tell(f"embedlog: {every.failed} records failed: {every.first_failure}")
    return 1 if every.failed else 0


def _print_text(line: str) -> None:
    if not current().json:
        click.echo(line)


def _print_totals(
    every: Latencies,
    steady: Latencies | None,
    client_metrics: Mapping[str, float] | None,
    client_id: str,
) -> None:
    if current().json:
        print_document(
            {
                **every.totals(),
                "failed": every.failed,
                "steady_state": None if steady is None else steady.totals(),
                "metrics": client_metrics,
            }
        )
        return
    click.echo(every.total_line())
    if steady is not None:
        click.echo(steady.total_line())
    if client_metrics is not None:
        _print_metrics("producer-metrics", client_id, client_metrics)


def _numbers_of(values: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in values.items() if isinstance(value, int | float)}


def _print_metrics(kind: str, client_id: str, values: Mapping[str, float]) -> None:
    """These metrics, in the layout of Kafka's tools."""
    rows = {f"{kind}:{name}:{{client-id={client_id}}}": value for name, value in values.items()}
    width = max(map(len, rows))
    click.echo(f"\n{'Metric Name':<{width}} Value")
    for name in sorted(rows):
        click.echo(f"{name:<{width}} : {rows[name]:.3f}")


def _prepare_transactions(config: dict[str, str], options: Mapping[str, Any]) -> float | None:
    """Set the transactional id; returns the time of a transaction, or None without transactions."""
    if options["transactional_id"] is not None:
        config["transactional.id"] = options["transactional_id"]
    duration_ms: int | None = options["transaction_duration_ms"]
    if duration_ms is None:
        if "transactional.id" not in config:
            return None
        duration_ms = TRANSACTION_MS
    config.setdefault("transactional.id", f"performance-producer-{uuid.uuid4()}")
    return duration_ms / 1000


def _make_values(options: Mapping[str, Any]) -> Iterator[bytes]:
    """The values to send, without end; the random ones are equal in each run, as Kafka's."""
    size = options["record_size"]
    file = options["payload_file"]
    if (size is not None) + (file is not None) + options["payload_monotonic"] != 1:
        raise click.UsageError("give one of --record-size, --payload-file and --payload-monotonic")
    if size is not None:
        return _random_letters(size)
    if file is None:
        return (b"%d" % number for number in count())
    delimiter = unescape(options["payload_delimiter"], "--payload-delimiter")
    if not delimiter:
        raise click.UsageError("--payload-delimiter: expected at least one byte")
    payloads = file.read_bytes().removesuffix(delimiter).split(delimiter)
    if payloads == [b""]:
        raise click.UsageError(f"--payload-file: {file} is empty")
    _print_text(
        f"Reading payloads from: {file.absolute()}\nNumber of messages read: {len(payloads)}"
    )
    return _choose_at_random(payloads)


def _random_letters(size: int) -> Iterator[bytes]:
    import numpy as np  # late: most verbs need no numpy

    random = np.random.default_rng(0)
    rows = max(1, BLOCK_BYTES // size)
    while True:
        block = random.integers(65, 91, rows * size, dtype=np.uint8).tobytes()
        for start in range(0, len(block), size):
            yield block[start : start + size]


def _choose_at_random(payloads: list[bytes]) -> Iterator[bytes]:
    import numpy as np  # late: most verbs need no numpy

    random = np.random.default_rng(0)
    while True:
        for index in random.integers(0, len(payloads), 1000).tolist():
            yield payloads[index]


class _PacedSender:
    """Sends values one by one, in transactions of `duration_s` seconds if that is given."""

    def __init__(
        self, client: Producer[Any, Any], topic: str, pace: Pace, duration_s: float | None
    ) -> None:
        self._client = client
        self._topic = topic
        self._pace = pace
        self._duration_s = duration_s
        self._began: float | None = None  # the current transaction
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
            future.add_done_callback(partial(every.count_record, sent, len(value)))
            if steady is not None:
                future.add_done_callback(partial(steady.count_record, sent, len(value)))
            if self._is_transaction_due(sent):
                self._commit()
            line = windows.window_line()
            if line is not None:
                _print_text(line)

    def end(self) -> None:
        """Commit the current transaction, and wait until all records are acknowledged."""
        if self._began is not None:
            self._commit()
        self._client.flush()

    def _is_transaction_due(self, time_s: float) -> bool:
        """Whether the current transaction has lasted for its time."""
        if self._began is None or self._duration_s is None:
            return False
        return time_s - self._began >= self._duration_s

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
    "-G",
    "--group",
    shell_complete=complete_group_ids,
    help="Read as a member of a group, and commit.",
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
    config = {
        "client.id": "perf-consumer-client",
        "auto.offset.reset": "latest" if options["from_latest"] else "earliest",
        **parse_settings(options["consumer_settings"], "--consumer-property"),
    }
    if options["fetch_size"] is not None:
        config["max.partition.fetch.bytes"] = options["fetch_size"]
    group = options["group"]
    expected = options["expected"]
    reading = Consumption(interval_s=options["interval_ms"] / 1000 if options["detailed"] else None)
    with open_log(read_only=group is None) as log:
        topics = find_matching_topics(log, include, "--include") if topic is None else [topic]
        if not options["hide_header"]:
            _print_text(", ".join(reading.columns))
        with log.consumer(group_id=group, config=config) as client:
            if group is None:
                client.subscribe(topics)
                reading.note_assigned(client.assignment())
            else:
                client.subscribe(
                    topics,
                    on_assigned=reading.note_assigned,
                    on_revoked=reading.note_revoked,
                    on_lost=reading.note_revoked,
                )
            poll = batch_poll(client) if options["columnar"] else record_poll(client)
            rows = []
            for row in reading.read_rows(poll, expected, options["timeout_ms"] / 1000):
                _print_text(line_of(row))
                rows.append(row)
            client_metrics = _numbers_of(client.metrics()) if options["print_metrics"] else None
    if current().json:
        print_document({"rows": rows, "metrics": client_metrics})
    elif client_metrics is not None:
        _print_metrics("consumer-metrics", config["client.id"], client_metrics)
    if reading.count < expected:
        tell(
            f"embedlog: {reading.count} of {expected} records arrived, then none for "
            f"{options['timeout_ms']} ms (--timeout)"
        )
        return 1
    return 0


for command in (producer, consumer):
    perf.add_command(command)
