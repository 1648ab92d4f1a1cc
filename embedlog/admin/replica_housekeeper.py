"""This module maintains a set: the jobs of each directory, copies for `acks=1`, and directories
that return.

- The directories' jobs are those of one directory; each has its own lock.
- A round over the partitions copies what is not committed, and adds replicas that caught up to the
  ISR (REPLICA-25). A partition without such work costs one read of a page, or one `stat` if it is
  not loaded.
- A failure in one partition or directory is logged, and the others continue.
- Transactions and groups are tasks of the first directory that is usable now. Two processes may see
  different ones; then both do the tasks, and each decision is made once.
- Records with `acks=1` are committed by the process that has appended them, as soon as its thread
  is free. If it is killed before that, the next look of any process commits them:
  `replica.fetch.wait.max.ms` for partitions in use.
- A replica that is slower than its leader is written does not stop the round: its copy continues in
  the next one.
- A partition without a leader stops no round for longer than a second. One message is for all of
  them.
- The jobs of a directory are done by a thread of it (`directory_workers`). The round waits for them
  for a while, and goes on: they may last, and its disk may hang.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from embedlog._native import system
from embedlog._native.scope import scope
from embedlog._native.threads import Bell
from embedlog.admin.deleted_topics import DeletedTopics
from embedlog.admin.directory_jobs import DirectoryJobs
from embedlog.admin.housekeeper import Housekeeper
from embedlog.errors import ClosedError, EmbedlogError, LeaderNotAvailableError, LockTimeoutError
from embedlog.hooks.callbacks import Work
from embedlog.storage import files
from embedlog.storage.call_deadline import bound_waits
from embedlog.telemetry import log_messages

if TYPE_CHECKING:
    from embedlog.engine.log_directory import LogDirectory
    from embedlog.replica import ReplicatedEngine
    from embedlog.replicas.rules.events import PartitionId

logger = logging.getLogger("embedlog")


CHECK_MS: Final = 2000  # between two looks at all partitions, if nothing has changed
ROUND_S: Final = 1.0  # for copies to replicas outside the ISR
JOBS_NS: Final = 1_000_000_000  # for the due jobs of a directory, before the round goes on
LATE_S: Final = 0.005  # between two commits of records with acks=1


class ReplicaHousekeeper(Housekeeper):
    """The thread of a set and its tasks. Threads: `start`, `stop` from the log's owner; `once` from
    any.
    """

    def __init__(self, engine: ReplicatedEngine) -> None:
        self._set = engine.set
        self._by_directory: dict[LogDirectory, DirectoryJobs] = {}
        super().__init__(engine)
        self._deleted = DeletedTopics(engine)
        self._choosing = threading.RLock()  # a signal handler may append, too, inside `_note_late`
        # partitions with records that this process has appended with acks=1
        self._late: set[tuple[PartitionId, str]] = set()
        self._wake = Bell()
        self._checked_versions = (0, 0)  # of decisions and directories, at the last look
        self._check_ns = 0
        self._copy_ns = 0
        self._wait_ms = engine.config.replica_fetch_wait_max_ms
        self._balance_ns = files.deadline_after(
            engine.config.leader_imbalance_check_interval_seconds
        )
        self._set.directories.appended = self._note_late

    def stop(self) -> None:
        """End the thread and wait for it, within `lock.timeout.ms`. Idempotent."""
        self._stop.set()
        self._wake.ring()
        super().stop()

    def _close_jobs(self) -> None:
        """Close the jobs. A thread that still does some of them closes these."""
        for jobs in {*self._by_directory.values(), self.jobs}:
            self._close(jobs)

    def _close(self, jobs: DirectoryJobs) -> None:
        lane = self._set.members.workers.worker_of(jobs.path).jobs
        if lane.is_busy:
            lane.finish(jobs.close, JOBS_NS)
        else:
            jobs.close()

    def _make_first_jobs(self) -> DirectoryJobs:
        """The jobs of the home directory, or of another one if that is lost now. Raises
        StorageError if all are.
        """
        home = self._engine.home
        others = [directory for directory in self._engine.directories if directory is not home]
        for directory in (home, *others):
            with self._fail_alone():
                self._by_directory[directory] = self._jobs_of(directory)
                return self._by_directory[directory]
        return self._jobs_of(home)

    def _usable_jobs(self) -> list[DirectoryJobs]:
        """The jobs of the directories that are usable now. The first ones are `jobs`: they include
        those of transactions and groups.
        """
        with self._choosing:
            directories = self._engine.directories
            for gone in set(self._by_directory).difference(directories):
                self._close(self._by_directory.pop(gone))
            usable_jobs = []
            for directory in directories:
                if self._set.members.failure_of(directory) is not None:
                    continue
                if directory not in self._by_directory:
                    with self._fail_alone():
                        lane = self._set.members.workers.worker_of(directory.path).jobs
                        lane.run(partial(self._make_jobs, directory))
                if directory in self._by_directory:
                    usable_jobs.append(self._by_directory[directory])
            if usable_jobs:
                self.jobs = usable_jobs[0]
            return usable_jobs

    def _make_jobs(self, directory: LogDirectory) -> None:
        """Make the jobs of a directory, in a thread of it: if its disk hangs, they are used, or
        closed, when it continues.
        """
        self._by_directory[directory] = self._jobs_of(directory)
        if self._stop.is_set():
            jobs = self._by_directory.pop(directory, None)
            if jobs is not None:
                jobs.close()

    def _note_late(self, partition_id: PartitionId, topic: str) -> None:
        with self._choosing:
            self._late.add((partition_id, topic))
        self._wake.ring()

    def _sleep(self, seconds: float) -> bool:
        """Wait for the next round, and commit what this process appends with `acks=1` meanwhile."""
        until_ns = files.deadline_after(seconds)
        while not self._stop.is_set():
            remaining_s = (until_ns - system.boot_ns()) / 1e9
            if remaining_s <= 0:
                return False
            if not self._wake.wait(remaining_s):
                continue
            if self._stop.wait(min(LATE_S, self._wait_ms / 1000)):
                continue
            with self._choosing:
                late = self._late
                self._late = set()
            for partition_id, topic in late:
                self._tend_partition(partition_id, topic, ROUND_S)
        return True

    def tick(self) -> None:
        """Do the due tasks, unless another process does them."""
        with self.jobs.log_errors("the directories of the set"):
            self._set.members.tend()
        for number, jobs in enumerate(self._usable_jobs()):
            with jobs.log_errors("a round"):
                lane = self._set.members.workers.worker_of(jobs.path).jobs
                if not lane.is_busy:
                    lane.finish(partial(self._tick, jobs), JOBS_NS)
                if number == 0:
                    # a partition without a leader holds up the round no longer than this
                    with bound_waits(files.deadline_after(ROUND_S)):
                        self._tick_log(jobs)
        if self._is_check_due():
            self.tend(ROUND_S)
        elif system.boot_ns() >= self._copy_ns:
            self.tend(ROUND_S, used_only=True)
        if system.boot_ns() >= self._balance_ns:
            self._rebalance()

    def _rebalance(self) -> None:
        """Return leaders to the first directories of their assignments
        (`leader.imbalance.per.broker.percentage`).
        """
        config = self._engine.config
        self._balance_ns = files.deadline_after(config.leader_imbalance_check_interval_seconds)
        if not config.auto_leader_rebalance_enable:
            return
        with self.jobs.log_errors("leaders"):
            self._set.assignments.rebalance(config.leader_imbalance_per_broker_percentage)

    def _is_check_due(self) -> bool:
        """Whether a decision was made, a directory failed or returned, or the last look at all
        partitions was long ago.
        """
        now_ns = system.boot_ns()
        versions = (self._set.directories.version(), self._set.directories.changes)
        if versions == self._checked_versions and now_ns < self._check_ns:
            return False
        self._checked_versions = versions
        self._check_ns = now_ns + max(CHECK_MS, self._wait_ms) * 1_000_000
        return True

    def _tick_log(self, jobs: DirectoryJobs) -> None:
        """Do the due tasks of transactions and groups, unless another process does them."""
        with jobs.enter_if_free() as is_alone:
            if is_alone:
                jobs.try_work(self._work_on_log)

    def _work_on_log(self) -> bool:
        self._tend_transactions()
        self._tend_groups()
        return False  # checkpoints are those of `_tick`

    @staticmethod
    def _tick(jobs: DirectoryJobs) -> None:
        """Do the due jobs of a directory, unless another process does them."""

        def work() -> bool:
            jobs.maintain()
            jobs.clean_if_due()
            return jobs.claim_points()

        jobs.close_deleted()
        with jobs.enter_if_free() as is_alone:
            if is_alone and jobs.try_work(work):
                jobs.write_points()

    def tend(self, step_s: float | None = None, *, used_only: bool = False) -> None:
        """Commit what is copied late, and let replicas join the ISR (REPLICA-25).

        `step_s`: a longer copy to a replica outside the ISR continues in the next round.
        `used_only`: only partitions whose leader this process knows from an earlier round, if it
        has records to copy.
        """
        self._set.topics.refresh()
        state = self._set.decisions.counted_state()
        self._copy_ns = files.deadline_after(self._wait_ms / 1000)
        if used_only:
            partition_ids = [
                replicas.partition_id
                for replicas in self._set.used_replicas()
                if not replicas.is_copied()
            ]
        else:
            partition_ids = list(state.partitions)
        for partition_id in partition_ids:
            if self._stop.is_set():
                return
            decided = state.partitions.get(partition_id)
            if decided is None:
                continue
            topic = state.topics[partition_id[0]].name
            if used_only or not self._set.replicas(partition_id, topic).is_in_order(decided):
                self._tend_partition(partition_id, topic, step_s)
        with contextlib.suppress(ClosedError):
            self._set.assignments.clear()
            with self.jobs.log_errors("deleted topics"):
                self._deleted.tend()

    def _tend_partition(self, partition_id: PartitionId, topic: str, step_s: float | None) -> None:
        until_ns = None if step_s is None else files.deadline_after(step_s)
        with contextlib.suppress(ClosedError):
            try:
                self._set.assignments.tend(partition_id, topic, self._stop.is_set, until_ns)
                if until_ns is not None and system.boot_ns() >= until_ns:
                    self._check_ns = 0
            except EmbedlogError as problem:
                subject, cause = self._find_cause(f"replicas of {topic}-{partition_id[1]}", problem)
                key = (self._engine.path, subject)
                log_messages.report(logger, logging.WARNING, key, subject, cause)

    def _find_cause(self, subject: str, problem: EmbedlogError) -> tuple[str, EmbedlogError]:
        """The subject and the error of a message: one for all partitions that fail for the same
        reason.
        """
        if isinstance(problem, LeaderNotAvailableError):
            return "partitions without a leader", problem
        directories = self._set.directories
        node = directories.find_failed_node(problem, missing=True)
        cause = None if node is None else directories.loss_of(node)
        if cause is None:
            return subject, problem
        return f"node {node}", cause

    def by_hand(self, deadline_ns: int, work: Work) -> None:
        """Do a complete round in the caller's thread. Raises LockTimeoutError."""
        self._set.members.tend(by_hand=True)
        self.tend()
        self._rebalance()
        for number, jobs in enumerate(self._usable_jobs()):
            with self._fail_alone(jobs):
                if number == 0:
                    super().by_hand(deadline_ns, work)
                    continue
                with jobs.hold(deadline_ns):
                    jobs.round(by_hand=True)
                    jobs.clean(work)

    @scope
    def _fail_alone(self, jobs: DirectoryJobs | None = None) -> Iterator[None]:
        """Work on one directory: if that fails, the others continue. Raises errors of the
        process.

        `jobs`: those that are done. If another thread has closed them, their directory was opened
        again, or left: it has others.
        """
        try:
            yield
        except LockTimeoutError:
            raise
        except EmbedlogError as problem:
            if jobs is not None and self._are_replaced(jobs):
                return
            node = self._set.directories.find_failed_node(problem)
            if node is None:
                raise
            self._set.directories.fail(node, problem)
            logger.warning("node %d failed during its housekeeping: %s", node, problem)

    def _are_replaced(self, jobs: DirectoryJobs) -> bool:
        with self._choosing:
            return jobs not in self._by_directory.values()
