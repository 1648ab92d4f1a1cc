"""This module bounds all waits of a public call by the deadline of that call, and those of a thread
with other work.

- A call of a client on a set stores its deadline for its thread. Waits for leaders and locks below
  it end then, although their own limit is `lock.timeout.ms`.
- A wait for a lock that ends before the lock's own limit is no failure of the lock's directory.
- A thread that has other work waits for no change of a set: a leader, a majority, a larger ISR.
  Without other work it waits for a slice. It copies to followers for a slice at most, in any case.
  Then its call ends as at the deadline. Locks are waited for until the deadline even so, because an earlier end shows nothing
  about their directory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from embedlog._native import system
from embedlog._native.scope import Setting, scope

NEVER_NS: Final = 2**63 - 1


class _Calls(threading.local):
    deadline_ns: int = NEVER_NS
    current_slice: Slice | None = None
    thread: int = 0  # for which this one works; 0: for itself


_calls = _Calls()


class Standing(NamedTuple):
    """What a thread that works for another one takes over from it."""

    deadline_ns: int
    thread: int


def acting_thread() -> int:
    """The number of the thread whose call this is: a thread of a directory works for others."""
    return _calls.thread or threading.get_ident()


def standing_of_thread() -> Standing:
    """The standing of this thread, for one that works for it."""
    return Standing(_calls.deadline_ns, acting_thread())


@scope
def stand_in_for(caller: Standing) -> Iterator[None]:
    """Work for another thread meanwhile: its deadline counts, and what is reserved for it is
    accessible. Its slice is not taken over.

    By `finally`, since a thread that works for others gets no interrupt.
    """
    before = Standing(_calls.deadline_ns, _calls.thread)
    _calls.deadline_ns, _calls.thread = caller
    try:
        yield
    finally:
        _calls.deadline_ns, _calls.thread = before


def bound_deadline(deadline_ns: int) -> int:
    """The earlier one of a deadline (boot clock, ns) and of that of the current call of this
    thread.
    """
    return min(deadline_ns, _calls.deadline_ns)


def is_over() -> bool:
    """Whether the current call of this thread has reached its deadline: its locks are not waited
    for any more.
    """
    return system.boot_ns() >= _calls.deadline_ns


def wait_end(deadline_ns: int) -> int:
    """The end of a wait of this thread for a change of a set: the deadline, or earlier, 0 if it is
    over.
    """
    current_slice = _calls.current_slice
    if current_slice is None:
        return deadline_ns
    return current_slice.end_of_wait(deadline_ns)


def work_end(deadline_ns: int) -> int:
    """The end of the work of this thread on one partition, in steps, in the same way."""
    current_slice = _calls.current_slice
    if current_slice is None:
        return deadline_ns
    return current_slice.end_of_work(deadline_ns)


class Slice:
    """This thread may have other work between `begin` and its end. `has_work` shows whether it has
    some now.

    `ended` and `awaits_change` are set once and never reset, so an object is for one call. `ended`:
    a call inside ended early for the other work, so its error says nothing; it may be made again.
    `awaits_change`: what ended early was a wait for a change of the set.
    """

    __slots__ = ("_has_work", "_slice_ns", "_until_ns", "awaits_change", "ended")

    def __init__(self, has_work: Callable[[], bool], slice_ns: int) -> None:
        self._has_work = has_work
        self._slice_ns = slice_ns
        self._until_ns = NEVER_NS
        self.ended = False
        self.awaits_change = False

    def begin(self) -> Setting[Slice]:
        """A context in which the slice counts for this thread; the slice begins now."""
        self._until_ns = system.boot_ns() + self._slice_ns
        return Setting(_calls, "current_slice", self)

    def end_of_wait(self, deadline_ns: int) -> int:
        """As `wait_end`."""
        now_ns = system.boot_ns()
        slice_end_ns = now_ns if self._has_work() else self._until_ns
        end_ns = self._end_of(now_ns, slice_end_ns, deadline_ns)
        if not end_ns:
            self.awaits_change = True
        return end_ns

    def end_of_work(self, deadline_ns: int) -> int:
        """As `work_end`."""
        return self._end_of(system.boot_ns(), self._until_ns, deadline_ns)

    def _end_of(self, now_ns: int, slice_end_ns: int, deadline_ns: int) -> int:
        """The earlier one of the end of the slice and the deadline; 0 if the slice is over first."""
        if deadline_ns <= max(slice_end_ns, now_ns):
            return deadline_ns
        if slice_end_ns > now_ns:
            return slice_end_ns
        self.ended = True
        return 0


def bound_waits(deadline_ns: int, *, public: bool = False) -> Setting[int]:
    """A context: waits of this thread end at a time (boot clock, ns). The earlier one of nested
    contexts counts.

    `public`: a call of the user begins, perhaps inside a callback. The contexts around it do not
    count.
    """
    if not public:
        deadline_ns = bound_deadline(deadline_ns)
    return Setting(_calls, "deadline_ns", deadline_ns)
