"""Marks a partition as written, by a file whose name is on disk before the first record.

- The file is empty, so the sync of its directory alone makes it durable: a name on disk leads to its
  file.
- In a directory without a segment nothing can be lost yet. There the mark waits for the sync of the
  directory that follows its epochs. An interruption before that sync leaves no record, and the next
  load syncs the directory.
- A partition of a set without the mark is as its last orderly close left it. That is so as long as
  the page cache is kept: a mark whose process is killed before the sync can be lost with the records
  that another process has written since.
"""

from __future__ import annotations

from pathlib import Path

from embedlog.storage import file_names, files
from embedlog.storage.manifest import holds_data


def put(directory: Path, mode: int) -> bool:
    """The mark is on disk when this returns; False if it is there already: the process that made it
    has synced it.
    """
    is_new = make(directory, mode)
    if is_new:
        files.sync_directory(directory)
    return is_new


def make(directory: Path, mode: int) -> bool:
    """Make the mark without a sync; False if it is there already."""
    path = directory / file_names.DIRTY
    if files.exists(path):
        return False
    with files.opened(path, files.CREATE, mode):
        return True


def put_in_all(root: Path, mode: int) -> None:
    """Mark all partitions of a directory, as written after its last orderly close.

    Left out are logs that embedlog has never loaded, and links: their target may be on another
    disk, or not be used.
    """
    links = files.links(root)
    for name in files.directories(root):
        path = root / name
        if file_names.parse_partition_name(name) is None or name in links:
            continue
        if files.exists(path / file_names.MANIFEST) or not holds_data(path):
            put(path, mode)


def can_sync_later(directory: Path, preallocated: bool) -> bool:
    """Whether the sync of a new mark may follow the load: there is no segment yet. Reserved blocks
    are read as data of a segment.
    """
    return not preallocated and not file_names.bases(files.listing(directory))
