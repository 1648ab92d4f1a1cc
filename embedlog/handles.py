"""Descriptors for reading, shared by all partitions of an open log and bounded in number.

H1  a descriptor is closed when nobody uses it and room is needed, never under a reader
H2  forgetting a directory makes its names be opened anew; who still reads keeps what he has
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

from embedlog import files


class _Handle:
    __slots__ = ("fd", "forgotten", "users")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.users = 0
        self.forgotten = False


class Handles:
    """A cache of open files, least recently used first out. Threads: any."""

    def __init__(self, limit: int) -> None:
        self._limit = max(1, limit)
        self._mutex = threading.Lock()
        self._open: OrderedDict[tuple[Path, Path], _Handle] = OrderedDict()

    @contextlib.contextmanager
    def borrow(self, directory: Path, path: Path) -> Iterator[int]:
        """A descriptor for reading that stays open inside the block. Raises StorageError."""
        handle = self._take((directory, path))
        try:
            yield handle.fd
        finally:
            self._give_back(handle)

    def _take(self, key: tuple[Path, Path]) -> _Handle:
        with self._mutex:
            handle = self._open.get(key)
            if handle is not None:
                self._open.move_to_end(key)
                handle.users += 1
                return handle
        fd = files.open_file(key[1], files.READ)
        with self._mutex:
            there = self._open.get(key)
            if there is not None:  # another thread was faster
                files.close(fd)
                there.users += 1
                return there
            handle = self._open[key] = _Handle(fd)
            handle.users = 1
            self._evict()
            return handle

    def _evict(self) -> None:
        while len(self._open) > self._limit:
            key = next((key for key, handle in self._open.items() if handle.users == 0), None)
            if key is None:
                return
            files.close(self._open.pop(key).fd)

    def _give_back(self, handle: _Handle) -> None:
        with self._mutex:
            handle.users -= 1
            if handle.forgotten and handle.users == 0:
                files.close(handle.fd)

    def forget(self, directory: Path | None = None) -> None:
        """Close what was opened in this directory (None: everything), as soon as nobody reads it."""
        with self._mutex:
            for key in [key for key in self._open if directory is None or key[0] == directory]:
                handle = self._open.pop(key)
                handle.forgotten = True
                if handle.users == 0:
                    files.close(handle.fd)
