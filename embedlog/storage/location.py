"""Checks the path of a log directory and its content, and creates the directory.

- A text that is not a path (a URL, a server) is refused with a hint, unless a directory of exactly
  that name exists.
- A directory with foreign content is left unchanged; a missing directory is created with all parents,
  each name synced.
- A directory is a log if it has a file of a log directory, or a partition with a file of a partition.
  The name of a subdirectory shows nothing: `python-3` may be anything. Links are not followed.
"""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import NamedTuple

from embedlog.errors import ForeignDirectoryError, StorageError
from embedlog.storage import file_names, files

_URL = r"([A-Za-z][A-Za-z0-9+.-]+):/.*"
_SERVERS = r"[^/,:]*:[0-9]{1,5}(,[^/,:]*:[0-9]{1,5})*"
_LOST_AND_FOUND = "lost+found"  # at the root of a file system


def check_path(path: str | os.PathLike[str]) -> Path:
    """The absolute path. Raises TypeError, and ForeignDirectoryError if the text cannot be the path
    of a directory.
    """
    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(text, str):
        raise TypeError(
            "the path of a log directory is a str or an os.PathLike of str, not "
            f"{type(text).__name__}"
        )
    fault = _fault_of(text)
    if fault:
        raise ForeignDirectoryError(
            f"not a path: {ascii(text)[:100]}", expected="the path of a directory", found=fault
        )
    directory = files.absolute(text)
    mistake = _find_mistake(text)
    if mistake is not None and not files.is_directory(directory):
        raise ForeignDirectoryError(
            f"not a path: {text[:100]!r}",
            expected=f"the path of a local directory ({mistake.hint})",
            found=mistake.kind,
        )
    return directory


def _fault_of(text: str) -> str:
    """Why a text cannot be a path in any file system; "" if it can."""
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return "a lone surrogate"
    if not text:
        return "an empty text"
    if "\0" in text:
        return "a zero character"
    return ""


class _Mistake(NamedTuple):
    """A text that was given as a path by mistake: what it is, and a hint."""

    kind: str
    hint: str


def _find_mistake(text: str) -> _Mistake | None:
    way_out = f"write ./{text[:100]} if a directory of that name is meant"
    if ":" in text:
        url = re.fullmatch(_URL, text, re.DOTALL)
        if url is not None and url[1].lower() == "file":
            return _Mistake("a file URL", "give its path")
        if url is not None:
            return _Mistake("a URL", f"a log is a local directory; {way_out}")
        if re.fullmatch(_SERVERS, text):
            return _Mistake("the address of a server", f"embedlog needs no broker; {way_out}")
    if text.startswith("~"):
        return _Mistake(
            "a path with an unexpanded home directory", f"use os.path.expanduser(path); {way_out}"
        )
    return None


def enter(path: Path, *, read_only: bool, create: bool, mode: int) -> list[str]:
    """Check that the log directory exists, or create it with its parents; the names in it.

    Raises ForeignDirectoryError, and StorageError with ENOENT if it is missing and must not be
    created.
    """
    if files.is_directory(path):
        return _check_content(path, is_reading=read_only)
    if files.exists(path):
        raise ForeignDirectoryError("not a directory", path=path)
    if read_only or not create:
        problem = "no such log directory, and read_only=True or create=False forbids creating it"
        raise StorageError(problem, errno=errno.ENOENT, path=path)
    missing = [path]
    while not files.exists(missing[-1].parent):
        missing.append(missing[-1].parent)
    for directory in reversed(missing):
        files.mkdir(directory, files.directory_mode(mode), exist_ok=True)
        files.sync_directory(directory.parent)
    return []


def _check_content(path: Path, *, is_reading: bool) -> list[str]:
    """The names in a directory, which must be a log, or empty if a log is to be created in it."""
    names = files.listing(path)
    if any(file_names.is_of_directory(name) for name in names):
        return names
    contents = _names_in_partitions(path)
    for names_inside in contents.values():
        if any(file_names.is_of_partition(name) for name in names_inside):
            return names
    others = [name for name in names if not name.startswith(".") and name != _LOST_AND_FOUND]
    if others:
        example = os.path.join(others[0], *contents.get(others[0], ())[:1])
        found = f"{len(others)} other names, such as {example}"
    elif is_reading:
        found = "nothing"
    else:
        return names
    raise ForeignDirectoryError(
        "not a log directory", path=path, expected="partitions or meta.properties", found=found
    )


def _names_in_partitions(path: Path) -> dict[str, list[str]]:
    """The names in each subdirectory with the name of a partition; none of one that cannot be
    listed, or is a link.
    """
    contents: dict[str, list[str]] = {}
    links = files.links(path)
    for name in files.directories(path):
        if file_names.parse_partition_name(name) is None or name in links:
            continue
        try:
            contents[name] = files.listing(path / name)
        except StorageError:  # of another user, or removed just now: it shows nothing
            contents[name] = []
    return contents
