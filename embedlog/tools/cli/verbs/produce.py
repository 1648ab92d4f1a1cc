"""Contains the verb `produce`: lines of standard input, or files, as records.

- Lines are sent as they arrive, many in one batch.
- The verb ends after all records are acknowledged; a record that fails makes its status 1.
- The lines before a bad line are written, as by Kafka's producer. The error has their number: a
  restart continues there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import click

from embedlog import CODECS, Producer
from embedlog.tools.cli.arguments import (
    complete_words,
    parse_pairs,
    parse_settings,
    topic_option,
)
from embedlog.tools.cli.invocation import current, open_log, verb
from embedlog.tools.cli.output import print_document
from embedlog.tools.cli.record_format import as_bytes, unescape

CHUNK_BYTES = 1 << 20

PROPERTIES = {
    "parse.key": "false",
    "key.separator": "\t",
    "ignore.error": "false",
    "null.marker": None,
    "parse.headers": "false",
    "headers.delimiter": "\t",
    "headers.separator": ",",
    "headers.key.separator": ":",
}

Headers = list[tuple[str, bytes | None]]


class _BadLineError(Exception):
    """A line is no record in the layout."""


class Lines:
    """Splits input into columns of records: the layout of Kafka's console producer.

    `bad` is the reason why a line is no record, with its number; columns end before that line.
    """

    bad: str | None = None

    def __init__(
        self,
        properties: dict[str, str],
        empty_is_null: bool,
        fixed_key: bytes | None,
        headers: Headers,
    ) -> None:
        unknown = properties.keys() - PROPERTIES.keys()
        if unknown:
            raise click.UsageError(
                f"--property: unknown {min(unknown)!r}: expected one of {', '.join(PROPERTIES)}"
            )
        values = {**PROPERTIES, **properties}
        self._separator = (
            as_bytes(str(values["key.separator"])) if values["parse.key"] == "true" else None
        )
        self._header_marks = None
        if values["parse.headers"] == "true":
            marks = ("headers.delimiter", "headers.separator", "headers.key.separator")
            self._header_marks = [as_bytes(str(values[name])) for name in marks]
        self._marker = None if values["null.marker"] is None else as_bytes(values["null.marker"])
        self._lenient = values["ignore.error"] == "true"
        self._empty_is_null = empty_is_null
        self._key = fixed_key
        self._headers = headers
        self._number = 0

    def columns(
        self, lines: list[bytes]
    ) -> tuple[list[bytes | None], list[bytes | None] | None, list[Headers] | None]:
        """Values, keys and headers of lines, up to the first one that is bad."""
        has_marks = (
            self._separator is not None
            or self._header_marks is not None
            or self._marker is not None
        )
        keys: list[bytes | None] | None = None
        if not has_marks and not self._headers:
            self._number += len(lines)
            values: list[bytes | None] = [*lines]
            if self._empty_is_null:
                values = [line or None for line in lines]
            if self._key is not None:
                keys = [self._key] * len(lines)
            return values, keys, None
        rows = [*self._split_rows(lines)]
        values = [value for _key, value, _headers in rows]
        if self._separator is not None or self._key is not None:
            keys = [key for key, _value, _headers in rows]
        headers = None
        if self._headers or self._header_marks:
            headers = [row_headers for _key, _value, row_headers in rows]
        return values, keys, headers

    def _split_rows(
        self, lines: list[bytes]
    ) -> Iterator[tuple[bytes | None, bytes | None, Headers]]:
        try:
            for line in lines:
                yield self._split_row(line)
        except _BadLineError as problem:
            self.bad = f"line {self._number}: {problem}"

    def _split_row(self, line: bytes) -> tuple[bytes | None, bytes | None, Headers]:
        self._number += 1
        headers = [*self._headers]
        key = self._key
        if self._header_marks is not None:
            delimiter, separator, sign = self._header_marks
            text, line = self._cut(line, delimiter, "headers.delimiter")
            if text and text != self._marker:
                headers += [self._split_header(part, sign) for part in text.split(separator)]
        if self._separator is not None:
            before, mark, after = line.partition(self._separator)
            if mark:
                key = self._null_if_marked(before)
                line = after
            elif not self._lenient:
                raise _BadLineError(f"no key separator {self._separator!r}")
        return key, self._null_if_marked(line), headers

    def _split_header(self, header: bytes, sign: bytes) -> tuple[str, bytes | None]:
        name, value = self._cut(header, sign, "headers.key.separator")
        if name == self._marker:
            raise _BadLineError(
                f"the key of a header is the null.marker {name!r}: a header needs a key"
            )
        return name.decode("utf-8", "replace"), self._null_if_marked(value)

    def _cut(self, line: bytes, delimiter: bytes, name: str) -> tuple[bytes, bytes]:
        """The parts before and after a delimiter, which has this name in an error."""
        if delimiter in line:
            before, _, after = line.partition(delimiter)
            return before, after
        if self._lenient:
            return b"", line
        raise _BadLineError(f"no {name} {delimiter!r}")

    def _null_if_marked(self, data: bytes) -> bytes | None:
        if data == self._marker or (self._empty_is_null and not data):
            return None
        return data


def read_chunks(file: BinaryIO, delimiter: bytes | None) -> Iterator[list[bytes]]:
    """Lines of a file in groups, each as soon as the file has it; the last line may lack its
    delimiter.

    Without a delimiter a line ends with a line feed, or with a carriage return and a line feed, as
    for Kafka's producer.
    """
    if delimiter is not None:
        yield from _split_chunks(file, delimiter)
        return
    for lines in _split_chunks(file, b"\n"):
        yield [line.removesuffix(b"\r") for line in lines]


def _split_chunks(file: BinaryIO, delimiter: bytes) -> Iterator[list[bytes]]:
    incomplete = bytearray()  # grows in place: a line may be as long as a thousand chunks
    while data := os.read(file.fileno(), CHUNK_BYTES):
        searched_size = max(0, len(incomplete) - len(delimiter) + 1)
        incomplete += data
        if incomplete.find(delimiter, searched_size) < 0:
            continue
        *lines, remainder = bytes(incomplete).split(delimiter)
        incomplete = bytearray(remainder)
        yield lines
    if incomplete:
        yield [bytes(incomplete)]


def _check_files_exist(
    context: click.Context, parameter: click.Parameter, value: tuple[Path, ...]
) -> tuple[Path, ...]:
    for path in value:
        if not path.exists():
            raise click.UsageError(f"FILES: no such file: {path}; the topic is given by -t TOPIC")
        if path.is_dir():
            raise click.UsageError(f"FILES: {path} is a directory: give files")
    return value


@verb()
@topic_option(required=True, help="The topic; it must exist.")
@click.argument("files", nargs=-1, type=click.Path(path_type=Path), callback=_check_files_exist)
@click.option(
    "-l",
    "by_line",
    is_flag=True,
    help="Send the lines of FILES; without it each file is one record.",
)
@click.option("-p", "--partition", type=click.IntRange(min=0), help="The partition of all records.")
@click.option("-k", "--key", help="The key of all records.")
@click.option("-K", "key_delimiter", metavar="DELIM", help="Each line is key, DELIM, value.")
@click.option(
    "-D",
    "delimiter",
    metavar="DELIM",
    help="Between records; the ends of lines, \\n or \\r\\n, if not given.",
)
@click.option(
    "-H",
    "--header",
    "headers",
    multiple=True,
    metavar="NAME=VALUE",
    help="A header of all records.",
)
@click.option("-Z", "empty_is_null", is_flag=True, help="Send empty keys and values as null.")
@click.option(
    "-c",
    "--max-messages",
    "count",
    type=click.IntRange(min=1),
    help="Send at most this many records.",
)
@click.option(
    "-z", "--compression-codec", type=click.Choice(CODECS), help="The codec; none is the default."
)
@click.option(
    "--request-required-acks",
    "--acks",
    "acks",
    shell_complete=complete_words("0", "1", "-1", "all"),
    help="0, 1 or -1.",
)
@click.option("--sync", is_flag=True, help="Wait for each group of lines.")
@click.option(
    "--property",
    "--reader-property",
    "properties",
    multiple=True,
    metavar="KEY=VALUE",
    shell_complete=complete_words(*(f"{name}=" for name in PROPERTIES)),
    help="Kafka's parse.key=true, key.separator, null.marker, …",
)
@click.option(
    "--producer-property",
    "-X",
    "producer_settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting of the producer.",
)
def produce(topic: str, files: tuple[Path, ...], **options: Any) -> int:
    """Send lines of standard input, or FILES, as records.

    JSON: {"topic", "records"} at the end.
    """
    properties = parse_settings(options["properties"], "--property")
    if options["key_delimiter"] is not None:
        separator = unescape(options["key_delimiter"], "-K").decode("utf-8", "surrogateescape")
        properties = {
            "parse.key": "true",
            "key.separator": separator,
            "ignore.error": "true",
            **properties,
        }
    headers: Headers = [
        (name, as_bytes(value)) for name, value in parse_pairs(options["headers"], "-H")
    ]
    key = None if options["key"] is None else as_bytes(options["key"])
    lines = Lines(properties, options["empty_is_null"], key, headers)
    config = parse_settings(options["producer_settings"], "--producer-property")
    if options["compression_codec"] is not None:
        config["compression.type"] = options["compression_codec"]
    if options["acks"] is not None:
        config["acks"] = options["acks"]
    with open_log(read_only=False) as log, log.producer(config=config) as producer:
        log.describe_topic(topic)  # an unknown topic is refused before input is read
        groups = _read_inputs(files, options["by_line"], _parse_delimiter(options["delimiter"]))
        sent = _send(producer, topic, groups, lines, options)
    if current().json:
        print_document({"topic": topic, "records": sent})
    return 0


def _parse_delimiter(text: str | None) -> bytes | None:
    """What is between records; None are the ends of lines."""
    if text is None:
        return None
    delimiter = unescape(text, "-D")
    if not delimiter:
        raise click.UsageError("-D: expected at least one byte, such as -D ';'")
    return delimiter


def _read_inputs(
    files: tuple[Path, ...], by_line: bool, delimiter: bytes | None
) -> Iterator[list[bytes]]:
    if not files:
        yield from read_chunks(sys.stdin.buffer, delimiter)
    for path in files:
        if by_line:
            with path.open("rb") as file:
                yield from read_chunks(file, delimiter)
        else:
            yield [path.read_bytes()]


def _send(
    producer: Producer[Any, Any],
    topic: str,
    groups: Iterator[list[bytes]],
    lines: Lines,
    options: dict[str, Any],
) -> int:
    sent = 0
    for chunk in groups:
        group = chunk if options["count"] is None else chunk[: options["count"] - sent]
        values, keys, headers = lines.columns(group)
        if values:
            future = producer.send_batch(
                topic, values, keys, partition=options["partition"], headers=headers
            )
            if options["sync"]:
                future.result()
        sent += len(values)
        if lines.bad is not None:
            producer.flush()
            raise click.ClickException(f"{lines.bad}; lines before it that are written: {sent}")
        if sent == options["count"]:
            break
    return sent
