"""Opens one directory: as a log of its own, or as the only member of a set.

The modules of sets are imported only for a directory that belongs to one: an import costs more than
an opening.
"""

from __future__ import annotations

from pathlib import Path

from embedlog.config.topic import LogConfig
from embedlog.engine.engine import Engine, SetOfOne
from embedlog.hooks.callbacks import Progress


def open_directory(
    path: Path,
    *,
    read_only: bool,
    create: bool,
    config: LogConfig,
    alone: bool = False,
    progress: Progress | None = None,
) -> Engine:
    """The engine of one directory, also of the only member of a set. Raises the errors of an
    opening.
    """
    try:
        return Engine(
            [path],
            read_only=read_only,
            create=create,
            config=config,
            alone=alone,
            progress=progress,
        )
    except SetOfOne:
        from embedlog.replica import ReplicatedEngine

        return ReplicatedEngine(
            [path], read_only=read_only, create=create, config=config, progress=progress
        )
