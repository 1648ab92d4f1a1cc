"""Contains the verb `offsets`, with the options and the lines of kafka-get-offsets.

A partition without an offset for the time is left out, as in Kafka. One without a leader is left
out and named.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import click

import embedlog
from embedlog import Consumer, Log, TopicPartition
from embedlog.tools.cli.arguments import (
    complete_words,
    parse_numbers,
    select_matching,
    topic_option,
)
from embedlog.tools.cli.internal_topics import (
    hidden_topics,
    internal_option,
    no_match_error,
    shown_topics,
    tell_hidden,
)
from embedlog.tools.cli.invocation import current, open_log, verb
from embedlog.tools.cli.output import print_document
from embedlog.tools.cli.readable import ReadableMembers

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
    shell_complete=complete_words(*NAMED),
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
    moment = NAMED[time] if time in NAMED else _parse_moment(time)
    readable = ReadableMembers()
    with open_log() as log:
        names = shown_topics(log, include_internal)
        if topic_partitions is None:
            rules = None
            selected = shown_topics(log, include_internal, topic)
        else:
            rules = [_parse_rule(text, names) for text in topic_partitions.split(",")]
            selected = sorted({name for rule in rules for name in rule.topics})
        tps = [
            TopicPartition(description.name, partition.partition)
            for description in readable.describe_topics(log, selected)
            for partition in description.partitions
        ]
        if rules is not None:
            chosen = {tp for tp in tps if any(rule.has_partition(tp) for rule in rules)}
        elif partitions is None:
            chosen = set(tps)
        else:
            numbers = parse_numbers(partitions, "--partitions")
            if readable.is_whole:
                _check_partitions(numbers, {tp.partition for tp in tps}, log)
            chosen = {tp for tp in tps if tp.partition in numbers}
        if topic is not None and not selected:
            raise no_match_error(log, topic, "--topic")
        if not chosen and readable.is_whole:
            raise embedlog.UnknownTopicOrPartitionError(
                "no partition matches; embedlog offsets lists all", path=log.path
            )
        hidden = hidden_topics(log, include_internal) if topic is None else frozenset()
        with log.consumer() as consumer:
            topic_description = _find_offsets(consumer, sorted(chosen), moment)
    if current().json:
        print_document(
            [
                {"topic": tp.topic, "partition": tp.partition, "offset": offset}
                for tp, offset in topic_description.items()
            ]
        )
    else:
        click.echo(
            "".join(
                f"{tp.topic}:{tp.partition}:{offset}\n" for tp, offset in topic_description.items()
            ),
            nl=False,
        )
        tell_hidden(hidden, "internal topic")
    return readable.status(True)


def _check_partitions(numbers: list[int], existing: set[int], log: Log) -> None:
    """Raises UnknownTopicOrPartitionError for numbers that no topic has."""
    absent = [number for number in numbers if number not in existing]
    if existing and absent:
        raise embedlog.UnknownTopicOrPartitionError(
            "no topic that matches has such a partition",
            path=log.path,
            expected=",".join(map(str, sorted(existing))),
            found=",".join(map(str, absent)),
        )


def _parse_moment(text: str) -> int:
    problem = f"--time: expected {', '.join(NAMED)}, or milliseconds, found {text!r}"
    try:
        moment = int(text)
    except ValueError:
        raise click.UsageError(problem) from None
    if moment < min(NAMED.values()):
        raise click.UsageError(problem)
    return moment


class _Rule(NamedTuple):
    """One rule of `--topic-partitions`: topics, and a range of partitions."""

    topics: set[str]
    first: int
    end: float

    def has_partition(self, tp: TopicPartition) -> bool:
        return tp.topic in self.topics and self.first <= tp.partition < self.end


def _parse_rule(text: str, names: list[str]) -> _Rule:
    match = re.fullmatch(
        r"(?P<topic>[^:]*)(?::(?:(?P<one>\d+)|(?P<first>\d*)-(?P<end>\d*))?)?", text
    )
    if match is None:
        raise click.UsageError(f"--topic-partitions: expected REGEX:RANGE, found {text!r}")
    topics = set(select_matching(names, match["topic"] or None, "--topic-partitions"))
    first = 0
    end = float("inf")
    if match["one"] is not None:
        first = int(match["one"])
        end = first + 1
    elif match["first"] is not None:
        first = int(match["first"] or 0)
        if match["end"]:
            end = int(match["end"])
    return _Rule(topics, first, end)


def _find_offsets(
    consumer: Consumer[bytes, bytes], tps: list[TopicPartition], moment: int
) -> dict[TopicPartition, int]:
    if moment == NAMED["latest"]:
        return consumer.end_offsets(tps)
    if moment in (NAMED["earliest"], NAMED["earliest-local"]):
        return consumer.beginning_offsets(tps)
    if moment == NAMED["latest-tiered"]:
        return {}  # no record is in a remote tier
    offsets = {}
    if moment == NAMED["max-timestamp"]:
        for tp in tps:
            newest = _find_newest(consumer, tp)
            if newest is not None:
                offsets[tp] = newest
        return offsets
    answers = consumer.offsets_for_times(dict.fromkeys(tps, moment))
    for tp in tps:
        answer = answers[tp]
        if answer is not None:
            offsets[tp] = answer.offset
    return offsets


def _find_newest(consumer: Consumer[bytes, bytes], tp: TopicPartition) -> int | None:
    """The offset of the first record with the greatest timestamp, by halving the times that can
    have one.
    """
    best = None
    low = 0
    high = TIME_MAX
    while low < high:
        middle = 0 if best is None else low + (high - low) // 2
        answer = consumer.offsets_for_times({tp: middle})[tp]
        if answer is None:
            if best is None:
                return None
            high = middle
        else:
            best = answer.offset
            low = max(answer.timestamp_ms, middle) + 1
    return best
