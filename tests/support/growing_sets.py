"""Directories that join a set and leave it."""

from __future__ import annotations

from pathlib import Path

import embedlog
from embedlog.replicas.members import membership


def add(
    log: embedlog.Log,
    path: Path,
    rack: str | None = None,
    *,
    replicas: bool = True,
    voter: bool = True,
) -> int:
    return log.add_directory(path, rack=rack, replicas=replicas, voter=voter)


def retire(log: embedlog.Log, node: int, *, force: bool = False) -> None:
    log.retire_directory(node, force=force)


def nodes(log: embedlog.Log) -> list[int]:
    return sorted(log._engine.set.decisions.counted_state().nodes)


def recorded(path: Path) -> list[int]:
    found = membership.read(path)
    assert found is not None
    return [member.node for member in found.members]
