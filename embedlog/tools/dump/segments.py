"""Prints a `.log` file: one line for each batch, and for each record if they are asked for.

- The records of a batch with a wrong checksum are not printed: its bytes are not records.
- A message of an older Kafka (magic 0 or 1) has one line with offset, position and size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from embedlog.errors import CorruptRecordError, EmbedlogError
from embedlog.format.decoder import control_keys, decode
from embedlog.storage import file_names, files
from embedlog.tools.dump.batches import RawBatch, read_batches
from embedlog.tools.dump.line import DumpLine, Findings, add_pair, make_line

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


def dump(path: Path, content: Content, findings: Findings) -> Iterator[DumpLine]:
    """The lines of a `.log` file. Raises StorageError."""
    parsed = file_names.parse(path.name)
    start = parsed[0] if parsed else 0
    yield DumpLine(f"Log starting offset: {start}", {"file": str(path), "logStartingOffset": start})
    with files.opened(path) as fd:
        size = files.facts(fd, path).size
        end = 0
        previous = -1
        for batch in read_batches(fd, path, size=size):
            if end >= content.bytes_max:
                return
            yield _line_of(batch)
            end += batch.size
            if not content.records or batch.magic < 2 or not batch.is_valid:
                continue
            try:
                for record in records_of(batch):
                    if record.offset != previous + 1:
                        add_pair(findings.gaps, str(files.absolute(path)), previous, record.offset)
                    previous = record.offset
                    yield _record_line(batch, record, content)
            except EmbedlogError as problem:
                yield DumpLine(
                    f"The records of the batch at {batch.position} cannot be read: {problem}",
                    {"position": batch.position, "problem": str(problem)},
                    good=False,
                )
        if end < size <= content.bytes_max:
            text = f"Found {size - end} invalid bytes at the end of {path.name}"
            yield DumpLine(
                text, {"file": str(path), "position": end, "invalidBytes": size - end}, good=False
            )


def _line_of(batch: RawBatch) -> DumpLine:
    if batch.magic < 2:
        return make_line(
            {
                "offset": batch.base_offset,
                "position": batch.position,
                "size": batch.size,
                "magic": batch.magic,
            }
        )
    line = make_line(batch.facts())
    return line._replace(good=line.facts["isvalid"])


def records_of(batch: RawBatch) -> Iterator[Record]:
    """The records of a batch, also those of a control batch. Raises CorruptRecordError."""
    if batch.is_control:
        for offset, key, value in control_keys(batch.data, batch.rows(), 0):
            yield Record(
                offset,
                timestamp_ms=batch.max_timestamp,
                sequence=batch.sequence_at(offset - batch.base_offset),
                key=key,
                value=value,
                header_keys=[],
            )
        return
    decoded = decode(batch.data, batch.rows())
    offsets = decoded.offsets
    timestamps = decoded.timestamps
    keys = decoded.keys
    values = decoded.values
    headers = decoded.headers
    if offsets is None or timestamps is None or keys is None or values is None or headers is None:
        raise CorruptRecordError("a batch without records", position=batch.position)
    starts = headers.starts.tolist()
    times_ms = timestamps.tolist()
    for number, offset in enumerate(offsets.tolist()):
        header_keys = [
            (headers.keys[header] or b"").decode("utf-8", "replace")
            for header in range(starts[number], starts[number + 1])
        ]
        yield Record(
            offset,
            timestamp_ms=times_ms[number],
            sequence=batch.sequence_at(offset - batch.base_offset),
            key=keys[number],
            value=values[number],
            header_keys=header_keys,
        )


def _record_line(batch: RawBatch, record: Record, content: Content) -> DumpLine:
    facts: dict[str, Any] = {}
    if batch.is_control and not content.metadata:
        return DumpLine("", {})
    text = "|"
    if content.metadata:
        facts = {
            "offset": record.offset,
            batch.timestamp_type: record.timestamp_ms,
            "keySize": -1 if record.key is None else len(record.key),
            "valueSize": -1 if record.value is None else len(record.value),
            "sequence": record.sequence,
        }
        text += f" {make_line(facts).text} headerKeys: [{','.join(record.header_keys)}]"
        facts["headerKeys"] = record.header_keys
    if batch.is_control:
        control_facts = _control_facts(record)
        return DumpLine(f"{text} {make_line(control_facts).text}", facts | control_facts)
    if content.decode is not None:
        key, payload = content.decode(record.offset, record.key, record.value)
        if key is not None:
            text += f" key: {key}"
        if payload is not None:
            text += f" payload: {payload}"
        if text == "|":
            text = ""
        facts |= {"key": key, "payload": payload}
    return DumpLine(text, facts)


def _control_facts(record: Record) -> dict[str, Any]:
    """Facts of a control record (format.md 13.3)."""
    kind = int.from_bytes((record.key or b"")[2:4], "big", signed=True)
    if kind not in (0, 1):
        return {"controlType": kind}
    epoch = int.from_bytes((record.value or b"")[2:6], "big", signed=True)
    return {"endTxnMarker": ("ABORT", "COMMIT")[kind], "coordinatorEpoch": epoch}
