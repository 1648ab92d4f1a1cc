"""Guards objects that only one thread at a time may use.

THREADGUARD-1  a second thread is refused at once and never waits: a wait would hide a bug of the application
THREADGUARD-2  the thread inside may enter again (a listener that calls back)
THREADGUARD-3  an interrupt at any point leaves the guard usable for the interrupted thread
"""

from __future__ import annotations

from collections.abc import Iterator
from threading import get_ident
from time import monotonic, sleep
from types import TracebackType

from embedlog._native import system
from embedlog._native.scope import scope
from embedlog.errors import ConcurrentUseError
from embedlog.storage.call_deadline import Until

RETRY_S = 0.001


class ThreadGuard:
    """A context manager that only one thread can enter.

    Examples:
        >>> guard = ThreadGuard("this consumer")
        >>> with guard, guard:
        ...     pass
    """

    __slots__ = ("_depth", "_owner", "_what")

    def __init__(self, what: str) -> None:
        self._what = what
        self._owner: dict[str, int] = {}  # setdefault tests and sets in one step, also without the GIL
        self._depth = 0

    def __enter__(self) -> None:
        thread = get_ident()
        owner = self._owner.setdefault("thread", thread)
        if owner != thread:
            raise ConcurrentUseError(f"{self._what} is in use by thread {owner}; use one per thread, or wakeup() to stop it")
        self._depth += 1

    @scope
    def claimed_within(self, timeout_s: float | None) -> Iterator[None]:
        """As `with` itself, but waits for the thread inside, which was asked to leave. Raises ConcurrentUseError."""
        until = None if timeout_s is None else monotonic() + timeout_s
        while True:
            try:
                self.__enter__()
                break
            except ConcurrentUseError:
                if until is not None and monotonic() >= until:
                    raise
                sleep(RETRY_S)
        try:
            yield
        finally:
            self.__exit__(None, None, None)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._owner.clear()


class BoundedGuard:
    """The thread guard with a deadline for all waits inside."""

    __slots__ = ("_guard", "_until")

    def __init__(self, guard: ThreadGuard, timeout_ms: int) -> None:
        self._guard, self._until = guard, Until(system.boot_ns() + timeout_ms * 1_000_000, public=True)

    def __enter__(self) -> None:
        self._guard.__enter__()
        self._until.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._until.__exit__(kind, error, traceback)
        self._guard.__exit__(kind, error, traceback)
