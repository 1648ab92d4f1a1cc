"""Contains the verb `console`: the application for a terminal, or for browsers.

A directory that cannot be opened is an error before the screen is changed. The web server listens
on 127.0.0.1 unless another address is given.
"""

from __future__ import annotations

import click

from embedlog.tools.cli import invocation
from embedlog.tools.cli.invocation import current, open_log, verb
from embedlog.tools.console import start


@verb()
@click.argument("directories", nargs=-1, metavar="[DIR]...")
@click.option(
    "--write",
    is_flag=True,
    help="Allow changes: each is confirmed with the name of what is changed.",
)
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(0.1, 3600),
    default=1.0,
    help="Seconds between reads; default 1.",
)
@click.option("--web", is_flag=True, help="Serve the console to browsers.")
@click.option("--host", default="127.0.0.1", help="The address of --web; 127.0.0.1 if not given.")
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=8000,
    help="The port of --web; 8000 if not given.",
)
def console(
    directories: tuple[str, ...], write: bool, interval_s: float, web: bool, host: str, port: int
) -> int:
    """Show a log in a terminal: topics, records, groups, transactions, replicas, settings,
    processes, damage.

    DIR is the directory, or those of a set, as with -d. `?` lists the keys. JSON: none; `--json` is
    refused.
    """
    if current().json:
        raise click.UsageError("the console has no JSON: the other verbs print it")
    if directories:
        current().directories = directories
    start.check_packages()
    if not web and not start.has_terminal():
        raise click.UsageError(
            f"the console needs a terminal: {start.find_redirected_stream()}, is none; --web serves it to a "
            "browser"
        )
    with open_log():
        pass
    paths = invocation.directories()
    if web:
        return start.run_as_server(paths, write=write, interval_s=interval_s, host=host, port=port)
    return start.run_in_terminal(paths, write=write, interval_s=interval_s)
