"""Splits a segment with offsets beyond 2^31 - 1 of its base, as Kafka does when it loads one.

Cleaners of brokers before 1.1 merged segments to such a one. An index counts offsets from the
segment's base in 31 bits (format.md 2.2), so later batches are not found by it, and none can be
appended. A reader without the right to write reads the segment from its first byte on.

The parts are written as `.cleaned`, synced, renamed to `.swap` from the last one to the first, and
replace the segment by the rules of an interrupted compaction (`leftovers.carry_out`): before the
last of these renames a crash leaves the old segment, after it the parts. The first part has the old
base, also if no batch is left for it: the log start does not move.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from embedlog import segment
from embedlog.format.record_batch import Chain
from embedlog.format.record_columns import RELATIVE_MAX
from embedlog.partition import leftovers
from embedlog.storage import file_names, files


class Part(NamedTuple):
    """A range of bytes that becomes a segment of its own."""

    base: int
    start: int
    end: int


def split(directory: Path, base: int, mode: int, *, broker_wrote: bool) -> None:
    """Replace a segment by its parts. Bytes after its last valid batch stay in the last part.
    REQUIRES the append lock.
    """
    path = file_names.segment_path(directory, base)
    parts = parts_of(path, base)
    for part in parts:
        _write(path, part, directory, mode)
    files.sync_directory(directory)
    for part in reversed(parts):
        name = file_names.segment_path(directory, part.base, file_names.LOG + file_names.CLEANED)
        files.rename(
            name, file_names.segment_path(directory, part.base, file_names.LOG + file_names.SWAP)
        )
        files.sync_directory(directory)
    leftovers.carry_out(directory, {}, write=True, broker_wrote=broker_wrote)


def parts_of(path: Path, base: int) -> list[Part]:
    """The parts of a segment: each begins with the first batch that the one before cannot hold."""
    size = segment.size_of(path.parent, base)
    starts = [(base, 0)]
    with files.opened(path) as fd:
        for batches in segment.Walk(
            fd, path, Chain(base, gaps_allowed=True), 0, size, bounded=False
        ):
            lasts = batches["base_offset"] + batches["last_offset_delta"]
            while segment.overflows(starts[-1][0], int(lasts[-1]) + 1):
                row = int((lasts - starts[-1][0] > RELATIVE_MAX).argmax())
                starts.append((int(batches["base_offset"][row]), int(batches["position"][row])))
    ends = [position for _, position in starts[1:]]
    return [
        Part(first, position, end)
        for (first, position), end in zip(starts, [*ends, size], strict=True)
    ]


def _write(path: Path, part: Part, directory: Path, mode: int) -> None:
    target = file_names.segment_path(directory, part.base, file_names.LOG + file_names.CLEANED)
    with files.opened(path) as source, files.opened(target, files.CREATE, mode) as fd:
        files.truncate(fd, 0, target)
        for position in range(part.start, part.end, segment.CHUNK_BYTES):
            data = files.pread(
                source, min(segment.CHUNK_BYTES, part.end - position), position, path
            )
            files.write_all(fd, data, position - part.start, target)
        files.sync(fd, target)
        files.set_modified(target, files.facts(source, path).modified_ns)
