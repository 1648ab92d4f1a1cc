"""A bounded cache of read descriptors, shared by all partitions of an open log.

- A descriptor is closed only if it has no user and the cache is full.
- After `forget` the names of a directory are opened again; a current user keeps its descriptor. A
  file whose open began before is not kept: its directory may have been replaced since.
- After `close` nothing is kept: a file that a late reader opens is closed when it releases it.
- A frequent reader of one file may keep its descriptor; kept descriptors use at most 1 /
  KEPT_DIVISOR of the limit.
- The space of a deleted file is freed: a descriptor without a user is closed by the next
  `close_deleted`. The thread of the housekeeper calls it, and so does an opening of another file; it
  acts at most once in CLOSE_DELETED_S.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Sequence

from embedlog.errors import StorageError
from embedlog.storage import file_names, files

Key = tuple[str, int, str]  # directory, base offset, suffix
KEPT_DIVISOR = 4  # kept descriptors use at most this part of the limit
CLOSE_DELETED_S = 30.0  # each call has one fstat for each cached file


class Handle:
    """An open file in use. `with` returns the descriptor and releases the file."""

    __slots__ = ("_cache", "fd", "is_forgotten", "key", "users")

    def __init__(self, cache: Handles, key: Key, fd: int) -> None:
        self._cache = cache
        self.key = key
        self.fd = fd
        self.users = 1
        # no new user: it is closed, or closes when its last user releases it
        self.is_forgotten = False

    def __enter__(self) -> int:
        return self.fd

    def __exit__(self, *_: object) -> None:
        self._cache.release(self)


class Handles:
    """A cache of open files with least-recently-used eviction. Threads: any."""

    def __init__(self, limit: int, fresh: bool = False) -> None:
        self._limit = max(1, limit)
        # open for each use: only an open revalidates what a network file system has cached
        self._fresh = fresh
        # reentrant: the collector can release the file of a lost reader inside of a section of its
        # own thread
        self._mutex = threading.RLock()
        self._open: OrderedDict[Key, Handle] = OrderedDict()
        self._kept_count = 0
        self._forget_count = 0
        self._close_due_s = time.monotonic() + CLOSE_DELETED_S
        self._closed = False

    def acquire_kept(self, directory: str, base: int, suffix: str) -> Handle | None:
        """As `acquire`, until `release_kept`; None if the limit of kept descriptors is reached.
        Raises StorageError.
        """
        with self._mutex:
            if self._kept_count >= self._limit // KEPT_DIVISOR:
                return None
            self._kept_count += 1
        try:
            return self.acquire(directory, base, suffix)
        except BaseException:
            with self._mutex:
                self._kept_count -= 1
            raise

    def release_kept(self, handle: Handle) -> None:
        with self._mutex:
            self._kept_count -= 1
        self.release(handle)

    def acquire(self, directory: str, base: int, suffix: str) -> Handle:
        """An open file of a segment for reading, valid until the `with` block ends. Raises
        StorageError.
        """
        key = (directory, base, suffix)
        if self._fresh:
            fd = files.open_file(file_names.segment_name(directory, base, suffix), files.READ)
            handle = Handle(self, key, fd)
            handle.is_forgotten = True  # closed when it is released
            return handle
        with self._mutex:
            cached = self._open.get(key)
            if cached is not None:
                self._open.move_to_end(key)
                cached.users += 1
                return cached
            forget_count = self._forget_count
        self.close_deleted()
        fd = files.open_file(file_names.segment_name(directory, base, suffix), files.READ)
        with self._mutex:
            cached = self._open.get(key)
            if cached is not None:  # another thread was faster
                files.close(fd)
                cached.users += 1
                return cached
            handle = Handle(self, key, fd)
            handle.is_forgotten = self._closed or self._forget_count != forget_count
            if not handle.is_forgotten:
                self._open[key] = handle
                self._evict()
            return handle

    def acquire_together(
        self, directory: str, base: int, suffixes: Sequence[str], earlier: list[Handle]
    ) -> list[Handle]:
        """The open files of a segment, until `release_together`. `earlier`: what an earlier call
        returned, to find them sooner.

        Raises StorageError.
        """
        with self._mutex:
            are_usable = len(earlier) == len(suffixes) and earlier[0].key[1] == base
            for handle in earlier:
                are_usable = are_usable and not handle.is_forgotten
            if are_usable:
                for handle in earlier:
                    handle.users += 1
                if 2 * len(self._open) > self._limit:  # the order matters only near the limit
                    for handle in earlier:
                        self._open.move_to_end(handle.key)
                return earlier
        handles: list[Handle] = []
        try:
            for suffix in suffixes:
                handles.append(self.acquire(directory, base, suffix))  # noqa: PERF401  (an error releases the first ones)
        except BaseException:
            self.release_together(handles)
            raise
        return handles

    def release_together(self, handles: list[Handle]) -> None:
        with self._mutex:
            for handle in handles:
                handle.users -= 1
                if handle.is_forgotten and handle.users == 0:
                    files.close(handle.fd)

    def _evict(self) -> None:
        while len(self._open) > self._limit:
            key = next((key for key, handle in self._open.items() if handle.users == 0), None)
            if key is None:
                return
            self._drop(key)

    def close_deleted(self, *, at_once: bool = False) -> None:
        """Close the files that were deleted and have no user. `at_once`: also
        shortly after another call.
        """
        if not at_once and time.monotonic() < self._close_due_s:
            return
        with self._mutex:
            self._close_due_s = time.monotonic() + CLOSE_DELETED_S
            for key, handle in list(self._open.items()):  # a signal handler may change it meanwhile
                if handle.users == 0 and not handle.is_forgotten and _is_deleted(handle):
                    self._drop(key)

    def _drop(self, key: Key) -> None:
        handle = self._open.pop(key)
        handle.is_forgotten = True
        files.close(handle.fd)

    def release(self, handle: Handle) -> None:
        with self._mutex:
            handle.users -= 1
            if handle.is_forgotten and handle.users == 0:
                files.close(handle.fd)

    def close(self) -> None:
        """Close all files, and keep none from now on. Idempotent."""
        with self._mutex:
            self._closed = True
        self.forget()

    def forget(self, directory: str | None = None) -> None:
        """Close the files of this directory (None: all files); a file in use closes when its last
        user releases it.
        """
        with self._mutex:
            self._forget_count += 1
            for key in list(self._open):
                if directory is not None and key[0] != directory:
                    continue
                handle = self._open.pop(key)
                handle.is_forgotten = True
                if handle.users == 0:
                    files.close(handle.fd)


def _is_deleted(handle: Handle) -> bool:
    try:
        return files.facts(handle.fd).links == 0
    except StorageError:  # the next read of the file reports it
        return False
