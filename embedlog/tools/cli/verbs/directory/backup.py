"""Contains the verbs `backup` and `restore`: consistent copies of a log that other processes may be
writing.
"""

from __future__ import annotations

import click

import embedlog
from embedlog.tools.cli.invocation import current, directories, open_log, verb
from embedlog.tools.cli.output import print_document, size_of
from embedlog.tools.cli.progress import progress


@verb()
@click.argument("destination", type=click.Path())
def backup(destination: str) -> int:
    """Copy all published records to DESTINATION, which must be absent or empty.

    JSON: {"destination", "bytes"}.
    """
    with open_log() as log:
        size = _copy(log, destination)
    if current().json:
        print_document({"destination": destination, "bytes": size})
    else:
        click.echo(f"Copied {size_of(size)} to {destination}.")
    return 0


@verb()
@click.argument("source", type=click.Path())
def restore(source: str) -> int:
    """Copy the backup SOURCE to the directory, which must be absent or empty.

    Every batch is checked; a damaged backup is refused, and nothing of the copy is left. JSON:
    {"source", "bytes"}.
    """
    paths = directories()
    if len(paths) > 1:
        raise click.UsageError("restore to one directory; then add the others to its set")
    with embedlog.open(source, read_only=True, create=False) as log:
        size = _copy(log, paths[0])
    if current().json:
        print_document({"source": source, "bytes": size})
    else:
        click.echo(f"Restored {size_of(size)} from {source}.")
    return 0


def _copy(log: embedlog.Log, destination: str) -> int:
    """Copy a log; the number of bytes: the last report of the progress has them all."""
    copied = 0
    with progress() as show:

        def draw(done: int, total: int) -> None:
            nonlocal copied
            copied = done
            show(done, total)

        log.backup(destination, progress=draw)
    return copied
