"""This module maintains a set: the jobs of each directory, copies for `acks=1`, and directories
that return.

REPLICAHOUSEKEEPER-1  the directories' jobs are those of one directory; each has its own lock
REPLICAHOUSEKEEPER-2  a round over the partitions copies what is not committed, and adds replicas
    that caught up to the ISR (REPLICA-25). A partition without such work costs one read of a page,
    or one `stat` if it is not loaded
REPLICAHOUSEKEEPER-3  a failure in one partition or directory is logged, and the others continue
REPLICAHOUSEKEEPER-4  transactions and groups are tasks of the first directory that is usable now.
    Two processes may see different ones; then both do the tasks, and each decision is made once
REPLICAHOUSEKEEPER-5  records with `acks=1` are committed by the process that has appended them, as
    soon as its thread is free. If it is killed before that, the next look of any process commits
    them: `replica.fetch.wait.max.ms` for partitions in use
REPLICAHOUSEKEEPER-6  a replica that is slower than its leader is written does not stop the round:
    its copy continues in the next one
REPLICAHOUSEKEEPER-7  a partition without a leader stops no round for longer than a second. One
    message is for all of them
REPLICAHOUSEKEEPER-8  the jobs of a directory are done by a thread of it (`directory_workers`). The
    round waits for them for a while, and goes on: they may last, and its disk may hang
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from embedlog import _logging
from embedlog._callbacks import Work
from embedlog._native import system
from embedlog._native.scope import scope
from embedlog._native.threads import Bell
from embedlog.admin.deleted_topics import DeletedTopics
from embedlog.admin.directory_jobs import DirectoryJobs
from embedlog.admin.housekeeper import Housekeeper
from embedlog.errors import ClosedError, EmbedlogError, LeaderNotAvailableError, LockTimeoutError
from embedlog.storage import files
from embedlog.storage.call_deadline import bounded_waits

if TYPE_CHECKING:
    from embedlog.log_directory import LogDirectory
    from embedlog.replica import ReplicatedEngine
    from embedlog.replicas.rules.events import Place

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
        self._late: set[tuple[Place, str]] = set()
        self._wake = Bell()
        self._seen = (0, 0)
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
        every = {*self._by_directory.values(), self.jobs}
        for each in every:
            self._close(each)

    def _close(self, jobs: DirectoryJobs) -> None:
        lane = self._set.members.workers.worker_of(jobs.path).jobs
        if lane.is_busy:
            lane.finish(jobs.close, JOBS_NS)
        else:
            jobs.close()

    def _first_jobs(self) -> DirectoryJobs:
        """The jobs of the home directory, or of another one if that is lost now. Raises
        StorageError if all are.
        """
        home = self._engine.home
        for each in (home, *(other for other in self._engine.directories if other is not home)):
            with self._of_directory():
                self._by_directory[each] = self._jobs_of(each)
                return self._by_directory[each]
        return self._jobs_of(home)

    def _current(self) -> list[DirectoryJobs]:
        """The jobs of the directories that are usable now. The first ones are `jobs`
        (REPLICAHOUSEKEEPER-4).
        """
        with self._choosing:
            directories = self._engine.directories
            for gone in set(self._by_directory).difference(directories):
                self._close(self._by_directory.pop(gone))
            usable = [each for each in directories if self._set.members.failure_of(each) is None]
            for each in usable:
                if each not in self._by_directory:
                    with self._of_directory():
                        lane = self._set.members.workers.worker_of(each.path).jobs
                        lane.run(partial(self._make_jobs, each))
            found = [self._by_directory[each] for each in usable if each in self._by_directory]
            self.jobs = found[0] if found else self.jobs
            return found

    def _make_jobs(self, directory: LogDirectory) -> None:
        """Make the jobs of a directory, in a thread of it: if its disk hangs, they are used, or
        closed, when it continues.
        """
        self._by_directory[directory] = self._jobs_of(directory)
        if self._stop.is_set() and (late := self._by_directory.pop(directory, None)) is not None:
            late.close()

    def _note_late(self, place: Place, topic: str) -> None:
        with self._choosing:
            self._late.add((place, topic))
        self._wake.ring()

    def _sleep(self, seconds: float) -> bool:
        """Wait for the next round, and commit what is appended with `acks=1` meanwhile
        (REPLICAHOUSEKEEPER-5).
        """
        until_ns = files.deadline_after(seconds)
        while not self._stop.is_set():
            left_s = (until_ns - system.boot_ns()) / 1e9
            if left_s <= 0:
                return False
            if self._wake.wait(left_s) and not self._stop.wait(min(LATE_S, self._wait_ms / 1000)):
                with self._choosing:
                    late = self._late
                    self._late = set()
                for place, topic in late:
                    self._tended(place, topic, ROUND_S)
        return True

    def tick(self) -> None:
        """Do the due tasks, unless another process does them."""
        with self.jobs.reported("the directories of the set"):
            self._set.members.tend()
        for at, jobs in enumerate(self._current()):
            with jobs.reported("a round"):
                lane = self._set.members.workers.worker_of(jobs.path).jobs
                if not lane.is_busy:
                    lane.finish(partial(self._tick, jobs), JOBS_NS)
                if at == 0:
                    with bounded_waits(files.deadline_after(ROUND_S)):  # REPLICAHOUSEKEEPER-7
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
        with self.jobs.reported("leaders"):
            self._set.assignments.rebalance(config.leader_imbalance_per_broker_percentage)

    def _is_check_due(self) -> bool:
        """Whether a decision was made, a directory failed or returned, or the last look at all
        partitions was long ago.
        """
        now_ns = system.boot_ns()
        seen = (self._set.directories.version(), self._set.directories.changes)
        due = seen != self._seen or now_ns >= self._check_ns
        if due:
            self._seen, self._check_ns = seen, now_ns + max(CHECK_MS, self._wait_ms) * 1_000_000
        return due

    def _tick_log(self, jobs: DirectoryJobs) -> None:
        """Do the due tasks of transactions and groups, unless another process does them."""
        if not jobs.lock.mutex.acquire(blocking=False):
            return
        try:
            if jobs.lock.try_lock():
                try:
                    self._tend_transactions()
                    self._tend_groups()
                finally:
                    jobs.lock.unlock()
        finally:
            jobs.lock.mutex.release()

    @staticmethod
    def _tick(jobs: DirectoryJobs) -> None:
        jobs.close_deleted()
        if not jobs.lock.mutex.acquire(blocking=False):
            return
        try:
            if jobs.lock.try_lock():
                try:
                    jobs.maintain()
                    jobs.clean_if_due()
                    points_due = jobs.points_due()
                finally:
                    jobs.lock.unlock()
                if points_due:
                    jobs.points()
        finally:
            jobs.lock.mutex.release()

    def tend(self, step_s: float | None = None, *, used_only: bool = False) -> None:
        """Commit what is copied late, and let replicas join (REPLICAHOUSEKEEPER-2).

        `step_s`: a longer copy to a replica outside the ISR continues in the next round
        (REPLICAHOUSEKEEPER-6). `used_only`: only partitions whose leader this process knows from an
        earlier round, if it has records to copy.
        """
        self._set.topics.refresh()
        state = self._set.decisions.hint()
        self._copy_ns = files.deadline_after(self._wait_ms / 1000)
        places = (
            [each.place for each in self._set.used_replicas() if not each.is_copied()]
            if used_only
            else list(state.partitions)
        )
        for place in places:
            if self._stop.is_set():
                return
            decided = state.partitions.get(place)
            if decided is None:
                continue
            topic = state.topics[place[0]].name
            if used_only or not self._set.replicas(place, topic).is_in_order(decided):
                self._tended(place, topic, step_s)
        with contextlib.suppress(ClosedError):
            self._set.assignments.clear()
            with self.jobs.reported("deleted topics"):
                self._deleted.tend()

    def _tended(self, place: Place, topic: str, step_s: float | None) -> None:
        until_ns = None if step_s is None else files.deadline_after(step_s)
        with contextlib.suppress(ClosedError):
            try:
                self._set.assignments.tend(place, topic, self._stop.is_set, until_ns)
                if until_ns is not None and system.boot_ns() >= until_ns:
                    self._check_ns = 0
            except EmbedlogError as problem:
                what, cause = self._cause(f"replicas of {topic}-{place[1]}", problem)
                _logging.report(logger, logging.WARNING, (self._engine.path, what), what, cause)

    def _cause(self, what: str, problem: EmbedlogError) -> tuple[str, EmbedlogError]:
        """The subject and the error of a message: one for all partitions that fail for the same
        reason (REPLICAHOUSEKEEPER-7).
        """
        if isinstance(problem, LeaderNotAvailableError):
            return "partitions without a leader", problem
        directories = self._set.directories
        node = directories.blame(problem, missing=True)
        gone = None if node is None else directories.loss_of(node)
        return (what, problem) if gone is None else (f"node {node}", gone)

    def by_hand(self, deadline_ns: int, work: Work) -> None:
        """Do a complete round in the caller's thread. Raises LockTimeoutError."""
        self._set.members.tend(by_hand=True)
        self.tend()
        self._rebalance()
        for at, jobs in enumerate(self._current()):
            with self._of_directory(jobs):
                if at == 0:
                    super().by_hand(deadline_ns, work)
                    continue
                with jobs.lock.hold(deadline_ns):
                    jobs.round(by_hand=True)
                    jobs.clean(work)
                jobs.points()

    @scope
    def _of_directory(self, jobs: DirectoryJobs | None = None) -> Iterator[None]:
        """Work on one directory: if that fails, the others continue (REPLICAHOUSEKEEPER-3). Raises
        errors of the process.

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
            node = self._set.directories.blame(problem)
            if node is None:
                raise
            self._set.directories.fail(node, problem)
            logger.warning("node %d failed during its housekeeping: %s", node, problem)

    def _are_replaced(self, jobs: DirectoryJobs) -> bool:
        with self._choosing:
            return jobs not in self._by_directory.values()
