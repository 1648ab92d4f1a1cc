"""Contains the verb `verifiable`: a producer and a consumer that print a line of JSON for each
event.

- The lines have the names and keys of kafka-verifiable-producer and kafka-verifiable-consumer.
- A record has a line `producer_send_success` only after it was acknowledged.
- The consumer prints the records before it commits them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from functools import partial
from itertools import count
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias

import click

from embedlog import (
    Consumer,
    EmbedlogError,
    Future,
    OffsetAndMetadata,
    Producer,
    Record,
    TopicPartition,
    WakeupError,
)
from embedlog.tools.cli.arguments import complete_group_ids, parse_settings, topic_option
from embedlog.tools.cli.invocation import VerbGroup, open_log, shared_options, verb
from embedlog.tools.cli.output import text_of
from embedlog.tools.cli.pace import Pace, end_by_signals

POLL_MAX = 500  # records of one line `records_consumed`
KAFKA_ASSIGNORS = {
    "RangeAssignor": "range",
    "RoundRobinAssignor": "roundrobin",
    "StickyAssignor": "sticky",
    "CooperativeStickyAssignor": "cooperative-sticky",
}

Event: TypeAlias = dict[str, Any]


@click.group(cls=VerbGroup)
@shared_options
def verifiable() -> None:
    """Send or read records, with a line of JSON for each event (kafka-verifiable-producer,
    kafka-verifiable-consumer).
    """


def _make_event(name: str, **facts: Any) -> Event:
    return {"timestamp": time.time_ns() // 1_000_000, "name": name, **facts}


def _print(event: Event) -> None:
    click.echo(json.dumps(event, ensure_ascii=False, separators=(",", ":")))


# ---- producer ------------------------------------------------------------------------------------


@verb()
@topic_option(required=True, help="The topic; it must exist.")
@click.option(
    "--max-messages",
    type=click.IntRange(min=-1),
    default=-1,
    help="Records to send; -1 (the default) is no limit.",
)
@click.option(
    "--throughput", type=int, default=-1, help="Records per second; -1 (the default) is no limit."
)
@click.option(
    "--acks", type=click.Choice(["0", "1", "-1"]), default="-1", help="-1 is the default."
)
@click.option(
    "--value-prefix", type=int, help="Values are this number, a dot and the number of the record."
)
@click.option(
    "--repeating-keys",
    type=click.IntRange(min=1),
    help="Keys are 0 up to this number, again and again.",
)
@click.option(
    "--message-create-time",
    "created_ms",
    type=click.IntRange(min=-1),
    default=-1,
    help="The timestamp in ms of the first record; the others follow in real time.",
)
@click.option(
    "--producer-property",
    "-X",
    "producer_settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting of the producer.",
)
def producer(topic: str, max_messages: int, throughput: int, acks: str, **options: Any) -> int:
    """Send the numbers 0, 1, 2, … as text, until --max-messages or a signal.

    JSON lines: startup_complete, producer_send_success, producer_send_error, shutdown_complete,
    tool_data.
    """
    config = {**parse_settings(options["producer_settings"], "--producer-property"), "acks": acks}
    pace = Pace(throughput)
    began = time.monotonic()
    with open_log(read_only=False) as log:
        log.describe_topic(topic)  # an unknown topic is refused before anything is sent
        with log.producer(config=config) as client:
            sending = _NumberSender(client, topic)
            with end_by_signals(sending.end):
                _print(_make_event("startup_complete"))
                numbers: Iterable[int] = count() if max_messages < 0 else range(max_messages)
                for number in numbers:
                    if not sending.wait(pace.wait_s(number)):
                        break
                    sending.send(*_make_record(number, **options))
                client.flush()
                sending.wait(0)
    _print(_make_event("shutdown_complete"))
    sent = sending.sent
    acked = sending.acknowledged
    rate = acked / max(time.monotonic() - began, 0.001)
    _print(
        _make_event(
            "tool_data", sent=sent, acked=acked, target_throughput=throughput, avg_throughput=rate
        )
    )
    return 0 if sent == acked else 1


def _make_record(
    number: int,
    *,
    value_prefix: int | None,
    repeating_keys: int | None,
    created_ms: int,
    **others: Any,
) -> tuple[str | None, str, int | None]:
    """Key, value and timestamp of a record."""
    key = None if repeating_keys is None else str(number % repeating_keys)
    value = f"{number}" if value_prefix is None else f"{value_prefix}.{number}"
    return key, value, None if created_ms < 0 else created_ms


class _NumberSender:
    """Sends records and prints their results in the thread of the program."""

    def __init__(self, client: Producer[Any, Any], topic: str) -> None:
        self._client = client
        self._topic = topic
        self._events: SimpleQueue[Event | None] = SimpleQueue()  # None is the end
        self._began = time.monotonic()
        self._ended = False
        self.sent = 0
        self.acknowledged = 0

    def end(self) -> None:
        """End the sending. For signal handlers."""
        self._ended = True
        self._events.put(None)

    def wait(self, seconds: float) -> bool:
        """Print results for this time, at least those that exist; returns whether the sending
        continues.
        """
        deadline = time.monotonic() + seconds
        while not (self._ended and seconds):
            try:
                wait_s = deadline - time.monotonic()
                event = self._events.get(wait_s > 0, timeout=max(wait_s, 0))
            except Empty:
                break
            if event is not None:
                if event["name"] == "producer_send_success":
                    self.acknowledged += 1
                _print(event)
        return not self._ended

    def send(self, key: str | None, value: str, created_ms: int | None) -> None:
        """Send one record; `created_ms` is the timestamp of a record at the start."""
        facts = {"key": key, "value": value, "topic": self._topic}
        time_ms = created_ms
        if time_ms is not None:
            time_ms += int((time.monotonic() - self._began) * 1000)
        self.sent += 1
        encoded_key = None if key is None else key.encode()
        future = self._client.send(self._topic, value.encode(), encoded_key, timestamp_ms=time_ms)
        future.add_done_callback(partial(self._report_result, facts))

    def _report_result(self, facts: dict[str, str | None], future: Future[Any]) -> None:
        error = future.exception()
        if error is None:
            metadata = future.result()
            event = _make_event(
                "producer_send_success",
                **facts,
                partition=metadata.partition,
                offset=metadata.offset,
            )
        else:
            event = _make_event(
                "producer_send_error", **facts, exception=type(error).__name__, message=str(error)
            )
        self._events.put(event)


# ---- consumer ------------------------------------------------------------------------------------


@verb()
@topic_option(required=True, help="The topic.")
@click.option(
    "-G", "--group-id", "group", required=True, shell_complete=complete_group_ids, help="The group."
)
@click.option(
    "--max-messages",
    type=click.IntRange(min=-1),
    default=-1,
    help="Records to read; -1 (the default) is no limit.",
)
@click.option(
    "--reset-policy",
    type=click.Choice(["earliest", "latest", "none"]),
    default="earliest",
    help="Without a committed offset; earliest is the default.",
)
@click.option(
    "--assignment-strategy",
    metavar="NAME",
    help="An assignor, or Kafka's class; range is the default.",
)
@click.option(
    "--group-protocol",
    type=click.Choice(["classic", "consumer"], case_sensitive=False),
    help="classic is the default.",
)
@click.option("--group-instance-id", help="The name of a static member.")
@click.option(
    "--session-timeout",
    type=click.IntRange(min=1),
    default=30_000,
    help="The session timeout in ms.",
)
@click.option(
    "--enable-autocommit", "automatic", is_flag=True, help="Commit in intervals, without lines."
)
@click.option("--verbose", is_flag=True, help="Print a line for each record.")
@click.option(
    "--consumer-property",
    "-X",
    "consumer_settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting of the consumer.",
)
def consumer(topic: str, group: str, max_messages: int, **options: Any) -> int:
    """Read records as a member of a group, until --max-messages or a signal.

    JSON lines: startup_complete, partitions_assigned, partitions_revoked, record_data (with
    --verbose), records_consumed, offsets_committed, shutdown_requested (by a signal),
    shutdown_complete.
    """
    config = {
        **parse_settings(options["consumer_settings"], "--consumer-property"),
        **_member_settings(options),
    }
    revoked = partial(_print_partitions, "partitions_revoked")
    assigned = partial(_print_partitions, "partitions_assigned")
    with open_log(read_only=False) as log, log.consumer(group_id=group, config=config) as client:
        with end_by_signals(client.wakeup):
            _print(_make_event("startup_complete"))
            try:
                client.subscribe([topic], on_assigned=assigned, on_revoked=revoked, on_lost=revoked)
                _read(
                    client, max_messages, verbose=options["verbose"], automatic=options["automatic"]
                )
            except WakeupError:
                _print(_make_event("shutdown_requested"))
        client.close()
    _print(_make_event("shutdown_complete"))
    return 0


def _member_settings(options: dict[str, Any]) -> dict[str, str]:
    config = {
        "enable.auto.commit": "true" if options["automatic"] else "false",
        "auto.offset.reset": options["reset_policy"],
    }
    protocol = (options["group_protocol"] or "classic").lower()
    if protocol == "classic":
        config["partition.assignment.strategy"] = _assignor_names(
            options["assignment_strategy"] or "range"
        )
        config["session.timeout.ms"] = str(options["session_timeout"])
    elif options["assignment_strategy"] is not None:
        raise click.UsageError("--assignment-strategy is for --group-protocol classic")
    else:
        config["group.protocol"] = protocol
    if options["group_instance_id"] is not None:
        config["group.instance.id"] = options["group_instance_id"]
    return config


def _assignor_names(text: str) -> str:
    """Names of assignors, separated by commas; Kafka's classes have their names here."""
    return ",".join(
        KAFKA_ASSIGNORS.get(name.strip().rpartition(".")[2], name.strip())
        for name in text.split(",")
    )


