"""Reads JSON lines: the objects that `cat --json` and `export --format jsonl` print, and those of
kcat.

JSONROWS-1  an unknown key or a wrong type is an error with the number of the line; empty lines are
    no rows
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, BinaryIO, NamedTuple

from embedlog import InvalidRecordError, Producer
from embedlog.cli.transfer.csv_text import bytes_of, headers_of

LINE_BYTES_MAX = 1 << 30
NO_TIMESTAMP = -1  # of a record without a time
# and those that are ignored
KEYS = {"payload", "value", "key", "headers", "ts", "timestamp", "partition"} | {
    "topic",
    "offset",
    "tstype",
    "broker",
    "leader_epoch",
    "timestamp_type",
}


_PLAIN = "lines that are values themselves are sent by: embedlog produce -t TOPIC -l FILE"


class Row(NamedTuple):
    value: bytes | None
    key: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp_ms: int | None
    partition: int | None


@dataclass(frozen=True)
class ListRows:
    """Rows as objects."""

    rows: list[Row]
    size_bytes: int

    @property
    def count(self) -> int:
        return len(self.rows)

    def send(
        self, producer: Producer[bytes, bytes], topic: str, partition: int | None, keep: bool
    ) -> None:
        now = int(time.time() * 1000)
        groups: dict[int | None, list[Row]] = {}
        for row in self.rows:
            groups.setdefault(row.partition if keep else partition, []).append(row)
        for number, rows in groups.items():
            values, keys, headers = (
                [getattr(row, name) for row in rows] for name in ("value", "key", "headers")
            )
            times = [now if row.timestamp_ms is None else row.timestamp_ms for row in rows]
            producer.send_batch(
                topic, values, keys, partition=number, timestamps_ms=times, headers=headers
            )


def list_rows(file: BinaryIO, first: int, group_bytes: int) -> Iterator[ListRows]:
    """The rows from number `first` on, in groups. Raises InvalidRecordError."""
    rows: list[Row] = []
    number = position = size = 0
    while line := file.readline(LINE_BYTES_MAX + 1):
        number += 1
        if len(line) > LINE_BYTES_MAX:
            raise InvalidRecordError(
                f"line {number}", expected=f"at most {LINE_BYTES_MAX} bytes", found="more"
            )
        if line.isspace():
            continue
        position += 1
        if position <= first:
            continue
        rows.append(_row(line, number))
        size += len(line)
        if size >= group_bytes:
            yield ListRows(rows, size)
            rows = []
            size = 0
    if rows:
        yield ListRows(rows, size)


def _row(line: bytes, number: int) -> Row:
    try:
        found = json.loads(line)
        if not isinstance(found, dict):
            raise ValueError(f"expected an object: {_PLAIN}")
        if not found.keys() <= KEYS:
            raise ValueError(f"unknown key {min(found.keys() - KEYS)!r}: {_PLAIN}")
        if ("payload" in found) == ("value" in found):
            raise ValueError(f"expected payload, or value: {_PLAIN}")
        return Row(
            bytes_of(found["payload"] if "payload" in found else found["value"]),
            bytes_of(found.get("key")),
            headers_of(found.get("headers")),
            _time(found.get("ts", found.get("timestamp"))),
            _partition(found.get("partition")),
        )
    except json.JSONDecodeError as problem:
        raise InvalidRecordError(
            f"line {number} is not JSON: {problem}; {_PLAIN}", found=repr(line[:100])
        ) from problem
    except (ValueError, RecursionError) as problem:
        raise InvalidRecordError(f"line {number}: {problem}", found=repr(line[:100])) from problem


def _time(value: Any) -> int | None:
    """Milliseconds; None for null and for -1, which means no time. Raises ValueError for a time
    that no record can have.
    """
    if isinstance(value, str):
        try:
            found = datetime.fromisoformat(value)
            found = found.replace(tzinfo=UTC) if found.tzinfo is None else found
            value = (found - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
        except OverflowError as problem:
            raise ValueError(f"timestamp: {problem}") from problem
    if value is not None and type(value) is not int:
        raise ValueError("timestamp: expected milliseconds or an ISO 8601 date")
    if value is None or value == NO_TIMESTAMP:
        return None
    if not 0 <= value < 1 << 63:
        raise ValueError(
            f"timestamp: expected 0 to {(1 << 63) - 1} milliseconds since 1970, or -1 for none, "
            f"found {value!s:.40}"
        )
    return value


def _partition(value: Any) -> int | None:
    if value is not None and (type(value) is not int or not 0 <= value < 1 << 31):
        raise ValueError("partition: expected a number")
    return None if value is None else int(value)
