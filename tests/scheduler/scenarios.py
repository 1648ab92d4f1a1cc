"""The scenarios: prepared files, programs, promises."""

from __future__ import annotations

import shutil
from collections import Counter
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
SEGMENT_BYTES = 1024
RECORDS = 4  # of each process


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
    return {
        offset: value
        for notes in told.notes.values()
        for what, offset, value in _of_kind(notes, "acked")
    }


def _of_kind(notes: Sequence[Any], kind: str) -> list[Any]:
    return [note for note in notes if note[0] == kind]


def broken_reads(told: Told, before: Sequence[bytes]) -> Iterator[str]:
    """Readings that lack an acknowledged record, show another one in its place, or have gaps; the
    last one has all of them, also if a directory is away, and processes were killed.
    """
    kept = [(offset, value) for offset, value in enumerate(before)]
    for number, notes in told.notes.items():
        for _, rows in _of_kind(notes, "seen"):
            yield from (f"process {number} saw {text}" for text in _broken(rows, kept[: len(rows)]))
        for _, rows in _of_kind(notes, "read"):
            yield from (f"process {number} read {text}" for text in _broken(rows, kept))
    kept += acknowledged(told).items()
    if told.failed_after is not None:
        yield f"the next opening fails: {told.failed_after}"
        return
    yield from (f"the next opening reads {text}" for text in _broken(told.after, kept))


def _broken(
    rows: Sequence[tuple[int, int, bytes]], kept: Sequence[tuple[int, bytes]]
) -> Iterator[str]:
    shown = {offset: value for offset, _, value in rows}
    for offset, value in kept:
        if shown.get(offset) != value:
            yield f"{shown.get(offset)} at offset {offset}, where {value!r} was acknowledged"
    if [offset for offset, _, _ in rows] != list(range(len(rows))):
        yield f"the offsets {[offset for offset, _, _ in rows]}"


def diverging(directories: Mapping[int, Path]) -> Iterator[str]:
    """Records of one epoch and offset that differ between directories: two leaders have written in
    that epoch.
    """
    seen = dict[tuple[int, int], bytes]()
    for node, path in directories.items():
        for offset, (epoch, value) in stored(path).items():
            if seen.setdefault((epoch, offset), value) != value:
                yield f"node {node}: another record at offset {offset} of epoch {epoch}"


def set_aside(directories: Mapping[int, Path], values: Sequence[bytes]) -> Iterator[str]:
    """Records that were acknowledged before the run in the files into which a directory cuts what
    is not of the set.

    A record of the run may be there: it was cut before its acknowledgement, and its producer sent
    it again.
    """
    for node, path in directories.items():
        for file in path.glob(f"{TOPIC}-0/embedlog.cut-*"):
            content = file.read_bytes()
            for value in values:
                if value in content:
                    yield f"node {node}: the acknowledged {value!r} is in {file.name}"


@dataclass
class PutBack:
    """A directory of three was put back to an earlier copy of an orderly close; several processes
    open the set.
    """

    process_count: int = 2
    put_back: int = 3
    name: str = "open, register, elect"
    is_read_afterwards: bool = True

    def prepare(self, root: Path, nursery: Nursery) -> None:
        maker = nursery.spawn()
        copy = root / "copy"
        maker.call(
            "make_put_back_set",
            paths_of(root),
            [BEFORE, AFTER],
            str(root / f"d{self.put_back}"),
            str(copy),
        )
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
        return [
            *broken_reads(told, kept),
            *set_aside(intact, kept),
            *two_leaders(directories),
            *diverging(directories),
        ]


def sent_twice(told: Told) -> Iterator[str]:
    """Values that are stored more than once: each was sent once, by an idempotent producer."""
    counts = Counter(value for _, _, value in told.after or ())
    yield from (f"{value!r} is there {count} times" for value, count in counts.items() if count > 1)


