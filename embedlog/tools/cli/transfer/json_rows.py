"""Reads JSON lines: the objects that `cat --json` and `export --format jsonl` print, and those of
kcat.

An unknown key or a wrong type is an error with the number of the line; empty lines are no rows.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, BinaryIO, NamedTuple

from embedlog import InvalidRecordError, Producer
from embedlog.tools.cli.transfer.csv_text import bytes_of, headers_of

LINE_BYTES_MAX = 1 << 30
NO_TIMESTAMP = -1  # of a record without a time
IGNORED = {"topic", "offset", "tstype", "broker", "leader_epoch", "timestamp_type"}
KEYS = {"payload", "value", "key", "headers", "ts", "timestamp", "partition"} | IGNORED

_PLAIN = "lines that are values themselves are sent by: embedlog produce -t TOPIC -l FILE"


class JsonRow(NamedTuple):
    value: bytes | None
    key: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp_ms: int | None
    partition: int | None


@dataclass(frozen=True)
class ListRows:
    """Rows as objects."""

    rows: list[JsonRow]
    size_bytes: int

    @property
    def count(self) -> int:
        return len(self.rows)

    @property
    def partition_count(self) -> int:
        return 1 + max(
            (row.partition for row in self.rows if row.partition is not None), default=-1
        )

    def send(
        self, producer: Producer[bytes, bytes], topic: str, partition: int | None, keep: bool
    ) -> None:
        now_ms = int(time.time() * 1000)
        groups: dict[int | None, list[JsonRow]] = {}
        for row in self.rows:
            groups.setdefault(row.partition if keep else partition, []).append(row)
        for number, rows in groups.items():
            times = [now_ms if row.timestamp_ms is None else row.timestamp_ms for row in rows]
            producer.send_batch(
                topic,
                [row.value for row in rows],
                [row.key for row in rows],
                partition=number,
                timestamps_ms=times,
                headers=[row.headers for row in rows],
            )


def read_list_rows(file: BinaryIO, first: int, group_bytes: int) -> Iterator[ListRows]:
    """The rows from number `first` on, in groups. Raises InvalidRecordError."""
    rows: list[JsonRow] = []
    size = 0
    row_number = 0
    lines = iter(lambda: file.readline(LINE_BYTES_MAX + 1), b"")
    for number, line in enumerate(lines, 1):
        if len(line) > LINE_BYTES_MAX:
            raise InvalidRecordError(
                f"line {number}", expected=f"at most {LINE_BYTES_MAX} bytes", found="more"
            )
        if line.isspace():
            continue
        row_number += 1
        if row_number <= first:
            continue
        rows.append(_read_row(line, number))
        size += len(line)
        if size >= group_bytes:
            yield ListRows(rows, size)
            rows = []
            size = 0
    if rows:
        yield ListRows(rows, size)


def _read_row(line: bytes, number: int) -> JsonRow:
    try:
        fields = json.loads(line)
        if not isinstance(fields, dict):
            raise ValueError(f"expected an object: {_PLAIN}")
        if not fields.keys() <= KEYS:
            raise ValueError(f"unknown key {min(fields.keys() - KEYS)!r}: {_PLAIN}")
        if ("payload" in fields) == ("value" in fields):
            raise ValueError(f"expected payload, or value: {_PLAIN}")
        return JsonRow(
            bytes_of(fields["payload"] if "payload" in fields else fields["value"]),
            bytes_of(fields.get("key")),
            headers_of(fields.get("headers")),
            _read_time_ms(fields.get("ts", fields.get("timestamp"))),
            _read_partition(fields.get("partition")),
        )
    except json.JSONDecodeError as problem:
        raise InvalidRecordError(
            f"line {number} is not JSON: {problem}; {_PLAIN}", found=repr(line[:100])
        ) from problem
    except (ValueError, RecursionError) as problem:
        raise InvalidRecordError(f"line {number}: {problem}", found=repr(line[:100])) from problem


def _read_time_ms(value: Any) -> int | None:
    """Milliseconds; None for null and for -1, which means no time. Raises ValueError for a time
    that no record can have.
    """
    if isinstance(value, str):
        try:
            time = datetime.fromisoformat(value)
            if time.tzinfo is None:
                time = time.replace(tzinfo=UTC)
            value = (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
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


def _read_partition(value: Any) -> int | None:
    if value is None:
        return None
    if type(value) is not int or not 0 <= value < 1 << 31:
        raise ValueError("partition: expected a number")
    return value
