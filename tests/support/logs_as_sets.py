"""Opens a set of three directories below the path of one directory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import embedlog

NODES = ("d1", "d2", "d3")
open_log = embedlog.open


def opened_as_set(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], **settings: Any
) -> embedlog.Log:
    """A set below the path. A directory with other content is opened as it is; so is the copy that
    a backup made.
    """
    if not isinstance(path, str | os.PathLike):
        return open_log(path, **settings)
    root = Path(path)
    if root.name in NODES and (root.parent / NODES[0]).exists():
        root = root.parent  # `log.path` is that of the first directory
    if root.exists() and any(root.iterdir()) and not (root / NODES[0]).exists():
        return open_log(path, **settings)
    root.mkdir(parents=True, exist_ok=True)
    config = {"default.replication.factor": len(NODES), **(settings.pop("config", None) or {})}
    return open_log([root / name for name in NODES], config=config, **settings)
