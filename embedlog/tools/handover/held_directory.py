"""Checks a log directory that a broker shall get, or has had.

A directory of a set is refused, because the decisions of the set are not for a broker.
"""

from __future__ import annotations

from pathlib import Path

from embedlog.errors import ForeignDirectoryError, ReplicaSetError
from embedlog.storage import file_names, files
from embedlog.storage.identity import MetaProperties, read_meta


def check(path: Path) -> None:
    """Raises ForeignDirectoryError for a directory that is no log, and ReplicaSetError for one of a
    set.
    """
    if not files.is_directory(path) or read_meta(path) is None:
        raise ForeignDirectoryError("not a log directory: meta.properties is missing", path=path)
    if files.exists(path / file_names.REPLICAS):
        raise ReplicaSetError(
            "a directory of a set cannot be given to a broker: make a copy with `embedlog "
            "backup`, which is a log of its own",
            paths=[str(path)],
        )


def identity(path: Path) -> MetaProperties:
    """The identity of the directory. Raises ForeignDirectoryError without one."""
    meta = read_meta(path)
    if meta is None or meta.directory_id is None:
        raise ForeignDirectoryError(
            "meta.properties, or its directory.id, is missing: open the directory once", path=path
        )
    return meta
