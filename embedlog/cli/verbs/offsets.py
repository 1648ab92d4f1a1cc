"""Contains the verb `offsets`, with the options and the lines of kafka-get-offsets.

OFFSETSVERB-1  a partition without an offset for the time is left out, as in Kafka. One without a
    leader is named, too
"""

from __future__ import annotations

import re
from typing import NamedTuple

import click

import embedlog
from embedlog import Consumer, Log, TopicPartition
from embedlog.cli.arguments import matching, numbers, topic_option, words
from embedlog.cli.internal_topics import (
    hidden_topics,
    internal_option,
    no_match,
    shown_topics,
    tell_hidden,
)
from embedlog.cli.invocation import current, open_log, verb
from embedlog.cli.output import document
from embedlog.cli.readable import Readable

NAMED = {
    "latest": -1,
    "earliest": -2,
    "max-timestamp": -3,
    "earliest-local": -4,
    "latest-tiered": -5,
}
TIME_MAX = 2**63 - 1


@verb(exclusive=[("--include-internal", "--exclude-internal-topics")])
@topic_option(help="The topic, a regular expression; all if not given.")
@click.option("--partitions", metavar="N,…", help="Only these partitions.")
@click.option(
    "--topic-partitions",
    metavar="REGEX:RANGE,…",
    help="Topics with partitions: n, a-b (b exclusive), a-, -b, or none.",
)
@click.option(
    "--time",
    default="latest",
    shell_complete=words(*NAMED),
    help="latest (-1), earliest (-2), max-timestamp (-3), or milliseconds.",
)
@internal_option()
@click.option(
    "--exclude-internal-topics",
    is_flag=True,
    help="The default, as --include-internal has not been given.",
)
def offsets(
    topic: str | None,
    partitions: str | None,
    topic_partitions: str | None,
    time: str,
    include_internal: bool,
    exclude_internal_topics: bool,
) -> int:
    """Print offsets of partitions as topic:partition:offset, sorted.

    JSON: a list of {"topic", "partition", "offset"}.
    """
    if topic_partitions is not None and (topic is not None or partitions is not None):
        raise click.UsageError("--topic-partitions cannot be combined with --topic or --partitions")
    moment = NAMED[time] if time in NAMED else _moment(time)
    readable = Readable()
    with open_log() as log:
        names = shown_topics(log, include_internal)
        rules = (
            None
            if topic_partitions is None
            else [_rule(text, names) for text in topic_partitions.split(",")]
        )
        if rules is None:
            known = shown_topics(log, include_internal, topic)
        else:
            known = sorted({name for rule in rules for name in rule.topics})
        topics = readable.topics(log, known)
        tps = [
            TopicPartition(found.name, each.partition)
            for found in topics
            for each in found.partitions
        ]
        if rules is not None:
            chosen = {
                tp
                for rule in rules
                for tp in tps
                if tp.topic in rule.topics and rule.first <= tp.partition < rule.end
            }
        else:
            wanted = None if partitions is None else numbers(partitions, "--partitions")
            if readable.whole:
                _check(wanted, {tp.partition for tp in tps}, log)
            chosen = {tp for tp in tps if wanted is None or tp.partition in wanted}
        if topic is not None and not known:
            raise no_match(log, topic, "--topic")
        if not chosen and readable.whole:
            raise embedlog.UnknownTopicOrPartitionError(
                "no partition matches; embedlog offsets lists all", path=log.path
            )
        hidden = hidden_topics(log, include_internal) if topic is None else frozenset()
        with log.consumer() as consumer:
            found = _offsets(consumer, sorted(chosen), moment)
    if current().json:
        document(
            [
                {"topic": tp.topic, "partition": tp.partition, "offset": offset}
                for tp, offset in found.items()
            ]
        )
    else:
        click.echo(
            "".join(f"{tp.topic}:{tp.partition}:{offset}\n" for tp, offset in found.items()),
            nl=False,
        )
        tell_hidden(hidden, "internal topic")
    return readable.status(True)


def _check(wanted: list[int] | None, present: set[int], log: Log) -> None:
    """Raises UnknownTopicOrPartitionError for numbers that no topic has."""
    absent = [number for number in wanted or () if number not in present]
    if present and absent:
        expected, found = (",".join(map(str, numbers)) for numbers in (sorted(present), absent))
        text = "no topic that matches has such a partition"
        raise embedlog.UnknownTopicOrPartitionError(
            text, path=log.path, expected=expected, found=found
        )


def _moment(text: str) -> int:
    try:
        found = int(text)
    except ValueError:
        found = -6
    if found < min(NAMED.values()):
        raise click.UsageError(
            f"--time: expected {', '.join(NAMED)}, or milliseconds, found {text!r}"
        )
    return found


class _Rule(NamedTuple):
    """One rule of `--topic-partitions`: topics, and a range of partitions."""

    topics: set[str]
    first: int
    end: float


def _rule(text: str, names: list[str]) -> _Rule:
    found = re.fullmatch(
        r"(?P<topic>[^:]*)(?::(?:(?P<one>\d+)|(?P<first>\d*)-(?P<end>\d*))?)?", text
    )
    if found is None:
        raise click.UsageError(f"--topic-partitions: expected REGEX:RANGE, found {text!r}")
    topics = set(matching(names, found["topic"] or None, "--topic-partitions"))
    first = 0
    end = float("inf")
    if found["one"] is not None:
        first = int(found["one"])
        end = first + 1
    elif found["first"] is not None:
        first = int(found["first"] or 0)
        end = int(found["end"]) if found["end"] else end
    return _Rule(topics, first, end)


def _offsets(
    consumer: Consumer[bytes, bytes], tps: list[TopicPartition], moment: int
) -> dict[TopicPartition, int]:
    if moment == NAMED["latest"]:
        return consumer.end_offsets(tps)
    if moment in (NAMED["earliest"], NAMED["earliest-local"]):
        return consumer.beginning_offsets(tps)
    if moment == NAMED["latest-tiered"]:
        return {}  # no record is in a remote tier
    if moment == NAMED["max-timestamp"]:
        places = {tp: _newest(consumer, tp) for tp in tps}
    else:
        found = consumer.offsets_for_times(dict.fromkeys(tps, moment))
        places = {tp: None if found[tp] is None else found[tp].offset for tp in tps}  # type: ignore[union-attr]
    return {tp: offset for tp, offset in places.items() if offset is not None}


def _newest(consumer: Consumer[bytes, bytes], tp: TopicPartition) -> int | None:
    """The offset of the first record with the greatest timestamp, by halving the times that can
    have one.
    """
    best = None
    low = 0
    high = TIME_MAX
    while low < high:
        middle = 0 if best is None else low + (high - low) // 2
        found = consumer.offsets_for_times({tp: middle})[tp]
        if found is None:
            if best is None:
                return None
            high = middle
        else:
            best = found.offset
            low = max(found.timestamp_ms, middle) + 1
    return best
