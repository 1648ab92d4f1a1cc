"""Contains `Line`, one line of a dump, and `Findings`, the contradictions between files that are
printed at the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Pairs = dict[str, list[tuple[int, int]]]


class DumpLine(NamedTuple):
    """A line of text, and the same facts for JSON. `good` is False if it reports damage. `aside`:
    text for standard error.
    """

    text: str
    facts: dict[str, Any]
    good: bool = True
    aside: bool = False


def make_line(facts: dict[str, Any]) -> DumpLine:
    """A line of names and values."""
    return DumpLine(" ".join(f"{name}: {_java(value)}" for name, value in facts.items()), facts)


def _java(value: object) -> object:
    return str(value).lower() if isinstance(value, bool) else value


@dataclass
class Findings:
    """Contradictions by the name of the file, as pairs of numbers."""

    # offset of the entry, last offset of its batch
    index_mismatches: Pairs = field(default_factory=dict)
    # timestamp of the entry, largest one of its batch
    other_timestamps: Pairs = field(default_factory=dict)
    # timestamp of the entry, that of the entry before
    unordered_timestamps: Pairs = field(default_factory=dict)
    absent_offsets: Pairs = field(default_factory=dict)  # offset of the entry, -1
    gaps: Pairs = field(default_factory=dict)  # an offset, the next one

    def lines(self) -> Iterator[DumpLine]:
        """All findings, in the order of kafka-dump-log. Gaps are no damage: compaction leaves
        them.
        """
        yield from _lines(
            self.index_mismatches, "Mismatches in :{}", "  Index offset: {}, log offset: {}"
        )
        yield from _lines(
            self.other_timestamps,
            "Found timestamp mismatch in :{}",
            "  Index timestamp: {}, log timestamp: {}",
        )
        yield from _lines(
            self.unordered_timestamps,
            "Found out of order timestamp in :{}",
            "  Index timestamp: {}, Previously indexed timestamp: {}",
        )
        yield from _lines(
            self.absent_offsets,
            "The following indexed offsets are not found in the log {}.",
            "Indexed offset: {}, found log offset: {}",
        )
        yield from _lines(
            self.gaps, "Non-consecutive offsets in {}", "  {} is followed by {}", good=True
        )


def add_pair(pairs: Pairs, name: str, expected: int, found: int) -> None:
    """Add one pair of a file."""
    pairs.setdefault(name, []).append((expected, found))


def _lines(
    pairs_by_name: Pairs, title: str, text: str, *, good: bool = False
) -> Iterator[DumpLine]:
    for name, pairs in pairs_by_name.items():
        yield DumpLine(
            title.format(name),
            {"file": name, "finding": title.format("").strip(" :.")},
            good,
            aside=True,
        )
        for expected, found in pairs:
            yield DumpLine(
                text.format(expected, found),
                {"file": name, "expected": expected, "found": found},
                good,
                aside=True,
            )
