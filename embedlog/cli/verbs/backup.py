"""Contains the verb `backup`: a consistent copy of a log that other processes may be writing."""

from __future__ import annotations

import sys

import click

from embedlog.cli.invocation import current, open_log, verb
from embedlog.cli.output import document, size_of


@verb()
@click.argument("destination", type=click.Path())
def backup(destination: str) -> int:
    """Copy all published records to DESTINATION, which must be absent or empty.

    JSON: {"destination", "bytes"}.
    """
    copied = 0

    def note(done: int, total: int) -> None:
        nonlocal copied
        copied = done

    with open_log() as log:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

            with Progress(
                BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn(), console=Console(stderr=True)
            ) as bar:
                task = bar.add_task("")

                def draw(done: int, total: int) -> None:
                    note(done, total)
                    bar.update(task, completed=done, total=total)

                log.backup(destination, progress=draw)
        else:
            log.backup(destination, progress=note)
    if current().json:
        document({"destination": destination, "bytes": copied})
    else:
        click.echo(f"Copied {size_of(copied)} to {destination}.")
    return 0
