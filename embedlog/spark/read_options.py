"""Defines and checks the options of the Spark source: those of Spark's Kafka source, and a few
more.

- Option names and values are case-insensitive (`option_names`).
- All checks run when the options are parsed, before Spark starts a task.
- Of several start options the most specific one applies, as in Spark's Kafka source.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from urllib.parse import unquote

import embedlog
from embedlog.spark.option_names import SINK_ONLY, check_names, is_table

logger = logging.getLogger("embedlog.spark")

EARLIEST = "earliest"
LATEST = "latest"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?://([^/]*))?(/.*)", re.DOTALL)
Directory = str | tuple[str, ...]  # several: the directories of a set
Offset = int | str  # a number, "earliest" or "latest"

SPLIT_BYTES = 64 << 20
COLUMNS = {
    "key": "BINARY",
    "value": "BINARY",
    "topic": "STRING",
    "partition": "INT",
    "offset": "BIGINT",
    "timestamp": "TIMESTAMP",
    "timestampType": "INT",
    "headers": "ARRAY<STRUCT<key: STRING, value: BINARY>>",
}
DEFAULT_COLUMNS = tuple(name for name in COLUMNS if name != "headers")


class SourceOption(NamedTuple):
    """One option: its parser, where it applies, its default and its description."""

    read: Callable[[str, str], Any]
    batch: bool
    stream: bool
    default: str
    doc: str


# ---- parsers of values ---------------------------------------------------------------------------


def missing_path(call: str, query: str) -> embedlog.ConfigError:
    """The error of a load or save without a directory; `query` is the same in SQL."""
    return embedlog.ConfigError(
        f"path: the log directory is missing: {call}; Spark passes the options of a table in its "
        "catalog to no query,"
        f" so a query names them: {query}, or the table is a temporary view"
    )


def refuse(name: str, expected: str, found: object) -> embedlog.ConfigError:
    return embedlog.ConfigError(name, expected=expected, found=repr(found))


def plain(name: str, text: str) -> str:
    return text


def _names(name: str, text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    if not names:
        raise refuse(name, "names separated by commas", text)
    return names


def boolean(name: str, text: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise refuse(name, "true or false", text)
    return text.strip().lower() == "true"


def _count(name: str, text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise refuse(name, "a whole number, at least 1", text)
    return int(text)


def _bytes(name: str, text: str) -> int:
    """A size: 64m, 1g, or a number of bytes."""
    word = text.strip().lower().removesuffix("b")
    scale = {"k": 10, "m": 20, "g": 30}.get(word[-1:], 0)
    number = word[:-1] if scale else word
    if not number.isdecimal() or int(number) < 1:
        raise refuse(name, "a size, such as 67108864 or 64m", text)
    return int(number) << scale


def _duration_ms(name: str, text: str) -> int:
    """A time: 15m, 90s, 500ms."""
    word = text.strip().lower()
    digits = len(word) - len(word.lstrip("0123456789"))
    scale = {"ms": 1, "s": 1000, "": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000}.get(
        word[digits:].strip()
    )
    if scale is None or not digits:
        raise refuse(name, "a time, such as 500ms, 90s or 15m", text)
    return int(word[:digits]) * scale


def one_of(*allowed: str) -> Callable[[str, str], str]:
    def read(name: str, text: str) -> str:
        if text.strip().lower() not in allowed:
            raise refuse(name, " or ".join(allowed), text)
        return text.strip().lower()

    return read


def _columns(name: str, text: str) -> tuple[str, ...]:
    return checked_columns(_names(name, text), name)


def checked_columns(names: tuple[str, ...], option: str = "columns") -> tuple[str, ...]:
    """Spark's spelling of these columns. Raises ConfigError for unknown and duplicate names."""
    columns_by_lower = {column.lower(): column for column in COLUMNS}
    for name in names:
        if name.lower() not in columns_by_lower:
            raise refuse(option, ", ".join(COLUMNS), name)
    columns = tuple(columns_by_lower[name.lower()] for name in names)
    if len(set(columns)) < len(columns) or not columns:
        raise refuse(option, "at least one column, no duplicates", ",".join(names))
    return columns


# ---- bounds --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bound:
    """Start or end of a read: the default, and the values of single topics (partition None) or
    partitions.
    """

    every: Offset = EARLIEST
    each: Mapping[tuple[str, int | None], Offset] = field(default_factory=dict)
    by_time: bool = False  # the numbers are milliseconds
    option: str = ""

    def of(self, topic: str, partition: int) -> Offset:
        for key in ((topic, partition), (topic, None)):
            if key in self.each:
                return self.each[key]
        return self.every


