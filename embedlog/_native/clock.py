"""Moves the clock of timestamps, retention and expiry in this process, for tests of applications.
`system.wall_ms` reads it.

- Waits, deadlines, locks and heartbeats use the clocks of the kernel, which nothing moves.
- Both extensions stamp records: a move sets the wall clock of both.
- The elapsed time of open transactions and idle producers is counted on a monotonic clock plus
  `advanced_ns`. The wall clock does not move with it.
- Threads: one at a time moves the clock; all threads of the process see it.
"""

from __future__ import annotations

from embedlog._native import _core, _rows

__all__ = ["advance_elapsed", "advanced_ns", "freeze_wall", "shift_wall"]

_shift_ms = 0
_frozen_ms = -1
_advanced_ns = 0


def shift_wall(ms: int) -> None:
    """Shift the wall clock of this process against that of the kernel."""
    global _shift_ms
    _shift_ms = ms
    _set_clocks()


def freeze_wall(ms: int | None) -> None:
    """Stop the wall clock of this process at this time, in ms since 1970 UTC; None lets it run
    again.
    """
    global _frozen_ms
    _frozen_ms = -1 if ms is None else ms
    _set_clocks()


def _set_clocks() -> None:
    """Set the wall clock of both extensions."""
    _core.lib.el_shift_wall(_shift_ms)
    _core.lib.el_freeze_wall(_frozen_ms)
    _rows.set_wall_clock(_shift_ms, _frozen_ms)


def advance_elapsed(ns: int) -> None:
    """Count `ns` more as elapsed, for timeouts that are no waits."""
    global _advanced_ns
    _advanced_ns += ns


def advanced_ns() -> int:
    """The time by which tests have advanced the clock of this process."""
    return _advanced_ns
