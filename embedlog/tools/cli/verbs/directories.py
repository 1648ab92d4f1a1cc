"""Contains the verb `directories`: the directories of a set, which it lists, adds, retires and
replaces.

`--replicate` and `--replace` end after the copies; `--replace --no-wait` leaves these to the
processes that have the log open. An interrupted copy continues with any of them.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict

import click

import embedlog
from embedlog.tools.cli.invocation import current, open_log, verb
from embedlog.tools.cli.invocation import directories as given
from embedlog.tools.cli.output import print_document, print_table
from embedlog.tools.cli.progress import progress
from embedlog.tools.cli.terminal import tell


@verb(exclusive=[("--add", "--retire", "--replace"), ("--replicate", "--retire", "--replace")])
@click.option(
    "--add",
    metavar="PATH",
    type=click.Path(),
    help="Add an empty directory; one directory becomes a set.",
)
@click.option("--rack", help="The rack of the added directory.")
@click.option(
    "--witness", is_flag=True, help="The added directory only decides: it holds no partitions."
)
@click.option(
    "--no-voter", is_flag=True, help="The added directory holds partitions, and does not decide."
)
@click.option(
    "--replicate",
    type=click.IntRange(min=1),
    metavar="COPIES",
    help="Give every partition at least so many copies.",
)
@click.option(
    "--retire",
    type=int,
    metavar="NODE",
    help="Move its replicas to other directories, and remove it from the set.",
)
@click.option(
    "--replace",
    type=int,
    metavar="NODE",
    help="Give the place of a lost directory to the one at --path.",
)
@click.option(
    "--path", type=click.Path(), help="The directory for --replace; the recorded one if not given."
)
@click.option(
    "--restored",
    is_flag=True,
    help="Begin a set again of which every directory was put back from a copy.",
)
@click.option(
    "--force", is_flag=True, help="Give up what only the retired or replaced directory has."
)
@click.option(
    "--no-wait", is_flag=True, help="Leave the copies to the processes that have the log open."
)
def directories(
    add: str | None,
    rack: str | None,
    witness: bool,
    no_voter: bool,
    replicate: int | None,
    retire: int | None,
    replace: int | None,
    path: str | None,
    restored: bool,
    force: bool,
    no_wait: bool,
) -> int:
    """List, add, retire, replace and restore the directories of a set.

    JSON: a list of the fields of Log.replicas().directories, such as "node", "state", "path" and
    "reason".
    """
    if add is None and (rack or witness or no_voter):
        raise click.UsageError("--rack, --witness and --no-voter belong to --add")
    if replace is None and (path is not None or no_wait):
        raise click.UsageError("--path and --no-wait belong to --replace")
    if force and retire is None and replace is None:
        raise click.UsageError("--force belongs to --retire and --replace")
    if restored and len(given()) == 1:
        raise click.UsageError("--restored needs all directories of the set: -d for each")
    changes = (
        restored
        or add is not None
        or replicate is not None
        or retire is not None
        or replace is not None
    )
    with open_log(read_only=not changes, restored=restored) as log:
        if add is not None:
            node = log.add_directory(add, rack=rack, replicas=not witness, voter=not no_voter)
            tell(f"embedlog: {add} is node {node}")
        if retire is not None:
            log.retire_directory(retire, force=force)
        if replace is not None:
            _replace(log, replace, path, force=force, waits=not no_wait)
        if replicate is not None:
            with progress(unit="offsets") as advance:
                log.replicate(replicate, progress=advance)
        return _print(log)


def _replace(log: embedlog.Log, node: int, path: str | None, *, force: bool, waits: bool) -> None:
    if path is None:
        known = {each.node: each.path for each in log.replicas().directories}
        path = known.get(node)
        if path is None:
            raise click.UsageError(
                f"--replace: no directory is node {node}; the set has {sorted(known)}"
            )
    log.replace_directory(node, path, force=force)
    if not waits:
        return
    with progress(unit="offsets") as advance:
        while True:
            held = [each for each in log.replicas().partitions if node in each.replicas]
            missing = [each for each in held if node not in each.isr and not each.offline]
            advance(len(held) - len(missing), len(held))
            if not missing:
                return
            # another process does the housekeeping, and copies
            with suppress(embedlog.LockTimeoutError):
                log.housekeep()


def _print(log: embedlog.Log) -> int:
    found = log.replicas()
    if current().json:
        print_document([asdict(each) for each in found.directories])
    else:
        columns = ["node", "state", "voter", "path", "rack", "leads", "holds", "reason"]
        rows = [
            [
                each.node,
                each.state,
                "yes" if each.voter else "no",
                each.path,
                each.rack,
                each.leads,
                each.holds,
                each.reason,
            ]
            for each in found.directories
        ]
        print_table(columns, rows)
        for warning in found.warnings:
            click.echo(f"Warning: {warning}")
    return 0 if all(each.answers for each in found.directories) else 1
