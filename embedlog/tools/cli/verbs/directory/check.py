"""Contains the verbs `check` and `repair`: what is damaged in the files of a log, what it means,
and what repairs it.

- Damage and invalid caches are findings: the exit status is 1.
- `repair` changes files only with `--execute`.
- Of a set each directory is checked, and the replicas are compared; a set is repaired from its
  replicas.
"""

from __future__ import annotations

from collections.abc import Callable

import click

import embedlog
from embedlog.tools.cli.invocation import current, directories, open_log, verb
from embedlog.tools.cli.output import print_document
from embedlog.tools.cli.progress import progress
from embedlog.tools.cli.terminal import tell

Advance = Callable[[int, int], object]


@verb()
def check() -> int:
    """Read all files of a log, and compare them: checksums, offsets, indexes, digests, epochs,
    snapshots, replicas.

    Other processes may use the log meanwhile. JSON: "findings" (a list of "severity", "kind",
    "path", "position", "topic", "partition", "first_offset", "end_offset", "message", "expected",
    "found", "meaning", "remedy"), "repaired", "partitions", "segments", "batches", "size_bytes".
    """
    with progress() as advance:
        report = _check_all(advance)
    return _print(report)


@verb()
@click.option(
    "--execute", is_flag=True, help="Change the files; without it the findings are printed only."
)
def repair(execute: bool) -> int:
    """Cut damaged bytes out of segments and keep them in files, and make indexes and other caches
    again.

    No good record is removed, and no process may have the directory open. JSON: as of check.
    """
    with progress() as advance:
        report = _repair_all(advance) if execute else _check_all(advance)
    status = _print(report)
    if status and not execute:
        tell("embedlog: nothing was changed; --execute repairs what can be repaired")
    return status


def _check_all(advance: Advance) -> embedlog.CheckReport:
    paths = directories()
    if len(paths) == 1:
        return embedlog.check(paths[0], progress=advance)
    with open_log() as log:
        return log.check(progress=advance)


def _repair_all(advance: Advance) -> embedlog.CheckReport:
    paths = directories()
    if len(paths) == 1:
        return embedlog.repair(paths[0], progress=advance)
    with open_log(read_only=False) as log:
        return log.check(repair=True, progress=advance)


def _print(report: embedlog.CheckReport) -> int:
    if current().json:
        print_document(
            {
                "findings": [
                    {
                        "severity": finding.severity,
                        **finding._asdict(),
                        "meaning": finding.meaning,
                        "remedy": finding.remedy,
                    }
                    for finding in report.findings
                ],
                "repaired": list(report.repaired),
                "partitions": report.partitions,
                "segments": report.segments,
                "batches": report.batches,
                "size_bytes": report.size_bytes,
            }
        )
    else:
        click.echo(str(report))
    return 0 if report.good else 1