def _json(name: str, text: str, words: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise refuse(name, words, text) from None


def _offset(name: str, value: Any) -> Offset:
    word = value.strip().lower() if isinstance(value, str) else value
    if word in (-2, EARLIEST):
        return EARLIEST
    if word in (-1, LATEST):
        return LATEST
    if type(word) is not int or word < 0:
        raise refuse(name, "an offset, earliest (-2) or latest (-1)", value)
    return word


def _time(name: str, value: Any) -> Offset:
    """Milliseconds, or an ISO 8601 time with its zone."""
    if isinstance(value, str):
        if value.strip().isdecimal():
            return int(value)
        try:
            moment = datetime.fromisoformat(value.strip())
        except ValueError:
            moment = None
        if moment is not None and moment.tzinfo is not None:
            return (moment - _EPOCH) // timedelta(milliseconds=1)
    if type(value) is not int or value < 0:
        raise refuse(
            name,
            "milliseconds since 1970, or a time with its zone such as 2026-01-31T12:00:00Z",
            value,
        )
    return value


def _read_values(
    name: str, text: str, read: Callable[[str, Any], Offset], words: str
) -> tuple[Offset | None, dict[Any, Offset]]:
    """The common value, and the values of single topics and partitions."""
    if not text.strip().startswith("{"):
        bare = text.strip()
        return read(name, int(bare) if bare.lstrip("-").isdecimal() else bare), {}
    single: dict[Any, Offset] = {}
    for topic, value in _json(name, text, words).items():
        if not isinstance(value, dict):
            single[topic, None] = read(name, value)
            continue
        for number, partition_value in value.items():
            if not number.isdecimal():
                raise refuse(name, words, text)
            single[topic, int(number)] = read(name, partition_value)
    return None, single


def _offsets(name: str, text: str) -> Bound:
    common, single = _read_values(
        name, text, _offset, 'earliest, latest, or JSON: {"topic": {"0": 23, "1": -2}}'
    )
    if common is None:
        common = EARLIEST if name.startswith("starting") else LATEST
    return Bound(common, single, option=name)


def _times(name: str, text: str) -> Bound:
    common, single = _read_values(name, text, _time, 'JSON: {"topic": {"0": 1700000000000}}')
    if common is None:
        common = EARLIEST if name.startswith("starting") else LATEST
    return Bound(common, single, by_time=True, option=name)


def _assign(name: str, text: str) -> dict[str, tuple[int, ...]]:
    words = 'JSON: {"topic": [0, 1]}'
    numbers_by_topic = _json(name, text, words)
    if not isinstance(numbers_by_topic, dict) or not numbers_by_topic:
        raise refuse(name, words, text)
    for numbers in numbers_by_topic.values():
        if not isinstance(numbers, list) or any(type(number) is not int for number in numbers):
            raise refuse(name, words, text)
    return {topic: tuple(dict.fromkeys(numbers)) for topic, numbers in numbers_by_topic.items()}


# ---- the table -----------------------------------------------------------------------------------

OPTIONS: dict[str, SourceOption] = {
    "path": SourceOption(
        plain,
        True,
        True,
        "",
        "The log directory; the argument of `load(…)`. For a set: all directories, as a list or "
        "in JSON.",
    ),
    "subscribe": SourceOption(
        _names,
        True,
        True,
        "",
        "Topics, separated by commas. One of this and the next two is required.",
    ),
    "subscribePattern": SourceOption(
        plain, True, True, "", "A Python regular expression that matches the whole name of a topic."
    ),
    "assign": SourceOption(_assign, True, True, "", 'Single partitions: `{"topic": [0, 2]}`.'),
    "startingOffsets": SourceOption(
        _offsets,
        True,
        True,
        "earliest; latest in a stream",
        '`earliest`, `latest` (streams only), a number for all, or `{"topic": {"0": 23, "1": '
        "-2}}`; -2 is earliest, -1 latest."
        " Partitions that are not named begin at the start.",
    ),
    "endingOffsets": SourceOption(
        _offsets, True, False, "latest", "The same, exclusive. Other partitions end at the end."
    ),
    "startingTimestamp": SourceOption(
        _times,
        True,
        True,
        "",
        "From the first record of each partition at or after this time; ms, or ISO 8601 with a "
        "time zone.",
    ),
    "endingTimestamp": SourceOption(
        _times, True, False, "", "Up to the first record of each partition at or after this time."
    ),
    "startingOffsetsByTimestamp": SourceOption(
        _times, True, True, "", 'By topic and partition: `{"topic": {"0": 1700000000000}}`.'
    ),
    "endingOffsetsByTimestamp": SourceOption(_times, True, False, "", "The same, exclusive."),
    "startingOffsetsByTimestampStrategy": SourceOption(
        one_of("error", "latest"),
        True,
        True,
        "latest",
        "For partitions without a record that new: read nothing, or an error.",
    ),
    "includeHeaders": SourceOption(
        boolean, True, True, "false", "Add the column `headers`, null for a record without headers."
    ),
    "columns": SourceOption(
        _columns,
        True,
        True,
        "all but headers",
        "Only these columns, in this order; others are not decoded.",
    ),
    "minPartitions": SourceOption(
        _count, True, True, "", "Minimum number of tasks, as far as there are records."
    ),
    "maxRecordsPerPartition": SourceOption(
        _count, True, True, "", "Maximum number of offsets in one task."
    ),
    "maxBytesPerPartition": SourceOption(
        _bytes, True, True, "64m", "Approximate size of one task, cut between batches."
    ),
    "failOnDataLoss": SourceOption(
        boolean,
        True,
        True,
        "true",
        "Whether requested records that no longer exist fail the query; else a warning is logged.",
    ),
    "isolation.level": SourceOption(
        one_of("read_uncommitted", "read_committed"),
        True,
        True,
        "read_uncommitted",
        "`read_committed` omits records of aborted and open transactions; also as "
        "`kafka.isolation.level`.",
    ),
    "group.id": SourceOption(
        plain,
        False,
        True,
        "",
        "A consumer group to which progress is committed, so that its lag is visible; also as "
        "`kafka.group.id`.",
    ),
    "maxOffsetsPerTrigger": SourceOption(
        _count, False, True, "", "Maximum number of offsets in one micro-batch, divided by lag."
    ),
    "minOffsetsPerTrigger": SourceOption(
        _count, False, True, "", "A micro-batch waits until this many are available…"
    ),
    "maxTriggerDelay": SourceOption(_duration_ms, False, True, "15m", "…but not longer than this."),
}
_BY_LOWER = {name.lower(): name for name in OPTIONS}
_BY_LOWER |= {f"kafka.{name}": name for name in ("isolation.level", "group.id")}
_SINK = {name.lower() for name in SINK_ONLY}


@dataclass(frozen=True)
class ReadSettings:
    """The options of one `load()`, checked."""

    directory: Directory
    subscribe: tuple[str, ...] = ()
    pattern: str = ""
    assign: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    start: Bound = field(default_factory=Bound)
    end: Bound = field(default_factory=lambda: Bound(LATEST))
    late_is_error: bool = False
    columns: tuple[str, ...] = DEFAULT_COLUMNS
    min_partitions: int = 0
    max_records: int = 0
    max_bytes: int = SPLIT_BYTES
    fail_on_data_loss: bool = True
    isolation: embedlog.IsolationLevel = "read_uncommitted"
    max_offsets: int = 0
    min_offsets: int = 0
    max_delay_ms: int = 900_000
    group_id: str = ""


def schema_columns(options: Mapping[str, str]) -> tuple[str, ...]:
    """The columns of a `load()`, or of a table that is created: its queries name path and topics
    again. Raises ConfigError.
    """
    if not is_table(options):
        return parse(options, stream=None).columns
    return _chosen_columns(check_names(options, _BY_LOWER, _SINK, "source", _value))


def _value(name: str, text: str) -> Any:
    return OPTIONS[name].read(name, text)


def _chosen_columns(values: Mapping[str, Any]) -> tuple[str, ...]:
    headers = ("headers",) if values.get("includeHeaders", False) else ()
    columns: tuple[str, ...] = values.get("columns", DEFAULT_COLUMNS + headers)
    return columns


def parse(options: Mapping[str, str], *, stream: bool | None) -> ReadSettings:
    """Checked settings from Spark's options; `stream` is None if the kind of query is not known
    yet. Raises ConfigError.
    """
    values = check_names(options, _BY_LOWER, _SINK, "source", _value)
    ends = [name for name in values if not OPTIONS[name].stream]
    if stream and ends:
        raise embedlog.ConfigError(f"{', '.join(ends)}: a stream has no end")
    limits = [name for name in values if not OPTIONS[name].batch]
    if stream is False and limits:
        logger.warning("%s: no effect in a batch", ", ".join(limits))
    if not values.get("path", "").strip():
        raise missing_path(
            ".load(directory)", "SELECT … FROM name WITH (path = '…', subscribe = '…')"
        )
    chosen = [name for name in ("subscribe", "subscribePattern", "assign") if name in values]
    if len(chosen) != 1:
        chosen_text = " and ".join(chosen) or "none of them"
        if not chosen and any(name.lower() == "topic" for name in options):
            chosen_text += "; topic is an option of the sink: did you mean subscribe?"
        raise embedlog.ConfigError(
            "the topics are missing or ambiguous",
            expected="exactly one of subscribe, subscribePattern, assign",
            found=chosen_text,
        )
    start = _first(values, "startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
    if stream is False and start is not None and LATEST in (start.every, *start.each.values()):
        raise embedlog.ConfigError(
            f"{start.option}: a batch cannot begin at its end", found="latest (-1)"
        )
    end = _first(values, "endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
    if end is not None and EARLIEST in (end.every, *end.each.values()):
        raise embedlog.ConfigError(
            f"{end.option}: a batch cannot end at its beginning", found="earliest (-2)"
        )
    offsets_max = values.get("maxOffsetsPerTrigger", 0)
    offsets_min = values.get("minOffsetsPerTrigger", 0)
    if offsets_max and offsets_min > offsets_max:
        raise embedlog.ConfigError(
            "minOffsetsPerTrigger",
            expected=f"at most maxOffsetsPerTrigger ({offsets_max})",
            found=offsets_min,
        )
    return ReadSettings(
        directory=directory_of(values["path"]),
        subscribe=tuple(dict.fromkeys(values.get("subscribe", ()))),
        pattern=values.get("subscribePattern", ""),
        assign=values.get("assign", {}),
        start=start or Bound(LATEST if stream else EARLIEST),
        end=end or Bound(LATEST),
        late_is_error=values.get("startingOffsetsByTimestampStrategy") == "error",
        columns=_chosen_columns(values),
        min_partitions=values.get("minPartitions", 0),
        max_records=values.get("maxRecordsPerPartition", 0),
        max_bytes=values.get("maxBytesPerPartition", SPLIT_BYTES),
        fail_on_data_loss=values.get("failOnDataLoss", True),
        isolation=values.get("isolation.level", "read_uncommitted"),
        max_offsets=offsets_max,
        min_offsets=offsets_min,
        max_delay_ms=values.get("maxTriggerDelay", 900_000),
        group_id=values.get("group.id", ""),
    )


def _first(values: Mapping[str, Any], *names: str) -> Bound | None:
    return next((values[name] for name in names if name in values), None)


def directory_of(path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> Directory:
    """The absolute form of a path or a `file:` URL; of several, given as a sequence or as a list in
    JSON, all of them.

    Raises ConfigError for a list of other values.
    """
    if isinstance(path, str) and path.lstrip().startswith("["):
        try:
            path = json.loads(path)
        except ValueError as problem:
            raise refuse("path", "a path, or a list of paths in JSON", path) from problem
    if isinstance(path, (str, os.PathLike)):
        return _absolute(os.fspath(path))
    if not path or not all(isinstance(each, (str, os.PathLike)) for each in path):
        raise refuse("path", "a list of paths", path)
    return tuple(_absolute(os.fspath(each)) for each in path)


def all_of(directory: Directory) -> tuple[str, ...]:
    """The directory of a log, or the directories of a set."""
    return (directory,) if isinstance(directory, str) else directory


def first_of(directory: Directory) -> str:
    """The directory of a log, or the first one of a set: for messages, and for files beside it."""
    return all_of(directory)[0]


def _absolute(path: str) -> str:
    """The absolute form of a path, or of a `file:` URL with its escapes. Raises ConfigError for
    another URL.
    """
    url = _URL.match(path)
    if url is None:
        return os.path.abspath(path)
    scheme, host, below = url.groups(default="")
    if scheme.lower() != "file" or host not in ("", "localhost"):
        raise embedlog.ConfigError(
            "path: not a local path", expected="a path, or a file: URL of this machine", found=path
        )
    return os.path.abspath(unquote(below))
