"""Contains the verbs `check` and `repair`: what is damaged in the files of a log, what it means,
and what repairs it.

CHECKVERB-1  damage and invalid caches are findings: the exit status is 1
CHECKVERB-2  `repair` changes files only with `--execute`
CHECKVERB-3  of a set each directory is checked, and the replicas are compared; a set is repaired
    from its replicas
"""

from __future__ import annotations

from collections.abc import Callable

import click

import embedlog
from embedlog.cli.invocation import current, directories, open_log, verb
from embedlog.cli.output import document
from embedlog.cli.progress import progress
from embedlog.cli.terminal import tell

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
        found = _checked(advance)
    return _print(found)


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
        found = _repaired(advance) if execute else _checked(advance)
    status = _print(found)
    if status and not execute:
        tell("embedlog: nothing was changed; --execute repairs what can be repaired")
    return status


def _checked(advance: Advance) -> embedlog.CheckReport:
    places = directories()
    if len(places) == 1:
        return embedlog.check(places[0], progress=advance)
    with open_log() as log:
        return log.check(progress=advance)


def _repaired(advance: Advance) -> embedlog.CheckReport:
    places = directories()
    if len(places) == 1:
        return embedlog.repair(places[0], progress=advance)
    with open_log(read_only=False) as log:
        return log.check(repair=True, progress=advance)


def _print(found: embedlog.CheckReport) -> int:
    if current().json:
        document(
            {
                "findings": [
                    {
                        "severity": each.severity,
                        **each._asdict(),
                        "meaning": each.meaning,
                        "remedy": each.remedy,
                    }
                    for each in found.findings
                ],
                "repaired": list(found.repaired),
                "partitions": found.partitions,
                "segments": found.segments,
                "batches": found.batches,
                "size_bytes": found.size_bytes,
            }
        )
    else:
        click.echo(str(found))
    return 0 if found.good else 1
