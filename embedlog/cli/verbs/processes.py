"""Contains the verb `who`: the processes that have the directory open, with their locks and
waits.
"""

from __future__ import annotations

import os
from dataclasses import asdict

import embedlog
from embedlog.cli.invocation import current, directories, verb
from embedlog.cli.output import document, table
from embedlog.cli.terminal import tell


@verb(name="who")
def processes() -> int:
    """List the processes that have the directory open: one row for each lock and each wait. Exit
    status 1 if there is none.

    JSON: a list of {"pid", "user", "command", "mode", "locks", "waits", "open_files"}. Locks are
    {"path", "purpose", "kind", "position"}. Waits are {"path", "purpose"}, or null if they are not
    visible.
    """
    places = directories()
    found = embedlog.processes(places)
    if current().json:
        document([asdict(each) for each in found])
        return 0 if found else 1
    base = os.path.realpath(places[0]) if len(places) == 1 else ""
    rows: list[list[object]] = []
    for each in found:
        parts: list[tuple[str | None, str | None, str | None]] = [
            *(
                ("holds" if lock.kind == "exclusive" else "shares", lock.purpose, lock.path)
                for lock in each.locks
            ),
            *(("waits for", wait.purpose, wait.path) for wait in each.waits or ()),
        ]
        for state, purpose, path in parts or [(None, None, None)]:
            shown = path if path is None or not base else os.path.relpath(path, base)
            rows.append(
                [
                    each.pid,
                    each.user,
                    each.mode,
                    state,
                    purpose,
                    shown,
                    _line(each.command) or "not visible",
                ]
            )
    table(["pid", "user", "mode", "state", "purpose", "file", "command"], rows)
    if not found:
        tell(
            "embedlog: no process of this machine that is visible to this user has "
            f"{', '.join(places)} open"
        )
    return 0 if found else 1


def _line(text: str) -> str:
    """The text of another process without control characters."""
    return " ".join("".join(each if each.isprintable() else " " for each in text).split())
