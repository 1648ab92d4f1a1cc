"""This module keeps the house of a set: the jobs of each directory, copies for `acks=1`, and directories that return.

REPLICAHOUSEKEEPER-1  the directories' jobs are those of one directory; each has its own lock
REPLICAHOUSEKEEPER-2  a round over the partitions copies what is not committed, and adds replicas that caught up to the ISR
    (REPLICA-25). A partition without such work costs two reads of pages
REPLICAHOUSEKEEPER-3  a failure in one partition or directory is logged, and the others continue
"""

from __future__ import annotations

import logging
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
        others = [each for each in engine.directories if each is not engine.home]
        self._others = [DirectoryJobs(each, closed=lambda: engine.closed, ending=self._stop.is_set) for each in others]

    def stop(self) -> None:
        """End the thread and wait for it. Idempotent."""
        super().stop()
        for each in self._others:
            each.close()

    def tick(self) -> None:
        """Do the due tasks, unless another process does them."""
        super().tick()
        for jobs in self._others:
            with jobs.reported("a round"):
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
        self.tend()
        for jobs in self._others:
            with jobs.lock.hold(deadline_ns):
                jobs.round(by_hand=True)
                jobs.clean()
            jobs.points()
        super().by_hand(deadline_ns)
