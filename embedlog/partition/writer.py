"""Lock file, limits and descriptors with which this process appends to one partition.

- The descriptors belong to one segment; an append to another segment requires that they are opened
  again.
- They are kept while the log's share of descriptors allows it, and closed only under the mutex.
- No file is opened that lacks published bytes: it is damage, and no append fills the hole. An
  append into a file to which no name leads any more opens the segment again (`append.c`), so a
  program that removes or replaces it is noticed.
- An interposer that is set before all writers are released is asked from the next append on: a
  writer is registered before it is made.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import NamedTuple

from embedlog._native import replication, system
from embedlog._native.system import Published
from embedlog.config.topic import TopicConfig
from embedlog.errors import ReadOnlyError, StorageError
from embedlog.partition.interposer import InterposedWriter
from embedlog.partition.segment_info import size_of_active
from embedlog.partition.state import PartitionState
from embedlog.storage import file_names, files, locks
from embedlog.storage.manifest import DIGESTED


class _Left(NamedTuple):
    """What a thread that was left behind uses."""

    writer: system.Writer
    lock_file: locks.LockFile | None
    fds: tuple[int, ...]


_left: list[_Left] = []


def close_left() -> None:
    """Close what threads that were left behind do not use any more. Threads: any."""
    for left in list(_left):
        if not left.writer.is_left:
            with contextlib.suppress(ValueError):  # another thread closes it
                _left.remove(left)
                for fd in left.fds:
                    files.close(fd)
                if left.lock_file is not None:
                    left.lock_file.close()


class AppendWriter:
    """What this process keeps open for appends. Threads: REQUIRES the mutex, except `release`."""

    def __init__(self, state: PartitionState) -> None:
        self._state = state
        self.lock_file: locks.LockFile | None = None
        self.fds: tuple[int, ...] = ()
        # of appends in a set: leader epoch, and the least ISR; 0 if its size does not matter
        self.required = (-1, 0)
        # called with the base of a segment that was opened
        self.on_segment: Callable[[int], None] | None = None

    def native(self) -> system.Writer:
        """The writer of the C core, made when first needed. Raises ReadOnlyError, StorageError."""
        return self._state.writer or self._make_writer()

    def _make_writer(self) -> system.Writer:
        state = self._state
        context = self._state.context
        if context.read_only:
            raise ReadOnlyError(
                "the log was opened read-only; without read_only=True it can be changed",
                path=state.path,
            )
        page = state.page
        mapped = state.page_file
        lock = state.open_lock()
        device = 0
        inode = 0
        if mapped is not None:
            device = mapped.device
            inode = mapped.inode
        page_path = f"{state.directory}/{file_names.PAGE}"
        arguments = (page, context.directory_page, lock.path, page_path, lock.fd, device, inode)
        # before the interposer is read: who sets one releases all registered writers first
        context.writers.add(self)
        try:
            interposer = context.interposer
            if interposer is None:
                writer = system.Writer(*arguments)
            else:
                writer = InterposedWriter(
                    interposer, state.topic, state.number, context.lock_timeout_ms, *arguments
                )
        except OSError as problem:
            context.writers.remove(self)
            lock.close()
            raise StorageError(
                "cannot stat the append lock", errno=problem.errno or 0, path=lock.path
            ) from problem
        self.lock_file = lock
        state.writer = writer
        self.guard_directory()
        self.apply_config(state.config)
        self.require(*self.required)
        return writer

    def require(self, leader_epoch: int, all_in_sync: int) -> None:
        """Accept appends of this process only while the page leads in this epoch. No effect in a
        directory without a set.
        """
        self.required = (leader_epoch, all_in_sync)
        slot = self._state.context.node_slot
        if self._state.writer is not None and slot >= 0:
            replication.require_leader(
                self._state.writer, slot, leader_epoch, all_in_sync=all_in_sync
            )

    def guard_directory(self) -> None:
        """Have each append check that this process still holds the directory's `.lock`: a broker
        unlinks that file.
        """
        state = self._state
        if state.writer is not None and state.context.held_lock is not None:
            state.writer.set_directory_lock(*state.context.held_lock())

    def apply_config(self, config: TopicConfig) -> None:
        """Take over new settings of the topic."""
        state = self._state
        state.config = config
        if state.writer is not None:
            interval_ms = config.segment_ms
            if config.compacted:
                interval_ms = min(interval_ms, config.max_compaction_lag_ms)
            state.writer.set_limits(
                segment_bytes=config.segment_bytes,
                segment_ms=interval_ms,
                index_bytes=config.segment_index_bytes,
                index_interval=config.index_interval_bytes,
                append_time=config.message_timestamp_type == "LogAppendTime",
            )

    def open_active(self, published: Published) -> None:
        """Open the segment that is active by the published tuple `published`."""
        state = self._state
        self.close_segment()
        size_of_active(state.directory, published)  # raises if published bytes are missing
        cuts = state.page.word(system.WORD_CUTS)
        flags = files.THROUGH if state.context.locked else files.CREATE
        suffixes = [file_names.LOG, file_names.INDEX, file_names.TIME_INDEX]
        if published.flags & DIGESTED:
            suffixes.append(file_names.DIGESTS)
        fds: list[int] = []
        try:
            for suffix in suffixes:
                path = file_names.segment_name(state.directory, published.segment_base, suffix)
                fds.append(files.open_file(path, flags, state.context.mode))
        except BaseException:
            for fd in fds:
                files.close(fd)
            raise
        self.fds = tuple(fds)
        if self.on_segment is not None:
            self.on_segment(published.segment_base)
        log_fd, index_fd, time_fd = fds[:3]
        digest_fd = fds[3] if published.flags & DIGESTED else -1
        self.native().set_segment(
            published.segment_base, log_fd, index_fd, time_fd, digest_fd, cuts
        )

    def close_segment(self) -> None:
        """Close the descriptors of the segment. The C core forgets them first: their numbers are
        given to other files.
        """
        if self._state.writer is not None:
            self._state.writer.set_segment(-1, -1, -1, -1, -1)
        fds = self.fds
        self.fds = ()
        for fd in fds:
            files.close(fd)

    def drop(self) -> None:
        """Close everything; the next append opens it again.

        What a thread that was left behind in a disk that hangs uses stays open until it has left.
        """
        state = self._state
        close_left()
        if state.writer is not None and state.writer.is_left:
            _left.append(_Left(state.writer, self.lock_file, self.fds))
            self.lock_file = None
            self.fds = ()
        self.close_segment()
        if state.writer is not None:
            copied = state.context.copied_bytes
            partition = (state.topic, state.number)
            copied[partition] = copied.get(partition, 0) + int(state.writer.raw.copied_bytes)
            state.traffic.add_writer(state.writer)
        state.writer = None
        if self.lock_file is not None:
            self.lock_file.close()
            self.lock_file = None

    # ---- the bound on descriptors (`context.Holder`) ----------------------------------------------

    def release(self, wait_s: float = 0.0) -> bool:
        """Close everything if no thread appends, or after a wait for it; False otherwise. The
        descriptors of the syncs stay.
        """
        mutex = self._state.mutex
        if locks.is_owned(mutex):
            return False
        try:
            if not mutex.acquire(timeout=wait_s):
                return False
            self.drop()
            return True
        finally:
            try:
                mutex.release()
            except RuntimeError:
                pass  # it was never taken

    def use_count(self) -> int:
        writer = self._state.writer
        if writer is None:
            return -1
        return writer.use_count()
