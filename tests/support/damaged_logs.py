"""Small logs with damage, and which of their records the damage concerns, found by a slow and
obvious reading of the files.
"""

from __future__ import annotations

import os
import random
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import embedlog
from tests.faults.damage.damage import restore

TOPIC = "t"
QUIET = {"housekeeping": False}
SETTINGS = {"segment.bytes": "5000", "index.interval.bytes": "400"}
PATIENT_S = 20.0

Row = tuple[bytes | None, bytes | None, int]


def make(path: Path) -> Path:
    """A closed log of some segments with single records, and with transactions of both ends."""
    with embedlog.open(path, config=QUIET) as log:
        log.create_topic(TOPIC, config=SETTINGS)
        with log.producer(linger_ms=0) as producer:
            for number in range(40):
                producer.send(TOPIC, b"v%d" % number * 80, key=b"k%d" % (number % 7)).result(
                    PATIENT_S
                )
        with log.producer(transactional_id="x") as producer:
            producer.init_transactions()
            for number in range(4):
                producer.begin_transaction()
                producer.send(TOPIC, b"a" * 300).result(PATIENT_S)
                (producer.abort_transaction if number % 2 else producer.commit_transaction)()
    return path


def rows(path: Path, isolation: str = "read_uncommitted") -> dict[int, Row]:
    """All records of the log, read by a process that writes."""
    with embedlog.open(path, config=QUIET) as log:
        found = log.scan(TOPIC, isolation_level=isolation).records()  # type: ignore[arg-type]
        return {each.offset: (each.key, each.value, each.timestamp_ms) for each in found}


class Extent(NamedTuple):
    """Bytes and offsets of one batch."""

    start: int
    end: int
    first: int
    after: int


def extents(path: Path) -> list[Extent]:
    """The batches of an undamaged segment."""
    data = path.read_bytes()
    at = 0
    found = []
    while at + 61 <= len(data):
        base, length = struct.unpack(">qi", data[at : at + 12])
        (delta,) = struct.unpack(">i", data[at + 23 : at + 27])
        found.append(Extent(at, at + 12 + length, base, base + delta + 1))
        at += 12 + length
    return found


@dataclass(frozen=True)
class Damage:
    """A change of one file: a flipped bit, a shorter file, or no file. `lost` are the offsets in
    changed batches.
    """

    name: str
    kind: str
    position: int
    bit: int
    lost: frozenset[int]

    def strike(self, directory: Path) -> Path:
        """Damage a copy; the file."""
        path = directory / self.name
        if self.kind == "flip":
            data = bytearray(path.read_bytes())
            data[self.position] ^= 1 << self.bit
            path.write_bytes(data)
        elif self.kind == "cut":
            os.truncate(path, self.position)
        else:
            path.unlink()
        return path

    def __str__(self) -> str:
        return f"{self.name}: {self.kind} at {self.position}, bit {self.bit}"


def drawn(source: Path, rng: random.Random, names: list[str]) -> Damage:
    """One damage to one of the files."""
    name = rng.choice(names)
    kind = rng.choice(("flip", "flip", "flip", "cut", "delete"))
    position = rng.randrange((source / name).stat().st_size)
    lost: set[int] = set()
    for each in extents(source / name) if name.endswith(".log") else ():
        hit = (
            each.start <= position < each.end
            if kind == "flip"
            else kind == "delete" or each.end > position
        )
        if hit:
            lost |= set(range(each.first, each.after))
    return Damage(name, kind, position, rng.randrange(8), frozenset(lost))


def names_of(source: Path) -> list[str]:
    """The files of the topic and of the directory that have any content."""
    found = (path for path in source.rglob("*") if path.is_file() and path.stat().st_size)
    return sorted(
        name for path in found if not (name := str(path.relative_to(source))).startswith("__")
    )


def copy(source: Path, target: Path) -> Path:
    """A copy that counts as the directory itself."""
    restore(source, target)
    return target
