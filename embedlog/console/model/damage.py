"""Checks all files of a log, as the verb `check` does, and lists what was found.

CONSOLEDAMAGE-1  nothing is repaired or written
CONSOLEDAMAGE-2  a directory that cannot be opened is checked by its files
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence

import embedlog
from embedlog import CheckReport, EmbedlogError, Finding
from embedlog.console.model import text
from embedlog.console.model.grid import Grid, Row, grid, row
from embedlog.console.model.reader import Task

COLUMNS = "severity|topic|partition|offsets|file|byte|finding|meaning|remedy"


class CheckCancelledError(Exception):
    """Ends a check that was cancelled."""


def check(task: Task, places: Sequence[str]) -> list[Grid]:
    """Read all files; the grid has a row for each finding. Raises EmbedlogError."""

    def progress(done: int, total: int) -> None:
        task.progress = (done, total, 0)
        if task.cancelled.is_set():
            raise CheckCancelledError

    try:
        reports = _reports(task, places, progress)
    except CheckCancelledError:
        done, total, _ = task.progress or (0, 0, 0)
        return [_grid(f"cancelled after {text.size(done)} of {text.size(total)}", [])]
    findings = [found for report in reports for found in report.findings]
    kinds = Counter(found.severity for found in findings)
    damage = kinds.pop("damage", 0)
    parts = [
        f"{damage} × damage" if damage else "no damage",
        *(f"{number} × {kind}" for kind, number in sorted(kinds.items())),
    ]
    partitions = text.counted(sum(report.partitions for report in reports), "partition")
    segments = text.counted(sum(report.segments for report in reports), "segment")
    size = text.size(sum(report.size_bytes for report in reports))
    return [
        _grid(
            f"{', '.join(parts)} in {partitions}, {segments}, {size}",
            [_row(*each, places) for each in enumerate(findings)],
        )
    ]


def _reports(
    task: Task, places: Sequence[str], progress: Callable[[int, int], None]
) -> list[CheckReport]:
    try:
        return [task.log.check(progress=progress)]
    except EmbedlogError:
        return [embedlog.check(place, progress=progress) for place in places]


def _relative(path: str, places: Sequence[str]) -> str:
    """The path of a file below the directory; the whole one in a set."""
    root = os.path.realpath(places[0]) + os.sep if len(places) == 1 else None
    return path.removeprefix(root) if root else path


def _grid(title: str, rows: list[Row]) -> Grid:
    return grid(title, COLUMNS, rows, "partition|byte")


def _row(number: int, found: Finding, places: Sequence[str]) -> Row:
    facts = "" if found.expected is None else f" (expected {found.expected}, found {found.found})"
    offsets = (
        f"{found.first_offset}-{found.end_offset - 1}"
        if 0 <= found.first_offset < found.end_offset
        else None
    )
    return row(
        number,
        [
            found.severity,
            found.topic,
            found.partition,
            offsets,
            _relative(found.path, places),
            found.position,
            f"{found.message}{facts}",
            found.meaning,
            found.remedy,
        ],
    )
