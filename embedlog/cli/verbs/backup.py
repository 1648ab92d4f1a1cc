"""Contains the verb `backup`: a consistent copy of a log that other processes may be writing."""

from __future__ import annotations

import click

from embedlog.cli.invocation import current, open_log, verb
from embedlog.cli.output import document, size_of
from embedlog.cli.progress import progress


@verb()
@click.argument("destination", type=click.Path())
def backup(destination: str) -> int:
    """Copy all published records to DESTINATION, which must be absent or empty.

    JSON: {"destination", "bytes"}.
    """
    copied = 0
    with open_log() as log, progress() as advance:

        def draw(done: int, total: int) -> None:
            nonlocal copied
            copied = done
            advance(done, total)

        log.backup(destination, progress=draw)
    if current().json:
        document({"destination": destination, "bytes": copied})
    else:
        click.echo(f"Copied {size_of(copied)} to {destination}.")
    return 0