def _partition_event(tp: TopicPartition) -> Event:
    return {"topic": tp.topic, "partition": tp.partition}


def _print_partitions(name: str, partitions: Iterable[TopicPartition]) -> None:
    _print(_make_event(name, partitions=[_partition_event(tp) for tp in sorted(partitions)]))


def _read(client: Consumer[Any, Any], limit: int, *, verbose: bool, automatic: bool) -> None:
    read_count = 0
    while limit < 0 or read_count < limit:
        poll_limit = POLL_MAX if limit < 0 else min(POLL_MAX, limit - read_count)
        records = client.poll(None, max_records=poll_limit)
        read_count += len(records)
        offsets = _print_records(records, verbose=verbose)
        if not automatic:
            _commit(client, offsets)


def _print_records(
    records: list[Record[Any, Any]], *, verbose: bool
) -> dict[TopicPartition, OffsetAndMetadata | int]:
    """Print records; returns the positions after them."""
    parts: dict[TopicPartition, list[Record[Any, Any]]] = {}
    for record in records:
        parts.setdefault(TopicPartition(record.topic, record.partition), []).append(record)
        if verbose:
            facts = {
                "key": text_of(record.key),
                "value": text_of(record.value),
                "topic": record.topic,
            }
            _print(
                _make_event(
                    "record_data", **facts, partition=record.partition, offset=record.offset
                )
            )
    summaries = [
        {
            **_partition_event(tp),
            "count": len(part),
            "minOffset": part[0].offset,
            "maxOffset": part[-1].offset,
        }
        for tp, part in parts.items()
    ]
    _print(_make_event("records_consumed", count=len(records), partitions=summaries))
    return {tp: part[-1].offset + 1 for tp, part in parts.items()}


def _commit(
    client: Consumer[Any, Any], offsets: dict[TopicPartition, OffsetAndMetadata | int]
) -> None:
    """Commit offsets and print the result; a signal in the meantime has its effect after that."""
    woken: WakeupError | None = None
    result: Event = {"success": True}
    try:
        try:
            client.commit(offsets)
        except WakeupError as error:
            woken = error
            client.commit(offsets)
    except EmbedlogError as error:
        result = {"error": str(error), "success": False}
    _print(
        _make_event(
            "offsets_committed",
            offsets=[{**_partition_event(tp), "offset": offset} for tp, offset in offsets.items()],
            **result,
        )
    )
    if woken is not None:
        raise woken


for command in (producer, consumer):
    verifiable.add_command(command)
