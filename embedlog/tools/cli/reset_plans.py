"""Reads and writes the CSV of offset resets, as kafka-consumer-groups does with --export and
--from-file.

Lines are group,topic,partition,offset; for one group the group can be left out. The last line of a
partition counts. A line that cannot be read is a usage error with its number.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator

import click

from embedlog import TopicPartition

NUMBER = re.compile(r"[0-9]{1,18}")


def encode_plan(rows: Iterable[tuple[str, TopicPartition, int]], with_group: bool) -> str:
    """The lines of a plan."""
    lines = []
    for group, tp, offset in rows:
        cells = [tp.topic, str(tp.partition), str(offset)]
        if with_group:
            cells.insert(0, group)
        lines.append(",".join(_quote(cell) for cell in cells) + "\n")
    return "".join(lines)


def _quote(cell: str) -> str:
    if not set(cell) & set('",\n\r'):
        return cell
    return '"' + cell.replace('"', '""') + '"'


def _read_cells(lines: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    """The cells of each row, with the number of its last line. Raises UsageError."""
    reader = csv.reader(lines)
    try:
        for cells in reader:
            yield reader.line_num, cells
    except csv.Error as problem:
        raise click.UsageError(f"--from-file: line {reader.line_num}: {problem}") from None


def decode_plan(lines: Iterable[str], groups: list[str]) -> dict[str, dict[TopicPartition, int]]:
    """The offsets of each group. `lines` have their ends, since a quoted cell may contain one. Raises
    UsageError.
    """
    expected = "group,topic,partition,offset of the given groups"
    if len(groups) == 1:
        expected = "topic,partition,offset"
    plan: dict[str, dict[TopicPartition, int]] = {}
    for number, cells in _read_cells(lines):
        if not cells:
            continue
        if len(cells) == 3 and len(groups) == 1:
            cells = [groups[0], *cells]
        is_row = len(cells) == 4 and all(NUMBER.fullmatch(cell) for cell in cells[2:])
        if not is_row or cells[0] not in groups:
            raise click.UsageError(
                f"--from-file: line {number}: expected {expected}, found {','.join(cells)!r:.100}"
            )
        group, topic, partition, offset = cells
        plan.setdefault(group, {})[TopicPartition(topic, int(partition))] = int(offset)
    return plan
