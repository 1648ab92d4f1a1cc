"""Contains the verbs `consume`, `cat` and `tail`: records of topics on standard output.

- `consume` begins at the end and follows, as Kafka's console consumer; `cat` prints what is
  present; `tail` follows.
- A reading that ends at known offsets is a scan, whose second thread decodes while lines are
  written; `-X` sets a consumer, which reads instead.
- A reading that waits for records ends when the reader of the output has ended, also if none
  arrives.
- A group commits what was written to the output, after it was flushed.
- A reading that ends at known offsets, without `-p`, passes over partitions without a leader, and
  names them at its end.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

import embedlog
from embedlog import Batch, Consumer, Log, OffsetAndMetadata, TopicPartition
from embedlog.tools.cli.arguments import (
    POSITIONS,
    complete_group_ids,
    complete_topic_names,
    complete_words,
    parse_numbers,
    parse_settings,
)
from embedlog.tools.cli.internal_topics import find_matching_topics
from embedlog.tools.cli.invocation import current, open_log, verb
from embedlog.tools.cli.positions import Span, find_span
from embedlog.tools.cli.readable import ReadableMembers
from embedlog.tools.cli.reader_watch import end_with_reader
from embedlog.tools.cli.record_format import (
    KAFKA_PROPERTIES,
    AnyRecord,
    Formatter,
    as_bytes,
    envelope,
    kafka_formatter,
    kcat_formatter,
    unescape,
)
from embedlog.tools.cli.terminal import tell

if TYPE_CHECKING:
    from embedlog.tools.cli.line_writer import LineWriter

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

    def rows_to_write(self, batch: Batch, written: int) -> int:
        """How many rows of a batch are written after `written` records."""
        if self.count is None:
            return batch.num_rows
        return min(batch.num_rows, self.count - written)


def _add_options(function: Callable[..., Any]) -> Callable[..., Any]:
    options = (
        click.argument("topics", nargs=-1, shell_complete=complete_topic_names),
        click.option(
            "-t",
            "--topic",
            "topic",
            multiple=True,
            shell_complete=complete_topic_names,
            help="A topic.",
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
            shell_complete=complete_words(*POSITIONS),
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
            shell_complete=complete_group_ids,
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
            shell_complete=complete_words(*(f"{name}=" for name in KAFKA_PROPERTIES)),
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
    for option in reversed(options):
        function = option(function)
    return function


@verb(exclusive=_EXCLUSIVE)
@_add_options
def consume(**options: Any) -> int:
    """Print the records that arrive from now on; --from-beginning prints all first.

    JSON lines: {"topic", "partition", "offset", "tstype", "ts", "headers", "key", "payload"}. Bytes
    that are not UTF-8 are {"base64": …}.
    """
    return _consume(options, default="end", exit_at_end=False)


@verb(exclusive=_EXCLUSIVE)
@_add_options
def cat(**options: Any) -> int:
    """Print the current records, and end: `consume --from-beginning -e`."""
    return _consume(options, default="beginning", exit_at_end=True)


@verb(exclusive=_EXCLUSIVE)
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(min=0),
    default=10,
    help="Records per partition before the end.",
)
@_add_options
def tail(lines: int, **options: Any) -> int:
    """Print the last records of each partition, and follow: `consume -o -10`."""
    return _consume(options, default=f"-{lines}" if lines else "end", exit_at_end=False)


def _consume(options: dict[str, Any], default: str, exit_at_end: bool) -> int:
    from embedlog.tools.cli.line_writer import LineWriter

    formatter, delimiter, null = _choose_layout(options)
    writer = LineWriter(sys.stdout.buffer, formatter, delimiter, null)
    group = options["group"]
    with open_log(read_only=group is None) as log:
        topics = _select_topics(log, options)
        partitions = None
        if options["partitions"] is not None:
            partitions = parse_numbers(options["partitions"], "--partition")
        reading = Reading(
            topics=topics,
            partitions=partitions,
            positions=options["positions"],
            default="beginning" if options["from_beginning"] else default,
            exit_at_end=exit_at_end or options["exit_at_end"],
            count=options["count"],
            timeout_s=None if options["timeout_ms"] is None else options["timeout_ms"] / 1000,
        )
        config = parse_settings(options["consumer_settings"], "--consumer-property")
        stored_group = config.pop("group.id", None)
        if stored_group is not None and "stored" not in options["positions"]:
            raise click.UsageError(
                f"-X group.id: a member of a group is -G {stored_group}; -o stored begins at its "
                "offsets"
            )
        if options["isolation_level"] is not None:
            config["isolation.level"] = options["isolation_level"]
        if group is not None:
            written = _read_in_group(log, group, config, reading, writer.write)
            if not written:
                tell(f"embedlog: {_explain_nothing(reading, {})}")
            return 0 if written else 1
        leaderless: list[embedlog.LeaderNotAvailableError] = []
        stored = _read_stored_offsets(log, stored_group) if "stored" in reading.positions else {}
        with log.consumer(config=config) as consumer:
            limits = _assign_limits(log, consumer, reading, leaderless, stored)
            if reading.exit_at_end and not options["consumer_settings"]:
                isolation_level = options["isolation_level"] or "read_uncommitted"
                written = _scan(log, limits, reading, writer, isolation_level)
            else:
                with end_with_reader(consumer):
                    written = _follow(consumer, limits, reading, writer.write)
        sys.stdout.flush()
        readable = ReadableMembers()
        for problem in leaderless:
            readable.report_problem(problem)
        if not written and readable.is_whole:
            tell(f"embedlog: {_explain_nothing(reading, limits.requested)}")
        return readable.status(bool(written))


def _read_stored_offsets(log: Log, group: str | None) -> dict[TopicPartition, OffsetAndMetadata]:
    """The committed offsets of a group, for `-o stored`."""
    if group is None:
        tell(
            "embedlog: -o stored: no group is given (-X group.id=NAME): the records are read as "
            "without -o"
        )
        return {}
    return log.group_offsets(group)


def _explain_nothing(
    reading: Reading, requested: dict[TopicPartition, tuple[int, int, int]]
) -> str:
    """Why no record was printed. `requested`: of each partition the first offset that was asked
    for, its start and its end.
    """
    beyond = []
    for tp, (offset, start, end) in requested.items():
        if offset <= end:
            continue
        extent = f"has the offsets {start} to {end - 1}" if end > start else "is empty"
        beyond.append(f"{tp.topic}-{tp.partition} {extent}")
    if beyond and len(beyond) == len(requested):
        first = min(offset for offset, _start, _end in requested.values())
        return f"no record at or after offset {first}: {'; '.join(beyond[:3])}"
    if reading.timeout_s is not None and not reading.exit_at_end:
        return f"no record arrived within {reading.timeout_s * 1000:.0f} ms (--timeout-ms)"
    names = ", ".join(reading.topics[:5])
    if reading.exit_at_end and reading.positions:
        return f"{names}: no record at the given positions; without -o all are printed"
    if reading.exit_at_end and reading.default != "beginning":
        return f"{names}: no record after the present end; --from-beginning prints those before it"
    return f"{names}: no record{' for this group' if not requested else ''}"


def _select_topics(log: Log, options: dict[str, Any]) -> list[str]:
    named = [*options["topic"], *options["topics"]]
    if bool(named) == (options["include"] is not None):
        raise click.UsageError("give topics, or --include with a regular expression")
    return named or find_matching_topics(log, options["include"], "--include")


def _choose_layout(options: dict[str, Any]) -> tuple[Formatter | None, bytes, bytes]:
    """The formatter, or None for plain values; the delimiter; the text of null."""
    properties = parse_settings(options["properties"], "--property")
    delimiter = unescape(options["delimiter"], "-D")
    if current().json or options["as_json"]:
        return envelope, delimiter, b""
    if options["text"] is not None:
        null = b"NULL" if options["null_as_text"] else b""
        return kcat_formatter(options["text"], null), delimiter, b""
    default_null = "NULL" if options["null_as_text"] else KAFKA_PROPERTIES["null.literal"]
    null_text = properties.get("null.literal", default_null)
    null = as_bytes(null_text)
    if options["key_delimiter"] is not None:
        separator = unescape(options["key_delimiter"], "-K")
        return _key_value_formatter(separator, delimiter, null), delimiter, null
    if properties.keys() - {"null.literal", "line.separator"}:
        return kafka_formatter({"null.literal": null_text, **properties}), delimiter, null
    if "line.separator" in properties:
        delimiter = as_bytes(properties["line.separator"])
    return None, delimiter, null


def _key_value_formatter(separator: bytes, delimiter: bytes, null: bytes) -> Formatter:
    """Keys and values with a separator between them: kcat's `-K`."""

    def format_record(record: AnyRecord) -> bytes:
        key = null if record.key is None else record.key
        value = null if record.value is None else record.value
        return key + separator + value + delimiter

    return format_record


