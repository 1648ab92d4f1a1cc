"""Opens files that somebody else has made, as the library opens those of a log: regular files of
their own name.

A link could lead to a file of the reader, and the opening of a pipe waits for a writer, for ever.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from embedlog import StorageError
from embedlog.storage import files


def open_received(path: str | os.PathLike[str]) -> BinaryIO:
    """A regular file, opened for reading. Raises StorageError for a link, a pipe, a socket, a
    device, a directory.
    """
    return os.fdopen(files.open_file(path, files.READ), "rb")


def check_folder(path: Path) -> None:
    """Raises StorageError if this is not a directory itself, but for example a link to one."""
    try:
        mode = path.lstat().st_mode
    except OSError as problem:
        raise StorageError("cannot open", errno=problem.errno, path=path) from problem
    if not stat.S_ISDIR(mode):
        kind = "a symbolic link" if stat.S_ISLNK(mode) else "another kind of file"
        raise StorageError(
            "cannot open", path=path, expected="a directory, not a link to one", found=kind
        )
