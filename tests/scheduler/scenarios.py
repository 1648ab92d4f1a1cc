"""The scenarios: prepared files, programs, promises."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.faults.harness.processes import Nursery
from tests.faults.replicas.ledger import log_bytes, two_leaders
from tests.scheduler.controller import Told
from tests.scheduler.programs import TOPIC
from tests.support.oracle import HEADER, read_batch, whole_batches

NODES = (1, 2, 3)
BEFORE = [b"before %d" % number for number in range(3)]
AFTER = [b"after %d" % number for number in range(3)]


def paths_of(root: Path, nodes: Sequence[int] = NODES) -> list[str]:
    return [str(root / f"d{node}") for node in nodes]


def stored(directory: Path) -> dict[int, tuple[int, bytes]]:
    """The data records in the files of a partition: epoch and value of each offset."""
    found = dict[int, tuple[int, bytes]]()
    for raw in whole_batches(log_bytes(directory / f"{TOPIC}-0")):
        epoch = HEADER.unpack_from(raw)[2]
        for row in read_batch(raw):
            found[row.offset] = epoch, row.value or b""
    return found


def acknowledged(told: Told) -> dict[int, bytes]:
    """The records that were acknowledged during the run, by their offsets."""
    return {offset: value for notes in told.notes.values() for what, offset, value in _of_kind(notes, "acked")}


def _of_kind(notes: Sequence[Any], kind: str) -> list[Any]:
    return [note for note in notes if note[0] == kind]


def broken_reads(told: Told, before: Sequence[bytes]) -> Iterator[str]:
    """Readings that lack an acknowledged record, show one twice, or have gaps; the last one has all of them."""
    kept = [(offset, value) for offset, value in enumerate(before)]
    for number, notes in told.notes.items():
        for _, rows in _of_kind(notes, "read"):
            yield from (f"process {number} read {text}" for text in _broken(rows, kept))
    if told.failed_after is not None:
        yield f"the next opening fails: {told.failed_after}"
        return
    kept += acknowledged(told).items()
    yield from (f"the next opening reads {text}" for text in _broken(told.after, kept))


def _broken(rows: Sequence[tuple[int, int, bytes]], kept: Sequence[tuple[int, bytes]]) -> Iterator[str]:
    shown = {offset: value for offset, _, value in rows}
    for offset, value in kept:
        if shown.get(offset) != value:
            yield f"{shown.get(offset)} at offset {offset}, where {value!r} was acknowledged"
    if [offset for offset, _, _ in rows] != list(range(len(rows))):
        yield f"the offsets {[offset for offset, _, _ in rows]}"


def diverging(directories: Mapping[int, Path]) -> Iterator[str]:
    """Records of one epoch and offset that differ between directories: two leaders have written in that epoch."""
    seen = dict[tuple[int, int], bytes]()
    for node, path in directories.items():
        for offset, (epoch, value) in stored(path).items():
            if seen.setdefault((epoch, offset), value) != value:
                yield f"node {node}: another record at offset {offset} of epoch {epoch}"


def set_aside(directories: Mapping[int, Path], values: Sequence[bytes]) -> Iterator[str]:
    """Acknowledged records in the files into which a directory cuts what is not of the set."""
    for node, path in directories.items():
        for file in path.glob(f"{TOPIC}-0/embedlog.cut-*"):
            content = file.read_bytes()
            for value in values:
                if value in content:
                    yield f"node {node}: the acknowledged {value!r} is in {file.name}"


@dataclass
class PutBack:
    """A directory of three was put back to an earlier copy of an orderly close; several processes open the set."""

    process_count: int = 2
    put_back: int = 3
    name: str = "open, register, elect"

    def prepare(self, root: Path, nursery: Nursery) -> None:
        maker = nursery.spawn()
        copy = root / "copy"
        maker.call("make_put_back_set", paths_of(root), [BEFORE, AFTER], str(root / f"d{self.put_back}"), str(copy))
        nursery.end(maker)
        shutil.rmtree(root / f"d{self.put_back}")
        copy.rename(root / f"d{self.put_back}")

    def programs(self, root: Path) -> list[tuple[str, dict[str, Any]]]:
        """The first process enters the copy last, the second one first."""
        orders = [(1, 2, 3), (3, 1, 2), (2, 3, 1)][: self.process_count]
        return [
            ("open_read_send", {"paths": paths_of(root, order), "values": [b"process %d" % number]})
            for number, order in enumerate(orders)
        ]

    def judge(self, root: Path, told: Told) -> list[str]:
        directories = {node: root / f"d{node}" for node in NODES}
        intact = {node: path for node, path in directories.items() if node != self.put_back}
        kept = [*BEFORE, *AFTER]
        every = [*kept, *acknowledged(told).values()]
        return [
            *broken_reads(told, kept),
            *set_aside(intact, every),
            *two_leaders(directories),
            *diverging(directories),
        ]
