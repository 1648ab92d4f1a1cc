"""Contains the verb `who`: the processes that have the directory open, with their locks and
waits.
"""

from __future__ import annotations

import os
from dataclasses import asdict

import embedlog
from embedlog.tools.cli.invocation import current, directories, verb
from embedlog.tools.cli.output import print_document, print_table
from embedlog.tools.cli.terminal import tell


@verb(name="who")
def processes() -> int:
    """List the processes that have the directory open: one row for each lock and each wait. Exit
    status 1 if there is none.

    JSON: a list of {"pid", "user", "command", "mode", "locks", "waits", "open_files"}. Locks are
    {"path", "purpose", "kind", "position"}. Waits are {"path", "purpose"}, or null if they are not
    visible.
    """
    paths = directories()
    descriptions = embedlog.processes(paths)
    if current().json:
        print_document([asdict(description) for description in descriptions])
        return 0 if descriptions else 1
    base = os.path.realpath(paths[0]) if len(paths) == 1 else None
    rows: list[list[object]] = []
    for description in descriptions:
        command = _printable_text_of(description.command) or "not visible"
        uses = _lock_uses(description)
        if not uses:
            uses = [(None, None, None)]
        for state, purpose, path in uses:
            if path is not None and base is not None:
                path = os.path.relpath(path, base)
            row = [description.pid, description.user, description.mode]
            rows.append([*row, state, purpose, path, command])
    print_table(["pid", "user", "mode", "state", "purpose", "file", "command"], rows)
    if not descriptions:
        tell(
            "embedlog: no process of this machine that is visible to this user has "
            f"{', '.join(paths)} open"
        )
    return 0 if descriptions else 1


def _lock_uses(
    description: embedlog.ProcessDescription,
) -> list[tuple[str | None, str | None, str | None]]:
    """State, purpose and path of the locks that a process has, and of those that it waits for."""
    uses: list[tuple[str | None, str | None, str | None]] = []
    for lock in description.locks:
        state = "holds" if lock.kind == "exclusive" else "shares"
        uses.append((state, lock.purpose, lock.path))
    uses += [("waits for", wait.purpose, wait.path) for wait in description.waits or ()]
    return uses


def _printable_text_of(text: str) -> str:
    """The text of another process without control characters."""
    return " ".join(
        "".join(character if character.isprintable() else " " for character in text).split()
    )
