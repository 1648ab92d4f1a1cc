"""A clock that a test controls: timestamps, retention, and the expiry of transactions, offsets and
polls.

- The clock moves by `advance` and `set` only, so a test knows each timestamp.
- It is the clock of this process and of all its logs; other processes, and the kernel's times of
  files, are real.
- Waits, locks and heartbeats are real: a test that advances the clock waits for nothing, and
  expires no running member.
- The effect of an advance is complete when it returns, except for work of housekeeping:
  `Log.housekeep` does that.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Final

from embedlog import StateError
from embedlog._native import system
from embedlog._native.clock import advance_elapsed
from embedlog.config import keywords
from embedlog.engine.engine import open_engines
from embedlog.storage.liveness import age_leases

__all__ = ["Clock", "clock"]

_MILLISECOND: Final = timedelta(milliseconds=1)
_one_at_a_time: Final = threading.Lock()


@keywords.checked
class Clock:
    """The stopped clock of this process, made by `clock`. Threads: any; one thread moves it."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms
        system.freeze_wall(now_ms)

    @property
    def now_ms(self) -> int:
        """The current time in ms since 1970 UTC."""
        return self._now_ms

    @property
    def now(self) -> datetime:
        """The current time in UTC."""
        return datetime.fromtimestamp(self._now_ms / 1000, UTC)

    def advance(
        self,
        interval: timedelta | None = None,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        milliseconds: float = 0,
    ) -> int:
        """Let time pass; returns the new time in ms. The parts are added. Raises ValueError for a
        negative interval, and TypeError for a number without a unit.

        Timestamps, `retention.ms`, `segment.ms`, `delete.retention.ms`,
        `offsets.retention.minutes`, `transaction.timeout.ms` and the expiry of ids follow. A
        consumer between two polls for more than `max.poll.interval.ms` has left its group when this
        returns. Its next commit raises CommitFailedError, and its next poll joins again. Deletions
        are work of housekeeping: `log.housekeep()` does it in the caller's thread.
        """
        if interval is not None and not isinstance(interval, timedelta):
            raise TypeError(
                f"interval is a timedelta, not {interval!r}; a number has a unit, such as minutes=5"
            )
        passed = (interval or timedelta()) + timedelta(
            days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=milliseconds
        )
        passed_ms = passed // _MILLISECOND
        if passed_ms < 0:
            raise ValueError(
                f"time does not run backwards: {passed}; set() moves the wall clock alone"
            )
        self._now_ms += passed_ms
        system.freeze_wall(self._now_ms)
        advance_elapsed(passed_ms * 1_000_000)
        if age_leases(passed_ms * 1_000_000):
            for engine in open_engines():
                engine.groups.evict_ended()
        return self._now_ms

    def set(self, time: datetime | int) -> None:
        """Set the wall clock alone, also backwards, as an administrator does; timeouts do not
        change.

        `time`: an aware datetime, or ms since 1970 UTC. Raises ValueError for another one.
        """
        self._now_ms = _ms_of(time)
        system.freeze_wall(self._now_ms)


@keywords.checked_call
@contextmanager
def clock(start: datetime | int | None = None) -> Iterator[Clock]:
    """Stop the clock of this process for the time of the block; afterwards the real time is used
    again.

    `start`: an aware datetime, or ms since 1970 UTC; None for the current time. Raises ValueError
    for another time, StateError inside of another such block. **Threads:** any; the clock is that
    of the whole process.

        with embedlog.testing.clock() as clock:
            clock.advance(hours=8)
    """
    if not _one_at_a_time.acquire(blocking=False):
        raise StateError("this process has a test clock already: there is one for all its logs")
    try:
        yield Clock(system.wall_ms() if start is None else _ms_of(start))
    finally:
        system.freeze_wall(None)
        _one_at_a_time.release()


def _ms_of(time: datetime | int) -> int:
    if isinstance(time, datetime):
        if time.tzinfo is None:
            raise ValueError(f"a time needs a time zone: {time!r}")
        time = (time - datetime.fromtimestamp(0, UTC)) // _MILLISECOND
    if time < 0:
        raise ValueError(f"a time before 1970: {time}")
    return time
