"""A directory that goes away and returns, and its replica."""

from __future__ import annotations

import shutil
from pathlib import Path

import embedlog
from embedlog.partition.partition import Partition
from tests.support.opened_sets import QUIET, paths


def opened(root: Path, **settings: object) -> embedlog.Log:
    return embedlog.open(paths(root), config={**QUIET, **settings})


def data(root: Path, node: int) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((root / f"d{node}" / "t-0").glob("*.log")))


def replica(log: embedlog.Log, node: int) -> Partition:
    found = next(each for each in log._engine.directories if each.path.name == f"d{node}")
    return found.partition("t", 0)


def moved_away(path: Path) -> None:
    path.rename(path.with_name("removed"))


def moved_back(path: Path) -> None:
    if path.exists():
        shutil.rmtree(path)
    path.with_name("removed").rename(path)
