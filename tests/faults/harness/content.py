"""Self-describing values, and a checker of the records that were read.

Each value contains its writer, its number and a body that follows from them. So a reader can
distinguish a right one from a torn, stale or foreign one without other data.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Row(NamedTuple):
    """A record as a victim reports it."""

    offset: int
    epoch: int
    value: bytes


class Mark(NamedTuple):
    """The writer of a value, and its number at that writer."""

    writer: int
    number: int


Acks = Mapping[tuple[int, int], Mark]  # (partition, offset) -> whose value is there


def value_of(writer: int, number: int, size: int) -> bytes:
    """A value of `size` bytes (at least 32)."""
    head = b"%08d %010d %07d " % (writer, number, size)
    seed = hashlib.blake2b(head, digest_size=32).digest()
    return (head + seed * (size // len(seed) + 1))[: max(size, 32)]


def mark_of(value: bytes) -> Mark | None:
    """Whose value this is; None if it is not whole."""
    try:
        writer, number, size = (int(word) for word in value[:28].split())
    except ValueError:
        return None
    return Mark(writer, number) if value == value_of(writer, number, size) else None


@dataclass
class Verdict:
    """The findings of a checker; printed with its counts, so that a zero comes with its n."""

    acked: int = 0
    read: int = 0
    violations: list[str] = field(default_factory=list)

    def add(self, other: Verdict) -> None:
        self.acked += other.acked
        self.read += other.read
        self.violations += other.violations

    def counts(self) -> dict[str, int]:
        """For `campaign_report.add_counts`."""
        return {
            "records_read": self.read,
            "acknowledged": self.acked,
            "violations": len(self.violations),
        }

    def __str__(self) -> str:
        shown = "".join(f"\n  {violation}" for violation in self.violations[:20])
        return (
            f"{len(self.violations)} violations in {self.read} records read, {self.acked} "
            f"acknowledged{shown}"
        )


def check(
    rows: Mapping[int, Iterable[Row]], acks: Acks, *, log_start: int = 0, ordered: bool = True
) -> Verdict:
    """Acknowledged records are there, unchanged, once; offsets follow each other; epochs do not
    fall.
    """
    verdict = Verdict(acked=len(acks))
    bad = verdict.violations.append
    seen: dict[Mark, tuple[int, int]] = {}
    for partition, found in rows.items():
        following = None
        epoch = -1
        latest: dict[int, int] = {}
        for row in found:
            verdict.read += 1
            here = (partition, row.offset)
            if following is not None and row.offset != following:
                bad(f"partition {partition}: offset {row.offset} where {following} was due")
            if row.epoch < epoch:
                bad(
                    f"partition {partition}: epoch falls from {epoch} to {row.epoch} at offset "
                    f"{row.offset}"
                )
            following = row.offset + 1
            epoch = row.epoch
            mark = mark_of(row.value)
            if mark is None:
                bad(
                    f"partition {partition}: offset {row.offset} is no value of ours: "
                    f"{row.value[:40]!r}"
                )
                continue
            if mark in seen:
                bad(f"{mark} is at {seen[mark]} and again at {here}")
            seen[mark] = here
            if ordered and latest.get(mark.writer, -1) >= mark.number:
                bad(
                    f"partition {partition}: writer {mark.writer} has {mark.number} after "
                    f"{latest[mark.writer]}"
                )
            latest[mark.writer] = mark.number
    places = {here: mark for mark, here in seen.items()}
    for here, mark in acks.items():
        if here[1] >= log_start and places.get(here) != mark:
            bad(f"acknowledged {mark} at {here} is gone; {places.get(here)} is there")
    return verdict
