"""Contains the verbs `consume`, `cat` and `tail`: records of topics on standard output.

CONSUME-1  `consume` begins at the end and follows, as Kafka's console consumer; `cat` prints what
    is present; `tail` follows
CONSUME-2  a reading that ends at known offsets is a scan, whose second thread decodes while lines
    are written; `-X` sets a consumer, which reads instead
CONSUME-3  a reading that waits for records ends when the reader of the output has ended, also if
    none arrives
CONSUME-4  a group commits what was written to the output, after it was flushed
CONSUME-5  a reading that ends at known offsets, without `-p`, passes over partitions without a
    leader. It names them at its end (READABLE-1)
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

import embedlog
from embedlog import Batch, Consumer, Log, OffsetAndMetadata, TopicPartition
from embedlog.cli.arguments import POSITIONS, group_ids, numbers, settings, topic_names, words
from embedlog.cli.internal_topics import matching_topics
from embedlog.cli.invocation import current, open_log, verb
from embedlog.cli.positions import Span, span
from embedlog.cli.readable import Readable
from embedlog.cli.reader_watch import ending_with_reader
from embedlog.cli.record_format import (
    KAFKA_PROPERTIES,
    Formatter,
    as_bytes,
    by_properties,
    envelope,
    formatted,
    unescaped,
)
from embedlog.cli.terminal import tell

if TYPE_CHECKING:
    from embedlog.cli.line_writer import LineWriter

_EXCLUSIVE = [("--offset", "--from-beginning")]
GROUP_WAIT_S = 1.0  # of a member for records, before it looks whether it has read all


@dataclass(frozen=True)
class Reading:
    """What is read, and when it ends."""

    topics: list[str]
    partitions: list[int] | None
    positions: tuple[str, ...]
    default: str
    exit_at_end: bool
    count: int | None
    timeout_s: float | None


def _options(function: Callable[..., Any]) -> Callable[..., Any]:
    options = (
        click.argument("topics", nargs=-1, shell_complete=topic_names),
        click.option(
            "-t", "--topic", "topic", multiple=True, shell_complete=topic_names, help="A topic."
        ),
        click.option("--include", "--whitelist", metavar="REGEX", help="All topics that match."),
        click.option(
            "-p", "--partition", "partitions", metavar="N,…", help="Only these partitions."
        ),
        click.option(
            "-o",
            "--offset",
            "positions",
            multiple=True,
            metavar="POSITION",
            shell_complete=words(*POSITIONS),
            help="beginning, end, an offset, -5 (before the end), @time, s@time, e@time, or "
            "stored: the committed"
            " offset of -X group.id.",
        ),
        click.option("--from-beginning", is_flag=True, help="The same as -o beginning."),
        click.option(
            "-e",
            "--exit",
            "exit_at_end",
            is_flag=True,
            help="Exit at the end that the partitions have now.",
        ),
        click.option(
            "-c",
            "--max-messages",
            "count",
            type=click.IntRange(min=1),
            help="Exit after this many records.",
        ),
        click.option(
            "--timeout-ms",
            type=click.IntRange(min=0),
            help="Exit if no record arrives for this time.",
        ),
        click.option(
            "-G",
            "--group",
            shell_complete=group_ids,
            help="Read as a member of a group, and commit.",
        ),
        click.option(
            "--isolation-level",
            type=click.Choice(["read_uncommitted", "read_committed"]),
            help="read_uncommitted is the default.",
        ),
        click.option(
            "-f",
            "--format",
            "text",
            metavar="FORMAT",
            help="%t %p %o %k %K %s %S %R %h %T %%, \\n \\t \\xNN.",
        ),
        click.option(
            "-J",
            "as_json",
            is_flag=True,
            help="The same as --json: kcat's envelope, one line per record.",
        ),
        click.option("-K", "key_delimiter", metavar="DELIM", help="Print key, DELIM, value."),
        click.option(
            "-D",
            "delimiter",
            default="\\n",
            metavar="DELIM",
            help="After each record; \\n if not given.",
        ),
        click.option(
            "-Z", "null_as_text", is_flag=True, help="Print NULL for null keys and values."
        ),
        click.option(
            "--property",
            "--formatter-property",
            "properties",
            multiple=True,
            metavar="KEY=VALUE",
            shell_complete=words(*(f"{name}=" for name in KAFKA_PROPERTIES)),
            help="Kafka's print.key=true, key.separator, null.literal, …",
        ),
        click.option(
            "--consumer-property",
            "-X",
            "consumer_settings",
            multiple=True,
            metavar="KEY=VALUE",
            help="A setting of the consumer.",
        ),
    )
    for each in reversed(options):
        function = each(function)
    return function


@verb(exclusive=_EXCLUSIVE)
@_options
def consume(**options: Any) -> int:
    """Print the records that arrive from now on; --from-beginning prints all first.

    JSON lines: {"topic", "partition", "offset", "tstype", "ts", "headers", "key", "payload"}. Bytes
    that are not UTF-8 are {"base64": …}.
    """
    return _consume(options, default="end", exit_at_end=False)


@verb(exclusive=_EXCLUSIVE)
@_options
def cat(**options: Any) -> int:
    """Print the present records, and end: `consume --from-beginning -e`."""
    return _consume(options, default="beginning", exit_at_end=True)


@verb(exclusive=_EXCLUSIVE)
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(min=0),
    default=10,
    help="Records per partition before the end.",
)
@_options
def tail(lines: int, **options: Any) -> int:
    """Print the last records of each partition, and follow: `consume -o -10`."""
    return _consume(options, default=f"-{lines}" if lines else "end", exit_at_end=False)


def _consume(options: dict[str, Any], default: str, exit_at_end: bool) -> int:
    from embedlog.cli.line_writer import LineWriter

    formatter, delimiter, null = _layout(options)
    writer = LineWriter(sys.stdout.buffer, formatter, delimiter, null)
    group = options["group"]
    with open_log(read_only=group is None) as log:
        reading = Reading(
            _topics(log, options),
            None
            if options["partitions"] is None
            else numbers(options["partitions"], "--partition"),
            options["positions"],
            "beginning" if options["from_beginning"] else default,
            exit_at_end or options["exit_at_end"],
            options["count"],
            None if options["timeout_ms"] is None else options["timeout_ms"] / 1000,
        )
        given = settings(options["consumer_settings"], "--consumer-property")
        stored_group = given.pop("group.id", None)
        if stored_group is not None and "stored" not in options["positions"]:
            raise click.UsageError(
                f"-X group.id: a member of a group is -G {stored_group}; -o stored begins at its "
                "offsets"
            )
        if options["isolation_level"] is not None:
            given["isolation.level"] = options["isolation_level"]
        if group is not None:
            written = _read_in_group(log, group, given, reading, writer.write)
            if not written:
                tell(f"embedlog: {_why_nothing(reading, {})}")
            return 0 if written else 1
        leaderless: list[embedlog.LeaderNotAvailableError] = []
        stored = _stored(log, stored_group) if "stored" in reading.positions else {}
        with log.consumer(config=given) as consumer:
            limits = _limits(log, consumer, reading, leaderless, stored)
            if reading.exit_at_end and not options["consumer_settings"]:
                written = _scan(
                    log, limits, reading, writer, options["isolation_level"] or "read_uncommitted"
                )
            else:
                with ending_with_reader(consumer):
                    written = _follow(consumer, limits, reading, writer.write)
        sys.stdout.flush()
        readable = Readable()
        for problem in leaderless:
            readable.note(problem)
        if not written and readable.whole:
            tell(f"embedlog: {_why_nothing(reading, limits.requested)}")
        return readable.status(bool(written))


def _stored(log: Log, group: str | None) -> dict[TopicPartition, OffsetAndMetadata]:
    """The committed offsets of a group, for `-o stored`."""
    if group is None:
        tell(
            "embedlog: -o stored: no group is given (-X group.id=NAME): the records are read as "
            "without -o"
        )
        return {}
    return log.group_offsets(group)


def _why_nothing(reading: Reading, requested: dict[TopicPartition, tuple[int, int, int]]) -> str:
    """Why no record was printed. `requested`: of each partition the first offset that was asked
    for, its start and its end.
    """
    beyond = [
        f"{tp.topic}-{tp.partition} has the offsets {start} to {end - 1}"
        if end > start
        else f"{tp.topic}-{tp.partition} is empty"
        for tp, (wanted, start, end) in requested.items()
        if wanted > end
    ]
    if beyond and len(beyond) == len(requested):
        return (
            f"no record at or after offset {min(wanted for wanted, *_ in requested.values())}: "
            f"{'; '.join(beyond[:3])}"
        )
    if reading.timeout_s is not None and not reading.exit_at_end:
        return f"no record arrived within {reading.timeout_s * 1000:.0f} ms (--timeout-ms)"
    names = ", ".join(reading.topics[:5])
    if reading.exit_at_end and reading.positions:
        return f"{names}: no record at the given positions; without -o all are printed"
    if reading.exit_at_end and reading.default != "beginning":
        return f"{names}: no record after the present end; --from-beginning prints those before it"
    return f"{names}: no record{' for this group' if not requested else ''}"


def _topics(log: Log, options: dict[str, Any]) -> list[str]:
    named = [*options["topic"], *options["topics"]]
    if bool(named) == (options["include"] is not None):
        raise click.UsageError("give topics, or --include with a regular expression")
    return named or matching_topics(log, options["include"], "--include")


def _layout(options: dict[str, Any]) -> tuple[Formatter | None, bytes, bytes]:
    """The formatter, or None for plain values; the delimiter; the text of null."""
    properties = settings(options["properties"], "--property")
    delimiter = unescaped(options["delimiter"], "-D")
    null = properties.get(
        "null.literal", "NULL" if options["null_as_text"] else KAFKA_PROPERTIES["null.literal"]
    )
    if current().json or options["as_json"]:
        return envelope, delimiter, b""
    if options["text"] is not None:
        return (
            formatted(options["text"], b"NULL" if options["null_as_text"] else b""),
            delimiter,
            b"",
        )
    if options["key_delimiter"] is not None:
        separator = unescaped(options["key_delimiter"], "-K")
        bare = as_bytes(null)
        return (
            (
                lambda record: (
                    (bare if record.key is None else record.key)
                    + separator
                    + (bare if record.value is None else record.value)
                    + delimiter
                )
            ),
            delimiter,
            bare,
        )
    if properties.keys() - {"null.literal", "line.separator"}:
        return by_properties({"null.literal": null, **properties}), delimiter, as_bytes(null)
    return (
        None,
        as_bytes(properties["line.separator"]) if "line.separator" in properties else delimiter,
        as_bytes(null),
    )


# ---- reading -------------------------------------------------------------------------------------


def _limits(
    log: Log,
    consumer: Consumer[Any, Any],
    reading: Reading,
    leaderless: list[embedlog.LeaderNotAvailableError],
    stored: dict[TopicPartition, OffsetAndMetadata],
) -> Span:
    """The partitions to read, which are assigned, with their first offsets and ends (CONSUME-5)."""

    def present(topic: str) -> list[int]:
        try:
            found = log.describe_topic(topic)
        except embedlog.LeaderNotAvailableError as problem:
            if not reading.exit_at_end:
                raise
            leaderless.append(problem)
            found = log.describe_topic(topic, available_only=True)
        return [each.partition for each in found.partitions]

    given = None if reading.partitions is None else list(dict.fromkeys(reading.partitions))
    tps = [
        TopicPartition(topic, number)
        for topic in reading.topics
        for number in (present(topic) if given is None else given)
    ]
    consumer.assign(tps)  # refuses an absent partition
    found = span(consumer, tps, reading.positions, reading.default, stored=stored)
    return replace(
        found, ends=(consumer.end_offsets(tps) | found.ends) if reading.exit_at_end else found.ends
    )


def _scan(log: Log, limits: Span, reading: Reading, writer: LineWriter, isolation: Any) -> int:
    """Write the records between the limits, partition after partition; returns their number."""
    written = 0
    for topic in reading.topics:
        starts = {
            tp.partition: start
            for tp, start in limits.starts.items()
            if tp.topic == topic and start < limits.ends[tp]
        }
        if not starts:
            continue
        ends = {number: limits.ends[TopicPartition(topic, number)] for number in starts}
        scan = log.scan(
            topic,
            partitions=starts,
            start_offset=starts,
            end_offset=ends,
            columns=writer.columns,
            isolation_level=isolation,
        )
        for batch in scan.batches():
            last = (
                batch.num_rows
                if reading.count is None
                else min(batch.num_rows, reading.count - written)
            )
            writer.write(batch, 0, last)
            written += last
            if written == reading.count:
                return written
    return written


def _follow(
    consumer: Consumer[Any, Any],
    limits: Span,
    reading: Reading,
    write: Callable[[Batch, int, int], None],
) -> int:
    """Write batches up to the ends of the partitions and the number of records."""
    for tp, start in limits.starts.items():
        consumer.seek(tp, start)
        if tp in limits.ends and start >= limits.ends[tp]:
            consumer.pause(tp)
    bounded = len(limits.ends) == len(limits.starts)
    timeout = 0.0 if bounded else reading.timeout_s
    written = 0
    for batch in consumer.batches(timeout=timeout):
        tp = TopicPartition(batch.topic, batch.partition)
        last = batch.num_rows
        if tp in limits.ends and int(batch.offsets[-1]) + 1 >= limits.ends[tp]:
            last = int(batch.offsets.searchsorted(limits.ends[tp]))
            consumer.pause(tp)
        if reading.count is not None:
            last = min(last, reading.count - written)
        if last:
            write(batch, 0, last)
            written += last
        if written == reading.count:
            break
        if not bounded:
            sys.stdout.flush()
    return written


def _read_in_group(
    log: Log,
    group: str,
    given: dict[str, str],
    reading: Reading,
    write: Callable[[Batch, int, int], None],
) -> int:
    """Read as a member of a group; the position of the last written record is committed."""
    if set(reading.positions) - {"stored"} or reading.partitions is not None:
        raise click.UsageError(
            "a group assigns partitions and has positions: -p and -o are not for groups; "
            "embedlog groups --reset-offsets changes its positions"
        )
    reset = "earliest" if reading.default == "beginning" else "latest"
    written = 0
    config = {"auto.offset.reset": reset, **given, "enable.auto.commit": "false"}
    with (
        log.consumer(*reading.topics, group_id=group, config=config) as consumer,
        ending_with_reader(consumer),
    ):
        while True:
            for batch in consumer.batches(
                timeout=GROUP_WAIT_S if reading.exit_at_end else reading.timeout_s
            ):
                last = (
                    batch.num_rows
                    if reading.count is None
                    else min(batch.num_rows, reading.count - written)
                )
                write(batch, 0, last)
                written += last
                sys.stdout.flush()
                place = int(batch.offsets[last - 1]) + 1
                consumer.commit(
                    {TopicPartition(batch.topic, batch.partition): OffsetAndMetadata(place)}
                )
                if written == reading.count:
                    return written
            if not reading.exit_at_end or consumer.assignment():
                return written
