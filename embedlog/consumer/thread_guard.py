"""Guards objects that only one thread at a time may use.

A second thread is refused at once and never waits: a wait would hide a bug of the application. The
thread inside may enter again (a listener that calls back). An interrupt at any point leaves the
guard usable, for each thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from time import monotonic, sleep
from typing import NoReturn

from embedlog._native import system
from embedlog._native.scope import Claim, Guard, scope
from embedlog.errors import ConcurrentUseError
from embedlog.storage.call_deadline import bound_waits

RETRY_S = 0.001


def thread_guard(guarded: str) -> Claim:
    """A context manager that only one thread can enter. `guarded` names the object, for the error.

    Examples:
        >>> guard = thread_guard("this consumer")
        >>> with guard, guard:
        ...     pass
    """
    return Claim(partial(_refuse, guarded))


def _refuse(guarded: str, owner: int) -> NoReturn:
    raise ConcurrentUseError(
        f"{guarded} is in use by thread {owner}; use one per thread, or wakeup() to stop it"
    )


@scope
def claim_within(guard: Claim, timeout_s: float | None) -> Iterator[None]:
    """As `with guard`, but waits for the thread inside, which was asked to leave. Raises
    ConcurrentUseError.
    """
    end = None if timeout_s is None else monotonic() + timeout_s
    while True:
        with Guard(guard.leave, guard.attempt) as entered:
            if entered:
                yield
                return
        if end is not None and monotonic() >= end:
            with guard:  # raises, or the thread inside has just left
                yield
                return
        sleep(RETRY_S)


@scope
def bounded_guard(guard: Claim, timeout_ms: int) -> Iterator[None]:
    """The guard with a deadline for all waits inside."""
    with guard, bound_waits(system.boot_ns() + timeout_ms * 1_000_000, public=True):
        yield
