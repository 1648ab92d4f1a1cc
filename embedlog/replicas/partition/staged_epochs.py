"""Prepares the leader-epoch-checkpoints of partitions that one decision gave other leaders.

Each of them replaces this file in the new leader and in its followers. One after another, their
syncs are most of the time of a failover. A file system writes those that are requested together
with few commits of its journal.

The files are temporaries and nothing depends on them: the install of the decision writes what is
not prepared. So an error of a directory is logged, and not raised. The first partition waits for
its own files only; each later step prepares twice as many, up to `STEP_MAX`. No lock of a partition
is taken. While one thread prepares, the others do not wait for it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from embedlog.errors import EmbedlogError
from embedlog.storage import files

if TYPE_CHECKING:
    from embedlog.partition.replication.replica_log import Staging
    from embedlog.replicas.rules.state import State

# partitions: 21 with three replicas have 63 files, about one call of `files.sync_all`
STEP_MAX: Final = 21


class Elected(Protocol):
    """A partition with a new leader."""

    def stage_epochs(self, state: State) -> Iterable[Staging]:
        """Write the files of its leader and followers in this state. Logs errors of directories."""


class EpochStaging:
    """The partitions of one decision whose files are not prepared yet, in the order of the
    decision: they are probably used in that order. Threads: any.
    """

    def __init__(self, elected: Sequence[Elected]) -> None:
        self._unprepared = list(elected)
        self._step = 1  # partitions that are prepared together next
        self._mutex = threading.Lock()

    def prepare(self, partition: Elected, state: State) -> None:
        """Prepare a partition that is about to be used, and the ones after it, unless that was
        done. Does nothing while another thread prepares.
        """
        # without a `Guard`: nobody waits for this mutex, so one that an interrupt leaves taken only
        # ends the preparation
        if not self._mutex.acquire(blocking=False):
            return
        try:
            if partition in self._unprepared:
                first = self._unprepared.index(partition)
                partitions = self._unprepared[first : first + self._step]
                del self._unprepared[first : first + self._step]
                self._step = min(2 * self._step, STEP_MAX)
                _stage(partitions, state)
        finally:
            self._mutex.release()


def _stage(partitions: Sequence[Elected], state: State) -> None:
    """Write the epochs of these partitions, and sync them together."""
    stagings: list[Staging] = []
    are_synced: list[bool] = []
    try:
        for partition in partitions:
            # one of the others may be deleted: the work is left to its usual place
            with contextlib.suppress(EmbedlogError):
                stagings += partition.stage_epochs(state)
        are_synced = files.sync_all([staging.fd for staging in stagings])
    finally:
        for number, staging in enumerate(stagings):
            is_synced = number < len(are_synced) and are_synced[number]
            # a temporary that is left is removed by the next open
            with contextlib.suppress(EmbedlogError):
                staging.finish(synced=is_synced)
