"""Limits recurring log messages.

The first of a kind is logged at once, later ones once per hour with the number of omitted ones. The
limits are for all tasks that are retried automatically: the housekeeper, background flushes,
automatic commits.

- A key identifies the failing task and its place (the directory, the partition); another exception
  type with the same key is logged at once, and begins a new series, without the number of the old one.
- A failure after ten minutes without one counts as a first one.
- Memory is bounded: the key with the oldest failure is dropped first.
- Frequent changes, such as rolls, are one INFO line of a key in ten seconds, with the number of
  omitted ones.
- A forked child has locks of its own: another thread of the parent may have held one.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final

PAUSE_S: Final = 3600.0  # between two messages of a series
# longer than the housekeeper's longest default interval (log.retention.check.interval.ms)
QUIET_S: Final = 600.0
CHANGE_PAUSE_S: Final = 10.0  # between two messages about frequent changes
KEYS_MAX: Final = 10_000


@dataclass(slots=True, eq=False, repr=False)
class _Series:
    kind: type[BaseException]
    logged_s: float
    failed_s: float
    left_out: int = 0


class Recurring:
    """Recent failures. Threads: any, signal handlers and finalizers."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._mutex = threading.RLock()
        self._series: OrderedDict[Hashable, _Series] = OrderedDict()

    def report(
        self,
        logger: logging.Logger,
        level: int,
        key: Hashable,
        subject: str,
        problem: BaseException,
        *,
        trace: bool = False,
    ) -> None:
        """Log the subject and the problem, with its traceback if `trace`; at level DEBUG if it is
        omitted from a series.
        """
        left_out = self._note_failure(key, type(problem))
        if left_out is None:
            logger.debug("%s: %s", subject, problem)
            return
        hint = f" ({left_out} more since the last such message)" if left_out else ""
        logger.log(level, "%s: %s%s", subject, problem, hint, exc_info=problem if trace else None)

    def _note_failure(self, key: Hashable, kind: type[BaseException]) -> int | None:
        """Count a failure: the number of messages omitted since the last one; None if this one is
        omitted, too.
        """
        now_s = self._clock_s()
        with self._mutex:
            series = self._series.pop(key, None)
            if series is None or series.kind is not kind or now_s - series.failed_s > QUIET_S:
                series = _Series(kind, now_s, now_s)
                left_out: int | None = 0
            elif now_s - series.logged_s < PAUSE_S:
                series.left_out += 1
                left_out = None
            else:
                left_out = series.left_out
                series.left_out = 0
                series.logged_s = now_s
            series.failed_s = now_s
            self._series[key] = series
            if len(self._series) > KEYS_MAX:
                self._series.popitem(last=False)
            return left_out


class Frequent:
    """Recent frequent changes. Threads: any, signal handlers and finalizers."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._mutex = threading.RLock()
        # time of the last line, and the omitted ones
        self._series: OrderedDict[Hashable, tuple[float, int]] = OrderedDict()

    def change(self, logger: logging.Logger, key: Hashable, text: str) -> None:
        """Log the text at level INFO, or at level DEBUG if it is omitted."""
        now_s = self._clock_s()
        with self._mutex:
            logged_s, left_out = self._series.get(key, (None, 0))
            omitted = logged_s is not None and now_s - logged_s < CHANGE_PAUSE_S
            self._series[key] = (
                (logged_s, left_out + 1) if logged_s is not None and omitted else (now_s, 0)
            )
            self._series.move_to_end(key)
            if len(self._series) > KEYS_MAX:
                self._series.popitem(last=False)
        hint = f" ({left_out} more since the last such message)" if left_out and not omitted else ""
        logger.log(logging.DEBUG if omitted else logging.INFO, "%s%s", text, hint)


# one per process: two logs of one directory have the same failures
_recurring = Recurring()
_frequent = Frequent()
report = _recurring.report
change = _frequent.change


def _after_fork() -> None:
    """Give a child locks of its own: another thread of the parent may have held one."""
    _recurring._mutex = threading.RLock()
    _frequent._mutex = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)
