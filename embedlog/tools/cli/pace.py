"""Contains what verbs that run for long need: `Pace`, a limit of calls per second, and an end in
order by signals.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

WAIT_MIN_S = 0.002  # shorter waits cost more than they delay


class Pace:
    """The time at which each of many calls is due, from the first call. A negative rate is no
    limit.

    A call is never earlier than its number at the given rate; a late call is not delayed.
    """

    def __init__(self, per_second: float, option: str = "--throughput") -> None:
        if per_second == 0:
            raise click.UsageError(
                f"{option}: expected a number above 0, or -1 for no limit, found 0"
            )
        self._interval_s = 1 / per_second if per_second > 0 else 0.0
        self._began_s: float | None = None

    def wait_s(self, number: int) -> float:
        """Seconds until call `number` is due, 0 if that is soon or was before; the first call is
        number 0.
        """
        if not self._interval_s:
            return 0.0
        if self._began_s is None:
            self._began_s = time.monotonic()
        remaining_s = self._began_s + number * self._interval_s - time.monotonic()
        return remaining_s if remaining_s >= WAIT_MIN_S else 0.0


@contextmanager
def end_by_signals(end: Callable[[], object]) -> Iterator[None]:
    """Call `end` for SIGINT and SIGTERM inside this block: what was sent is acknowledged, and the
    last lines are printed. A second signal calls it again: an end in order is never cut short.
    """
    earlier_handlers = {
        number: signal.signal(number, lambda *_: end())
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in earlier_handlers.items():
            signal.signal(number, handler)
