"""Reads and writes the CSV of offset resets, as kafka-consumer-groups does with --export and
--from-file.

RESETPLANS-1  lines are topic,partition,offset for one group, and group,topic,partition,offset for
    several
RESETPLANS-2  a line that cannot be read is a usage error with its number
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator

import click

from embedlog import TopicPartition

NUMBER = re.compile(r"[0-9]{1,18}")


def exported(rows: Iterable[tuple[str, TopicPartition, int]], with_group: bool) -> str:
    """The lines of a plan."""
    lines = [
        [*([group] if with_group else []), tp.topic, str(tp.partition), str(offset)]
        for group, tp, offset in rows
    ]
    return "".join(",".join(_quoted(cell) for cell in line) + "\n" for line in lines)


def _quoted(cell: str) -> str:
    return '"' + cell.replace('"', '""') + '"' if set(cell) & set('",\n\r') else cell


def _cells(lines: Iterable[str]) -> Iterator[list[str]]:
    try:
        yield from csv.reader(lines)
    except csv.Error as problem:
        raise click.UsageError(f"--from-file: {problem}") from None


def imported(lines: Iterable[str], groups: list[str]) -> dict[str, dict[TopicPartition, int]]:
    """The offsets of each group."""
    found: dict[str, dict[TopicPartition, int]] = {}
    for number, cells in enumerate(_cells(lines), 1):
        if not cells:
            continue
        if len(cells) == 3 and len(groups) == 1:
            cells = [groups[0], *cells]
        if (
            len(cells) != 4
            or cells[0] not in groups
            or not all(NUMBER.fullmatch(cell) for cell in cells[2:])
        ):
            expected = (
                "topic,partition,offset"
                if len(groups) == 1
                else "group,topic,partition,offset of the given groups"
            )
            raise click.UsageError(
                f"--from-file: line {number}: expected {expected}, found {','.join(cells)!r:.100}"
            )
        found.setdefault(cells[0], {})[TopicPartition(cells[1], int(cells[2]))] = int(cells[3])
    return found
