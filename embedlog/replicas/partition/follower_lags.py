"""This module measures how long the followers of one partition lag, while this process copies to
them.

FOLLOWERLAG-1  each chunk of a copy is a look. A follower that does not catch up for
    `replica.lag.time.max.ms` is reported: its disk answers, but it is slower than the leader is
    written
FOLLOWERLAG-2  time in which this process does not copy to a follower does not count: a pause of the
    copying process is no lag
FOLLOWERLAG-3  a copy ends at its deadline (or earlier: `work_end`), after the chunk in
    progress; also one that begins later copies a chunk
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


class _Known(NamedTuple):
    found: CaughtUp
    active_ns: int  # the time of the last look
    pauses_ns: int


class FollowerLags:
    """The followers of one partition, by node. Threads: any."""

    def __init__(self, limit_ns: int) -> None:
        self._limit_ns = limit_ns
        self._known: dict[int, _Known] = {}
        self._mutex = threading.Lock()

    @property
    def limit_ms(self) -> int:
        """`replica.lag.time.max.ms`."""
        return self._limit_ns // 1_000_000

    def watch(self, node: int, leader_end: Callable[[], int], deadline_ns: int) -> Step:
        """A function for one copy, to be called with the follower's log end before and after each
        chunk.

        It returns whether the copy may continue, and raises LateFollower.
        """
        working = False

        def step(at: int) -> bool:
            nonlocal working
            first = not working
            working = True
            if self._observe(node, at, leader_end(), working=not first):
                raise LateFollower
            return first or system.boot_ns() < work_end(deadline_ns)

        return step

    def forget(self, node: int) -> None:
        """The follower left the ISR: if it joins again, its time begins again."""
        with self._mutex:
            self._known.pop(node, None)

    def _observe(self, node: int, follower_end: int, leader_end: int, *, working: bool) -> bool:
        """Whether the follower is late now. `working`: the time since the last look was spent with
        a copy to it.
        """
        now_ns = clock_ns()
        with self._mutex:
            known = self._known.get(node)
            if known is None:
                self._known[node] = _Known(lag.begin(leader_end, now_ns), now_ns, 0)
                return False
            pauses_ns = known.pauses_ns + (0 if working else max(0, now_ns - known.active_ns))
            found = lag.observe(known.found, follower_end, leader_end, now_ns - pauses_ns)
            self._known[node] = _Known(found, now_ns, pauses_ns)
        return lag.is_late(found, follower_end, leader_end, now_ns - pauses_ns, self._limit_ns)


def clock_ns() -> int:
    """The boot clock."""
    return system.boot_ns()
