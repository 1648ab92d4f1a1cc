"""Housekeeping without a daemon: a thread of the open process that holds the housekeeper's lock.

- One process at a time per directory, by the lock of its jobs; none after close.
- Other processes need not wait for it: appenders sync themselves, `log.housekeep()` does a round
  explicitly.
- The thread ends only with its log. A failure in transactions or groups is logged, and the other
  tasks continue.
- The jobs of a directory are those of `directory_jobs`; the tasks of the open log are transactions
  and groups. Their times are in the control page of the first directory, and its lock orders them.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from embedlog._native.threads import Flag, start
from embedlog.admin.directory_jobs import DirectoryJobs
from embedlog.hooks import callbacks
from embedlog.hooks.callbacks import Work
from embedlog.storage import files
from embedlog.telemetry import log_messages

if TYPE_CHECKING:
    from embedlog.engine.engine import Engine
    from embedlog.engine.log_directory import LogDirectory

logger = logging.getLogger("embedlog")


# Numbers of words of the directory's control page (docs/layout.md): each holds the time of a next turn,
# on the boot clock.
NEXT_TRANSACTIONS_NS = 6
NEXT_IDS_NS = 7
NEXT_OFFSETS_NS = 13
NEXT_GROUPS_NS = 14
END_S = 1.0  # for the end of the thread after its last step
# between two checks of groups whose members may all have ended: live members check each other
GROUPS_MS = 2000


class Housekeeper:
    """The thread and its tasks. Threads: `start`, `stop` from the log's owner; `once` from any.

    | word | meaning |
    | --- | --- |
    | jobs | what one directory needs: flushes, retention, compaction, checkpoints (`DirectoryJobs`) |
    | tasks | what is due at times of its own: the jobs, transactions, groups |
    | turn | one run of a task by one process of all (`claim_turn`) |
    | round | all jobs at once, by hand or when their turn is due |
    | points | the checkpoints of the directory |
    | `Work` | the progress of a compaction by hand, for a caller's callback |
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._stop = Flag()
        self._ended = Flag()
        self._thread: threading.Thread | None = None
        self.jobs = self._make_first_jobs()
        try:
            engine.attach(self)
        except BaseException:
            self.jobs.close()
            raise

    def _make_first_jobs(self) -> DirectoryJobs:
        """The jobs of the directory whose housekeeping includes transactions and groups; a set adds
        those of its other directories. Raises StorageError.
        """
        return self._jobs_of(self._engine.home)

    def _jobs_of(self, directory: LogDirectory) -> DirectoryJobs:
        return DirectoryJobs(
            directory, closed=lambda: self._engine.closed, ending=self._stop.is_set
        )

    def start(self) -> None:
        thread = threading.Thread(
            target=self._run, name=f"embedlog housekeeper {self._engine.path.name}", daemon=True
        )
        start(thread)
        self._thread = thread  # `stop` cannot join a thread that was not started

    def stop(self) -> None:
        """End the thread and wait for it, up to `lock.timeout.ms`: a signal handler may have
        interrupted what the thread waits for. Idempotent.
        """
        self._stop.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            timeout_ms = self._engine.config.lock_timeout_ms
            # not join(): after an interrupt it considers the thread ended
            if self._ended.wait(timeout_ms / 1000):
                thread.join(END_S)
            else:
                logger.warning(
                    "the housekeeper of %s is still at work after %d ms (lock.timeout.ms); the "
                    "log is closed without it",
                    self._engine.path,
                    timeout_ms,
                )
            self._thread = None  # after the wait, which an interrupt may have left to the next call
            return
        self._close_jobs()

    def _close_jobs(self) -> None:
        self.jobs.close()

    def abandon(self) -> None:
        """Forget the thread in a forked child, where it does not exist."""
        self._stop.set()
        self._thread = None

    # ---- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._work_until_the_end()
        finally:
            self._close_jobs()  # here: `stop` may have returned before
            self._ended.set()

    def _work_until_the_end(self) -> None:
        while not self._sleep(self._engine.config.log_flush_scheduler_interval_ms / 1000):
            try:
                with self.jobs.log_errors("a round"):
                    self.tick()
            except BaseException as problem:  # noqa: BLE001 (top of the thread: a bug must not end the flushes)
                subject = f"housekeeping of {self._engine.path}"
                try:
                    log_messages.report(
                        logger,
                        logging.ERROR,
                        (self._engine.path, "defect"),
                        subject,
                        problem,
                        trace=True,
                    )
                except BaseException:  # noqa: BLE001 (a user's log handler may raise)
                    callbacks.pass_to_excepthook()

    def _sleep(self, seconds: float) -> bool:
        """Wait for the next round; whether the thread must end."""
        return self._stop.wait(seconds)

    def tick(self) -> None:
        """Do the due tasks, unless another process does them: the lock is held only for the
        work.
        """
        self.jobs.close_deleted()
        with self.jobs.enter_if_free() as is_alone:
            if is_alone and self.jobs.try_work(self._work):
                self.jobs.write_points()

    def _work(self) -> bool:
        """Flush, and do due tasks; whether checkpoints are due, which need a lock that comes
        earlier in the lock order. REQUIRES the housekeeper's lock.
        """
        self.jobs.maintain()
        self._tend_transactions()
        self._tend_groups()
        self.jobs.clean_if_due()
        return self.jobs.claim_points()

    def _tend_transactions(self) -> None:
        """Abort abandoned transactions and expire unused ids, when due."""
        config = self._engine.config
        timeouts_ms = config.transaction_abort_timed_out_transaction_cleanup_interval_ms
        forgets_ms = config.transaction_remove_expired_transaction_cleanup_interval_ms
        with self.jobs.log_errors("transactions"):
            if self.jobs.claim_turn(NEXT_TRANSACTIONS_NS, timeouts_ms, timeouts_ms):
                self._engine.transactions.housekeep(self._deadline())
            if self.jobs.claim_turn(NEXT_IDS_NS, forgets_ms, forgets_ms):
                self._engine.transactions.forget_idle(self._deadline())

    def _tend_groups(self) -> None:
        """Evict ended members and expire unused offsets, when due."""
        interval_ms = self._engine.config.offsets_retention_check_interval_ms
        with self.jobs.log_errors("groups"):
            if self.jobs.claim_turn(NEXT_GROUPS_NS, GROUPS_MS, GROUPS_MS):
                self._engine.groups.housekeep()
            if self.jobs.claim_turn(NEXT_OFFSETS_NS, interval_ms, interval_ms):
                self._engine.groups.expire(self._deadline())

    def _deadline(self) -> int:
        return files.deadline_after(self._engine.config.lock_timeout_ms / 1000)

    def once(self, *, due_only: bool, work: Work) -> None:
        """Do one round in the caller's thread; `due_only`: only due tasks, unless another process
        does them.
        """
        if due_only:
            self.tick()
        else:
            self.by_hand(self._deadline(), work)

    # ---- a round ---------------------------------------------------------------------------------

    def by_hand(self, deadline_ns: int, work: Work) -> None:
        """Do a complete round in the caller's thread.

        Raises LockTimeoutError if another housekeeper holds the lock for too long.
        """
        with self.jobs.hold(deadline_ns):
            self.jobs.round(by_hand=True)
            with self.jobs.log_errors("transactions"):
                self._engine.transactions.housekeep(deadline_ns)
                self._engine.transactions.forget_idle(deadline_ns)
            with self.jobs.log_errors("groups"):
                self._engine.groups.housekeep()
                self._engine.groups.expire(deadline_ns)
            self.jobs.clean(work)
