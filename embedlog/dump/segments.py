"""Prints a `.log` file: one line for each batch, and for each record if they are asked for.

SEGMENTS-1  the records of a batch with a wrong checksum are not printed: its bytes are not records
SEGMENTS-2  a message of an older Kafka (magic 0 or 1) has one line with offset, position and size
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from embedlog.dump.batches import Batch, batches
from embedlog.dump.line import Findings, Line, note, row
from embedlog.errors import CorruptRecordError, EmbedlogError
from embedlog.format.decoder import control_keys, decode
from embedlog.storage import file_names, files

# offset, key and value
Decode = Callable[[int, bytes | None, bytes | None], tuple[str | None, str | None]]


class Record(NamedTuple):
    """One record with what its line shows."""

    offset: int
    timestamp_ms: int
    sequence: int
    key: bytes | None
    value: bytes | None
    header_keys: list[str]


@dataclass(frozen=True)
class Content:
    """What is printed of a log: with `records` each record, with `decode` also keys and values,
    without `metadata` only these.
    """

    records: bool = False
    decode: Decode | None = None
    metadata: bool = True
    bytes_max: int = file_names.INT_MAX


def text_of(offset: int, key: bytes | None, value: bytes | None) -> tuple[str | None, str | None]:
    """Key and value as UTF-8."""
    return (
        None if key is None else key.decode("utf-8", "replace"),
        None if value is None else value.decode("utf-8", "replace"),
    )


def dump(path: Path, content: Content, findings: Findings) -> Iterator[Line]:
    """The lines of a `.log` file. Raises StorageError."""
    named = file_names.parse(path.name)
    start = named[0] if named else 0
    yield Line(f"Log starting offset: {start}", {"file": str(path), "logStartingOffset": start})
    with files.opened(path) as fd:
        size = files.facts(fd, path).size
        end = 0
        previous = -1
        for batch in batches(fd, path, size=size):
            if end >= content.bytes_max:
                return
            yield _line_of(batch)
            end += batch.size
            if not content.records or batch.magic < 2 or not batch.is_valid:
                continue
            try:
                for record in records_of(batch):
                    if record.offset != previous + 1:
                        note(findings.gaps, str(files.absolute(path)), previous, record.offset)
                    previous = record.offset
                    yield _record_line(batch, record, content)
            except EmbedlogError as problem:
                yield Line(
                    f"The records of the batch at {batch.position} cannot be read: {problem}",
                    {"position": batch.position, "problem": str(problem)},
                    good=False,
                )
        if end < size <= content.bytes_max:
            text = f"Found {size - end} invalid bytes at the end of {path.name}"
            yield Line(
                text, {"file": str(path), "position": end, "invalidBytes": size - end}, good=False
            )


def _line_of(batch: Batch) -> Line:
    if batch.magic < 2:
        return row(
            {
                "offset": batch.base_offset,
                "position": batch.position,
                "size": batch.size,
                "magic": batch.magic,
            }
        )
    found = row(batch.facts())
    return found._replace(good=found.facts["isvalid"])


def records_of(batch: Batch) -> Iterator[Record]:
    """The records of a batch, also those of a control batch. Raises CorruptRecordError."""
    if batch.is_control:
        for offset, key, value in control_keys(batch.data, batch.rows(), 0):
            yield Record(
                offset,
                batch.max_timestamp,
                batch.sequence_at(offset - batch.base_offset),
                key,
                value,
                [],
            )
        return
    found = decode(batch.data, batch.rows())
    offsets = found.offsets
    timestamps = found.timestamps
    keys = found.keys
    values = found.values
    headers = found.headers
    if offsets is None or timestamps is None or keys is None or values is None or headers is None:
        raise CorruptRecordError("a batch without records", position=batch.position)
    starts = headers.starts.tolist()
    for at, (offset, timestamp) in enumerate(
        zip(offsets.tolist(), timestamps.tolist(), strict=True)
    ):
        names = [
            (headers.keys[number] or b"").decode("utf-8", "replace")
            for number in range(starts[at], starts[at + 1])
        ]
        yield Record(
            offset,
            timestamp,
            batch.sequence_at(offset - batch.base_offset),
            keys[at],
            values[at],
            names,
        )


def _record_line(batch: Batch, record: Record, content: Content) -> Line:
    facts: dict[str, Any] = {}
    if batch.is_control and not content.metadata:
        return Line("", {})
    text = "|"
    if content.metadata:
        facts = {
            "offset": record.offset,
            batch.timestamp_type: record.timestamp_ms,
            "keySize": -1 if record.key is None else len(record.key),
            "valueSize": -1 if record.value is None else len(record.value),
            "sequence": record.sequence,
        }
        text += f" {row(facts).text} headerKeys: [{','.join(record.header_keys)}]"
        facts["headerKeys"] = record.header_keys
    if batch.is_control:
        more = _control_facts(record)
        return Line(f"{text} {row(more).text}", facts | more)
    if content.decode is not None:
        key, payload = content.decode(record.offset, record.key, record.value)
        text += "" if key is None else f" key: {key}"
        text += "" if payload is None else f" payload: {payload}"
        text = "" if text == "|" else text
        facts |= {"key": key, "payload": payload}
    return Line(text, facts)


def _control_facts(record: Record) -> dict[str, Any]:
    """Facts of a control record (format.md 13.3)."""
    kind = int.from_bytes((record.key or b"")[2:4], "big", signed=True)
    if kind not in (0, 1):
        return {"controlType": kind}
    epoch = int.from_bytes((record.value or b"")[2:6], "big", signed=True)
    return {"endTxnMarker": ("ABORT", "COMMIT")[kind], "coordinatorEpoch": epoch}
