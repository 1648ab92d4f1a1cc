"""This module measures how long the followers of one partition lag, while this process copies to
them.

Each chunk of a copy is a look at its follower. One that does not catch up for
`replica.lag.time.max.ms` is reported: its disk answers, but it is slower than the leader is
written. Time in which this process does not copy to a follower does not count: a pause of the
copying process is no lag.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

from embedlog._native import system
from embedlog.replicas.rules import lag
from embedlog.replicas.rules.lag import CaughtUp
from embedlog.storage.call_deadline import work_end

Step = Callable[[int], bool]


class LateFollower(Exception):
    """The follower did not catch up in time. Never leaves the package."""


class _Look(NamedTuple):
    """What the last look at a follower showed."""

    caught_up: CaughtUp
    time_ns: int  # of the look
    pauses_ns: int  # time without a copy to it, so far


class FollowerLags:
    """The followers of one partition, by node. Threads: any."""

    def __init__(self, limit_ns: int) -> None:
        self._limit_ns = limit_ns
        self._looks: dict[int, _Look] = {}
        self._mutex = threading.Lock()

    @property
    def limit_ms(self) -> int:
        """`replica.lag.time.max.ms`."""
        return self._limit_ns // 1_000_000

    def watch(self, node: int, leader_end: Callable[[], int], deadline_ns: int) -> Step:
        """A function for one copy, to be called with the follower's log end before and after each
        chunk.

        It returns whether the copy may continue, and raises LateFollower. A copy ends at its
        deadline, or earlier if this thread has other work, after the chunk in progress. One that
        begins later copies a chunk, too.
        """
        has_begun = False

        def step(follower_end: int) -> bool:
            nonlocal has_begun
            is_first = not has_begun
            has_begun = True
            if self._is_late(node, follower_end, leader_end(), working=not is_first):
                raise LateFollower
            return is_first or system.boot_ns() < work_end(deadline_ns)

        return step

    def forget(self, node: int) -> None:
        """The follower left the ISR: if it joins again, its time begins again."""
        with self._mutex:
            self._looks.pop(node, None)

    def _is_late(self, node: int, follower_end: int, leader_end: int, *, working: bool) -> bool:
        """Whether the follower is late at this look, which is noted. `working`: the time since the
        last look was spent with a copy to it.
        """
        now_ns = clock_ns()
        with self._mutex:
            last = self._looks.get(node)
            if last is None:
                self._looks[node] = _Look(lag.begin(leader_end, now_ns), now_ns, 0)
                return False
            pauses_ns = last.pauses_ns
            if not working:
                pauses_ns += max(0, now_ns - last.time_ns)
            working_ns = now_ns - pauses_ns
            caught_up = lag.observe(last.caught_up, follower_end, leader_end, working_ns)
            self._looks[node] = _Look(caught_up, now_ns, pauses_ns)
        return lag.is_late(caught_up, follower_end, leader_end, working_ns, self._limit_ns)


def clock_ns() -> int:
    """The boot clock."""
    return system.boot_ns()
