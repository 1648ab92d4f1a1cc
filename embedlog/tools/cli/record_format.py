"""Turns records into bytes: formats of kcat's `-f`, fields of Kafka's `print.*` properties, and
kcat's JSON envelope.

A format is read once; unknown escapes and fields are usage errors. Lengths of null are -1, as in
kcat.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Mapping
from typing import TypeAlias

import click

from embedlog import Record
from embedlog.tools.cli.output import text_of

AnyRecord: TypeAlias = "Record[bytes, bytes]"
Formatter = Callable[[AnyRecord], bytes]

_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_TOKEN = re.compile(
    r"%(?P<field>.)|\\x(?P<hex>[0-9A-Fa-f]{2})|\\(?P<escape>.)|(?P<text>[^%\\]+)", re.DOTALL
)
KAFKA_PROPERTIES = {
    "print.timestamp": "false",
    "print.partition": "false",
    "print.offset": "false",
    "print.delivery": "false",
    "print.epoch": "false",
    "print.headers": "false",
    "print.key": "false",
    "print.value": "true",
    "key.separator": "\t",
    "line.separator": "\n",
    "headers.separator": ",",
    "null.literal": "null",
}


def as_bytes(argument: str) -> bytes:
    """The bytes of an argument; those that are not UTF-8 are its surrogates."""
    return argument.encode("utf-8", "surrogateescape")


def unescape(text: str, option: str) -> bytes:
    """A delimiter with kcat's escapes \\n \\t \\r \\0 \\xNN."""
    return b"".join(
        part for part in _parse_parts(text, option, fields=None) if isinstance(part, bytes)
    )


def _parse_parts(
    text: str, option: str, fields: Mapping[str, Formatter] | None
) -> list[bytes | Formatter]:
    parts: list[bytes | Formatter] = []
    position = 0
    while position < len(text):
        token = _TOKEN.match(text, position)
        if token is None:
            raise click.UsageError(f"{option}: incomplete escape at the end of {text!r}")
        position = token.end()
        if token["text"] is not None:
            parts.append(as_bytes(token["text"]))
        elif token["hex"] is not None:
            parts.append(bytes.fromhex(token["hex"]))
        elif token["escape"] is not None:
            if token["escape"] not in _ESCAPES:
                raise click.UsageError(
                    f"{option}: unknown escape \\{token['escape']}: expected \\n, \\t, \\r, \\0, "
                    "\\xNN or \\\\"
                )
            parts.append(_ESCAPES[token["escape"]])
        elif fields is None:
            parts.append(as_bytes(token[0]))
        elif token["field"] == "%":
            parts.append(b"%")
        elif token["field"] in fields:
            parts.append(fields[token["field"]])
        else:
            raise click.UsageError(
                f"{option}: unknown field %{token['field']}: expected one of %{' %'.join(fields)} "
                "%%"
            )
    return parts


def kcat_formatter(text: str, null: bytes) -> Formatter:
    """A formatter for a kcat format. Raises UsageError for an unknown field or escape."""

    def payload(record: AnyRecord) -> bytes:
        return null if record.value is None else record.value

    def key(record: AnyRecord) -> bytes:
        return null if record.key is None else record.key

    parts = _parse_parts(
        text,
        "-f",
        {
            "t": lambda record: record.topic.encode(),
            "p": lambda record: b"%d" % record.partition,
            "o": lambda record: b"%d" % record.offset,
            "T": lambda record: b"%d" % record.timestamp_ms,
            "k": key,
            "s": payload,
            "v": payload,
            "K": lambda record: b"%d" % (-1 if record.key is None else len(record.key)),
            "S": lambda record: b"%d" % (-1 if record.value is None else len(record.value)),
            "R": lambda record: struct.pack(
                ">i", -1 if record.value is None else len(record.value)
            ),
            "h": lambda record: _headers(record, b"=", b",", b"NULL"),
        },
    )
    return lambda record: b"".join(
        [part if isinstance(part, bytes) else part(record) for part in parts]
    )


def _headers(record: AnyRecord, sign: bytes, separator: bytes, null: bytes) -> bytes:
    return separator.join(
        name.encode() + sign + (null if value is None else value) for name, value in record.headers
    )


def kafka_formatter(properties: Mapping[str, str]) -> Formatter:
    """A formatter for the properties of kafka-console-consumer, with the order of its fields."""
    unknown = properties.keys() - KAFKA_PROPERTIES.keys()
    if unknown:
        raise click.UsageError(
            f"--property: unknown {min(unknown)!r}: expected one of {', '.join(KAFKA_PROPERTIES)}"
        )
    values = {**KAFKA_PROPERTIES, **properties}
    null = as_bytes(values["null.literal"])
    headers_separator = as_bytes(values["headers.separator"])
    times = {0: b"CreateTime:%d", 1: b"LogAppendTime:%d"}
    fields: dict[str, Formatter] = {
        "print.timestamp": lambda record: (
            b"NO_TIMESTAMP"
            if record.timestamp_ms < 0
            else times[record.timestamp_type] % record.timestamp_ms
        ),
        "print.partition": lambda record: b"Partition:%d" % record.partition,
        "print.offset": lambda record: b"Offset:%d" % record.offset,
        "print.delivery": lambda record: b"Delivery:NOT_PRESENT",
        "print.epoch": lambda record: (
            b"Epoch:NOT_PRESENT" if record.leader_epoch < 0 else b"Epoch:%d" % record.leader_epoch
        ),
        "print.headers": lambda record: (
            _headers(record, b":", headers_separator, null) or b"NO_HEADERS"
        ),
        "print.key": lambda record: null if record.key is None else record.key,
        "print.value": lambda record: null if record.value is None else record.value,
    }
    chosen = [field for name, field in fields.items() if values[name] == "true"]
    separator = as_bytes(values["key.separator"])
    end = as_bytes(values["line.separator"]) if values["print.value"] == "true" else b""
    return lambda record: separator.join([field(record) for field in chosen]) + end


def envelope(record: AnyRecord) -> bytes:
    """kcat's JSON envelope, one line."""
    headers: list[object] = []
    for name, value in record.headers:
        headers += [name, text_of(value)]
    line = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "tstype": "logappend" if record.timestamp_type else "create",
        "ts": record.timestamp_ms,
        "headers": headers,
        "key": text_of(record.key),
        "payload": text_of(record.value),
    }
    return json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
