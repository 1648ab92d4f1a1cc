"""Makes the parquet files of an export a table of Delta Lake: the log of the table, without a
dependency.

The files are stored first, each of them complete. A commit then adds those that no commit has
added: after a kill between the two the next export adds them. Reader version 1 and writer version 2
are what every reader of Delta tables supports. The export locks its directory, so commits of two
exports do not meet; those of a program that rewrites the table meanwhile (OPTIMIZE) can.
"""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import embedlog
from embedlog.tools.cli.transfer.export_directory import files_of, store

LOG: Final = "_delta_log"
_COMMIT = re.compile(r"([0-9]{20})\.json")
_HEADER: Final = {
    "type": "struct",
    "fields": [
        {"name": "key", "type": "string", "nullable": True, "metadata": {}},
        {"name": "value", "type": "binary", "nullable": True, "metadata": {}},
    ],
}
_TYPES: Final[dict[str, Any]] = {
    "topic": "string",
    "partition": "integer",
    "offset": "long",
    "timestamp": "timestamp",
    "timestamp_type": "byte",
    "key": "binary",
    "value": "binary",
    "headers": {"type": "array", "elementType": _HEADER, "containsNull": True},
    "leader_epoch": "integer",
}


def commit(directory: Path, topic: str) -> None:
    """Add the exported files of a topic to its table. REQUIRES the lock of the export. Raises
    ForeignDirectoryError.
    """
    log = directory / topic / LOG
    log.mkdir(exist_ok=True)
    matches = [_COMMIT.fullmatch(path.name) for path in log.iterdir()]
    versions = sorted(int(match[1]) for match in matches if match is not None)
    if versions and versions[0] != 0:
        problem = "another program has shortened the log of the table: export to a new directory"
        raise embedlog.ForeignDirectoryError(
            problem, path=log, expected="its first commit", found=f"commit {versions[0]}"
        )
    added: set[str] = set()
    for number in versions:
        added.update(_read_added_files(log / f"{number:020}.json"))
    new = [file.path for file in files_of(directory, topic) if file.path.name not in added]
    if versions and not new:
        return
    actions: list[dict[str, Any]] = []
    if not versions:
        actions.append({"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}})
        actions.append({"metaData": _make_table(topic)})
    actions += [{"add": _describe_file(path)} for path in new]
    lines = [json.dumps(action, separators=(",", ":")) + "\n" for action in actions]
    data = "".join(lines).encode()
    version = versions[-1] + 1 if versions else 0
    store(log / f"{version:020}.json", lambda file: file.write(data))


def _read_added_files(path: Path) -> list[str]:
    """The files that a commit adds. Raises ForeignDirectoryError."""
    try:
        actions = [json.loads(line) for line in path.read_text().splitlines()]
        return [action["add"]["path"] for action in actions if "add" in action]
    except (ValueError, KeyError, TypeError, RecursionError) as problem:
        raise embedlog.ForeignDirectoryError(
            "no commit of a Delta table", path=path, found=repr(problem)
        ) from problem


def _make_table(topic: str) -> dict[str, Any]:
    fields = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in _TYPES.items()
    ]
    return {
        "id": str(uuid4()),
        "name": topic,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "partitionColumns": [],
        "configuration": {},
        "createdTime": _now_ms(),
    }


def _describe_file(path: Path) -> dict[str, Any]:
    size = path.stat().st_size
    return {
        "path": path.name,
        "partitionValues": {},
        "size": size,
        "modificationTime": _now_ms(),
        "dataChange": True,
    }


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