@dataclass
class Appending:
    """Processes append to one directory, with segments of a few records."""

    process_count: int = 2
    name: str = "append, roll, recover"
    is_read_afterwards: bool = True

    def prepare(self, root: Path, nursery: Nursery) -> None:
        maker = nursery.spawn()
        maker.call("make_log", paths_of(root, (1,)), BEFORE, SEGMENT_BYTES)
        nursery.end(maker)

    def programs(self, root: Path) -> list[tuple[str, dict[str, Any]]]:
        return [
            (
                "open_send",
                {
                    "paths": paths_of(root, (1,)),
                    "values": values_of(number),
                    "acks": (1, "all")[number % 2],
                },
            )
            for number in range(self.process_count)
        ]

    def judge(self, root: Path, told: Told) -> list[str]:
        return [*broken_reads(told, BEFORE), *sent_twice(told)]


@dataclass
class Committing:
    """Processes write to a partition with two replicas."""

    process_count: int = 2
    name: str = "append to a set"
    is_read_afterwards: bool = True

    def prepare(self, root: Path, nursery: Nursery) -> None:
        maker = nursery.spawn()
        maker.call("make_log", paths_of(root, (1, 2)), BEFORE, SEGMENT_BYTES, [1, 2])
        nursery.end(maker)

    def programs(self, root: Path) -> list[tuple[str, dict[str, Any]]]:
        paths = paths_of(root, (1, 2))
        return [
            ("open_read_send", {"paths": paths, "values": values_of(number), "copies": False})
            for number in range(self.process_count)
        ]

    def judge(self, root: Path, told: Told) -> list[str]:
        return judge_set(root, told, (1, 2), (1, 2))


@dataclass
class Replacing:
    """A directory was moved. One process finds it and writes, one replaces it by another, a third
    one opens the set with that.
    """

    process_count: int = 2
    name: str = "replace beside an opener"
    is_read_afterwards: bool = True

    def prepare(self, root: Path, nursery: Nursery) -> None:
        maker = nursery.spawn()
        maker.call("make_log", paths_of(root), BEFORE, SEGMENT_BYTES, [3, 1, 2])
        nursery.end(maker)
        (root / "d3").rename(root / "moved")
        (root / "d4").mkdir()

    def programs(self, root: Path) -> list[tuple[str, dict[str, Any]]]:
        writer = {"paths": [*paths_of(root, (1, 2)), str(root / "moved")], "values": values_of(0)}
        replacer = {"paths": paths_of(root), "node": 3, "path": str(root / "d4")}
        opener = {"paths": paths_of(root, (1, 2, 4)), "values": values_of(2)}
        programs = [
            ("open_read_send", writer),
            ("open_replace", replacer),
            ("open_read_send", opener),
        ]
        return programs[: self.process_count]

    def judge(self, root: Path, told: Told) -> list[str]:
        return judge_set(root, told, [1, 2, 4], [1, 2])


@dataclass
class Reassigning:
    """One process moves a partition to another directory, and another one writes to it."""

    process_count: int = 2
    name: str = "reassign beside a writer"
    is_read_afterwards: bool = True

    def prepare(self, root: Path, nursery: Nursery) -> None:
        maker = nursery.spawn()
        maker.call("make_log", paths_of(root), BEFORE, SEGMENT_BYTES, [1, 2])
        nursery.end(maker)

    def programs(self, root: Path) -> list[tuple[str, dict[str, Any]]]:
        writers = [
            (
                "open_read_send",
                {"paths": paths_of(root), "values": values_of(number), "copies": False},
            )
            for number in range(self.process_count - 1)
        ]
        return [*writers, ("open_reassign", {"paths": paths_of(root), "nodes": [3, 2]})]

    def judge(self, root: Path, told: Told) -> list[str]:
        return judge_set(root, told, NODES, NODES)


def values_of(process: int) -> list[bytes]:
    """Records of which a few fill a segment; those of each process have another size."""
    filling = b"x" * (300 >> process)
    return [b"process %d, record %d, %s" % (process, number, filling) for number in range(RECORDS)]


def judge_set(root: Path, told: Told, nodes: Sequence[int], intact: Sequence[int]) -> list[str]:
    """The promises of every scenario with the records `BEFORE` in a set."""
    directories = {node: root / f"d{node}" for node in nodes}
    return [
        *broken_reads(told, BEFORE),
        *sent_twice(told),
        *set_aside({node: directories[node] for node in intact}, BEFORE),
        *two_leaders(directories),
        *diverging(directories),
    ]
