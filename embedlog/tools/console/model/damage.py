"""Checks all files of a log, as the verb `check` does, and lists what was found.

Nothing is repaired or written. A directory that cannot be opened is checked by its files.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence

import embedlog
from embedlog import CheckReport, EmbedlogError, Finding
from embedlog.tools.console.model import text
from embedlog.tools.console.model.grid import Grid, Row, make_grid, make_row
from embedlog.tools.console.model.reader import Task

COLUMNS = "severity|topic|partition|offsets|file|byte|finding|meaning|remedy"


class CheckCancelledError(Exception):
    """Ends a check that was cancelled."""


def check(task: Task, paths: Sequence[str]) -> list[Grid]:
    """Read all files; the grid has a row for each finding. Raises EmbedlogError."""

    def progress(done: int, total: int) -> None:
        task.progress = (done, total, 0)
        if task.cancelled.is_set():
            raise CheckCancelledError

    try:
        reports = _check_all(task, paths, progress)
    except CheckCancelledError:
        done, total, _ = task.progress or (0, 0, 0)
        return [_findings_grid(f"cancelled after {text.size(done)} of {text.size(total)}", [])]
    findings = [finding for report in reports for finding in report.findings]
    kinds = Counter(finding.severity for finding in findings)
    damage = kinds.pop("damage", 0)
    parts = [
        f"{damage} × damage" if damage else "no damage",
        *(f"{number} × {kind}" for kind, number in sorted(kinds.items())),
    ]
    partitions = text.count_with_noun(sum(report.partitions for report in reports), "partition")
    segments = text.count_with_noun(sum(report.segments for report in reports), "segment")
    size = text.size(sum(report.size_bytes for report in reports))
    title = f"{', '.join(parts)} in {partitions}, {segments}, {size}"
    rows = [_row_of_finding(number, finding, paths) for number, finding in enumerate(findings)]
    return [_findings_grid(title, rows)]


def _check_all(
    task: Task, paths: Sequence[str], progress: Callable[[int, int], None]
) -> list[CheckReport]:
    try:
        return [task.log.check(progress=progress)]
    except EmbedlogError:
        return [embedlog.check(path, progress=progress) for path in paths]


def _relative_path(path: str, paths: Sequence[str]) -> str:
    """The path of a file below the directory; the whole one in a set."""
    if len(paths) > 1:
        return path
    return path.removeprefix(os.path.realpath(paths[0]) + os.sep)


def _findings_grid(title: str, rows: list[Row]) -> Grid:
    return make_grid(title, COLUMNS, rows, "partition|byte")


def _row_of_finding(number: int, finding: Finding, paths: Sequence[str]) -> Row:
    facts = (
        "" if finding.expected is None else f" (expected {finding.expected}, found {finding.found})"
    )
    offsets = (
        f"{finding.first_offset}-{finding.end_offset - 1}"
        if 0 <= finding.first_offset < finding.end_offset
        else None
    )
    return make_row(
        number,
        [
            finding.severity,
            finding.topic,
            finding.partition,
            offsets,
            _relative_path(finding.path, paths),
            finding.position,
            f"{finding.message}{facts}",
            finding.meaning,
            finding.remedy,
        ],
    )
