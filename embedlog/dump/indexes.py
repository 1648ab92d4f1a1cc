"""Prints offset indexes, time indexes, transaction indexes and producer snapshots, and compares
indexes with their log.

INDEXES-1  an entry with the base offset of the segment ends an index, because preallocated files
    end with zeros. It may be the first one of a log with batches
INDEXES-2  an entry of an offset index names the last offset of the batch at its position
INDEXES-3  an entry of a time index names an offset of a batch, and its largest timestamp
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from embedlog.dump.batches import batch_at, batches
from embedlog.dump.line import Findings, Line, note, row
from embedlog.errors import CorruptRecordError, StorageError
from embedlog.format import aborted_transactions
from embedlog.format.producer_state import ProducerState
from embedlog.index import INDEX_BYTES_MAX, OFFSET_ENTRY, TIME_ENTRY
from embedlog.storage import file_names, files


def _content(path: Path) -> bytes:
    data = files.read_bytes(path, INDEX_BYTES_MAX)
    if data is None:
        raise StorageError("no such file", errno=2, path=path)
    return data


def _base(path: Path) -> int:
    named = file_names.parse(path.name)
    if named is None:
        raise CorruptRecordError(
            "the name has no base offset", path=path, expected="20 digits", found=path.name
        )
    return named[0]


def _empty(path: Path) -> Line:
    return Line(f"{path} is empty.", {"file": str(path), "entries": 0})


def sane(path: Path, entry_bytes: int) -> Iterator[Line]:
    """The check that a broker does at its start: the size, and the last offset."""
    data = _content(path)
    base = _base(path)
    # an empty time index has no line of its own in kafka-dump-log
    if not data and entry_bytes == OFFSET_ENTRY.size:
        yield _empty(path)
        return
    last = data[len(data) - entry_bytes :]
    relative = int.from_bytes(
        last[:4] if entry_bytes == OFFSET_ENTRY.size else last[8:], "big", signed=True
    )
    if len(data) % entry_bytes or (data and relative < 0):
        expected = f"a multiple of {entry_bytes} bytes, and offsets from {base} on"
        yield Line(
            f"{path} failed sanity check: expected {expected}",
            {"file": str(path), "expected": expected},
            good=False,
        )
    else:
        yield Line(f"{path} passed sanity check.", {"file": str(path), "passed": True})


def offset_index(
    path: Path, findings: Findings, *, quiet: bool, batch_bytes_max: int
) -> Iterator[Line]:
    """The entries of an offset index; none with `quiet`. A batch above `batch_bytes_max` counts as
    absent.
    """
    data = _content(path)
    base = _base(path)
    if len(data) < OFFSET_ENTRY.size:
        yield _empty(path)
    log = path.with_suffix(file_names.LOG)
    with files.opened(log) as fd:
        size = files.facts(fd, log).size
        whole = data[: len(data) - len(data) % OFFSET_ENTRY.size]
        for number, (relative, position) in enumerate(OFFSET_ENTRY.iter_unpack(whole)):
            if relative == 0 and (number > 0 or size == 0):
                return
            batch = (
                batch_at(fd, log, position, min(size, position + batch_bytes_max))
                if position >= 0
                else None
            )
            found = -1 if batch is None else batch.last_offset
            if found != base + relative:
                note(findings.index_mismatches, str(files.absolute(path)), base + relative, found)
            if not quiet:
                yield row({"offset": base + relative, "position": position})


def time_index(path: Path, findings: Findings, *, quiet: bool) -> Iterator[Line]:
    """The entries of a time index; none with `quiet`."""
    data = _content(path)
    base = _base(path)
    log = path.with_suffix(file_names.LOG)
    before = -1
    with files.opened(log) as fd:
        found = batches(fd, log)
        batch = next(found, None)
        nothing = batch is None
        for number, (timestamp, relative) in enumerate(
            TIME_ENTRY.iter_unpack(data[: len(data) - len(data) % TIME_ENTRY.size])
        ):
            if relative == 0 and (number > 0 or nothing):
                return
            offset = base + relative
            while batch is not None and batch.last_offset < offset:
                batch = next(found, None)
            if batch is None:
                note(findings.absent_offsets, str(files.absolute(path)), offset, -1)
            elif batch.magic >= 2 and batch.max_timestamp != timestamp:
                note(
                    findings.other_timestamps,
                    str(files.absolute(path)),
                    timestamp,
                    batch.max_timestamp,
                )
            if number and timestamp <= before:
                note(findings.unordered_timestamps, str(files.absolute(path)), timestamp, before)
            before = timestamp
            if not quiet:
                yield row({"timestamp": timestamp, "offset": offset})


def transaction_index(path: Path) -> Iterator[Line]:
    """The entries of a transaction index. Raises CorruptRecordError, UnsupportedFormatError."""
    names = ("version", "producer_id", "first_offset", "last_offset", "last_stable_offset")
    for entry in aborted_transactions.decode(_content(path), _base(path), path):
        shown = ("version", "producerId", "firstOffset", "lastOffset", "lastStableOffset")
        yield row({text: int(entry[name]) for text, name in zip(shown, names, strict=True)})


def snapshot(path: Path) -> Iterator[Line]:
    """The producers in a snapshot. Raises CorruptRecordError, UnsupportedFormatError."""
    for each in ProducerState.decode(_content(path), _base(path), path).producers.values():
        start = each.transaction_start
        facts: dict[str, object] = {
            "producerId": each.producer_id,
            "producerEpoch": each.epoch,
            "coordinatorEpoch": each.coordinator_epoch,
            "currentTxnFirstOffset": "OptionalLong.empty"
            if start < 0
            else f"OptionalLong[{start}]",
            "lastTimestamp": each.timestamp,
        }
        for last in each.batches[-1:]:
            facts["firstSequence"] = last.first_sequence
            facts["lastSequence"] = last.last_sequence
            facts |= {
                "lastOffset": last.last_offset,
                "offsetDelta": last.offset_delta,
                "timestamp": last.timestamp,
            }
        yield row(facts)


def parts_of(directory: Path) -> list[Path]:
    """The files of a partition directory that can be printed, by name. Raises StorageError."""
    found = []
    for name in files.listing(directory):
        with contextlib.suppress(CorruptRecordError):
            named = file_names.parse(name)
            if named is not None and named[1] in (
                *file_names.SEGMENT_SUFFIXES,
                file_names.SNAPSHOT,
            ):
                found.append(directory / name)
    return sorted(found)
