"""Housekeeping without a daemon: a thread of the open process that holds the housekeeper's lock.

HOUSEKEEPER-1  one process at a time per directory, by a lock; none after close
HOUSEKEEPER-2  other processes need not wait for it: appenders sync themselves, `log.housekeep()` does a round explicitly
HOUSEKEEPER-3  a failure in one partition is logged, at most once per hour, and the others continue; the thread ends only with its
    log
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from embedlog import _callbacks, _logging
from embedlog._native import system
from embedlog.coordination import topic_directories
from embedlog.errors import ClosedError, EmbedlogError, UnknownTopicOrPartitionError
from embedlog.partition.log_context import write_checkpoints
from embedlog.storage import checkpoints, file_names, files, locks

if TYPE_CHECKING:
    from embedlog.engine import Engine
    from embedlog.partition.partition import Partition

logger = logging.getLogger("embedlog")

# Words of the directory's control page: times of the next runs, on the boot clock.
NEXT_ROUND_NS, NEXT_POINTS_NS, NEXT_TRANSACTIONS_NS, NEXT_IDS_NS, NEXT_CLEANING_NS = 4, 5, 6, 7, 10
NEXT_OFFSETS_NS, NEXT_GROUPS_NS = 13, 14
GROUPS_MS = 2000  # between two checks of groups whose members may all have ended: live members check each other


class Housekeeper:
    """The thread and its tasks. Threads: `start`, `stop` from the log's owner; `once` from any."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._seen_unsynced = -1
        self._unsynced: set[tuple[str, int]] = set()
        self._cleaned: dict[tuple[str, int], int | None] = {}  # compacted, but not yet in the checkpoint
        self._lock = locks.LockFile(engine.path / file_names.HOUSEKEEPER, engine.config.file_mode)
        try:
            engine.attach(self)
        except BaseException:
            self._lock.close()
            raise

    def start(self) -> None:
        thread = threading.Thread(target=self._run, name=f"embedlog housekeeper {self._engine.path.name}", daemon=True)
        thread.start()
        self._thread = thread  # `stop` cannot join a thread that was not started

    def stop(self) -> None:
        """End the thread and wait for it. Idempotent."""
        self._stop.set()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        self._lock.close()

    def abandon(self) -> None:
        """Forget the thread in a forked child, where it does not exist."""
        self._stop.set()
        self._thread = None

    # ---- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stop.wait(self._engine.config.log_flush_scheduler_interval_ms / 1000):
            try:
                with self._reported("a round"):
                    self.tick()
            except BaseException as problem:  # noqa: BLE001 (top of the thread: a bug must not end the flushes)
                what = f"housekeeping of {self._engine.path}"
                try:
                    _logging.report(logger, logging.ERROR, (self._engine.path, "defect"), what, problem, trace=True)
                except BaseException:  # noqa: BLE001 (a user's log handler may raise)
                    _callbacks.hook()

    def tick(self) -> None:
        """Do the due tasks, unless another process does them: the lock is held only for the work."""
        if not self._lock.mutex.acquire(blocking=False):
            return
        try:
            if self._lock.try_lock():
                try:
                    points_due = self._work()
                finally:
                    self._lock.unlock()
                if points_due:
                    self._points()
        finally:
            self._lock.mutex.release()

    def _work(self) -> bool:
        """Flush, and do due tasks; returns whether checkpoints are due, which need a lock that comes earlier in the lock
        order.
        """
        config = self._engine.config
        self.flush_due()
        if self._turn(NEXT_ROUND_NS, config.log_initial_task_delay_ms, config.log_retention_check_interval_ms):
            self._round()
        self._transactions()
        self._groups()
        pause_ms = config.log_cleaner_backoff_ms
        if config.log_cleaner_enable and self._turn(NEXT_CLEANING_NS, pause_ms, pause_ms):
            self._clean()
        interval_ms = config.log_flush_offset_checkpoint_interval_ms
        return self._turn(NEXT_POINTS_NS, interval_ms, interval_ms) or bool(self._cleaned)

    def _transactions(self) -> None:
        """Abort abandoned transactions and expire unused ids, when due."""
        config = self._engine.config
        timeouts_ms = config.transaction_abort_timed_out_transaction_cleanup_interval_ms
        forgets_ms = config.transaction_remove_expired_transaction_cleanup_interval_ms
        with self._reported("transactions"):
            if self._turn(NEXT_TRANSACTIONS_NS, timeouts_ms, timeouts_ms):
                self._engine.transactions.housekeep(self._deadline())
            if self._turn(NEXT_IDS_NS, forgets_ms, forgets_ms):
                self._engine.transactions.forget_idle(self._deadline())

    def _groups(self) -> None:
        """Evict ended members and expire unused offsets, when due."""
        interval_ms = self._engine.config.offsets_retention_check_interval_ms
        with self._reported("groups"):
            if self._turn(NEXT_GROUPS_NS, GROUPS_MS, GROUPS_MS):
                self._engine.groups.housekeep()
            if self._turn(NEXT_OFFSETS_NS, interval_ms, interval_ms):
                self._engine.groups.expire(self._deadline())

    def _reported(self, what: str) -> _Reported:
        return _Reported(self._engine, what)

    def _deadline(self) -> int:
        return files.deadline_after(self._engine.config.lock_timeout_ms / 1000)

    def _turn(self, word: int, first_ms: int, interval_ms: int) -> bool:
        """Whether a task that one process does per interval is due; the directory's control page contains the times."""
        page, now_ns = self._engine.home.context.directory_page, system.boot_ns()
        if page is None:
            return False
        due_ns = page.word(word)
        if due_ns == 0 or due_ns > now_ns + max(first_ms, interval_ms) * 1_000_000:  # first use, or of another boot
            page.set(word, now_ns + first_ms * 1_000_000)
            return False
        if now_ns < due_ns:
            return False
        page.set(word, now_ns + max(interval_ms, 1) * 1_000_000)
        return True

    def flush_due(self) -> None:
        """Sync the partitions whose oldest unsynced record is older than their `flush.ms`."""
        page = self._engine.home.context.directory_page
        count = page.word(system.WORD_UNSYNCED_COUNT) if page is not None else 0
        if count == self._seen_unsynced and not self._unsynced:
            return
        if count != self._seen_unsynced:
            self._unsynced = {(partition.topic, partition.number) for partition in self._engine.all_partitions(loaded_only=True)}
            self._seen_unsynced = count
        for topic, number in list(self._unsynced):
            with self._reported(f"flush of {topic}-{number}"):
                try:
                    partition = self._engine.partition(topic, number)
                except UnknownTopicOrPartitionError:  # deleted meanwhile
                    self._unsynced.discard((topic, number))
                    continue
                if partition.durable_offset >= partition.bounds().log_end:
                    self._unsynced.discard((topic, number))
                elif self._is_due(partition):
                    partition.sync()

    def _is_due(self, partition: Partition) -> bool:
        age_ns = system.boot_ns() - partition.unsynced_since_ns
        slack_ms = self._engine.config.log_flush_scheduler_interval_ms
        return age_ns >= max(0, partition.config.flush_ms - 2 * slack_ms) * 1_000_000

    def once(self, *, due_only: bool) -> None:
        """Do one round in the caller's thread; `due_only`: only due tasks, unless another process does them."""
        if due_only:
            self.tick()
        else:
            self.by_hand(self._deadline())

    # ---- a round ---------------------------------------------------------------------------------

    def by_hand(self, deadline_ns: int) -> None:
        """Do a complete round in the caller's thread.

        Raises LockTimeoutError if another housekeeper holds the lock for too long.
        """
        with self._lock.hold(deadline_ns):
            self._round(by_hand=True)
            with self._reported("transactions"):
                self._engine.transactions.housekeep(deadline_ns)
                self._engine.transactions.forget_idle(deadline_ns)
            with self._reported("groups"):
                self._engine.groups.housekeep()
                self._engine.groups.expire(deadline_ns)
            if self._engine.config.log_cleaner_enable:
                self._clean()
        self._points()

    def _round(self, by_hand: bool = False) -> None:
        for partition in self._engine.all_partitions(loaded_only=False):
            with self._reported(f"{partition.topic}-{partition.number}"):
                partition.retain()
                partition.expire_producers()
                if by_hand and partition.durable_offset < partition.bounds().log_end and self._is_due(partition):
                    partition.sync()
        delay_ms = self._engine.config.log_segment_delete_delay_ms
        links = self._engine.config.follow_links
        topic_directories.purge_retired(self._engine.path, system.wall_ms(), delay_ms, follow_links=links)

    def _clean(self) -> None:
        """Compact partitions that exceed the dirty ratio, the dirtiest first, each until no work is left."""
        now_ms = system.wall_ms()
        partitions = [each for each in self._engine.all_partitions(loaded_only=False) if each.config.compacted]
        due = [(ratio, each) for each in partitions if (ratio := self._dirty_ratio(each, now_ms)) is not None]
        for _, partition in sorted(due, key=lambda pair: -pair[0]):
            with self._reported(f"compaction of {partition.topic}-{partition.number}"):
                self._compact(partition, now_ms)

    def _dirty_ratio(self, partition: Partition, now_ms: int) -> float | None:
        with self._reported(f"compaction of {partition.topic}-{partition.number}"):
            return partition.dirty_ratio(self._known(partition), now_ms)
        return None

    def _known(self, partition: Partition) -> int:
        return self._cleaned.get((partition.topic, partition.number)) or -1

    def _compact(self, partition: Partition, now_ms: int) -> None:
        memory_bytes = self._engine.config.log_cleaner_dedupe_buffer_size
        while (end := partition.compact(self._known(partition), memory_bytes, now_ms)) >= 0:
            self._cleaned[partition.topic, partition.number] = end
            if self._stop.is_set():
                return

    def _points(self) -> None:
        with self._engine.home.topic_changes.begin():  # also completes changes that were interrupted
            if self._cleaned:
                checkpoints.update(self._engine.path / file_names.CLEANER, self._cleaned, self._engine.config.file_mode)
                self._cleaned = {}
            loaded = [each for each in self._engine.all_partitions(loaded_only=True) if each.mapped_page is not None]
            found = {(each.topic, each.number): each.checkpoint(closing=False) for each in loaded}
            write_checkpoints(self._engine.path, found, self._engine.config.file_mode)


class _Reported:
    """Logs an error of one partition so that the others continue; recurring errors are logged seldom."""

    def __init__(self, engine: Engine, what: str) -> None:
        self._engine = engine
        self._what = what

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, problem: BaseException | None, trace: object) -> bool:
        if not isinstance(problem, EmbedlogError):
            return False
        if not isinstance(problem, ClosedError) and not self._engine.closed:  # otherwise the last process syncs everything
            what = f"housekeeping of {self._engine.path}, {self._what}"
            _logging.report(logger, logging.WARNING, (self._engine.path, self._what), what, problem)
        return True
