"""Runs one function in several threads that begin together, and raises their first error."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable

# ThreadSanitizer makes all code slower
DEADLINE_S = 600.0 if os.environ.get("EMBEDLOG_SANITIZE") == "thread" else 120.0
FREE_THREADED = not getattr(sys, "_is_gil_enabled", lambda: True)()


def crowd(count: int, work: Callable[[int], object], *others: Callable[[], object]) -> None:
    """Calls work(0) … work(count - 1), and each of `others`, in a thread of its own."""
    calls: list[Callable[[], object]] = [
        lambda number=number: work(number) for number in range(count)
    ]  # type: ignore[misc]
    calls += others
    start = threading.Barrier(len(calls))
    errors: list[BaseException] = []

    def run(call: Callable[[], object]) -> None:
        try:
            start.wait(DEADLINE_S)
            call()
        except BaseException as error:  # noqa: BLE001  (raised below)
            errors.append(error)

    threads = [threading.Thread(target=run, args=(call,), daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert not any(thread.is_alive() for thread in threads), "a thread did not end"
    if errors:
        raise errors[0]
