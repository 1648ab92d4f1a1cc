"""Checks the path of a log directory and its content, and creates the directory.

LOCATION-1  a text that is not a path (a URL, a server) is refused with a hint, unless a directory
    of exactly that name exists
LOCATION-2  a directory with foreign content is left unchanged; a missing directory is created with
    all parents, each name synced
LOCATION-3  a directory is a log if it has a file of a log directory, or a partition with a file of
    a partition. The name of a subdirectory shows nothing: `python-3` may be anything. Links are not
    followed
"""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

from embedlog.errors import ForeignDirectoryError, StorageError
from embedlog.storage import file_names, files

_URL = r"([A-Za-z][A-Za-z0-9+.-]+):/.*"
_SERVERS = r"[^/,:]*:[0-9]{1,5}(,[^/,:]*:[0-9]{1,5})*"
_LOST_AND_FOUND = "lost+found"  # at the root of a file system


def checked(given: str | os.PathLike[str]) -> Path:
    """The absolute path. Raises TypeError, and ForeignDirectoryError if the text cannot be the path
    of a directory.
    """
    text = os.fspath(given) if isinstance(given, os.PathLike) else given
    if not isinstance(text, str):
        raise TypeError(
            "the path of a log directory is a str or an os.PathLike of str, not "
            f"{type(text).__name__}"
        )
    try:
        unusable = "an empty text" if not text else "a zero character" if "\0" in text else ""
        os.fsencode(text)
    except UnicodeEncodeError:
        unusable = "a lone surrogate"
    if unusable:
        raise ForeignDirectoryError(
            f"not a path: {ascii(text)[:100]}", expected="the path of a directory", found=unusable
        )
    path = files.absolute(text)
    if (mistake := _mistaken(text)) and not files.is_directory(path):
        raise ForeignDirectoryError(
            f"not a path: {text[:100]!r}",
            expected=f"the path of a local directory ({mistake[1]})",
            found=mistake[0],
        )
    return path


def _mistaken(text: str) -> tuple[str, str] | None:
    """What a text is that was given as a path by mistake, and a hint."""
    here = f"write ./{text[:100]} if a directory of that name is meant"
    if ":" in text and (match := re.fullmatch(_URL, text, re.DOTALL)):
        return (
            ("a file URL", "give its path")
            if match[1].lower() == "file"
            else ("a URL", f"a log is a local directory; {here}")
        )
    if ":" in text and re.fullmatch(_SERVERS, text):
        return "the address of a server", f"embedlog needs no broker; {here}"
    if text.startswith("~"):
        return "a path with an unexpanded home directory", f"use os.path.expanduser(path); {here}"
    return None


def enter(path: Path, *, read_only: bool, create: bool, mode: int) -> list[str]:
    """Check that the log directory exists, or create it with its parents; the names in it.

    Raises ForeignDirectoryError, and StorageError with ENOENT if it is missing and must not be
    created.
    """
    if files.is_directory(path):
        return _checked(path, reading=read_only)
    if files.exists(path):
        raise ForeignDirectoryError("not a directory", path=path)
    if read_only or not create:
        problem = "no such log directory, and read_only=True or create=False forbids creating it"
        raise StorageError(problem, errno=errno.ENOENT, path=path)
    missing = [path]
    while not files.exists(missing[-1].parent):
        missing.append(missing[-1].parent)
    for each in reversed(missing):
        files.mkdir(each, files.directory_mode(mode), exist_ok=True)
        files.sync_directory(each.parent)
    return []


def _checked(path: Path, *, reading: bool) -> list[str]:
    """The names in a directory, which must be a log, or empty if a log is to be created in it."""
    names = files.listing(path)
    if any(file_names.is_of_directory(name) for name in names):
        return names
    contents = _named_as_partitions(path)
    if any(file_names.is_of_partition(name) for inside in contents.values() for name in inside):
        return names
    others = [name for name in names if not name.startswith(".") and name != _LOST_AND_FOUND]
    if others or reading:
        example = os.path.join(others[0], *contents.get(others[0], ())[:1]) if others else ""
        found = f"{len(others)} other names, such as {example}" if others else "nothing"
        raise ForeignDirectoryError(
            "not a log directory", path=path, expected="partitions or meta.properties", found=found
        )
    return names


def _named_as_partitions(path: Path) -> dict[str, list[str]]:
    """The names in each subdirectory with the name of a partition; none of one that cannot be
    listed, or is a link.
    """
    found: dict[str, list[str]] = {}
    linked = files.links(path)
    for name in files.directories(path):
        if file_names.parse_partition_name(name) is not None and name not in linked:
            try:
                found[name] = files.listing(path / name)
            except StorageError:  # of another user, or removed just now: it shows nothing
                found[name] = []
    return found