# ---- reading -------------------------------------------------------------------------------------


def _assign_limits(
    log: Log,
    consumer: Consumer[Any, Any],
    reading: Reading,
    leaderless: list[embedlog.LeaderNotAvailableError],
    stored: dict[TopicPartition, OffsetAndMetadata],
) -> Span:
    """Assign the partitions to read; returns their first offsets and ends. `leaderless` gets an
    error for each topic with a partition that has no leader.
    """

    def available_partitions(topic: str) -> list[int]:
        try:
            description = log.describe_topic(topic)
        except embedlog.LeaderNotAvailableError as problem:
            if not reading.exit_at_end:
                raise
            leaderless.append(problem)
            description = log.describe_topic(topic, available_only=True)
        return [partition.partition for partition in description.partitions]

    tps: list[TopicPartition] = []
    for topic in reading.topics:
        if reading.partitions is None:
            numbers = available_partitions(topic)
        else:
            numbers = list(dict.fromkeys(reading.partitions))
        tps += [TopicPartition(topic, number) for number in numbers]
    consumer.assign(tps)  # refuses an absent partition
    limits = find_span(consumer, tps, reading.positions, reading.default, stored=stored)
    if not reading.exit_at_end:
        return limits
    return replace(limits, ends=consumer.end_offsets(tps) | limits.ends)


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
            last = reading.rows_to_write(batch, written)
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
    config: dict[str, str],
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
    settings_of_member = {"auto.offset.reset": reset, **config, "enable.auto.commit": "false"}
    timeout_s = GROUP_WAIT_S if reading.exit_at_end else reading.timeout_s
    written = 0
    with (
        log.consumer(*reading.topics, group_id=group, config=settings_of_member) as consumer,
        end_with_reader(consumer),
    ):
        while True:
            for batch in consumer.batches(timeout=timeout_s):
                last = reading.rows_to_write(batch, written)
                write(batch, 0, last)
                written += last
                sys.stdout.flush()
                tp = TopicPartition(batch.topic, batch.partition)
                next_offset = int(batch.offsets[last - 1]) + 1
                consumer.commit({tp: OffsetAndMetadata(next_offset)})
                if written == reading.count:
                    return written
            if not reading.exit_at_end or consumer.assignment():
                return written
