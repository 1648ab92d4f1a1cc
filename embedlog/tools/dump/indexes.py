"""Prints offset indexes, time indexes, transaction indexes and producer snapshots, and compares
indexes with their log.

- An entry with the base offset of the segment ends an index, because preallocated files end with
  zeros. It may be the first one of a log with batches.
- An entry of an offset index names the last offset of the batch at its position.
- An entry of a time index names an offset of a batch, and its largest timestamp.
- A `.swap` file is complete, and about to take its place: it is printed, too. An index whose log
  is gone is left by the process that replaced or deleted it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from embedlog.errors import CorruptRecordError, StorageError
from embedlog.format import aborted_transactions
from embedlog.format.producer_state import ProducerState
from embedlog.index import INDEX_BYTES_MAX, OFFSET_ENTRY, TIME_ENTRY
from embedlog.storage import file_names, files
from embedlog.tools.dump.batches import read_batch, read_batches
from embedlog.tools.dump.line import DumpLine, Findings, add_pair, make_line


def _read_file(path: Path) -> bytes:
    data = files.read_bytes(path, INDEX_BYTES_MAX)
    if data is None:
        raise StorageError("no such file", errno=2, path=path)
    return data


def _base_of(path: Path) -> int:
    parsed = file_names.parse(path.name)
    if parsed is None:
        raise CorruptRecordError(
            "the name has no base offset", path=path, expected="20 digits", found=path.name
        )
    base, _ = parsed
    return base


def _log_of(path: Path) -> Path:
    """The log of an index. That of a `.swap` file may have its final name already."""
    final = file_names.segment_path(path.parent, _base_of(path))
    swap = final.with_name(final.name + file_names.SWAP)
    return swap if path.suffix == file_names.SWAP and files.exists(swap) else final


def kind_of(path: Path) -> str:
    """The suffix of a file, without `.swap`."""
    return Path(path.name.removesuffix(file_names.SWAP)).suffix


def _empty_line(path: Path) -> DumpLine:
    return DumpLine(f"{path} is empty.", {"file": str(path), "entries": 0})


def check_index(path: Path, entry_bytes: int) -> Iterator[DumpLine]:
    """The check that a broker does at its start: the size, and the last offset."""
    data = _read_file(path)
    base = _base_of(path)
    # an empty time index has no line of its own in kafka-dump-log
    if not data and entry_bytes == OFFSET_ENTRY.size:
        yield _empty_line(path)
        return
    last_entry = data[len(data) - entry_bytes :]
    relative_bytes = last_entry[:4] if entry_bytes == OFFSET_ENTRY.size else last_entry[8:]
    relative = int.from_bytes(relative_bytes, "big", signed=True)
    if len(data) % entry_bytes or (data and relative < 0):
        expected = f"a multiple of {entry_bytes} bytes, and offsets from {base} on"
        yield DumpLine(
            f"{path} failed sanity check: expected {expected}",
            {"file": str(path), "expected": expected},
            good=False,
        )
    else:
        yield DumpLine(f"{path} passed sanity check.", {"file": str(path), "passed": True})


def dump_offset_index(
    path: Path, findings: Findings, *, quiet: bool, batch_bytes_max: int
) -> Iterator[DumpLine]:
    """The entries of an offset index; none with `quiet`. A batch above `batch_bytes_max` counts as
    absent.
    """
    data = _read_file(path)
    base = _base_of(path)
    if len(data) < OFFSET_ENTRY.size:
        yield _empty_line(path)
    log = _log_of(path)
    with files.opened(log) as fd:
        size = files.facts(fd, log).size
        whole = data[: len(data) - len(data) % OFFSET_ENTRY.size]
        for number, (relative, position) in enumerate(OFFSET_ENTRY.iter_unpack(whole)):
            if relative == 0 and (number > 0 or size == 0):
                return
            batch = None
            if position >= 0:
                batch = read_batch(fd, log, position, min(size, position + batch_bytes_max))
            last_offset = -1 if batch is None else batch.last_offset
            if last_offset != base + relative:
                name = str(files.absolute(path))
                add_pair(findings.index_mismatches, name, base + relative, last_offset)
            if not quiet:
                yield make_line({"offset": base + relative, "position": position})


def dump_time_index(path: Path, findings: Findings, *, quiet: bool) -> Iterator[DumpLine]:
    """The entries of a time index; none with `quiet`."""
    data = _read_file(path)
    base = _base_of(path)
    log = _log_of(path)
    name = str(files.absolute(path))
    previous = -1
    with files.opened(log) as fd:
        following_batches = read_batches(fd, log)
        batch = next(following_batches, None)
        is_log_empty = batch is None
        whole = data[: len(data) - len(data) % TIME_ENTRY.size]
        for number, (timestamp, relative) in enumerate(TIME_ENTRY.iter_unpack(whole)):
            if relative == 0 and (number > 0 or is_log_empty):
                return
            offset = base + relative
            while batch is not None and batch.last_offset < offset:
                batch = next(following_batches, None)
            if batch is None:
                add_pair(findings.absent_offsets, name, offset, -1)
            elif batch.magic >= 2 and batch.max_timestamp != timestamp:
                add_pair(findings.other_timestamps, name, timestamp, batch.max_timestamp)
            if number and timestamp <= previous:
                add_pair(findings.unordered_timestamps, name, timestamp, previous)
            previous = timestamp
            if not quiet:
                yield make_line({"timestamp": timestamp, "offset": offset})


def dump_transaction_index(path: Path) -> Iterator[DumpLine]:
    """The entries of a transaction index. Raises CorruptRecordError, UnsupportedFormatError."""
    for entry in aborted_transactions.decode(_read_file(path), _base_of(path), path):
        yield make_line(
            {
                "version": int(entry["version"]),
                "producerId": int(entry["producer_id"]),
                "firstOffset": int(entry["first_offset"]),
                "lastOffset": int(entry["last_offset"]),
                "lastStableOffset": int(entry["last_stable_offset"]),
            }
        )


def dump_snapshot(path: Path) -> Iterator[DumpLine]:
    """The producers in a snapshot. Raises CorruptRecordError, UnsupportedFormatError."""
    for producer in ProducerState.decode(_read_file(path), _base_of(path), path).producers.values():
        start = "OptionalLong.empty"
        if producer.transaction_start >= 0:
            start = f"OptionalLong[{producer.transaction_start}]"
        facts: dict[str, object] = {
            "producerId": producer.producer_id,
            "producerEpoch": producer.epoch,
            "coordinatorEpoch": producer.coordinator_epoch,
            "currentTxnFirstOffset": start,
            "lastTimestamp": producer.timestamp,
        }
        if producer.batches:
            batch = producer.batches[-1]
            facts["firstSequence"] = batch.first_sequence
            facts["lastSequence"] = batch.last_sequence
            facts["lastOffset"] = batch.last_offset
            facts["offsetDelta"] = batch.offset_delta
            facts["timestamp"] = batch.timestamp
        yield make_line(facts)


def parts_of(directory: Path) -> list[Path]:
    """The files of a partition directory that can be printed, by name. Raises StorageError."""
    printable = (*file_names.SEGMENT_SUFFIXES, file_names.SNAPSHOT)
    of_a_log = (file_names.INDEX, file_names.TIME_INDEX)
    names = set(files.listing(directory))
    paths = []
    for name in names:
        with contextlib.suppress(CorruptRecordError):
            parsed = file_names.parse(name)
            if parsed is None or parsed[1].removesuffix(file_names.SWAP) not in printable:
                continue
            path = directory / name
            if kind_of(path) not in of_a_log or _log_of(path).name in names:
                paths.append(path)
    return sorted(paths)
