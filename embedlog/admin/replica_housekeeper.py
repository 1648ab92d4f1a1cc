"""This module keeps the house of a set: the jobs of each directory, copies for `acks=1`, and directories that return.

REPLICAHOUSEKEEPER-1  the directories' jobs are those of one directory; each has its own lock
REPLICAHOUSEKEEPER-2  a round over the partitions copies what is not committed, and adds replicas that caught up to the ISR
    (REPLICA-25). A partition without such work costs two reads of pages
REPLICAHOUSEKEEPER-3  a failure in one partition or directory is logged, and the others continue
REPLICAHOUSEKEEPER-4  transactions and groups are tasks of the first directory that is usable now. Two processes may see different
    ones; then both do the tasks, and each decision is made once
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from embedlog import _logging
from embedlog.admin.directory_jobs import DirectoryJobs
from embedlog.admin.housekeeper import Housekeeper
from embedlog.errors import ClosedError, EmbedlogError

if TYPE_CHECKING:
    from embedlog.replica import ReplicatedEngine

logger = logging.getLogger("embedlog")


class ReplicaHousekeeper(Housekeeper):
    """The thread of a set and its tasks. Threads: `start`, `stop` from the log's owner; `once` from any."""

    def __init__(self, engine: ReplicatedEngine) -> None:
        super().__init__(engine)
        self._set = engine.set
        self._by_directory = {engine.home: self.jobs}
        self._choosing = threading.Lock()

    def stop(self) -> None:
        """End the thread and wait for it. Idempotent."""
        super().stop()
        for each in self._by_directory.values():
            each.close()

    def _current(self) -> list[DirectoryJobs]:
        """The jobs of the directories that are usable now. The first ones are `jobs` (REPLICAHOUSEKEEPER-4)."""
        with self._choosing:
            directories = self._engine.directories
            for gone in set(self._by_directory).difference(directories):
                self._by_directory.pop(gone).close()
            usable = [each for each in directories if self._set.members.failure(each) is None]
            for each in usable:
                if each not in self._by_directory:
                    made = DirectoryJobs(each, closed=lambda: self._engine.closed, ending=self._stop.is_set)
                    self._by_directory[each] = made
            found = [self._by_directory[each] for each in usable]
            self.jobs = found[0] if found else self.jobs
            return found

    def tick(self) -> None:
        """Do the due tasks, unless another process does them."""
        with self.jobs.reported("the directories of the set"):
            self._set.members.tend()
        for at, jobs in enumerate(self._current()):
            with jobs.reported("a round"):
                if at == 0:
                    super().tick()
                else:
                    self._tick(jobs)
        self.tend()

    @staticmethod
    def _tick(jobs: DirectoryJobs) -> None:
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

    def tend(self) -> None:
        """Commit what is copied late, and let replicas join (REPLICAHOUSEKEEPER-2)."""
        state = self._set.decisions.hint()
        for place in state.partitions:
            if self._stop.is_set():
                return
            topic = state.topics[place[0]].name
            try:
                self._set.replicas(place, topic).tend(self._set.deadline())
            except ClosedError:
                return
            except EmbedlogError as problem:
                what = f"replicas of {topic}-{place[1]}"
                _logging.report(logger, logging.WARNING, (self._engine.path, what), what, problem)

    def by_hand(self, deadline_ns: int) -> None:
        """Do a complete round in the caller's thread. Raises LockTimeoutError."""
        self._set.members.tend(by_hand=True)
        self.tend()
        for at, jobs in enumerate(self._current()):
            if at == 0:
                super().by_hand(deadline_ns)
                continue
            with jobs.lock.hold(deadline_ns):
                jobs.round(by_hand=True)
                jobs.clean()
            jobs.points()
