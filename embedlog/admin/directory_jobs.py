"""The housekeeping of one directory: flushes, retention, compaction, checkpoints.

- One process at a time does the jobs of a directory, by a lock; jobs of the open log are not among
  them.
- A failure in one partition is logged, at most once per hour, and the others continue.
- The directory's control page contains the times of the next runs; all processes share them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from embedlog._native import system
from embedlog._native.scope import Guard, scope
from embedlog.coordination import topic_directories
from embedlog.errors import (
    ClosedError,
    EmbedlogError,
    LockTimeoutError,
    UnknownTopicOrPartitionError,
)
from embedlog.hooks.callbacks import Work
from embedlog.partition.log_context import write_checkpoints
from embedlog.storage import call_deadline, checkpoints, file_names, locks
from embedlog.telemetry import log_messages

if TYPE_CHECKING:
    from pathlib import Path

    from embedlog.engine.log_directory import LogDirectory
    from embedlog.partition.partition import Partition

logger = logging.getLogger("embedlog")


# Numbers of words of the directory's control page (docs/layout.md): each holds the time of a next turn,
# on the boot clock.
NEXT_ROUND_NS = 4
NEXT_POINTS_NS = 5
NEXT_CLEANING_NS = 10


class DirectoryJobs:
    """The jobs of one directory. `ending` returns whether a pass of compaction should stop,
    `closed` whether the log is closed.

    Threads: one at a time, inside of `enter_if_free` or `hold`. All jobs except `write_points`
    REQUIRE `lock`.
    """

    def __init__(
        self, directory: LogDirectory, *, closed: Callable[[], bool], ending: Callable[[], bool]
    ) -> None:
        self._directory = directory
        self.path = directory.path
        self._config = directory.config
        self._closed = closed
        self._ending = ending
        self._unsynced_count = -1  # of the control page, at the last look
        self._unsynced: set[tuple[str, int]] = set()
        # compacted, but not yet in the checkpoint
        self._cleaned: dict[tuple[str, int], int | None] = {}
        self.lock = locks.LockFile(directory.path / file_names.HOUSEKEEPER, self._config.file_mode)

    def close(self) -> None:
        """Close the lock file. Idempotent."""
        self.lock.close()

    @scope
    def enter_if_free(self) -> Iterator[bool]:
        """Have the jobs to itself among the threads of this process: False if another thread has
        them, or this one, which a signal handler has interrupted.
        """
        mutex = self.lock.mutex
        if locks.is_owned(mutex):
            yield False
            return
        with Guard(mutex.release, partial(mutex.acquire, blocking=False)) as is_alone:
            yield is_alone

    def try_work(self, work: Callable[[], bool]) -> bool:
        """The result of a piece of work with `lock`; False, without the work, if another process has
        it. REQUIRES `enter_if_free`.
        """
        result = False
        with Guard(self.lock.unlock):
            if self.lock.try_lock():
                result = work()
        return result

    @scope
    def hold(self, deadline_ns: int) -> Iterator[None]:
        """Hold `lock` for a round by hand, and write the checkpoints after it, before another
        thread of this process does jobs. Raises LockTimeoutError.
        """
        lock = self.lock
        with locks.holding(lock.mutex, deadline_ns, lock.path):
            with Guard(lock.unlock):
                lock.lock(deadline_ns)
                lock.sign()
                yield
            self.write_points()

    def log_errors(self, subject: str) -> _ErrorLog:
        """A block whose errors are logged, so that the work continues after it."""
        return _ErrorLog(self._directory.path, subject, self._closed)

    def claim_turn(self, word: int, first_ms: int, interval_ms: int) -> bool:
        """Take the turn of a task that one process of all does once in an interval: True if it is
        due, and the caller does it now. The next turn is an interval later then.

        The first call of all in a boot only sets the time of the first turn, after `first_ms`. The
        time is in a word of the directory's page. REQUIRES the housekeeper's lock.
        """
        page = self._directory.context.directory_page
        now_ns = system.boot_ns()
        if page is None:
            return False
        due_ns = page.word(word)
        # first use, or of another boot
        if due_ns == 0 or due_ns > now_ns + max(first_ms, interval_ms) * 1_000_000:
            page.set(word, now_ns + first_ms * 1_000_000)
            return False
        if now_ns < due_ns:
            return False
        page.set(word, now_ns + max(interval_ms, 1) * 1_000_000)
        return True

    def close_deleted(self) -> None:
        """Give the space of deleted files back that this process has open. Needs no lock: each
        process does it.
        """
        self._directory.context.handles.close_deleted()

    # ---- due jobs --------------------------------------------------------------------------------

    def maintain(self) -> None:
        """Flush, and do a round if one is due."""
        config = self._config
        self.flush_due()
        if self.claim_turn(
            NEXT_ROUND_NS, config.log_initial_task_delay_ms, config.log_retention_check_interval_ms
        ):
            self.round()

    def clean_if_due(self) -> None:
        """Compact, when due."""
        pause_ms = self._config.log_cleaner_backoff_ms
        if self.claim_turn(NEXT_CLEANING_NS, pause_ms, pause_ms):
            self.clean(Work())

    def claim_points(self) -> bool:
        """Take the turn of the checkpoints: True if the caller writes them now. `write_points`
        needs a lock that comes before `lock` in the lock order.
        """
        interval_ms = self._config.log_flush_offset_checkpoint_interval_ms
        return self.claim_turn(NEXT_POINTS_NS, interval_ms, interval_ms) or bool(self._cleaned)

    # ---- flushes ---------------------------------------------------------------------------------

    def flush_due(self) -> None:
        """Sync the partitions whose oldest unsynced record is older than their `flush.ms`."""
        page = self._directory.context.directory_page
        count = page.word(system.WORD_UNSYNCED_COUNT) if page is not None else 0
        if count == self._unsynced_count and not self._unsynced:
            return
        if count != self._unsynced_count:
            loaded = self._directory.all_partitions(loaded_only=True)
            self._unsynced = {(partition.topic, partition.number) for partition in loaded}
            self._unsynced_count = count
        for topic, number in list(self._unsynced):
            with self.log_errors(f"flush of {topic}-{number}"):
                try:
                    partition = self._directory.partition(topic, number)
                except UnknownTopicOrPartitionError:  # deleted meanwhile
                    self._unsynced.discard((topic, number))
                    continue
                if partition.durable_offset >= partition.bounds().log_end:
                    self._unsynced.discard((topic, number))
                elif self._is_due(partition):
                    partition.sync()

    def _is_due(self, partition: Partition) -> bool:
        age_ns = system.boot_ns() - partition.unsynced_since_ns
        slack_ms = self._config.log_flush_scheduler_interval_ms
        return age_ns >= max(0, partition.config.flush_ms - 2 * slack_ms) * 1_000_000

    # ---- a round ---------------------------------------------------------------------------------

    def round(self, by_hand: bool = False) -> None:
        """Apply retention to every partition, expire producers, and delete the directories of
        retired partitions.
        """
        for partition in self._directory.all_partitions(loaded_only=False):
            with self.log_errors(f"{partition.topic}-{partition.number}"):
                partition.retain()
                partition.expire_producers()
                if (
                    by_hand
                    and partition.durable_offset < partition.bounds().log_end
                    and self._is_due(partition)
                ):
                    partition.sync()
        delay_ms = self._config.log_segment_delete_delay_ms
        links = self._config.follow_links
        topic_directories.purge_retired(
            self._directory.path, system.wall_ms(), delay_ms, follow_links=links
        )
        self._directory.context.handles.close_deleted(at_once=True)

    # ---- compaction ------------------------------------------------------------------------------

    def clean(self, work: Work) -> None:
        """Compact partitions that exceed the dirty ratio, the dirtiest first, each until no work is
        left.

        `log.cleaner.enable=false`: nothing is compacted.
        """
        if not self._config.log_cleaner_enable:
            return
        now_ms = system.wall_ms()
        due: list[tuple[float, Partition]] = []
        for partition in self._directory.all_partitions(loaded_only=False):
            if not partition.config.compacted:
                continue
            ratio = self._dirty_ratio(partition, now_ms)
            if ratio is not None:
                due.append((ratio, partition))
        due.sort(key=lambda pair: -pair[0])
        for _, partition in due:
            with self.log_errors(f"compaction of {partition.topic}-{partition.number}"):
                self._compact(partition, now_ms, work)

    def _dirty_ratio(self, partition: Partition, now_ms: int) -> float | None:
        with self.log_errors(f"compaction of {partition.topic}-{partition.number}"):
            return partition.dirty_ratio(self._cleaned_end(partition), now_ms)
        return None

    def _cleaned_end(self, partition: Partition) -> int:
        """The offset up to which this process has compacted a partition; -1 without a pass."""
        return self._cleaned.get((partition.topic, partition.number)) or -1

    def _compact(self, partition: Partition, now_ms: int, work: Work) -> None:
        memory_bytes = self._config.log_cleaner_dedupe_buffer_size
        while True:
            end = partition.compact(self._cleaned_end(partition), memory_bytes, now_ms, work)
            if end < 0:
                return
            self._cleaned[partition.topic, partition.number] = end
            if self._ending():
                return

    # ---- checkpoints -----------------------------------------------------------------------------

    def write_points(self) -> None:
        """Write the checkpoints of the directory. REQUIRES that `lock` is free."""
        directory = self._directory
        with directory.topic_changes.begin():  # also completes changes that were interrupted
            if self._cleaned:
                checkpoints.update(
                    directory.path / file_names.CLEANER, self._cleaned, self._config.file_mode
                )
                self._cleaned = {}
            points = {
                (partition.topic, partition.number): partition.checkpoint(closing=False)
                for partition in directory.all_partitions(loaded_only=True)
                if partition.mapped_page is not None
            }
            write_checkpoints(directory.path, points, self._config.file_mode)


class _ErrorLog:
    """Logs an error of one partition so that the others continue; recurring errors are logged
    seldom.
    """

    def __init__(self, path: Path, subject: str, closed: Callable[[], bool]) -> None:
        self._path = path
        self._subject = subject
        self._closed = closed

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: object
    ) -> bool:
        if not isinstance(problem, EmbedlogError):
            return False
        if isinstance(problem, ClosedError) or self._closed():  # the last process syncs everything
            return True
        text = f"housekeeping of {self._path}, {self._subject}"
        # the round took its time: the next one goes on
        if isinstance(problem, LockTimeoutError) and call_deadline.is_over():
            logger.debug("%s: %s", text, problem)
            return True
        log_messages.report(logger, logging.WARNING, (self._path, self._subject), text, problem)
        return True
